"""What a table is like: whether the output fits, and what its rows say of batches."""

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from google.cloud import bigquery
from pyarrow import types as at

from semel.clients.sql import query
from semel.errors import TerminalError
from semel.sinks import BatchNote, notes_of_rows
from semel.sinks.bigquery.target import REQUEST_SECONDS, BigQueryTarget, TableMissingError

OWN = {"_semel_batch": "INT64", "_semel_seq": "INT64"}
"""The columns that semel adds, by which it finds a batch's rows."""

_NAMES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}


# Keeps BQ5.
def type_of(kind: pa.DataType) -> str | None:
    """The type that a load of Parquet makes of a column of the output. None: there is none."""
    if at.is_decimal128(kind):
        is_small = 0 <= kind.scale <= 9 and kind.precision - kind.scale <= 29
        return "NUMERIC" if is_small else "BIGNUMERIC"
    known = {
        "BOOL": at.is_boolean(kind),
        "INT64": at.is_signed_integer(kind),
        "FLOAT64": at.is_float32(kind) or at.is_float64(kind),
        "STRING": at.is_string(kind) or at.is_large_string(kind),
        "BYTES": at.is_binary(kind) or at.is_large_binary(kind),
        "DATE": at.is_date32(kind),
        "TIMESTAMP": at.is_timestamp(kind) and kind.unit == "us" and bool(kind.tz),
    }
    return next((name for name, fits in known.items() if fits), None)


# Keeps BQ4.
def examine(
    client: bigquery.Client, target: BigQueryTarget, schema: pa.Schema | None
) -> bigquery.Table:
    """TerminalError: the output does not fit in the table, or it is not there."""
    columns = {field.name: type_of(field.type) for field in schema or ()}
    for name, kind in columns.items():
        if kind is None:
            raise TerminalError(
                f"the output's column {name!r} is {schema.field(name).type}, of which a load of "
                "Parquet makes no column of BigQuery; cast it in the last transform's select"
            )
        if name.lower() in OWN:
            raise TerminalError(
                f"the output has a column {name!r}, and semel writes it itself; select it under "
                "another name in the last transform"
            )
    with target.answers():
        table = client.get_table(target.name, **target.patience)
    if why := next(_unfit(target, table, {**columns, **OWN}), None):
        raise TerminalError(f"{target.address} {why}; correct it")
    return table


def _unfit(
    target: BigQueryTarget, table: bigquery.Table, wanted: dict[str, str]
) -> Iterator[str]:
    """What of a table does not fit the columns that are wanted, each as the end of a sentence."""
    if table.table_type != "TABLE":
        yield f"is a {table.table_type}, to which no load job appends"
    if table.location.lower() != target.location.lower():
        yield f"is in {table.location}, and sink.location is {target.location}"
    parts = table.time_partitioning
    if table.expires or (parts and parts.expiration_ms):
        yield "lets rows expire, and these would be missed as lost ones are"
    if table.require_partition_filter:
        yield "has require_partition_filter, and semel asks it by _semel_batch"
    there = {field.name.lower(): field for field in table.schema}
    folded = {name.lower(): kind for name, kind in wanted.items()}
    if len(folded) < len(wanted):
        yield f"takes names that differ by their case for one, and the output has {[*wanted]}"
    if lacking := [name for name in wanted if name.lower() not in there]:
        columns = ", ".join(f"ADD COLUMN `{name}` {wanted[name]}" for name in lacking)
        yield f"lacks columns (ALTER TABLE `{target.name}` {columns})"
    for name, field in there.items():
        kind = _NAMES.get(field.field_type, field.field_type)
        limited = field.precision or field.max_length
        if name in folded and (kind != folded[name] or limited):
            yield f"has the column {field.name!r} not as {folded[name]} without parameters"
        if field.mode == "REQUIRED" or (name in folded and field.mode != "NULLABLE"):
            yield f"has the column {field.name!r} {field.mode}, and Parquet fills NULLABLE ones"


def count(client: bigquery.Client, target: BigQueryTarget, batch_id: int) -> int:
    """How many rows of a batch the table has."""
    text = query("bigquery", "count").text.format(table=target.name)
    with target.answers():
        [(found,)] = _answer(client, target, text, batch=batch_id)
    return found


def notes(
    client: bigquery.Client, target: BigQueryTarget, pipeline: str, has: int, most: int
) -> list[BatchNote]:
    """What the rows of a table say of the newest `most` batches. Nothing, where there is no table.

    Of a table that is clustered by `_semel_batch`, the first query does not read all.
    """
    text = query("bigquery", "notes").text.format(table=target.name, most=most)

    def look(first: int) -> list[tuple[int, ...]]:
        with suppress(TableMissingError), target.answers():
            return [tuple(row.values()) for row in _answer(client, target, text, first=first)]
        return []

    return notes_of_rows(pipeline, has, most, look)


def rows(
    client: bigquery.Client, target: BigQueryTarget, batch_id: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    """All rows that say that they are of a batch, typed as `schema`, a page at once."""
    columns = ", ".join(f"`{name}`" for name in schema.names)
    text = query("bigquery", "rows").text.format(table=target.name, columns=columns)
    with target.answers():
        for page in _answer(client, target, text, batch=batch_id).to_arrow_iterable():
            yield pa.Table.from_batches([page]).rename_columns(schema.names).cast(schema)


def _answer(
    client: bigquery.Client, target: BigQueryTarget, text: str, **values: int
) -> bigquery.table.RowIterator:
    """The rows that a query finds now: no earlier answer is taken for it."""
    given = [bigquery.ScalarQueryParameter(name, "INT64", n) for name, n in values.items()]
    return client.query_and_wait(
        text,
        job_config=bigquery.QueryJobConfig(query_parameters=given, use_query_cache=False),
        location=target.location,
        retry=target.patience["retry"],
        api_timeout=REQUEST_SECONDS,
        job_retry=None,
    )
