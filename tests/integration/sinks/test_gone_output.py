"""An output file that somebody removed: the audit finds it, and says what brings it back."""

import pytest

from fixtures.batches.account import ids, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.ledger import Ledger
from semel.reader import dataset


@pytest.mark.parametrize("gone", [(2,), (1, 2), (1, 4)], ids=str)
def test_what_the_audit_advises_repairs_it(
    gone: tuple[int, ...], bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """Each run of batches without their files has its line `next`; after these commands each record
    is there once, and the audit passes.
    """
    spec = bench.spec()
    for n in range(4):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(ledger, spec, f"r{n}")
    for batch in gone:
        for path in spec.sink_path().rglob(f"*b{batch:08d}*.parquet"):
            path.unlink()
    said = shell.runs("semel audit events", code=1)
    steps = [line.removeprefix("next: ") for line in said.splitlines() if "next: " in line]
    spans = {(2,): ["2"], (1, 2): ["1..2"], (1, 4): ["1", "4"]}[gone]
    assert steps == [f"semel replay events --batches {span}" for span in spans], said
    copied = shell.runs(f"semel audit events --sink {spec.sink_path()}", code=1)
    assert copied.splitlines()[-1] == f"next: semel show {gone[0]}", "no replay mends a copy"
    for step in steps:
        shell.runs(step)
    found = dataset(spec.sink_path()).to_table(columns=["id"]).column("id").to_pylist()
    assert sorted(found) == sorted(ids(0, 40))
    shell.runs("semel audit events")


@pytest.mark.parametrize("what", ["output", "decisions", "dead_letters"])
def test_find_tells_of_a_file_that_is_gone(
    what: str, bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """It names the file, looks on, and its `next` is the audit, which says how to repair it."""
    spec = bench.spec()
    bench.write("in/0.jsonl", events(0, 10))
    bench.write("in/1.jsonl", [*events(10, 20), *events(10, 11), b"{broken"])
    run(ledger, spec, "r1")
    folder = spec.sink_path() if what == "output" else bench.data
    files = [*folder.rglob("*.parquet" if what == "output" else f"{what}/*.parquet")]
    assert files
    for path in files:
        path.unlink()
    said = shell.runs(f"semel find events {ids(3, 4)[0]}", code=1).splitlines()
    assert [line for line in said if "semel could not search all of batch 1: " in line], said
    assert ("output: batch 1" in said[0]) == (what != "output"), said
    assert said[-1] == "next: semel audit events"
    assert "cannot be read" in shell.runs("semel audit events", code=1)


def test_what_no_replay_repairs_is_not_replayed(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """Where the dead letters are gone too, a replay is refused: the audit shows the batch."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), b'{"id": "x", "n": "bad"}'])
    run(ledger, spec, "r1")
    for path in [*spec.sink_path().rglob("*.parquet"), *bench.data.rglob("dead_letters/*.parquet")]:
        path.unlink(missing_ok=True)
    said = shell.runs("semel audit events", code=1)
    assert said.splitlines()[-1] == "next: semel show 1", said
