"""What is wrong with JSON records that msgspec takes and pyarrow refuses, found in many at once.

The block is searched for records that may have such a fault. Only these are read by Python.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from semel.formats import words
from semel.formats.decimals import is_no_decimal, plain, suspicious
from semel.formats.jsontext import elements, members
from semel.formats.jsonwords import value_shown
from semel.formats.lines import Fault, Lines
from semel.model.reasons import Reason

_QUOTE, _COLON, _SPACE = b'": '
# Words that pyarrow takes for numbers, and that are no JSON.
_WORD_OR_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|Inf(?:inity)?)\b')
# The letter of a key may be written so.
_ESCAPE = re.compile(rb"\\[u/]")
_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)
# Reads an object as the tuple of its keys and values, repeated ones too; an array is a list.
_PAIRS = json.JSONDecoder(object_pairs_hook=tuple)


class Decimals:
    """Finds what is no value of a schema's decimals, in columns, lists and structs; a map's values
    are records of their own (jsonmaps)."""

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
        self._tree = _tree(schema)
        self._keys = sorted({_quoted(name)[1:-1] for name in _names(schema)})

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
                found[at] = (Reason.duplicate_key, f"the key {words.quoted(name)} is there twice")
        return found


def _tree(declared: pa.Schema | pa.DataType) -> Any:
    """The keys of a type with the trees of their values; in a list, that of its elements."""
    if isinstance(declared, pa.Schema | pa.StructType):
        return {field.name: _tree(field.type) for field in declared}
    return [_tree(declared.value_type)] if isinstance(declared, pa.ListType) else None


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


def _names(declared: pa.Schema | pa.DataType) -> Iterator[str]:
    """The keys of a type, at any depth."""
    if isinstance(declared, pa.ListType):
        yield from _names(declared.value_type)
    elif isinstance(declared, pa.Schema | pa.StructType):
        for field in declared:
            yield field.name
            yield from _names(field.type)


def without_words(text: bytes, instead: bytes) -> bytes:
    """A record with some value in place of NaN and Infinity."""
    if b"NaN" not in text and b"Inf" not in text:
        return text
    return _WORD_OR_TEXT.sub(lambda m: m[0] if m[0].startswith(b'"') else instead, text)


def _quoted(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _unlike(field: pa.Field) -> bytes:
    """Pattern of the field's key with a value that is not seen to be fine at once."""
    key = re.escape(_quoted(field.name)) + rb"[ \t]*:[ \t]*"
    if pa.types.is_list(field.type):
        return key + rb"\["
    fine = rb'null|"-?N"|-?N'.replace(b"N", plain(field.type).encode())
    return rb"%b(?!(?:%b)[ \t]*[,}])" % (key, fine)


def _holders(patterns: list[re.Pattern[bytes]], lines: Lines) -> list[int]:
    """The records in which a pattern is found, in order."""
    places = [found.start() for pattern in patterns for found in pattern.finditer(lines.data)]
    return np.unique(np.searchsorted(lines.ends, places, side="right")).tolist()


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
