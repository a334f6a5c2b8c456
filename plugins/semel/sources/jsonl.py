"""JSON Lines: one object on each line, nothing else.

Keys that the schema does not name are ignored; they may repeat, and may hold NaN. A repeated key
that it names, at any depth, rejects the record. Text is not taken for a number, nor a number for
text. White space around an object, blank lines, CRLF and a mark of UTF-8 at the start of the file
are fine.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json

from semel.sources.blocks import line_ends
from semel.sources.columns import as_read
from semel.sources.jsontext import Texts
from semel.sources.lines import BadRecords, Fault, Lines, Reason

_BLANK = b" \t\r"
_OPENS = ord("{")
# Above any block, so that the reader never cuts by itself. It does not allocate it.
_READ = pa.json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)
# Words that pyarrow takes for numbers, and that are no JSON.
_NO_JSON = re.compile(rb"NaN|Inf")


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """The format `jsonl`. `json` are the columns that keep a value's text, whatever it is."""

    json: tuple[str, ...] = ()

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> "_JsonParser":
        """See lines.Format. `columns` has no meaning here."""
        return _JsonParser(schema, self.json)


class _JsonParser:
    header_records = 0
    record_ends = staticmethod(line_ends)

    def __init__(self, schema: pa.Schema, texts: tuple[str, ...]) -> None:
        self._schema = schema
        self._texts = Texts(texts) if texts else None
        self._read_columns = pa.schema([field for field in schema if field.name not in texts])
        self._times_as_text = False
        self._options = self._parse_options()
        self._decode = msgspec.json.Decoder(_struct(self._read_columns)).decode
        decimals = pa.schema(
            [f for f in schema if pa.types.is_decimal(f.type) and _nameable(f.name)]
        )
        self._decimals = list(decimals)
        self._decode_decimals = msgspec.json.Decoder(_struct(decimals, exact=True)).decode
        self._keys = [json.dumps(name, ensure_ascii=False).encode() for name in _names(schema)]

    def _parse_options(self) -> pa.json.ParseOptions:
        fields = [
            pa.field(field.name, as_read(field.type, times_as_text=self._times_as_text))
            for field in self._read_columns
        ]
        return pa.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
        )

    def parse(self, lines: Lines) -> pa.Table:
        """See lines.Parser.

        pyarrow.json does not go by lines: two objects on a line are two rows, one object on two
        lines is one. But no value goes on with `{` behind a `}`. So where each line starts with
        `{` and ends with `}`, none goes on in the next one, and as many rows as lines (the caller
        counts) are one on each. The same check keeps a leading `null` out, at which pyarrow 26
        ends the process.
        """
        data = np.frombuffer(lines.data, np.uint8)
        _require(data[lines.starts] == ord("{"), "does not start with {")
        _require(data[lines.ends - 1] == ord("}"), "does not end with }")
        try:
            return self._read(lines)
        except pa.ArrowInvalid as error:
            if self._times_as_text or "to timestamp" not in str(error):
                raise _verdict(str(error)) from error
        # pyarrow.json knows six digits of a second. As text, times take longer and mean the same;
        # what comes next is read so too, as it is probably alike.
        self._times_as_text = True
        self._options = self._parse_options()
        try:
            return self._read(lines)
        except pa.ArrowInvalid as error:
            raise _verdict(str(error)) from error

    def _read(self, lines: Lines) -> pa.Table:
        source = pa.BufferReader(lines.buffer())
        table = pa.json.read_json(source, read_options=_READ, parse_options=self._options)
        if self._texts is not None and table.num_rows == len(lines):
            for name, column in self._texts.columns(lines).items():
                table = table.append_column(pa.field(name, pa.string()), column)
        return table

    def clean(self, raw: bytes) -> bytes:
        """See lines.Parser."""
        return raw.strip(_BLANK)

    def quick_faults(self, texts: list[bytes]) -> dict[int, Fault]:
        """See lines.Parser. What is no JSON, and values of another kind than declared.

        msgspec takes all that pyarrow takes but for NaN, Infinity and very deep nesting.
        """
        # One value for all faults that read alike: they are as many as the records, at worst.
        decode, known = self._decode, {}
        found: dict[int, Fault] = {}
        for at, text in enumerate(texts):
            try:
                decode(text)
            except msgspec.ValidationError as error:
                why, reason = str(error), Reason.type_mismatch
                if text[0] != _OPENS:
                    why, reason = "does not start with {", Reason.malformed
                found[at] = known.get(why) or known.setdefault(why, (reason, why))
            except msgspec.DecodeError as error:
                if not _NO_JSON.search(text):
                    why = str(error)
                    found[at] = known.get(why) or known.setdefault(why, (Reason.malformed, why))
            except RecursionError:
                continue
        return found

    def slow_faults(self, texts: list[bytes]) -> dict[int, Fault]:
        """See lines.Parser. Decimals with too many digits, and declared keys that repeat."""
        found: dict[int, Fault] = {}
        for at, text in enumerate(texts):
            try:
                if self._decimals and (why := self._too_fine(text)):
                    found[at] = why
                # An escape may hide a key.
                elif b"\\" in text or any(text.count(key) > 1 for key in self._keys):
                    record = json.loads(text, object_pairs_hook=_Object)
                    if name := _repeated(record, self._schema):
                        found[at] = (Reason.duplicate_key, f"the key {name!r} is there twice")
            except (ValueError, RecursionError):  # msgspec's errors are ValueErrors too.
                continue
        return found

    def _too_fine(self, text: bytes) -> Fault | None:
        for value, field in zip(
            msgspec.structs.astuple(self._decode_decimals(text)), self._decimals, strict=True
        ):
            if value is None:
                continue
            _, digits, exponent = value.as_tuple()
            excess = -exponent - field.type.scale if isinstance(exponent, int) else 0
            if excess > 0 and any(digits[-excess:]):
                why = f"has more than {field.type.scale} digits behind the point"
                return Reason.type_mismatch, f"column {field.name!r}: a number {why}"
        return None


