"""Hashes of record ids: h1 (64 bits) to sort, filter and look up, h2 (32 bits) to distinguish ids.

The catalog stores these hashes, so the encoding may never change: ids outlive versions.

1. Encode each value as bytes, independent of the format, width or scale in which it was read. Text:
   UTF-8. Binary: unchanged. Integer: 8 bytes (little endian, signed). Timestamp: its microseconds
   since 1970 in UTC, as an integer. Date: its days, as an integer. Boolean: 0 or 1, as an integer.
   Decimal: 32 bytes (little endian) of the value times 10^38.
2. Hash a single id column directly. With several, hash each column, concatenate the 16-byte hashes
   (xxh3_64, xxhash64, little endian) in declared order, and hash them again; so ("a", "bc") differs
   from ("ab", "c"). The scope's bucket is an additional first column.
3. h1 = xxh3_64. h2 = the low 32 bits of xxhash64, the shard = its high 32 bits modulo the shards.
   Shard, order by h1 and h2 are independent. Shards taken from h1 would leave most blocks of a
   shard's filter empty and overfill the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import polars as pl
import polars_hash  # noqa: F401  (gives polars' expressions the name space `nchash`)
import pyarrow as pa
import pyarrow.compute as pc

_DECIMAL = pa.decimal256(76, 38)


@dataclass(frozen=True, kw_only=True)
class HashedIds:
    """The ids of a table's rows, in row order. If `valid` is false, ignore the other values."""

    h1: np.ndarray
    h2: np.ndarray
    shard: np.ndarray
    valid: np.ndarray

    def only(self, rows: np.ndarray | slice) -> Self:
        """The ids of some rows: a mask, indices or a slice."""
        return replace(self, **{name: column[rows] for name, column in vars(self).items()})


_NO_IDS = HashedIds(
    h1=np.zeros(0, np.uint64),
    h2=np.zeros(0, np.uint32),
    shard=np.zeros(0, np.uint16),
    valid=np.zeros(0, bool),
)


def join_ids(parts: Iterable[HashedIds]) -> HashedIds:
    """The ids of several tables, one after the other."""
    columns = zip(*(vars(part).values() for part in (_NO_IDS, *parts)), strict=True)
    h1, h2, shard, valid = map(np.concatenate, columns)
    return HashedIds(h1=h1, h2=h2, shard=shard, valid=valid)


# Keeps L4.
def hash_ids(
    table: pa.Table, columns: tuple[str, ...], *, shards: int, bucket: np.ndarray | None = None
) -> HashedIds:
    """Hash the id of each row: `columns` in declared order, after its `bucket` (int64) if given.

    h1 is uint64, h2 uint32, shard uint16. A null in any column makes a row invalid; an empty text
    is an id. Raises TypeError for floats and nested values, which the spec refuses.
    """
    parts = [_bytes(table.column(name)) for name in columns]
    valid = np.ones(table.num_rows, dtype=bool)
    for name in columns:
        if table.column(name).null_count:
            valid &= pc.is_valid(table.column(name)).to_numpy()
    if bucket is not None:
        parts.insert(0, _fixed(bucket.astype("<i8", copy=False), 8))
    h1, wide = _hash(parts[0])
    if len(parts) > 1:
        hashes = np.empty((table.num_rows, 2 * len(parts)), dtype="<u8")
        hashes[:, 0], hashes[:, 1] = h1, wide
        for at, part in enumerate(parts[1:], start=1):
            hashes[:, 2 * at], hashes[:, 2 * at + 1] = _hash(part)
        h1, wide = _hash(_fixed(hashes, 16 * len(parts)))
    return HashedIds(
        h1=h1,
        h2=wide.astype(np.uint32),
        shard=((wide >> np.uint64(32)) % np.uint64(shards)).astype(np.uint16),
        valid=valid,
    )


def seconds_of(times: pa.ChunkedArray) -> np.ndarray:
    """The whole seconds since 1970 in UTC (int64) of timestamps or dates; 0 for null."""
    seconds = times.cast(pa.timestamp("s", tz="UTC"), safe=False).cast(pa.int64())
    return pc.fill_null(seconds, 0).to_numpy()


def _hash(part: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """xxh3_64 and xxhash64 of each value; 0 for nulls, which the caller marks as invalid."""
    value = pl.col("value").nchash
    hashed = pl.DataFrame({"value": part}).select(
        value.xxh3_64().fill_null(0).alias("h1"), value.xxhash64().fill_null(0).alias("wide")
    )
    return hashed["h1"].to_numpy(), hashed["wide"].to_numpy()


def _bytes(column: pa.ChunkedArray) -> pl.Series:
    """Step 1 of the encoding: the bytes of each value of a column."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_text(kind):
        return pl.from_arrow(column)
    if pa.types.is_decimal(kind):
        scaled = column.cast(_DECIMAL).combine_chunks()
        count = scaled.offset + len(scaled)
        data = np.frombuffer(scaled.buffers()[1] or b"", dtype="V32", count=count)
        return _fixed(data[scaled.offset :], 32)
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.int64())
    else:
        raise TypeError(f"values of type {kind} cannot identify a record")
    return _fixed(pc.fill_null(column, 0).to_numpy().astype("<i8", copy=False), 8)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
            pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )  # fmt: skip


def _fixed(values: np.ndarray, width: int) -> pl.Series:
    """Split the bytes of an array into values of `width` bytes."""
    data = np.ascontiguousarray(values)
    offsets = np.arange(0, data.nbytes + 1, width, dtype=np.int64)
    return pl.from_arrow(
        pa.Array.from_buffers(
            pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
    )
