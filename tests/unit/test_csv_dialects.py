"""CSV of each dialect: what is a value, and what a dead letter. Four readers share no code: semel's,
the audit's, DuckDB's strict one and Python's strict one. They agree wherever a value was taken."""

import csv
import io
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.files.records import read_whole
from semel.audit.exact import LineKind, Rules, csv_judge
from semel.declare.ddl import parse
from semel.formats.csv import CsvFormat, read_header
from semel.sources.files.audit import _bounds, _header_end
from semel.sources.spec import CsvOptions as Declared
from tiers import examples

PLAIN, ESCAPED, NONE, TABS = {}, {"escape": "\\"}, {"quote": "none"}, {"delimiter": "\t"}
RFC, OTHER = Declared(**PLAIN), Declared(delimiter="|", quote="'", escape="^")
BAD = None

RECORDS = [
    # csv-spectrum's shapes: commas, quotes, JSON and letters of any alphabet in fields.
    (PLAIN, b'John,"120 any st., x"', ["John", "120 any st., x"]),
    (PLAIN, b'1,"ha ""ha"" ha"', ["1", 'ha "ha" ha']),
    (PLAIN, b'1,"{""type"": ""Point"", ""at"": [102.0, 0.5]}"',
     ["1", '{"type": "Point", "at": [102.0, 0.5]}']),
    (PLAIN, "4,ʤ".encode(), ["4", "ʤ"]),
    (PLAIN, b'1,""', ["1", ""]),
    (PLAIN, b'"""",""""""', ['"', '""']),
    (PLAIN, b'5" pipe,b', ['5" pipe', "b"]),
    (PLAIN, b'a"b"c,d""', ['a"b"c', 'd""']),
    (PLAIN, b'"a"b,c', BAD),
    (PLAIN, b'"a""b"c,d', BAD),
    (PLAIN, b'"a" ,c', BAD),
    (PLAIN, b'""b,c', BAD),
    (PLAIN, b'"a, "b"', BAD),
    (PLAIN, b'"a 5\\" pipe",c', BAD),
    (PLAIN, b'a,"b', BAD),
    (PLAIN, b'a "b,c" d', ['a "b', 'c" d']),
    (PLAIN, b'C:\\,"D:\\"', ["C:\\", "D:\\"]),
    # As Spark writes by default, and PostgreSQL by COPY ... (FORMAT csv, ESCAPE '\\').
    (ESCAPED, b'1,"a 5\\" pipe"', ["1", 'a 5" pipe']),
    (ESCAPED, b'C:\\dir,"C:\\\\dir, x"', ["C:\\dir", "C:\\dir, x"]),
    (ESCAPED, b'ends\\,"ends,\\\\"', ["ends\\", "ends,\\"]),
    (ESCAPED, b'"\\\\\\"x","a\\\\\\"b"', ['\\"x', 'a\\"b']),
    (ESCAPED, b'"{\\"k\\": \\"v\\\\n\\"}","\\""', ['{"k": "v\\n"}', '"']),
    (ESCAPED, b'5" pipe,"6\\" pipe"', ['5" pipe', '6" pipe']),
    (ESCAPED, b'5" C:\\"x,"\\\\6\\""', ['5" C:\\"x', '\\6"']),
    (ESCAPED, b'\\"a\\",b', ['\\"a\\"', "b"]),
    (ESCAPED, b'"a""b",c', BAD),
    (ESCAPED, b'"a\\b",c', BAD),
    (ESCAPED, b'"a\\",c', BAD),
    (ESCAPED, b'"a\\\\"b,c', BAD),
    (ESCAPED, b'"a\\\\\\",c"', BAD),
    # PostgreSQL's text format, of which escapes stay text; and anything that never quotes.
    (NONE | TABS, b'"a\t5" pipe', ['"a', '5" pipe']),
    (NONE | TABS, b"\\N\ta\\tb", ["\\N", "a\\tb"]),
    (NONE, b'"a,b"', ['"a', 'b"']),
]  # fmt: skip
"""(dialect, record, fields): None for a dead letter."""


def form_of(declared: Declared) -> CsvFormat:
    quote = None if declared.quote == "none" else declared.quote
    return CsvFormat(
        delimiter=declared.delimiter, quote=quote, escape=declared.escape,
        multiline=declared.multiline, header=False,
    )  # fmt: skip


def read(declared: Declared, data: bytes, width: int = 2) -> dict[int, list | None]:
    """The fields of each record of a file by its offset, None for a dead letter: by stage's reader,
    once all at once and once alone, and by the audit's.
    """
    names = [f"c{at}" for at in range(width)]
    schema = pa.schema([(name, pa.string()) for name in names])
    blocks, rejected = read_whole(data, form_of(declared), schema, names)
    rows = (row for block in blocks for row in block.table.to_pylist())
    found = {row["_semel_offset"]: [row[name] for name in names] for row in rows}
    assert all(bad.reason == "malformed" or width > 1 for bad in rejected)
    found |= {bad.offset: BAD for bad in rejected}
    judge = csv_judge({name: parse("string") for name in names}, names, declared,
                      Rules())  # fmt: skip
    bounds = _bounds(data, 0, declared if declared.multiline else None).tolist()
    audited = {}
    for start, end in zip(bounds, bounds[1:], strict=False):
        raw = data[start:end].removesuffix(b"\n").removesuffix(b"\r")
        if raw.strip(b" \t\r"):
            judged = judge(raw)
            assert judged.kind is not LineKind.UNSURE
            audited[start] = list(judged.values) if judged.kind is LineKind.GOOD else BAD
    assert found == audited
    return found


