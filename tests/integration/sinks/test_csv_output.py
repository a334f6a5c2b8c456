"""The CSV sink through all verbs: types, hostile text, folders, transforms; the audit proves it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from fixtures.batches.account import quiet, settled
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.audit import audit
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.reports.find import find
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine
from semel.storage import checksum

SCHEMA = {
    "id": "string", "text": "string", "p": "json", "i": "bigint", "f": "double", "g": "float",
    "b": "boolean", "at": "timestamp", "day": "date", "money": "decimal(6,2)", "raw": "binary",
}  # fmt: skip
FULL = {
    "id": "full", "text": 'a "b", \n\r\nc', "p": {"x": ["\n", 1.50]}, "i": -(2**63), "f": 1e300,
    "g": 0.1, "b": True, "at": "2024-01-01T00:00:00.123456Z", "day": "0001-01-01", "money": 1.5,
    "raw": "AAH/",
}  # fmt: skip
BARE = {"id": "bare"}
EMPTY = {"id": "", "text": "", "p": "", "raw": ""}
READ = {
    "full": {
        "id": "full", "text": 'a "b", \n\r\nc', "p": '{"x": ["\\n", 1.5]}', "i": -(2**63),
        "f": 1e300, "b": True, "at": datetime(2024, 1, 1, 0, 0, 0, 123456, UTC),
        "day": date(1, 1, 1), "money": Decimal("1.50"), "raw": "AAH/",
    },
    "bare": dict.fromkeys(SCHEMA) | {"id": "bare"},
    "": dict.fromkeys(SCHEMA) | {"id": "", "text": "", "p": '""', "raw": ""},
}  # fmt: skip


def csv_spec(bench: Workbench, **changes: object) -> Spec:
    changes = {"source": {"schema": SCHEMA}, **changes}
    changes["sink"] = {"format": "csv", **changes.get("sink", {})}
    return bench.spec(**changes)


@pytest.mark.parametrize(
    ("keys", "record_id"),
    [([], ["id"]), (["text"], None), (["day", "i"], ["id"]),
     (["day", "i"], ["day", "money", "at"])],
)  # fmt: skip
def test_every_type(
    bench: Workbench, ledger: Ledger, engine: LocalEngine, keys: list[str], record_id: list
) -> None:
    """What goes in comes out with its type and its nulls, in folders too, and no repeat of it."""
    spec = csv_spec(bench, record_id=record_id, sink={"partition_by": keys})
    records = [FULL, EMPTY, BARE] if record_id != ["day", "money", "at"] else [FULL]
    bench.write("in/a.jsonl", records)
    run_batch(ledger, spec, "r1", engine, log=quiet)
    if record_id:
        bench.write("in/a.jsonl", records, mode="ab")
    run_batch(ledger, spec, "r2", engine, log=quiet)
    rows = {row["id"]: row for row in dataset(spec.sink_path()).to_table().to_pylist()}
    for record in records:
        found = rows.pop(record["id"])
        assert found.pop("g") == pytest.approx(record["g"]) if "g" in record else not found.pop("g")
        wanted = {k: v for k, v in READ[record["id"]].items() if k != "g"}
        if "text" in keys:  # The folder of null has the empty text, too.
            wanted["text"] = wanted["text"] or None
        assert found == wanted
    assert not rows
    verdict = audit(spec)
    assert verdict.ok, [c.offenders for c in verdict.checks if not c.ok]
    if record_id:
        values = {"id": "full", "day": "0001-01-01", "money": "1.5", "at": FULL["at"]}
        places = find(spec, [values[name] for name in record_id]).places
        assert [p.what for p in places] == ["output", "duplicate_in_catalog"]


def test_one_column_of_nulls(bench: Workbench, ledger: Ledger, engine: LocalEngine) -> None:
    """A row that is an empty line is a row for the audit and for semel's reader."""
    spec = csv_spec(bench, source={"schema": {"t": "string"}}, record_id=None)
    bench.write("in/a.jsonl", [{"t": None}, {"t": ""}, {"t": "a\n\nb"}, {"t": None}])
    run_batch(ledger, spec, "r1", engine, log=quiet)
    table = dataset(spec.sink_path()).to_table()
    assert table.column("t").to_pylist() == [None, "", "a\n\nb", None]
    assert audit(spec).ok


