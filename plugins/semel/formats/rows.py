"""Rows of a block that never were text. A dead letter stores such a row as JSON.

It has numbers as they are (also NaN and Infinity), decimals as text, a map with a repeated key as
its pairs, and bytes in base64. Times are ISO 8601 with six digits of a second, or nine if they have
more. Text that is not UTF-8 has its bytes as `\\xff`.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

_EXTRA_DIGITS = "000"
_NOT_A_TIME = -(2**63)
"""The number that numpy reserves for "no time". A dead letter shows the number, with its unit."""


class Rows:
    """The records of a block, instead of `RecordLines`. If `columns` is None, they are unreadable."""

    def __init__(
        self,
        columns: pa.RecordBatch | None,
        offsets: np.ndarray,
        instead: tuple[np.ndarray, pa.RecordBatch] | None = None,
    ) -> None:
        """`instead`: positions of rows, and the rows to show for them."""
        self._columns, self._instead = columns, instead
        self.offsets = offsets
        self.lengths = np.zeros(len(offsets), np.int64)  # Bytes of a row are unknown.

    def __len__(self) -> int:
        return len(self.offsets)

    def raws(self, places: Sequence[int] | np.ndarray) -> list[bytes]:
        """Some rows as JSON; b"" if they are unreadable."""
        if self._columns is None:
            return [b""] * len(places)
        texts = _texts(self._columns.take(pa.array(places, pa.int64())))
        if self._instead:
            others, rows = self._instead
            wanted = np.isin(others, places)
            new = dict(zip(others[wanted], _texts(rows.filter(pa.array(wanted))), strict=True))
            texts = [new.get(place, text) for place, text in zip(places, texts, strict=True)]
        return texts

    def raw(self, index: int) -> bytes:
        """One row."""
        return self.raws([index])[0]

    def beginning(self, index: int, size: int) -> bytes:
        """The first bytes of a row."""
        return self.raw(index)[:size]


def _texts(rows: pa.RecordBatch) -> list[bytes]:
    names, values = rows.schema.names, [plain(column) for column in rows.columns]
    return [_text(names, row) for row in zip(*values, strict=True)]


def _text(names: Iterable[str], values: Iterable[Any]) -> bytes:
    row = dict(zip(names, values, strict=True))
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def plain(array: pa.Array) -> list[Any]:
    """A decoded column's values in the form of JSON."""
    kind = array.type
    if at.is_timestamp(kind):
        return _times(array)
    if at.is_date(kind):
        days = array.cast(pa.date32()).view(pa.int32())
        return _with_nulls(array, _iso_texts(days, "D"))
    if at.is_decimal(kind):
        return [None if v is None else format(v, "f") for v in array.to_pylist()]
    if at.is_binary(kind) or at.is_large_binary(kind) or at.is_fixed_size_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
    if at.is_string(kind) or at.is_large_string(kind):
        raws = array.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        return [None if v is None else v.decode(errors="backslashreplace") for v in raws]
    if at.is_struct(kind):
        parts = [plain(inner) for inner in array.flatten()]
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
        return _with_nulls(array, rows)
    if at.is_map(kind):
        keys, items = plain(array.keys), plain(array.items)
        spans = _spans(array)
        return _with_nulls(array, [_pairs(keys[a:b], items[a:b]) for a, b in spans])
    if at.is_list(kind) or at.is_large_list(kind):
        values = plain(array.values)
        return _with_nulls(array, [values[a:b] for a, b in _spans(array)])
    if at.is_fixed_size_list(kind):
        return plain(array.cast(pa.list_(kind.value_field)))
    return array.to_pylist()


def _pairs(keys: list[str], items: list[Any]) -> dict[str, Any] | list[Any]:
    """A map as an object, or as its pairs if a key repeats."""
    if len(set(keys)) == len(keys):
        return dict(zip(keys, items, strict=True))
    return [[key, item] for key, item in zip(keys, items, strict=True)]


def _spans(array: pa.Array) -> Iterable[tuple[int, int]]:
    bounds = array.offsets.to_pylist()
    return zip(bounds, bounds[1:], strict=False)


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    """The values, None where the array has null."""
    valid = array.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _iso_texts(numbers: pa.Array, unit: str) -> list[str]:
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return values.astype(f"datetime64[{unit}]").astype(str).tolist()


def _times(array: pa.Array) -> list[str | None]:
    unit = array.type.unit
    texts = _iso_texts(array.view(pa.int64()), unit)
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    if digits < 6:
        texts = [f"{text}{'.' * (not digits)}{'0' * (6 - digits)}" for text in texts]
    elif digits > 6:
        texts = [text.removesuffix(_EXTRA_DIGITS) for text in texts]
    texts = [f"{text}Z" for text in texts]
    numbers = pc.fill_null(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(numbers == _NOT_A_TIME).tolist():
        texts[place] = f"{_NOT_A_TIME}{unit}"
    return _with_nulls(array, texts)
