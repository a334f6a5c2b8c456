"""Attacks on what is found all at once: it may name only what the parse refuses, and is fast."""

import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.files.records import read_whole
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.formats.lines import BadRecords, Parser, RecordLines
from tiers import examples

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("h", pa.int16()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("b", pa.bool_()),
        ("m", pa.decimal128(6, 2)),
        ("s", pa.string()),
        ("t", pa.timestamp("us", tz="UTC")),
    ]
)
NESTED = pa.schema(
    [*SCHEMA, ("n", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.decimal128(6, 2)))]))]
)
MANY = settings(derandomize=True, database=None, deadline=None, max_examples=examples(500))

TOKENS = [
    "1", "-1", "+1", "0", "-0", "-", "007", "0x10", "1.0", "1.50", "1.500", "1.234", "12345",
    "-9999.99", "1e3", "1E-3", ".5", "5.", "1e400", "-1e400", "32767", "32768", "-32768",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "00000000000000000001",
    "1" * 50, "true", "false", "True", "TRUE", "tRue", "null", "NaN", "-NaN", "Inf", "-Infinity",
    "Infinity", "nan", "inf", "nan(1)", "infinit", " 1", "1 ", "\t1", "\v1", "\xa01", "1_0", "1,5",
    "1d", "0b1", "", "yes", "1.2.3", "1e", "12345.67", "1e10", "1e-40", "1e-99999", "0e9",
    "\u0661", "1\u0661", "2020-01-01", "2020-01-01T10:00:00.1234567Z",
]  # fmt: skip
JSON_VALUES = [
    *TOKENS, *(json.dumps(token) for token in TOKENS), "{}", "[]", "[1]", "[1.234]", '{"x":1}',
    '{"x":"1"}', '{"x":1,"x":2}', '{"l":[1.5,null]}', '{"l":[12345]}', '{"l":["x"]}', "[[",
    '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\u00e9"', '"\\x"', '"\t"', "[1,]", "01", "tru",
]  # fmt: skip
KEYS = [*NESTED.names, "zzz", "I", "\\u0069", "x"]


@st.composite
def json_lines(draw: Callable) -> bytes:
    pair = st.tuples(st.sampled_from(KEYS), st.sampled_from(JSON_VALUES))
    pairs = draw(st.lists(pair, max_size=4))
    text = ",".join(f'"{key}":{value}' for key, value in pairs)
    frame = st.sampled_from(["{%s}", "{%s", "{ %s }", "[%s]", "{%s}{}", "{%s,}", "{%s}x"])
    whole = draw(frame) % text
    at = draw(st.integers(0, 3 * len(whole)))
    return (whole[:at] + draw(st.sampled_from(["", "", " ", '"', "}"])) + whole[at:]).encode()


@st.composite
def csv_lines(draw: Callable) -> bytes:
    fields = [draw(st.sampled_from(["", *TOKENS, '"1"', '""', '"a', 'a"b', '"a""b"', '"a,b"']))
              for _ in SCHEMA]
    fields = fields[: draw(st.sampled_from([len(fields)] * 9 + [3]))]
    return ",".join(fields).encode()


def lines_of(*texts: bytes) -> RecordLines:
    sizes = np.array([len(text) for text in texts])
    ends = np.cumsum(sizes + 1) - 1
    starts = ends - sizes
    data = b"\n".join([*texts, b""])
    return RecordLines(data=data, starts=starts, ends=ends, offsets=starts, lengths=sizes + 1)


def named(parser: Parser, texts: list[bytes]) -> dict[int, tuple]:
    found: dict[int, tuple] = {}
    for find in parser.finders:
        left = [at for at in range(len(texts)) if at not in found]
        if left:
            more = find(lines_of(*(texts[at] for at in left)))
            found |= {left[at]: why for at, why in more.items()}
    return found


def refused(parser: Parser, text: bytes) -> bool:
    try:
        return parser.parse(lines_of(text))[0].num_rows != 1
    except BadRecords:
        return True


def check(parser: Parser, raws: list[bytes]) -> None:
    texts = [text for raw in raws if b"\n" not in raw and (text := parser.clean(raw))]
    together = named(parser, texts)
    for at, text in enumerate(texts):
        alone = named(parser, [text])
        assert alone == ({0: together[at]} if at in together else {}), text
        if at in together:
            assert refused(parser, text), text


@MANY
@given(st.lists(json_lines(), min_size=1, max_size=6))
def test_only_bad_json_is_named(raws: list[bytes]) -> None:
    """What is named at once is refused by the parse, alone too, and named alike beside others."""
    check(JsonLines().parser(NESTED, None), raws)


@MANY
@given(st.lists(csv_lines(), min_size=1, max_size=6))
def test_only_bad_csv_is_named(raws: list[bytes]) -> None:
    """The same of CSV."""
    check(CsvFormat(header=False).parser(SCHEMA, SCHEMA.names), raws)


