"""Columns of every kind through Spark: what a transform leaves alone comes out as it was read."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
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


VALUES: dict[str, tuple[str, str, Any, Any]] = {
    "yes": ("boolean", "true", True, pa.bool_()),
    "tiny": ("tinyint", "-128", -128, pa.int8()),
    "small": ("smallint", "-32768", -32768, pa.int16()),
    "whole": ("int", "-2147483648", -(2**31), pa.int32()),
    "large": ("bigint", "9223372036854775807", 2**63 - 1, pa.int64()),
    "single": ("float", "0.1", float(np.float32(0.1)), pa.float32()),
    "double": ("double", "-Infinity", float("-inf"), pa.float64()),
    "number": ("decimal(38,18)", "-0.000000000000000001", Decimal("-1E-18"),
               pa.decimal128(38, 18)),
    "text": ("string", "é", "é", pa.string()),
    "bytes": ("binary", "é", "é".encode(), pa.binary()),
    "day": ("date", "2024-02-29", date(2024, 2, 29), pa.date32()),
    "moment": ("timestamp", "2024-01-01 01:00:00.123456+01:00", MOMENT,
               pa.timestamp("us", tz="UTC")),
    "local": ("timestamp_ntz", "2024-01-01 00:00:00.123456", MOMENT.replace(tzinfo=None),
              pa.timestamp("us")),
}  # fmt: skip
"""By column: a type of Spark, a text that it is cast from, its value and type in the output."""

TYPED = """
from pyspark.sql import functions as F

TEXTS = {texts}

def typed(frame):
    cells = [F.lit(text).cast(kind).alias(name) for name, (kind, text) in TEXTS.items()]
    lists = [F.array(cell).alias(name + "s") for name, cell in zip(TEXTS, cells)]
    return frame.select("id", *cells, *lists, F.struct(*cells).alias("both"))
"""


@pytest.mark.parametrize("transform", ["typed.sql", "typed_function:typed"])
def test_spark_writes_each_of_its_types(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, transform: str
) -> None:
    """A value of each of Spark's types, alone, in a list and in a struct, from a query and from a
    function: the output has the value and the type, whatever the version of Spark.
    """
    texts = {name: (kind, text) for name, (kind, text, *_) in VALUES.items()}
    (bench.transforms / "typed_function.py").write_text(TYPED.format(texts=texts))
    cells = [f"CAST('{text}' AS {kind}) AS {name}" for name, (kind, text) in texts.items()]
    lists = [f"array({name}) AS {name}s" for name in texts]
    (bench.transforms / "typed.sql").write_text(
        f"WITH cells AS (SELECT id, {', '.join(cells)} FROM records)\n"
        f"SELECT *, {', '.join(lists)}, struct({', '.join(texts)}) AS both FROM cells"
    )
    spec = bench.spec(transforms=[transform])
    bench.write("in/a.jsonl", [b'{"id":"0"}'])
    run(ledger, spec, "r1", engine=spark_engine)
    settled(spec)
    output = dataset(spec.sink_path()).to_table()
    (row,) = output.to_pylist()
    for name, (_, _, value, kind) in VALUES.items():
        assert (row[name], row[f"{name}s"], row["both"][name]) == (value, [value], value), name
        assert output.schema.field(name).type == kind, name
        assert output.schema.field(f"{name}s").type.value_type == kind, name
