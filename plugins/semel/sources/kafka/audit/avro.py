"""The audit's Avro decoder, in pure Python and independent of the decoder that stage uses.

A value becomes equivalent JSON, which the audit checks like any other. Where the Avro specification
leaves a reader a choice, it records a doubt: then the audit accepts either verdict on the value.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any
from uuid import UUID

Read = Callable[["Input"], Any]
"""Decodes one value of a schema from the input."""

_DAY = 86_400
_ORDINAL = 719_163
"""Python's ordinal of 1970-01-01."""

_DIGITS_BYTES_MAX = 1_024
_VARINT_BYTES_MAX = 10


class NotAvro(ValueError):
    """The bytes are not a value of the schema, or the schema is unusable."""


class Input:
    """Bytes to decode from `at` on. `doubts`: what other decoders may decode differently."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.doubts: list[str] = []

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise NotAvro("it ends too early")
        data, self.at = self.data[self.at : end], end
        return data

    def long(self) -> int:
        """A 64-bit number as a zig-zag varint: seven bits in each byte, the lowest first."""
        number, start = 0, self.at
        while True:
            byte = self.take(1)[0]
            # Bits beyond 64 wrap around, as in C.
            number |= (byte & 127) << (7 * (self.at - start - 1)) % 64
            if byte < 128:
                break
        if self.at - start > _VARINT_BYTES_MAX or number >> 64:
            self.doubts.append("it contains a number of more than 64 bits")
        number &= (1 << 64) - 1
        return (number >> 1) ^ -(number & 1)


def reader(text: str, refers: Iterable[str] = ()) -> Callable[[bytes, int], tuple[str, list[str]]]:
    """A function that decodes the value at a byte to its JSON, and the doubts about it.

    `refers`: the schemas that it refers to, each before the schema that uses it. Raises NotAvro if
    the schema is unusable; the returned function raises it for bytes that are not such a value.
    """
    names = _Names()
    try:
        for reference in refers:
            names.compile(json.loads(reference), "")
        read = names.compile(json.loads(text), "")
        names.check_items()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise NotAvro(f"its schema is unusable ({error})") from error

    def decode(value: bytes, at: int) -> tuple[str, list[str]]:
        source = Input(value, at)
        try:
            decoded = json.dumps(read(source), ensure_ascii=False)
        except UnicodeDecodeError as error:
            raise NotAvro("it contains a text that is not UTF-8") from error
        except RecursionError as error:
            raise NotAvro("it is nested too deeply") from error
        if source.at != len(value):
            raise NotAvro(f"{len(value) - source.at} more bytes follow it")
        return decoded, source.doubts

    return decode


class _Names:
    """Compiles schemas and their named types to readers."""

    def __init__(self) -> None:
        self._readers: dict[str, Read] = {}
        self._items: list[Read] = []

    def check_items(self) -> None:
        """Raises ValueError if items of an array may be empty: then a few bytes mean billions."""
        for item in self._items:
            try:
                item(Input(b"", 0))
            except NotAvro:
                continue
            raise ValueError("an array of empty items")

    def compile(self, schema: Any, space: str) -> Read:
        """`space`: the enclosing namespace."""
        if isinstance(schema, list):
            return _union([self.compile(branch, space) for branch in schema])
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._named(schema, space)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.compile(kind, space)
        logical = str(schema.get("logicalType"))
        if kind in ("record", "error", "enum", "fixed"):
            return self._defined(schema, kind, logical, space)
        if kind == "array":
            item = self.compile(schema["items"], space)
            self._items.append(item)
            return _array(item)
        if kind == "map":
            return _map(self.compile(schema["values"], space))
        if kind == "bytes" and logical == "decimal" and (digits := _decimal(schema)):
            return lambda source: digits(source.take(source.long()))
        if convert := _LOGICAL.get((kind, logical)):
            plain = _PLAIN[kind]
            return lambda source: convert(plain(source))
        return _PLAIN.get(kind) or self._named(kind, space)

    def _named(self, name: str, space: str) -> Read:
        full = _full(name, space)
        if full not in self._readers:
            full = name
        readers = self._readers
        readers[full]  # noqa: B018 - LookupError if it is unknown.
        return lambda source: readers[full](source)

    def _defined(self, schema: Any, kind: str, logical: str, space: str) -> Read:
        full = _full(schema["name"], schema.get("namespace", space))
        self._readers[full] = lambda source: read(source)
        read = self._named_reader(schema, kind, logical, full.rpartition(".")[0])
        self._readers[full] = read
        return read

    def _named_reader(self, schema: Any, kind: str, logical: str, space: str) -> Read:
        if kind == "enum":
            return _enum(schema["symbols"])
        if kind == "fixed":
            size, text = schema["size"], _decimal(schema) if logical == "decimal" else None
            if logical == "uuid" and size == 16:
                text = _uuid
            text = text or _base64
            return lambda source: text(source.take(size))
        fields = [(field["name"], self.compile(field["type"], space)) for field in schema["fields"]]
        return lambda source: {name: read(source) for name, read in fields}


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _one_of(source: Input, choices: list[Any], what: str) -> Any:
    index = source.long()
    if index < 0:
        source.doubts.append(f"the index of a {what} is negative")
    if not -len(choices) <= index < len(choices):
        raise NotAvro(f"there is no {what} with index {index}")
    return choices[index]


def _union(branches: list[Read]) -> Read:
    return lambda source: _one_of(source, branches, "union branch")(source)


def _enum(symbols: list[str]) -> Read:
    return lambda source: _one_of(source, symbols, "symbol of an enum")


def _blocks(source: Input, read_item: Callable[[], None]) -> None:
    while count := source.long():
        if count < 0:
            source.long()  # The block's size in bytes.
        # Each item takes at least one byte: see check_items.
        if abs(count) > len(source.data) - source.at:
            raise NotAvro("it ends too early")
        for _ in range(abs(count)):
            read_item()


def _array(item: Read) -> Read:
    def read(source: Input) -> list[Any]:
        items: list[Any] = []
        _blocks(source, lambda: items.append(item(source)))
        return items

    return read


def _map(value: Read) -> Read:
    def read(source: Input) -> dict[str, Any]:
        entries: dict[str, Any] = {}

        def read_entry() -> None:
            key = _string(source)
            if key in entries:
                source.doubts.append("a map has a duplicate key")
            entries[key] = value(source)

        _blocks(source, read_entry)
        return entries

    return read


def _boolean(source: Input) -> bool:
    byte = source.take(1)[0]
    if byte > 1:
        source.doubts.append(f"a boolean is the byte {byte}")
    return bool(byte)


def _int(source: Input) -> int:
    number = source.long()
    if not -(1 << 31) <= number < 1 << 31:
        source.doubts.append("an int has more than 32 bits")
    return number


def _string(source: Input) -> str:
    return source.take(source.long()).decode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _uuid(data: bytes) -> str:
    return str(UUID(bytes=data))


_PLAIN: dict[str, Read] = {
    "null": lambda source: None,
    "boolean": _boolean,
    "int": _int,
    "long": Input.long,
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": lambda source: _base64(source.take(source.long())),
    "string": _string,
}


def _decimal(schema: Any) -> Callable[[bytes], str] | None:
    """A function that returns a decimal's digits, without trailing zeros after the point.

    Returns None if the schema's scale is not valid.
    """
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or scale < 0:
        return None

    def text(data: bytes) -> str:
        if len(data) > _DIGITS_BYTES_MAX:
            return _base64(data)
        number = int.from_bytes(data, "big", signed=True)
        integer, part = divmod(abs(number), 10**scale)
        sign = "-" if number < 0 else ""
        fraction = f"{part:0{scale}d}".rstrip("0") if scale else ""
        return f"{sign}{integer}.{fraction}" if fraction else f"{sign}{integer}"

    return text


def _date(days: int) -> str | int:
    try:
        return date.fromordinal(days + _ORDINAL).isoformat()
    except (ValueError, OverflowError):
        return days


def _moment(unit: int, zone: str) -> Callable[[int], str | int]:
    """`unit`: units per second."""

    def text(count: int) -> str | int:
        days, ticks = divmod(count, _DAY * unit)
        day = _date(days)
        return f"{day}T{_hours(ticks, unit)}{zone}" if isinstance(day, str) else count

    return text


def _clock(unit: int) -> Callable[[int], str | int]:
    def text(count: int) -> str | int:
        return _hours(count, unit) if 0 <= count < _DAY * unit else count

    return text


def _hours(count: int, unit: int) -> str:
    seconds, part = divmod(count, unit)
    minutes, second = divmod(seconds, 60)
    digits = max(6, len(str(unit)) - 1)
    fraction = f".{part * 10**digits // unit:0{digits}d}" if part or digits > 6 else ""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{fraction}"


_LOGICAL: dict[tuple[str, str], Callable[[int], str | int]] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _clock(1_000),
    ("long", "time-micros"): _clock(1_000_000),
    **{
        ("long", f"{local}timestamp-{name}"): _moment(unit, zone)
        for name, unit in (("millis", 1_000), ("micros", 1_000_000), ("nanos", 1_000_000_000))
        for local, zone in (("", "Z"), ("local-", ""))
    },
}
