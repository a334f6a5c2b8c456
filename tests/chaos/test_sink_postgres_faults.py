"""A database that fails, and processes that die: what was published is there once, or not yet."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from fixtures.batches.faults import WAIT_SECONDS
from fixtures.postgres.server import restart, server
from fixtures.postgres.warehouse import LANDINGS, UPSERT, Landing, Warehouse, flights
from fixtures.postgres.wire import Wire
from fixtures.wait import wait_for
from semel import failpoints, limits
from semel.errors import OutcomeUnknownError, RetryableError, TerminalError, UnavailableError
from semel.sinks import CommittedBatch, Presence
from semel.sinks.postgres import encode, link
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget


@pytest.fixture
def landing(warehouse: Warehouse, request: pytest.FixtureRequest) -> Landing:
    """Of some rows, in mode append unless a test says otherwise."""
    return Landing(warehouse, getattr(request, "param", "append"), 5_000)


EACH = pytest.mark.parametrize("landing", LANDINGS, indirect=True)


def test_a_twin_does_not_wait_for_ever(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up with an error that may be retried; the first one lands."""

    def twin() -> None:
        monkeypatch.setitem(link._SETTINGS, "lock", "100ms")
        with pytest.raises(RetryableError, match="did not give a lock in time"):
            landing.publish()

    with failpoints.armed("sink.before_commit", twin) as passed:
        landing.publish()
    assert passed.hit
    landing.ends()


def killed(
    landing: Landing, forks: multiprocessing.context.BaseContext, run: Callable[..., None],
    *arguments: object, when: Callable[[], object],
) -> None:  # fmt: skip
    """SIGKILL who publishes, once `when` holds: old rows stay, and run again it lands."""
    process = forks.Process(target=run, args=(landing.sink._target, landing.won, *arguments))
    process.start()
    wait_for(lambda: when() or not process.is_alive(), "its point", WAIT_SECONDS, 0.02)
    assert landing.there() == landing.before
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -9 and landing.there() == landing.before
    landing.ends()


# Attacks PG1, PG9.
@pytest.mark.parametrize("kind", ["append", "replay"])
def test_a_finalizer_dies_in_the_middle_of_its_rows(
    warehouse: Warehouse, forks: multiprocessing.context.BaseContext, kind: str
) -> None:
    """SIGKILL while rows go over the wire: none of them stays, and the old ones do."""
    copied = "SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 0"
    landing = Landing(warehouse, kind, 100_000)
    killed(landing, forks, _publish_some, when=lambda: warehouse.run(copied))


# Attacks PG9.
@pytest.mark.rest
@pytest.mark.parametrize("point", ["sink.before_publish", "sink.before_commit"])
def test_a_finalizer_is_killed(
    warehouse: Warehouse, forks: multiprocessing.context.BaseContext, point: str
) -> None:
    """A replay's, by SIGKILL before the transaction, or between its last row and its COMMIT."""
    landing = Landing(warehouse, "replay", 5_000)
    killed(landing, forks, _stand_at, point, when=(warehouse.folder / "here").exists)


def _stand_at(target: PostgresTarget, won: CommittedBatch, point: str) -> None:
    def stand() -> None:
        (Path(won.files[0].staged_path).parent / "here").touch()
        time.sleep(WAIT_SECONDS)

    with failpoints.armed(point, stand):
        failpoints.point("sink.before_publish")
        PostgresSink(target).publish(won, won.files)


def _publish_some(target: PostgresTarget, won: CommittedBatch) -> None:
    limits.PIECE_ROWS_MAX = 10_000  # Less is not sent before the end.
    encode.staged = between(lambda: time.sleep(WAIT_SECONDS))
    PostgresSink(target).publish(won, won.files)


@pytest.fixture
def wire(warehouse: Warehouse) -> Iterator[Wire]:
    with Wire(warehouse.dsn) as made:
        yield made


# Attacks PG1, PG2, PG9.
@EACH
@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_commit_is_cut(landing: Landing, wire: Wire, what: str) -> None:
    """It is said to be unknown; look knows; the next finalize makes it exact."""
    behind = landing.warehouse.sink(dsn=wire.dsn, **landing.declared)
    with failpoints.armed("sink.before_commit", lambda: wire.cut(what)):
        with pytest.raises(OutcomeUnknownError, match="reply to a commit was lost.*Run this again"):
            landing.publish(behind)
    assert wire.cuts == 1
    there = Presence.RIGHT if what == "reply" else Presence.ABSENT
    wait_for(lambda: landing.sink.query_presence(landing.won) == [there], "its rows", WAIT_SECONDS, 0.02)
    assert landing.there() == (landing.after if what == "reply" else landing.before)
    landing.ends()


