"""Avro: convert a record of a writer's schema to equivalent JSON, which then passes the JSON rules.

Numbers keep all digits: a decimal becomes text, whatever precision its schema declares. Times and
dates become ISO 8601 text, bytes become base64. NaN and infinities stay, and every column refuses
them. A value that its logical type cannot express (a day of the year 20000) stays a number.

fastavro reads the binary. This module avoids the cases in which fastavro rounds or crashes.
"""

import json
import math
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from io import BytesIO
from typing import Any
from uuid import UUID

import msgspec

from semel.formats.lines import BadRecords
from semel.model.reasons import Reason

Decode = Callable[[bytes, int], bytes]
"""Converts the Avro value at a byte to JSON. Raises BadRecords if it does not fit its schema."""

_EPOCH, _LOCAL = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_DAY_ONE = date(1970, 1, 1).toordinal()
_DAY_MICROS = 86_400_000_000
_DIGITS_BYTES_MAX = 1_024
"""Maximum bytes of a decimal: some 2,466 digits. Python refuses to format 4,300."""

_UNFIT = (ArithmeticError, EOFError, LookupError, TypeError, ValueError, RecursionError)
"""fastavro's errors for bytes of another schema."""

_PRIMITIVES = frozenset("null boolean int long float double bytes string".split())
_WHOLE = "semel_value"
"""The field of a record that wraps any schema: a one-field record has the field's own encoding."""


class SchemaError(ValueError):
    """The schema cannot be used; the message says why."""


def decoder(text: str, refers: Iterable[str] = ()) -> Decode:
    """The reader of a schema's values. `refers`: the schemas it refers to, each before its user.

    Raises SchemaError if the schema is invalid, or unsafe to read by.
    """
    import fastavro

    _register()
    named_types: dict[str, Any] = {}
    try:
        for reference in refers:
            fastavro.parse_schema(_reduced_schema(json.loads(reference)), named_schemas=named_types)
        field = {"name": _WHOLE, "type": _reduced_schema(json.loads(text))}
        record = {"type": "record", "name": _WHOLE, "fields": [field]}
        parsed = fastavro.parse_schema(record, named_schemas=named_types)
        shape = _Shape(named_types)
        if shape.endless(parsed):
            raise SchemaError(
                "it has an array of empty values: a few bytes could decode to billions of them"
            )
        recursive = shape.recursive(parsed, ())
    except (*_UNFIT, fastavro.schema.SchemaParseException) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"it is not an Avro schema ({type(error).__name__})") from error
    encode = msgspec.json.Encoder().encode
    return partial(_decode_value, _reader(recursive=recursive), parsed, encode)


def _reader(*, recursive: bool) -> Callable[[BytesIO, Any], Any]:
    """fastavro's reader. The compiled one crashes on values nested some thousand times, which only
    a recursive schema allows; the Python one raises RecursionError."""
    if recursive:
        from fastavro import _read_py

        return _read_py.schemaless_reader
    import fastavro

    return fastavro.schemaless_reader


# Keeps KS7.
def _decode_value(
    read: Callable[[BytesIO, Any], Any],
    schema: Any,
    encode: Callable[[Any], bytes],
    value: bytes,
    start: int,
) -> bytes:
    stream = BytesIO(value)
    stream.seek(start)
    try:
        encoded = encode(read(stream, schema)[_WHOLE])
    except _UNFIT as error:
        why = f"expected a value of its schema, found other bytes ({type(error).__name__})"
        raise BadRecords(Reason.malformed, why) from error
    extra = len(value) - stream.tell()
    if extra:
        raise BadRecords(
            Reason.malformed, f"expected a value of its schema, found {extra} more bytes after it"
        )
    return encoded


def _reduced_schema(schema: Any) -> Any:
    """Reduce a schema to the parts that determine its binary, with semel's logical types."""
    if isinstance(schema, list):
        return [_reduced_schema(one) for one in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _NUMBER} if schema in _FLOATS else schema
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _reduced_schema(kind)
    reduced = {key: schema[key] for key in ("type", "name", "namespace", "symbols", "size")
               if key in schema}  # fmt: skip
    if kind in ("record", "error"):
        reduced["fields"] = [
            {"name": field["name"], "type": _reduced_schema(field["type"])}
            for field in schema["fields"]
        ]
    elif kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        reduced[inner] = _reduced_schema(schema[inner])
    logical = _NUMBER if kind in _FLOATS else f"semel-{schema.get('logicalType')}"
    scale = schema.get("scale", 0)
    # By Avro's specification, readers ignore an invalid logical type.
    if f"{kind}-{logical}" in _READERS and isinstance(scale, int) and scale >= 0:
        reduced |= {"logicalType": logical, "scale": scale}
    return reduced