def by_duckdb(declared: Declared, record: bytes, width: int) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        file.write(record + b"\n")
        file.flush()
        columns = {f"c{at}": "VARCHAR" for at in range(width)}
        quote = "" if declared.quote == "none" else declared.quote
        found = duckdb.read_csv(
            file.name, header=False, delimiter=declared.delimiter, quotechar=quote,
            escapechar=declared.escape or quote, columns=columns, auto_detect=False,
            strict_mode=True,
        )  # fmt: skip
        (row,) = found.fetchall()
    return ["" if value is None else value for value in row]


def by_python(declared: Declared, record: bytes) -> list[str]:
    marks = {"quoting": csv.QUOTE_NONE} if declared.quote == "none" else {
        "quotechar": declared.quote, "escapechar": declared.escape,
        "doublequote": declared.escape is None,
    }  # fmt: skip
    text = io.StringIO(record.decode(), newline="")
    (row,) = csv.reader(text, delimiter=declared.delimiter, strict=True, **marks)
    return row


@pytest.mark.parametrize(("dialect", "record", "fields"), RECORDS)
def test_a_record_of_a_dialect(dialect: dict, record: bytes, fields: list | None) -> None:
    """It is the same value to all four readers, or a dead letter: alone, and between others."""
    declared = Declared(**dialect)
    good = declared.delimiter.join(["a", "b"]).encode()
    lines = [good, record, good, record]
    starts = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])]).tolist()
    found = read(declared, b"\n".join([*lines, b""]))
    assert found == dict(zip(starts, [["a", "b"], fields] * 2, strict=True))
    assert read(declared, record + b"\n") == read(declared, record) == {0: fields}
    if fields is not None:
        assert by_duckdb(declared, record, len(fields)) == fields
        # Python takes an escape outside of quotes for one; Spark, PostgreSQL and DuckDB do not.
        if b"\\" not in record or dialect is not ESCAPED or record.startswith(b"1,"):
            assert by_python(declared, record) == fields


VALUES = [
    "a", "", None, " spaces ", "a,b", '5" pipe', '"', '""', '"quoted"', 'ends with "', "C:\\dir", "C:\\dir, x",
    "ends\\", "ends,\\", 'q"\\', '\\"x', '{"k": "v\\n"}', "a\nb", "x\\\ny", "tab\tx", "'", "é\U0001f600", "\\N", "NULL", "0x10",
    "'x','y'", "a\r\nb", "last",
]  # fmt: skip
ROWS = [(str(number), value) for number, value in enumerate(VALUES)]


def python_writer(rows: list[tuple], **options) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **options).writerows([("c0", "c1"), *rows])
    return text.getvalue().encode()


def duckdb_writer(rows: list[tuple], options: str = "") -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        made = pa.table({"c0": [n for n, _ in rows], "c1": [value for _, value in rows]})
        assert made.num_rows
        duckdb.sql(f"COPY (FROM made) TO '{path}' (HEADER, FORMAT csv{options})")
        return path.read_bytes()


def pyarrow_writer(rows: list[tuple]) -> bytes:
    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table({"c0": [n for n, _ in rows], "c1": [v for _, v in rows]}), out)
    return out.getvalue()


