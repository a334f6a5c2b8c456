"""Spark Connect: SQL transforms, which are analysed anew each time they are used; how it ends."""

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import semel
from fixtures.batches.account import quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import free_port
from semel import pipeline, settings
from semel.ledger import Ledger
from semel.spark.session import open_engine
from semel.spark.transforms import load_transforms
from semel_local.stack import spark_server

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


_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def _server(
    tmp_path_factory: pytest.TempPathFactory, executors_state: Path
) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    conf = spark_server.CONF | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": _JAVA,
    }
    program = Path(semel.__file__).with_name("spark") / "connect_server.py"
    options = [f"--conf={name}={value}" for name, value in conf.items()]
    environment = os.environ | {
        "SPARK_HOME": str(spark_server.spark_home()),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "SEMEL_STATE_DIR": str(executors_state),
        "SEMEL_LEDGER_DSN": "",
        # As in the shell of somebody who works with another Spark.
        "SPARK_REMOTE": "sc://somewhere:15002",
        "SPARK_CONNECT_MODE_ENABLED": "1",
    }
    command = [*spark_server.submit(), "--master", "local[1]"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--driver-memory", "640m", *options, program], env=environment, cwd=folder,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        fault = "it was not asked"
        for _ in range(_WAIT_SECONDS):
            if not (fault := spark_server.trouble(port)) or process.poll() is not None:
                break
        assert not fault, (folder / "log").read_text()[-2000:]
        yield f"sc://localhost:{port}"
    finally:
        process.terminate()
        process.wait(_WAIT_SECONDS)


@pytest.fixture
def over_connect(_server: str, bench: Workbench) -> Callable[..., Any]:
    """Call a function of a module in a process of its own, with the server's address first."""

    def call(function: Callable[..., Any], *arguments: object) -> Any:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            done = pool.submit(_called, function, bench.transforms, _server, *arguments)
            return done.result(_WAIT_SECONDS)

    return call


def _called(function: Callable[..., Any], transforms: Path, *arguments: object) -> Any:
    settings.transforms_dir = lambda: transforms
    return function(*arguments)
