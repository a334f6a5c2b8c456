"""What a pipeline's ids are made of cannot change in silence."""

from pathlib import Path

import pytest

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.repair.accept import accept_columns


def visits(bench: Workbench, name: str, first: int, last: int) -> Path:
    """Records whose two times lie a day apart."""
    return bench.write(
        f"in/{name}.jsonl",
        [
            {"id": f"v{n:03d}", "at": "2026-01-02T00:00:00Z", "seen": "2026-01-03T00:00:00Z"}
            for n in range(first, last)
        ],
    )


def by_time(bench: Workbench, **changes: object) -> Spec:
    schema = {"id": "string", "at": "timestamp", "seen": "timestamp"}
    dedup = {"scope": "bucket", "horizon": "3650 days"}
    return bench.spec(
        **{"source": {"schema": schema}, "record_time": "at", "dedup": dedup, **changes}
    )


def numbers(bench: Workbench, name: str, first: int, last: int) -> None:
    rows = "".join(f"{n},x\n" for n in range(first, last))
    (bench.data / "in" / f"{name}.csv").write_text(f"id,what\n{rows}")


def by_number(bench: Workbench, kind: str = "bigint", **changes: object) -> Spec:
    source = {"path": "in/*.csv", "format": "csv", "schema": {"id": kind, "what": "string"}}
    return bench.spec(source=source, **changes)


# Attacks P12.
def test_record_time_cannot_change(bench: Workbench, ledger: Ledger) -> None:
    """In scope bucket it is part of each id; in scope horizon it is of no matter."""
    visits(bench, "a", 0, 100)
    run(ledger, by_time(bench), "r1")
    visits(bench, "again", 0, 100)
    with pytest.raises(TerminalError, match='record_time cannot change from "at" to "seen".*Put'):
        run(ledger, by_time(bench, record_time="seen"), "r2")
    spec = by_time(bench)
    run(ledger, spec, "r2")
    assert settled(spec).counts.survivors == 100


# Attacks P12.
def test_an_id_column_keeps_its_type(bench: Workbench, ledger: Ledger) -> None:
    """Not even new columns of the output that a person accepts let all ids pass as new."""
    numbers(bench, "a", 0, 100)
    run(ledger, by_number(bench), "r1")
    numbers(bench, "again", 0, 100)
    changed = by_number(bench, "string")
    accept_columns(ledger, changed)
    with pytest.raises(TerminalError, match="type of 'id' .* cannot change from integer to text"):
        run(ledger, changed, "r2")
    spec = by_number(bench, "int")  # What hashes alike may change.
    run(ledger, spec, "r2")
    account = settled(spec)
    assert (account.counts.survivors, account.counts.duplicates_catalog) == (100, 100)
