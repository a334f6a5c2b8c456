"""What is wrong with JSON records, and how it is said to their user.

Faults that msgspec takes and pyarrow refuses (`Decimals`, `Repeated`) are found in many records at
once: the block is searched for records that may have one, and only these are read by Python. Of
others msgspec names the place (`$.legs[1].flight`) and the kinds, and no value: that is looked up
in the record (`Words`). What pyarrow says alone is rare, and costs a parse of its own anyway.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from semel.formats import words
from semel.formats.decimals import is_no_decimal, plain, suspicious
from semel.formats.jsontext import (
    elements,
    key_tree,
    members,
    quoted,
    raws_decoder,
    records_with,
    text_shown,
    there_twice,
    value_shown,
)
from semel.formats.lines import Fault, Lines
from semel.formats.words import FOUND_CHARS_MAX, RECORD_SHOWN_BYTES
from semel.model.reasons import Reason

NUMBER = b"0.500e-00"
"""A number that stands for what is no JSON, and in no record by chance."""

_BEHIND = " - at `$"
_FOUND = {
    "str": "text", "number": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "nothing",
}  # fmt: skip
_NUMBERS = {"int": "number", "float": "number"}
_GOT = re.compile(r"got `(\w+)`")
_INDEX = re.compile(r"\[(\d+)\]")
_KINDS = {b'"': "str", b"{": "object", b"[": "array", b"t": "bool", b"f": "bool", b"": "nothing"}
_OF_PYARROW = re.compile(r"Column\(/([^/)]*)")
_MESSAGES_MAX = 1_000
_DIGITS_MAX = 4_000  # Python reads no longer numbers.
_OPENS = ord("{")
_QUOTE, _COLON, _SPACE = b'": '
# Words that pyarrow takes for numbers, and that are no JSON.
_NO_NUMBER = re.compile(rb"-?\b(?:NaN|Inf(?:inity)?)\b")
_WORD_OR_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|' + _NO_NUMBER.pattern)
# The letter of a key may be written so.
_ESCAPE = re.compile(rb"\\[u/]")
_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)
# Reads an object as the tuple of its keys and values, repeated ones too; an array is a list.
_PAIRS = json.JSONDecoder(object_pairs_hook=tuple)


class Decimals:
    """Finds what is no value of a schema's decimals, in columns, lists and structs; a map's values
    are records of their own (see jsontext.map_column)."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: field.type for field in schema if _decimals(field)}
        inner = [one for field in schema for one in _decimals(field)]
        self._unlike = [re.compile(_unlike(field)) for field in inner]
        self._scale = max((_innermost(field.type).scale for field in inner), default=0)

    def faults(self, lines: Lines) -> dict[int, Fault]:
        """See lines.Finder."""
        forms = [_ESCAPE, *self._unlike]
        return self._judge(_holders(forms, lines), lines) if self._columns else {}

    def refused(self, lines: Lines) -> dict[int, Fault]:
        """The same, of records that pyarrow must not see: what is said of numbers that it reads
        wrongly, or dies of. In most blocks there are none, and that is seen in little time."""
        if not self._columns:
            return {}
        places = suspicious(lines.data, *lines.span, self._scale)
        suspects = np.unique(np.searchsorted(lines.ends, places, side="right")).tolist()
        forms = self._unlike if b"\\" not in lines.data else [_ESCAPE, *self._unlike]
        bounds = zip(suspects, lines.starts[suspects], lines.ends[suspects], strict=True)
        unlike = (at for at, *span in bounds if any(one.search(lines.data, *span) for one in forms))
        return self._judge(list(unlike), lines)

    def _judge(self, suspects: list[int], lines: Lines) -> dict[int, Fault]:
        found: dict[int, Fault] = {}
        for at, text in zip(suspects, lines.raws(suspects), strict=True):
            try:
                why = _first(_in_object("", self._columns, text))
            except ValueError:
                continue  # It is no JSON, and the parse says so before it reads a number.
            if why:
                found[at] = (Reason.type_mismatch, why)
        return found


def _decimals(field: pa.Field) -> list[pa.Field]:
    """The fields at any depth that are decimals, or lists of them."""
    if pa.types.is_decimal(_innermost(field.type)):
        return [field]
    kind = _innermost(field.type)
    return [one for inner in kind for one in _decimals(inner)] if pa.types.is_struct(kind) else []


def _innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _misfit(place: str, kind: pa.DataType, raw: bytes) -> str | None:
    """What is wrong with the first bad decimal in the text of a value. ValueError: no JSON."""
    if pa.types.is_decimal(kind):
        is_text = raw.startswith(b'"')
        text = msgspec.json.decode(raw, type=str) if is_text else raw.decode()
        if text == "null" and not is_text or not is_no_decimal(text, kind):
            return None
        return words.misfit(place, words.expected(kind), value_shown(raw))
    if pa.types.is_list(kind) and raw.startswith(b"["):
        return _first((f"{place}[]", kind.value_type, one) for one in elements(raw))
    if pa.types.is_struct(kind) and raw.startswith(b"{"):
        kinds = {field.name: field.type for field in kind if _decimals(field)}
        return _first(_in_object(f"{place}.", kinds, raw))
    return None