def test_the_audit_tells_null_from_the_empty_text(
    bench: Workbench, ledger: Ledger, engine: LocalEngine
) -> None:
    """A null that became the empty text is found, in a file that its marker seals."""
    spec = csv_spec(bench, record_id=None)
    bench.write("in/a.jsonl", [FULL, EMPTY, BARE])
    run_batch(ledger, spec, "r1", engine, log=quiet)
    assert audit(spec).ok
    (path,) = layout.markers(layout.archive_folder(spec)).iterdir()
    content = json.loads(path.read_text())
    (entry,) = [file for file in content["files"] if file["kind"] == "data"]
    data = spec.sink_path() / entry["path"]
    text = data.read_bytes()
    assert text.count(b"\nbare,,") == 1
    data.write_bytes(text.replace(b"\nbare,,", b'\nbare,"",'))
    entry.update(bytes=data.stat().st_size, checksum=checksum(data))
    path.write_text(json.dumps(content))
    broken = {check.name for check in audit(spec).checks if not check.ok}
    assert broken and broken <= {"output", "content"}


CODE = """from pyspark.sql import functions as F

def odd(frame):
    n = F.col("n")
    x = F.when(n == 0, float("nan")).when(n == 1, float("inf")).when(n == 2, float("-inf"))
    return frame.withColumn("x", x.otherwise(0.5)).withColumn("t", F.expr("string(n)"))

def nested(frame):
    return frame.withColumn("l", F.array("n"))

def years(frame):
    return frame.withColumn("y", F.expr("timestamp '9999-12-31' + interval '2' day"))
"""


def transformed(bench: Workbench, name: str) -> Spec:
    (bench.transforms / "shapes.py").write_text(CODE)
    return bench.spec(name, transforms=[f"shapes:{name}"], sink={"format": "csv"})


@pytest.mark.rest
def test_what_spark_makes(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, spark: SparkSession
) -> None:
    """NaN and infinities are held, for semel's reader and for Spark's with the page's options."""
    bench.write("in/a.jsonl", [{"id": f"{n}", "n": n, "at": f"2024-01-0{n + 1}"} for n in range(4)])
    spec = transformed(bench, "odd")
    run_batch(ledger, spec, "r1", spark_engine, log=quiet)
    settled(spec)
    rows = dataset(spec.sink_path()).to_table().sort_by("id").to_pylist()
    assert [repr(row["x"]) for row in rows] == ["nan", "inf", "-inf", "0.5"]
    reader = spark.read.schema("id string, n bigint, at timestamp, x double, t string")
    options = {"header": True, "multiLine": True, "quote": '"', "escape": '"', "lineSep": "\n"}
    frame = reader.options(**options).csv(str(spec.sink_path() / "*.csv"))
    found = frame.orderBy("id").selectExpr("id", "x", "unix_micros(at) AS at").collect()
    assert [repr(row["x"]) for row in found] == ["nan", "inf", "-inf", "0.5"]
    assert [row["at"] for row in found] == [int(row["at"].timestamp() * 1e6) for row in rows]


# Attacks S22.
@pytest.mark.parametrize(
    ("name", "why"),
    [("nested", "'l' holds list<.*a CSV field cannot"),
     ("years", "'y' holds dates of years 10000 to 10000")],
)  # fmt: skip
def test_a_column_that_no_field_holds(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, name: str, why: str
) -> None:
    """A transform that makes one is refused at stage, by name, and nothing is there. Only Spark
    makes such columns; which each format refuses: tests/unit.
    """
    bench.write("in/a.jsonl", [{"id": "a", "n": 1}])
    spec = transformed(bench, name)
    with pytest.raises(TerminalError, match=f"column {why}"):
        run_batch(ledger, spec, "r1", spark_engine, log=quiet)
    assert not list(spec.sink_path().rglob("*.csv"))
