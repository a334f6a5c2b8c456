"""Columns of type map<string, T>: objects whose keys are data.

pyarrow.json reads no maps. So the values of all keys of a block are written as records of one
column, and judged as records are: a value is taken in a map as it is in a column of its own.
"""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from semel.formats import words
from semel.formats.jsontext import members, objects
from semel.formats.jsonwords import value_shown
from semel.formats.lines import Fault, Lines
from semel.model.reasons import Reason

VALUE = "v"
"""The column that holds the values of a map."""

Judge = Callable[[Lines], tuple[pa.Table, dict[int, Fault]]]
"""The good ones of some records, with a column OFFSET, and the faults of the others."""

_OPENS, _BETWEEN = b'{"v":', b'}\n{"v":'
_OF_A_VALUE = tuple(VALUE + sign for sign in ":.[")
_MAP = pa.map_(pa.string(), pa.string())


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
            place = f"{field.name}[{words.quoted(keys[at].as_py())}]"
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
) -> list[dict[str, Any]]:
    """The keys and values of the texts that are there; none where the text is no map."""
    some = [texts[at] for at in there]
    found = objects(b"\n".join(some), len(some)) if some else []
    if found is not None:
        return found
    maps: list[dict[str, Any]] = []
    for at, text in zip(there, some, strict=True):
        maps.append({})
        if not text.startswith(b"{"):
            why = words.misfit(name, words.expected(_MAP), value_shown(text))
            faults[at] = (Reason.type_mismatch, why)
            continue
        pairs = list(members(text))
        counts = Counter(key for key, _ in pairs)
        if len(counts) < len(pairs):
            key = words.quoted(counts.most_common(1)[0][0])
            why = f"{name}: the key {key} is there twice"
            faults[at] = (Reason.duplicate_key, why)
        else:
            maps[-1] = dict(pairs)
    return maps


def _records(values: list[Any]) -> Lines:
    """Each value as a record of its own, at the position that is its place."""
    sizes = np.fromiter(map(len, map(memoryview, values)), np.int64, len(values))
    sizes += len(_OPENS) + len(b"}")
    ends = np.cumsum(sizes + 1) - 1
    places = np.arange(len(values))
    data = _OPENS + _BETWEEN.join(values) + b"}"
    return Lines(data=data, starts=ends - sizes, ends=ends, offsets=places, lengths=sizes)