# Attacks PG7.
@pytest.mark.parametrize("what", ["reply", "request"])
def test_the_commit_of_accepted_rows_is_cut(
    warehouse: Warehouse, wire: Wire, what: str
) -> None:
    """The refused rows were kept before; again, the same ones are kept or it had landed."""
    warehouse.finalize(warehouse.won(flights([0]), batch_id=9), warehouse.sink())
    warehouse.run("ALTER TABLE flights ADD CHECK (id <> 2) NOT VALID")
    behind = warehouse.sink(dsn=wire.dsn)
    won, kept = warehouse.won(flights(range(5))), []
    with failpoints.armed("sink.before_accepted", lambda: wire.cut(what)):
        with pytest.raises(OutcomeUnknownError):
            behind.publish_accepting(won, kept.append)
    assert warehouse.sink().publish_accepting(won, kept.append) == 1
    assert len(kept) == (1 if what == "reply" else 2) and kept[0] == kept[-1]
    found = warehouse.run("SELECT count(*) FROM flights WHERE _semel_batch = 1")
    assert found == [(4,)]


def between(action: Callable[[], object]) -> Callable[[CommittedBatch], Iterator[pa.RecordBatch]]:
    """The staged rows, in small parts; the action happens behind the third."""
    read = encode.staged

    def staged(won: CommittedBatch) -> Iterator[pa.RecordBatch]:
        for at, rows in enumerate(read(won)):
            yield rows
            if at == 2:
                action()

    return staged


