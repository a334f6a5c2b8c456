"""Where adopt finds the files of a source again, whatever was done to them meanwhile."""

import json
import os
import shutil

import pytest

from fix_account import ids, quiet, run, settled
from fix_pipelines import Workbench, events
from fix_postgres import lose
from semel.accept import accept_file
from semel.adopt import adopt
from semel.ledger import Ledger
from test_adopt import sql


# Attacks D4.
@pytest.mark.parametrize("by_position", [True, False])
def test_source_files_are_found_again(
    bench: Workbench, ledger: Ledger, by_position: bool
) -> None:
    """Renamed, on another disk, rotated, replaced or gone: what was read is not read again.

    A file that took the place of one that was read is refused as it would be without the loss.
    """
    spec = bench.spec(record_id=None) if by_position else bench.spec()
    source = bench.data / "in"
    big = [{**event, "more": "x" * 300} for event in events(0, 40)]
    bench.write("in/app.jsonl", big)
    bench.write("in/other.jsonl", events(40, 45))
    bench.write("in/gone.jsonl", events(45, 50))
    run(ledger, spec, "r1")
    # Rotated: the old file has another name now, and a new one has its old name.
    (source / "app.jsonl").rename(source / "app-1.jsonl")
    bench.write("in/app.jsonl", events(50, 55))
    run(ledger, spec, "r2")
    lose(ledger)
    # On another disk, under a third name; and its short neighbour under its own.
    shutil.copy(source / "app-1.jsonl", bench.folder / "copy")
    (source / "app-1.jsonl").unlink()
    (bench.folder / "copy").rename(source / "app-2.jsonl")
    shutil.copy(source / "other.jsonl", bench.folder / "copy")
    os.replace(bench.folder / "copy", source / "other.jsonl")
    (source / "gone.jsonl").unlink()
    bench.write("in/app-2.jsonl", events(55, 60), "ab")
    bench.write("in/other.jsonl", events(60, 65), "ab")
    bench.write("in/new.jsonl", events(65, 70)[::-1])
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.source_partitions, adopted.files_found) == (4, 3)
    run(ledger, spec, "r3")
    account = settled(spec, audited=False)
    assert account.ids == ids(0, 70)
    assert not account.decisions
    assert sql(ledger, "SELECT count(*) FROM semel.refusal") == [(0,)]


def test_a_generation_that_was_accepted_is_the_open_one(bench: Workbench, ledger: Ledger) -> None:
    """Of two partitions that one file may be, the newer one goes on; the older one is closed."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    path.write_bytes(b"".join(json.dumps(e).encode() + b"\n" for e in events(100, 130)))
    run(ledger, spec, "r2")
    accept_file(ledger, spec, "a.jsonl", same=False)
    run(ledger, spec, "r3")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    text = "SELECT generation, closed_at IS NULL FROM semel.source_partition ORDER BY 1"
    assert sql(ledger, text) == [(1, False), (2, True)]
    bench.write("in/a.jsonl", events(130, 140), "ab")
    run(ledger, spec, "r4")
    assert settled(spec, audited=False).ids == sorted([*ids(0, 10), *ids(100, 140)])
