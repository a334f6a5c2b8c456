"""Attacks on the reading of JSON Lines: each kind of bad record, wherever it stands."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_records import Rejected, read_whole
from semel import limits
from semel.formats.jsonl import JsonLines
from semel.formats.records import OFFSET, Reason

SCHEMA = pa.schema(
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


def read(data: bytes, schema: pa.Schema = SCHEMA) -> tuple[list[dict], list[Rejected]]:
    """Rows (without the columns that are null) and rejected records of a whole file."""
    blocks, rejected = read_whole(data, JsonLines(), schema)
    rows = [row for block in blocks for row in block.table.to_pylist()]
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    for block in blocks:
        assert block.table.schema.names == [*schema.names, OFFSET]
    return rows, rejected


GOOD = [
    b'{"a":1,"s":"x"}',
    b'{"s":"\xc3\xa9\\u0000\\n","a":null,"zzz":[{"a":2},{"a":3}],"zz":1,"zz":2}',
    b' \t{"a":2}\t ',
    b'{"a":3,"t":"2020-01-01T00:00:00+02:00","d":"2020-02-29","m":1.5,"b":true}',
    b'{"n":{"x":1,"l":[1.5,null]},"f":-0.0}',
    b"{}",
    b'{"a":4}\r',
    b'{"t":"2020-01-01T00:00:00.123456789Z","zzz":[NaN,-Infinity]}',
]
BAD = [
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


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_line_is_rejected_alone(line, reason):
    """Each bad line between two good ones is the only one rejected, with its place and bytes."""
    rows, (bad,) = read(b'{"a":1}\n' + line + b'\n{"a":2}\n')
    assert rows == [{"a": 1, OFFSET: 0}, {"a": 2, OFFSET: 9 + len(line)}]
    assert (bad.offset, bad.length, bad.raw) == (8, len(line) + 1, line)
    assert bad.reason == reason
    assert 0 < len(bad.detail) <= 200 and bad.detail.isprintable()


def test_good_lines():
    """Nothing valid is rejected: unknown and repeated unknown keys, white space, CRLF, escapes."""
    rows, rejected = read(b"\n".join(GOOD))
    assert not rejected
    utc = datetime.UTC
    assert [{k: v for k, v in row.items() if k != OFFSET} for row in rows] == [
        {"a": 1, "s": "x"},
        {"s": "\u00e9\x00\n"},
        {"a": 2},
        {
            "a": 3,
            "t": datetime.datetime(2019, 12, 31, 22, tzinfo=utc),
            "d": datetime.date(2020, 2, 29),
            "m": Decimal("1.50"),
            "b": True,
        },
        {"n": {"x": 1, "l": [1.5, None]}, "f": 0.0},
        {},
        {"a": 4},
        {"t": datetime.datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=utc)},
    ]


@given(st.lists(st.sampled_from([*GOOD, *(line for line, _ in BAD), b"", b" ", b"\r", b" \t\r"])))
def test_verdict_is_independent_of_neighbours(lines):
    """What becomes of a line in any mix is what becomes of the line alone."""
    rows, rejected, offset = [], [], len(b"\n")
    for line in lines:
        # An empty line before it: the mark of UTF-8 is another thing at the file's start.
        alone, bad = read(b"\n" + line + b"\n")
        rows += [{**row, OFFSET: offset} for row in alone]
        rejected += [(offset, record.reason, record.detail, record.raw) for record in bad]
        offset += len(line) + 1
    mixed, bad = read(b"".join(b"\n" + line for line in lines) + b"\n")
    assert mixed == rows
    assert [(record.offset, record.reason, record.detail, record.raw) for record in bad] == rejected


@given(st.binary(max_size=40))
def test_any_bytes(noise):
    """Any bytes as a line never crash the reader, and never touch the lines around them."""
    noise = noise.replace(b"\n", b"")
    rows, _ = read(b'{"a":1}\n' + noise + b'\n{"a":2}')
    assert rows[0] == {"a": 1, OFFSET: 0}
    assert rows[-1] == {"a": 2, OFFSET: 9 + len(noise)}


def test_one_object_on_several_lines():
    """An object spread over lines is no record, though pyarrow would take it."""
    rows, rejected = read(b'{"a":1}\n{"a":\n2}\n{"n":{"x":1}\n,"a":3}\n{"a":4}\n')
    assert [row["a"] for row in rows] == [1, 4]
    assert [record.raw for record in rejected] == [b'{"a":', b"2}", b'{"n":{"x":1}', b',"a":3}']


def test_rows_that_balance_lines():
    """A line with two objects beside one with half of each: the count alone would not show it."""
    rows, rejected = read(b'{"a":1}{"a":2}\n{"n":\n{"x":1}}\n{"a":3}\n')
    assert [row["a"] for row in rows] == [3]
    assert len(rejected) == 3


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


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_file_without_records(data):
    """An empty file, blank lines, or a mark of UTF-8 alone: no records, none rejected."""
    assert read(data) == ([], [])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e39"])
def test_float32_that_overflows(value):
    """A number that the column's type cannot hold is rejected, not turned into infinity."""
    rows, (bad,) = read(b'{"f":%b}\n{"f":1}' % value.encode(), pa.schema([("f", pa.float32())]))
    assert len(rows) == 1 and bad.reason == Reason.type_mismatch


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
def test_timestamps(text, hour):
    """ISO 8601; a value without zone is UTC, one with an offset becomes UTC."""
    (row,), _ = read(b'{"t":"%b"}' % text.encode())
    midnight = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert row["t"] == midnight + datetime.timedelta(hours=hour)


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
