"""Avro values: what each type becomes in a column, by semel's reader and by the audit's own."""

import io
import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.records import read_whole
from fixtures.kafka.registry import record
from semel.audit.exact import LineKind, Rules, json_judge
from semel.declare.ddl import parse
from semel.formats.avro import SchemaError, decoder
from semel.formats.jsonl import JsonLines
from semel.formats.lines import BadRecords
from semel.sources.kafka.audit.avro import NotAvro, reader

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"

DAY = datetime(2024, 2, 29, 10, 0, tzinfo=UTC)
MICROS = 1_709_200_800_000_000
"""The same, in microseconds from 1970 on."""


def logical(kind: str, name: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, **more: object) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


WIDE = logical("bytes", "decimal", precision=38, scale=10)
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INNER = record(("a", "long"), ("b", ["null", "string"]), name="Inner")
REFUSED = "refused"

# What the table of docs/kafka.md calls it: schema, what the binary holds, column, what it is there.
CELLS: dict[str, list[tuple[Any, Any, str, Any]]] = {
    "null": [("null", None, "string", None), (["null", "long"], None, "bigint", None)],
    "boolean": [("boolean", True, "boolean", True), ("boolean", False, "bigint", REFUSED)],
    "int, long": [
        ("long", (1 << 63) - 1, "bigint", (1 << 63) - 1),
        ("long", -(1 << 63), "bigint", -(1 << 63)),
        ("long", (1 << 53) + 1, "bigint", (1 << 53) + 1),
        ("long", 1 << 31, "int", REFUSED),
        ("int", -(1 << 31), "int", -(1 << 31)),
        ("int", 40_000, "smallint", REFUSED),
        ("int", -32_768, "smallint", -32_768),
        ("int", 7, "float", 7.0),
        ("long", (1 << 53) + 1, "decimal(38,0)", Decimal((1 << 53) + 1)),
        ("int", 7, "double", 7.0),
        ("long", 1, "string", REFUSED),
        ("long", MICROS, "timestamp", REFUSED),
    ],
    "float, double": [
        ("double", 0.1, "double", 0.1),
        ("double", 5e-324, "double", 5e-324),
        ("double", 1.7976931348623157e308, "double", 1.7976931348623157e308),
        ("float", 0.10000000149011612, "float", 0.10000000149011612),
        ("float", 0.10000000149011612, "double", 0.10000000149011612),
        ("double", 1e39, "float", REFUSED),
        ("double", math.nan, "double", REFUSED),
        ("double", math.inf, "double", REFUSED),
        ("float", -math.inf, "double", REFUSED),
        ("double", 1.0, "bigint", REFUSED),
    ],
    "string, enum": [
        ("string", 'é"\\\n', "string", 'é"\\\n'),
        (ENUM, "B", "string", "B"),
        ("string", "1.50", "decimal(6,2)", Decimal("1.50")),
        ("string", "2024-02-29", "date", date(2024, 2, 29)),
        ("string", "2024-02-29T10:00:00Z", "timestamp", DAY),
        ("string", "QQ==", "binary", b"A"),
        ("string", "7", "bigint", REFUSED),
    ],
    "bytes, fixed": [
        ("bytes", b"\0\xff", "binary", b"\0\xff"),
        ("bytes", b"", "binary", b""),
        (fixed(2), b"\0\xff", "binary", b"\0\xff"),
        ("bytes", b"\0\xff", "string", "AP8="),
    ],
    "decimal": [
        (WIDE, Decimal("-1234567890123456789012345678.0123456789"), "decimal(38,10)",
         Decimal("-1234567890123456789012345678.0123456789")),
        (WIDE, Decimal("0.5"), "decimal(6,2)", Decimal("0.50")),
        (WIDE, Decimal(0), "decimal(6,2)", Decimal("0.00")),
        (WIDE, Decimal("0.005"), "decimal(6,2)", REFUSED),
        (WIDE, Decimal("10000"), "decimal(6,2)", REFUSED),
        (fixed(9, logicalType="decimal", precision=20, scale=0), Decimal(-(10**19)),
         "decimal(38,0)", Decimal(-(10**19))),
        (WIDE, Decimal("-0.5"), "string", "-0.5"),
        (WIDE, Decimal("0.5"), "double", REFUSED),
    ],
    "date": [
        (logical("int", "date"), date(2024, 2, 29), "date", date(2024, 2, 29)),
        (logical("int", "date"), date.min, "date", date.min),
        (logical("int", "date"), date(2024, 2, 29), "string", "2024-02-29"),
    ],
    "timestamp-millis, timestamp-micros": [
        (logical("long", "timestamp-millis"), DAY, "timestamp", DAY),
        (logical("long", "timestamp-micros"), DAY.replace(microsecond=1), "timestamp",
         DAY.replace(microsecond=1)),
        (logical("long", "timestamp-micros"), datetime.min.replace(tzinfo=UTC), "timestamp",
         datetime.min.replace(tzinfo=UTC)),
        (logical("long", "timestamp-millis"), DAY, "string", "2024-02-29T10:00:00Z"),
        (logical("long", "timestamp-millis"), DAY.replace(microsecond=5000), "string",
         "2024-02-29T10:00:00.005000Z"),
        (logical("long", "timestamp-millis"), DAY, "bigint", REFUSED),
    ],
    "timestamp-nanos": [
        (logical("long", "timestamp-nanos"), MICROS * 1000 + 1_002, "timestamp",
         DAY.replace(microsecond=1)),
        (logical("long", "timestamp-nanos"), MICROS * 1000 + 1_002, "string",
         "2024-02-29T10:00:00.000001002Z"),
        (logical("long", "timestamp-nanos"), -1, "string", "1969-12-31T23:59:59.999999999Z"),
    ],
    "local-timestamp-millis, -micros, -nanos": [
        (logical("long", "local-timestamp-millis"), DAY.replace(tzinfo=None), "timestamp", DAY),
        (logical("long", "local-timestamp-micros"), DAY.replace(tzinfo=None), "string",
         "2024-02-29T10:00:00"),
        (logical("long", "local-timestamp-nanos"), MICROS * 1000, "timestamp", DAY),
    ],
    "time-millis, time-micros": [
        (logical("int", "time-millis"), 1, "string", "00:00:00.001000"),
        (logical("int", "time-millis"), 36_000_000, "string", "10:00:00"),
        (logical("long", "time-micros"), 86_399_999_999, "string", "23:59:59.999999"),
    ],
    "uuid": [
        (logical("string", "uuid"), "12345678-1234-5678-1234-567812345678", "string",
         "12345678-1234-5678-1234-567812345678"),
        (fixed(16, logicalType="uuid"), UUID(int=255).bytes, "string",
         "00000000-0000-0000-0000-0000000000ff"),
    ],
    "duration": [(fixed(12, logicalType="duration"), b"x" * 12, "binary", b"x" * 12)],
    "a logical type whose value has no meaning": [
        (logical("long", "timestamp-millis"), 1 << 60, "bigint", 1 << 60),
        (logical("long", "timestamp-millis"), 1 << 60, "timestamp", REFUSED),
        (logical("int", "date"), 1 << 30, "date", REFUSED),
        (logical("int", "date"), 1 << 30, "int", 1 << 30),
        (logical("int", "time-millis"), -1, "string", REFUSED),
        (logical("long", "no-such-type"), 7, "bigint", 7),
        (logical("bytes", "decimal", precision=5, scale=-1), b"A", "binary", b"A"),
    ],
    "record": [
        (INNER, {"a": 1, "b": None}, "struct<a: bigint, b: string>", {"a": 1, "b": None}),
        (INNER, {"a": 1, "b": "x"}, "json", '{"a":1,"b":"x"}'),
        (INNER, {"a": 1, "b": "x"}, "struct<a: string>", REFUSED),
        (record(("a", "long"), name="Long"), {"a": 1}, "map<string, bigint>", [("a", 1)]),
    ],
    "array": [
        ({"type": "array", "items": "long"}, [1, 2], "array<bigint>", [1, 2]),
        ({"type": "array", "items": INNER}, [], "json", "[]"),
        ({"type": "array", "items": logical("int", "date")}, [date.max], "array<date>", [date.max]),
    ],
    "map": [
        ({"type": "map", "values": "long"}, {"a": 1}, "map<string, bigint>", [("a", 1)]),
        ({"type": "map", "values": "double"}, {"a": math.nan}, "map<string, double>", REFUSED),
        ({"type": "map", "values": "long"}, {"a": 1}, "struct<a: int>", {"a": 1}),
        ({"type": "map", "values": "long"}, {}, "json", "{}"),
    ],
    "union": [
        (["null", "string", "long"], 7, "bigint", 7),
        (["null", "string", "long"], "a", "bigint", REFUSED),
        (["null", "string", "long"], "a", "json", '"a"'),
    ],
}  # fmt: skip

