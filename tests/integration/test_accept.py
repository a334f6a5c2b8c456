"""A person's word on what plan refused, and what a plan does until it is given."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from fix_account import first_batch, ids, lines, refusals, run, settled
from fix_pipelines import Workbench, events
from fix_rotation import append, position
from semel.abandon import abandon
from semel.accept import accept_file
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.plan import plan

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["absolute", "data", "working", "gaps"])
def test_accept_takes_the_path_as_it_is_written(
    bench: Workbench, ledger: Ledger, name: str, monkeypatch
) -> None:
    """Absolute, below the data folder, below the working folder, or as `gaps` printed it."""
    from semel.gaps import gaps

    spec = first_batch(bench, ledger, events(0, 5))
    path = bench.data / "in" / "a.jsonl"
    path.write_bytes(lines(10, 20))
    (refusal,) = gaps(ledger, spec).refusals
    monkeypatch.chdir(path.parent.parent.parent)
    given = {
        "absolute": str(path), "data": "in/a.jsonl", "working": "data/in/a.jsonl",
        "gaps": refusal.name,
    }  # fmt: skip
    accept_file(ledger, spec, given[name], same=False)
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}


# Attacks P10.
def test_refused_files_make_an_interval_fail(bench: Workbench, ledger: Ledger) -> None:
    """An interval without a file that was refused would be green and not complete: it fails (P10).

    A refused file of another interval does not count.
    """
    spec = position(
        bench, "in/*.jsonl", source={"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
    )
    path = bench.write("in/2026-01-01.jsonl", events(0, 10))
    bench.write("in/2026-01-02.jsonl", events(10, 20))

    def go(day: int, request: str) -> object:
        interval = (DAY + timedelta(days=day), DAY + timedelta(days=day + 1))
        return run(ledger, spec, request, interval)

    go(0, "r0")
    path.write_bytes(lines(0, 3))
    go(1, "r1")
    with pytest.raises(SourceError, match=r"2026-01-01\.jsonl.*changed.*semel accept events "):
        go(0, "r0")
    assert refusals(ledger) == {"2026-01-01.jsonl": "changed"}


def test_what_was_released_is_taken_also_after_a_plan_that_failed(
    bench: Workbench, ledger: Ledger
) -> None:
    """A batch was abandoned behind which another one had read on: its records are not forgotten."""
    spec = position(bench, "in/*.jsonl", source={"on_refused": "fail"})
    path = bench.write("in/a.jsonl", events(0, 5))
    first = plan(ledger, spec, "r1").batch
    append(path, 5, 10)
    run(ledger, spec, "r2")
    abandon(ledger, first.batch_id, "given up by the test")
    pipe = bench.data / "in" / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(SourceError, match="would not be complete"):
        run(ledger, spec, "r3")
    pipe.unlink()
    run(ledger, spec, "r4")
    assert settled(spec).ids == ids(0, 10)
