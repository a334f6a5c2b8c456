"""A project folder of a test's own: data, pipelines, transforms, and helpers that write sources."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from semel import pipeline, settings
from semel.pipeline import Spec
from semel.stage import shard


class Workbench:
    """Writes sources and declarations below one folder, which is the only data root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.pipelines = folder / "pipelines"
        self.transforms = folder / "transforms"
        for made in (self.data / "in", self.pipelines, self.transforms):
            made.mkdir(parents=True)

    def spec(self, name: str = "events", **changes: object) -> Spec:
        """A pipeline over in/*.jsonl with the columns id, n, at; `changes` replace whole parts."""
        document = {
            "name": name,
            "source": {
                "type": "files",
                "path": "in/*.jsonl",
                "format": "jsonl",
                "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
            },
            "record_id": ["id"],
            "sink": {"type": "files", "path": f"out/{name}", "format": "parquet"},
            "limits": {"quarantine_ratio_max": 1.0, "late_ratio_max": 1.0},
        }
        for key, value in changes.items():
            old = document.get(key)
            other = isinstance(value, dict) and value.get("type", "files") != "files"
            merged = {**old, **value} if isinstance(old, dict) and not other else value
            document[key] = merged
        document = {k: v for k, v in document.items() if v is not None}
        path = self.pipelines / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return pipeline.load(path)

    def write(self, name: str, records: Iterable[dict | bytes], mode: str = "wb") -> Path:
        """A JSON Lines file below the data root; bytes are written as they are, plus a newline."""
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            for record in records:
                line = record if isinstance(record, bytes) else json.dumps(record).encode()
                file.write(line + b"\n")
        return path


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    made = Workbench(tmp_path / "project")
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(made.data))
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(made.pipelines))
    monkeypatch.setenv("SEMEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(settings, "transforms_dir", lambda: made.transforms)
    yield made
    shard.filters_in.cache_clear()


Records = Callable[[int, int], list[dict]]


def events(start: int, stop: int) -> list[dict]:
    """Records whose id says which they are."""
    return [{"id": f"e{i:06d}", "n": i, "at": "2026-01-01T00:00:00Z"} for i in range(start, stop)]
