"""Spark's own faults, on a standalone cluster of two workers: executors and Python workers die,
tasks run twice, drivers come back. Whatever happens, the output is exact: in folders that all of
them share, and in a store, where each worker has a file system of its own.

Each case harms what stands at a fault point, lets the driver run its request until it is done, and
asks the audit, which reads files alone.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from fixtures.batches.account import quiet
from fixtures.batches.faults import forks  # noqa: F401
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import database, point_executors
from fixtures.spark.cluster import (  # noqa: F401
    WAIT_SECONDS,
    Cluster,
    Driver,
    _cluster,
    cluster,
    executor_of,
    wait_for,
)
from fixtures.spark.scenes import Scene, cluster_apart, hidden, scene_apart  # noqa: F401
from semel import settings
from semel.collect import collect
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.reader import dataset
from semel.runs.run import run_batch
from semel.spark.check import check
from semel.spark.session import open_engine

# Its cluster takes 20 s to start on two cores.
pytestmark = pytest.mark.proof

BAD_LINE = b"{not json"
WHILE_WRITING = "storage.before_fsync"
WRITTEN = "storage.after_fsync"
IN_CLASSIFY = "stage.before_store"
CLASSIFIED = "stage.after_store"
IN_READ = "storage.after_create"
"""Of a split with a bad line: its dead letters are the first file that is written."""

RANDOM = """
from pyspark.sql import functions as F

def random(frame):
    frame = frame.select("id", "n", F.expr("uuid()").alias("tag"), F.rand().alias("chance"))
    return frame.repartition(3, "tag").select("id", "n", "tag", "chance")
"""

MIXED = """
import os, time, uuid
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import functions as F

def text(function):
    return F.udf(function, "string").asNondeterministic()

def tag(_):
    return uuid.uuid4().hex

def same(id):
    return id

def seen(id):
    Path(f"{folder}/seen-{TaskContext.get().partitionId()}").touch()
    return id

