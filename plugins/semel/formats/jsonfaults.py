"""Find the fault of a JSON record that pyarrow refuses, and describe it to the user.

`RecordFaults` reads one record at a time, some 10 us each, so its verdict depends on nothing else.
The parser passes it the records that msgspec refuses, and those with doubtful decimals or keys.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from semel.formats import words
from semel.formats.decimals import is_no_decimal, plain, suspicious
from semel.formats.jsontext import (
    elements_of,
    json_key,
    key_tree,
    members,
    pairs_of,
    records_with,
    repeated_key_fault,
    text_excerpt,
    value_excerpt,
)
from semel.formats.lines import Fault, RecordLines
from semel.formats.words import FOUND_CHARS_MAX, RECORD_SHOWN_BYTES
from semel.model.reasons import Reason

RECORD_JUDGED_BYTES_MAX = 4 << 20
"""Maximum record that becomes Python objects, which may need twenty times its size. Larger records
get only pyarrow's verdict, with its message."""

_OPENS = ord("{")
_DIGITS_MAX = 4_000  # Python refuses longer numbers.
_NULL = b"null"
_WHOLE = re.compile(rb"-?[0-9]+")
# pyarrow reads these words as numbers.
_WORD = re.compile(rb"-?\b(?:NaN|Inf(?:inity)?)\b")
# A letter of a key may be escaped.
_ESCAPE = re.compile(rb"\\[u/]")
_ANY = msgspec.json.Decoder()
_NUMBER = re.compile(rb"-?[0-9].*|" + _WORD.pattern)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_PAIRS = json.JSONDecoder(object_pairs_hook=tuple)


class RecordFaults:
    """Finds the faults of records. `columns`: those that pyarrow reads. `declared`: also those of
    type json and map, whose keys may not repeat either."""

    def __init__(self, columns: pa.Schema, declared: pa.Schema) -> None:
        self._tree = key_tree(declared)
        self._misfit = _object_check(columns)
        decimals = [one for field in columns for one in _decimals(field)]
        self._unlike = [re.compile(_unlike(field)) for field in decimals]
        self._scale = max((_innermost(field.type).scale for field in decimals), default=0)

    def fault(self, text: bytes) -> Fault | None:
        """The fault of a record. None if it is valid, or if only pyarrow finds the fault."""
        if text[0] != _OPENS:
            return Reason.malformed, no_object(text)
        if len(text) > RECORD_JUDGED_BYTES_MAX:
            return None
        try:
            try:
                values = _OBJECT.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                if not isinstance(error, RecursionError) and not _WORD.search(text):
                    return Reason.malformed, _no_json(text, str(error))
                values = dict(members(text))
            # First, because it is four times faster, and most records that pyarrow refuses have it.
            if why := self._misfit("", values):
                return Reason.type_mismatch, why
            return self.repeated(text)
        except (ValueError, RecursionError):
            return None

    def repeated(self, text: bytes) -> Fault | None:
        """The fault of an object that has a declared key twice. None if it has not."""
        name = _repeated(_pairs(text), self._tree) if _may_repeat(text) else None
        return None if name is None else repeated_key_fault(name)

    def doubtful(self, lines: RecordLines) -> list[int]:
        """The records with a decimal that may not fit."""
        matches = [records_with(form, lines) for form in self._unlike]
        return np.unique(np.concatenate(matches)).tolist() if matches else []

    def refused(self, lines: RecordLines) -> Iterator[tuple[int, Fault]]:
        """Records that pyarrow must not read, because it would misread their numbers or crash. Most
        blocks lack such records, and the check is fast."""
        if not self._unlike:
            return
        for at in suspicious(lines, self._scale).tolist():
            text = lines.raw(at)
            if any(form.search(text) for form in (_ESCAPE, *self._unlike)):
                if fault := self.fault(text):
                    yield at, fault


def _no_json(text: bytes, message: str) -> str:
    """Translate msgspec's DecodeError."""
    what, _, place = message.rpartition(" (byte ")
    if not what:
        last = text[-RECORD_SHOWN_BYTES :].decode(errors="replace")
        return f"not JSON: cut off after {words.excerpt(last[-FOUND_CHARS_MAX :])}"
    what, at = what.removeprefix("JSON is malformed: "), int(place[:-1])
    if what.startswith("trailing characters"):
        return f"expected one JSON object, found more after it: {text_excerpt(text, at - 1)}"
    return f"not JSON at byte {at} of the record ({what}): {text_excerpt(text, at)}"


def no_object(text: bytes | memoryview) -> str:
    """The message for a record that is not an object."""
    return f"expected a JSON object {{...}}, found {text_excerpt(bytes(text[:RECORD_SHOWN_BYTES]))}"


