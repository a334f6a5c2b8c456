"""Columns of type json: a value's text as it stands in the record, whatever kind it is of.

pyarrow has no such type. So the records, which it has found good without these columns, are read a
second time by msgspec, which says where each value lies. Where msgspec says nothing (NaN in a key
that is not declared), Python does, record by record.
"""

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring

import msgspec
import numpy as np
import pyarrow as pa

from semel.sources.lines import BadRecords, Lines, Reason

_SPACES = re.compile(r"[ \t\r]*")
_VALUE = json.JSONDecoder()
# A letter of a key may be written so.
_ESCAPE = rb"\\u00"


class Texts:
    """Reads the columns `names` of records."""

    def __init__(self, names: tuple[str, ...]) -> None:
        fields = [
            (f"f{at}", msgspec.Raw | None, msgspec.field(name=name, default=None))
            for at, name in enumerate(names)
        ]
        self._names = names
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Texts", fields, gc=False))
        keys = [re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in names]
        self._patterns = [re.compile(pattern) for pattern in keys]
        self._escape = re.compile(_ESCAPE)

    def columns(self, lines: Lines) -> dict[str, pa.Array]:
        """The columns of records that pyarrow takes. BadRecords: some record repeats a key, or
        holds what is no JSON.
        """
        self._refuse_repeated(lines)
        try:
            rows = self._decode.decode_lines(lines.buffer())
        except (msgspec.MsgspecError, RecursionError):
            rows = []
        if len(rows) == len(lines):
            values = zip(*map(msgspec.structs.astuple, rows), strict=True)
        else:
            values = zip(*(self._exactly(lines, at) for at in range(len(lines))), strict=True)
        return {
            name: pa.array([_text(raw) for raw in column], pa.string())
            for name, column in zip(self._names, values, strict=True)
        }

    def _refuse_repeated(self, lines: Lines) -> None:
        """Look closer at records in which a name is there twice, or may be written otherwise."""
        suspects: set[int] = set()
        for pattern in self._patterns:
            found = _records_with(pattern, lines)
            suspects.update(found[1:][found[1:] == found[:-1]].tolist())
        suspects.update(_records_with(self._escape, lines).tolist())
        for at in sorted(suspects):
            keys = [key for key, _ in _members(lines, at)]
            for name in self._names:
                if keys.count(name) > 1:
                    why = f"the key {name!r} is there twice"
                    raise BadRecords(Reason.duplicate_key, why, at)

    def _exactly(self, lines: Lines, at: int) -> list[bytes | None]:
        found = dict(_members(lines, at))
        raws = [found.get(name) for name in self._names]
        for name, raw in zip(self._names, raws, strict=True):
            try:
                if raw is not None:
                    msgspec.json.decode(raw)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BadRecords(Reason.type_mismatch, f"{name!r} is no JSON", at) from error
        return raws


def _records_with(pattern: re.Pattern[bytes], lines: Lines) -> np.ndarray:
    """The records in which a pattern is found, in order, each as often as it is found there."""
    places = [match.start() for match in pattern.finditer(lines.data, *lines.span)]
    return np.searchsorted(lines.ends, np.array(places, np.int64), side="right")


def _members(lines: Lines, at: int) -> Iterator[tuple[str, bytes]]:
    """The keys of a record that pyarrow takes, each with its value's text."""
    text = lines.raw(at).decode()
    place = _SPACES.match(text, 1).end()
    while text[place] != "}":
        try:
            key, place = scanstring(text, place + 1, True)
            start = _SPACES.match(text, _SPACES.match(text, place).end() + 1).end()
            _, place = _VALUE.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            why = "holds what is no JSON, or is nested too deeply"
            raise BadRecords(Reason.malformed, why, at) from error
        yield key, text[start:place].encode()
        place = _SPACES.match(text, place).end()
        if text[place] == ",":
            place = _SPACES.match(text, place + 1).end()


def _text(raw: bytes | msgspec.Raw | None) -> bytes | None:
    return None if raw is None or raw == b"null" else bytes(raw)
