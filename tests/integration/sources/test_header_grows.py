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

from fixtures.batches.account import quiet, run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sources import Objects, Upstream
from fixtures.kafka.registry import EVENT, FIELDS, AvroTopic, record, typed, written
from fixtures.kafka.topics import Topic
from fixtures.objects.s3 import S3
from fixtures.postgres.server import database
from fixtures.spark.local import LocalEngine
from semel.cli import main
from semel.errors import SourceError, SpecError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.repair.accept import accept_columns
from semel.reports.gaps import gaps
from semel.runs import replay
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

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


# Attacks P30, RP10.
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
    looked = replay.check_root(clicks.ledger, narrow, 1, "")
    assert isinstance(looked.why, SourceError)
    assert "Declare `columns: {device: {optional: true}}` in source" in str(looked.why)
    # 2. As advised.
    spec = clicks.spec(**DEVICE)
    accept_columns(clicks.ledger, spec)
    assert [replay.check_root(clicks.ledger, spec, root, "").why for root in range(1, 8)] == [None] * 7
    for root in range(1, 8):
        replay.run(clicks.ledger, spec, "again", root, LocalEngine(), log=quiet)
    clicks.run(spec, 8)
    expected = [row | {"device": row.get("device")} for n in range(1, 8) for row in day(n)]
    assert clicks.rows(spec) == [*expected, *day(8, "device")]


# Attacks P30.
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


# Attacks P30.
def test_a_file_with_two_names_of_a_column(clicks: Clicks) -> None:
    """It is refused alone, and both names are in the message."""
    spec = clicks.spec(columns={"at": {"names": ["clicked_at"]}}, on_refused="warn")
    clicks.put(1, [row | {"clicked_at": row["at"]} for row in day(1)])
    clicks.run(spec, 1)
    (refusal,) = gaps(clicks.ledger, spec).refusals
    assert "column 'at' is there twice, as 'at' and 'clicked_at'" in refusal.detail
    assert "declare" not in refusal.detail.lower()


# Attacks P30.
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


