"""A standalone Spark of the tests' own (master, two workers, Connect server), and drivers on it.

A driver is a process of its own that runs the verbs. It can have the first task that passes a fault
point held up, so that a test finds the processes that are just there, and harms them.
"""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import cloudpickle

from fix_pipelines import Workbench
from fix_postgres import free_port
from fix_wait import wait_for
from semel import failpoints, pipeline, settings
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.runs.run import run_batch
from semel.sources.files.source import FilesSource
from semel.spark.engine import Outcome, SparkEngine
from semel.spark.session import open_engine
from semel.spark.settings import LOOPBACK, SETTINGS
from semel.stack import spark_server
from semel.stage.job import StageJob

WAIT_SECONDS = 180
RUNS_MAX = 5
"""How often a driver runs its request again before it gives up."""

HOSTS = ("127.0.0.1", "127.0.0.2")
"""One for each worker: Spark runs no speculative copy of a task on the host of the first."""

SPLIT_BYTES = 4_000
_EXECUTOR = "CoarseGrainedExecutorBackend"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_CONF = (
    SETTINGS
    | LOOPBACK
    | {
        "spark.executor.memory": "640m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": _JAVA,
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.locality.wait": "0",
        "spark.sql.shuffle.partitions": "4",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        # Late enough that only a task that is held up gets a copy.
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "3s",
    }
)


@dataclass(frozen=True, kw_only=True)
class HeldJob(StageJob):
    """A stage job that arms a fault point in each process that works on it."""

    point: str
    marks: Path

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        failpoints.arm(self.point, lambda: _hold(self.marks))


def _hold(marks: Path) -> None:
    """Note which try of which task is here. The first of all waits until it is let go."""
    from pyspark import TaskContext

    task = TaskContext.get()
    mark = marks / f"try-{task.stageId()}-{task.partitionId()}-{task.attemptNumber()}"
    mark.write_text(str(os.getpid()))
    try:
        os.link(mark, marks / "held")
    except FileExistsError:
        return
    end = time.monotonic() + WAIT_SECONDS
    while not (marks / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)


class HeldEngine:
    """An engine whose jobs are held up at a point."""

    def __init__(self, engine: SparkEngine, point: str, marks: Path) -> None:
        self._engine, self._point, self._marks = engine, point, marks
        # The workers cannot import this module, so the job's class travels with the job.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def run(self, job: StageJob) -> Outcome:
        values = {each.name: getattr(job, each.name) for each in fields(StageJob)}
        return self._engine.run(HeldJob(**values, point=self._point, marks=self._marks))


class TwiceEngine:
    """An engine that runs each job twice, as a client does that sends its plan again."""

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine

    def run(self, job: StageJob) -> Outcome:
        self._engine.run(job)
        return self._engine.run(job)


@dataclass
class Driver:
    """A process that runs a request until it is done."""

    process: multiprocessing.Process
    folder: Path

    def held(self, name: str = "held") -> psutil.Process:
        """Wait until a task is held up. Returns its Python worker."""
        path = self.folder / name
        wait_for(lambda: path.exists() or not self.process.is_alive(), f"{path.name}")
        assert path.exists(), f"no task was held up; runs: {self.ended()}"
        return psutil.Process(int(path.read_text()))

    def release(self) -> None:
        """Let the task that is held up go on."""
        (self.folder / "go").touch()

    def held_task(self) -> str:
        """`stage-partition` of the task that is held up."""
        held = self.folder / "held"
        (mark,) = (path for path in self.folder.glob("try-*") if path.samefile(held))
        return mark.name.removeprefix("try-").rpartition("-")[0]

    def tries(self) -> list[str]:
        """`stage-partition-attempt` of each task that came to the point."""
        return sorted(path.name.removeprefix("try-") for path in self.folder.glob("try-*"))

    def ended(self) -> list[str]:
        """Wait for its end. Returns the outcome of each run: `done`, or class and message."""
        self.process.join(WAIT_SECONDS)
        assert self.process.exitcode is not None, f"{self.process} does not end"
        found = [path.read_text() for path in sorted(self.folder.glob("run-*"))]
        assert found, f"it ended with {self.process.exitcode} before its first run did"
        return found


def executor_of(worker: psutil.Process) -> psutil.Process:
    """The JVM that a Python worker belongs to."""
    parents = worker.parents()
    return next(each for each in parents if _EXECUTOR in " ".join(each.cmdline()))


