"""Keys that the schema does not name: which there are, and what they hold."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.formats import words
from semel.formats.jsontext import elements, is_json, member, members, object_texts, objects
from semel.formats.lines import Fault, Lines
from semel.model.batch import Ignored
from semel.model.reasons import Reason

KEYS_SAMPLE_RECORDS = 128
"""Records of a block in which keys are looked for that the schema does not name."""

KEYS_SAMPLE_BYTES = 128 << 10
"""Bytes of a block that are searched for them: some hundredths of the time of its parse."""

KEYS_PER_RECORD_MAX = 1_000
"""Keys of one record, unknown to the schema, that are examined: a record of 64 MiB may have millions."""

KEY_CHARS_MAX = 60
"""Characters of an unknown key that are shown."""

_BLANK = b" \t\r"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class Keys:
    """Looks for keys beside those of a schema, in records that pyarrow takes."""

    def __init__(self, declared: pa.Schema) -> None:
        self._declared = declared
        self._names = frozenset(declared.names)
        self._deep = any(_holds_keys(field.type) for field in declared)

    def unnamed(self, record: bytes) -> Iterator[str]:
        """The keys of a record that nobody declared, at any depth: `key`, `struct.key`."""
        record = record.strip(_BLANK)
        if not self._deep:
            keys = (key for key, _ in _pairs(record))
            return (key for key in keys if key not in self._names)
        return _unnamed(record, self._declared, "")

    def faults(self, lines: Lines) -> dict[int, Fault]:
        """The records with such a key, each with the name of its first one."""
        found: dict[int, Fault] = {}
        some = None if self._deep else _together(lines)
        places: Iterable[int] = range(len(lines))
        if some is not None:
            places = [at for at, one in enumerate(some) if not self._names.issuperset(one)]
        for at in places:
            name = next(self.unnamed(lines.raw(at)), None)
            if name is not None:
                why = f"the schema does not name the key {words.quoted(name)}"
                found[at] = (Reason.unknown_key, why)
        return found

    def count(self, lines: Lines, *, surely: bool) -> Ignored:
        """Such keys of a block's records, from some of them.

        `surely`: there is one. Where those that were looked at have none, all are looked at.
        """
        spread = np.linspace(0, len(lines) - 1, min(len(lines), KEYS_SAMPLE_RECORDS))
        looked, keys = self._count(lines, spread.astype(np.int64), KEYS_SAMPLE_BYTES)
        if surely and not keys:
            looked, keys = self._count(lines, range(len(lines)), None)
        scale = len(lines) / max(1, looked)
        shown = {name[:KEY_CHARS_MAX]: round(n * scale) for name, n in keys.items()}
        return Ignored(keys=shown, sampled=looked < len(lines))

    def _count(
        self, lines: Lines, places: Iterable[int], bytes_max: int | None
    ) -> tuple[int, Counter[str]]:
        keys: Counter[str] = Counter()
        looked = size = 0
        for at in places:
            raw = lines.raw(at)
            keys.update(set(islice(self.unnamed(raw), KEYS_PER_RECORD_MAX)))
            looked, size = looked + 1, size + len(raw)
            if bytes_max is not None and size > bytes_max:
                break
        return looked, keys

    def rest(self, lines: Lines) -> tuple[pa.Array, dict[int, Fault]]:
        """The column REST_COLUMN: such keys at the top of each record as an object, else null.

        Keys that repeat are in it as often as they are there.
        """
        names = self._names
        found = _together(lines)
        if found is not None:
            texts = object_texts([{k: v for k, v in d.items() if k not in names} for d in found])
            column = pa.array(texts, pa.string())
            return pc.if_else(pc.equal(column, "{}"), pa.scalar(None, pa.string()), column), {}
        texts, faults = [], {}
        for at in range(len(lines)):
            made = bytearray()
            for key, raw in members(lines.raw(at)):
                if key in names:
                    continue
                if not is_json(raw):
                    why = words.misfit(words.quoted(key), "JSON", "NaN or Infinity in it")
                    faults.setdefault(at, (Reason.type_mismatch, why))
                made += (b"," if made else b"{") + member(key, raw)
            texts.append(bytes(made) + b"}" if made else None)
        return pa.array(texts, pa.string()), faults


def _together(lines: Lines) -> list[dict[str, msgspec.Raw]] | None:
    """See `objects`. None also for a block that is larger than most: a single record of small keys
    takes twenty times its size."""
    start, end = lines.span
    return objects(lines.buffer(), len(lines)) if end - start <= limits.BLOCK_BYTES else None


def _pairs(record: bytes | msgspec.Raw) -> Iterable[tuple[str, bytes]]:
    """The keys of an object, with their texts; a key that repeats may be there once.

    Of a large object each is found when it is asked for.
    """
    text = bytes(record)
    if len(text) <= KEYS_SAMPLE_BYTES:
        with suppress(msgspec.MsgspecError, RecursionError):
            return _OBJECT.decode(text).items()
    return members(text)


def _elements(array: bytes | msgspec.Raw) -> Iterable[bytes | msgspec.Raw]:
    try:
        return _ARRAY.decode(array)
    except (msgspec.MsgspecError, RecursionError):
        text = bytes(array)
        return elements(text) if text.startswith(b"[") else ()


def _holds_keys(declared: pa.DataType) -> bool:
    """Whether a value has declared keys, at any depth."""
    if isinstance(declared, pa.ListType):
        return _holds_keys(declared.value_type)
    if isinstance(declared, pa.MapType):
        return _holds_keys(declared.item_type)
    return isinstance(declared, pa.StructType)


def _unnamed(
    text: bytes | msgspec.Raw, declared: pa.Schema | pa.DataType, path: str
) -> Iterator[str]:
    """Such keys of a value whose type has declared ones, behind `path`."""
    if bytes(text) == b"null":
        return
    if isinstance(declared, pa.ListType):
        for one in _elements(text):
            yield from _unnamed(one, declared.value_type, path)
        return
    if isinstance(declared, pa.MapType):
        for _, value in _pairs(text):
            yield from _unnamed(value, declared.item_type, path)
        return
    types = {field.name: field.type for field in declared}
    for key, value in _pairs(text):
        if key not in types:
            yield path + key
        elif _holds_keys(types[key]):
            yield from _unnamed(value, types[key], f"{path}{key}.")