# Attacks PG1, PG9.
@EACH
def test_the_target_goes_away(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator ends the connection in the middle of the rows: all is as it was."""
    monkeypatch.setattr(limits, "PIECE_ROWS_MAX", 1_000)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%%'"
    with monkeypatch.context() as patch:
        patch.setattr(encode, "staged", between(lambda: landing.warehouse.run(end)))
        with pytest.raises(UnavailableError, match=r"connection was lost .*\. Run this again"):
            landing.publish()
    assert landing.there() == landing.before
    landing.ends()


# Attacks PG1, PG9.
def test_the_server_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the rows of a batch or a replay: what was there stays. Behind the commit:
    what was acknowledged stays. It costs a server of its own, with fsync.
    """
    monkeypatch.setattr(limits, "PIECE_ROWS_MAX", 1_000)
    with server() as dsn:
        for kind in ("append", "replay"):
            landing = Landing(Warehouse(dsn=dsn, folder=tmp_path), kind, 5_000)
            with monkeypatch.context() as patch:
                patch.setattr(encode, "staged", between(lambda: restart(dsn)))
                with pytest.raises(UnavailableError, match="connection was lost"):
                    landing.publish()
            assert landing.there() == landing.before
            landing.warehouse.finalize(landing.won, landing.sink)
            restart(dsn)
            landing.ends()
            landing.warehouse.run("DROP TABLE flights, semel_batch")


# Attacks PG1.
def test_what_is_published_is_durable(warehouse: Warehouse) -> None:
    """Also where a database is told that its commits need not be."""
    database = sa.make_url(warehouse.dsn).database
    warehouse.run(f"ALTER DATABASE {database} SET synchronous_commit = off")
    assert warehouse.run("SHOW synchronous_commit") == [("off",)]
    with warehouse.sink()._transaction() as connection:
        found = connection.execute("SHOW synchronous_commit").fetchone()
    assert found == {"synchronous_commit": "on"}


def test_a_standby(landing: Landing) -> None:
    """What accepts no writes now is asked again later: nothing is lost."""
    warehouse = landing.warehouse
    name = sa.make_url(warehouse.dsn).database
    warehouse.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for ask in (lambda: landing.sink.examine(landing.won.schema), landing.publish):
        with pytest.raises(UnavailableError, match="accepts no writes now"):
            ask()
    reset = f"ALTER DATABASE {name} RESET default_transaction_read_only"
    warehouse.run(f"BEGIN READ WRITE; {reset}; COMMIT")
    landing.ends()


# Attacks PG1.
@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout"])
def test_a_large_batch_of_a_hasty_user(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A time limit that is meant for people does not stop a batch for ever."""
    monkeypatch.setattr(limits, "PIECE_ROWS_MAX", 1_000)
    warehouse = landing.warehouse
    database = sa.make_url(warehouse.dsn).database
    try:
        warehouse.run(f"ALTER DATABASE {database} SET {name} = '1s'")
    except psycopg.errors.UndefinedObject:
        assert name == "transaction_timeout"
        assert warehouse.run("SELECT current_setting('server_version_num')::integer < 170000")[0][0]
    with monkeypatch.context() as patch:
        patch.setattr(encode, "staged", between(lambda: time.sleep(1.5)))
        landing.publish()
    landing.ends()


def test_reading_a_batch_back_is_cut(warehouse: Warehouse) -> None:
    """It ends with an error that may be retried, and not with less rows."""
    sink, won = warehouse.sink(), warehouse.won(flights(range(64), "x" * (1 << 20)))
    warehouse.finalize(won, sink)
    rows = sink.rows_of(1, won.schema)
    count = next(rows).num_rows
    warehouse.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()"
    )
    with pytest.raises(UnavailableError, match="connection was lost .*Run this again"):
        count += sum(part.num_rows for part in rows)
    assert count < 64


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 64 MiB, where this user may mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=777", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# Attacks PG1.
def test_a_full_disk() -> None:
    """Nothing lands, it is said to be retryable, and with room it lands, in either mode. It costs a
    server of its own on a disk that is small.
    """
    top = Path(tempfile.mkdtemp(prefix="semel-full-"))
    top.chmod(0o755)
    try:
        with small_disk(top / "disk") as disk, server(fsync=False) as dsn:
            warehouse = Warehouse(dsn=dsn, folder=top)
            place = disk / "space"
            place.mkdir()
            if os.geteuid() == 0:
                shutil.chown(place, "nobody")
            warehouse.run(f"CREATE TABLESPACE small LOCATION '{place}'")
            for mode in ("append", "upsert"):
                _fill(warehouse, mode, disk / "filler")
            warehouse.run("DROP TABLESPACE small")
    finally:
        shutil.rmtree(top)


def _fill(warehouse: Warehouse, mode: str, filler: Path) -> None:
    """Publish into a table on a disk that a file fills, and again when that one is gone."""
    warehouse.run("CREATE TABLE flights (id bigint PRIMARY KEY, city text, _semel_batch bigint, "
                  "_semel_seq bigint) TABLESPACE small")  # fmt: skip
    filler.write_bytes(bytes(56 << 20))
    landing = Landing(warehouse, mode, 200_000)
    with pytest.raises(UnavailableError, match="no space left on its disk.*Free some space"):
        landing.publish()
    assert landing.sink.query_presence(landing.won) == [Presence.ABSENT]
    filler.unlink()
    warehouse.run("VACUUM flights")
    landing.ends()
    warehouse.run("DROP TABLE flights, semel_batch")


# Attacks PG3.
def test_two_finalizers_of_common_keys_do_not_wait_for_each_other(warehouse: Warehouse) -> None:
    """Their rows come in opposite orders: both land, in each of some rounds."""
    sink = warehouse.sink(**UPSERT)
    warehouse.finalize(warehouse.won(flights([0]), batch_id=1_000), sink)
    orders = range(20_000), range(19_999, -1, -1)
    with ThreadPoolExecutor(2) as pool:
        for turn in range(4):
            some = [
                warehouse.won(flights(ids), batch_id=10 * turn + at)
                for at, ids in enumerate(orders, start=1)
            ]
            list(pool.map(lambda won: sink.publish(won, won.files), some, timeout=60))
    assert landed(warehouse) == [(20_000, 20_000, 9)]
    assert warehouse.run("SELECT DISTINCT _semel_seq FROM flights WHERE id > 0") == [(32,)]


def landed(warehouse: Warehouse) -> list[tuple]:
    """Rows, different ids, and batches noted."""
    return warehouse.run(
        "SELECT (SELECT count(*) FROM flights), (SELECT count(DISTINCT id) FROM flights), "
        "(SELECT count(*) FROM semel_batch)"
    )


def test_many_make_the_tables_at_once(warehouse: Warehouse) -> None:
    """The first batches of a pipeline, finalized at the same time, in an empty database."""
    sink = warehouse.sink(**UPSERT)
    some = [warehouse.won(flights(range(5)), batch_id=n) for n in range(1, 7)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda won: warehouse.finalize(won, sink), some, timeout=60))
    assert landed(warehouse) == [(5, 5, 6)]


def test_a_table_that_was_dropped_meanwhile(warehouse: Warehouse) -> None:
    """Between check and finalize: the message says what to do, and nothing is noted."""
    sink, won = warehouse.sink(), warehouse.won(flights(range(10)))
    warehouse.finalize(won, sink)
    later = warehouse.won(flights(range(10)), batch_id=2)
    warehouse.run("DROP TABLE flights")
    with pytest.raises(TerminalError, match="sink.create is false; set it to true, or CREATE"):
        warehouse.sink(create=False).publish(later, later.files)
    assert warehouse.run("SELECT count(*) FROM semel_batch") == [(1,)]
