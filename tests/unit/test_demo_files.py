"""The pipelines that `semel demo` puts into the folder of pipelines, and what they leave."""

import subprocess
from pathlib import Path

import pytest

from semel import pipeline
from semel.archive import layout
from semel.pipeline.spec import Spec
from semel_local.demo import lake, queue, stream
from test_demo import removed

ROOT = Path(__file__).resolve().parents[2]
FILES = [*stream.FILES, queue.FILE, lake.FILE]


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """All of them, declared in a folder of their own; state and data are this test's own."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    folder = tmp_path / "pipelines"
    stream.declare(folder, FILES)
    return [pipeline.load(path) for path in sorted(folder.iterdir())]


def test_they_fit_beside_each_other(specs: list[Spec]) -> None:
    """And beside those of the first demo; each has a flight's columns."""
    ours = [pipeline.load(path) for path in sorted((ROOT / "dags" / "pipelines").glob("*.yaml"))]
    assert len(specs) == len(FILES)
    assert not pipeline.clashes({Path(spec.name): spec for spec in [*ours, *specs]})
    flight = next(spec for spec in ours if spec.name == "flights").arrow_schema()
    for spec in specs:
        assert [field for field in spec.arrow_schema() if field.name != "event_id"] == list(flight)


def test_reset_and_git_know_what_they_leave(specs: list[Spec], tmp_path: Path) -> None:
    """`make reset` removes each file that they make, and none of them is tracked. A store's are in
    .semel, which it removes.
    """
    made = [
        path for spec in specs for path in (spec.sink_path(), layout.archive_folder(spec))
        if isinstance(path, Path)
    ]  # fmt: skip
    made += [spec.source.spool_of(spec.name) for spec in specs if spec.name == queue.PIPELINE]
    assert {str(path.relative_to(tmp_path / "data")) for path in made} <= removed()
    files = [f"dags/pipelines/{path.name}" for path in FILES]
    assert set(files) <= set((ROOT / "Makefile").read_text().partition("rm -rf .semel")[2].split())
    tracked = subprocess.run(
        ["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True
    )
    assert tracked.stdout.split() == files
