"""Records up to RECORD_BYTES_MAX, through every sink format and whoever reads a sink."""

import json

import pytest

from fix_account import run
from fix_pipelines import Workbench
from semel import limits
from semel.adoption.history import histories
from semel.adoption.ids import ids_of
from semel.audit import audit
from semel.find import find
from semel.formats.table import SINKS
from semel.ledger import Ledger
from semel.reader import dataset, markers


def proved(
    bench: Workbench, ledger: Ledger, form: str, source: dict, texts: dict[str, str]
) -> None:
    """Long records come out as they went in, for each way to read a sink."""
    schema = {"id": "string", "text": "string"}
    spec = bench.spec(source={"schema": schema, **source}, sink={"format": form})
    run(ledger, spec, "r1")
    rows = dataset(spec.sink_path()).to_table().to_pylist()
    same = {row["id"]: row["text"] == texts[row["id"]] for row in rows}
    assert same == dict.fromkeys(texts, True)
    verdict = audit(spec)
    assert verdict.ok, [c.offenders for c in verdict.checks if not c.ok]
    assert [place.what for place in find(spec, ["long"]).places] == ["output"]
    (marker,) = markers(spec.sink_path())
    (bench.data / "in").rename(bench.data / "away")  # So that adopt has the output alone.
    [batch] = histories([marker])
    assert sum(len(part.h1) for part in ids_of(batch, batch.claims)) == len(texts)


@pytest.mark.parametrize("form", SINKS)
def test_a_long_record(bench: Workbench, ledger: Ledger, form: str) -> None:
    """One between a block and the longest that is a record, and the longest: each reader has them
    whole. It takes seconds, as only a record of this length shows what readers have room for.
    """
    texts = {"short": "x"}
    for name, size in {"middle": 2 << 20, "long": limits.RECORD_BYTES_MAX}.items():
        texts[name] = "x" * (size - len(json.dumps({"id": name, "text": ""})))
    bench.write("in/a.jsonl", [{"id": name, "text": text} for name, text in texts.items()])
    proved(bench, ledger, form, {}, texts)


@pytest.mark.rest
@pytest.mark.parametrize("form", SINKS)
def test_a_record_that_grows(bench: Workbench, ledger: Ledger, form: str) -> None:
    """What is short in its source and long in its sink is read too: JSON escapes six for one."""
    texts = {"short": "x", "long": "\x01" * (12 << 20)}
    lines = [f"{name},{text}".encode() for name, text in texts.items()]
    bench.write("in/a.csv", [b"id,text", *lines])
    proved(bench, ledger, form, {"path": "in/*.csv", "format": "csv"}, texts)
