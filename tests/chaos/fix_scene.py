"""The scene of the chaos tests: what was there before, two files with common ids; and the verbs, a
replay, and what the ledger holds, in the words of these tests.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from checker import Found, assert_exact
from fixtures.batches import account, replays
from fixtures.batches.account import quiet, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.kinds import SINKS
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.commit import Committed, commit
from semel.finalize import Finalized, finalize
from semel.ledger import Ledger
from semel.model.batch import Batch
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.stage import stage
from semel.storage import ArchivePath, nested_names


class Scene:
    """A pipeline with one finalized batch (r0), and two files that r1 and r2 will take.

    Each has repeats within itself, repeats of r0, ids that the other has too, and bad lines.
    """

    def __init__(
        self,
        bench: Workbench,
        ledger: Ledger,
        sink: str = "files",
        declared: dict[str, Any] | None = None,
        **changes: object,
    ) -> None:
        self.bench, self.ledger = bench, ledger
        self.sink, self.declared = sink, declared or {}
        first = bench.write("in/a.jsonl", events(0, 40))
        self.sources = [first]
        self.spec = self.declare(**changes)
        self.run("r0")
        bad = [b"{not json", b'{"id": null, "n": 1}']
        self.add("b.jsonl", [*events(30, 80), *events(50, 55), *bad])
        self.add("c.jsonl", [*events(60, 110), *events(70, 75), *bad])

    @classmethod
    def empty(cls, bench: Workbench, ledger: Ledger, **changes: object) -> "Scene":
        """Without a batch, and without a source yet."""
        made = cls.__new__(cls)
        made.bench, made.ledger, made.sources = bench, ledger, []
        made.sink, made.declared = "files", {}
        made.spec = made.declare(**changes)
        return made

    def declare(self, **changes: object) -> Spec:
        parts = {
            "dedup": {"shards": 2},
            "sink": {"position_columns": True, **self.declared},
            # Room for one of the files, so that each plan takes one.
            "limits": {"bytes_per_batch_max": 4000},
        }
        return self.bench.spec(**{**parts, **changes})

    def add(self, name: str, records: list) -> Path:
        path = self.bench.write(f"in/{name}", records)
        self.sources.append(path)
        return path

    def run(self, *requests: str) -> None:
        for request in requests:
            account.run(self.ledger, self.spec, request)

    def finish(self, *requests: str) -> Found:
        """Run the same requests again and one more, as a scheduler would; then all is exact."""
        self.run(*requests, "last", "last")
        return self.check()

    def check(self) -> Found:
        return assert_exact(self.spec, self.sources)


@pytest.fixture
def scene(bench: Workbench, ledger: Ledger) -> Scene:
    return Scene(bench, ledger)


@pytest.fixture
def scene_of(
    bench: Workbench,
    ledger: Ledger,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Scene]:
    """A scene with a sink of `kinds.SINKS`, by its name, and a target of its own."""

    def make(sink: str, **changes: object) -> Scene:
        declared = SINKS[sink].scene(request, monkeypatch)
        return Scene(bench, ledger, sink, declared, **changes)

    return make


def time_passes(ledger: Ledger, *, segments: bool = False, runs: bool = False) -> None:
    """Close the drop span that is open, or end the horizon of what lies in closed ones."""
    if segments:
        sql(
            ledger,
            "UPDATE semel.segment SET span_start = now() - interval '2 hours', "
            "span_end = now() - interval '1 hour'",
        )
    if runs:
        sql(
            ledger,
            "UPDATE semel.id_run SET expires_at = now() FROM semel.segment AS s "
            "WHERE id_run.segment_id = s.segment_id AND s.span_end < now()",
        )


def payload_tables(ledger: Ledger) -> list[str]:
    found = sql(ledger, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'ids\\_%'")
    return [row["tablename"] for row in found]


def live_runs(ledger: Ledger) -> dict[int, int]:
    """How many live runs each shard has."""
    found = sql(
        ledger,
        "SELECT shard, count(*) AS runs FROM semel.id_run "
        "WHERE seq_min IS NOT NULL AND retired_at IS NULL GROUP BY shard",
    )
    return {row["shard"]: row["runs"] for row in found}


def attempts(ledger: Ledger, batch_id: int) -> list[str]:
    """The states of a batch's attempts, by fence."""
    text = "SELECT status FROM semel.attempt WHERE batch_id = :batch ORDER BY fence"
    return [row["status"] for row in sql(ledger, text, batch=batch_id)]


