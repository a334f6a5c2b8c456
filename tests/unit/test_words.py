"""What is said of a bad record: its column, what was expected, what was found, in plain words."""

import pyarrow as pa
import pytest

from fixtures.files.records import read_whole
from semel.formats import words
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.formats.records import REJECTED_DETAIL_CHARS_MAX
from semel.formats.words import FOUND_CHARS_MAX

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("h", pa.int16()), ("f", pa.float64()), ("g", pa.float32()),
        ("b", pa.bool_()), ("m", pa.decimal128(6, 2)), ("w", pa.decimal128(6, 0)),
        ("t", UTC), ("d", pa.date32()), ("z", pa.binary()), ("s", pa.string()),
    ]
)  # fmt: skip
NESTED = pa.schema(
    [
        *SCHEMA,
        ('od"d', pa.int64()),
        ("legs", pa.list_(pa.struct([("n", pa.int16()), ("at", UTC)]))),
        ("o", pa.struct([("x", pa.struct([("y", pa.string())]))])),
        ("p", pa.struct([("m", pa.decimal128(6, 2)), ("f", pa.list_(pa.float64()))])),
        ("e", pa.map_(pa.string(), pa.int64())),
    ]
)
WHOLE, NUMBER = "a whole number", "a number"
DECIMAL = "a number of at most 6 digits, 2 of them after the point"
TIME, DATE = "a time such as 2026-01-01T00:00:00Z", "a date such as 2026-01-31"
OBJECT, LIST, BASE64 = "an object {...}", "a list [...]", "base64 with its padding"

IN_BOTH = [
    ("i", '"N/A"', WHOLE, '"N/A"'),
    ("i", "9223372036854775808", "a whole number from -2^63 to 2^63 - 1", "9223372036854775808"),
    ("i", "1.5", WHOLE, "1.5"),
    ("h", "40000", "a whole number from -32768 to 32767", "40000"),
    ("f", '"x"', NUMBER, '"x"'),
    ("b", "1.5", "true or false", "1.5"),
    ("m", '"n/a"', DECIMAL, '"n/a"'),
    ("m", "1.234", DECIMAL, "1.234"),
    ("w", '"x"', "a whole number of at most 6 digits", '"x"'),
    ("t", '"01/05/2026"', TIME, '"01/05/2026"'),
    ("d", '"2026-02-30"', DATE, '"2026-02-30"'),
    ("z", '"QQ"', BASE64, '"QQ"'),
    ("i", f'"{"x" * 41}"', WHOLE, f'"{"x" * 40}..."'),
    ("i", '"\u202ea\xa0"', WHOLE, '"\\u202ea\\xa0"'),
]
"""A column, a value in JSON, what was expected, what is shown; in CSV all that is found is text."""

COMPUTED = [
    ("f", "NaN", NUMBER, "NaN"),
    ("g", "1e39", "a number up to 3.4e+38", "a larger one"),
    ("m", "12345", DECIMAL, "12345.00"),
    ("t", '"0000-12-31"', "a time in the years 1 to 9999", "0000-12-31T00:00:00.000000Z"),
    ("d", '"0000-12-31"', "a date in the years 1 to 9999", "0000-12-31"),
]
"""The same, where what is shown is the value that was read: alike in JSON and CSV."""

JSON_ALONE = [
    ("f", "1e400", "a number up to 1.8e+308", "1e400"),
    ("s", "NaN", "text", "NaN"),
    ("i", "NaN", WHOLE, "NaN"),
    ("t", "12", TIME, "12"),
    ("z", "[1]", BASE64, "[1]"),
    ("i", '{"a": 1}', WHOLE, '{"a": 1}'),
    ("i", '"\\u0041\\n\\""', WHOLE, '"A\\n\\""'),
    ("i", "[" * 2_000 + "]" * 2_000, WHOLE, "[" * 40 + "..."),
    ("legs", "{}", LIST, "{}"),
    ("o", "[]", OBJECT, "[]"),
    ("e", "[1]", OBJECT, "[1]"),
    ('od"d', '"x"', WHOLE, '"x"'),
]


@pytest.mark.parametrize(
    ("column", "value", "expected", "found"), IN_BOTH + COMPUTED + JSON_ALONE
)
def test_words_of_json(column: str, value: str, expected: str, found: str) -> None:
    """Column, what was expected, what was found: short, in quotes where it is text, escaped."""
    key = column.replace('"', '\\"')
    assert of_json(f'{{"{key}":{value}}}') == f"{column}: expected {expected}, found {found}"


