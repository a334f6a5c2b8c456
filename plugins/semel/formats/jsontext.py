"""The texts of JSON values, as they stand in the record: for columns of type json, for maps, and
for keys that the schema does not name.

pyarrow gives no texts. So the records, which it has found good, are read a second time by msgspec,
which says where each value lies. Where msgspec says nothing (NaN, deep nesting, a key that
repeats), Python does, record by record.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.formats import words
from semel.formats.lines import BadRecords, Fault, RecordLines
from semel.formats.words import RECORD_SHOWN_BYTES
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

VALUE = "v"
"""The column that holds the values of a map."""

Judge = Callable[[RecordLines], tuple[pa.Table, dict[int, Fault]]]
"""The good ones of some records, with a column OFFSET, and the faults of the others."""

_OPENS, _BETWEEN = b'{"v":', b'}\n{"v":'
_OF_A_VALUE = tuple(VALUE + sign for sign in ":.[")
_MAP = pa.map_(pa.string(), pa.string())
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER = re.compile(rb"[{,\s]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_BEFORE = re.compile(rb"[,\s]*")
_TOKEN = re.compile(_STRING + rb"|[\[{]|[\]}]", re.DOTALL)
# Outside of texts, no other words have such letters.
_CONSTANT = re.compile(_STRING + rb"|([NI])", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^,}\]\s]+", re.DOTALL)
# A letter of a key may be written so.
_ESCAPE = re.compile(rb"\\u00")
_SPACE = 32
_BLANK = b" \t\r"
_NULL = b"null"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
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


def json_key(name: str) -> bytes:
    """A key as it mostly stands in a record."""
    return json.dumps(name, ensure_ascii=False).encode()


def decode_objects(whole: bytes | pa.Buffer, count: int) -> list[dict[str, msgspec.Raw]] | None:
    """The objects on `count` lines, all at once. None where one of them is to be looked at alone:
    it is no object, repeats a key, or is more than msgspec takes.
    """
    try:
        found = _OBJECT.decode_lines(whole)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # A key that repeats is there once in what was read. So what is written again is shorter then,
    # but for white space.
    same = len(found) == count and _weight(_ENCODER.encode_lines(found)) == _weight(whole)
    return found if same else None


def _weight(text: bytes | pa.Buffer) -> int:
    """The bytes of a text that are no white space."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) > _SPACE))


def is_json(raw: bytes) -> bool:
    """Whether a value that pyarrow takes is JSON: it takes NaN and Infinity too."""
    return not any(found[1] for found in _CONSTANT.finditer(raw))


def value_excerpt(raw: bytes) -> str:
    """A JSON value as it is shown: text in quotes, all else as it stands."""
    if not raw.startswith(b'"'):
        return text_excerpt(raw)
    if len(raw) > RECORD_SHOWN_BYTES:  # It may have megabytes.
        return words.quote(raw[1 : RECORD_SHOWN_BYTES].decode(errors="ignore"))
    if b"\\" not in raw:
        return words.quote(raw[1:-1].decode())
    try:
        return words.quote(json.loads(raw))
    except ValueError:
        return text_excerpt(raw)


def text_excerpt(raw: bytes, start: int = 0) -> str:
    """What stands at a place of a record, as it is shown."""
    end = start + RECORD_SHOWN_BYTES
    return words.excerpt(raw[start:end].decode(errors="replace"))


def repeated_key_fault(key: str) -> Fault:
    """The fault of a record that repeats a key."""
    return Reason.duplicate_key, f"the key {words.quote(key)} is there twice"


def _no_json(place: str) -> Fault:
    why = words.misfit(place, "JSON", "NaN or Infinity in it")
    return Reason.type_mismatch, why


