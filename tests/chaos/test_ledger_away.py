"""Postgres is away, goes away, or its reply to a COMMIT is lost: a clear error, and exact after."""

import contextlib
import socket
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from fix_account import quiet
from fix_engine import LocalEngine
from fix_faults import collecting
from fix_pipelines import Workbench
from fix_postgres import EMPTY, restart, server
from fix_scene import Scene, sql
from fix_wire import Wire
from semel import faults, settings
from semel.catalog import merge
from semel.collect import collect
from semel.commit import commit
from semel.errors import OutcomeUnknownError, RetryableError, UnavailableError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.stage import stage

IN_TRANSACTION = (
    "plan.before_register",
    "plan.before_write",
    "stage.before_begin",
    "stage.before_store",
    "stage.before_seal",
    "commit.before_win",
    "finalize.before_finalized",
    "collect.before_retire",
    "collect.before_delete",
)
BETWEEN = (
    "plan.before_lock",
    "stage.after_folders",
    "stage.after_job",
    "commit.before_compare",
    "commit.after_compare",
    "finalize.before_publish",
    "collect.before_merge",
)


def run_and_collect(ledger: Ledger, scene: Scene) -> None:
    run_batch(ledger, scene.spec, "r1", LocalEngine(), log=quiet)
    collecting(ledger, scene.spec)


@pytest.fixture(autouse=True)
def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(merge.merge_candidates.__kwdefaults__, "live_max", 1)


def test_away_at_each_verb(scene: Scene) -> None:
    """A ledger that does not answer is an UnavailableError of every verb, and nothing is done."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    planned = plan(scene.ledger, scene.spec, "r1").batch
    url = sa.make_url(scene.ledger.dsn).set(host="127.0.0.1", port=port)
    engine = LocalEngine()
    with Ledger(url.render_as_string(hide_password=False)) as away:
        for verb in (
            lambda: plan(away, scene.spec, "r1"),
            lambda: stage(away, scene.spec, planned.batch_id, engine, quiet),
            lambda: commit(away, scene.spec, planned.batch_id, lambda: None, quiet),
            lambda: finalize(away, scene.spec, planned.batch_id),
            lambda: collect(away, scene.spec, quiet),
        ):
            with pytest.raises(UnavailableError):
                verb()
    assert engine.jobs == []
    scene.finish("r1", "r2")


@pytest.mark.parametrize("point", IN_TRANSACTION + BETWEEN)
def test_connections_end_at_a_point(scene: Scene, point: str) -> None:
    """All connections are terminated: a RetryableError or none, and the same request is exact."""

    def terminate() -> None:
        with Ledger(scene.ledger.dsn) as other:
            sql(
                other,
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )

    with faults.armed(point, terminate) as fault:
        if point in IN_TRANSACTION:
            with pytest.raises(RetryableError):
                run_and_collect(scene.ledger, scene)
        else:
            run_and_collect(scene.ledger, scene)
    assert fault.hit
    scene.finish("r1", "r2")


# Attacks C11.
@pytest.mark.parametrize("what", ["reply", "request"])
@pytest.mark.parametrize("point", IN_TRANSACTION)
def test_a_commit_is_cut(
    scene: Scene, wire: Wire, ledger_behind: Ledger, point: str, what: str
) -> None:
    """It landed and nobody was told, or it never arrived: OutcomeUnknownError, then it is exact."""
    with faults.armed(point, lambda: wire.cut(what)), pytest.raises(OutcomeUnknownError):
        run_and_collect(ledger_behind, scene)
    assert wire.cuts == 1
    run_and_collect(ledger_behind, scene)
    scene.finish("r1", "r2")


@pytest.fixture(scope="module")
def crashing() -> Iterator[str]:
    """A server that may crash: its files are as durable as a user's."""
    with server() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute((settings.sql_dir() / "schema.sql").read_text(encoding="utf-8"))
        yield dsn


RESTARTS = ("plan.before_write", "stage.before_store", "commit.before_win", "finalize.after_mark")


# Attacks C10.
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in RESTARTS else pytest.mark.proof)
        for point in (*IN_TRANSACTION, *BETWEEN, "finalize.after_mark")
    ],
)
def test_postgres_crashes_in_the_middle(
    crashing: str, bench: Workbench, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies and comes back: a RetryableError or none, and the same request is exact."""
    with psycopg.connect(crashing, autocommit=True) as connection:
        connection.execute(EMPTY)
    monkeypatch.setenv(settings.LEDGER_VARIABLE, crashing)
    with Ledger(crashing) as ledger:
        scene = Scene(bench, ledger)
        with faults.armed(point, lambda: restart(crashing)) as fault:
            with contextlib.suppress(RetryableError):
                run_and_collect(ledger, scene)
        assert fault.hit
        scene.finish("r1", "r2")
