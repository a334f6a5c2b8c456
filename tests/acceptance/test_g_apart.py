"""A cluster of which the workers share no file system, neither with the driver nor with each other:
source, sink and archive are in a store. Executors die as in test_f_cluster, and nothing is lost.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fixtures.batches.account import quiet
from fixtures.batches.faults import forks  # noqa: F401
from fixtures.batches.workbench import Workbench, events
from fixtures.objects.outlet import StoredPrefix
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.postgres.server import as_executor, point_executors
from fixtures.spark.cluster import Cluster, Driver, executor_of, standalone
from semel.audit import audit
from semel.collect import collect
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.spark.check import check

# Its cluster takes 20 s to start on two cores.
pytestmark = pytest.mark.proof

KILLS = 30
WHILE_PUTTING, PUT = "store.before_put", "store.after_put"
IN_CLASSIFY, CLASSIFIED = "stage.before_store", "stage.after_store"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder, which is empty for each worker."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def _apart(
    tmp_path_factory: pytest.TempPathFactory,
    executors_state: Path,
    forks: multiprocessing.context.BaseContext,  # noqa: F811
    hidden: Path,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, executors_state, hidden) as (remote, processes):
        yield Cluster(folder=folder, remote=remote, processes=processes, context=forks)


def seen_by(process: psutil.Process, folder: Path) -> Path:
    """A folder as a process sees it."""
    return Path("/proc", str(process.pid), "root", *folder.parts[1:])


class Scene:
    """A pipeline of some splits and shards, with repeats, all of it in a store."""

    def __init__(self, cluster: Cluster, prefix: StoredPrefix, ledger: Ledger) -> None:
        self.cluster, self.prefix, self.ledger = cluster, prefix, ledger
        self.spec = self.declare()
        self.add("a.jsonl", [*events(0, 200), *events(50, 60)])

    def declare(self) -> Spec:
        source = {
            "type": "objects", "url": f"s3://{self.prefix.bucket}/in", "connection": CONNECTION,
            "format": "jsonl", "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
        }  # fmt: skip
        return self.prefix.bench.spec(
            source=source, sink=self.prefix.declared, dedup={"shards": 4}
        )

    def add(self, name: str, records: list[dict]) -> None:
        text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        self.prefix.s3.put(self.prefix.bucket, f"in/{name}", text)

    def start(self, request: str = "r1", **options: object) -> Driver:
        return self.cluster.start(self.prefix.bench, self.ledger, request, **options)

    def assert_exact(self, ids: int, hidden: Path) -> None:
        """The audit finds nothing, each id is there once, and no worker has a file."""
        verdict = audit(self.spec)
        assert verdict.ok, verdict
        rows = dataset(self.prefix.declared["url"], connection=CONNECTION).to_table().to_pylist()
        assert sorted(row["n"] for row in rows) == list(range(ids))
        for executor in self.cluster.executors():
            assert list(seen_by(executor, hidden).rglob("*")) == []


@pytest.fixture
def scene(
    _apart: Cluster,
    hidden: Path,
    bench: Workbench,
    ledger: Ledger,
    s3: S3,
    executors_state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(hidden))
    variable = f"AIRFLOW_CONN_{CONNECTION.upper()}"
    dsn = as_executor(ledger.dsn)
    point_executors(executors_state, dsn, **{variable: s3.connection()})
    yield Scene(_apart, StoredPrefix(bench, s3, monkeypatch), ledger)
    _apart.end_drivers()


def test_semel_check_finds_nothing_missing(scene: Scene) -> None:
    """Driver and executors reach the archive, and no folder is asked for."""
    found = check([scene.spec], scene.cluster.remote, quiet)
    # The tests' ledger has the tables, and no record of migrations.
    assert {one.name for one in found.checks if not one.ok} <= {"schema"}
    assert {"archive", "archive from executors"} <= {one.name for one in found.checks}


# Attacks S9, S15, AR1.
@pytest.mark.parametrize("point", [WHILE_PUTTING, PUT, IN_CLASSIFY, CLASSIFIED])
def test_an_executor_dies(scene: Scene, hidden: Path, point: str) -> None:
    """Whatever Spark runs again, the attempt wins whole or is lost, and the next one wins."""
    driver = scene.start(hold=point)
    os.kill(executor_of(driver.held()).pid, signal.SIGKILL)
    assert driver.ended()[-1] == "done"
    scene.assert_exact(200, hidden)


# Attacks S14.
def test_a_slow_task_and_its_copy(scene: Scene, hidden: Path) -> None:
    """Both put their object; the manifest has one of them, and the attempt wins."""
    driver = scene.start(hold=PUT)
    held = driver.held()
    assert driver.ended() == ["done"]
    driver.release()
    held.wait(30)
    scene.assert_exact(200, hidden)


# Attacks S9, S10, S14, AR1, AR4.
@pytest.mark.timeout(1_200)
def test_executors_killed_thirty_times(scene: Scene, hidden: Path) -> None:
    """At any point of any task, batch after batch: each id is there once, and what the dead ones
    put is removed.
    """
    points = (WHILE_PUTTING, PUT, IN_CLASSIFY, CLASSIFIED)
    for number in range(KILLS):
        first = 200 + 40 * number
        scene.add(f"b{number:02d}.jsonl", [*events(first, first + 40), *events(first - 9, first)])
        driver = scene.start(f"k{number}", hold=points[number % len(points)])
        worker = driver.held()
        (worker if number % 3 else executor_of(worker)).kill()
        assert driver.ended()[-1] == "done"
    collect(scene.ledger, scene.spec, quiet)
    scene.assert_exact(200 + 40 * KILLS, hidden)


def test_workers_see_nothing_of_the_driver(scene: Scene, hidden: Path) -> None:
    """The check of these tests: what the driver has in the folder, no worker sees."""
    (hidden / "own").write_text("of the driver")
    try:
        assert scene.cluster.executors()
        for executor in scene.cluster.executors():
            assert not (seen_by(executor, hidden) / "own").exists()
    finally:
        (hidden / "own").unlink()
