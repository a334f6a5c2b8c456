"""Output that is written before its records are classified, and written again where some drop."""

import os
from pathlib import Path

import pytest

from fixtures.batches.account import first_batch, ids, quiet, run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import stage as stage_module
from semel.errors import RetryableError, SemelError, SourceError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.sources.files.source import FilesSource
from semel.stage import stage
from semel.stage.job import StageJob, writes_early

TASKS = 16


@pytest.mark.parametrize(
    ("last_spread", "expected"),
    [(None, False), (0, True), (0.125, True), (0.126, False), (1, False)],
)
def test_a_batch_writes_early_if_few_tasks_had_duplicates(
    last_spread: float | None, expected: bool
) -> None:
    """An eighth of the last batch's tasks at most; a pipeline's first batch never does."""
    assert writes_early(last_spread) is expected


@pytest.fixture
def spec(bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A pipeline that has finalized e0 to e999 without duplicates, and has 16 tasks for the next
    thousand, of which the sixth has two duplicates, and the last one a broken record.
    """
    monkeypatch.setattr(stage_module, "writes_early", writes_early)
    spec = first_batch(bench, ledger, events(0, 1_000))
    records = [*events(1_000, 2_000), b"{broken"]
    records[340:340] = [*events(7, 8), *events(1_300, 1_301)]
    path = bench.write("in/b.jsonl", records)
    monkeypatch.setattr(FilesSource, "split_size", path.stat().st_size // TASKS + 1)
    return spec


def test_a_task_with_duplicates_alone_writes_twice(
    spec: Spec, bench: Workbench, ledger: Ledger
) -> None:
    """Nothing is spilled. Duplicates and rejected records are accounted once each, and the next
    batch writes early too: one task of sixteen had duplicates. After it none does.
    """
    spilled: list[str] = []

    def look(job: StageJob) -> None:
        assert job.writes_early and job.tasks == TASKS
        spilled.extend(path.suffix for path in job.spill_dir.iterdir())

    engine = LocalEngine(before_write=look)
    batch_id = plan(ledger, spec, "r2").batch.batch_id
    stage(ledger, spec, batch_id, engine, quiet)
    assert ".arrow" not in spilled
    early = {f"r{task:05d}" for task in range(TASKS) if task != 5}
    assert _staged(ledger, batch_id) == {*early, "r00015-letters", "w00005", "w00005-decisions"}
    run(ledger, spec, "r2")
    for key, early in (("r3", True), ("r4", False)):
        bench.write(f"in/{key}.jsonl", events(0, 1))
        engine = LocalEngine()
        run(ledger, spec, key, engine=engine)
        assert engine.jobs[0].writes_early is early
    account = settled(spec)
    assert account.ids == ids(0, 2_000)
    assert (account.counts.duplicates_batch, account.counts.duplicates_catalog) == (1, 3)
    assert account.counts.quarantined == len(account.letters) == 1


def _staged(ledger: Ledger, batch_id: int) -> set[str]:
    """The names of the staged files of a batch, without their random ends."""
    query = "SELECT staged_path FROM semel.manifest_file WHERE batch_id = :batch_id"
    names = [Path(row["staged_path"]).name for row in sql(ledger, query, batch_id=batch_id)]
    return {name.rpartition("-")[0] for name in names if "-ids-" not in name}


def edited(path: Path) -> None:
    """Another value, of the same length, and the times of before."""
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"n": 1345', b'"n": 1999'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // TASKS * 5 + 100)


# Attacks S30.
@pytest.mark.parametrize(
    ("change", "error"), [(edited, RetryableError), (cut, SourceError)], ids=["other", "shorter"]
)
def test_a_file_that_changes_before_it_is_read_again(
    spec: Spec, bench: Workbench, ledger: Ledger, change, error: type[SemelError]
) -> None:
    """Nothing is staged of two contents. With the old content the next attempt is exact."""
    path = bench.data / "in" / "b.jsonl"
    content = path.read_bytes()
    batch_id = plan(ledger, spec, "r2").batch.batch_id
    engine = LocalEngine(before_write=lambda _: change(path))
    with pytest.raises(error, match="changed while stage read it twice|shrank to"):
        stage(ledger, spec, batch_id, engine, quiet)
    with path.open("r+b") as file:
        file.write(content)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 2_000)