ALL = [(name, *cell) for name, cells in CELLS.items() for cell in cells]


def binary(schema: Any, value: Any) -> bytes:
    """As a producer writes it; a number goes where a logical type is as well."""
    if isinstance(schema, dict) and "logicalType" in schema and isinstance(value, int | bytes):
        schema = {key: item for key, item in schema.items() if key != "logicalType"}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


@pytest.mark.parametrize(("name", "schema", "value", "column", "there"), ALL)
def test_what_each_type_becomes(
    name: str, schema: Any, value: Any, column: str, there: Any
) -> None:
    """Each digit of it, or its record is a dead letter; the audit's own reader says the same."""
    whole, data = record(("v", schema)), binary(schema, value)
    text = decoder(json.dumps(whole))(data, 0)
    kind = parse(column)
    table_schema = pa.schema([("v", kind.arrow())])
    texts = ("v",) if column == "json" else ()
    blocks, rejected = read_whole(text, JsonLines(json=texts), table_schema)
    own, doubts = reader(json.dumps(whole))(data, 0)
    judged = json_judge({"v": kind}, Rules(typed=True))(own.encode())
    assert not doubts
    if there == REFUSED:
        assert [found.reason for found in rejected] == ["type_mismatch"]
        assert judged.kind is LineKind.BAD, judged
        return
    assert not rejected
    assert blocks[0].table.column("v").to_pylist() == [there]
    assert judged.kind in (LineKind.GOOD, LineKind.UNSURE), judged
    if isinstance(value, Decimal):
        assert judged.kind is LineKind.GOOD
    assert _plain(text) == _plain(own)


