"""Attacks on the reading of CSV: headers, quotes, wrong fields, line ends within quotes."""

import datetime
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_records import Rejected, read_whole
from semel import limits
from semel.errors import SourceError, SpecError
from semel.formats.csv import Csv, read_header
from semel.formats.records import OFFSET, Reason

SCHEMA = pa.schema([("i", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
PLAIN = Csv(header=False)


def read(
    data: bytes, format: Csv = PLAIN, schema: pa.Schema = SCHEMA
) -> tuple[list[tuple], list[Rejected]]:
    """Rows as (offset, values) and rejected records of a whole file, its header read and used."""
    columns, _ = read_header(io.BytesIO(data), format, schema)
    blocks, rejected = read_whole(data, format, schema, columns)
    rows = [row for block in blocks for row in block.table.to_pylist()]
    return [(row.pop(OFFSET), *row.values()) for row in rows], rejected


GOOD = [
    (b"1,a,", (1, "a", None)),
    (b"1,,", (1, None, None)),
    (b'1,"",', (1, "", None)),
    (b'"1","a""b,c",', (1, 'a"b,c', None)),
    (b'1,a"b,', (1, 'a"b', None)),
    (b'1,"a"b,', (1, "ab", None)),
    (b"1, a ,\r", (1, " a ", None)),
    (b'1,"a\rb",', (1, "a\rb", None)),
    (b"1,NULL,", (1, "NULL", None)),
    (b"1,\xc3\xa9,", (1, "\u00e9", None)),
    (b",,", (None, None, None)),
]
BAD = [
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
    (b"1,a,\r2,b,", Reason.malformed),
    (b"1,a,\r\r", Reason.malformed),
    (b"\xef\xbb\xbf1,a,", Reason.malformed),
    (b"1,\xff,", Reason.encoding),
    (b"1,a\x00b,", Reason.encoding),
]


@pytest.mark.parametrize(("line", "values"), GOOD)
def test_good_line(line, values):
    """Null is an empty field without quotes; quotes, escapes and spaces keep their meaning."""
    rows, rejected = read(b"0,z,\n" + line + b"\n2,y,\n")
    assert rows == [(0, 0, "z", None), (5, *values), (6 + len(line), 2, "y", None)]
    assert not rejected


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_line_is_rejected_alone(line, reason):
    """Each bad line between two good ones is the only one rejected; an open quote ends with it."""
    rows, (bad,) = read(b"0,z,\n" + line + b'\n2,"y",\n')
    assert rows == [(0, 0, "z", None), (6 + len(line), 2, "y", None)]
    assert (bad.offset, bad.length) == (5, len(line) + 1)
    assert (bad.raw, bad.reason) == (line, reason)
    assert 0 < len(bad.detail) <= 200 and bad.detail.isprintable()


LINES = [line for line, _ in GOOD + BAD] + [b"", b" ", b"\r", b" \t\r", b'"', b'""', b'"x', b'x"']


@pytest.mark.parametrize("schema", [SCHEMA, pa.schema([("s", pa.string())])])
@given(lines=st.lists(st.sampled_from(LINES)))
def test_verdict_is_independent_of_neighbours(schema, lines):
    """What becomes of a line in any mix is what becomes of the line alone."""
    rows, rejected, offset = [], [], 1
    for line in lines:
        alone, bad = read(b"\n" + line + b"\n", schema=schema)
        rows += [(offset, *row[1:]) for row in alone]
        rejected += [(offset, record.reason, record.detail, record.raw) for record in bad]
        offset += len(line) + 1
    mixed, bad = read(b"".join(b"\n" + line for line in lines) + b"\n", schema=schema)
    assert mixed == rows
    assert [(record.offset, record.reason, record.detail, record.raw) for record in bad] == rejected


def test_open_quote_at_the_end():
    """pyarrow takes the end of a block for a closing quote. The last line is no exception here."""
    for tail in (b"", b"\n", b"\n\n\n"):
        rows, (bad,) = read(b'1,a,\n2,b,"2020-01-01' + tail)
        assert len(rows) == 1 and bad.offset == 5


def test_header_gives_the_order():
    """Columns follow the header's order, the table the schema's; the header is no record."""
    data = b'\xef\xbb\xbf"s",t,i\r\na,2020-01-01T02:00:00+02:00,1\r\n'
    assert read_header(io.BytesIO(data), Csv(), SCHEMA) == (["s", "t", "i"], 12)
    rows, rejected = read(data, Csv())
    assert rows == [(12, 1, "a", datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))]
    assert not rejected


@pytest.mark.parametrize("text", [b"i,s\n", b"i,s,t,u\n", b"i,s,x\n", b"i,i,s,t\n", b"1,a,\n",
                                  b"\n", b"i;s;t\n", b'i,s,"t\n', b"\xff,s,t\n", b"I,s,t\n"])
def test_other_header(text):
    """A header with other, missing, more or repeated names is refused before any record."""
    with pytest.raises(SourceError, match="header"):
        read_header(io.BytesIO(text), Csv(), SCHEMA)


def test_empty_file_has_no_header():
    """An empty file is no error: it has no records."""
    assert read(b"", Csv()) == ([], [])


def test_blank_lines_in_one_column():
    """With one column, a blank line is no record, and a quoted empty one is."""
    schema = pa.schema([("s", pa.string())])
    rows, rejected = read(b'a\n  \n""\n\n\t\r\n b\n', schema=schema)
    assert rows == [(0, "a"), (5, ""), (12, " b")] and not rejected


def test_tabs_alone_with_tab_as_delimiter():
    """Where the delimiter is a tab, a line of tabs is a record of nulls."""
    rows, rejected = read(b"\t\t\n1\ta\t\n", Csv(delimiter="\t", header=False))
    assert rows == [(0, None, None, None), (3, 1, "a", None)] and not rejected


def test_other_quote_and_delimiter():
    """Delimiter and quote are as declared, characters of regular expressions too."""
    rows, rejected = read(b"1|^a|^^b^|\n2|^c|\n", Csv(delimiter="|", quote="^", header=False))
    assert rows == [(0, 1, "a|^b", None)]
    assert [record.offset for record in rejected] == [11]


@pytest.mark.parametrize("value", ["NaN", "inf", "-Infinity", "1e400"])
def test_number_that_is_not_finite(value):
    """The same answer as in JSON: rejected."""
    rows, (bad,) = read(b"%b\n1.5\n" % value.encode(), schema=pa.schema([("f", pa.float64())]))
    assert len(rows) == 1 and bad.reason == Reason.type_mismatch


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        (b"2020-01-01T10:00:00Z", 10),
        (b"2020-01-01T10:00:00", 10),
        (b"2020-01-01 10:00", 10),
        (b"2020-01-01T10:00:00.0+02:00", 8),
        (b"2020-01-01T10:00:00-0230", 12.5),
        (b"2020-01-01T10+01", 9),
        (b"2020-01-01", 0),
    ],
)
def test_timestamps(text, hour):
    """The same values as in JSON, with and without zones mixed in one block."""
    rows, _ = read(b"1,a,2020-01-01T00:00:00Z\n1,a,%b\n1,a,2020-01-01\n1,a,\n" % text)
    midnight = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expected = midnight + datetime.timedelta(hours=hour)
    assert [row[3] for row in rows] == [midnight, expected, midnight, None]


def test_nested_type_is_refused():
    """CSV cannot hold a list: an error of the declaration, before any work."""
    with pytest.raises(SpecError, match="'l'"):
        read(b"1\n", schema=pa.schema([("l", pa.list_(pa.int64()))]))


MULTI = Csv(header=False, multiline=True)


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
        expected.append((len(text.encode()), i, value, None))
        text += f'{i},"{value.replace(chr(34), chr(34) * 2)}",{line_end}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BLOCK_BYTES", block)
        rows, rejected = read(text.encode(), MULTI)
    assert rows == expected and not rejected


def test_multiline_bad_records():
    """A bad record of several lines is rejected whole; a stray quote in a field is a character."""
    rows, rejected = read(b'1,a"b,\n2,"c\nd"\n3,"e\nf",\n4,"\n5,g,\n', MULTI)
    assert rows == [(0, 1, 'a"b', None), (15, 3, "e\nf", None)]
    assert [record.raw for record in rejected] == [b'2,"c\nd"', b'4,"\n5,g,']
    assert [record.reason for record in rejected] == [Reason.field_count, Reason.malformed]
