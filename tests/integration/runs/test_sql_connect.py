"""Spark Connect: SQL transforms, which are analysed anew each time they are used; how it ends."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from semel import pipeline
from semel.ledger import Ledger
from semel.spark.session import open_engine
from semel.spark.transforms import load_transforms

pytestmark = pytest.mark.rest  # A server of Spark Connect takes 15 CPU seconds to start.

VIEW_OF_INPUT = """
def leaves_a_view(frame):
    frame.createOrReplaceTempView("records")
    return frame
"""


def _run(remote: str, dsn: str, path: Path) -> None:
    with open_engine(remote, quiet) as engine, Ledger(dsn) as ledger:
        run(ledger, pipeline.load(path), "r1", engine=engine)


def test_a_query_keeps_what_it_was_made_of(
    bench: Workbench, ledger: Ledger, over_connect: Callable  # noqa: F811
) -> None:
    """S25: a view `records` that a later transform leaves is not read in the place of the input.

    Without a view of its own the first query would run twice over each record, unseen.
    """
    (bench.transforms / "more.sql").write_text("SELECT id, n + 1 AS n FROM records")
    (bench.transforms / "view.py").write_text(VIEW_OF_INPUT)
    spec = bench.spec(transforms=["more.sql", "view:leaves_a_view", "more.sql"])
    bench.write("in/a.jsonl", [*events(0, 20), *events(0, 5)])
    over_connect(_run, ledger.dsn, bench.pipelines / "events.yaml")
    found = settled(spec)
    assert sorted((row["id"], row["n"]) for row in found.rows) == [
        (f"e{n:06d}", n + 2) for n in range(20)
    ]


def _both(remote: str) -> list[list[int]]:
    """What two sessions of one server find, when both apply the query before one reads."""
    (transform,) = load_transforms(("same.sql",), {"same.sql": b"SELECT id FROM records"})
    sessions = [SparkSession.builder.remote(remote).create() for _ in range(2)]
    sessions[1].range(90, 95).createOrReplaceTempView("records")
    made = [transform.apply(s.range(n * 10, n * 10 + 2)) for n, s in enumerate(sessions)]
    sessions[1].range(80, 85).createOrReplaceTempView("records")
    found = [[row.id for row in frame.collect()] for frame in made]
    for session in sessions:
        session.stop()
    return found


def test_sessions_of_one_server_keep_their_records_apart(
    bench: Workbench, over_connect: Callable  # noqa: F811
) -> None:
    """S25: two attempts at the same time each read their own `records`."""
    (bench.transforms / "same.sql").write_text("SELECT id FROM records")
    assert over_connect(_both) == [[0, 1], [10, 11]]


def _ended(remote: str) -> list[str]:
    """What Spark's client logs where the server hears late that a result was received."""
    from pyspark.sql.connect.logging import logger

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    with open_engine(remote, quiet) as engine:
        logger.disabled = False  # As Airflow has it.
        logger.addHandler(handler)
        stub = engine.session.client._stub
        release = stub.ReleaseExecute

        def late(*args: object, **named: object) -> object:
            time.sleep(1)
            return release(*args, **named)

        stub.ReleaseExecute = late
        assert engine.session.range(3).count() == 3
    return said


def test_a_session_ends_without_a_warning(over_connect: Callable) -> None:  # noqa: F811
    """On a busy machine the session's end overtook what its last query still had to say, and a
    task's log had a warning of 30 lines, "ReleaseExecute failed with exception"."""
    assert over_connect(_ended) == []
