"""Columns of every kind through Spark: what a transform leaves alone comes out as it was read."""

import json

import pyarrow.parquet as pq
import pytest
from fix_account import quiet, settled
from fix_pipelines import Workbench

from semel.ledger import Ledger
from semel.pipeline import Spec
from semel.reader import markers
from semel.run import run_batch
from semel.spark.engine import SparkEngine

TRANSFORM = "def same(frame):\n    return frame.select(*frame.columns)\n"


def through_spark(
    bench: Workbench, ledger: Ledger, engine: SparkEngine, spec: Spec
) -> list[dict]:
    """The output's rows as its files hold them, in the order of their ids; the audit agrees."""
    run_batch(ledger, spec, "r1", engine, say=quiet)
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
    rows = through_spark(bench, ledger, spark_engine, spec_of(bench, form, schema))
    assert [row["p"] for row in rows] == [None if t == "null" else t for t in texts]
    raw = [b"A", b"\0\1\2\3", b"\xff\xef", b"", None]
    expected = raw if form == "parquet" else codes
    assert [row["b"] for row in rows] == expected
    assert [row["l"] for row in rows] == [[one] for one in expected]