def test_the_command_looks_at_headers(
    clicks: Clicks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`semel replay --dry-run` says no before anything is planned, and names what to declare; so does
    the replay; once that is declared, both work.
    """
    monkeypatch.setenv("SEMEL_LEDGER_DSN", clicks.ledger.dsn)
    spec = clicks.spec()
    for number in (1, 2):
        clicks.put(number, day(number))
        clicks.run(spec, number)
    clicks.spec(schema=DEVICE["schema"])
    for words in (["--dry-run"], []):
        assert main(["replay", "clicks", "--batches", "1..2", *words]) == 1
        told = "".join(capsys.readouterr())
        assert "Declare `columns: {device: {optional: true}}` in source" in " ".join(told.split())
    assert [row["n"] for row in sql(clicks.ledger, "SELECT count(*) AS n FROM semel.batch")] == [2]
    clicks.spec(**DEVICE)
    assert main(["replay", "clicks", "--batches", "1..2", "--dry-run"]) == 0


def test_a_column_that_a_file_gets_while_it_is_read(bench: Workbench, ledger: Ledger) -> None:
    """A file that was read in part goes on after the schema has got an optional column."""
    source = {"path": "in/*.csv", "format": "csv", "schema": SCHEMA}
    spec = bench.spec(source=source)
    path = bench.data / "in" / "a.csv"
    path.write_text("id,at,page\n1,2026-11-01,a\n")
    run(ledger, spec, "r1")
    spec = bench.spec(source=source | DEVICE)
    accept_columns(ledger, spec)
    with path.open("a") as file:
        file.write("2,2026-11-02,b\n")
    (bench.data / "in" / "b.csv").write_text("device,page,at,id\nphone,c,2026-11-03,3\n")
    assert run(ledger, spec, "r2").plan.refusals == ()
    rows = sorted(settled(spec).rows, key=lambda row: row["id"])
    assert [(row["id"], row.get("device")) for row in rows] == [(1, None), (2, None), (3, "phone")]


def test_all_columns_of_a_file_of_parquet_are_missing(bench: Workbench, ledger: Ledger) -> None:
    """Its rows are records all the same."""
    kinds = {"n": "bigint", "l": "array<int>", "m": "map<string, int>", "s": "struct<x: date>"}
    optional = {name: {"optional": True} for name in kinds}
    pq.write_table(pa.table({"other": [1, 2, 3]}), bench.data / "in" / "a.parquet")
    source = {"path": "in/*.parquet", "format": "parquet", "schema": kinds, "columns": optional}
    spec = bench.spec(source=source, record_id=None)
    run(ledger, spec, "r1")
    assert settled(spec).rows == [dict.fromkeys(kinds)] * 3


def test_times_of_other_names_in_parquet(bench: Workbench, ledger: Ledger) -> None:
    """INT96, nested values and names that differ by case alone are read under another name too."""
    when = pa.array([datetime(2026, 11, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    table = pa.table({"AT": when, "Tags": [["a"], None], "iD": [1, 2], "id2": ["x", "y"]})
    pq.write_table(
        table, bench.data / "in" / "a.parquet", use_deprecated_int96_timestamps=True
    )
    kinds = {"id": "bigint", "at": "timestamp", "tags": "array<string>", "ID2": "string"}
    names = {"id": "iD", "at": "AT", "tags": "Tags", "ID2": "id2"}
    rules = {column: {"names": [name]} for column, name in names.items()}
    source = {"path": "in/*.parquet", "format": "parquet", "schema": kinds, "columns": rules}
    spec = bench.spec(source=source)
    run(ledger, spec, "r1")
    rows = sorted(settled(spec).rows, key=lambda row: row["id"])
    assert [[*row.values()] for row in rows] == [
        [1, datetime(2026, 11, 1, tzinfo=UTC), ["a"], "x"], [2, None, None, "y"]
    ]


# Attacks P30, RP10.
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_objects_that_get_a_column(bench: Workbench, ledger: Ledger, s3: S3, form: str) -> None:
    """As of files: refused, declared, read; and a replay looks at each object first."""
    place = Objects(bench, s3, form)
    put = {"csv": put_csv, "parquet": put_parquet}[form]

    def add(number: int, *more: str, at: str = "at") -> None:
        path = bench.folder / f"{number}.{form}"
        put(path, day(number, *more, at=at))
        place.put(path.name, path.read_bytes())

    spec = place.spec(name="clicks", source={"schema": SCHEMA})
    add(1)
    run(ledger, spec, "r1")
    names = {"at": {"names": ["t"]}}
    wide = {"schema": DEVICE["schema"], "columns": names}
    spec = place.spec(name="clicks", source=wide)
    assert "device: {optional: true}" in str(replay.check_root(ledger, spec, 1, "").why)
    spec = place.spec(name="clicks", source=wide | {"columns": names | DEVICE["columns"]})
    accept_columns(ledger, spec)
    add(2, "device", at="t")
    add(3, at="t")
    run(ledger, spec, "r2")
    replay.run(ledger, spec, "again", 1, LocalEngine(), log=quiet)
    rows = sorted(settled(spec).rows, key=lambda row: row["id"])
    expected = [*day(1), *day(2, "device"), *day(3)]
    assert rows == [row | {"device": row.get("device")} for row in expected]


# Attacks P30, RP10.
def test_a_pipeline_that_gets_a_column(
    bench: Workbench, ledger: Ledger, postgres: str, template: str
) -> None:
    """Batches of the pipeline that is read, from before and after it had a column and renamed one."""
    with database(postgres, template) as dsn, Ledger(dsn) as other:
        up = Upstream(bench, other)
        up.append(0, 5)
        schema = {"id": "string", "n": "bigint", "at": "timestamp"}
        spec = up.spec()
        run(ledger, spec, "r1")
        wide = {"schema": {"id": "string", "m": "bigint", "at": "timestamp", "x": "string"}}
        up.declared = up.files.spec(
            name="up", source=wide | {"columns": {"m": {"names": ["n"]}}},
            sink={"partition_by": ["at"]},
        )  # fmt: skip
        accept_columns(other, up.declared)
        up.append(5, 9)
        (refused,) = run(ledger, spec, "r2").plan.refusals
        assert "column 'n' is not in the output. Declare `columns: {n: " in refused.detail
        narrow = up.spec(source={"schema": schema | {"x": "string"}})
        assert "x: {optional: true}" in str(replay.check_root(ledger, narrow, 1, "").why)
        rules = {"n": {"names": ["m"]}, "x": {"optional": True}, "day": {"names": ["at"]}}
        schema = {"id": "string", "n": "bigint", "day": "timestamp", "x": "string"}
        spec = up.spec(source={"schema": schema, "columns": rules})
        accept_columns(ledger, spec)
        run(ledger, spec, "r3")
        replay.run(ledger, spec, "again", 1, LocalEngine(), log=quiet)
        rows = sorted(settled(spec).rows, key=lambda row: row["id"])
        assert [(row["id"], row["n"], row["x"]) for row in rows] == [
            (f"e{i:06d}", i, None) for i in range(9)
        ]
        assert {row["day"] for row in rows} == {datetime(2026, 1, 1, tzinfo=UTC)}


# Attacks P30.
def test_values_of_avro_with_another_name(avro: AvroTopic, ledger: Ledger) -> None:
    """A field that was renamed in the registry's next version; a value with both is set aside."""
    old, new = EVENT, record(("id", "string"), ("count", "long"), FIELDS[2], name="Newer")
    both = record(*FIELDS, ("count", ["null", "long"]), name="Both")
    numbers = [avro.register(s, name=s["name"]) for s in (old, new, both)]
    rows = [typed(event) for event in events(0, 6)]
    renamed = [{"count" if k == "n" else k: v for k, v in row.items()} for row in rows]
    avro.put(written(old, row, numbers[0]) for row in rows[:2])
    avro.put(written(new, row, numbers[1]) for row in renamed[2:4])
    avro.put([written(both, rows[4] | {"count": None}, numbers[2])])
    avro.put([written(both, rows[5] | {"count": 7}, numbers[2])])
    rules = {"n": {"names": ["count"]}, "x": {"optional": True}}
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "x": "string"}
    spec = avro.spec(source={"schema": schema, "columns": rules}, record_id=["id"])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert sorted((row["id"], row["n"], row["x"]) for row in found.rows) == [
        (f"e{i:06d}", i, None) for i in range(5)
    ]
    assert found.reasons == {"duplicate_key": 1}


