"""Record ids as hashes: 64 bits to sort, filter and look up by (h1), 32 to tell ids apart (h2).

The encoding is part of what the catalog stores, so it may never change: ids outlive versions.

1. A value becomes bytes: text its UTF-8, binary itself, an integer 8 bytes (little endian, signed),
   a timestamp the same of its microseconds since 1970 in UTC, a date the same of its days, a
   boolean the same of 0 or 1, a decimal 32 bytes (little endian) of the value times 10^38. So it
   does not matter in which format, width or scale the value was read.
2. One id column: its bytes are hashed as they are. Several: each column's bytes are hashed by
   themselves, and the 16-byte hashes (xxh3_64, xxhash64, little endian), in declared order, are
   hashed again; so ("a", "bc") is not ("ab", "c"). The scope's bucket is one more column, before
   them.
3. h1 = xxh3_64. h2 = the low 32 bits of xxhash64, the shard = its high 32 bits modulo the shards.
   Shard, order by h1 and h2 are independent: shards cut from h1 would leave most of the blocks of a
   shard's filter empty and the others overfull.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import polars_hash  # noqa: F401  (gives polars' expressions the name space `nchash`)
import pyarrow as pa
import pyarrow.compute as pc

_DECIMAL = pa.decimal256(76, 38)


@dataclass(frozen=True, kw_only=True)
class HashedIds:
    """The ids of a table's rows, in row order. Where `valid` is false the others mean nothing."""

    h1: np.ndarray
    h2: np.ndarray
    shard: np.ndarray
    valid: np.ndarray


# Keeps L4.
def hash_ids(
    table: pa.Table, columns: tuple[str, ...], *, shards: int, bucket: np.ndarray | None = None
) -> HashedIds:
    """Hash the id of each row: `columns` in declared order, after its `bucket` (int64) if given.

    h1 is uint64, h2 uint32, shard uint16. A null in any column makes a row invalid; an empty text
    is an id. TypeError for a column that cannot identify (floats, nested values): the spec refuses
    these.
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
    """xxh3_64 and xxhash64 of each value. The caller marks nulls as invalid; here they are 0."""
    value = pl.col("value").nchash
    hashed = pl.DataFrame({"value": part}).select(
        value.xxh3_64().fill_null(0).alias("h1"), value.xxhash64().fill_null(0).alias("wide")
    )
    return hashed["h1"].to_numpy(), hashed["wide"].to_numpy()


def _bytes(column: pa.ChunkedArray) -> pl.Series:
    """Step 1 of the encoding: what is hashed for each value of a column."""
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
    """The bytes of an array as values of `width` bytes each."""
    data = np.ascontiguousarray(values)
    offsets = np.arange(0, data.nbytes + 1, width, dtype=np.int64)
    return pl.from_arrow(
        pa.Array.from_buffers(
            pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
    )
