"""A ledger that takes no writes for a while: a failover to a standby that is not promoted yet."""

import time
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from fix_account import quiet
from fix_engine import LocalEngine
from fix_faults import collecting
from fix_scene import Scene, sql
from semel import faults, limits
from semel.collect import collect
from semel.commit import commit
from semel.errors import UnavailableError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.ledger.heartbeat import heartbeat
from semel.plan import plan
from semel.run import run_batch
from semel.stage import stage


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


POINTS = ("plan.before_lock", "stage.after_folders", "stage.after_job", "commit.after_compare")
POINTS += ("finalize.after_mark", "collect.before_merge")


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
        with pytest.raises(UnavailableError, match="accepts no writes .*standby.*run this again"):
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


@pytest.mark.parametrize("point", POINTS)
def test_a_failover_in_the_middle_of_a_run(scene: Scene, standby: Standby, point: str) -> None:
    """A RetryableError, and the same request is exact once the ledger takes writes again."""
    with faults.armed(point, standby.begin) as fault, pytest.raises(UnavailableError):
        run_batch(scene.ledger, scene.spec, "r1", LocalEngine(), log=quiet)
        collecting(scene.ledger, scene.spec)
    assert fault.hit
    standby.end()
    scene.finish("r1", "r2")


def test_a_ledger_whose_disk_is_full_says_so(ledger: Ledger) -> None:
    """A retryable error with the way out."""
    text = "DO $$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$"
    with pytest.raises(UnavailableError, match="no room on its disk: make some .no space left"):
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

    def changed(before: object) -> bool:
        end = time.monotonic() + 30
        while (differs := seen() != before) is False and time.monotonic() < end:
            time.sleep(0.05)
        return differs

    with heartbeat(scene.ledger, batch_id):
        assert changed(seen()), "it gives no sign of life at all"
        standby.begin()
        time.sleep(0.5)
        standby.end()
        silent = seen()
        assert changed(silent), "it died with the failover"
