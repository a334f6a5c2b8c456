"""What msgspec and pyarrow say of a JSON record, in the words of its user.

msgspec names the place (`$.legs[1].flight`) and the kinds, and no value: that is looked up in the
record. What pyarrow says alone is rare, and costs a parse of its own anyway.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec
import pyarrow as pa

from semel.formats import words
from semel.formats.jsontext import elements, members
from semel.formats.words import FOUND_CHARS_MAX, RECORD_SHOWN_BYTES

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
_NONE = msgspec.Raw(b"")
_NO_NUMBER = re.compile(rb"-?\b(?:NaN|Inf(?:inity)?)\b")
_MESSAGES_MAX = 1_000
_DIGITS_MAX = 4_000  # Python reads no longer numbers.
_OPENS = ord("{")


class Words:
    """Says what is wrong with the values of a schema's columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = pa.struct(list(schema))
        self._said: dict[str, _Said] = {}
        named = [field for field in schema if nameable(field.name)]
        # Most faults are in a column itself, and not within its value.
        self._at = {f".{field.name}": (f"f{at}", field) for at, field in enumerate(named)}
        keys = [
            (f"f{at}", msgspec.Raw, msgspec.field(name=field.name, default=_NONE))
            for at, field in enumerate(named)
        ]
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Raws", keys, gc=False)).decode

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
        return f"expected one JSON object, found more after it: {_plain(text, at - 1)}"
    return f"not JSON at byte {at} of the record ({what}): {_plain(text, at)}"


def no_object(text: bytes | memoryview) -> str:
    """What is said of a record that is something else."""
    shown = _plain(bytes(text[:RECORD_SHOWN_BYTES]))
    return f"expected a JSON object {{...}}, found {shown}"


def value_shown(raw: bytes) -> str:
    """A JSON value as it is shown: text in quotes, all else as it stands."""
    if not raw.startswith(b'"'):
        return _plain(raw)
    if len(raw) > RECORD_SHOWN_BYTES:  # It may have megabytes.
        return words.quoted(raw[1 : RECORD_SHOWN_BYTES].decode(errors="ignore"))
    if b"\\" not in raw:
        return words.quoted(raw[1:-1].decode())
    try:
        return words.quoted(json.loads(raw))
    except ValueError:
        return _plain(raw)


def _plain(raw: bytes, start: int = 0) -> str:
    end = start + RECORD_SHOWN_BYTES
    return words.shown(raw[start:end].decode(errors="replace"))


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
