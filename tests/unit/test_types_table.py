"""The table of docs/pipelines.md that says what each type takes: every value in it is tried."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.files.records import read_whole
from semel.declare.ddl import parse
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def cases() -> Iterator[tuple[str, str, bool, str]]:
    """(type, format, whether it is taken, value) of each value in the table."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("### What each type takes")
    table = [line for line in rest.partition("## `dedup`")[0].splitlines() if line[:1] == "|"]
    for line in table[2:]:
        cells = [re.findall(r"`([^`]*)`", cell) for cell in line.strip("|").split(" |")]
        (kind,), *values = cells
        for place, found in enumerate(values):
            for value in found:
                yield kind, ("jsonl", "csv")[place // 2], not place % 2, value


@pytest.mark.parametrize(("kind", "form", "taken", "value"), list(cases()))
def test_the_table_is_true(kind: str, form: str, taken: bool, value: str) -> None:
    """A value that is taken is no null; one that is refused costs its record, and says why."""
    schema = pa.schema([("v", parse(kind).arrow()), ("z", pa.string())])
    line = f'{{"v":{value}}}' if form == "jsonl" else f"{value},z"
    texts = ("v",) if kind == "json" else ()
    reader = JsonLines(json=texts) if form == "jsonl" else CsvFormat(header=False)
    blocks, rejected = read_whole(line.encode(), reader, schema)
    table = blocks[0].table
    if taken:
        assert not rejected and table.column("v").null_count == 0
    else:
        assert [record.reason for record in rejected] == ["type_mismatch"]
        assert table.num_rows == 0


def test_the_table_names_each_type() -> None:
    """Every scalar type has a row."""
    assert {kind.partition("(")[0] for kind, *_ in cases()} >= {
        "string", "bigint", "int", "smallint", "double", "float", "boolean", "timestamp", "date",
        "decimal", "binary", "json",
    }  # fmt: skip
