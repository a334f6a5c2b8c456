"""Avro: a record of a writer's schema becomes the JSON that means the same, judged as JSON is.

Numbers keep each digit: a decimal is the text of its digits, whatever precision its schema
declares. Times and dates are text as ISO 8601 has it, bytes are base64. NaN and infinities stay
what they are, which no column takes. A logical type whose value has no meaning (a day of the year
20000) is passed on as what it is without it, a number.

fastavro reads the binary. What it would round, and what it would end the process at, is kept from
it here.
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
"""The JSON of a value whose Avro begins at a byte. BadRecords: it does not fit its schema."""

_EPOCH, _LOCAL = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_DAY_ONE = date(1970, 1, 1).toordinal()
_DAY_MICROS = 86_400_000_000
_DIGITS_BYTES_MAX = 1_024
"""Bytes of a decimal. More would be some 2,466 digits; Python makes no text of 4,300."""

_UNFIT = (ArithmeticError, EOFError, LookupError, TypeError, ValueError, RecursionError)
"""What fastavro raises for bytes that are of another schema."""

_PRIMITIVES = frozenset("null boolean int long float double bytes string".split())
_WHOLE = "semel_value"
"""A record of one field is written as that field is: so each schema can be one of a record."""


class SchemaError(ValueError):
    """A schema by which no value can be read: why."""


def decoder(text: str, refers: Iterable[str] = ()) -> Decode:
    """Reads values of a schema. `refers`: the schemas that it refers to, each before its user.

    SchemaError: it is none, or one that values cannot be read safely by.
    """
    import fastavro

    _register()
    known: dict[str, Any] = {}
    try:
        for one in refers:
            fastavro.parse_schema(_meant(json.loads(one)), named_schemas=known)
        field = {"name": _WHOLE, "type": _meant(json.loads(text))}
        whole = {"type": "record", "name": _WHOLE, "fields": [field]}
        parsed = fastavro.parse_schema(whole, named_schemas=known)
        shape = _Shape(known)
        if shape.endless(parsed):
            raise SchemaError("a few bytes of it may be any number of values: a list of nothing")
        recursive = shape.recursive(parsed, ())
    except (*_UNFIT, fastavro.schema.SchemaParseException) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"it is no Avro schema ({type(error).__name__})") from error
    return partial(_decoded, _reader(recursive=recursive), parsed, msgspec.json.Encoder().encode)


def _reader(*, recursive: bool) -> Callable[[BytesIO, Any], Any]:
    """fastavro's reader. The compiled one ends the process at values nested some thousand times,
    which only a schema that holds itself has; Python's raises RecursionError."""
    if recursive:
        from fastavro import _read_py

        return _read_py.schemaless_reader
    import fastavro

    return fastavro.schemaless_reader


# Keeps KS7.
def _decoded(
    read: Callable[[BytesIO, Any], Any],
    schema: Any,
    encode: Callable[[Any], bytes],
    value: bytes,
    start: int,
) -> bytes:
    stream = BytesIO(value)
    stream.seek(start)
    try:
        found = encode(read(stream, schema)[_WHOLE])
    except _UNFIT as error:
        why = f"expected a value of its schema, found other bytes ({type(error).__name__})"
        raise BadRecords(Reason.malformed, why) from error
    left = len(value) - stream.tell()
    if left:
        raise BadRecords(
            Reason.malformed, f"expected a value of its schema, found {left} more bytes behind it"
        )
    return found


def _meant(schema: Any) -> Any:
    """A schema with what its binary depends on alone, and with semel's logical types."""
    if isinstance(schema, list):
        return [_meant(one) for one in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _NUMBER} if schema in _FLOATS else schema
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _meant(kind)
    made = {key: schema[key] for key in ("type", "name", "namespace", "symbols", "size")
            if key in schema}  # fmt: skip
    if kind in ("record", "error"):
        made["fields"] = [
            {"name": field["name"], "type": _meant(field["type"])} for field in schema["fields"]
        ]
    elif kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        made[inner] = _meant(schema[inner])
    logical = _NUMBER if kind in _FLOATS else f"semel-{schema.get('logicalType')}"
    scale = schema.get("scale", 0)
    # One that is not right is to be ignored, says Avro.
    if f"{kind}-{logical}" in _READERS and isinstance(scale, int) and scale >= 0:
        made |= {"logicalType": logical, "scale": scale}
    return made


class _Shape:
    """What can be told of a schema. `known`: its named types, as fastavro has parsed them."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._plain: set[str] = set()

    def recursive(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Whether a named type holds itself."""
        name, inner = self._opened(schema)
        if name in within:
            return True
        if name in self._plain:
            return False
        found = any(self.recursive(one, (*within, name) if name else within) for one in inner)
        if name and not found:
            self._plain.add(name)
        return found

    def endless(self, parsed: Any) -> bool:
        """Whether a list's items may take no byte: five bytes of it may be 2 ** 31 of them."""
        left, seen = [parsed, *self._known.values()], set()
        while left:
            schema = left.pop()
            name, inner = self._opened(schema)
            if name in seen:
                continue
            seen |= {name} if name else set()
            if isinstance(schema, dict) and schema["type"] == "array":
                if self._empty(schema["items"], ()):
                    return True
            left += inner
        return False

    def _empty(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Whether a value takes no byte."""
        name, inner = self._opened(schema)
        found = self._known[name] if name else schema
        kind = found["type"] if isinstance(found, dict) else found
        if kind == "fixed":
            return not found["size"]
        if kind in ("record", "error"):
            return name not in within and all(self._empty(one, (*within, name)) for one in inner)
        return kind == "null"

    def _opened(self, schema: Any) -> tuple[str, list[Any]]:
        """The name of a named type, and the schemas that are within."""
        if isinstance(schema, list):
            return "", schema
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return "", []
            schema = self._known[schema]
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
    # Zeros at the end say nothing, and a column of fewer digits would not take them.
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
    micros, rest = divmod(data, 1_000)
    found = _moment(start, 1, micros)
    if isinstance(found, int):
        return data
    zone = "Z" if found.tzinfo else ""
    return f"{found.replace(tzinfo=None).isoformat(timespec='microseconds')}{rest:03d}{zone}"


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
"""By the type and the name of a logical type of semel's own, for fastavro has one table for all who
use it in a process."""


def _register() -> None:
    import fastavro.read

    fastavro.read.LOGICAL_READERS.update(_READERS)