def raws_decoder(names: Iterable[str], default: bytes) -> msgspec.json.Decoder:
    """Reads objects as the texts of some of their keys, which are the attributes f0, f1, ..."""
    fields = [
        (f"f{at}", msgspec.Raw, msgspec.field(name=name, default=msgspec.Raw(default)))
        for at, name in enumerate(names)
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Raws", fields, gc=False))


class JsonTexts:
    """Reads the texts of the keys `names` of records; those of `judged` must be JSON."""

    def __init__(self, names: tuple[str, ...], judged: tuple[str, ...]) -> None:
        self._names, self._judged = names, judged
        self._decoder = raws_decoder(names, _NULL)
        self._patterns = [re.compile(re.escape(json_key(name))) for name in names]

    def columns(self, lines: RecordLines) -> dict[str, list[bytes | None]]:
        """The texts of records that pyarrow takes, None for null. BadRecords: some record repeats
        a key, or holds what is no JSON.
        """
        self._refuse_repeated(lines)
        try:
            rows = self._decoder.decode_lines(lines.buffer())
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

    def _refuse_repeated(self, lines: RecordLines) -> None:
        """Look closer at records in which a name is there twice, or may be written otherwise."""
        suspects: set[int] = set()
        for pattern in self._patterns:
            found = records_with(pattern, lines)
            suspects.update(found[1:][found[1:] == found[:-1]].tolist())
        suspects.update(records_with(_ESCAPE, lines).tolist())
        for at in sorted(suspects):
            keys = [key for key, _ in members(lines.raw(at))]
            for name in self._names:
                if keys.count(name) > 1:
                    raise BadRecords(*repeated_key_fault(name), at)

    def _exactly(self, lines: RecordLines, at: int) -> list[bytes]:
        found = dict(members(lines.raw(at)))
        for name in self._judged:
            if name in found and not is_json(found[name]):
                raise BadRecords(*_no_json(name), at)
        return [found.get(name, _NULL) for name in self._names]


def records_with(pattern: re.Pattern[bytes], lines: RecordLines) -> np.ndarray:
    """The records in which a pattern is found, in order, each as often as it is found there."""
    places = [match.start() for match in pattern.finditer(lines.data, *lines.span)]
    return np.searchsorted(lines.ends, np.array(places, np.int64), side="right")


def map_column(
    field: pa.Field, texts: list[bytes | None], judge: Judge, offset: str
) -> tuple[pa.Array, dict[int, Fault]]:
    """The maps of some records, and the faults of those whose map means nothing.

    `texts` are the values as they stand in records that pyarrow takes. `judge` has records of the
    one column VALUE, and the name `offset` for their positions.
    """
    there = [at for at, text in enumerate(texts) if text is not None]
    faults: dict[int, Fault] = {}
    maps = _maps(field.name, texts, there, faults)
    sizes = np.zeros(len(texts), np.int64)
    sizes[there] = [len(one) for one in maps]
    keys = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.nulls(0, field.type.item_type)
    if len(keys):
        table, bad = judge(_records(list(chain.from_iterable(one.values() for one in maps))))
        owners = np.repeat(np.arange(len(texts)), sizes)
        for at in sorted(bad):
            reason, why = bad[at]
            place = f"{field.name}[{words.quote(keys[at].as_py())}]"
            why = why.removeprefix(VALUE) if why.startswith(_OF_A_VALUE) else f": {why}"
            faults.setdefault(int(owners[at]), (reason, place + why))
        values = table.column(VALUE).combine_chunks()
        if bad:
            good = table.column(offset).to_numpy()
            keys = keys.take(pa.array(good))
            sizes = np.bincount(owners[good], minlength=len(texts))
    bounds = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    nulls = np.ones(len(texts), bool)
    nulls[there] = False
    made = pa.MapArray.from_arrays(bounds, keys, values, field.type, mask=pa.array(nulls))
    return made, faults


def _maps(
    name: str, texts: list[bytes | None], there: list[int], faults: dict[int, Fault]
) -> list[dict[str, msgspec.Raw | bytes]]:
    """The keys and values of the texts that are there; none where the text is no map."""
    some = [texts[at] for at in there]
    found = decode_objects(b"\n".join(some), len(some)) if some else []
    if found is not None:
        return found
    maps: list[dict[str, msgspec.Raw | bytes]] = []
    for at, text in zip(there, some, strict=True):
        maps.append({})
        if not text.startswith(b"{"):
            why = words.misfit(name, words.expected_value(_MAP), value_excerpt(text))
            faults[at] = (Reason.type_mismatch, why)
            continue
        pairs = list(members(text))
        counts = Counter(key for key, _ in pairs)
        if len(counts) < len(pairs):
            reason, why = repeated_key_fault(counts.most_common(1)[0][0])
            faults[at] = (reason, f"{name}: {why}")
        else:
            maps[-1] = dict(pairs)
    return maps


def _records(values: list[msgspec.Raw | bytes]) -> RecordLines:
    """Each value as a record of its own, at the position that is its place."""
    sizes = np.fromiter(map(len, map(memoryview, values)), np.int64, len(values))
    sizes += len(_OPENS) + len(b"}")
    ends = np.cumsum(sizes + 1) - 1
    places = np.arange(len(values))
    data = _OPENS + _BETWEEN.join(values) + b"}"
    return RecordLines(data=data, starts=ends - sizes, ends=ends, offsets=places, lengths=sizes)


class Keys:
    """Looks for keys beside those of a schema, in records that pyarrow takes."""

    def __init__(self, declared: pa.Schema) -> None:
        self._tree = key_tree(declared)
        self._names = frozenset(self._tree)
        self._deep = any(self._tree.values())

    def unnamed_keys(self, record: bytes) -> Iterator[str]:
        """The keys of a record that nobody declared, at any depth: `key`, `struct.key`."""
        return _unnamed(record.strip(_BLANK), self._tree, "")

    def faults(self, lines: RecordLines) -> dict[int, Fault]:
        """The records with such a key, each with the name of its first one."""
        found: dict[int, Fault] = {}
        some = None if self._deep else _together(lines)
        places: Iterable[int] = range(len(lines))
        if some is not None:
            places = [at for at, one in enumerate(some) if not self._names.issuperset(one)]
        for at in places:
            name = next(self.unnamed_keys(lines.raw(at)), None)
            if name is not None:
                why = f"the schema does not name the key {words.quote(name)}"
                found[at] = (Reason.unknown_key, why)
        return found

    def count(self, lines: RecordLines, *, surely: bool) -> Ignored:
        """Such keys of a block's records, from some of them.

        `surely`: there is one. Where those that were looked at have none, all are looked at.
        """
        spread = np.linspace(0, len(lines) - 1, min(len(lines), KEYS_SAMPLE_RECORDS))
        looked, keys = self._count(lines, spread.astype(np.int64), KEYS_SAMPLE_BYTES)
        if surely and not keys:
            looked, keys = self._count(lines, range(len(lines)), None)
        scale = len(lines) / max(1, looked)
        counts = {name[:KEY_CHARS_MAX]: round(n * scale) for name, n in keys.items()}
        return Ignored(keys=counts, sampled=looked < len(lines))

    def _count(
        self, lines: RecordLines, places: Iterable[int], bytes_max: int | None
    ) -> tuple[int, Counter[str]]:
        keys: Counter[str] = Counter()
        looked = size = 0
        for at in places:
            raw = lines.raw(at)
            keys.update(set(islice(self.unnamed_keys(raw), KEYS_PER_RECORD_MAX)))
            looked, size = looked + 1, size + len(raw)
            if bytes_max is not None and size > bytes_max:
                break
        return looked, keys

    def unnamed_column(self, lines: RecordLines) -> tuple[pa.Array, dict[int, Fault]]:
        """The column REST_COLUMN: such keys at the top of each record as an object, else null.

        Keys that repeat are in it as often as they are there.
        """
        names = self._names
        found = _together(lines)
        if found is not None:
            joined = _ENCODER.encode_lines(
                [{k: v for k, v in d.items() if k not in names} for d in found]
            )
            # No text of a record holds a line end.
            column = pa.array(joined.split(b"\n")[:-1], pa.string())
            return pc.if_else(pc.equal(column, "{}"), pa.scalar(None, pa.string()), column), {}
        texts, faults = [], {}
        for at in range(len(lines)):
            made = bytearray()
            for key, raw in members(lines.raw(at)):
                if key in names:
                    continue
                if not is_json(raw):
                    faults.setdefault(at, _no_json(words.quote(key)))
                made += (b"," if made else b"{") + _ENCODER.encode(key) + b":" + raw
            texts.append(bytes(made) + b"}" if made else None)
        return pa.array(texts, pa.string()), faults


def keys_of(lines: RecordLines) -> Iterable[Iterable[str]]:
    """The keys of each record, once each."""
    found = _together(lines)
    return (dict(pairs_of(lines.raw(at))) for at in range(len(lines))) if found is None else found


def _together(lines: RecordLines) -> list[dict[str, msgspec.Raw]] | None:
    """See `objects`. None also for a block that is larger than most: a single record of small keys
    takes twenty times its size."""
    start, end = lines.span
    return decode_objects(lines.buffer(), len(lines)) if end - start <= limits.BLOCK_BYTES else None


def pairs_of(record: bytes | msgspec.Raw) -> Iterable[tuple[str, bytes]]:
    """The keys of an object, with their texts; a key that repeats may be there once.

    Of a large object each is found when it is asked for.
    """
    text = bytes(record)
    if len(text) <= KEYS_SAMPLE_BYTES:
        with suppress(msgspec.MsgspecError, RecursionError):
            return _OBJECT.decode(text).items()
    return members(text)


def elements_of(array: bytes | msgspec.Raw) -> Iterable[bytes | msgspec.Raw]:
    """The values of an array, each as its text."""
    try:
        return _ARRAY.decode(array)
    except (msgspec.MsgspecError, RecursionError):
        text = bytes(array)
        return elements(text) if text.startswith(b"[") else ()


def key_tree(declared: pa.Schema | pa.DataType) -> Any:
    """The keys of a type with the trees of their values; `[tree]` of a list's elements, `(tree,)`
    of a map's values. None: its values have no declared keys."""
    if isinstance(declared, pa.Schema | pa.StructType):
        return {field.name: key_tree(field.type) for field in declared}
    if isinstance(declared, pa.ListType):
        inner = key_tree(declared.value_type)
        return inner and [inner]
    if isinstance(declared, pa.MapType):
        inner = key_tree(declared.item_type)
        return inner and (inner,)
    return None


def _unnamed(text: bytes | msgspec.Raw, tree: Any, path: str) -> Iterator[str]:
    """Such keys of a value of a type with declared ones, behind `path`."""
    if isinstance(tree, list):
        for one in elements_of(text):
            yield from _unnamed(one, tree[0], path)
        return
    for key, value in pairs_of(text):
        if isinstance(tree, tuple):
            yield from _unnamed(value, tree[0], path)
        elif key not in tree:
            yield path + key
        elif tree[key] and bytes(value) != _NULL:
            yield from _unnamed(value, tree[key], f"{path}{key}.")
