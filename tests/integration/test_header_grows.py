"""Columns that come and go: files without a column, and a column with other names, from the refusal
to the audit."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from semel import pipeline
from semel.audit import audit
from semel.cli import main
from semel.errors import SemelError, SourceError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.repair.accept import accept_columns
from semel.reports.gaps import gaps
from semel.runs import replay
from semel.runs.run import run_batch

SCHEMA = {"id": "bigint", "at": "timestamp", "page": "string"}
DEVICE = {"schema": SCHEMA | {"device": "string"}, "columns": {"device": {"optional": True}}}


def day(number: int, *more: str, at: str = "at") -> list[dict[str, Any]]:
    """Three records of a day, with the columns `more` besides."""
    return [
        {"id": 10 * number + k, at: datetime(2026, 11, number, k, tzinfo=UTC), "page": f"p{k}"}
        | dict.fromkeys(more, f"v{k}")
        for k in range(3)
    ]


def put_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    head = ",".join(rows[0])
    lines = (",".join(str(value) for value in row.values()) for row in rows)
    path.with_suffix(".csv").write_text("\n".join([head, *lines, ""]))


def put_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"), row_group_size=2)


def put_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = (json.dumps(row, default=str) for row in rows)
    path.with_suffix(".jsonl").write_text("\n".join([*lines, ""]))


PUT: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "csv": put_csv, "parquet": put_parquet, "jsonl": put_jsonl
}  # fmt: skip


class Clicks:
    """A pipeline over a file a day."""

    def __init__(self, bench: Workbench, ledger: Ledger, form: str) -> None:
        self.bench, self.ledger, self.form = bench, ledger, form

    def spec(self, **source: Any) -> Spec:
        """Its declaration, with these keys of the source in place of the first."""
        keys = {"path": f"in/clicks-*.{self.form}", "format": self.form, "schema": SCHEMA}
        by_day = {
            "select": "interval", "interval_from": f"clicks-%Y-%m-%d.{self.form}",
            "on_refused": "fail",
        }
        return self.bench.spec("clicks", source=keys | by_day | source)

    def put(self, number: int, rows: list[dict[str, Any]]) -> None:
        PUT[self.form](self.bench.data / "in" / f"clicks-2026-11-{number:02d}", rows)

    def run(self, spec: Spec, number: int) -> None:
        between = datetime(2026, 11, number, tzinfo=UTC), datetime(2026, 11, number + 1, tzinfo=UTC)
        run_batch(self.ledger, spec, f"day {number}", LocalEngine(), between, log=quiet)

    def rows(self, spec: Spec) -> list[dict[str, Any]]:
        """The output as a reader sees it, once the audit has passed."""
        settled(spec)
        found = dataset(spec.sink_path()).to_table().to_pylist()
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture(params=["csv", "parquet"])
def clicks(request: pytest.FixtureRequest, bench: Workbench, ledger: Ledger) -> Clicks:
    return Clicks(bench, ledger, request.param)


# Attacks P14, P23.
def test_a_header_that_grows(clicks: Clicks) -> None:
    """Day 8 has one column more. The schema is corrected as the message says, and days 1 to 7 are
    replayed: the new column is null in them, each record is there once, and the audit passes.
    """
    spec = clicks.spec()
    for number in range(1, 8):
        clicks.put(number, day(number))
        clicks.run(spec, number)
    clicks.put(8, day(8, "device"))
    if clicks.form == "csv":  # Parquet has more columns than are declared, and all is read.
        with pytest.raises(TerminalError, match=r"device: \{optional: true\}") as refused:
            clicks.run(spec, 8)
        assert "the schema does not name 'device'" in str(refused.value)
    # 1. The schema without the rest of the advice: earlier days cannot be read by it.
    narrow = clicks.spec(schema=DEVICE["schema"])
    looked = replay.look(clicks.ledger, narrow, 1, "")
    assert isinstance(looked.why, SourceError)
    assert "Declare `columns: {device: {optional: true}}` in source" in str(looked.why)
    # 2. As advised.
    spec = clicks.spec(**DEVICE)
    accept_columns(clicks.ledger, spec)
    assert [replay.look(clicks.ledger, spec, root, "").why for root in range(1, 8)] == [None] * 7
    for root in range(1, 8):
        replay.run(clicks.ledger, spec, "again", root, LocalEngine(), log=quiet)
    clicks.run(spec, 8)
    expected = [row | {"device": row.get("device")} for n in range(1, 8) for row in day(n)]
    assert clicks.rows(spec) == [*expected, *day(8, "device")]


@pytest.mark.parametrize("clicks", ["csv", "parquet", "jsonl"], indirect=True)
def test_a_column_with_other_names(clicks: Clicks) -> None:
    """Files of all names of a column, and batches of before and after, are one output."""
    before = clicks.spec()
    clicks.put(1, day(1))
    clicks.run(before, 1)
    spec = clicks.spec(columns={"at": {"names": ["clicked_at", "t"]}})
    clicks.put(2, day(2, at="clicked_at"))
    clicks.put(3, day(3, at="t"))
    for number in (2, 3):
        clicks.run(spec, number)
    replay.run(clicks.ledger, spec, "again", 1, LocalEngine(), log=quiet)
    assert clicks.rows(spec) == [*day(1), *day(2), *day(3)]


def test_a_file_with_two_names_of_a_column(clicks: Clicks) -> None:
    """It is refused alone, and both names are in the message."""
    spec = clicks.spec(columns={"at": {"names": ["clicked_at"]}}, on_refused="warn")
    clicks.put(1, [row | {"clicked_at": row["at"]} for row in day(1)])
    clicks.run(spec, 1)
    (refusal,) = gaps(clicks.ledger, spec).refusals
    assert "column 'at' is there twice, as 'at' and 'clicked_at'" in refusal.detail
    assert "declare" not in refusal.detail.lower()


def test_a_record_with_two_names_of_a_column(bench: Workbench, ledger: Ledger) -> None:
    """It is a dead letter that names both; null counts as missing; the audit agrees."""
    schema = {"id": "bigint", "at": "timestamp", "fee": "decimal(6,2)", "tags": "array<string>",
              "any": "json", "labels": "map<string, int>"}  # fmt: skip
    other = {name: {"names": [f"{name}_2"]} for name in schema if name != "id"}
    source = {"schema": schema, "columns": other | {"at": {"names": ["at_2", "at_3"]}}}
    when, values = "2026-11-01T00:00:00Z", {"fee": 1.5, "tags": ["a"], "any": 1, "labels": {"a": 1}}
    good: list[dict[str, Any]] = [
        {"at_2": when}, {"at": None, "at_3": when}, {"at": when, "at_2": None}, {}, {"at": when},
        values | {"at": when}, {f"{name}_2": value for name, value in values.items()},
    ]  # fmt: skip
    bad = [{"at": when, "at_2": when}, {"at_2": when, "at_3": when}, {"at_2": 7}]
    bad += [{name: value, f"{name}_2": value} for name, value in values.items()]
    spec = bench.spec(source=source, record_id=["id"])
    records = [{"id": k} | record for k, record in enumerate([*good, *bad])]
    bench.write("in/a.jsonl", [*records, b'{"id": 90, "at_2": null, "at_2": null}'])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["id"] for row in found.rows] == [*range(len(good))]
    assert [row["fee"] is None for row in found.rows] == [True] * 5 + [False] * 2
    assert found.reasons == {"duplicate_key": len(bad), "type_mismatch": 1}


@pytest.mark.parametrize("unknown", ["ignore", "keep", "quarantine"])
def test_keys_beside_another_name(bench: Workbench, ledger: Ledger, unknown: str) -> None:
    """Another name of a column is no key that the schema does not name."""
    source = {"schema": SCHEMA, "columns": {"at": {"names": ["t"]}}, "unknown": unknown}
    spec = bench.spec(source=source)
    bench.write("in/a.jsonl", [{"id": 1, "t": "2026-11-01"}, {"id": 2, "t": None, "x": 1}])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.reasons == ({"unknown_key": 1} if unknown == "quarantine" else {})
    if unknown == "keep":
        assert [row["_semel_rest"] for row in found.rows] == [None, '{"x":1}']
