"""Replay in the words of the chaos tests."""

import json
from pathlib import Path

import fix_replay
from fix_scene import Scene
from semel.archive import layout
from semel.model.batch import Batch

ROOT = 1
"""The batch of r0, which the scene has finalized."""


def replayed(scene: Scene, request: str, root: int = ROOT) -> Batch:
    """Replay a batch, from plan to finalize."""
    return fix_replay.replayed(scene.ledger, scene.spec, root, request).batch


def waiting(scene: Scene, request: str, root: int = ROOT) -> int:
    """A replay that has committed. Returns its number."""
    return fix_replay.waiting(scene.ledger, scene.spec, root, request)


def marker(scene: Scene, root: int = ROOT) -> Path:
    return layout.marker(layout.of(scene.spec), root)


def shown(scene: Scene, root: int = ROOT) -> dict:
    return json.loads(marker(scene, root).read_bytes())


def kept(scene: Scene, generation: int, root: int = ROOT) -> Path:
    return fix_replay.aside(scene.spec, root, generation)


def outputs(scene: Scene, generation: int, root: int = ROOT) -> list[Path]:
    """The data files of a generation that was replaced."""
    files = json.loads(kept(scene, generation, root).read_bytes())["files"]
    return [scene.spec.sink_path() / f["path"] for f in files if f["kind"] == "data"]


def tree(scene: Scene) -> dict[str, bytes]:
    """All that is promised to anybody: sink and archive, without staging and temporary files."""
    own = layout.of(scene.spec)
    return {
        str(path): path.read_bytes()
        for folder in (scene.spec.sink_path(), own)
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_relative_to(own / "staging")
        and not path.name.startswith(".")
    }
