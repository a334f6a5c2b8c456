"""Rows as PostgreSQL's COPY takes them, from staged Parquet files; and what comes back, as Arrow.

Nothing here looks at one row after the other: pgpq encodes whole columns, and ADBC decodes them.
"""

from collections.abc import Iterable, Iterator, Sequence

import pgpq
import pgpq.schema
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel import limits
from semel.errors import CorruptionError, TerminalError
from semel.formats.jsonlsink import in_json
from semel.sinks import Won
from semel.sinks.postgres import types
from semel.sinks.postgres.facts import ColumnFacts
from semel.sinks.postgres.target import BATCH_COLUMN, SEQ_COLUMN

_HEAD, _TAIL = len('{"v":'), len("}")


class ValueRefusedError(TerminalError):
    """A row's value is none of its column's type. The message names the column."""


def staged(won: Won) -> Iterator[pa.RecordBatch]:
    """All rows of a batch, in the order of its files. CorruptionError: one cannot be read."""
    for file in won.files:
        try:
            with pq.ParquetFile(file.staged_path) as rows:
                yield from rows.iter_batches(_rows_at_once(rows), columns=won.schema.names)
        except pa.ArrowException as error:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} cannot be read ({error}); restore it "
                "from a backup: the batch has committed"
            ) from error


def _rows_at_once(rows: pq.ParquetFile) -> int:
    found = rows.metadata
    size = sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
    fit = limits.SINK_BYTES_AT_ONCE * found.num_rows // max(size, 1)
    return max(1, min(limits.SINK_ROWS_AT_ONCE, fit))


class Encoder:
    """Encodes rows for one COPY into `columns`, followed by the batch's two own columns."""

    def __init__(self, won: Won, columns: Sequence[ColumnFacts]) -> None:
        self._won, self._columns = won, columns
        fields = [
            pa.field(column.name, types.wire(won.schema.field(column.name).type, column.type))
            for column in columns
        ]
        fields += [pa.field(name, pa.int64()) for name in (BATCH_COLUMN, SEQ_COLUMN)]
        self._schema = pa.schema(fields)

    def chunks(self, rows: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """What a COPY of these rows is sent."""
        encoder = self._encoder()
        yield encoder.write_header()
        for some in rows:
            ready = self._ready(some)
            try:
                chunk = encoder.write_batch(ready)
            except ValueError as error:
                raise ValueRefusedError(f"a value cannot be encoded ({error})") from error
            yield chunk
        yield encoder.finish()

    def _encoder(self) -> pgpq.ArrowToPostgresBinaryEncoder:
        of = {}
        for field in self._schema:
            of[field.name] = pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for column in self._columns:
            if column.type == "jsonb":
                field = self._schema.field(column.name)
                of[column.name] = type(of[column.name]).new_with_output(
                    field, pgpq.schema.Jsonb()
                )
        return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, of)

    def _ready(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        ready = []
        for column, field in zip(self._columns, self._schema, strict=False):
            values = rows.column(column.name)
            if types.is_nested(values.type):
                values = as_json(column.name, values)
            elif pa.types.is_integer(values.type) and pa.types.is_decimal(field.type):
                values = values.cast(pa.int64())
            try:
                ready.append(values.cast(field.type))
            except pa.ArrowInvalid as error:
                raise ValueRefusedError(
                    f"a value is out of the range of the column {column.name!r} ({column.type})"
                ) from error
        ready.append(pa.repeat(pa.scalar(self._won.batch_id, pa.int64()), count))
        ready.append(pa.repeat(pa.scalar(self._won.commit_seq, pa.int64()), count))
        return pa.RecordBatch.from_arrays(ready, schema=self._schema)


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
    if types.is_nested(kind):
        return f"{_in_duckdb(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _DUCKDB[types.held(kind).word]


_DUCKDB = {
    "boolean": "BOOLEAN", "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER",
    "bigint": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR",
    "binary": "VARCHAR", "date": "DATE", "timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP",
}  # fmt: skip


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of DuckDB's as `kind`: texts in the place of bytes are base64."""
    if pa.types.is_struct(kind):
        parts = [_typed(array.field(n), field.type) for n, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = array.keys.cast(kind.key_type), _typed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=array.is_null())
    if types.is_nested(kind):
        offsets = array.offsets
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        if pa.types.is_large_list(kind):
            offsets = offsets.cast(pa.int64())
        values = _typed(array.values, kind.value_type)
        return make.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pl.from_arrow(array).str.decode("base64").to_arrow().cast(kind)
    return array.cast(kind)


def selected(columns: Sequence[ColumnFacts]) -> list[str]:
    """The expression that each column is read by: numbers and JSON as texts, which keep digits."""
    as_text = ("numeric", *types.JSON)
    return ["{}::text" if column.type in as_text else "{}" for column in columns]


def read_back(rows: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows as they come from the table, with the types of the output."""
    found = []
    for values, field in zip(rows.columns, schema, strict=True):
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if types.is_nested(field.type):
            found.append(from_json(values, field.type))
        elif pa.types.is_integer(field.type) and pa.types.is_string(values.type):
            found.append(values.cast(pa.decimal128(38, 0)).cast(field.type))
        else:
            found.append(values.cast(field.type))
    return pa.table(found, schema=schema)


def check_count(won: Won, landed: int) -> None:
    """CorruptionError when the staged files do not hold as many rows as the manifest says."""
    wanted = sum(file.records for file in won.files)
    if landed != wanted:
        raise CorruptionError(
            f"batch {won.batch_id}: its staged files hold {landed} rows, and its manifest says "
            f"{wanted}; nothing was written. Restore them from a backup: the batch has committed"
        )
