"""A refusal lasts until a plan finds its part right, whatever interval that plan is of."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import sql
from fixtures.batches.workbench import Workbench
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon

DAY = datetime(2025, 11, 3, tzinfo=UTC)


def spec_of(bench: Workbench, kind: str, *more: str) -> Spec:
    source = {
        "path": f"in/*.{kind}", "format": kind, "select": "interval", "on_refused": "warn",
        "interval_from": f"%Y-%m-%d.{kind}",
        "schema": dict.fromkeys(("id", *more), "string"),
    }  # fmt: skip
    return bench.spec(source=source)


def write(bench: Workbench, kind: str, number: int, *columns: str) -> None:
    path = bench.data / "in" / f"{DAY + timedelta(days=number):%F}.{kind}"
    row = {column: [f"{column}{number}"] for column in columns}
    if kind == "parquet":
        pq.write_table(pa.table(row), path)
    else:
        path.write_text("".join(",".join(line) + "\n" for line in (row, *zip(*row.values()))))


# Attacks P31.
@pytest.mark.parametrize("before", ["known", "unknown"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_another_days_plan_forgets_no_refusal(
    bench: Workbench, ledger: Ledger, kind: str, before: str
) -> None:
    """A file whose columns are not the declared ones is opened by each plan that knows it, or that
    looks for a file that is gone: it stays refused, and fails no other day. Once it is right, the
    next plan of any day says so.
    """
    spec = spec_of(bench, kind)
    if before == "known":
        write(bench, kind, 0, "id")
    write(bench, kind, 9, "id")
    for number in (0, 9):
        key, start = f"first{number}", DAY + timedelta(days=number)
        if batch := plan(ledger, spec, key, (start, start + timedelta(days=1))).batch:
            abandon(ledger, batch.batch_id, "a test gives it up")
    spec = spec_of(bench, kind, "n")
    write(bench, kind, 0, "id")

    def refused(number: int) -> list[str]:
        start = DAY + timedelta(days=number)
        plan(ledger, spec, f"r{number}", (start, start + timedelta(days=1)))
        return [one["name"][-len("01.csv"):] for one in sql(
            ledger, "SELECT name FROM semel.refusal WHERE reason IN ('header', 'schema')")]

    name = f"{DAY:%F}.{kind}"[-len("01.csv"):]
    assert refused(0) == [name]
    (bench.data / "in" / f"{DAY + timedelta(days=9):%F}.{kind}").unlink()
    assert refused(1) == [name]
    assert refused(2) == [name]
    write(bench, kind, 0, "id", "n")
    if before == "known":
        assert refused(3) == []
    else:
        refused(0)
        assert refused(3) == []
