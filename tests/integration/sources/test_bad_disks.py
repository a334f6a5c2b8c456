"""Folders that cannot be read or written, or are not there: said, nothing lost, and then taken."""

import shutil

import pytest

from fixtures.batches.account import committed, ids, quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.full_disk import file_size_max
from fixtures.files.users import first_run, ordinary_user
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.errors import RetryableError, SourceError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.stage import stage


def test_an_unreadable_file_is_refused(shared: Workbench, ledger: Ledger) -> None:
    """As an ordinary user: named, the others are read, and it is read once it may be."""
    spec = first_run(shared, ledger)
    with ordinary_user():
        closed = shared.write("in/b.jsonl", events(5, 10))
        shared.write("in/c.jsonl", events(10, 15))
        closed.chmod(0)
        run(ledger, spec, "r2")
        assert refusals(ledger) == {"b.jsonl": "unreadable"}
        assert settled(spec).ids == ids(0, 5) + ids(10, 15)
        closed.chmod(0o600)
        run(ledger, spec, "r3")
        assert refusals(ledger) == {}
        assert settled(spec).ids == ids(0, 15)


def test_a_file_closed_after_the_plan_stops_its_batch(shared: Workbench, ledger: Ledger) -> None:
    """Stage says that it cannot be read; readable again, the same batch goes on."""
    spec = first_run(shared, ledger)
    with ordinary_user():
        closed = shared.write("in/b.jsonl", events(5, 10))
        plan(ledger, spec, "r2")
        closed.chmod(0)
        with pytest.raises(SourceError, match=r"b\.jsonl.*cannot be read \(Permission denied\)"):
            run(ledger, spec, "r2")
        closed.chmod(0o600)
        run(ledger, spec, "r2")
        assert settled(spec).ids == ids(0, 10)


def test_an_unreadable_folder_is_refused(shared: Workbench, ledger: Ledger) -> None:
    """What a pattern cannot look into is named: its files must not be missed in silence."""
    spec = first_run(shared, ledger, source={"path": "in/**/*.jsonl"})
    with ordinary_user():
        folder = shared.write("in/day/b.jsonl", events(5, 10)).parent
        folder.chmod(0)
        run(ledger, spec, "r2")
        assert refusals(ledger) == {"day": "unreadable"}
        folder.chmod(0o700)
        run(ledger, spec, "r3")
        assert refusals(ledger) == {}
        assert settled(spec).ids == ids(0, 10)


def test_a_read_only_sink_stops_the_batch(shared: Workbench, ledger: Ledger) -> None:
    """Stage says which folder to mend; then the same batch goes on under a new fence."""
    spec = first_run(shared, ledger)
    with ordinary_user():
        shared.write("in/b.jsonl", events(5, 10))
        staging = layout.archive_folder(spec) / "staging"
        staging.chmod(0o555)
        with pytest.raises(RetryableError, match=f"attempt 1: .*system at {staging.parent}"):
            run(ledger, spec, "r2")
        staging.chmod(0o755)
        assert run(ledger, spec, "r2").committed.fence == 2
        assert settled(spec).ids == ids(0, 10)


def test_a_sink_that_turns_read_only_after_commit(shared: Workbench, ledger: Ledger) -> None:
    """Finalize can be repeated: the batch has committed, and no reader sees half of it."""
    spec = first_run(shared, ledger)
    sink = spec.sink_path()
    with ordinary_user():
        shared.write("in/b.jsonl", events(5, 10))
        batch = committed(ledger, spec, "r2")
        for folder in (sink, layout.archive_folder(spec) / "markers"):
            folder.chmod(0o555)
            with pytest.raises(RetryableError, match=rf"batch {batch}.*finalize again"):
                finalize(ledger, spec, batch)
            folder.chmod(0o755)
        finalize(ledger, spec, batch)
        assert settled(spec).ids == ids(0, 10)


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_full_disk_stops_the_attempt(
    bench: Workbench, ledger: Ledger, form: str, by_position: bool
) -> None:
    """Whatever it is that no longer fits (spill, output), the attempt is lost and nothing is seen.

    With room again, the same batch goes on under a new fence and is exact.
    """
    changes = {"record_id": None} if by_position else {}
    spec = bench.spec(sink={"format": form}, **changes)
    bench.write("in/a.jsonl", [*events(0, 3000), b"{bad"])
    batch = plan(ledger, spec, "r1").batch
    for size in (0, 4096):
        with file_size_max(size), pytest.raises(RetryableError, match="then run stage again"):
            stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
        assert settled(spec).ids == []
    assert run(ledger, spec, "r1").committed.fence == 3
    found = settled(spec)
    assert found.ids == ids(0, 3000)
    assert found.reasons == {"malformed": 1}


def test_a_full_disk_at_the_marker(bench: Workbench, ledger: Ledger) -> None:
    """A marker is whole or not there; finalize is repeated when there is room."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec, "r1")
    with file_size_max(100), pytest.raises(RetryableError, match="finalize again"):
        finalize(ledger, spec, batch)
    markers = layout.archive_folder(spec) / "markers"
    assert list(markers.iterdir()) == []
    finalize(ledger, spec, batch)
    assert settled(spec).ids == ids(0, 10)


# Attacks S5.
def test_a_staging_folder_that_vanishes_loses_the_attempt(bench: Workbench, ledger: Ledger) -> None:
    """Cleaned away while the job runs: the attempt is lost, and the next one is exact."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))

    def clean(job) -> None:  # noqa: ANN001
        shutil.rmtree(job.folder)

    batch = plan(ledger, spec, "r1").batch.batch_id
    with pytest.raises(RetryableError, match=f"batch {batch}, attempt 1: .*Run stage again"):
        stage(ledger, spec, batch, LocalEngine(before_write=clean), log=quiet)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
