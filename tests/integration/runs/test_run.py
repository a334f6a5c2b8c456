"""The verbs one after the other, on real Postgres, with the local engine."""

import json

import pytest

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from semel.archive import layout
from semel.ledger import Ledger


# Attacks P7.
def test_records_are_in_the_output_once(bench: Workbench, ledger: Ledger) -> None:
    """Repeats within a batch and against earlier batches are dropped, and all is accounted for."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 1000), *events(0, 10)])
    first = run(ledger, spec, "r1")
    assert first.finalized.counts.survivors == 1000
    assert first.finalized.counts.duplicates_batch == 10
    bench.write("in/b.jsonl", [*events(500, 1500), b"{not json"])
    bench.write("in/a.jsonl", events(1500, 1600), mode="ab")
    second = run(ledger, spec, "r2")
    counts = second.finalized.counts
    assert (counts.survivors, counts.duplicates_catalog, counts.quarantined) == (600, 500, 1)
    assert settled(spec).ids == ids(0, 1600)
    assert run(ledger, spec, "r3").plan.batch is None


@pytest.mark.parametrize("record_id", [["id"], None])
def test_many_small_files_become_few(
    bench: Workbench, ledger: Ledger, record_id: list[str] | None
) -> None:
    """A task's splits share its files, and each record is accounted for as before.

    By position every record is its own: repeats stay, and the catalog stays empty.
    """
    spec = bench.spec(record_id=record_id)
    for n in range(30):
        bench.write(f"in/{n}.jsonl", [*events(10 * n, 10 * n + 11), b"{not json"])
    counts = run(ledger, spec, "r1").finalized.counts
    repeats = 29 if record_id else 0
    assert (counts.survivors, counts.quarantined) == (330 - repeats, 30)
    assert (counts.duplicates_batch, counts.rows_written) == (repeats, 330 - repeats)
    [marker] = (layout.archive_folder(spec) / "markers").glob("*.json")
    kinds = sorted(f["kind"] for f in json.loads(marker.read_text())["files"])
    assert kinds == ["claims", "data", "dead_letters", *(["decisions"] if repeats else [])]
    found = settled(spec).ids
    assert len(found) == 330 - repeats and sorted(set(found)) == ids(0, 301)
    in_catalog = "SELECT EXISTS (SELECT FROM semel.id_run)"
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql(in_catalog).scalar_one() == bool(record_id)
