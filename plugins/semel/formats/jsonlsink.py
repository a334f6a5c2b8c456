"""JSON Lines as a sink's format: the code of the table's entry, see table.SinkCode.

JSON has text, numbers, flags, lists and objects. Dates and times are ISO 8601 text, decimals their
digits as text, bytes base64, maps objects.
"""

import mmap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from semel.errors import TerminalError
from semel.formats.sinkvalues import BLOCK_BYTES_MAX, as_base64, check_years, is_binary, is_plain

if TYPE_CHECKING:
    import pyarrow.dataset as ds


JSON_BLOCK_BYTES = 1 << 20
"""Bytes that pyarrow parses of a JSON Lines file at once, unless a record is longer."""


def refusal(kind: pa.DataType) -> str | None:
    """See table.SinkCode."""
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            return f"maps whose keys are {kind.key_type}, and JSON has text alone"
        return refusal(kind.item_type)
    if pa.types.is_struct(kind):
        return next(filter(None, (refusal(field.type) for field in kind)), None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return refusal(kind.value_type)
    return None if is_plain(kind) else f"{kind}, which JSON Lines does not have"


def held_as(kind: pa.DataType) -> pa.DataType | None:
    """See table.SinkCode. pyarrow reads no object whose keys it does not know: no maps."""
    return None if _holds_map(kind) else _read_as(kind)


def _holds_map(kind: pa.DataType) -> bool:
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_map(kind) or any(map(_holds_map, inner))


def _read_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind) or is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    return kind


def write(table: pa.Table, file: Any) -> None:
    """See table.SinkCode."""
    names = table.column_names
    ready = [in_json(name, table.column(name).combine_chunks()) for name in names]
    pl.from_arrow(pa.table(ready, names=names)).write_ndjson(file)


# Keeps S22.
def in_json(name: str, array: pa.Array) -> pa.Array:
    """A column as JSON can hold it: bytes as base64.

    JSON has no NaN and no infinity; what writes it makes them null without a word.
    """
    kind = array.type
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
        raise TerminalError(
            f"the output's column {name!r} holds NaN or an infinity, which JSON Lines does not "
            "have; make it null in the last transform's select (nanvl), or write Parquet"
        )
    if pa.types.is_temporal(kind):
        check_years(name, array)
    if is_binary(kind):
        return as_base64(array)
    if pa.types.is_struct(kind):
        inner = [in_json(name, part) for part in array.flatten()]
        return pa.StructArray.from_arrays(inner, kind.names, mask=array.is_null())
    if pa.types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        pairs, sizes = pc.list_flatten(entries), _sizes(entries)
        values = in_json(name, pairs.field(1))
        bounds = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        return pa.MapArray.from_arrays(bounds, pairs.field(0), values, mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = array.cast(pa.large_list(kind.value_type))
        # Only what no null hides: so offsets are made anew.
        values = in_json(name, pc.list_flatten(lists))
        bounds = pa.array(np.concatenate(([0], np.cumsum(_sizes(lists)))), pa.int64())
        return pa.LargeListArray.from_arrays(bounds, values, mask=array.is_null())
    return array


def _sizes(lists: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def reading(path: Path, size: int) -> "ds.FileFormat":
    """See table.SinkCode. A record must not reach over a whole block, and a larger block costs
    memory and time: it is the smallest one that will do."""
    return _by_blocks(_block_bytes(path, size))


@cache
def _by_blocks(size: int) -> "ds.FileFormat":
    import pyarrow.dataset as ds

    return ds.JsonFileFormat(read_options=pa.json.ReadOptions(block_size=size))


def _block_bytes(path: Path, size: int) -> int:
    """The smallest block size, doubled from JSON_BLOCK_BYTES on, that puts the end of a line into
    each block but the last. A look at the beginning of each block tells."""
    block = JSON_BLOCK_BYTES
    if size <= block:
        return block
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        end = len(view)
        while any(view.find(b"\n", at, at + block) < 0 for at in range(0, end - block, block)):
            block *= 2
    return min(block, BLOCK_BYTES_MAX)


def rows(path: Path) -> int:
    """See table.SinkCode."""
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
