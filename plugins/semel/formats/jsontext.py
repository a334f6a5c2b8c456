"""The text of JSON values, as it stands in the record: for columns of type json, for maps and for
keys that nobody declared.

pyarrow gives no texts. So the records, which it has found good, are read a second time by msgspec,
which says where each value lies. Where msgspec says nothing (NaN, deep nesting, a key that
repeats), Python does, record by record.
"""

import json
import re
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec
import numpy as np
import pyarrow as pa

from semel.formats import words
from semel.formats.lines import BadRecords, Lines
from semel.model.reasons import Reason

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER = re.compile(rb"[{,\s]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_BEFORE = re.compile(rb"[,\s]*")
_TOKEN = re.compile(_STRING + rb"|[\[{]|[\]}]", re.DOTALL)
# Outside of texts, no other words have such letters.
_CONSTANT = re.compile(_STRING + rb"|([NI])", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^,}\]\s]+", re.DOTALL)
# A letter of a key may be written so.
_ESCAPE = rb"\\u00"
_SPACE = 32
_NULL = b"null"
_OBJECTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()


def members(text: bytes) -> Iterator[tuple[str, bytes]]:
    """The keys of an object that pyarrow takes, repeated ones too, each with its value's text.

    It does not recurse, so no depth is too much for it. ValueError, where pyarrow would take none.
    """
    at = 0
    while found := _MEMBER.match(text, at):
        at = _end(text, found.end())
        yield msgspec.json.decode(found[1], type=str), text[found.end() : at]


def elements(text: bytes) -> Iterator[bytes]:
    """The values of an array that pyarrow takes, each as its text; see `members`."""
    start = _BEFORE.match(text, 1).end()
    while text[start : start + 1] != b"]":
        at = _end(text, start)
        yield text[start:at]
        start = _BEFORE.match(text, at).end()


def _end(text: bytes, start: int) -> int:
    """The place behind the value that begins at `start`."""
    if text[start : start + 1] in (b"{", b"["):
        return _closing(text, start)
    if found := _SCALAR.match(text, start):
        return found.end()
    raise ValueError("a value is missing")


def _closing(text: bytes, start: int) -> int:
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        code = text[token.start()]
        depth += (code in b"{[") - (code in b"}]")
        if not depth:
            return token.end()
    raise ValueError("a bracket is not closed")


def objects(whole: bytes | pa.Buffer, count: int) -> list[dict[str, msgspec.Raw]] | None:
    """The objects on `count` lines, all at once. None where one of them is to be looked at alone:
    it is no object, repeats a key, or is more than msgspec takes.
    """
    try:
        found = _OBJECTS.decode_lines(whole)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # A key that repeats is there once in what was read. So what is written again is shorter then,
    # but for white space.
    same = len(found) == count and _weight(_ENCODER.encode_lines(found)) == _weight(whole)
    return found if same else None


def member(key: str, raw: bytes) -> bytes:
    """A key and the text of its value, as they stand in an object without white space."""
    return _ENCODER.encode(key) + b":" + raw


def object_texts(some: list[dict[str, msgspec.Raw]]) -> list[bytes]:
    """Objects as texts, without white space between their members."""
    # No text of a record holds a line end.
    return _ENCODER.encode_lines(some).split(b"\n")[:-1] if some else []


def is_json(raw: bytes) -> bool:
    """Whether a value that pyarrow takes is JSON: it takes NaN and Infinity too."""
    return not any(found[1] for found in _CONSTANT.finditer(raw))


class Texts:
    """Reads the texts of the keys `names` of records; those of `judged` must be JSON."""

    def __init__(self, names: tuple[str, ...], judged: tuple[str, ...]) -> None:
        fields = [
            (f"f{at}", msgspec.Raw, msgspec.field(name=name, default=msgspec.Raw(_NULL)))
            for at, name in enumerate(names)
        ]
        self._names, self._judged = names, judged
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Texts", fields, gc=False))
        keys = [re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in names]
        self._patterns = [re.compile(pattern) for pattern in keys]
        self._escape = re.compile(_ESCAPE)

    def columns(self, lines: Lines) -> dict[str, list[bytes | None]]:
        """The texts of records that pyarrow takes, None for null. BadRecords: some record repeats
        a key, or holds what is no JSON.
        """
        self._refuse_repeated(lines)
        try:
            rows = self._decode.decode_lines(lines.buffer())
        except (msgspec.MsgspecError, RecursionError):
            rows = []
        columns: Iterable[Iterable[bytes | msgspec.Raw]]
        if len(rows) == len(lines):
            columns = (map(attrgetter(f"f{at}"), rows) for at in range(len(self._names)))
        else:
            columns = zip(*(self._exactly(lines, at) for at in range(len(lines))), strict=True)
        return {
            name: [None if text == _NULL else text for text in map(bytes, column)]
            for name, column in zip(self._names, columns, strict=True)
        }

    def _refuse_repeated(self, lines: Lines) -> None:
        """Look closer at records in which a name is there twice, or may be written otherwise."""
        suspects: set[int] = set()
        for pattern in self._patterns:
            found = _records_with(pattern, lines)
            suspects.update(found[1:][found[1:] == found[:-1]].tolist())
        suspects.update(_records_with(self._escape, lines).tolist())
        for at in sorted(suspects):
            keys = [key for key, _ in members(lines.raw(at))]
            for name in self._names:
                if keys.count(name) > 1:
                    why = f"the key {words.quoted(name)} is there twice"
                    raise BadRecords(Reason.duplicate_key, why, at)

    def _exactly(self, lines: Lines, at: int) -> list[bytes]:
        found = dict(members(lines.raw(at)))
        for name in self._judged:
            if name in found and not is_json(found[name]):
                why = words.misfit(name, "JSON", "NaN or Infinity in it")
                raise BadRecords(Reason.type_mismatch, why, at)
        return [found.get(name, _NULL) for name in self._names]


def _records_with(pattern: re.Pattern[bytes], lines: Lines) -> np.ndarray:
    """The records in which a pattern is found, in order, each as often as it is found there."""
    places = [match.start() for match in pattern.finditer(lines.data, *lines.span)]
    return np.searchsorted(lines.ends, np.array(places, np.int64), side="right")


def _weight(text: bytes | pa.Buffer) -> int:
    """The bytes of a text that are no white space."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) > _SPACE))
