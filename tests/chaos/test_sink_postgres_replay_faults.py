"""A replay in a table whose finalizer is killed: the old rows are there, or the new ones.

What else may fail: test_sink_postgres_faults.py, which has a replay among its landings.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from fix_faults import WAIT_SECONDS
from fix_sink_postgres import Landing, Warehouse
from semel import failpoints
from semel.sinks import Won
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget


# Attacks PG9.
@pytest.mark.rest
@pytest.mark.parametrize("point", ["sink.before_publish", "sink.before_commit"])
def test_a_finalizer_is_killed(
    warehouse: Warehouse, forks: multiprocessing.context.BaseContext, point: str
) -> None:
    """SIGKILL before the transaction, or between its last row and its COMMIT: old rows stay."""
    landing = Landing(warehouse, "replay", 5_000)
    process = forks.Process(target=_stand_at, args=(landing.sink._target, landing.won, point))
    process.start()
    held = warehouse.folder / "here"
    end = time.monotonic() + WAIT_SECONDS
    while not held.exists():
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.02)
    assert landing.there() == landing.before
    os.kill(process.pid, signal.SIGKILL)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -9 and landing.there() == landing.before
    landing.ends()


def _stand_at(target: PostgresTarget, won: Won, point: str) -> None:
    def stand() -> None:
        (Path(won.files[0].staged_path).parent / "here").touch()
        time.sleep(WAIT_SECONDS)

    with failpoints.armed(point, stand):
        failpoints.point("sink.before_publish")
        PostgresSink(target).publish(won, won.files)