def staged_folders(spec: Spec) -> list[ArchivePath]:
    staging = layout.staging(layout.archive_folder(spec))
    return [staging / name for name in sorted(nested_names(staging)) if name[0] == "b"]


def manifest(ledger: Ledger, batch_id: int) -> list[tuple[Path, Path]]:
    """Staged and final path of each file of a batch's winner, or of what is staged."""
    text = (
        "SELECT staged_path, final_path FROM semel.manifest_file JOIN semel.attempt "
        "USING (attempt_id) WHERE attempt.batch_id = :batch AND status IN ('staged', 'won')"
    )
    return [(Path(a), Path(b)) for a, b in (r.values() for r in sql(ledger, text, batch=batch_id))]


def status(ledger: Ledger, batch_id: int) -> str:
    """A batch's status."""
    [found] = sql(ledger, "SELECT status FROM semel.batch WHERE batch_id = :b", b=batch_id)
    return found["status"]


@contextmanager
def statements(told: Callable[[sa.Connection, str, dict], None]) -> Iterator[None]:
    """Tell of each statement of any ledger before it is sent."""

    def sent(connection, _cursor, text, values, *_) -> None:  # noqa: ANN001 - SQLAlchemy's own
        told(connection, text, values)

    sa.event.listen(sa.Engine, "before_cursor_execute", sent)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", sent)


def staged(scene: Scene, request: str, engine: LocalEngine | None = None) -> int:
    """Plan and stage a request's batch. Returns its number."""
    batch_id = plan(scene.ledger, scene.spec, request).batch.batch_id
    stage(scene.ledger, scene.spec, batch_id, engine or LocalEngine(), quiet)
    return batch_id


def committed(scene: Scene, batch_id: int) -> Committed:
    """Commit a batch; it is staged again when it must be."""

    def restage() -> None:
        stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)

    return commit(scene.ledger, scene.spec, batch_id, restage, quiet)


def finalized(scene: Scene, batch_id: int) -> Finalized:
    return finalize(scene.ledger, scene.spec, batch_id)


ROOT = 1
"""The batch of r0, which the scene has finalized."""


def replayed(scene: Scene, request: str, root: int = ROOT) -> Batch:
    """Replay a batch, from plan to finalize."""
    return replays.replayed(scene.ledger, scene.spec, root, request).batch


def waiting(scene: Scene, request: str, root: int = ROOT) -> int:
    """A replay that has committed. Returns its number."""
    return replays.waiting(scene.ledger, scene.spec, root, request)


def marker(scene: Scene, root: int = ROOT) -> ArchivePath:
    return layout.marker(layout.archive_folder(scene.spec), root)


def shown(scene: Scene, root: int = ROOT) -> dict:
    return json.loads(marker(scene, root).read_bytes())


def kept(scene: Scene, generation: int, root: int = ROOT) -> Path:
    return replays.aside(scene.spec, root, generation)


def outputs(scene: Scene, generation: int, root: int = ROOT) -> list[Path]:
    """The data files of a generation that was replaced."""
    files = json.loads(kept(scene, generation, root).read_bytes())["files"]
    return [scene.spec.sink_path() / f["path"] for f in files if f["kind"] == "data"]


def tree(scene: Scene) -> dict[str, bytes]:
    """All that is promised to anybody: sink and archive, without staging and temporary files."""
    own = layout.archive_folder(scene.spec)
    return {
        str(path): path.read_bytes()
        for folder in (scene.spec.sink_path(), own)
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_relative_to(own / "staging")
        and not path.name.startswith(".")
    }