SCHEMAS = [
    record(("v", schema), ("w", ["null", "string"])) for _, schema, *_ in ALL
    if schema is not ENUM and not (isinstance(schema, dict) and schema["type"] == "fixed")
] + [record(("v", ENUM)), record(("v", fixed(3))), record(("v", {"type": "map", "values": ENUM}))]


# Attacks KS7.
@given(st.sampled_from(SCHEMAS), st.binary(max_size=60))
def test_any_bytes(schema: Any, data: bytes) -> None:
    """Whatever they are: they are the same to the audit's own reader, or no value to both; unless
    that one says that readers may differ."""
    try:
        found = decoder(json.dumps(schema))(data, 0)
    except BadRecords:
        found = None
    try:
        own, doubts = reader(json.dumps(schema))(data, 0)
    except NotAvro:
        assert found is None
        return
    if not doubts:
        assert found is not None and _plain(found) == _plain(own)


def _plain(text: bytes | str) -> object:
    """NaN is equal to itself, and so are two ways to write base64's bytes."""
    return json.loads(text, parse_constant=str)


# Attacks KS7.
@pytest.mark.parametrize(("schema", "data", "words"), [
    (record(("v", "long")), b"\2\2", "1 more bytes after it"),
    (record(("v", "string")), b"\6a", "EOFError"),
    (record(("next", ["null", "L"]), name="L"), b"\2" * 100_000 + b"\0", "RecursionError"),
])  # fmt: skip
def test_what_is_no_value_of_its_schema(schema: Any, data: bytes, words: str) -> None:
    """What is left over, what ends early, and what is nested until a process would die of it."""
    with pytest.raises(BadRecords, match=words):
        decoder(json.dumps(schema))(data, 0)
    with pytest.raises(NotAvro):
        reader(json.dumps(schema))(data, 0)


# Attacks KS7.
@pytest.mark.parametrize("text", [
    "5", "null", "", "{", '{"type": "record"}', '"no-such-type"', '{"type": "array"}',
    json.dumps(record(("v", {"type": "array", "items": "null"}))),
    json.dumps(record(("v", {"type": "array", "items": record(("n", "null"), name="N")}))),
    json.dumps(record(("v", {"type": "array", "items": fixed(0)}))),
    '{"type": "array", "items": ' * 20_000 + '"long"' + "}" * 20_000,
])  # fmt: skip
def test_schemas_that_nothing_can_be_read_by(text: str) -> None:
    """Also such of which five bytes would be 2 ** 31 values."""
    with pytest.raises(SchemaError):
        decoder(text)
    with pytest.raises(NotAvro):
        reader(text)


def test_a_schema_that_holds_itself_and_others() -> None:
    """A tree; a schema that others refer to, by its full name and within their namespace."""
    tree = record(("v", "long"), ("more", {"type": "array", "items": "Tree"}), name="Tree")
    place = record(("zip", "string"), name="Place") | {"namespace": "geo"}
    user = record(("home", "Place"), ("work", ["null", "geo.Place"]), name="User")
    user |= {"namespace": "geo"}
    for schema, refers, row in (
        (tree, [], {"v": 1, "more": [{"v": 2, "more": []}]}),
        (user, [place], {"home": {"zip": "1"}, "work": None}),
    ):
        known: dict[str, Any] = {}
        for one in refers:
            fastavro.parse_schema(one, named_schemas=known)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, known), row)
        texts = [json.dumps(one) for one in refers]
        assert json.loads(decoder(json.dumps(schema), texts)(stream.getvalue(), 0)) == row
        own, doubts = reader(json.dumps(schema), texts)(stream.getvalue(), 0)
        assert json.loads(own) == row and not doubts


def test_the_page_has_each_type() -> None:
    """The table of docs/kafka.md names what is tried here, and the columns that take it."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("### What Avro's types become")
    table = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]
    assert [name.replace("`", "") for name, *_ in cells] == list(CELLS)
    for name, columns, *_ in cells:
        cases = CELLS[name.replace("`", "")]
        tried = {parse(column).word for _, _, column, there in cases if there != REFUSED}
        told = set(re.findall(r"`([a-z]+)`", columns))
        assert not told or tried == told, name