class _Object(list):
    """An object's keys and values, repeated ones too."""


def _repeated(found: Any, declared: pa.Schema | pa.DataType) -> str | None:
    """A declared key that is there twice in a value."""
    if isinstance(declared, pa.ListType) and isinstance(found, list):
        return next(filter(None, (_repeated(one, declared.value_type) for one in found)), None)
    if not isinstance(declared, pa.Schema | pa.StructType) or not isinstance(found, _Object):
        return None
    fields = {field.name: field.type for field in declared}
    keys = Counter(key for key, _ in found if key in fields)
    twice = (key for key, count in keys.items() if count > 1)
    inner = (_repeated(value, fields[key]) for key, value in found if key in fields)
    return next(filter(None, chain(twice, inner)), None)


def _names(declared: pa.Schema | pa.DataType) -> Iterator[str]:
    """The keys of a type, at any depth."""
    if isinstance(declared, pa.ListType):
        yield from _names(declared.value_type)
    elif isinstance(declared, pa.Schema | pa.StructType):
        for field in declared:
            yield field.name
            yield from _names(field.type)


def _nameable(name: str) -> bool:
    """Whether msgspec takes it for a key."""
    return not any(char in '\\"' or char < " " for char in name)


def _struct(schema: pa.Schema | pa.StructType, *, exact: bool = False) -> type[msgspec.Struct]:
    """A type that msgspec decodes a record as, or a part of it; `exact`: decimals keep digits."""
    fields = []
    for at, field in enumerate(schema):
        if _nameable(field.name):
            kind = Decimal if exact else _kind(field.type)
            key = msgspec.field(name=field.name, default=None)
            fields.append((f"f{at}", kind | None, key))
    return msgspec.defstruct("Record", fields, gc=False)


def _kind(declared: pa.DataType) -> Any:
    if pa.types.is_integer(declared):
        bound = 1 << (declared.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_floating(declared):
        return float
    if pa.types.is_boolean(declared):
        return bool
    if pa.types.is_decimal(declared):
        return int | float | str
    if pa.types.is_struct(declared):
        return _struct(declared)
    if pa.types.is_list(declared):
        return list[_kind(declared.value_type) | None]
    return str


def _require(good: np.ndarray, detail: str) -> None:
    if not good.all():
        raise BadRecords(Reason.malformed, detail, int(np.argmin(good)))


def _verdict(message: str) -> BadRecords:
    detail, _, row = message.removeprefix("JSON parse error: ").partition(" in row ")
    index = int(row) if row.isdecimal() else None
    if "was specified twice" in message:
        reason = Reason.duplicate_key
    elif "changed from" in message or not message.startswith("JSON parse error"):
        reason = Reason.type_mismatch
    else:
        reason = Reason.malformed
    return BadRecords(reason, detail, index)
