"""The stack under fire: `semel up` in folders of its own, its pipelines, and Airflow's REST API."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import yaml

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / name) for name in ("", "acceptance", "chaos")]

import topics  # noqa: E402
from airflow_rest import Airflow  # noqa: E402 - of a folder that is added above
from fixtures.wait import wait_for  # noqa: E402
from producer import WINDOW_NAME, WINDOW_SECONDS  # noqa: E402
from semel import pipeline  # noqa: E402
from semel.errors import SemelError  # noqa: E402
from semel.pipeline.spec import Spec  # noqa: E402
from semel_local import stack  # noqa: E402
from semel_local.stack.leader import Record  # noqa: E402
from semel_local.stack.states import Health  # noqa: E402

ARRIVALS, WINDOWS, ROTATED = "arrivals", "windows", "rotated"
"""The pipelines: what has arrived, by id within a horizon; what an interval holds, by bucket; a log
that is rotated, by position."""

BACKFILL_RUNS_MAX = 4
PARSED_SECONDS_MAX = 180

_FILES = {"type": "files", "format": "jsonl"}

PIPELINES: tuple[dict[str, Any], ...] = (
    {
        "name": ARRIVALS,
        "schedule": "* * * * *",
        "source": {**_FILES, "path": "arrivals/*.jsonl"},
        "record_id": ["id"],
        "dedup": {"scope": "horizon", "horizon": "30 days", "shards": 2},
        "max_active_runs": 2,
    },
    {
        "name": WINDOWS,
        "schedule": "* * * * *",
        "source": {
            **_FILES,
            "path": "windows/*.jsonl",
            "select": "interval",
            "interval_from": WINDOW_NAME,
            # A live run also takes what grew late in the two windows before its own.
            "lookback": "40 s",
        },
        "record_id": ["id"],
        "record_time": "at",
        "dedup": {"scope": "bucket", "horizon": "30 days", "shards": 2},
        "max_active_runs": 2,
    },
    {
        "name": ROTATED,
        "schedule": "* * * * *",
        "source": {**_FILES, "path": "rotated/app.log*"},
        "max_active_runs": 2,
    },
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A DAG run: what made it, how it stands, when it ended."""

    dag: str
    run: str
    kind: str
    state: str
    ended: datetime | None


class LiveStack:
    """Postgres, Spark Connect, Airflow and a broker of this run's own, below one new folder.

    `topics`: whether a broker is to be had here.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        # As root Postgres runs as another user, who must be able to enter.
        self.folder = Path(tempfile.mkdtemp(prefix="semel-fire-"))
        self.folder.chmod(0o755)
        self.state, self.data = self.folder / "state", self.folder / "data"
        for name in (ARRIVALS, WINDOWS, ROTATED):
            (self.data / name).mkdir(parents=True)
        pipelines = self.folder / "pipelines"
        pipelines.mkdir()
        for name in [n for n in os.environ if n.startswith(("SEMEL_", "AIRFLOW"))]:
            del os.environ[name]
        os.environ |= {
            "SEMEL_STATE_DIR": str(self.state),
            "SEMEL_DATA_ROOTS": str(self.data),
            "SEMEL_PIPELINES_DIR": str(pipelines),
            "SEMEL_CACHE_DIR": str(self.folder / "cache"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
        }
        self.topics = True
        try:
            topics.fetch(self.state)
        except SemelError as error:
            self.topics = False
            log(f"the topics are left out: {error}")
        self.declared = [*PIPELINES, *(topics.pipelines() if self.topics else ())]
        for declared in self.declared:
            _declare(pipelines, declared)
        self.specs: dict[str, Spec] = {}
        self.airflow: Airflow

    def start(self, log: Callable[[str], None]) -> None:
        """Bring it up, and set the pipelines going."""
        stack.up(echo=log, kafka=self.topics)
        if self.topics:
            topics.make()
        names = [declared["name"] for declared in self.declared]
        self.specs = {name: pipeline.find(name) for name in names}
        self.airflow = Airflow(stack.connection())
        wanted = {*self.specs, "semel_collect"}
        wait_for(lambda: self.airflow.dags() >= wanted, "the DAGs", PARSED_SECONDS_MAX)
        for name in sorted(wanted):
            self.airflow.pause(name, paused=False)

    def end(self, log: Callable[[str], None], *, keep: bool) -> None:
        """Stop all of it; the folder goes unless somebody shall look at it."""
        stack.down(echo=log)
        if not keep:
            shutil.rmtree(self.folder)

    def troubles(self) -> dict[str, str]:
        """What is not healthy now, by part, with the reason."""
        return {
            part.name: part.trouble
            for part in stack.status().parts
            if part.health is not Health.HEALTHY
        }

    def record(self, part: str) -> Record | None:
        """Leader and main process of a part, as the stack has written them down."""
        return Record.read(self.state / "supervisor" / f"{part}.record")

    def main(self, part: str) -> psutil.Process | None:
        """The main process of a part, when it lives."""
        found = self.record(part)
        return process_of(found.main.pid) if found else None

    def backfill(self, start: datetime, end: datetime) -> None:
        """Have Airflow run all windows from `start` to before `end`."""
        last = end - timedelta(seconds=WINDOW_SECONDS)
        self.airflow.backfill(WINDOWS, start, last, max_active_runs=BACKFILL_RUNS_MAX)

    def backfills(self) -> tuple[int, int | None]:
        """How many there were, and the id of the one that is under way."""
        path = f"/api/v2/backfills?dag_id={WINDOWS}&order_by=-id&limit=1"
        found = self.airflow.call("GET", path)
        going = [row["id"] for row in found["backfills"] if row["completed_at"] is None]
        return found["total_entries"], going[0] if going else None

    def runs(self) -> list[Run]:
        """All DAG runs so far."""
        found: list[Run] = []
        while True:
            path = f"/api/v2/dags/~/dagRuns?limit=100&offset={len(found)}&order_by=id"
            rows = self.airflow.call("GET", path)["dag_runs"]
            found += [
                Run(
                    dag=row["dag_id"],
                    run=row["dag_run_id"],
                    kind=row["run_type"],
                    state=row["state"],
                    ended=row["end_date"] and datetime.fromisoformat(row["end_date"]),
                )
                for row in rows
            ]
            if len(rows) < 100:
                return found

    def running(self) -> list[dict[str, Any]]:
        """The task instances that Airflow takes for running."""
        path = "/api/v2/dags/~/dagRuns/~/taskInstances?state=running&limit=100"
        return self.airflow.call("GET", path)["task_instances"]


def _declare(folder: Path, changes: dict[str, Any]) -> None:
    name = changes["name"]
    files = {"type": "files", "path": f"out/{name}", "format": "parquet"}
    document = {
        **changes,
        "source": {
            **changes["source"], "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
        },
        # By the position the independent checker finds a row's record again.
        "sink": {**changes.get("sink", files), "position_columns": True},
        "limits": {"quarantine_ratio_max": 1.0, "orphan_after": "90 s"},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def process_of(pid: int) -> psutil.Process | None:
    """The process of this pid, unless it is gone or a zombie."""
    try:
        found = psutil.Process(pid)
        return None if found.status() == psutil.STATUS_ZOMBIE else found
    except psutil.NoSuchProcess:
        return None


def children(parent: psutil.Process | None) -> Iterator[psutil.Process]:
    """The living children of a process, the oldest first."""
    try:
        found = parent.children() if parent else []
    except psutil.NoSuchProcess:
        return
    for child in sorted(found, key=lambda p: p.pid):
        if process_of(child.pid):
            yield child
