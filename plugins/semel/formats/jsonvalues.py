"""Values as texts of JSON, whole columns at once, and read back by their types."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as at

from semel.formats.jsonlsink import in_json

_HEAD, _TAIL = len('{"v":'), len("}")


def is_nested(kind: pa.DataType) -> bool:
    """Whether a value has parts (array, struct, map)."""
    return at.is_struct(kind) or at.is_map(kind) or at.is_list(kind) or at.is_large_list(kind)


def as_json(name: str, values: pa.Array) -> pa.Array:
    """Lists, structs and maps as texts of JSON, bytes as base64; null stays null."""
    frame = pl.DataFrame({"v": pl.from_arrow(in_json(name, values))})
    texts = frame.select(pl.struct("v").struct.json_encode()).to_series().to_arrow()
    # Each is {"v":...}.
    inner = pc.binary_slice(texts.cast(pa.large_binary()), _HEAD, -_TAIL).cast(pa.large_string())
    return pc.if_else(values.is_valid(), inner, pa.scalar(None, pa.large_string()))


def from_json(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """What `as_json` wrote, read back as `kind`."""
    import duckdb  # It is the readers' and the audit's: no publish needs it.

    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("given", pa.table({"v": texts}))
        found = engine.sql(f"SELECT CAST(CAST(v AS JSON) AS {_in_duckdb(kind)}) AS v FROM given")
        return _typed(found.to_arrow_table().column(0).combine_chunks(), kind)


def _in_duckdb(kind: pa.DataType) -> str:
    """The type of DuckDB that a value in JSON is read as; bytes are text yet."""
    if pa.types.is_struct(kind):
        parts = (f'"{f.name.replace(chr(34), chr(34) * 2)}" {_in_duckdb(f.type)}' for f in kind)
        return f"STRUCT({', '.join(parts)})"
    if pa.types.is_map(kind):
        return f"MAP(VARCHAR, {_in_duckdb(kind.item_type)})"
    if is_nested(kind):
        return f"{_in_duckdb(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next(name for fits, name in _DUCKDB if fits(kind))


_DUCKDB = (
    (at.is_boolean, "BOOLEAN"), (at.is_int8, "TINYINT"), (at.is_int16, "SMALLINT"),
    (at.is_int32, "INTEGER"), (at.is_int64, "BIGINT"), (at.is_float32, "FLOAT"),
    (at.is_float64, "DOUBLE"), (at.is_date, "DATE"),
    (lambda kind: at.is_timestamp(kind) and bool(kind.tz), "TIMESTAMPTZ"),
    (at.is_timestamp, "TIMESTAMP"), (lambda _: True, "VARCHAR"),
)  # fmt: skip


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of DuckDB's as `kind`: texts in the place of bytes are base64."""
    if pa.types.is_struct(kind):
        parts = [_typed(array.field(n), field.type) for n, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = array.keys.cast(kind.key_type), _typed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=array.is_null())
    if is_nested(kind):
        offsets = array.offsets
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        if pa.types.is_large_list(kind):
            offsets = offsets.cast(pa.int64())
        values = _typed(array.values, kind.value_type)
        return make.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pl.from_arrow(array).str.decode("base64").to_arrow().cast(kind)
    return array.cast(kind)


def beyond_json(array: pa.Array, what: str) -> np.ndarray:
    """The rows in which a value at any depth is such as JSON, or jsonb, does not have.

    `what`: `number` for NaN and infinities, `range` for times of years that have not four digits,
    `nul` for NUL in a text.
    """
    kind = array.type
    bad = np.zeros(len(array), dtype=bool)
    if what == "number" and at.is_floating(kind):
        return _mask(pc.invert(pc.is_finite(array)))
    if what == "nul" and (at.is_string(kind) or at.is_large_string(kind)):
        return _mask(pc.match_substring(array, "\0"))
    if what == "range" and at.is_temporal(kind):
        years = pc.year(array)
        return _mask(pc.or_(pc.less(years, 1), pc.greater(years, 9999)))
    if at.is_struct(kind):
        for part in array.flatten():
            bad |= beyond_json(part, what)
        return bad
    if at.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if is_nested(array.type):
        inner = beyond_json(pc.list_flatten(array), what)
        bad[pc.list_parent_indices(array).to_numpy()[inner]] = True
    return bad


def _mask(bad: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(bad, False).to_numpy(zero_copy_only=False), dtype=bool)
