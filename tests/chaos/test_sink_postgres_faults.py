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

from fix_postgres import restart, server
from fix_sink_postgres import Warehouse
from fix_wire import Wire
from semel import faults, limits
from semel.errors import OutcomeUnknownError, RetryableError, TerminalError, UnavailableError
from semel.sinks import Presence, Won
from semel.sinks.postgres import PostgresSink, encode, link
from semel.sinks.postgres.target import PostgresTarget

WAIT_SECONDS = 30
MODES = [{}, {"mode": "upsert", "key": ("id",)}]


def flights(count: int, *, reverse: bool = False) -> pa.Table:
    ids = range(count - 1, -1, -1) if reverse else range(count)
    return pa.table({"id": pa.array(ids, pa.int64()), "city": ["Oslo"] * count})


def landed(warehouse: Warehouse) -> list[tuple]:
    """Rows, different ids, and batches noted."""
    return warehouse.run(
        "SELECT (SELECT count(*) FROM flights), (SELECT count(DISTINCT id) FROM flights), "
        "(SELECT count(*) FROM semel_batch)"
    )


def finalized_exactly(warehouse: Warehouse, won: Won, sink: PostgresSink) -> None:
    """Run again it lands, once, and whole."""
    warehouse.finalize(won, sink)
    warehouse.finalize(won, sink)
    count = sum(file.records for file in won.files)
    assert landed(warehouse) == [(count, count, 1)]
    assert sink.look(won) == [Presence.RIGHT] * len(won.files)


