"""Attacks on the reading of JSON Lines and CSV: each kind of bad record, wherever it stands."""

import datetime
import io
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.records import Rejected, read_whole
from semel import limits
from semel.errors import SourceError, SpecError
from semel.formats.csv import CsvFormat, read_header
from semel.formats.jsonl import JsonLines
from semel.formats.records import OFFSET
from semel.model.reasons import Reason

JSON, CSV, MULTI = JsonLines(), CsvFormat(header=False), CsvFormat(header=False, multiline=True)
OF_JSON = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("d", pa.date32()),
        ("m", pa.decimal128(6, 2)),
        ("b", pa.bool_()),
        ("n", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.float64()))])),
    ]
)
OF_CSV = pa.schema([("i", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
TEXT = pa.schema([("s", pa.string())])
MIDNIGHT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def read(
    data: bytes, form: JsonLines | CsvFormat = JSON, schema: pa.Schema | None = None
) -> tuple[list[dict], list[Rejected]]:
    """Rows (without the columns that are null) and rejected records of a whole file."""
    schema, columns = schema or (OF_JSON if form is JSON else OF_CSV), None
    if form is not JSON:
        columns, _ = read_header(io.BytesIO(data), form, schema)
    blocks, rejected = read_whole(data, form, schema, columns)
    for block in blocks:
        assert block.table.schema.names == [*schema.names, OFFSET]
    rows = [row for block in blocks for row in block.table.to_pylist()]
    return [{k: v for k, v in row.items() if v is not None} for row in rows], rejected


GOOD_JSON = [
    (b'{"a":1,"s":"x"}', {"a": 1, "s": "x"}),
    (b'{"s":"\xc3\xa9\\u0000\\n","a":null,"zzz":[{"a":2},{"a":3}],"zz":1,"zz":2}',
     {"s": "\u00e9\x00\n"}),
    (b' \t{"a":2}\t ', {"a": 2}),
    (b'{"a":3,"t":"2020-01-01T00:00:00+02:00","d":"2020-02-29","m":1.5,"b":true}',
     {"a": 3, "t": MIDNIGHT - datetime.timedelta(hours=2), "d": datetime.date(2020, 2, 29),
      "m": Decimal("1.50"), "b": True}),
    (b'{"n":{"x":1,"l":[1.5,null]},"f":-0.0}', {"n": {"x": 1, "l": [1.5, None]}, "f": 0.0}),
    (b"{}", {}),
    (b'{"a":4}\r', {"a": 4}),
    (b'{"t":"2020-01-01T00:00:00.123456789Z","zzz":[NaN,-Infinity]}',
     {"t": MIDNIGHT.replace(microsecond=123456)}),
]  # fmt: skip
BAD_JSON = [
    (b'{"a":1,"s":"x', Reason.malformed),
    (b'{"a":1}{"a":2}', Reason.malformed),
    (b'{"a":1} null', Reason.malformed),
    (b'{"a":1}null{"a":2}', Reason.malformed),
    (b"null", Reason.malformed),
    (b"[1]", Reason.malformed),
    (b'{"a":1,}', Reason.malformed),
    (b'{"a":1', Reason.malformed),
    (b'"a":2}', Reason.malformed),
    (b'{"n":{"x":1}', Reason.malformed),
    (b'{"a":1}\r{"a":2}', Reason.malformed),
    (b"\xef\xbb\xbf" + b'{"a":1}', Reason.malformed),
    (b'{"zzz":"\\ud800"}', Reason.malformed),
    (b'{"zzz":"\\x"}', Reason.malformed),
    (b'{"zzz":"tab\there"}', Reason.malformed),
    (b'{"zzz":"\xff"}', Reason.encoding),
    (b'{"s":"\xed\xa0\x80"}', Reason.encoding),
    (b'{"s":"\xc3"}', Reason.encoding),
    (b'{"s":"\x00"}', Reason.encoding),
    (b'{"a":1}\x00{"a":1}', Reason.encoding),
    (b'{"a":1,"a":1}', Reason.duplicate_key),
    (b'{"a":"x","a":1}', Reason.duplicate_key),
    (b'{"a":1,"\\u0061":null}', Reason.duplicate_key),
    (b'{"n":{"x":1,"x":1}}', Reason.duplicate_key),
    (b'{"a":"1"}', Reason.type_mismatch),
    (b'{"a":{"x":1}}', Reason.type_mismatch),
    (b'{"a":[1]}', Reason.type_mismatch),
    (b'{"a":1.0}', Reason.type_mismatch),
    (b'{"a":9223372036854775808}', Reason.type_mismatch),
    (b'{"s":1}', Reason.type_mismatch),
    (b'{"s":{}}', Reason.type_mismatch),
    (b'{"n":1}', Reason.type_mismatch),
    (b'{"f":NaN}', Reason.type_mismatch),
    (b'{"f":-Infinity}', Reason.type_mismatch),
    (b'{"n":{"l":[NaN]}}', Reason.type_mismatch),
    (b'{"f":1e400}', Reason.type_mismatch),
    (b'{"zzz":1e400}', Reason.malformed),
    (b'{"t":"yesterday"}', Reason.type_mismatch),
    (b'{"t":1577836800}', Reason.type_mismatch),
    (b'{"t":"2020-01-01T00:00:00.123456789 Z"}', Reason.type_mismatch),
    (b'{"t":"2020-02-30T00:00:00.123456789Z"}', Reason.type_mismatch),
    (b'{"t":"0000-12-31"}', Reason.type_mismatch),
    (b'{"t":"0001-01-01T00:00:00+00:01"}', Reason.type_mismatch),
    (b'{"d":"0000-12-31"}', Reason.type_mismatch),
    (b'{"a":1,"m":1.234,"m":1}', Reason.duplicate_key),
    (b'{"n":{"l":[1,2],"l":[1]}}', Reason.duplicate_key),
    (b'{"d":"2020-02-30"}', Reason.type_mismatch),
    (b'{"d":18000}', Reason.type_mismatch),
    (b'{"m":1.234}', Reason.type_mismatch),
    (b'{"m":12345}', Reason.type_mismatch),
    (b'{"m":-12345}', Reason.type_mismatch),
]
GOOD_CSV = [
    (b"1,a,", {"i": 1, "s": "a"}),
    (b"1,,", {"i": 1}),
    (b'1,"",', {"i": 1, "s": ""}),
    (b'"1","a""b,c",', {"i": 1, "s": 'a"b,c'}),
    (b'1,a"b,', {"i": 1, "s": 'a"b'}),
    (b'1,a"b"c"",', {"i": 1, "s": 'a"b"c""'}),
    (b'1,5" x 3" pipe,', {"i": 1, "s": '5" x 3" pipe'}),
    (b"1, a ,\r", {"i": 1, "s": " a "}),
    (b'1,"a\rb",', {"i": 1, "s": "a\rb"}),
    (b"1,NULL,", {"i": 1, "s": "NULL"}),
    (b"1,\xc3\xa9,", {"i": 1, "s": "\u00e9"}),
    (b",,", {}),
]
BAD_CSV = [
    (b"1", Reason.field_count),
    (b"1,a", Reason.field_count),
    (b"1,a,,", Reason.field_count),
    (b"x,a,", Reason.type_mismatch),
    (b"1.0,a,", Reason.type_mismatch),
    (b"9223372036854775808,a,", Reason.type_mismatch),
    (b'"",a,', Reason.type_mismatch),
    (b"1,a,yesterday", Reason.type_mismatch),
    (b'1,a,""', Reason.type_mismatch),
    (b'1,"a,', Reason.malformed),
    (b'1,a,"', Reason.malformed),
    (b'1,a"b,"2020-01-01', Reason.malformed),
    (b'1,"a"",', Reason.malformed),
    (b'1,"a"b,', Reason.malformed),
    (b'1,"a" ,', Reason.malformed),
    (b'1,""b,', Reason.malformed),
    (b'1,"a""b"c,', Reason.malformed),
    (b'1,"a,"b,2020-01-01', Reason.malformed),
    (b'"1"2,a,', Reason.malformed),
    (b'1,a,"2020-01-01"T00:00:00Z', Reason.malformed),
    (b"1,a,\r2,b,", Reason.malformed),
    (b"1,a,\r\r", Reason.malformed),
    (b"\xef\xbb\xbf1,a,", Reason.malformed),
    (b"1,\xff,", Reason.encoding),
    (b"1,a\x00b,", Reason.encoding),
]

AROUND = {
    JSON: [(b'{"a":1}', {"a": 1}), (b'{"a":2}', {"a": 2})],
    CSV: [(b"0,z,", {"i": 0, "s": "z"}), (b'2,"y",', {"i": 2, "s": "y"})],
}
"""Two good lines, and what they are."""


@pytest.mark.parametrize(
    ("form", "line", "row"),
    [*((JSON, *good) for good in GOOD_JSON), *((CSV, *good) for good in GOOD_CSV)],
)
def test_good_line(form: JsonLines | CsvFormat, line: bytes, row: dict) -> None:
    """Nothing valid is rejected: unknown and repeated unknown keys, white space, CRLF, escapes. In
    CSV null is an empty field without quotes; quotes and spaces keep their meaning.
    """
    (before, first), (behind, last) = AROUND[form]
    rows, rejected = read(b"\n".join([before, line, behind]), form)
    at = len(before) + 1
    places = [{OFFSET: 0}, {OFFSET: at}, {OFFSET: at + len(line) + 1}]
    assert rows == [one | place for one, place in zip([first, row, last], places, strict=True)]
    assert not rejected


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [*((JSON, *bad) for bad in BAD_JSON), *((CSV, *bad) for bad in BAD_CSV)],
)
def test_bad_line_is_rejected_alone(form: JsonLines | CsvFormat, line: bytes, reason: Reason) -> None:
    """Each bad line between two good ones is the only one rejected, with its place and bytes; a
    quote that is open ends with it.
    """
    (before, first), (behind, last) = AROUND[form]
    rows, (bad,) = read(b"\n".join([before, line, behind, b""]), form)
    at = len(before) + 1
    assert rows == [first | {OFFSET: 0}, last | {OFFSET: at + len(line) + 1}]
    assert (bad.offset, bad.length, bad.raw) == (at, len(line) + 1, line)
    assert bad.reason == reason
    assert 0 < len(bad.detail) <= 200 and bad.detail.isprintable()


BLANK = [b"", b" ", b"\r", b" \t\r"]
LINES = {
    JSON: [*BLANK, *(line for line, _ in [*GOOD_JSON, *BAD_JSON])],
    CSV: [*BLANK, b'"', b'""', b'"x', b'x"', *(line for line, _ in [*GOOD_CSV, *BAD_CSV])],
}


@pytest.mark.parametrize(("form", "schema"), [(JSON, OF_JSON), (CSV, OF_CSV), (CSV, TEXT)])
@given(data=st.data())
def test_verdict_is_independent_of_neighbours(
    form: JsonLines | CsvFormat, schema: pa.Schema, data: st.DataObject
) -> None:
    """What becomes of a line in any mix is what becomes of the line alone."""
    lines = data.draw(st.lists(st.sampled_from(LINES[form])))
    rows, rejected, offset = [], [], len(b"\n")
    for line in lines:
        # An empty line before it: the mark of UTF-8 is another thing at the file's start.
        alone, bad = read(b"\n" + line + b"\n", form, schema)
        rows += [{**row, OFFSET: offset} for row in alone]
        rejected += [(offset, record.reason, record.detail, record.raw) for record in bad]
        offset += len(line) + 1
    mixed, bad = read(b"".join(b"\n" + line for line in lines) + b"\n", form, schema)
    assert mixed == rows
    assert [(record.offset, record.reason, record.detail, record.raw) for record in bad] == rejected


@pytest.mark.parametrize("form", [JSON, CSV])
@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2020-01-01T10:00:00Z", 10),
        ("2020-01-01T10:00:00", 10),
        ("2020-01-01 10:00", 10),
        ("2020-01-01T10:00:00.0+02:00", 8),
        ("2020-01-01T10:00:00-0230", 12.5),
        ("2020-01-01T10+01", 9),
        ("2020-01-01", 0),
    ],
)
def test_timestamps(form: JsonLines | CsvFormat, text: str, hour: float) -> None:
    """ISO 8601; a value without zone is UTC, one with an offset becomes UTC; mixed in one block."""
    times = ["2020-01-01T00:00:00Z", text, "2020-01-01"]
    line = '{"t":"%s"}\n' if form is JSON else "1,a,%s\n"
    rows, _ = read("".join(line % time for time in times).encode(), form)
    assert [row["t"] for row in rows] == [
        MIDNIGHT, MIDNIGHT + datetime.timedelta(hours=hour), MIDNIGHT
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "kind", "value"),
    [*((JSON, pa.float32(), value) for value in ("NaN", "Infinity", "1e39")),
     *((CSV, pa.float64(), value) for value in ("NaN", "inf", "-Infinity", "1e400"))],
)  # fmt: skip
def test_number_that_is_not_finite(form: JsonLines | CsvFormat, kind: pa.DataType, value: str) -> None:
    """A number that the column's type cannot hold is rejected, not turned into infinity."""
    line = '{"f":%s}\n' if form is JSON else "%s\n"
    schema = pa.schema([("f", kind)])
    rows, (bad,) = read("".join(line % one for one in (value, "1.5")).encode(), form, schema)
    assert len(rows) == 1 and bad.reason == Reason.type_mismatch


