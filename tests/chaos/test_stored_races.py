"""Processes that slept, with an archive in a store: a put on condition is their fence."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fix_scene import Scene, committed, finalized, kept, marker, replayed, shown, staged, waiting
from fixtures.batches.faults import collecting
from fixtures.batches.replays import hours_pass
from semel import failpoints, storage
from semel.archive import layout
from semel.errors import RetryableError

ROOT = 1


@pytest.fixture
def scene(scene_of: Callable[..., Scene]) -> Scene:
    return scene_of("stored")


def everything(scene: Scene) -> dict[str, bytes]:
    """All that the archive promises to anybody."""
    archive = layout.archive_folder(scene.spec)
    skipped = {layout.staging(archive)}
    return {str(key): key.read_bytes() for key in storage.files_below(archive, skipped)}


# Attacks AR2, RP5, RP6, RP7, F9.
@pytest.mark.parametrize(
    "point", ["finalize.after_publish", "finalize.before_replace", "store.before_overwrite"]
)
def test_a_finalizer_that_slept_through_a_replay_changes_nothing(
    scene: Scene, point: str
) -> None:
    """A finalizer of generation 2 stands before its put. Its twin finishes, generation 3 replaces
    what it had, and collect comes. Then it goes on: the store refuses its put, and it is told that
    it is done.
    """
    number, seen = waiting(scene, "x"), []

    def meanwhile() -> None:
        finalized(scene, number)
        assert replayed(scene, "y").generation == 3
        hours_pass(scene.ledger)
        collecting(scene.ledger, scene.spec)
        seen.append(everything(scene))

    with failpoints.armed(point, meanwhile) as fault:
        assert finalized(scene, number).found
    assert fault.hit and everything(scene) == seen[0] and shown(scene)["generation"] == 3
    scene.finish("r1", "r2")


# Attacks AR2.
def test_a_marker_that_another_process_replaced_is_read_again(scene: Scene) -> None:
    """Between the look at it and the put: the finalizer replaces nothing that it has not judged.
    """
    number = waiting(scene, "x")

    def meanwhile() -> None:
        text, version = storage.read_version(marker(scene))
        storage.swap(marker(scene), text + b" ", version, through=marker(scene).parent)

    with (
        failpoints.armed("store.before_overwrite", meanwhile) as fault,
        pytest.raises(RetryableError, match="another process replaced it meanwhile"),
    ):
        finalized(scene, number)
    assert fault.hit and shown(scene).get("generation", 1) == 1
    finalized(scene, number)
    assert shown(scene)["generation"] == 2 and kept(scene, 1).exists()
    scene.finish("r1", "r2")


# Attacks AR1, F9.
def test_sixteen_finalizers_at_once(scene: Scene) -> None:
    """Of one batch, in threads that begin together: all end well, and each row is there once."""
    number = staged(scene, "r1")
    committed(scene, number)
    begin = threading.Barrier(16)

    def finalizing(_: int) -> None:
        begin.wait(30)
        finalized(scene, number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(finalizing, range(16)))
    scene.finish("r1", "r2")
