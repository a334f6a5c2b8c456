"""A replay in a table whose finalizer or server dies: the old rows are there, or the new ones."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fix_postgres import restart, server
from fix_sink_postgres import Warehouse
from fix_wire import Wire
from semel import faults, limits
from semel.errors import OutcomeUnknownError, UnavailableError
from semel.sinks import Won
from semel.sinks.postgres import PostgresSink, encode
from semel.sinks.postgres.target import PostgresTarget

WAIT_SECONDS = 30
OLD, NEW = (1, "old", 3_000, 3_000), (2, "new", 200_000, 200_000)


def flights(count: int, city: str) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64()), "city": [city] * count})


def counted(warehouse: Warehouse) -> list[tuple]:
    """Rows and different ids of each batch, with their city."""
    return warehouse.run(
        "SELECT _semel_batch, city, count(*), count(DISTINCT id) FROM flights GROUP BY 1, 2"
    )


def replay_of(warehouse: Warehouse, sink: PostgresSink) -> Won:
    """A root that has landed, and a replay of it that has not."""
    warehouse.finalize(warehouse.won(flights(3_000, "old")), sink)
    assert counted(warehouse) == [OLD]
    return warehouse.replay(flights(200_000, "new"), batch_id=2)


def ends(warehouse: Warehouse, sink: PostgresSink, won: Won) -> None:
    """Run again, it lands, once, and the old rows are gone."""
    warehouse.finalize(won, sink)
    warehouse.finalize(won, sink)
    assert counted(warehouse) == [NEW]


def slowly(action: Callable[[], object]) -> Callable[[Won], Iterator[pa.RecordBatch]]:
    """The staged rows, in small parts; the action happens behind the third."""
    read = encode.staged

    def staged(won: Won) -> Iterator[pa.RecordBatch]:
        for at, rows in enumerate(read(won)):
            yield rows
            if at == 2:
                action()

    return staged


# Attacks PG9.
@pytest.mark.rest
@pytest.mark.parametrize("point", ["sink.before_publish", "sink.before_commit"])
def test_a_finalizer_is_killed(warehouse: Warehouse, point: str) -> None:
    """SIGKILL before the transaction, or between its last row and its COMMIT: old rows stay."""
    sink = warehouse.sink()
    won = replay_of(warehouse, sink)
    process = multiprocessing.get_context("spawn").Process(
        target=_stand_at, args=(sink._target, won, point)
    )
    process.start()
    held = warehouse.folder / "here"
    end = time.monotonic() + WAIT_SECONDS
    while not held.exists():
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.02)
    assert counted(warehouse) == [OLD]
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -9 and counted(warehouse) == [OLD]
    ends(warehouse, sink, won)


def _stand_at(target: PostgresTarget, won: Won, point: str) -> None:
    def stand() -> None:
        (Path(won.files[0].staged_path).parent / "here").touch()
        time.sleep(WAIT_SECONDS)

    with faults.armed(point, stand):
        faults.point("sink.before_publish")
        PostgresSink(target).publish(won, won.files)


# Attacks PG9.
def test_a_finalizer_is_killed_in_the_middle_of_its_rows(warehouse: Warehouse) -> None:
    """SIGKILL while rows go over the wire, the old ones deleted already: these stay."""
    sink = warehouse.sink()
    won = replay_of(warehouse, sink)
    process = multiprocessing.get_context("spawn").Process(
        target=_publish_slowly, args=(sink._target, won)
    )
    process.start()
    end = time.monotonic() + WAIT_SECONDS
    seen: list[tuple] = []
    while not seen and time.monotonic() < end:
        time.sleep(0.02)
        seen = warehouse.run("SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 0")
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -9 and seen and counted(warehouse) == [OLD]
    ends(warehouse, sink, won)


def _publish_slowly(target: PostgresTarget, won: Won) -> None:
    read = encode.staged
    encode.staged = lambda won: (time.sleep(0.3) or rows for rows in read(won))
    PostgresSink(target).publish(won, won.files)


# Attacks PG9, PG2.
@pytest.mark.parametrize(("what", "there"), [("reply", [NEW]), ("request", [OLD])])
def test_a_commit_is_cut(warehouse: Warehouse, what: str, there: list[tuple]) -> None:
    """Nobody knows whether it landed: the next finalize does, and makes it exact."""
    with Wire(warehouse.dsn) as wire:
        sink, behind = warehouse.sink(), warehouse.sink(dsn=wire.dsn)
        won = replay_of(warehouse, sink)
        with faults.armed("sink.before_commit", lambda: wire.cut(what)):
            with pytest.raises(OutcomeUnknownError, match="reply to a commit was lost"):
                behind.publish(won, won.files)
        assert wire.cuts == 1
    end = time.monotonic() + WAIT_SECONDS
    while counted(warehouse) != there:
        assert time.monotonic() < end, counted(warehouse)
        time.sleep(0.05)
    ends(warehouse, sink, won)


# Attacks PG9.
def test_the_server_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the DELETE, in the middle of the new rows: after its recovery the old ones are there;
    and behind the COMMIT the new ones.
    """
    monkeypatch.setattr(limits, "SINK_ROWS_AT_ONCE", 1_000)
    with server() as dsn:
        warehouse = Warehouse(dsn=dsn, folder=tmp_path)
        sink = warehouse.sink()
        won = replay_of(warehouse, sink)
        with monkeypatch.context() as patch:
            patch.setattr(encode, "staged", slowly(lambda: restart(dsn)))
            with pytest.raises(UnavailableError, match="connection was lost"):
                sink.publish(won, won.files)
        assert counted(warehouse) == [OLD]
        warehouse.finalize(won, sink)
        restart(dsn)
        assert counted(warehouse) == [NEW]
        ends(warehouse, sink, won)