def slow(id):
    if not Path("{folder}/held").exists():
        Path("{folder}/held").write_text(str(os.getpid()))
    end = time.monotonic() + 60
    while not Path("{folder}/go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return id

def mixed(frame):
    left = frame.select("id", "n", text(tag)("id").alias("tag")).repartition(8, "tag")
    left = left.groupBy("tag").agg(F.max("id").alias("id"), F.max("n").alias("n"))
    left = left.select(text(seen)("id").alias("id"), "n")
    right = frame.select("id").repartition(3, "id").select(text(same)("id").alias("id"))
    right = right.repartition(1).select(text(slow)("id").alias("other"))
    joined = left.join(right.hint("shuffle_hash"), F.col("id") == F.col("other"))
    return joined.select("id", "n")
"""
"""Records go to random places of a shuffle, then wait for the other side of a join."""


@pytest.fixture(params=["shared", "apart"])
def scene(request: pytest.FixtureRequest, bench: Workbench, ledger: Ledger) -> Scene:
    """All in folders that processes share; or in a store, on workers that share no folder."""
    if request.param == "apart":
        return request.getfixturevalue("scene_apart")
    return Scene(request.getfixturevalue("cluster"), bench, ledger)


# Attacks S15.
def test_an_executor_dies_in_write(scene: Scene) -> None:
    """What it had classified is lost with it: the attempt is lost, and the next one wins."""
    driver = scene.start(hold=WRITTEN)
    os.kill(executor_of(driver.held()).pid, signal.SIGKILL)
    *failed, last = driver.ended()
    assert last == "done" and len(failed) == 1
    assert failed[0].startswith("RetryableError: the Spark job failed"), failed
    assert scene.attempts() == ["lost", "won"]
    scene.assert_exact(200)


# Attacks S14.
def test_a_slow_task_and_its_copy(scene: Scene) -> None:
    """Both write their file whole; the manifest has one of them, and the attempt wins."""
    driver = scene.start(hold=WRITTEN)
    held = driver.held()
    task = driver.held_task()
    assert driver.ended() == ["done"]
    assert {f"{task}-0", f"{task}-1"} <= set(driver.tries()), "no copy ran"
    driver.release()
    held.wait(30)
    assert scene.attempts() == ["won"]
    scene.assert_exact(200)


# Attacks S10.
def test_a_python_worker_dies_while_it_writes(scene: Scene) -> None:
    """Its task runs again within the attempt; the half of a file is in no manifest."""
    driver = scene.start(hold=WHILE_WRITING)
    driver.held().kill()
    assert driver.ended() == ["done"]
    assert scene.attempts() == ["won"]
    scene.assert_exact(200)


# Attacks S9, S15.
@pytest.mark.parametrize("point", [IN_READ, IN_CLASSIFY, CLASSIFIED])
def test_an_executor_dies_before_write(scene: Scene, point: str) -> None:
    """In read and in classify: whatever Spark runs again, the attempt wins whole or is lost."""
    if point == IN_READ:
        scene.add([BAD_LINE])
    driver = scene.start(hold=point)
    os.kill(executor_of(driver.held()).pid, signal.SIGKILL)
    *failed, last = driver.ended()
    assert last == "done"
    assert scene.attempts() == ["lost"] * len(failed) + ["won"]
    scene.assert_exact(200)


# Attacks S9.
@pytest.mark.parametrize("point", [IN_READ, CLASSIFIED])
def test_a_copy_in_read_and_in_classify(scene: Scene, point: str) -> None:
    """A copy reads the same, and finds the id run that the slow task has stored."""
    if point == IN_READ:
        scene.add([BAD_LINE])
    driver = scene.start(hold=point)
    driver.held()
    started = time.monotonic()
    assert driver.ended() == ["done"]
    assert time.monotonic() - started < WAIT_SECONDS / 2, "no copy ran: the slow task ended itself"
    if point == IN_READ:  # A copy in classify finds the run that is stored, and does not come here.
        task = driver.held_task()
        assert {f"{task}-0", f"{task}-1"} <= set(driver.tries()), "no copy ran"
    assert scene.attempts() == ["won"]
    scene.assert_exact(200)


@pytest.mark.parametrize("victim", ["worker", "executor", "none"])
def test_random_values_of_a_task_that_runs_again(scene: Scene, victim: str) -> None:
    """rand() and uuid() in a transform: the output is what one attempt wrote, each id once."""
    (scene.bench.transforms / "random_transform.py").write_text(RANDOM)
    scene.declare(transforms=["random_transform:random"])
    # Decisions would be the first files, and they are written before the transforms run.
    scene.replace(events(0, 200))
    driver = scene.start(hold=WRITTEN)
    worker = driver.held()
    if victim != "none":
        (worker if victim == "worker" else executor_of(worker)).kill()
    *failed, last = driver.ended()
    assert last == "done" and len(failed) == (victim == "executor"), failed
    assert scene.attempts() == ["lost"] * len(failed) + ["won"]
    scene.assert_exact(200)
    assert len({row["tag"] for row in scene.rows()}) == 200


# Attacks S15.
def test_an_executor_dies_between_two_shuffles(scene: Scene) -> None:
    """Random records of a shuffle that was half lost are never mixed with a second computation."""
    folder = scene.bench.folder / "transform"
    folder.mkdir()
    text = MIXED.replace("{folder}", str(folder))
    (scene.bench.transforms / "mix_transform.py").write_text(text)
    scene.declare(transforms=["mix_transform:mixed"])
    driver = scene.start()
    wait_for((folder / "held").exists, "the slow side")
    wait_for(lambda: len(list(folder.glob("seen-*"))) == 8, "the random side")
    time.sleep(2)  # Its last task has begun; Spark does not show when it has ended.
    slow = executor_of(psutil.Process(int((folder / "held").read_text())))
    [other] = [each for each in scene.cluster.executors() if each.pid != slow.pid]
    other.kill()
    time.sleep(5)  # Spark has heard of it, which no file shows either.
    (folder / "go").touch()
    assert driver.ended()[-1] == "done"
    scene.assert_exact(200)


# Attacks S1, C7.
@pytest.mark.parametrize("point", ["stage.after_folders", "stage.after_job"])
def test_a_driver_goes_on_after_it_was_given_up(scene: Scene, point: str) -> None:
    """Stopped before or after its job, while another wins and collect cleans up: no change."""
    zombie = scene.start(armed=f"{point}:pause", runs_max=1)
    stands = zombie.folder / point
    wait_for(stands.exists, point)
    os.kill(zombie.process.pid, signal.SIGSTOP)
    assert scene.start().ended() == ["done"]
    collect(scene.ledger, scene.spec)
    scene.assert_exact(200)
    before = scene.rows()
    stands.unlink()
    os.kill(zombie.process.pid, signal.SIGCONT)
    [outcome] = zombie.ended()
    assert outcome.startswith("AttemptLostError"), outcome
    assert scene.attempts() == ["lost", "won"]
    assert scene.rows() == before
    scene.assert_exact(200)


# Attacks S9, S14.
def test_the_plan_of_an_attempt_is_sent_twice(scene: Scene) -> None:
    """The second finds the id runs of the first and writes files of its own; one set of them wins.
    """
    driver = scene.start(twice=True)
    assert driver.ended() == ["done"]
    assert scene.attempts() == ["won"]
    scene.assert_exact(200)


# `semel check`, where neither server nor workers have anything of the driver's environment.


@pytest.fixture
def migrated(
    postgres: str, executors_state: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """A ledger that executors find in their own environment, and the driver in its."""
    with database(postgres, "template1") as dsn, Ledger(dsn) as ledger:
        migrate(dsn)
        monkeypatch.setenv(settings.LEDGER_VARIABLE, dsn)
        point_executors(executors_state, dsn)
        yield ledger


def test_both_executors_answer(
    cluster: Cluster,  # noqa: F811
    bench: Workbench,
    migrated: Ledger,
    executors_state: Path,
) -> None:
    """Each is right; what only executors lack is found there, and is what a batch fails of."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 200))
    found = check([spec], cluster.remote, quiet)
    assert found.ok, [one for one in found.checks if not one.ok]
    assert len({answer.process for answer in found.answers}) == 2, found.answers
    point_executors(executors_state, "")
    found = check([spec], cluster.remote, quiet)
    assert {one.name for one in found.checks if not one.ok} == {"ledger from executors"}
    with open_engine(cluster.remote, quiet) as engine:
        with pytest.raises(TerminalError, match=r"does not know the ledger.*Set SEMEL_LEDGER_DSN"):
            run_batch(migrated, spec, "r1", engine, log=quiet)
        point_executors(executors_state, migrated.dsn)
        run_batch(migrated, spec, "r1", engine, log=quiet)
    collect(migrated, spec, quiet)
    assert dataset(spec.sink_path()).count_rows() == 200


def test_what_spark_keeps_of_a_job(
    cluster: Cluster,  # noqa: F811
    bench: Workbench,
    migrated: Ledger,
) -> None:
    """Neither logs nor work folders of master, workers, executors and server hold the password."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 200))
    with open_engine(cluster.remote, quiet) as engine:
        run_batch(migrated, spec, "r1", engine, log=quiet)
    secret = sa.make_url(migrated.dsn).password.encode()
    looked = 0
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            looked += 1
            assert secret not in path.read_bytes(), path
    assert looked >= 4