def _may_repeat(text: bytes) -> bool:
    """Whether a key may repeat: then msgspec's copy has fewer quotes, or msgspec refuses it."""
    if len(text) > RECORD_JUDGED_BYTES_MAX:
        return True
    if b"NaN" in text or b"Inf" in text:
        text = _WORD.sub(b"0", text)
    try:
        return _ENCODER.encode(_ANY.decode(text)).count(b'"') != text.count(b'"')
    except (msgspec.MsgspecError, RecursionError):
        return True


def _pairs(text: bytes) -> Any:
    """An object as a tuple of its (key, value) pairs, with repeated keys; an array as a list."""
    try:
        return _PAIRS.decode(text.decode())
    except (ValueError, RecursionError):
        return None  # It has Inf, or deep nesting.


def _repeated(value: Any, tree: Any) -> str | None:
    """The declared key that a value has twice. None if it has not."""
    if isinstance(tree, list) and isinstance(value, list):
        inner = [(one, tree[0]) for one in value]
    elif isinstance(tree, dict) and isinstance(value, tuple):
        keys = [key for key, _ in value if key in tree]
        if len({*keys}) < len(keys):
            return next(key for key in keys if keys.count(key) > 1)
        inner = [(one, tree[key]) for key, one in value if tree.get(key) is not None]
    else:
        return None
    names = (_repeated(one, kind) for one, kind in inner)
    return next((name for name in names if name is not None), None)


_Check = Callable[[str, bytes | msgspec.Raw], str | None]
"""Returns the fault of a value's text at a place of a record. Raises ValueError if not JSON."""


def _object_check(fields: Iterable[pa.Field]) -> Callable[[str, Mapping], str | None]:
    checks = [(field.name, _check(field.type)) for field in fields]

    def misfit(prefix: str, values: Mapping[str, bytes | msgspec.Raw]) -> str | None:
        for name, check in checks:
            if name in values and (why := check(prefix + name, values[name])):
                return why
        return None

    return misfit


def _check(kind: pa.DataType) -> _Check:
    opens, expected = b"", _scalar(kind)
    if pa.types.is_struct(kind):
        opens, of_object = b"{", _object_check(kind)
    elif pa.types.is_list(kind):
        opens, of_one = b"[", _check(kind.value_type)

    def misfit(place: str, raw: bytes | msgspec.Raw) -> str | None:
        raw = bytes(raw)
        if raw == _NULL:
            return None
        if opens and opens == raw[:1]:
            if opens == b"{":
                return of_object(f"{place}.", dict(pairs_of(raw)))
            faults = (of_one(f"{place}[{at}]", one) for at, one in enumerate(elements_of(raw)))
            return next(filter(None, faults), None)
        wanted = expected(raw)
        return wanted and words.misfit(place, wanted, value_excerpt(raw))

    return misfit


def _scalar(kind: pa.DataType) -> Callable[[bytes], str | None]:
    """Returns a function from a value's text to what was expected, or to None if pyarrow reads it.
    """
    expected, beyond = words.expected_value(kind), words.expected_range(kind)
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)

        def misfit(raw: bytes) -> str | None:
            if not _WHOLE.fullmatch(raw):
                return expected
            fits = len(raw) <= _DIGITS_MAX and -bound <= int(raw) < bound
            return None if fits else beyond
    elif pa.types.is_floating(kind):

        def misfit(raw: bytes) -> str | None:
            if not _NUMBER.fullmatch(raw):
                return expected
            return beyond if raw[-1:].isdigit() and math.isinf(float(raw)) else None
    elif pa.types.is_decimal(kind):

        def misfit(raw: bytes) -> str | None:
            is_text = raw.startswith(b'"')
            text = msgspec.json.decode(raw, type=str) if is_text else raw.decode()
            return expected if is_no_decimal(text, kind) else None
    elif pa.types.is_boolean(kind):

        def misfit(raw: bytes) -> str | None:
            return None if raw in (b"true", b"false") else expected
    else:
        begins = () if pa.types.is_nested(kind) else b'"'

        def misfit(raw: bytes) -> str | None:
            return None if raw.startswith(begins) else expected

    return misfit


def _decimals(field: pa.Field) -> list[pa.Field]:
    """The fields at any depth that are decimals, or lists of decimals."""
    kind = _innermost(field.type)
    if pa.types.is_decimal(kind):
        return [field]
    return [one for inner in kind for one in _decimals(inner)] if pa.types.is_struct(kind) else []


def _innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _unlike(field: pa.Field) -> bytes:
    """A pattern for the field's key with a value that is not obviously valid."""
    key = re.escape(json_key(field.name)) + rb"[ \t]*:[ \t]*"
    if pa.types.is_list(field.type):
        return key + rb"\["
    fine = rb'null|"-?N"|-?N'.replace(b"N", plain(field.type).encode())
    return rb"%b(?!(?:%b)[ \t]*[,}])" % (key, fine)
