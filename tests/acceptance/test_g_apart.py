"""A cluster of which the workers share no file system, neither with the driver nor with each other:
source, sink and archive are in a store. Executors are killed thirty times, and nothing is lost.
"""

from pathlib import Path

import pytest

from fixtures.batches.account import quiet
from fixtures.batches.faults import forks  # noqa: F401
from fixtures.batches.workbench import events
from fixtures.spark.cluster import executor_of
from fixtures.spark.scenes import (  # noqa: F401
    ApartScene,
    cluster_apart,
    hidden,
    scene_apart,
    seen_by,
)
from semel.collect import collect
from semel.spark.check import check

# Its cluster takes 20 s to start on two cores.
pytestmark = pytest.mark.proof

KILLS = 30
WHILE_PUTTING, PUT = "store.before_put", "store.after_put"
IN_CLASSIFY, CLASSIFIED = "stage.before_store", "stage.after_store"


def test_semel_check_finds_nothing_missing(scene_apart: ApartScene) -> None:
    """Driver and executors reach the archive, and no folder is asked for."""
    found = check([scene_apart.spec], scene_apart.cluster.remote, quiet)
    # The tests' ledger has the tables, and no record of migrations.
    assert {one.name for one in found.checks if not one.ok} <= {"schema"}
    assert {"archive", "archive from executors"} <= {one.name for one in found.checks}


# Attacks S9, S10, S14, AR1, AR4.
@pytest.mark.timeout(1_200)
def test_executors_killed_thirty_times(scene_apart: ApartScene) -> None:
    """At any point of any task, batch after batch: each id is there once, and what the dead ones
    put is removed.
    """
    points = (WHILE_PUTTING, PUT, IN_CLASSIFY, CLASSIFIED)
    for number in range(KILLS):
        first = 200 + 40 * number
        scene_apart.add([*events(first, first + 40), *events(first - 9, first)])
        driver = scene_apart.start(f"k{number}", hold=points[number % len(points)])
        worker = driver.held()
        (worker if number % 3 else executor_of(worker)).kill()
        assert driver.ended()[-1] == "done"
    collect(scene_apart.ledger, scene_apart.spec, quiet)
    scene_apart.assert_exact(200 + 40 * KILLS)


def test_workers_see_nothing_of_the_driver(scene_apart: ApartScene, hidden: Path) -> None:
    """The check of these tests: what the driver has in the folder, no worker sees."""
    (hidden / "own").write_text("of the driver")
    try:
        assert scene_apart.cluster.executors()
        for executor in scene_apart.cluster.executors():
            assert not (seen_by(executor, hidden) / "own").exists()
    finally:
        (hidden / "own").unlink()
