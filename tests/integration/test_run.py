"""The verbs one after the other, on real Postgres, with the local engine."""

import json
from collections import Counter

import pyarrow.dataset as ds
import pytest

from fix_account import run
from fix_pipelines import Workbench, events
from semel.ledger import Ledger
from semel.sinks import archive


def output(spec):
    """The rows of all files that markers list."""
    sink = spec.sink_path()
    found = []
    for marker in sorted((archive.place(sink) / "markers").glob("*.json")):
        files = json.loads(marker.read_text())["files"]
        paths = [str(sink / f["path"]) for f in files if f["kind"] == "data"]
        found += ds.dataset(paths, format="parquet").to_table().to_pylist() if paths else []
    return found


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
    assert sorted(row["n"] for row in output(spec)) == list(range(1600))
    assert run(ledger, spec, "r3").plan.batch is None


@pytest.mark.parametrize("record_id", [["id"], None])
def test_many_small_files_become_few(
    bench: Workbench, ledger: Ledger, record_id: list[str] | None
) -> None:
    """A task's splits share its files, and each record is accounted for as before."""
    spec = bench.spec(record_id=record_id)
    for n in range(30):
        bench.write(f"in/{n}.jsonl", [*events(10 * n, 10 * n + 11), b"{not json"])
    counts = run(ledger, spec, "r1").finalized.counts
    repeats = 29 if record_id else 0
    assert (counts.survivors, counts.quarantined) == (330 - repeats, 30)
    assert (counts.duplicates_batch, counts.rows_written) == (repeats, 330 - repeats)
    [marker] = (archive.of(spec) / "markers").glob("*.json")
    kinds = sorted(f["kind"] for f in json.loads(marker.read_text())["files"])
    assert kinds == ["claims", "data", "dead_letters", *(["decisions"] if repeats else [])]
    found = Counter(row["n"] for row in output(spec))
    assert len(found) == 301 and found.total() == 330 - repeats