def test_a_twin_does_not_wait_for_ever(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up with an error that may be retried; the first one lands."""
    sink, won = warehouse.sink(), warehouse.won(flights(10))
    def twin() -> None:
        monkeypatch.setitem(link._SETTINGS, "lock", "100ms")
        with pytest.raises(RetryableError, match="did not give a lock in time"):
            sink.publish(won, won.files)

    with faults.armed("sink.before_commit", twin) as passed:
        sink.publish(won, won.files)
    assert passed.hit
    finalized_exactly(warehouse, won, sink)


# Attacks PG1.
def test_a_finalizer_dies_in_the_middle_of_its_rows(warehouse: Warehouse) -> None:
    """SIGKILL while rows go over the wire: none of them stays."""
    sink, won = warehouse.sink(), warehouse.won(flights(400_000))
    process = multiprocessing.get_context("spawn").Process(
        target=_publish_slowly, args=(sink._target, won)
    )
    process.start()
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        seen = warehouse.run("SELECT tuples_processed FROM pg_stat_progress_copy")
        if seen and seen[0][0] > 0:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -9 and seen and seen[0][0] > 0
    finalized_exactly(warehouse, won, sink)


def _publish_slowly(target: PostgresTarget, won: Won) -> None:
    read = encode.staged
    encode.staged = lambda won: (time.sleep(0.2) or rows for rows in read(won))
    PostgresSink(target).publish(won, won.files)


@pytest.fixture
def wire(warehouse: Warehouse) -> Iterator[Wire]:
    with Wire(warehouse.dsn) as made:
        yield made


# Attacks PG1, PG2.
@pytest.mark.parametrize("declared", MODES)
@pytest.mark.parametrize(("what", "there"), [("reply", "right"), ("request", "absent")])
def test_a_commit_is_cut(
    warehouse: Warehouse, wire: Wire, declared: dict, what: str, there: str
) -> None:
    """It is said to be unknown; look knows; the next finalize makes it exact."""
    behind = warehouse.sink(dsn=wire.dsn, **declared)
    sink, won = warehouse.sink(**declared), warehouse.won(flights(10))
    with faults.armed("sink.before_commit", lambda: wire.cut(what)):
        with pytest.raises(OutcomeUnknownError, match="reply to a commit was lost.*run this again"):
            behind.publish(won, won.files)
    assert wire.cuts == 1
    time.sleep(0.2)
    assert sink.look(won) == [there]
    finalized_exactly(warehouse, won, sink)


# Attacks PG7.
@pytest.mark.parametrize("what", ["reply", "request"])
def test_the_commit_of_accepted_rows_is_cut(
    warehouse: Warehouse, wire: Wire, what: str
) -> None:
    """The refused rows were kept before; again, the same ones are kept or it had landed."""
    warehouse.finalize(warehouse.won(flights(1), batch_id=9), warehouse.sink())
    warehouse.run("ALTER TABLE flights ADD CHECK (id <> 2) NOT VALID")
    behind = warehouse.sink(dsn=wire.dsn)
    won, kept = warehouse.won(flights(5)), []
    with faults.armed("sink.before_accepted", lambda: wire.cut(what)):
        with pytest.raises(OutcomeUnknownError):
            behind.publish_accepting(won, kept.append)
    assert warehouse.sink().publish_accepting(won, kept.append) == 1
    assert len(kept) == (1 if what == "reply" else 2) and kept[0] == kept[-1]
    found = warehouse.run("SELECT count(*) FROM flights WHERE _semel_batch = 1")
    assert found == [(4,)]


def between(action: Callable[[], object]) -> Callable[[Won], Iterator[pa.RecordBatch]]:
    """The staged rows, in small parts; the action happens behind the third."""
    read = encode.staged

    def staged(won: Won) -> Iterator[pa.RecordBatch]:
        for at, rows in enumerate(read(won)):
            yield rows
            if at == 2:
                action()

    return staged


# Attacks PG1.
@pytest.mark.parametrize("declared", MODES)
def test_the_target_goes_away(
    warehouse: Warehouse, declared: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator ends the connection in the middle of the rows: nothing is there."""
    monkeypatch.setattr(limits, "SINK_ROWS_AT_ONCE", 1_000)
    sink, won = warehouse.sink(**declared), warehouse.won(flights(5_000))
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%%'"
    with monkeypatch.context() as patch:
        patch.setattr(encode, "staged", between(lambda: warehouse.run(end)))
        with pytest.raises(UnavailableError, match="connection was lost .*; run this again"):
            sink.publish(won, won.files)
    finalized_exactly(warehouse, won, sink)


# Attacks PG1.
def test_the_server_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the rows, and behind the commit: what was acknowledged stays."""
    monkeypatch.setattr(limits, "SINK_ROWS_AT_ONCE", 1_000)
    with server() as dsn:
        warehouse = Warehouse(dsn=dsn, folder=tmp_path)
        sink, won = warehouse.sink(), warehouse.won(flights(5_000))
        with monkeypatch.context() as patch:
            patch.setattr(encode, "staged", between(lambda: restart(dsn)))
            with pytest.raises(UnavailableError, match="connection was lost"):
                sink.publish(won, won.files)
        warehouse.finalize(won, sink)
        restart(dsn)
        finalized_exactly(warehouse, won, sink)


# Attacks PG1.
def test_what_is_published_is_durable(warehouse: Warehouse) -> None:
    """Also where a database is told that its commits need not be."""
    database = sa.make_url(warehouse.dsn).database
    warehouse.run(f"ALTER DATABASE {database} SET synchronous_commit = off")
    assert warehouse.run("SHOW synchronous_commit") == [("off",)]
    with warehouse.sink()._transaction() as connection:
        found = connection.execute("SHOW synchronous_commit").fetchone()
    assert found == {"synchronous_commit": "on"}


def test_a_standby(warehouse: Warehouse) -> None:
    """What accepts no writes now is asked again later: nothing is lost."""
    sink, won = warehouse.sink(), warehouse.won(flights(10))
    name = sa.make_url(warehouse.dsn).database
    warehouse.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for ask in (lambda: sink.examine(won.schema), lambda: sink.publish(won, won.files)):
        with pytest.raises(UnavailableError, match="accepts no writes now"):
            ask()
    reset = f"ALTER DATABASE {name} RESET default_transaction_read_only"
    warehouse.run(f"BEGIN READ WRITE; {reset}; COMMIT")
    finalized_exactly(warehouse, won, sink)


# Attacks PG1.
@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout"])
def test_a_large_batch_of_a_hasty_user(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A time limit that is meant for people does not stop a batch for ever."""
    monkeypatch.setattr(limits, "SINK_ROWS_AT_ONCE", 1_000)
    database = sa.make_url(warehouse.dsn).database
    sink, won = warehouse.sink(), warehouse.won(flights(5_000))
    warehouse.finalize(warehouse.won(flights(1), batch_id=9), sink)
    try:
        warehouse.run(f"ALTER DATABASE {database} SET {name} = '1s'")
    except psycopg.errors.UndefinedObject:
        assert name == "transaction_timeout"
        assert warehouse.run("SELECT current_setting('server_version_num')::integer < 170000")[0][0]
    with monkeypatch.context() as patch:
        patch.setattr(encode, "staged", between(lambda: time.sleep(2)))
        sink.publish(won, won.files)
    assert landed(warehouse) == [(5_001, 5_000, 2)]


def test_reading_a_batch_back_is_cut(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with an error that may be retried, and not with less rows."""
    sink, won = warehouse.sink(), warehouse.won(flights(2_000_000))
    warehouse.finalize(won, sink)
    rows = sink.rows_of(1, won.schema)
    count = next(rows).num_rows
    warehouse.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()"
    )
    with pytest.raises(UnavailableError, match="connection was lost .*run this again"):
        count += sum(part.num_rows for part in rows)
    assert count < 2_000_000


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
@pytest.mark.parametrize("declared", MODES)
def test_a_full_disk(declared: dict) -> None:
    """Nothing lands, it is said to be retryable, and with room it lands."""
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
            warehouse.run("CREATE TABLE flights (id bigint PRIMARY KEY, city text, _semel_batch "
                          "bigint, _semel_seq bigint) TABLESPACE small")  # fmt: skip
            filler = disk / "filler"
            filler.write_bytes(bytes(56 << 20))
            sink, won = warehouse.sink(**declared), warehouse.won(flights(200_000))
            with pytest.raises(UnavailableError, match="no room on its disk.*make some"):
                sink.publish(won, won.files)
            assert sink.look(won) == [Presence.ABSENT]
            filler.unlink()
            warehouse.run("VACUUM flights")
            finalized_exactly(warehouse, won, sink)
            warehouse.run("DROP TABLE flights")
            warehouse.run("DROP TABLESPACE small")
    finally:
        shutil.rmtree(top)


# Attacks PG3.
def test_two_finalizers_of_common_keys_do_not_wait_for_each_other(warehouse: Warehouse) -> None:
    """Their rows come in opposite orders: both land, in each of many rounds."""
    sink = warehouse.sink(mode="upsert", key=("id",))
    warehouse.finalize(warehouse.won(flights(1), batch_id=1_000), sink)
    with ThreadPoolExecutor(2) as pool:
        for turn in range(5):
            some = [
                warehouse.won(flights(20_000, reverse=bool(at)), batch_id=10 * turn + at + 1)
                for at in range(2)
            ]
            list(pool.map(lambda won: sink.publish(won, won.files), some, timeout=60))
    assert landed(warehouse) == [(20_000, 20_000, 11)]
    assert warehouse.run("SELECT DISTINCT _semel_seq FROM flights WHERE id > 0") == [(42,)]


def test_many_make_the_tables_at_once(warehouse: Warehouse) -> None:
    """The first batches of a pipeline, finalized at the same time, in an empty database."""
    sink = warehouse.sink(mode="upsert", key=("id",))
    some = [warehouse.won(flights(5), batch_id=n) for n in range(1, 7)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda won: warehouse.finalize(won, sink), some, timeout=60))
    assert landed(warehouse) == [(5, 5, 6)]


def test_a_table_that_was_dropped_meanwhile(warehouse: Warehouse) -> None:
    """Between check and finalize: the message says what to do, and nothing is noted."""
    sink, won = warehouse.sink(), warehouse.won(flights(10))
    warehouse.finalize(won, sink)
    later = warehouse.won(flights(10), batch_id=2)
    warehouse.run("DROP TABLE flights")
    with pytest.raises(TerminalError, match="sink.create is false; set it to true, or CREATE"):
        warehouse.sink(create=False).publish(later, later.files)
    with psycopg.connect(warehouse.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM semel_batch").fetchone() == (1,)
