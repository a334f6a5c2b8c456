"""Postgres is away, goes away, takes no writes, or its reply to a COMMIT is lost: a clear error,
and exact after.
"""

import contextlib
import socket
import time
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from fix_scene import Scene
from fixtures.batches.account import quiet, run, sql
from fixtures.batches.faults import collecting
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import EMPTY, restart, server
from fixtures.postgres.wire import Wire
from fixtures.spark.local import LocalEngine
from fixtures.wait import wait_for
from semel import failpoints, limits, settings
from semel.collect import collect
from semel.commit import commit
from semel.errors import OutcomeUnknownError, RetryableError, UnavailableError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.ledger.heartbeat import heartbeat
from semel.plan import plan
from semel.stage import stage

pytestmark = pytest.mark.usefixtures("merge_always")

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
    run(ledger, scene.spec, "r1")
    collecting(ledger, scene.spec)


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

    with failpoints.armed(point, terminate) as fault:
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
    with failpoints.armed(point, lambda: wire.cut(what)), pytest.raises(OutcomeUnknownError):
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
        with failpoints.armed(point, lambda: restart(crashing)) as fault:
            with contextlib.suppress(RetryableError):
                run_and_collect(ledger, scene)
        assert fault.hit
        scene.finish("r1", "r2")


class Standby:
    """Lets the database of a ledger refuse writes, as a standby does."""

    def __init__(self, dsn: str) -> None:
        self._url = sa.make_url(dsn).set(drivername="postgresql")

    def begin(self) -> None:
        self._alter("SET default_transaction_read_only = on")

    def end(self) -> None:
        self._alter("RESET default_transaction_read_only")

    def _alter(self, what: str) -> None:
        text = self._url.render_as_string(hide_password=False)
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(text, autocommit=True, options=options) as connection:
            connection.execute(f'ALTER DATABASE "{self._url.database}" {what}')
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def standby(ledger_dsn: str) -> Iterator[Standby]:
    found = Standby(ledger_dsn)
    yield found
    found.end()


STANDBY = ("plan.before_lock", "stage.after_folders", "stage.after_job", "commit.after_compare")
STANDBY += ("finalize.after_mark", "collect.before_merge")


def test_each_verb_says_that_the_ledger_takes_no_writes(scene: Scene, standby: Standby) -> None:
    """A retryable error that says what is the matter; nothing is done, and later all is exact."""
    planned = plan(scene.ledger, scene.spec, "r1").batch
    standby.begin()
    engine = LocalEngine()
    for verb in (
        lambda: plan(scene.ledger, scene.spec, "r2"),
        lambda: stage(scene.ledger, scene.spec, planned.batch_id, engine, quiet),
        lambda: collect(scene.ledger, scene.spec, quiet),
    ):
        with pytest.raises(UnavailableError, match="accepts no writes .*standby.*Run this again"):
            verb()
    assert engine.jobs == []
    standby.end()
    stage(scene.ledger, scene.spec, planned.batch_id, engine, quiet)
    standby.begin()
    with pytest.raises(UnavailableError, match="accepts no writes"):
        commit(scene.ledger, scene.spec, planned.batch_id, lambda: None, quiet)
    standby.end()
    commit(scene.ledger, scene.spec, planned.batch_id, lambda: None, quiet)
    standby.begin()
    with pytest.raises(UnavailableError, match="accepts no writes"):
        finalize(scene.ledger, scene.spec, planned.batch_id)
    standby.end()
    scene.finish("r1", "r2")


@pytest.mark.parametrize("point", STANDBY)
def test_a_failover_in_the_middle_of_a_run(scene: Scene, standby: Standby, point: str) -> None:
    """A RetryableError, and the same request is exact once the ledger takes writes again."""
    with failpoints.armed(point, standby.begin) as fault, pytest.raises(UnavailableError):
        run_and_collect(scene.ledger, scene)
    assert fault.hit
    standby.end()
    scene.finish("r1", "r2")


def test_a_ledger_whose_disk_is_full_says_so(ledger: Ledger) -> None:
    """A retryable error with the way out."""
    text = "DO $$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$"
    with pytest.raises(UnavailableError, match="no space on its disk: free some .no space left"):
        sql(ledger, text)


@pytest.mark.parametrize("what", ["failover", "defect"])
def test_the_heartbeat_goes_on(
    scene: Scene, standby: Standby, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """While no writes are taken it gives no sign of life, and once they are it does again.

    So it is with every error of the ledger: only the driver's end ends it.
    """
    if what == "defect":
        away = "ALTER TABLE semel.batch RENAME TO gone"
        monkeypatch.setattr(standby, "begin", lambda: sql(scene.ledger, away))
        back = "ALTER TABLE IF EXISTS semel.gone RENAME TO batch"
        monkeypatch.setattr(standby, "end", lambda: sql(scene.ledger, back))
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def seen() -> object:
        text = "SELECT seen_at FROM semel.batch WHERE batch_id = :batch"
        return sql(scene.ledger, text, batch=batch_id)[0]["seen_at"]

    def lives(before: object) -> None:
        wait_for(lambda: seen() != before, "a sign of life", 30, 0.05)

    with heartbeat(scene.ledger, batch_id):
        lives(seen())
        standby.begin()
        time.sleep(0.5)
        standby.end()
        silent = seen()
        lives(silent)
