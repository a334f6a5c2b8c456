"""The local stack as `semel up` starts it, one for all acceptance tests, in folders of its own."""

import csv
import io
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from airflow_rest import Airflow
from fixtures.airflow.dags import ROOT, documented
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from fixtures.wait import wait_for
from semel import settings
from semel_local import stack as semel_stack
from semel.airflow import COLLECT_DAG_ID
from semel_local.stack import layout, process
from semel_local.stack.leader import Record

PARTS = {"postgres", "spark", "api-server", "scheduler", "dag-processor", "triggerer"}
BROKER = "kafka"
"""A part since test_d_kafka.py has asked for it."""
QUEUE = "nats"
"""A part while test_d_queue.py runs."""
STORE = "store"
"""A part while test_d_lake.py runs."""

SOURCES = {
    "shop": "shop", "killed": "many", "failed": "many", "cut": "cut", "orphan": "orphan",
}  # fmt: skip
"""The pipelines of test_b_airflow.py and test_e_kills.py, and their source folders.

They are declared before the stack starts, so that no test waits for Airflow to see a new file.
"""

DAYS = "days"
"""A pipeline by intervals, with a schedule: its DAG arrives paused."""

BY_DAY = "flights_by_day"
BY_AIRPORT = "delays_by_airport"
"""The demo's other pipeline, whose sink is a table."""

WEEKS = ("flights", "flights_by_hand", "flights_submitted")
"""The demo's pipeline, and copies of it that read the same files into sinks of their own."""

VISITS = "visits"
"""A pipeline by day, in whose Airflow nothing runs: its DAG is paused."""

BROKEN = "name: wrong\nsurce: {}\n"

HELD = """
import time
from pathlib import Path
from pyspark.sql import functions as f

def held_by(name):
    def wait(id):
        end = time.monotonic() + {seconds}
        while not Path("{folder}", f"{{name}}.go").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return id

    waiting = f.udf(wait, "string").asNondeterministic()
    return lambda records: records.select(waiting("id").alias("id"), "n", "at")

def killed(records):
    return held_by("killed")(records)

def failed(records):
    return held_by("failed")(records)

def cut(records):
    return held_by("cut")(records)
"""
"""Transforms that wait, at their first record, until a file named NAME.go is there."""

HELD_SECONDS_MAX = 300

COMMAND_SECONDS_MAX = 300
PARSED_SECONDS_MAX = 240

Answer = tuple[int, dict, str]
"""Exit code, JSON and standard error of a command."""


