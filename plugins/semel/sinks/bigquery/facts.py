"""Examine a table: whether the output fits, and which batches it has."""

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from google.cloud import bigquery
from pyarrow import types as at

from semel.clients.sql import query
from semel.errors import TerminalError
from semel.sinks import BatchNote, notes_of_rows, search_starts
from semel.sinks.bigquery.target import REQUEST_SECONDS, BigQueryTarget, TableMissingError

SEMEL_COLUMNS = {"_semel_batch": "INT64", "_semel_seq": "INT64"}
"""The columns that semel adds to find a batch's rows."""

_NAMES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}


# Keeps BQ5.
def type_of(kind: pa.DataType) -> str | None:
    """The BigQuery type of an output column after a Parquet load, or None without a match."""
    if at.is_decimal128(kind):
        is_small = 0 <= kind.scale <= 9 and kind.precision - kind.scale <= 29
        return "NUMERIC" if is_small else "BIGNUMERIC"
    types = {
        "BOOL": at.is_boolean(kind),
        "INT64": at.is_signed_integer(kind),
        "FLOAT64": at.is_float32(kind) or at.is_float64(kind),
        "STRING": at.is_string(kind) or at.is_large_string(kind),
        "BYTES": at.is_binary(kind) or at.is_large_binary(kind),
        "DATE": at.is_date32(kind),
        "TIMESTAMP": at.is_timestamp(kind) and kind.unit == "us" and bool(kind.tz),
    }
    return next((name for name, fits in types.items() if fits), None)


# Keeps BQ4.
def examine(
    client: bigquery.Client, target: BigQueryTarget, schema: pa.Schema | None
) -> bigquery.Table:
    """The table. Raises TerminalError if it does not exist or the output does not fit it."""
    columns = {field.name: type_of(field.type) for field in schema or ()}
    for name, kind in columns.items():
        if kind is None:
            raise TerminalError(
                f"the output's column {name!r} is {schema.field(name).type}, which BigQuery cannot "
                "load from Parquet. Cast it in the last transform's select"
            )
        if name.lower() in SEMEL_COLUMNS:
            raise TerminalError(
                f"the output has a column {name!r}, a name that semel uses itself. Select it under "
                "another name in the last transform"
            )
    with target.translate_errors():
        table = client.get_table(target.name, **target.read_timeouts)
    if why := next(_table_problems(target, table, {**columns, **SEMEL_COLUMNS}), None):
        raise TerminalError(f"{target.address} {why}; correct it")
    return table


def _table_problems(
    target: BigQueryTarget, table: bigquery.Table, output: dict[str, str]
) -> Iterator[str]:
    """Reasons why output columns do not fit a table, each as the end of a sentence."""
    if table.table_type != "TABLE":
        yield f"is a {table.table_type}, to which a load job cannot append"
    if table.location.lower() != target.location.lower():
        yield f"is in {table.location}, and sink.location is {target.location}"
    parts = table.time_partitioning
    if table.expires or (parts and parts.expiration_ms):
        yield "lets rows expire, and semel would report expired rows as lost"
    if table.require_partition_filter:
        yield "has require_partition_filter, and semel queries it by _semel_batch"
    fields = {field.name.lower(): field for field in table.schema}
    folded = {name.lower(): kind for name, kind in output.items()}
    if len(folded) < len(output):
        yield f"ignores the case of names, and the output has {[*output]}, which differ by case"
    if lacking := [name for name in output if name.lower() not in fields]:
        columns = ", ".join(f"ADD COLUMN `{name}` {output[name]}" for name in lacking)
        yield f"lacks columns (ALTER TABLE `{target.name}` {columns})"
    for name, field in fields.items():
        kind = _NAMES.get(field.field_type, field.field_type)
        limited = field.precision or field.max_length
        if name in folded and (kind != folded[name] or limited):
            yield f"has a column {field.name!r} that is not {folded[name]} without parameters"
        if field.mode == "REQUIRED" or (name in folded and field.mode != "NULLABLE"):
            yield f"has the column {field.name!r} {field.mode}; semel can load only NULLABLE ones"


def count(client: bigquery.Client, target: BigQueryTarget, batch_id: int) -> int:
    """The number of rows of a batch in the table."""
    text = query("bigquery", "count").text.format(table=target.name)
    with target.translate_errors():
        [(rows_of_batch,)] = _query(client, target, text, batch=batch_id)
    return rows_of_batch


def notes(
    client: bigquery.Client, target: BigQueryTarget, pipeline: str, has: int, most: int
) -> list[BatchNote]:
    """Notes of the newest `most` batches, derived from the rows. Empty if there is no table.

    If `_semel_batch` clusters the table, the first query scans only the newest rows.
    """
    text = query("bigquery", "notes").text.format(table=target.name, most=most)

    def batches_from(first: int) -> list[tuple[int, ...]]:
        with suppress(TableMissingError), target.translate_errors():
            return [tuple(row.values()) for row in _query(client, target, text, first=first)]
        return []

    return notes_of_rows(pipeline, search_starts(has, most), most, batches_from)


def rows(
    client: bigquery.Client, target: BigQueryTarget, batch_id: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    """All rows with a batch's number, typed as `schema`, in pages."""
    columns = ", ".join(f"`{name}`" for name in schema.names)
    text = query("bigquery", "rows").text.format(table=target.name, columns=columns)
    with target.translate_errors():
        for page in _query(client, target, text, batch=batch_id).to_arrow_iterable():
            yield pa.Table.from_batches([page]).rename_columns(schema.names).cast(schema)


def _query(
    client: bigquery.Client, target: BigQueryTarget, text: str, **values: int
) -> bigquery.table.RowIterator:
    """The rows of a query, without BigQuery's cache of earlier results."""
    parameters = [bigquery.ScalarQueryParameter(name, "INT64", n) for name, n in values.items()]
    return client.query_and_wait(
        text,
        job_config=bigquery.QueryJobConfig(query_parameters=parameters, use_query_cache=False),
        location=target.location,
        retry=target.read_timeouts["retry"],
        api_timeout=REQUEST_SECONDS,
        job_retry=None,
    )
