"""JSON Lines as a sink's format (see table.SinkCode), and JSON texts for sinks that publish rows.

It converts whole columns at once; readers restore both by their types. JSON has text, numbers,
booleans, lists and objects. Dates and times become ISO 8601 text, decimals the text of their
digits, bytes base64, maps objects.
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
from pyarrow import types as at

from semel.errors import TerminalError
from semel.formats.sinkvalues import BLOCK_BYTES_MAX, as_base64, check_years, is_binary, is_plain

if TYPE_CHECKING:
    import pyarrow.dataset as ds


JSON_BLOCK_BYTES = 1 << 20
"""Bytes of a JSON Lines file that pyarrow parses at once, unless a record is longer."""

_HEAD, _TAIL = len('{"v":'), len("}")


def refusal(kind: pa.DataType) -> str | None:
    """See table.SinkCode."""
    if at.is_map(kind):
        if not at.is_string(kind.key_type):
            return f"maps whose keys are {kind.key_type}, but JSON keys are text"
        return refusal(kind.item_type)
    if at.is_struct(kind):
        return next(filter(None, (refusal(field.type) for field in kind)), None)
    if at.is_list(kind) or at.is_large_list(kind):
        return refusal(kind.value_type)
    return None if is_plain(kind) else f"{kind}, which JSON Lines does not have"


def read_back_type(kind: pa.DataType) -> pa.DataType | None:
    """See table.SinkCode. None for maps: pyarrow reads only objects with declared keys."""
    return None if _holds_map(kind) else _read_as(kind)


def _holds_map(kind: pa.DataType) -> bool:
    inner = (kind.field(n).type for n in range(kind.num_fields))
    return at.is_map(kind) or any(map(_holds_map, inner))


def _read_as(kind: pa.DataType) -> pa.DataType:
    if at.is_date(kind) or is_binary(kind):
        return pa.string()
    if at.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if at.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    return kind


def write(table: pa.Table, file: Any) -> None:
    """See table.SinkCode."""
    _json_frame(table).write_ndjson(file)


def json_objects(table: pa.Table) -> pa.Array:
    """Each row as a JSON object, in UTF-8 (large_binary). Raises TerminalError as `write` does."""
    return _objects(_json_frame(table))


def _objects(frame: pl.DataFrame) -> pa.Array:
    texts = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_arrow()
    return texts.cast(pa.large_binary())


def _json_frame(table: pa.Table) -> pl.DataFrame:
    names = table.column_names
    ready = [_in_json(name, table.column(name).combine_chunks()) for name in names]
    return pl.from_arrow(pa.table(ready, names=names))


# Keeps S22.
def _in_json(name: str, array: pa.Array) -> pa.Array:
    """A column in a form that JSON has, such as bytes as base64.

    Raises TerminalError for NaN and infinities, which the writer would silently make null.
    """
    kind = array.type
    if at.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
        raise TerminalError(
            f"the output's column {name!r} holds NaN or an infinity, which JSON Lines does not "
            "have; make it null in the last transform's select (nanvl), or write Parquet"
        )
    if at.is_temporal(kind):
        check_years(name, array)
    if is_binary(kind):
        return as_base64(array)
    if at.is_struct(kind):
        inner = [_in_json(name, part) for part in array.flatten()]
        return pa.StructArray.from_arrays(inner, kind.names, mask=array.is_null())
    if at.is_map(kind):
        entries = _entries(array)
        pairs, sizes = pc.list_flatten(entries), _sizes(entries)
        values = _in_json(name, pairs.field(1))
        bounds = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        return pa.MapArray.from_arrays(bounds, pairs.field(0), values, mask=array.is_null())
    if at.is_list(kind) or at.is_large_list(kind):
        lists = array.cast(pa.large_list(kind.value_type))
        # Flattening skips values under null lists, so the offsets are computed again.
        values = _in_json(name, pc.list_flatten(lists))
        bounds = pa.array(np.concatenate(([0], np.cumsum(_sizes(lists)))), pa.int64())
        return pa.LargeListArray.from_arrays(bounds, values, mask=array.is_null())
    return array


def _entries(maps: pa.MapArray) -> pa.ListArray:
    kind = maps.type
    return maps.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))


def _sizes(lists: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def dataset_format(path: Path | None, size: int) -> "ds.FileFormat":
    """See table.SinkCode. A record must not span a whole block, but larger blocks cost memory and
    time. So this takes the smallest block size that works."""
    return _by_blocks(_block_bytes(path, size))


@cache
def _by_blocks(size: int) -> "ds.FileFormat":
    import pyarrow.dataset as ds

    return ds.JsonFileFormat(read_options=pa.json.ReadOptions(block_size=size))


def _block_bytes(path: Path | None, size: int) -> int:
    """The smallest block size that puts a line end into each block except the last.

    Doubles JSON_BLOCK_BYTES until it fits. Reads only the beginning of each block.
    """
    block = JSON_BLOCK_BYTES
    if size <= block:
        return block
    if path is None:
        return min(1 << size.bit_length(), BLOCK_BYTES_MAX)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        end = len(view)
        while any(view.find(b"\n", n, n + block) < 0 for n in range(0, end - block, block)):
            block *= 2
    return min(block, BLOCK_BYTES_MAX)


def count_rows(path: Path) -> int:
    """See table.SinkCode."""
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def is_nested(kind: pa.DataType) -> bool:
    """Whether a value has parts (array, struct, map)."""
    return at.is_struct(kind) or at.is_map(kind) or at.is_list(kind) or at.is_large_list(kind)


def as_json(name: str, values: pa.Array) -> pa.Array:
    """Lists, structs and maps as JSON texts, bytes as base64; null stays null."""
    frame = pl.DataFrame({"v": pl.from_arrow(_in_json(name, values))})
    # Each object is {"v":...}.
    inner = pc.binary_slice(_objects(frame), _HEAD, -_TAIL).cast(pa.large_string())
    return pc.if_else(values.is_valid(), inner, pa.scalar(None, pa.large_string()))


def from_json(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read texts of `as_json` back as `kind`."""
    from semel.clients.duck import connect  # Only readers and the audit need DuckDB.

    with connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("given", pa.table({"v": texts}))
        rows = engine.sql(f"SELECT CAST(CAST(v AS JSON) AS {_in_duckdb(kind)}) AS v FROM given")
        return _from_duckdb(rows.to_arrow_table().column(0).combine_chunks(), kind)