@dataclass
class Cluster:
    """A running standalone Spark, and what is started on it."""

    folder: Path
    remote: str
    processes: list[subprocess.Popen]
    context: multiprocessing.context.BaseContext
    drivers: list[Driver] = field(default_factory=list)

    def start(
        self,
        bench: Workbench,
        ledger: Ledger,
        request: str,
        *,
        hold: str = "",
        armed: str = "",
        twice: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> Driver:
        """Run a request of the pipeline `events` until it is done, or for `runs_max` times.

        hold: the point at which the first task waits; armed: what semel.failpoints arms in the driver.
        """
        folder = bench.folder / f"driver{len(self.drivers)}"
        folder.mkdir()
        environment = {k: v for k, v in os.environ.items() if k.startswith("SEMEL_")}
        process = self.context.Process(
            target=_drive,
            args=(self.remote, ledger.dsn, bench.pipelines / "events.yaml", bench.transforms),
            kwargs={
                "request": request, "folder": folder, "hold": hold, "armed": armed,
                "twice": twice, "runs_max": runs_max, "environment": environment,
            },
            daemon=True,
        )  # fmt: skip
        process.start()
        self.drivers.append(Driver(process=process, folder=folder))
        return self.drivers[-1]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks."""
        below = [each for p in self.processes for each in psutil.Process(p.pid).children()]
        alive = [each for each in below if each.status() != psutil.STATUS_ZOMBIE]
        return [each for each in alive if _EXECUTOR in " ".join(each.cmdline())]

    def end_drivers(self) -> None:
        for driver in self.drivers:
            driver.release()
            if driver.process.is_alive():
                driver.process.kill()
            driver.process.join(WAIT_SECONDS)
        self.drivers.clear()


def _drive(
    remote: str,
    dsn: str,
    spec_path: Path,
    transforms: Path,
    *,
    request: str,
    folder: Path,
    hold: str,
    armed: str,
    twice: bool,
    runs_max: int,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    FilesSource.split_size = SPLIT_BYTES
    settings.transforms_dir = lambda: transforms
    failpoints.arm_all(armed, folder)
    file = open(folder / "log", "w")  # noqa: SIM115 - open until the process ends
    log = lambda text: print(text, file=file, flush=True)  # noqa: E731
    with open_engine(remote, log) as spark, Ledger(dsn) as ledger:
        engine = TwiceEngine(spark) if twice else spark
        if hold:
            engine = HeldEngine(spark, hold, folder)
        for number in range(runs_max):
            try:
                run_batch(ledger, pipeline.load(spec_path), request, engine, log=log)
                outcome = "done"
            except RetryableError as error:
                outcome = f"{type(error).__name__}: {error}"
            (folder / f"run-{number}").write_text(outcome)
            if outcome == "done":
                return


@contextmanager
def standalone(
    folder: Path, executors_state: Path
) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """Master, two workers and a Connect server. Yields the server's address and the processes.

    Nothing of the drivers' environment that is semel's reaches them.
    """
    started: list[subprocess.Popen] = []
    master_port, connect_port = free_port(), free_port()
    master = f"spark://{HOSTS[0]}:{master_port}"

    def start(host: str, program: str, *arguments: str) -> None:
        name = f"{len(started)}-{arguments[0].rpartition('.')[2]}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")} | {
            "SEMEL_STATE_DIR": str(executors_state),
            "SPARK_HOME": str(spark_server.installed()),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "640m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(spark_server.installed() / "bin" / program), *arguments]
        with open(folder / f"{name}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )  # fmt: skip
            )

    try:
        deploy = "org.apache.spark.deploy"
        start(
            HOSTS[0], "spark-class", f"{deploy}.master.Master",
            *("--host", HOSTS[0], "--port", str(master_port), "--webui-port", "0"),
        )  # fmt: skip
        for host in HOSTS:
            start(
                host, "spark-class", f"{deploy}.worker.Worker", master,
                *("--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / f"work-{host}")),
            )  # fmt: skip
        conf = _CONF | {
            "spark.connect.grpc.binding.port": str(connect_port),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        start(
            HOSTS[0], "spark-submit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", master, "--driver-memory", "640m"),
            *(f"--conf={name}={value}" for name, value in conf.items()), "spark-internal",
        )  # fmt: skip
        wait_for(lambda: answers(connect_port) or _dead(started), "Spark")
        assert not _dead(started), {p.name: p.read_text()[-2000:] for p in folder.glob("*.log")}
        yield f"sc://{HOSTS[0]}:{connect_port}", started
    finally:
        _end(started)


def _end(started: list[subprocess.Popen]) -> None:
    """End the processes and all that they have started."""
    below = [
        child
        for process in started
        if process.poll() is None
        for child in psutil.Process(process.pid).children(recursive=True)
    ]
    for process in reversed(started):
        process.terminate()
    for process in started:
        process.wait(WAIT_SECONDS)
    _, left = psutil.wait_procs(below, timeout=10)
    for process in left:
        process.kill()


def _dead(started: list[subprocess.Popen]) -> bool:
    return any(process.poll() is not None for process in started)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def _cluster(
    tmp_path_factory: pytest.TempPathFactory,
    executors_state: Path,
    forks: multiprocessing.context.BaseContext,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, executors_state) as (remote, processes):
        yield Cluster(folder=folder, remote=remote, processes=processes, context=forks)


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster of this module, without drivers."""
    yield _cluster
    _cluster.end_drivers()
