"""The texts of JSON values, exactly as in the record: for columns of type json, for maps, and for
keys that the schema does not name.

pyarrow does not return texts. So msgspec reads the records again after pyarrow has accepted them,
and returns the bytes of each value. If msgspec cannot (NaN, deep nesting, a repeated key), Python
reads record by record.
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
"""Records of a block in which semel looks for keys that the schema does not name."""

KEYS_SAMPLE_BYTES = 128 << 10
"""Bytes of a block in which semel looks for them, in a few percent of its parse time."""

KEYS_PER_RECORD_MAX = 1_000
"""Undeclared keys that semel examines per record: a record of 64 MiB may have millions."""

KEY_CHARS_MAX = 60
"""Characters of an undeclared key that a report shows."""

VALUE = "v"
"""The column with a map's values."""

Judge = Callable[[RecordLines], tuple[pa.Table, dict[int, Fault]]]
"""Judges records: returns the good ones, with a column OFFSET, and the faults of the others."""

_OPENS, _BETWEEN = b'{"v":', b'}\n{"v":'
_OF_A_VALUE = tuple(VALUE + sign for sign in ":.[")
_MAP = pa.map_(pa.string(), pa.string())
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER = re.compile(rb"[{,\s]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_BEFORE = re.compile(rb"[,\s]*")
_TOKEN = re.compile(_STRING + rb"|[\[{]|[\]}]", re.DOTALL)
# Outside of strings, only NaN and Infinity have these letters.
_CONSTANT = re.compile(_STRING + rb"|([NI])", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^,}\]\s]+", re.DOTALL)
# A key may have an ASCII letter in this form.
_ESCAPE = re.compile(rb"\\u00")
_SPACE = 32
_BLANK = b" \t\r"
_NULL = b"null"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.json.Encoder()