def _in_object(
    before: str, kinds: dict[str, pa.DataType], raw: bytes
) -> Iterator[tuple[str, pa.DataType, bytes]]:
    # A key that is there twice is another fault.
    found = dict(members(raw))
    return ((before + name, kind, found[name]) for name, kind in kinds.items() if name in found)


def _first(values: Iterable[tuple[str, pa.DataType, bytes]]) -> str | None:
    return next((why for one in values if (why := _misfit(*one))), None)


class Repeated:
    """Finds keys of a schema that are there twice in an object, at any depth."""

    def __init__(self, schema: pa.Schema) -> None:
        self._tree = key_tree(schema)
        self._keys = sorted({quoted(name)[1:-1] for name in _names(self._tree)})

    def faults(self, lines: Lines) -> dict[int, Fault]:
        """See lines.Finder."""
        found: dict[int, Fault] = {}
        suspects = sorted({*_holders([_ESCAPE], lines), *_twice(self._keys, lines)})
        for at, raw in zip(suspects, lines.raws(suspects), strict=True):
            text = raw.decode()
            try:
                record, end = _PAIRS.raw_decode(text)
            except (ValueError, RecursionError):
                continue
            name = _repeated(record, self._tree) if end == len(text) else None
            if name is not None:
                found[at] = there_twice(name)
        return found


def _repeated(found: Any, tree: Any) -> str | None:
    """A declared key that is there twice in a value."""
    if isinstance(tree, list) and isinstance(found, list):
        inner = [(one, tree[0]) for one in found]
    elif isinstance(tree, dict) and isinstance(found, tuple):
        keys = [key for key, _ in found if key in tree]
        if len({*keys}) < len(keys):
            return next(key for key in keys if keys.count(key) > 1)
        inner = [(value, tree[key]) for key, value in found if tree.get(key) is not None]
    else:
        return None
    names = (_repeated(value, kind) for value, kind in inner)
    return next((name for name in names if name is not None), None)


def _names(tree: Any) -> Iterator[str]:
    """The keys of a tree, at any depth; maps have others."""
    if isinstance(tree, dict):
        yield from tree
        tree = [*tree.values()]
    for inner in tree if isinstance(tree, list) else ():
        yield from _names(inner)


def without_words(text: bytes, instead: bytes) -> bytes:
    """A record with some value in place of NaN and Infinity."""
    if b"NaN" not in text and b"Inf" not in text:
        return text
    return _WORD_OR_TEXT.sub(lambda m: m[0] if m[0].startswith(b'"') else instead, text)


def _unlike(field: pa.Field) -> bytes:
    """Pattern of the field's key with a value that is not seen to be fine at once."""
    key = re.escape(quoted(field.name)) + rb"[ \t]*:[ \t]*"
    if pa.types.is_list(field.type):
        return key + rb"\["
    fine = rb'null|"-?N"|-?N'.replace(b"N", plain(field.type).encode())
    return rb"%b(?!(?:%b)[ \t]*[,}])" % (key, fine)


def _holders(patterns: list[re.Pattern[bytes]], lines: Lines) -> list[int]:
    """The records in which a pattern is found, in order."""
    return np.unique(np.concatenate([records_with(one, lines) for one in patterns])).tolist()


def _twice(keys: list[bytes], lines: Lines) -> Iterator[int]:
    """For each key, the packed records in which it seems to be there twice, at whatever depth."""
    data = lines.data + bytes(_WORD_BYTES)
    words = np.ndarray(len(data) - _WORD_BYTES + 1, "<u8", data, strides=(1,))
    # 1. Text that ends before a colon (or white space) is a key, probably. All begin at a quote.
    codes = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(codes == _QUOTE)
    behind = codes[quotes + 1]
    lasts = np.flatnonzero((behind == _COLON) | (behind <= _SPACE))
    lasts = lasts[lasts > 0]
    starts = quotes[lasts - 1] + 1
    sizes = quotes[lasts] - starts
    begins = words[starts] & _MASKS[np.minimum(sizes, _WORD_BYTES)]
    # 2. Compare, eight bytes at once.
    for key in keys:
        alike = starts[(sizes == len(key)) & (begins == _word(key))]
        for at in range(_WORD_BYTES, len(key), _WORD_BYTES):
            mask = _MASKS[min(len(key) - at, _WORD_BYTES)]
            alike = alike[words[alike + at] & mask == _word(key[at:])]
        # 3. Mostly it is once in each record.
        if len(alike) == len(lines) and (
            (alike > lines.starts).all() and (alike < lines.ends).all()
        ):
            continue
        holders = np.searchsorted(lines.ends, alike, side="right")
        yield from holders[1:][holders[1:] == holders[:-1]].tolist()


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text[:_WORD_BYTES], "little"))