class Stack(Workbench):
    """A stack in folders of its own, used by the command line and Airflow's REST API."""

    running: ClassVar["Stack | None"] = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state = folder / "state"
        self.dags = folder / "dags"
        self.environment = {
            "SEMEL_STATE_DIR": str(self.state),
            "SEMEL_DATA_ROOTS": str(self.data),
            "SEMEL_PIPELINES_DIR": str(self.pipelines),
            "SEMEL_TRANSFORMS_DIR": str(self.transforms),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            # A task that is marked failed is to hear of it while it still runs.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            # Each look at all files takes a second of a core, and few tests add one.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            # An idle scheduler would take a tenth of a core, with what it asks of Postgres.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        }
        self.ups: list[Answer] = []
        self.airflow: Airflow
        Stack.running = self

    def declare_all(self) -> None:
        """Write the pipelines of all tests, one that is wrong, and the documents' own DAG."""
        self.dags.mkdir()
        for path in (ROOT / "dags").glob("*.py"):
            shutil.copy(path, self.dags)
        for path in (ROOT / "spark_jobs").iterdir():
            shutil.copy(path, self.transforms)
        (self.dags / "after_shop.py").write_text(documented("semel://shop", "airflow.md"))
        held = HELD.format(folder=self.folder, seconds=HELD_SECONDS_MAX)
        (self.transforms / "held.py").write_text(held)
        for name, source in SOURCES.items():
            transforms = [f"held:{name}"] if f"def {name}(" in HELD else None
            self.spec(name, source={"path": f"{source}/*.jsonl"}, transforms=transforms)
        self.declare_orphan(quarantine_ratio_max=0.0)
        source = {"path": "visits/*.jsonl", "select": "interval"}
        source["interval_from"] = "visits-%Y-%m-%d.jsonl"
        self.spec(VISITS, source=source, schedule="@daily")
        by_interval = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
        self.spec(DAYS, source={"path": f"{DAYS}/*.jsonl", **by_interval}, schedule="0 0 * * *")
        ours = ROOT / "dags" / "pipelines"
        for name in (BY_DAY, BY_AIRPORT):
            shutil.copy(ours / f"{name}.yaml", self.pipelines)
        text = (ours / "flights.yaml").read_text()
        for name in WEEKS:
            copy = text.replace("name: flights\n", f"name: {name}\n")
            copy = copy.replace("path: out/flights ", f"path: out/{name} ")
            (self.pipelines / f"{name}.yaml").write_text(copy)
        (self.pipelines / "wrong.yaml").write_text(BROKEN)

    def declare_orphan(self, *, quarantine_ratio_max: float) -> None:
        """The pipeline whose first run fails for a broken record, and is then deleted."""
        limits = {"quarantine_ratio_max": quarantine_ratio_max, "orphan_after": "30 s"}
        self.spec("orphan", source={"path": "orphan/*.jsonl"}, limits=limits)

    def start(self) -> None:
        """Two `semel up` at once, as `ups` keeps them; log in when Airflow has all pipelines.

        semel_collect is paused, and its schedule's first run ended: it has a task for each of the
        pipelines. Who wants one unpauses it.
        """
        self.ups = [answer_of(command) for command in [self.begin("up"), self.begin("up")]]
        assert [code for code, _, _ in self.ups] == [0, 0], self.ups
        self.airflow = Airflow(semel_stack.connection())
        names = {*SOURCES, *WEEKS, BY_DAY, BY_AIRPORT, DAYS, VISITS, "after_shop"}
        wait_for(lambda: self.airflow.dags() >= names, "the DAGs", PARSED_SECONDS_MAX)
        self.airflow.pause(COLLECT_DAG_ID)
        for run in self.airflow.runs(COLLECT_DAG_ID):
            self.airflow.fail_run(COLLECT_DAG_ID, run)

    @classmethod
    def end(cls) -> None:
        """Stop what runs, and remove its folder; nothing where nothing runs."""
        if cls.running is not None:
            with pytest.MonkeyPatch.context() as patch:
                _enter(patch, cls.running)
                semel_stack.down(echo=print)
            shutil.rmtree(cls.running.folder)
            cls.running = None

    def let_go(self, transform: str) -> None:
        """One of HELD waits no more."""
        (self.folder / f"{transform}.go").touch()

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a semel command, which shall print JSON."""
        code = "import sys; from semel.cli import main; sys.exit(main())"
        return subprocess.Popen(
            [layout.python(), "-c", code, *words, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *words: str) -> Answer:
        """Run a semel command to its end."""
        return answer_of(self.begin(*words))

    def query(self, statement: str, *values: object) -> list[tuple]:
        """Rows of the ledger."""
        with psycopg.connect(settings.ledger_dsn()) as connection:
            return connection.execute(statement, values).fetchall()

    def batches(self, pipeline: str) -> int:
        """How many a pipeline has."""
        [(count,)] = self.query(
            "SELECT count(*) FROM semel.batch JOIN semel.pipeline USING (pipeline_id)"
            " WHERE name = %s",
            pipeline,
        )
        return count

    def query_printed(self, answer: dict) -> list[dict[str, str]]:
        """Rows of the query that `semel demo` prints, by the command that it prints for a shell."""
        command = answer["by_day"]["psql"]
        bare = {"PATH": os.defpath, "PGTZ": "UTC"}
        done = subprocess.run(
            ["sh", "-c", f"{command} --csv"],
            env=bare, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return list(csv.DictReader(io.StringIO(done.stdout)))

    def records(self) -> dict[str, Record]:
        """What is written down of each part that runs."""
        folder, names = self.state / "supervisor", {*PARTS, BROKER, QUEUE, STORE}
        found = {name: Record.read(folder / f"{name}.record") for name in names}
        return {name: record for name, record in found.items() if record}

    def supervisor(self) -> int:
        """The pid of supervisord."""
        return int((self.state / "supervisor" / "supervisord.pid").read_text())

    def processes(self) -> set[process.ProcessIdentity]:
        """All of the stack: supervisor and the tree below it."""
        pids = [self.supervisor(), *process.descendants(self.supervisor())]
        return set(filter(None, map(process.identify, pids)))


def answer_of(command: subprocess.Popen[str]) -> Answer:
    """Wait for a command's end. AssertionError when its standard output is not one line of JSON."""
    try:
        out, err = command.communicate(timeout=COMMAND_SECONDS_MAX)
    finally:
        command.kill()  # One that has ended is left alone.
    assert out.count("\n") == 1, err
    return command.returncode, answer_in(out), err


@pytest.fixture(scope="session")
def _running_stack() -> Iterator[Stack]:
    # Not pytest's folder: as root Postgres runs as another user, who could not enter it.
    folder = Path(tempfile.mkdtemp(prefix="semel-stack-"))
    folder.chmod(0o755)
    made = Stack(folder)
    with pytest.MonkeyPatch.context() as patch:
        try:
            _enter(patch, made)
            made.declare_all()
            made.start()
            # Tests of other folders that run in between shall not see it.
            patch.undo()
            yield made
        finally:
            patch.undo()
            made.end()


@pytest.fixture
def stack(_running_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The running stack; this process and its children see its folders while the test runs."""
    _enter(monkeypatch, _running_stack)
    return _running_stack


def _enter(patch: pytest.MonkeyPatch, stack: Stack) -> None:
    """Set the stack's variables, and none of a developer's own."""
    for name in [n for n in os.environ if n.startswith(("SEMEL_", "AIRFLOW"))]:
        patch.delenv(name)
    for name, value in stack.environment.items():
        patch.setenv(name, value)


POLL_SECONDS = 0.2
"""How often all command lines are read while a run is on: a task lives for a second and more."""


class CommandLines:
    """All command lines of the machine while a block runs."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "CommandLines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    self.seen.add(Path("/proc", pid, "cmdline").read_bytes())
                except (FileNotFoundError, ProcessLookupError):
                    continue


@dataclass(frozen=True, kw_only=True)
class Begun:
    """`shop`: a run that has succeeded, of 3,000 records, 100 repeats, and a broken one. `orphan`:
    one that has failed at stage, of 500 records and a broken one. `lines`: all command lines of the
    machine meanwhile.
    """

    shop: str
    orphan: str
    lines: set[bytes]


@pytest.fixture(scope="session")
def begun(_running_stack: Stack) -> Begun:
    """The stack's first two runs."""
    airflow = _running_stack.airflow
    _running_stack.write("shop/a.jsonl", [*events(0, 3000), *events(0, 100), b"{broken"])
    _running_stack.write("orphan/a.jsonl", [*events(0, 500), b"{broken"])
    with CommandLines() as lines:
        shop, orphan = airflow.trigger("shop"), airflow.trigger("orphan")
        airflow.succeeded("shop", shop)
        assert airflow.ended("orphan", orphan) == "failed"
    return Begun(shop=shop, orphan=orphan, lines=lines.seen)