@pytest.mark.parametrize("beside", [b"", b'"u":NaN,', b'"v":1.2,'])
@pytest.mark.parametrize(
    ("column", "place", "value"),
    [
        (b'"m":%b', "m", b"1.25"),
        (b'"m":%b', "m", b'"x"'),
        (b'"m":%b', "m", b"NaN"),
        (b'"l":[1.5,%b]', "l[1]", b"1.25"),
        (b'"s":{"d":%b}', "s.d", b"1.25"),
        (b'"s":{"d":%b}', "s.d", b"NaN"),
    ],
)
def test_which_decimal_is_wrong(column: bytes, place: str, value: bytes, beside: bytes) -> None:
    """A decimal that its column cannot hold is named with its value, whatever lies beside it."""
    kind = pa.decimal128(4, 1)
    schema = pa.schema(
        {"m": kind, "v": kind, "l": pa.list_(kind), "s": pa.struct({"d": kind})}.items()
    )
    _, [found] = read_whole(b"{%b%b}\n" % (beside, column % value), JsonLines(), schema)
    digits = "a number of at most 4 digits, 1 of them after the point"
    assert (found.reason, found.detail) == (
        "type_mismatch", f"{place}: expected {digits}, found {value.decode()}",
    )  # fmt: skip


GOOD_JSON = (
    b'{"i":%d,"f":1.5,"b":true,"m":1.25,"s":"some text of some length",'
    b'"t":"2024-05-01T10:00:00Z"}\n'
)
GOOD_CSV = b"%d,3,1.5,2.5,true,1.25,some text of some length,2024-05-01T10:00:00Z\n"
BAD_JSON = {
    "type": (b'"f":1.5', b'"f":"x"'),
    "malformed": (b'"f":1.5', b'"f":1.5.5'),
    "cut": (b"}\n", b"\n"),
    "repeated": (b'"f":1.5', b'"f":1.5,"f":1.5'),
    "decimal": (b'"m":1.25', b'"m":1.255'),
    "decimal_digits": (b'"m":1.25', b'"m":123456'),
    "wide_decimal": (b'"m":1.25', b'"m":12345.67'),
    "no_decimal": (b'"m":1.25', b'"m":"n/a"'),
    "nan": (b'"f":1.5', b'"f":NaN'),
    "nan_in_text": (b'"some text of some length"', b"NaN"),
    "time": (b"2024-05-01T10", b"01/05/2024 10"),
    "no_such_day": (b"2024-05-01T", b"2024-02-30T"),
    "encoding": (b"some text", b"some\xff text"),
    "nul": (b"some text", b"some\0 text"),
}
BAD_CSV = {
    "fields": (b",true", b",true,true"),
    "quoted_fields": (b",some text", b',"some",text'),
    "integer": (b",3,", b",3.5,"),
    "hex": (b",3,", b",0x3,"),
    "double": (b",1.5,", b',"1,5",'),
    "date_in_double": (b",1.5,", b",01.05.2024,"),
    "decimal": (b",1.25,", b",1.255,"),
    "wide_decimal": (b",1.25,", b",12345.67,"),
    "boolean": (b"true", b"yes"),
    "quote": (b",some text", b',"some text'),
    "time": (b"2024-05-01T10", b"01/05/2024 10"),
    "encoding": (b"some text", b"some\xff text"),
}


KINDS = pytest.mark.parametrize(
    ("form", "good", "bad"),
    [(JsonLines(), GOOD_JSON, change) for change in BAD_JSON.values()]
    + [(CsvFormat(header=False), GOOD_CSV, change) for change in BAD_CSV.values()],
    ids=[*(f"jsonl-{name}" for name in BAD_JSON), *(f"csv-{name}" for name in BAD_CSV)],
)


def times_as_long(form: JsonLines | CsvFormat, good: bytes, bad: tuple, *, every: int) -> float:
    """How long lines take of which one in `every` is bad, as a multiple of the good lines' time."""
    lines = [good % n for n in range(8_000)]
    spoilt = [line if n % every else line.replace(*bad) for n, line in enumerate(lines)]

    def seconds(lines: list[bytes], rejected: int) -> float:
        data = b"".join(lines)
        assert data.count(b"\n") == len(lines)
        start = time.process_time()
        _, found = read_whole(data, form, SCHEMA)
        assert len(found) == rejected
        return time.process_time() - start

    bads = len(lines) // every
    clean = min(seconds(lines, 0) for _ in range(3))
    return min(seconds(spoilt, bads) for _ in range(3)) / clean


@pytest.mark.sample(8)
@pytest.mark.parametrize(("every", "times"), [(1, 60), (10, 8)])
@KINDS
def test_bad_input_is_read_in_bulk(
    form: JsonLines | CsvFormat, good: bytes, bad: tuple, every: int, times: int
) -> None:
    """Where every line is bad, the time is a small multiple of the good lines' and not a thousand;
    where one in ten is, thrice that of good lines, and in a block alone.

    One parse a bad line took some 250 us, 400 times as long. The bounds are far above what a quiet
    machine shows, and leave a first block, in which nothing is known of the faults.
    """
    ratio = times_as_long(form, good, bad, every=every)
    assert ratio < times, f"lines of which 1/{every} is bad took {ratio:.0f} times as long"
