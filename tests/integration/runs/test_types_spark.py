"""Columns of every kind through Spark: what a transform leaves alone comes out as it was read."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench
from semel.archive.marker import markers
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.reports.find import find
from semel.spark.engine import SparkEngine

MOMENT = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
COLUMNS: dict[str, tuple[str, list[str], list, list | None]] = {
    "p": (
        "json", ['{ "x" : [1, null ] ,"x":2}', '"é\\u00e9"', "null"],
        ['{ "x" : [1, null ] ,"x":2}', '"é\\u00e9"', None], None,
    ),
    "b": ("binary", ['"AAECAw=="', '""', "null"], [b"\0\1\2\3", b"", None], ["AAECAw==", "", None]),
    "l": ("array<binary>", ['["/+8="]', "[]", "[null]"], [[b"\xff\xef"], [], [None]],
          [["/+8="], [], [None]]),
    "mi": ("map<string, int>", ['{"a":1,"b":null}', "{}", "null"], [{"a": 1, "b": None}, {}, None],
           None),
    "mt": ("map<string, timestamp>", ['{"a":"2024-01-01T00:00:00.123456789Z"}', '{"a":null}', "{}"],
           [{"a": MOMENT}, {"a": None}, {}],
           [{"a": MOMENT.isoformat()}, {"a": None}, {}]),
    "md": ("map<string, decimal(6,2)>", ['{"a":1.5,"":2}', "{}", "null"],
           [{"a": Decimal("1.50"), "": Decimal("2.00")}, {}, None],
           [{"a": "1.50", "": "2.00"}, {}, None]),
    "mb": ("map<string, binary>", ['{"a":"QQ==","b":null}', "{}", "null"],
           [{"a": b"A", "b": None}, {}, None], [{"a": "QQ==", "b": None}, {}, None]),
    "ml": ("map<string, array<int>>", ['{"a":[1,null],"b":null}', '{"a":[]}', "null"],
           [{"a": [1, None], "b": None}, {"a": []}, None], None),
    "ms": ("map<string, struct<x: bigint>>", ['{"a":{"x":1}}', '{"a":null,"b":{}}', "null"],
           [{"a": {"x": 1}}, {"a": None, "b": {"x": None}}, None], None),
}  # fmt: skip
"""By column: its type, values in the source, what Parquet holds, and JSON Lines if it differs."""

TRANSFORM = """
from pyspark.sql import functions as F

def apart(frame):
    return frame.withColumn("zone", F.get_json_object("_semel_rest", "$.zone"))
"""


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_columns_of_every_kind_pass_through_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, form: str
) -> None:
    """Spark has json as text, byte for byte, bytes as bytes and maps as maps; JSON Lines has base64
    and objects. Readers and find go on. The column of unnamed keys is one like another: a transform
    may take it apart.
    """
    (bench.transforms / "apart.py").write_text(TRANSFORM)
    schema = {"id": "string"} | {name: kind for name, (kind, *_) in COLUMNS.items()}
    source = {"schema": schema, "unknown": "keep"}
    spec = bench.spec(source=source, sink={"format": form}, transforms=["apart:apart"])
    for n, more in enumerate(('"zone":"b","n":[1],', "", '"n":2,')):
        values = ",".join(f'"{name}":{texts[n]}' for name, (_, texts, *_) in COLUMNS.items())
        bench.write("in/a.jsonl", [f'{{"id":"{n}",{more}{values}}}'.encode()], mode="ab")
    run(ledger, spec, "r1", engine=spark_engine)
    settled(spec)
    rows = sorted(rows_of(spec), key=lambda row: row["id"])
    for name, (kind, _, parquet, lines) in COLUMNS.items():
        found = [row[name] for row in rows]
        if form == "parquet" and kind.startswith("map"):
            found = [one if one is None else dict(one) for one in found]
        assert found == (lines if form == "jsonl" and lines else parquet), name
    assert [row["_semel_rest"] for row in rows] == ['{"zone":"b","n":[1]}', None, '{"n":2}']
    assert [row["zone"] for row in rows] == ["b", None, None]
    maps = {name for name, (kind, *_) in COLUMNS.items() if kind.startswith("map")}
    names = set(dataset(spec.sink_path()).to_table().column_names)
    assert names & maps == (maps if form == "parquet" else set())
    assert [place.what for place in find(spec, ["1"]).places] == ["output"]


def rows_of(spec: Spec) -> list[dict]:
    """The output's rows as its files hold them."""
    (marker,) = markers(spec.sink_path())
    rows = []
    for file in (spec.sink_path() / f.path for f in marker.files if f.kind == "data"):
        if spec.sink.format == "parquet":
            rows += pq.read_table(file).to_pylist()
        else:
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return rows


@pytest.mark.rest
def test_a_map_with_other_keys_is_no_json(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A transform's map with numbers as keys stops at a JSON Lines sink, with the column's name."""
    code = (
        "from pyspark.sql import functions as F\n\n"
        "def counted(frame):\n"
        "    return frame.withColumn('m', F.create_map(F.lit(1), F.lit(2)))\n"
    )
    (bench.transforms / "counted.py").write_text(code)
    bench.write("in/a.jsonl", [b'{"id":"0"}'])
    spec = bench.spec(sink={"format": "jsonl"}, transforms=["counted:counted"])
    with pytest.raises(TerminalError, match="column 'm' holds maps whose keys are int32"):
        run(ledger, spec, "r1", engine=spark_engine)