# What Spark 4.2 wrote of such values, by default and with quoteAll. It trims spaces.
SPARK = (
    b'c0,c1\n0,a\n1,"5\\" pipe"\n2,"a,b"\n3,C:\\dir\n4,"C:\\\\dir, x"\n5,ends\\\n6,"ends,\\\\"\n'
    b'7,"q\\"\\\\"\n8,"\\\\\\"x"\n9,"a\\\\\\"b"\n10,""\n11,\n12,"\\""\n13,\\\n14,"\\\\\\\\,x"\n'
    b'15,"a\nb"\n16,"x\\\\\ny"\n17,"{\\"k\\": \\"v\\\\n\\"}"\n18,"\\"a\\"b"\n'
)
SPARK_ALL = (
    b'"c0","c1"\n"0","a"\n"1","5\\" pipe"\n"2","a,b"\n"3","C:\\\\dir"\n"4","C:\\\\dir, x"\n"5","ends\\\\"\n'
    b'"6","ends,\\\\"\n"7","q\\"\\\\"\n"8","\\\\\\"x"\n"9","a\\\\\\"b"\n"10",""\n"11",\n"12","\\""\n'
    b'"13","\\\\"\n"14","\\\\\\\\,x"\n"15","a\nb"\n"16","x\\\\\ny"\n'
    b'"17","{\\"k\\": \\"v\\\\n\\"}"\n"18","\\"a\\"b"\n'
)
OF_SPARK = [
    "a", '5" pipe', "a,b", "C:\\dir", "C:\\dir, x", "ends\\", "ends,\\", 'q"\\', '\\"x', 'a\\"b', "", None,
    '"', "\\", "\\\\,x", "a\nb", "x\\\ny", '{"k": "v\\n"}', '"a"b',
]  # fmt: skip
NO_EMPTY = [value if value is None else value or None for value in VALUES]
NO_NULL = [value or "" for value in VALUES]
SHAPES = {
    # Neither Excel nor pandas tells the empty text from no value.
    "Excel, CSV UTF-8": (b"\xef\xbb\xbf" + python_writer(ROWS, dialect="excel"), {}, NO_EMPTY),
    "Excel, tabs": (python_writer(ROWS, dialect="excel-tab"), {"delimiter": "\t"}, NO_EMPTY),
    "Excel, semicolons": (python_writer(ROWS, delimiter=";"), {"delimiter": ";"}, NO_EMPTY),
    "all quoted": (python_writer(ROWS, dialect="unix"), {}, NO_NULL),
    "pandas": (pd.DataFrame(ROWS, columns=["c0", "c1"]).to_csv(index=False).encode(), {}, NO_EMPTY),
    "pandas, escaped": (
        pd.DataFrame(ROWS, columns=["c0", "c1"]).to_csv(
            index=False, doublequote=False, escapechar="\\", quoting=csv.QUOTE_ALL
        ).encode(), {"escape": "\\"}, NO_NULL,
    ),
    "pyarrow": (pyarrow_writer(ROWS), {}, VALUES),
    "DuckDB": (duckdb_writer(ROWS), {}, VALUES),
    "DuckDB, escaped": (duckdb_writer(ROWS, ", ESCAPE '\\'"), {"escape": "\\"}, VALUES),
    "Spark": (SPARK, {"escape": "\\"}, OF_SPARK),
    "Spark, all quoted": (SPARK_ALL, {"escape": "\\"}, OF_SPARK),
}  # fmt: skip
"""By writer: its file of some values, how it is declared, and the values that semel reads of it."""


@pytest.mark.parametrize("writer", SHAPES)
def test_files_of_other_writers(writer: str) -> None:
    """Each value that a writer wrote is read as it was, and none is a dead letter."""
    data, dialect, values = SHAPES[writer]
    declared = Declared(multiline=True, **dialect)
    schema = pa.schema([("c0", pa.string()), ("c1", pa.string())])
    names, end = read_header(io.BytesIO(data), replace(form_of(declared), header=True), schema)
    assert names == schema.names and end == _header_end(data, declared)
    found = list(read(declared, data[end:]).values())
    assert found == [[str(number), value] for number, value in enumerate(values)]


TOKENS = st.sampled_from(["a", '"', '"', ",", "\\", "\\", '""', '","', "é", " "])


@settings(max_examples=examples(150), deadline=None)
@given(
    lines=st.lists(st.lists(TOKENS, max_size=12).map("".join), min_size=1, max_size=8),
    escape=st.sampled_from([None, "\\"]),
)
def test_any_quotes(lines: list[str], escape: str | None) -> None:
    """Stage's reader and the audit's agree on each record, whatever its quotes; where quotes are
    doubled Python's strict one agrees with both on what is a value.
    """
    declared = Declared(escape=escape)
    data = "".join(f"{line}\n" for line in lines).encode()
    for at, fields in read(declared, data).items():
        line = data[at : data.index(b"\n", at)]
        if fields is not None:
            assert fields == [value or None for value in fields] or b'""' in line
        if escape is None:
            try:
                row = by_python(declared, line)
            except csv.Error:
                row = []
            taken = row if len(row) == 2 else BAD
            assert (fields and [value or "" for value in fields]) == taken, line


@settings(max_examples=examples(100), deadline=None)
@given(
    text=st.lists(st.one_of(TOKENS, st.sampled_from(["\n", "\n", "\r\n"])), max_size=25).map("".join),
    dialect=st.sampled_from([PLAIN, ESCAPED]),
)
def test_any_quotes_across_lines(text: str, dialect: dict) -> None:
    """Where fields may hold line ends both readers draw the same borders, and judge alike."""
    read(Declared(multiline=True, **dialect), f"{text}\n".encode())


def test_quotes_are_judged_by_vectors() -> None:
    """Quoted fields, doubled and escaped quotes cost no step per record: 40,000 of them take a small
    multiple of the same records without quotes. The records in doubt are those with others.
    """
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])

    def seconds(line: bytes, **dialect) -> float:
        parser = CsvFormat(header=False, **dialect).parser(schema, schema.names)
        data = line * 40_000
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            (block,) = read_whole(data, CsvFormat(header=False, **dialect), schema, schema.names)[0]
            best = min(best, time.process_time() - begin)
            assert block.table.num_rows == 40_000
            assert not len(parser._quotes.suspects(block.lines))
        return best

    plain = seconds(b"some text of some length,and some other text\n")
    assert seconds(b'"some text of some length","and some ""other"" text"\n') < 5 * plain
    assert seconds(b'"some text of some length","and some \\"other\\" text"\n', escape="\\") < 8 * plain