def test_objects_and_lines_that_do_not_agree():
    """An object spread over lines is no record, though pyarrow would take it; nor are two in one
    line, beside halves that make up for them: the count alone would not show it.
    """
    rows, rejected = read(b'{"a":1}\n{"a":\n2}\n{"n":{"x":1}\n,"a":3}\n{"a":4}\n')
    assert [row["a"] for row in rows] == [1, 4]
    assert [record.raw for record in rejected] == [b'{"a":', b"2}", b'{"n":{"x":1}', b',"a":3}']
    rows, rejected = read(b'{"a":1}{"a":2}\n{"n":\n{"x":1}}\n{"a":3}\n')
    assert [row["a"] for row in rows] == [3] and len(rejected) == 3


def test_byte_order_mark():
    """The mark is allowed at the file's first byte, and belongs to no record."""
    rows, rejected = read(b'\xef\xbb\xbf{"a":1}\n{"a":2}\n')
    assert [row[OFFSET] for row in rows] == [3, 11] and not rejected
    rows, (bad,) = read(b"\xef\xbb\xbf{\n")
    assert not rows and (bad.offset, bad.length, bad.raw) == (3, 2, b"{")


def test_blank_lines_are_no_records():
    """Blank lines, with spaces and CR too, are passed over; offsets count them."""
    rows, rejected = read(b'\n\r\n  \n{"a":1}\r\n\t\r\n\n{"a":2}')
    assert [row[OFFSET] for row in rows] == [6, 19] and not rejected


