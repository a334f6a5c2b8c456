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

SHORT = {"id": "short", "text": "x"}


def proved(bench: Workbench, ledger: Ledger, form: str, source: dict, text: str) -> None:
    """The long record comes out as it went in, for each way to read a sink."""
    schema = {"id": "string", "text": "string"}
    spec = bench.spec(source={"schema": schema, **source}, sink={"format": form})
    run(ledger, spec, "r1")
    rows = dataset(spec.sink_path()).to_table().to_pylist()
    assert {row["id"]: row["text"] == text for row in rows} == {"short": False, "long": True}
    verdict = audit(spec)
    assert verdict.ok, [c.offenders for c in verdict.checks if not c.ok]
    assert [place.what for place in find(spec, ["long"]).places] == ["output"]
    (marker,) = markers(spec.sink_path())
    (bench.data / "in").rename(bench.data / "away")  # So that adopt has the output alone.
    [batch] = histories([marker])
    assert sum(len(part.h1) for part in ids_of(batch, batch.claims)) == 2


@pytest.mark.parametrize("form", SINKS)
@pytest.mark.parametrize("size", [2 << 20, limits.RECORD_BYTES_MAX])
def test_a_long_record(bench: Workbench, ledger: Ledger, form: str, size: int) -> None:
    """One between a block and the longest that is a record: each reader has it whole."""
    text = "x" * (size - len(json.dumps({"id": "long", "text": ""})))
    bench.write("in/a.jsonl", [SHORT, {"id": "long", "text": text}])
    proved(bench, ledger, form, {}, text)


@pytest.mark.rest
@pytest.mark.parametrize("form", SINKS)
def test_a_record_that_grows(bench: Workbench, ledger: Ledger, form: str) -> None:
    """What is short in its source and long in its sink is read too: JSON escapes six for one."""
    text = "\x01" * (12 << 20)
    bench.write("in/a.csv", [b"id,text", b"short,x", b"long," + text.encode()])
    proved(bench, ledger, form, {"path": "in/*.csv", "format": "csv"}, text)
