"""Encode staged Parquet rows for PostgreSQL's binary COPY, and convert rows read back to Arrow.

No code here loops over rows: pgpq encodes whole columns, and ADBC decodes them.
"""

from collections.abc import Iterable, Iterator, Sequence

import pgpq
import pgpq.schema
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import TerminalError
from semel.formats.jsonlsink import as_json, from_json
from semel.sinks import CommittedBatch
from semel.sinks.postgres import types
from semel.sinks.postgres.facts import ColumnFacts
from semel.sinks.postgres.target import BATCH_COLUMN, SEQ_COLUMN
from semel.sinks.staged import check_count, staged

__all__ = [
    "CopyEncoder",
    "ValueRefusedError",
    "check_count",
    "read_back",
    "select_expressions",
    "staged",
]


class ValueRefusedError(TerminalError):
    """A value does not fit its column's type. The message names the column."""


class CopyEncoder:
    """Encodes rows for one COPY into `columns`, followed by the batch's two own columns."""

    def __init__(self, won: CommittedBatch, columns: Sequence[ColumnFacts]) -> None:
        self._won, self._columns = won, columns
        fields = [
            pa.field(column.name, types.wire_type(won.schema.field(column.name).type, column.type))
            for column in columns
        ]
        fields += [pa.field(name, pa.int64()) for name in (BATCH_COLUMN, SEQ_COLUMN)]
        self._schema = pa.schema(fields)

    def chunks(self, rows: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """The bytes of a COPY of the rows."""
        encoder = self._encoder()
        yield encoder.write_header()
        for chunk_rows in rows:
            converted = self._convert(chunk_rows)
            try:
                chunk = encoder.write_batch(converted)
            except ValueError as error:
                raise ValueRefusedError(f"semel cannot encode a value ({error})") from error
            yield chunk
        yield encoder.finish()

    def _encoder(self) -> pgpq.ArrowToPostgresBinaryEncoder:
        encoders = {}
        for field in self._schema:
            encoders[field.name] = pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for column in self._columns:
            if column.type == "jsonb":
                field = self._schema.field(column.name)
                encoders[column.name] = type(encoders[column.name]).new_with_output(
                    field, pgpq.schema.Jsonb()
                )
        return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, encoders)

    def _convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        arrays = []
        for column, field in zip(self._columns, self._schema, strict=False):
            values = rows.column(column.name)
            if types.is_nested(values.type):
                values = as_json(column.name, values)
            elif pa.types.is_integer(values.type) and pa.types.is_decimal(field.type):
                values = values.cast(pa.int64())
            if column.length is not None and _is_longer(values, column.length):
                raise ValueRefusedError(
                    f"a text is too long for the column {column.name!r} "
                    f"(varchar({column.length})); PostgreSQL would silently cut trailing blanks"
                )
            try:
                arrays.append(values.cast(field.type))
            except pa.ArrowInvalid as error:
                raise ValueRefusedError(
                    f"a value is out of range for the column {column.name!r} ({column.type})"
                ) from error
        arrays.append(pa.repeat(pa.scalar(self._won.batch_id, pa.int64()), count))
        arrays.append(pa.repeat(pa.scalar(self._won.commit_seq, pa.int64()), count))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _is_longer(texts: pa.Array, most: int) -> bool:
    """Whether a text has more than `most` characters. Counts bytes first, as that is faster."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= most:
        return False
    return pc.max(pc.utf8_length(texts)).as_py() > most


def select_expressions(columns: Sequence[ColumnFacts]) -> list[str]:
    """The SELECT expression of each column: numerics and JSON as text, which keeps all digits."""
    as_text = ("numeric", *types.JSON)
    return ["{}::text" if column.type in as_text else "{}" for column in columns]


def read_back(rows: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Convert rows that ADBC read from the table to the types of the output."""
    arrays = []
    for values, field in zip(rows.columns, schema, strict=True):
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if types.is_nested(field.type):
            arrays.append(from_json(values, field.type))
        elif pa.types.is_integer(field.type) and pa.types.is_string(values.type):
            arrays.append(values.cast(pa.decimal128(38, 0)).cast(field.type))
        else:
            arrays.append(values.cast(field.type))
    return pa.table(arrays, schema=schema)
