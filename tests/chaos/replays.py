"""Replay in the words of the chaos tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_scene import Scene, sql
from semel import faults, replay
from semel.batch import Batch
from semel.commit import commit
from semel.faults import FaultError
from semel.sinks import archive
from semel.stage import stage

ROOT = 1
"""The batch of r0, which the scene has finalized."""


def replayed(scene: Scene, request: str, root: int = ROOT) -> Batch:
    """Replay a batch, from plan to finalize."""
    return replay.run(scene.ledger, scene.spec, request, root, LocalEngine(), quiet).batch


def waiting(scene: Scene, request: str, root: int = ROOT) -> int:
    """A replay that has committed. Returns its number."""
    batch, _ = replay.plan(scene.ledger, scene.spec, request, root)
    stage(scene.ledger, scene.spec, batch.batch_id, LocalEngine(), quiet)
    commit(scene.ledger, scene.spec, batch.batch_id, lambda: None, quiet)
    return batch.batch_id


def marker(scene: Scene, root: int = ROOT) -> Path:
    return archive.marker(archive.of(scene.spec), root)


def shown(scene: Scene, root: int = ROOT) -> dict:
    return json.loads(marker(scene, root).read_bytes())


def kept(scene: Scene, generation: int, root: int = ROOT) -> Path:
    return archive.replaced(archive.of(scene.spec), root, generation)


def outputs(scene: Scene, generation: int, root: int = ROOT) -> list[Path]:
    """The data files of a generation that was replaced."""
    files = json.loads(kept(scene, generation, root).read_bytes())["files"]
    return [scene.spec.sink_path() / f["path"] for f in files if f["kind"] == "data"]


def hours_pass(scene: Scene) -> None:
    """Whoever replaced a generation has been finalized for long."""
    sql(scene.ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")


def tree(scene: Scene) -> dict[str, bytes]:
    """All that is promised to anybody: sink and archive, without staging and temporary files."""
    own = archive.of(scene.spec)
    return {
        str(path): path.read_bytes()
        for folder in (scene.spec.sink_path(), own)
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_relative_to(own / "staging")
        and not path.name.startswith(".")
    }


def fails(*_: object) -> None:
    raise FaultError("the test stops it here")


@contextmanager
def dies_at(point: str, nth: int = 1) -> Iterator[None]:
    """The block ends at a point, as if its process had been killed."""
    with faults.armed(point, fails, nth), pytest.raises(FaultError):
        yield