@pytest.mark.parametrize("value", ["csv", "bytes"])
def test_a_message_that_names_no_columns(topic: Topic, value: str) -> None:
    """Rules for columns are refused there, as for a column that a key fills."""
    columns = {"v": {"optional": True}, "k": {"names": ["key"]}}
    source = {
        "value": value, "schema": {"v": "binary", "k": "binary"}, "key": "k", "columns": columns
    }
    with pytest.raises(SpecError) as refused:
        topic.spec(source=source)
    assert f"columns.v: does not apply to value: {value}" in str(refused.value)
    assert "columns.k: does not apply: key fills the column" in str(refused.value)


def test_transforms_see_null_of_the_declared_type(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A column that the file lacks has its type in Spark, and may be computed with."""
    (bench.data / "in" / "a.csv").write_text("id,at,page\n1,2026-11-01,a\n")
    query = "SELECT id, typeof(price) AS kind, coalesce(price, 0.5BD) AS price FROM records"
    (bench.transforms / "q.sql").write_text(query)
    schema = SCHEMA | {"price": "decimal(6,2)"}
    source = {"path": "in/*.csv", "format": "csv", "schema": schema}
    spec = bench.spec(
        source=source | {"columns": {"price": {"optional": True}}}, transforms=["q.sql"]
    )
    run(ledger, spec, "r1", engine=spark_engine)
    (row,) = settled(spec).rows
    assert (row["kind"], str(row["price"])) == ("decimal(6,2)", "0.50")