class _Shape:
    """Examines a parsed schema. `named_types`: its named types, as fastavro parsed them."""

    def __init__(self, named_types: dict[str, Any]) -> None:
        self._named_types = named_types
        self._plain: set[str] = set()

    def recursive(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Whether a named type contains itself."""
        name, inner = self._unwrap(schema)
        if name in within:
            return True
        if name in self._plain:
            return False
        is_recursive = any(
            self.recursive(one, (*within, name) if name else within) for one in inner
        )
        if name and not is_recursive:
            self._plain.add(name)
        return is_recursive

    def endless(self, parsed: Any) -> bool:
        """Whether an array's items may be empty: five bytes could then be 2 ** 31 items."""
        todo, visited = [parsed, *self._named_types.values()], set()
        while todo:
            schema = todo.pop()
            name, inner = self._unwrap(schema)
            if name in visited:
                continue
            visited |= {name} if name else set()
            if isinstance(schema, dict) and schema["type"] == "array":
                if self._empty(schema["items"], ()):
                    return True
            todo += inner
        return False

    def _empty(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Whether a value is zero bytes long."""
        name, inner = self._unwrap(schema)
        schema = self._named_types[name] if name else schema
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "fixed":
            return not schema["size"]
        if kind in ("record", "error"):
            return name not in within and all(self._empty(one, (*within, name)) for one in inner)
        return kind == "null"

    def _unwrap(self, schema: Any) -> tuple[str, list[Any]]:
        """The name of a named type (else empty), and the schemas inside it."""
        if isinstance(schema, list):
            return "", schema
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return "", []
            schema = self._named_types[schema]
        kind = schema["type"]
        if kind in ("array", "map"):
            return "", [schema["items" if kind == "array" else "values"]]
        inner = [field["type"] for field in schema.get("fields", ())]
        return schema["name"] if "name" in schema else "", inner


def _digits(data: bytes, schema: Any, _: Any = None) -> str | bytes:
    if len(data) > _DIGITS_BYTES_MAX:
        return data
    number, scale = int.from_bytes(data, "big", signed=True), schema["scale"]
    if not scale:
        return str(number)
    text = str(abs(number)).rjust(scale + 1, "0")
    # Trailing zeros would not fit a column of fewer digits.
    part = text[-scale:].rstrip("0")
    return f"{'-' if number < 0 else ''}{text[:-scale]}{'.' if part else ''}{part}"


def _number(data: float, *_: Any) -> float | msgspec.Raw:
    if math.isfinite(data):
        return data
    return _NAN if math.isnan(data) else _LARGE if data > 0 else _SMALL


_NAN, _LARGE, _SMALL = (msgspec.Raw(word) for word in (b"NaN", b"Infinity", b"-Infinity"))


def _date(data: int, *_: Any) -> date | int:
    try:
        return date.fromordinal(data + _DAY_ONE)
    except (ValueError, OverflowError):
        return data


def _moment(start: datetime, micros: int, data: int, *_: Any) -> datetime | int:
    """`micros`: microseconds of one unit."""
    try:
        return start + timedelta(microseconds=data * micros)
    except OverflowError:
        return data


def _nanos(start: datetime, data: int, *_: Any) -> str | int:
    micros, nanos = divmod(data, 1_000)
    moment = _moment(start, 1, micros)
    if isinstance(moment, int):
        return data
    zone = "Z" if moment.tzinfo else ""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}{nanos:03d}{zone}"


def _clock(micros: int, data: int, *_: Any) -> str | int:
    if not 0 <= data * micros < _DAY_MICROS:
        return data
    return (_LOCAL + timedelta(microseconds=data * micros)).time().isoformat()


def _uuid(data: bytes, *_: Any) -> str | bytes:
    return str(UUID(bytes=data)) if len(data) == 16 else data


_NUMBER = "semel-number"
_FLOATS = ("float", "double")
_READERS: dict[str, Callable[..., Any]] = {
    "bytes-semel-decimal": _digits,
    "fixed-semel-decimal": _digits,
    "fixed-semel-uuid": _uuid,
    "int-semel-date": _date,
    "int-semel-time-millis": partial(_clock, 1_000),
    "long-semel-time-micros": partial(_clock, 1),
    "long-semel-timestamp-millis": partial(_moment, _EPOCH, 1_000),
    "long-semel-timestamp-micros": partial(_moment, _EPOCH, 1),
    "long-semel-timestamp-nanos": partial(_nanos, _EPOCH),
    "long-semel-local-timestamp-millis": partial(_moment, _LOCAL, 1_000),
    "long-semel-local-timestamp-micros": partial(_moment, _LOCAL, 1),
    "long-semel-local-timestamp-nanos": partial(_nanos, _LOCAL),
    **{f"{kind}-{_NUMBER}": _number for kind in _FLOATS},
}
"""By type and logical type. The names are semel's own, because fastavro has one table for all its
users in a process."""


def _register() -> None:
    import fastavro.read

    fastavro.read.LOGICAL_READERS.update(_READERS)
