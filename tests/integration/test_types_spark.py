"""Columns of every kind through Spark: what a transform leaves alone comes out as it was read."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from fix_account import run, settled
from fix_pipelines import Workbench
from semel.errors import TerminalError
from semel.find import find
from semel.ledger import Ledger
from semel.reader import dataset, markers
from semel.spark.engine import SparkEngine
from semel.spec.pipeline import Spec

TRANSFORM = "def same(frame):\n    return frame.select(*frame.columns)\n"


def through_spark(ledger: Ledger, engine: SparkEngine, spec: Spec) -> list[dict]:
    """The output's rows as its files hold them, in the order of their ids; the audit agrees."""
    run(ledger, spec, "r1", engine=engine)
    settled(spec)
    rows = []
    for marker in markers(spec.sink_path()):
        for file in (spec.sink_path() / f.path for f in marker.files if f.kind == "data"):
            if spec.sink.format == "parquet":
                rows += pq.read_table(file).to_pylist()
            else:
                rows += [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: row["id"])


def spec_of(bench: Workbench, form: str, schema: dict[str, str]) -> Spec:
    (bench.transforms / "passes.py").write_text(TRANSFORM)
    sink = {"format": form, "path": f"out/{form}"}
    return bench.spec(form, source={"schema": schema}, sink=sink, transforms=["passes:same"])


@pytest.mark.rest
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_json_and_binary_pass_through_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, form: str
) -> None:
    """Spark has a json column as text, byte for byte, and bytes as bytes; JSON Lines has base64."""
    texts = ['{ "x" : [1, null ] ,"x":2}', "1.50", '"é\\u00e9"', "null", "[]"]
    codes = ["QQ==", "AAECAw==", "/+8=", "", None]
    lines = [
        '{"id":"%d","p":%s,"b":%s,"l":[%s]}' % (n, text, json.dumps(code), json.dumps(code))
        for n, (text, code) in enumerate(zip(texts, codes, strict=True))
    ]
    bench.write("in/a.jsonl", [line.encode() for line in lines])
    schema = {"id": "string", "p": "json", "b": "binary", "l": "array<binary>"}
    rows = through_spark(ledger, spark_engine, spec_of(bench, form, schema))
    assert [row["p"] for row in rows] == [None if t == "null" else t for t in texts]
    raw = [b"A", b"\0\1\2\3", b"\xff\xef", b"", None]
    expected = raw if form == "parquet" else codes
    assert [row["b"] for row in rows] == expected
    assert [row["l"] for row in rows] == [[one] for one in expected]


@pytest.mark.rest
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_maps_pass_through_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, form: str
) -> None:
    """Spark has them as maps; Parquet too, and JSON Lines as objects. Readers and find go on."""
    kinds = {
        "i": "int", "t": "timestamp", "d": "decimal(6,2)", "b": "binary", "l": "array<int>",
        "s": "struct<x: bigint>",
    }  # fmt: skip
    maps = {
        "i": ['{"a":1,"b":null}', "{}", "null"],
        "t": ['{"a":"2024-01-01T00:00:00.123456789Z"}', '{"a":null}', "{}"],
        "d": ['{"a":1.5,"":2}', "{}", "null"],
        "b": ['{"a":"QQ==","b":null}', "{}", "null"],
        "l": ['{"a":[1,null],"b":null}', '{"a":[]}', "null"],
        "s": ['{"a":{"x":1}}', '{"a":null,"b":{}}', "null"],
    }
    for n in range(3):
        values = ",".join(f'"{name}":{found[n]}' for name, found in maps.items())
        bench.write("in/a.jsonl", [f'{{"id":"{n}",{values}}}'.encode()], mode="ab")
    schema = {"id": "string"} | {name: f"map<string, {kind}>" for name, kind in kinds.items()}
    spec = spec_of(bench, form, schema)
    rows = through_spark(ledger, spark_engine, spec)
    values = [{name: row[name] and dict(row[name]) for name in maps} for row in rows]
    moment = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    if form == "jsonl":
        assert values[0]["b"] == {"a": "QQ==", "b": None}
        assert values[0]["d"] == {"a": "1.50", "": "2.00"}
        assert datetime.fromisoformat(values[0]["t"]["a"]) == moment
        assert [row["i"] for row in rows] == [{"a": 1, "b": None}, {}, None]
        assert dataset(spec.sink_path()).to_table().column_names == ["id"]
    else:
        assert values[0]["b"] == {"a": b"A", "b": None} and values[0]["t"] == {"a": moment}
        assert values[0]["d"] == {"a": Decimal("1.50"), "": Decimal("2.00")}
        assert [row["i"] for row in rows] == [[("a", 1), ("b", None)], [], None]
        assert set(dataset(spec.sink_path()).to_table().column_names) == set(schema)
    assert [row["l"] for row in values] == [{"a": [1, None], "b": None}, {"a": []}, None]
    assert [row["s"] for row in values] == [{"a": {"x": 1}}, {"a": None, "b": {"x": None}}, None]
    places = find(spec, ["1"]).places
    assert [place.what for place in places] == ["output"]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_what_is_kept_passes_through_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, form: str
) -> None:
    """The column of unnamed keys is one like another: a transform may take it apart."""
    code = (
        "from pyspark.sql import functions as F\n\n"
        "def apart(frame):\n"
        "    zone = F.get_json_object('_semel_rest', '$.zone')\n"
        "    return frame.withColumn('zone', zone)\n"
    )
    (bench.transforms / "apart.py").write_text(code)
    lines = [b'{"id":"0","zone":"b","n":[1]}', b'{"id":"1"}', b'{"id":"0","zone":"c"}']
    bench.write("in/a.jsonl", lines)
    sink = {"format": form, "path": f"out/{form}"}
    source = {"schema": {"id": "string"}, "unknown": "keep"}
    spec = bench.spec(form, source=source, sink=sink, transforms=["apart:apart"])
    rows = through_spark(ledger, spark_engine, spec)
    assert [row["_semel_rest"] for row in rows] == ['{"zone":"b","n":[1]}', None]
    assert [row["zone"] for row in rows] == ["b", None]


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