def _in_duckdb(kind: pa.DataType) -> str:
    """The DuckDB type that reads a JSON value; bytes are still text."""
    if at.is_struct(kind):
        parts = (f'"{f.name.replace(chr(34), chr(34) * 2)}" {_in_duckdb(f.type)}' for f in kind)
        return f"STRUCT({', '.join(parts)})"
    if at.is_map(kind):
        return f"MAP(VARCHAR, {_in_duckdb(kind.item_type)})"
    if is_nested(kind):
        return f"{_in_duckdb(kind.value_type)}[]"
    if at.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next(name for fits, name in _DUCKDB if fits(kind))


_DUCKDB = (
    (at.is_boolean, "BOOLEAN"), (at.is_int8, "TINYINT"), (at.is_int16, "SMALLINT"),
    (at.is_int32, "INTEGER"), (at.is_int64, "BIGINT"), (at.is_float32, "FLOAT"),
    (at.is_float64, "DOUBLE"), (at.is_date, "DATE"),
    (lambda kind: at.is_timestamp(kind) and bool(kind.tz), "TIMESTAMPTZ"),
    (at.is_timestamp, "TIMESTAMP"), (lambda _: True, "VARCHAR"),
)  # fmt: skip


def _from_duckdb(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array from DuckDB as `kind`; decodes base64 to bytes."""
    if at.is_struct(kind):
        parts = [_from_duckdb(array.field(n), field.type) for n, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if at.is_map(kind):
        keys, items = array.keys.cast(kind.key_type), _from_duckdb(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=array.is_null())
    if is_nested(kind):
        offsets = array.offsets
        make = pa.LargeListArray if at.is_large_list(kind) else pa.ListArray
        if at.is_large_list(kind):
            offsets = offsets.cast(pa.int64())
        values = _from_duckdb(array.values, kind.value_type)
        return make.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if is_binary(kind):
        return pl.from_arrow(array).str.decode("base64").to_arrow().cast(kind)
    return array.cast(kind)


def beyond_json(array: pa.Array, what: str) -> np.ndarray:
    """A mask of the rows with a value, at any depth, that JSON or jsonb cannot hold.

    `what`: `number` for NaN and infinities, `range` for times outside of the years 1 to 9999, `nul`
    for NUL in a text.
    """
    kind = array.type
    bad = np.zeros(len(array), dtype=bool)
    if what == "number" and at.is_floating(kind):
        return as_mask(pc.invert(pc.is_finite(array)))
    if what == "nul" and (at.is_string(kind) or at.is_large_string(kind)):
        return as_mask(pc.match_substring(array, "\0"))
    if what == "range" and at.is_temporal(kind):
        years = pc.year(array)
        return as_mask(pc.or_(pc.less(years, 1), pc.greater(years, 9999)))
    if at.is_struct(kind):
        for part in array.flatten():
            bad |= beyond_json(part, what)
        return bad
    if at.is_map(kind):
        array = _entries(array)
    if is_nested(array.type):
        inner = beyond_json(pc.list_flatten(array), what)
        bad[pc.list_parent_indices(array).to_numpy()[inner]] = True
    return bad


def as_mask(bad: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of booleans as a mask; null is false."""
    return np.asarray(pc.fill_null(bad, False).to_numpy(zero_copy_only=False), dtype=bool)
