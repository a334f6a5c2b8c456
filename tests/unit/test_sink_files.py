"""Files of a sink: what a format holds comes out as it went in, and the rest is refused."""

import dataclasses
import json
import math
import tempfile
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.declare import ddl
from semel.errors import TerminalError
from semel.formats.table import CSV_FILE_BYTES, SINKS, sink_format
from semel.model.manifest import Kind
from semel.stage.part_files import PartWriter, write_table
from tiers import examples

CSV = sink_format("csv").code()
ZONED = pa.timestamp("us", "UTC")
YEAR_10000 = 253_402_300_800_000_000  # Microseconds.
HOSTILE = st.text(st.sampled_from('a"\n\r,;= \t\0é\u2028\ufeff\\#0N'), max_size=8)
NUMBERS = st.floats(allow_nan=True) | st.sampled_from([5e-324, 1e16, -0.0, math.inf, -math.inf])
VALUES = {
    "string": HOSTILE,
    "json": HOSTILE,
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "double": NUMBERS,
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(),
    "binary": st.binary(max_size=8),
    "decimal(38,38)": st.decimals(Decimal("-0.9"), Decimal("0.9"), places=38),
    "decimal(6,2)": st.decimals(-9999, 9999, places=2),
}


def written(folder: Path, table: pa.Table) -> Path:
    path = folder / "a.csv"
    path.unlink(missing_ok=True)
    write_table(path, table, Kind.DATA, "", "csv")
    return path


def read(path: Path, schema: pa.Schema) -> pa.Table:
    """What `semel.reader` reads, block by block or not."""
    held = pa.schema([field.with_type(CSV.read_back_type(field.type)) for field in schema])
    form = CSV.dataset_format(path, path.stat().st_size)
    return ds.dataset([str(path)], schema=held, format=form).to_table()


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Some columns of any type, with names and values that a CSV reader could stumble over."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    count = draw(st.integers(1, 6))
    names = draw(
        st.lists(HOSTILE.filter(bool), min_size=len(kinds), max_size=len(kinds), unique=True)
    )
    columns = [
        draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)) for kind in kinds
    ]
    types = [ddl.parse(kind).arrow() for kind in kinds]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=names)


@settings(max_examples=examples(400))
@given(table=tables())
@example(table=pa.table({"a": pa.array([None, "", None])}))
@example(table=pa.table({"a\0b": ["x"], "a\0c": ["y"]}))
@example(table=pa.table({"\ufeffa": ["\r\n", "=1+1"], "b\n": [None, '"']}))
def test_what_goes_in_comes_out(table: pa.Table) -> None:
    """Each value of each type, null apart from the empty text; and as many rows are counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), table)
        assert CSV.count_rows(path) == table.num_rows
        found = read(path, table.schema)
    for name in table.column_names:
        before, after = table.column(name), found.column(name)
        if pa.types.is_binary(before.type):
            after = [v if v is None else b64decode(v, validate=True) for v in after.to_pylist()]
            assert after == before.to_pylist()
        else:
            assert list(map(repr, after.to_pylist())) == list(map(repr, before.to_pylist()))


def test_the_bytes(tmp_path: Path) -> None:
    """The form that docs/pipelines.md tells, byte for byte."""
    table = pa.table(
        {
            "text": ["plain", "", None, 'say "hi"', "a,b", "two\nlines", "cr\r", "=1+1", " s "],
            "n": [1, None, -3, 4, 5, 6, 7, 8, 9],
            "at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] + 8 * [None], ZONED),
            "local": pa.array([datetime(2024, 1, 1, 2, 3, 4, 5)] + 8 * [None], pa.timestamp("us")),
            "day": [date(1, 1, 1)] + 8 * [None],
            "money": pa.array([Decimal("1.50")] + 8 * [None], pa.decimal128(6, 2)),
            "x": [math.nan, math.inf, -math.inf, 0.1, 1e300] + 4 * [None],
            "flag": [True, False] + 7 * [None],
            "raw": [b"A", b""] + 7 * [None],
        }
    )  # fmt: skip
    assert written(tmp_path, table).read_bytes() == (
        b'"text","n","at","local","day","money","x","flag","raw"\n'
        b"plain,1,2024-01-01T00:00:00.000000Z,2024-01-01T02:03:04.000005,0001-01-01,1.50,NaN,true,"
        b"QQ==\n"
        b'"",,,,,,Inf,false,""\n'
        b",-3,,,,,-Inf,,\n"
        b'"say ""hi""",4,,,,,0.1,,\n'
        b'"a,b",5,,,,,1e+300,,\n'
        b'"two\nlines",6,,,,,,,\n'
        b'"cr\r",7,,,,,,,\n'
        b"=1+1,8,,,,,,,\n"
        b" s ,9,,,,,,,\n"
    )


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", '"', '""\r\n,'])
def test_long_files_of_hostile_text(tmp_path: Path, ending: str) -> None:
    """In blocks of 1 MiB, as is its default, pyarrow loses a CR or LF: so a file is one."""
    texts = [ending * (n % 7) + f"{n}" + ending * (n % 5) for n in range(200_000)]
    table = pa.table({"t": texts, "n": range(len(texts))})
    path = written(tmp_path, table)
    assert path.stat().st_size > 2 << 20
    assert CSV.count_rows(path) == len(texts)
    assert read(path, table.schema).equals(table)


