"""A Spark Connect server of the tests' own, and processes that use it.

A process that has a classic session cannot have one over Connect, so what a test does there runs in
a process of its own.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fix_pipelines import Workbench
from fix_postgres import free_port
from semel import settings
from semel.stack import spark_server

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
    program = Path(spark_server.__file__).parents[1] / "spark" / "connect_server.py"
    options = [f"--conf={name}={value}" for name, value in conf.items()]
    environment = os.environ | {
        "SPARK_HOME": str(spark_server.installed()),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "SEMEL_STATE_DIR": str(executors_state),
        "SEMEL_LEDGER_DSN": "",
    }
    command = [spark_server.installed() / "bin" / "spark-submit", "--master", "local[1]"]
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