@pytest.mark.parametrize(
    ("form", "data"),
    [*((JSON, data) for data in (b"", b"\n", b"\r\n \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n")),
     (CsvFormat(), b"")],
)  # fmt: skip
def test_file_without_records(form: JsonLines | CsvFormat, data: bytes) -> None:
    """An empty file, blank lines, or a mark of UTF-8 alone: no records, none rejected."""
    assert read(data, form) == ([], [])


def test_record_of_50_mb():
    """A long valid record is read; the neighbours in its block are not its problem."""
    text = b"x" * 50_000_000
    rows, rejected = read(b'{"a":1}\n{"s":"%b","a":2}\n{"a":3}\n{"a":x}\n' % text)
    assert [row["a"] for row in rows] == [1, 2, 3]
    assert len(rows[1]["s"]) == len(text)
    assert [record.raw for record in rejected] == [b'{"a":x}']


@pytest.mark.parametrize("excess", [0, 1, 2, 3, 500, 5_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b""])
def test_record_longer_than_the_limit(monkeypatch, excess, line_end):
    """Above the limit: rejected with its head; at the limit: read. The line end does not count."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 1_000)
    monkeypatch.setattr(limits, "BLOCK_BYTES", 64)
    monkeypatch.setattr(limits, "REJECTED_HEAD_BYTES", 10)
    line = b'{"s":"%b"}' % (b"x" * (1_000 - 8 + excess))
    rows, rejected = read(b'{"a":1}\n' + line + line_end)
    assert len(rows) == (1 if excess else 2)
    if excess:
        (bad,) = rejected
        assert (bad.offset, bad.length) == (8, len(line + line_end))
        assert (bad.reason, bad.raw) == (Reason.too_long, line[:10])


def test_open_quote_at_the_end():
    """pyarrow takes the end of a block for a closing quote. The last line is no exception here."""
    for tail in (b"", b"\n", b"\n\n\n"):
        rows, (bad,) = read(b'1,a,\n2,b,"2020-01-01' + tail, CSV)
        assert len(rows) == 1 and bad.offset == 5


def test_a_header_with_a_name_that_is_near() -> None:
    """The message has the declaration that reads it; but no field of what may be a record."""
    schema = pa.schema({"id": pa.string(), "fee": pa.int64()})
    for header, near in ((b"id,Fee\n", "Fee"), (b"id,fees\n", "fees")):
        declare = rf"lacks 'fee'.* Declare `columns: {{fee: {{names: \[{near}\]}}}}` in source"
        with pytest.raises(SourceError, match=declare):
            read_header(io.BytesIO(header), CsvFormat(), schema)
    with pytest.raises(SourceError) as told:
        read_header(io.BytesIO(b"id,Fee\n"), CsvFormat(), schema, samples=False)
    assert "Fee" not in str(told.value)


def test_header_gives_the_order():
    """Columns follow the header's order, the table the schema's; the header is no record."""
    data = b'\xef\xbb\xbf"s",t,i\r\na,2020-01-01T02:00:00+02:00,1\r\n'
    assert read_header(io.BytesIO(data), CsvFormat(), OF_CSV) == (["s", "t", "i"], 12)
    rows, rejected = read(data, CsvFormat())
    assert rows == [{"i": 1, "s": "a", "t": MIDNIGHT, OFFSET: 12}]
    assert not rejected


@pytest.mark.parametrize("text", [b"i,s\n", b"i,s,t,u\n", b"i,s,x\n", b"i,i,s,t\n", b"1,a,\n",
                                  b"\n", b"i;s;t\n", b'i,s,"t\n', b"\xff,s,t\n", b"I,s,t\n"])
def test_other_header(text):
    """A header with other, missing, more or repeated names is refused before any record."""
    with pytest.raises(SourceError, match="header"):
        read_header(io.BytesIO(text), CsvFormat(), OF_CSV)


def test_blank_lines_in_one_column():
    """With one column, a blank line is no record, and a quoted empty one is."""
    rows, rejected = read(b'a\n  \n""\n\n\t\r\n b\n', CSV, TEXT)
    assert [(row[OFFSET], row["s"]) for row in rows] == [(0, "a"), (5, ""), (12, " b")]
    assert not rejected


def test_tabs_alone_with_tab_as_delimiter():
    """Where the delimiter is a tab, a line of tabs is a record of nulls."""
    rows, rejected = read(b"\t\t\n1\ta\t\n", CsvFormat(delimiter="\t", header=False))
    assert rows == [{OFFSET: 0}, {"i": 1, "s": "a", OFFSET: 3}] and not rejected


def test_other_quote_and_delimiter():
    """Delimiter and quote are as declared, characters of regular expressions too."""
    rows, rejected = read(b"1|^a|^^b^|\n2|^c|\n", CsvFormat(delimiter="|", quote="^", header=False))
    assert rows == [{"i": 1, "s": "a|^b", OFFSET: 0}]
    assert [record.offset for record in rejected] == [11]


def test_nested_type_is_refused():
    """CSV cannot hold a list: an error of the declaration, before any work."""
    with pytest.raises(SpecError, match="'l'"):
        read(b"1\n", CSV, pa.schema([("l", pa.list_(pa.int64()))]))


@given(
    values=st.lists(
        st.lists(st.sampled_from(["a", '"', ",", "\n", "\r\n", "\u00e9"])).map("".join), min_size=1
    ),
    block=st.integers(1, 40),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_multiline(values, block, line_end):
    """Line ends, delimiters and quotes within quotes; offsets are right wherever blocks are cut."""
    expected, text = [], ""
    for i, value in enumerate(values):
        expected.append({"i": i, "s": value, OFFSET: len(text.encode())})
        text += f'{i},"{value.replace(chr(34), chr(34) * 2)}",{line_end}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BLOCK_BYTES", block)
        rows, rejected = read(text.encode(), MULTI)
    assert rows == expected and not rejected


def test_multiline_bad_records():
    """A bad record of several lines is rejected whole; a stray quote in a field is a character."""
    rows, rejected = read(b'1,a"b,\n2,"c\nd"\n3,"e\nf",\n4,"\n5,g,\n', MULTI)
    assert rows == [{"i": 1, "s": 'a"b', OFFSET: 0}, {"i": 3, "s": "e\nf", OFFSET: 15}]
    assert [record.raw for record in rejected] == [b'2,"c\nd"', b'4,"\n5,g,']
    assert [record.reason for record in rejected] == [Reason.field_count, Reason.malformed]