def test_files_are_as_large_as_a_reader_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task ends a CSV file at CSV_FILE_BYTES of rows, for who reads it has it whole."""
    assert sink_format("csv").held_bytes_max == CSV_FILE_BYTES
    small = dataclasses.replace(sink_format("csv"), held_bytes_max=1_000)
    monkeypatch.setitem(SINKS, "csv", small)
    writer = PartWriter(tmp_path, tag="t", format="csv")
    for start in range(0, 1_000, 100):
        writer.write(pa.table({"n": range(start, start + 100)}))
    files = writer.close()
    assert [file.records for file in files] == 5 * [200]
    assert {file.suffix for file in files} == {".csv"}


def test_duckdb_reads_it(tmp_path: Path) -> None:
    """With the words that docs/pipelines.md gives."""
    table = pa.table({"t": ["", None, 'a"\n,', "=1"], "x": [math.nan, math.inf, -math.inf, 0.5]})
    path = written(tmp_path, table)
    found = duckdb.sql(
        f"SELECT t, x FROM read_csv('{path}', header = true, delim = ',', quote = '\"', "
        "escape = '\"', allow_quoted_nulls = false, columns = {'t': 'VARCHAR', 'x': 'DOUBLE'})"
    ).fetchall()
    assert [row[0] for row in found] == table.column("t").to_pylist()
    assert [repr(row[1]) for row in found] == ["nan", "inf", "-inf", "0.5"]


# Attacks S22.
@pytest.mark.parametrize("number", [math.nan, -math.inf])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: pa.array([1.0, x, None]),
        lambda x: pa.array([1.0, x, None], pa.float32()),
        lambda x: pa.array([[1.0], None, [2.0, x]]),
        lambda x: pa.array([{"a": 1.0}, {"a": x}]),
        lambda x: pa.array([{"a": [{"b": [x]}]}]),
        lambda x: pa.array([[("k", x)]], pa.map_(pa.string(), pa.float64())),
    ],
)
def test_json_lines_hold_no_nan(tmp_path: Path, shape, number: float) -> None:
    """It is refused, at any depth, and not made null; Parquet takes it as it is."""
    table = pa.table({"x": shape(number)})
    with pytest.raises(TerminalError, match="column 'x' holds NaN or an infinity.*nanvl"):
        write_table(tmp_path / "a", table, Kind.DATA, "", "jsonl")
    write_table(tmp_path / "b", table, Kind.DATA, "", "parquet")


# Attacks S22.
@pytest.mark.parametrize("form", [name for name in SINKS if name != "parquet"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, YEAR_10000, None], pa.timestamp("us", "UTC")),
        pa.array([-62_135_596_800_000_001], pa.timestamp("us")),
        pa.array([0, YEAR_10000 // 86_400_000_000], pa.date32()),
    ],
)
def test_text_has_years_of_four_digits(tmp_path: Path, form: str, column: pa.Array) -> None:
    """Readers take no +10000-01-01 and no year 0: they are refused, with the column's name."""
    table = pa.table({"x": column})
    with pytest.raises(TerminalError, match="column 'x' holds dates of years .*1 to 9999"):
        write_table(tmp_path / "a", table, Kind.DATA, "", form)
    write_table(tmp_path / "b", table, Kind.DATA, "", "parquet")


def test_numbers_and_nulls_pass(tmp_path: Path) -> None:
    """What is null stays null, also where a NaN lies below a null."""
    below = pa.StructArray.from_arrays(
        [pa.array([math.nan, 1.0])], ["a"], mask=pa.array([True, False])
    )
    table = pa.table({"x": [None, 1.5], "l": [[], None], "s": below})
    write_table(tmp_path / "a", table, Kind.DATA, "", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [row["x"] for row in rows] == [None, 1.5] and rows[1]["s"] == {"a": 1.0}