def members(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the keys of an object that pyarrow accepts, repeated ones too, with their values'
    texts.

    Does not recurse, so it reads any depth. Raises ValueError for an object that pyarrow refuses.
    """
    at = 0
    while member := _MEMBER.match(text, at):
        at = _end(text, member.end())
        yield msgspec.json.decode(member[1], type=str), text[member.end() : at]


def elements(text: bytes) -> Iterator[bytes]:
    """Yield the texts of the values of an array that pyarrow accepts. See `members`."""
    start = _BEFORE.match(text, 1).end()
    while text[start : start + 1] != b"]":
        at = _end(text, start)
        yield text[start:at]
        start = _BEFORE.match(text, at).end()


def _end(text: bytes, start: int) -> int:
    """The position after the value that begins at `start`."""
    if text[start : start + 1] in (b"{", b"["):
        return _closing(text, start)
    if scalar := _SCALAR.match(text, start):
        return scalar.end()
    raise ValueError("a value is missing")


def _closing(text: bytes, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        code = text[token.start()]
        depth += (code in b"{[") - (code in b"}]")
        if not depth:
            return token.end()
    raise ValueError("a bracket is not closed")


def json_key(name: str) -> bytes:
    """A key as most records write it."""
    return json.dumps(name, ensure_ascii=False).encode()


def decode_objects(text: bytes | pa.Buffer, count: int) -> list[dict[str, msgspec.Raw]] | None:
    """The objects on `count` lines, decoded at once.

    Returns None if a line needs its own check: it is not an object, repeats a key, or is beyond
    msgspec.
    """
    try:
        decoded = _OBJECT.decode_lines(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # Decoding drops repeated keys. Without white space, the encoded objects are shorter then.
    complete = len(decoded) == count and _weight(_ENCODER.encode_lines(decoded)) == _weight(text)
    return decoded if complete else None


def _weight(text: bytes | pa.Buffer) -> int:
    """The number of bytes that are not white space."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) > _SPACE))


def is_json(raw: bytes) -> bool:
    """Whether a value that pyarrow accepts is JSON. pyarrow also accepts NaN and Infinity."""
    return not any(token[1] for token in _CONSTANT.finditer(raw))


def value_excerpt(raw: bytes) -> str:
    """A JSON value for a message: a string in quotes, any other value as it stands."""
    if not raw.startswith(b'"'):
        return text_excerpt(raw)
    if len(raw) > RECORD_SHOWN_BYTES:  # A string may have megabytes.
        return words.quote(raw[1 : RECORD_SHOWN_BYTES].decode(errors="ignore"))
    if b"\\" not in raw:
        return words.quote(raw[1:-1].decode())
    try:
        return words.quote(json.loads(raw))
    except ValueError:
        return text_excerpt(raw)


def text_excerpt(raw: bytes, start: int = 0) -> str:
    """A record's text from `start` on, shortened for a message."""
    end = start + RECORD_SHOWN_BYTES
    return words.excerpt(raw[start:end].decode(errors="replace"))


def repeated_key_fault(key: str) -> Fault:
    """The fault of a record that repeats a key."""
    return Reason.duplicate_key, f"the key {words.quote(key)} appears twice"


def _no_json(place: str) -> Fault:
    why = words.misfit(place, "JSON", "NaN or Infinity")
    return Reason.type_mismatch, why


def raws_decoder(names: Iterable[str], default: bytes) -> msgspec.json.Decoder:
    """A decoder of objects that returns the texts of the named keys as attributes f0, f1, ..."""
    fields = [
        (f"f{at}", msgspec.Raw, msgspec.field(name=name, default=msgspec.Raw(default)))
        for at, name in enumerate(names)
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Raws", fields, gc=False))


class JsonTexts:
    """Reads the texts of the keys `names`. Values of the keys `judged` must be JSON."""

    def __init__(self, names: tuple[str, ...], judged: tuple[str, ...]) -> None:
        self._names, self._judged = names, judged
        self._decoder = raws_decoder(names, _NULL)
        self._patterns = [re.compile(re.escape(json_key(name))) for name in names]

    def columns(self, lines: RecordLines) -> dict[str, list[bytes | None]]:
        """The texts of each key in records that pyarrow accepts, None for null.

        Raises BadRecords if a record repeats a key, or if a judged value is not JSON.
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
        """Raise BadRecords if a record repeats a name. Reads only records that contain a name
        twice, or an escape."""
        suspects: set[int] = set()
        for pattern in self._patterns:
            records = records_with(pattern, lines)
            suspects.update(records[1:][records[1:] == records[:-1]].tolist())
        suspects.update(records_with(_ESCAPE, lines).tolist())
        for at in sorted(suspects):
            keys = [key for key, _ in members(lines.raw(at))]
            for name in self._names:
                if keys.count(name) > 1:
                    raise BadRecords(*repeated_key_fault(name), at)

    def _exactly(self, lines: RecordLines, at: int) -> list[bytes]:
        texts = dict(members(lines.raw(at)))
        for name in self._judged:
            if name in texts and not is_json(texts[name]):
                raise BadRecords(*_no_json(name), at)
        return [texts.get(name, _NULL) for name in self._names]


def records_with(pattern: re.Pattern[bytes], lines: RecordLines) -> np.ndarray:
    """The indexes of records that match a pattern, in order, one index for each match."""
    places = [match.start() for match in pattern.finditer(lines.data, *lines.span)]
    return np.searchsorted(lines.ends, np.array(places, np.int64), side="right")


def map_column(
    field: pa.Field, texts: list[bytes | None], judge: Judge, offset: str
) -> tuple[pa.Array, dict[int, Fault]]:
    """The maps of some records, and the faults of records whose map is invalid.

    `texts`: the values in records that pyarrow accepts. `judge` judges records of the one column
    VALUE; `offset` names the column of their positions.
    """
    present = [at for at, text in enumerate(texts) if text is not None]
    faults: dict[int, Fault] = {}
    maps = _maps(field.name, texts, present, faults)
    sizes = np.zeros(len(texts), np.int64)
    sizes[present] = [len(one) for one in maps]
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
    nulls[present] = False
    column = pa.MapArray.from_arrays(bounds, keys, values, field.type, mask=pa.array(nulls))
    return column, faults


def _maps(
    name: str, texts: list[bytes | None], places: list[int], faults: dict[int, Fault]
) -> list[dict[str, msgspec.Raw | bytes]]:
    """The keys and values of the texts at `places`. A text that is not a map gets an empty one,
    and its fault in `faults`."""
    present_texts = [texts[at] for at in places]
    decoded = decode_objects(b"\n".join(present_texts), len(present_texts)) if present_texts else []
    if decoded is not None:
        return decoded
    maps: list[dict[str, msgspec.Raw | bytes]] = []
    for at, text in zip(places, present_texts, strict=True):
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
    """Each value as a record whose offset is its index."""
    sizes = np.fromiter(map(len, map(memoryview, values)), np.int64, len(values))
    sizes += len(_OPENS) + len(b"}")
    ends = np.cumsum(sizes + 1) - 1
    places = np.arange(len(values))
    data = _OPENS + _BETWEEN.join(values) + b"}"
    return RecordLines(data=data, starts=ends - sizes, ends=ends, offsets=places, lengths=sizes)


class Keys:
    """Finds keys that the schema does not name, in records that pyarrow accepts."""

    def __init__(self, declared: pa.Schema) -> None:
        self._tree = key_tree(declared)
        self._names = frozenset(self._tree)
        self._deep = any(self._tree.values())

    def unnamed_keys(self, record: bytes) -> Iterator[str]:
        """Yield the undeclared keys of a record, at any depth: `key`, `struct.key`."""
        return _undeclared_keys(record.strip(_BLANK), self._tree, "")

    def faults(self, lines: RecordLines) -> dict[int, Fault]:
        """The faults of records with an undeclared key, each with its first one."""
        faults: dict[int, Fault] = {}
        decoded = None if self._deep else _decode_block(lines)
        places: Iterable[int] = range(len(lines))
        if decoded is not None:
            places = [at for at, one in enumerate(decoded) if not self._names.issuperset(one)]
        for at in places:
            name = next(self.unnamed_keys(lines.raw(at)), None)
            if name is not None:
                why = f"the schema does not name the key {words.quote(name)}"
                faults[at] = (Reason.unknown_key, why)
        return faults

    def count(self, lines: RecordLines, *, surely: bool) -> Ignored:
        """Estimate from a sample how many records of a block have each undeclared key.

        `surely`: at least one record has such a key, so a sample without one makes it count all.
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
        """The column REST_COLUMN: the undeclared top-level keys of each record as an object, or
        null.

        A repeated key is repeated in the object.
        """
        names = self._names
        decoded = _decode_block(lines)
        if decoded is not None:
            joined = _ENCODER.encode_lines(
                [{k: v for k, v in d.items() if k not in names} for d in decoded]
            )
            # The text of a record never has a line end.
            column = pa.array(joined.split(b"\n")[:-1], pa.string())
            return pc.if_else(pc.equal(column, "{}"), pa.scalar(None, pa.string()), column), {}
        texts, faults = [], {}
        for at in range(len(lines)):
            kept_text = bytearray()
            for key, raw in members(lines.raw(at)):
                if key in names:
                    continue
                if not is_json(raw):
                    faults.setdefault(at, _no_json(words.quote(key)))
                kept_text += (b"," if kept_text else b"{") + _ENCODER.encode(key) + b":" + raw
            texts.append(bytes(kept_text) + b"}" if kept_text else None)
        return pa.array(texts, pa.string()), faults


def keys_of(lines: RecordLines) -> Iterable[Iterable[str]]:
    """The distinct keys of each record."""
    objects = _decode_block(lines)
    if objects is not None:
        return objects
    return (dict(pairs_of(lines.raw(at))) for at in range(len(lines)))


def _decode_block(lines: RecordLines) -> list[dict[str, msgspec.Raw]] | None:
    """See `decode_objects`. Also returns None for a block that is larger than most: decoded, a
    single record of small keys takes twenty times its size."""
    start, end = lines.span
    return decode_objects(lines.buffer(), len(lines)) if end - start <= limits.BLOCK_BYTES else None


def pairs_of(record: bytes | msgspec.Raw) -> Iterable[tuple[str, bytes]]:
    """The keys of an object, with their texts; a repeated key may appear once.

    Large objects are decoded lazily, key by key.
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
    """The keys of a type with the trees of their values. A list has `[tree]` of its elements, a map
    `(tree,)` of its values. Returns None for a value without declared keys."""
    if isinstance(declared, pa.Schema | pa.StructType):
        return {field.name: key_tree(field.type) for field in declared}
    if isinstance(declared, pa.ListType):
        inner = key_tree(declared.value_type)
        return inner and [inner]
    if isinstance(declared, pa.MapType):
        inner = key_tree(declared.item_type)
        return inner and (inner,)
    return None


def _undeclared_keys(text: bytes | msgspec.Raw, tree: Any, path: str) -> Iterator[str]:
    """Yield the undeclared keys of a value, each after `path`."""
    if isinstance(tree, list):
        for element in elements_of(text):
            yield from _undeclared_keys(element, tree[0], path)
        return
    for key, value in pairs_of(text):
        if isinstance(tree, tuple):
            yield from _undeclared_keys(value, tree[0], path)
        elif key not in tree:
            yield path + key
        elif tree[key] and bytes(value) != _NULL:
            yield from _undeclared_keys(value, tree[key], f"{path}{key}.")