class Words:
    """Says what is wrong with the values of a schema's columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = pa.struct(list(schema))
        self._said: dict[str, _Said] = {}
        named = [field for field in schema if nameable(field.name)]
        # Most faults are in a column itself, and not within its value.
        self._at = {f".{field.name}": (f"f{at}", field) for at, field in enumerate(named)}
        self._decode = raws_decoder([field.name for field in named], b"").decode

    def misfit(self, text: bytes, message: str, plain: bytes) -> str:
        """What a ValidationError of msgspec says of a record. `plain`: the record, with NUMBER in
        place of words that are no JSON."""
        said = self._said.get(message)
        if said is None:
            said = self._said[message] = self._read(message)
            if len(self._said) > _MESSAGES_MAX:
                self._said.clear()
        value = self._value(text, plain, said)
        # Where a key repeats, the value may be another one.
        if said.got is None:
            found = value_shown(value) if _is_beyond(value, said.kind) else "one beyond it"
        elif _KINDS.get(value[:1], "number") == said.got:
            found = value_shown(value)
        else:
            found = _FOUND[said.got]
        return said.before + found

    def _read(self, message: str) -> "_Said":
        path = message.rpartition(_BEHIND)[2][:-1]
        key, field = self._at.get(path, ("", None))
        if field is not None:
            steps, kind = [field.name], field.type
        else:
            steps, kind = next(_resolved(self._columns, path), ([], pa.string()))
        got = _GOT.search(message)
        expected = words.expected(kind) if got else words.within(kind)
        return _Said(
            before=words.misfit(path[1:], expected, ""),
            key=key,
            steps=steps,
            kind=kind,
            got=_NUMBERS.get(got[1], got[1]) if got else None,
        )

    def unlike(self, text: bytes, message: str) -> str:
        """What pyarrow alone says of a record: that the value of a column is of another kind."""
        named = _OF_PYARROW.search(message)
        if named and (index := self._columns.get_field_index(named[1])) >= 0:
            field = self._columns.field(index)
            value = value_shown(_within(text, [field.name]))
            return words.misfit(field.name, words.expected(field.type), value)
        return f"expected other values: {words.shown(message)}"

    def _value(self, text: bytes, plain: bytes, said: "_Said") -> bytes:
        if said.key:
            try:
                value = bytes(getattr(self._decode(plain), said.key))
            except (msgspec.MsgspecError, RecursionError):
                value = NUMBER
            if value != NUMBER:
                return value
            no_numbers = _NO_NUMBER.findall(text)
            if len(no_numbers) == 1:
                return no_numbers[0]
        return _within(text, said.steps)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a message of msgspec means. `key`: where the value is in what `_decode` gives, if it is
    a column's; `got`: its kind, None for a number that its type does not hold."""

    before: str
    key: str
    steps: list[str | int]
    kind: pa.DataType
    got: str | None


def nameable(name: str) -> bool:
    """Whether msgspec takes it for a key."""
    return not any(char in '\\"' or char < " " for char in name)


def no_json(text: bytes, message: str) -> str:
    """What a DecodeError of msgspec says of a record."""
    if text[0] != _OPENS:
        return no_object(text)
    what, _, place = message.rpartition(" (byte ")
    if not what:
        last = text[-RECORD_SHOWN_BYTES :].decode(errors="replace")
        return f"not JSON: cut off after {words.shown(last[-FOUND_CHARS_MAX :])}"
    what, at = what.removeprefix("JSON is malformed: "), int(place[:-1])
    if what.startswith("trailing characters"):
        return f"expected one JSON object, found more after it: {text_shown(text, at - 1)}"
    return f"not JSON at byte {at} of the record ({what}): {text_shown(text, at)}"


def no_object(text: bytes | memoryview) -> str:
    """What is said of a record that is something else."""
    shown = text_shown(bytes(text[:RECORD_SHOWN_BYTES]))
    return f"expected a JSON object {{...}}, found {shown}"


def _resolved(kind: pa.DataType, path: str) -> Iterator[tuple[list[str | int], pa.DataType]]:
    """What a path of msgspec may mean in a value: its steps, and the type that they lead to."""
    if not path:
        yield [], kind
    elif pa.types.is_list(kind) and (index := _INDEX.match(path)):
        for steps, inner in _resolved(kind.value_type, path[index.end() :]):
            yield [int(index[1]), *steps], inner
    elif pa.types.is_struct(kind):
        for field in kind:
            if path.startswith(f".{field.name}"):
                for steps, inner in _resolved(field.type, path[len(field.name) + 1 :]):
                    yield [field.name, *steps], inner


def _within(text: bytes, steps: list[str | int]) -> bytes:
    """A value in a record; empty where it is not found."""
    try:
        for step in steps:
            if isinstance(step, int):
                text = next(islice(elements(text), step, None))
            else:
                text = next(value for key, value in members(text) if key == step)
    except (StopIteration, ValueError, msgspec.MsgspecError, AttributeError, IndexError):
        return b""  # Behind it, the record is no JSON.
    return text if steps else b""


def _is_beyond(value: bytes, kind: pa.DataType) -> bool:
    """Whether a value is a number that is too large for its type."""
    try:
        if pa.types.is_integer(kind):
            bound = 1 << (kind.bit_width - 1)
            return len(value) > _DIGITS_MAX or not -bound <= int(value) < bound
        return math.isinf(float(value))
    except ValueError:
        return False