@pytest.mark.parametrize(("column", "value", "expected", "found"), IN_BOTH + COMPUTED)
def test_words_of_csv(column: str, value: str, expected: str, found: str) -> None:
    """The same sentence. What stands in a field is text."""
    field = value.strip('"')
    if (column, value, expected, found) not in COMPUTED:
        found = f'"{found}"' if not found.startswith('"') else found
    fields = ["" if name != column else field for name in SCHEMA.names]
    good = b",".join([b"1", *[b""] * (len(SCHEMA) - 1)])
    _, (bad,) = read_whole(
        good + b"\n" + ",".join(fields).encode() + b"\n" + good, CsvFormat(header=False), SCHEMA
    )
    assert bad.detail == f"{column}: expected {expected}, found {found}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"legs":[{"n":1},{"n":"q"}]}', f'legs[1].n: expected {WHOLE}, found "q"'),
        ('{"legs":[{"n":1},{"at":"x"}]}', f'legs[].at: expected {TIME}, found "x"'),
        ('{"legs":[null,{"at":12}]}', f"legs[1].at: expected {TIME}, found 12"),
        ('{"o":{"x":{"y":[2]}}}', "o.x.y: expected text, found [2]"),
        ('{"p":{"m":99999}}', f"p.m: expected {DECIMAL}, found 99999.00"),
        ('{"p":{"m":"x"}}', f'p.m: expected {DECIMAL}, found "x"'),
        ('{"p":{"f":[1,null,NaN,-Infinity]}}', "p.f[]: expected a number, found NaN"),
        ('{"e":{"a":1,"b\\n":"x"}}', f'e["b\\n"]: expected {WHOLE}, found "x"'),
        ('{"e":{"a":1,"a":2}}', 'e: the key "a" appears twice'),
        ('{"i":1,"i":1}', 'the key "i" appears twice'),
        ("[1]", "expected a JSON object {...}, found [1]"),
        ("hello", "expected a JSON object {...}, found hello"),
        ('{"i":1}{"i":2}', 'expected one JSON object, found more after it: {"i":2}'),
        ('{"i":1', 'not JSON: cut off after {"i":1'),
        ('{"i":01}', "not JSON at byte 6 of the record (invalid number): 1}"),
        ('{"s":"a\tb"}', 'not JSON at byte 7 of the record (invalid character): \\tb"}'),
    ],
)
def test_words_of_a_json_record(text: str, said: str) -> None:
    """Within values the place is told; what is no JSON is told with its place in the record."""
    assert of_json(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"1,2", "expected 11 fields, found 2"),
        (b'1,,,,,,,,,,"x', "a quote is not closed"),
        (b"1,,,,,-1e-99999,,,,,", f'm: expected {DECIMAL}, found "-1e-99999"'),
        (b"1,,,,,,,,,,\rx", "a carriage return (CR) without a line feed, or a quote that is not"),
        (b"1,,,,,,,,,,\xff", "expected text in UTF-8, found the byte 0xff at byte 11 of the rec"),
        (b"1,,,,,,,,,,\0", "expected text, found a NUL byte"),
    ],
)
def test_words_of_a_csv_record(text: bytes, said: str) -> None:
    """What is wrong with a record as a whole."""
    _, (bad,) = read_whole(text + b"\n", CsvFormat(header=False), SCHEMA)
    assert bad.detail.startswith(said)


def test_what_is_shown_is_short() -> None:
    """40 characters, whatever they are, of values by the megabyte too."""
    shown = f"i: expected {WHOLE}, found "
    assert of_json('{"i":"%s"}' % ("\0" * 50).replace("\0", "\\u0000")).startswith(shown)
    cut = "é" * FOUND_CHARS_MAX
    assert of_json('{"i":"%s"}' % ("é" * 1_000_000)) == f'{shown}"{cut}..."'
    assert words.quote('a"b\\') == '"a\\"b\\\\"'


def of_json(text: str) -> str:
    _, (bad,) = read_whole(f'{{"i":1}}\n{text}\n{{"i":2}}'.encode(), JsonLines(), NESTED)
    assert bad.detail.isprintable() and len(bad.detail) <= REJECTED_DETAIL_CHARS_MAX
    return bad.detail
