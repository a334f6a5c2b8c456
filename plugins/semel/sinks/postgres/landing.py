"""Put rows into a table by COPY (mode upsert: through a temporary table), and find refused rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from semel import limits
from semel.errors import LimitError, TerminalError
from semel.sinks import CommittedBatch
from semel.sinks.postgres import batch_notes, encode
from semel.sinks.postgres.facts import ColumnFacts, TableFacts
from semel.sinks.postgres.link import Connection, fill_query, is_refusal, reason
from semel.sinks.postgres.row_check import WIDE, too_wide
from semel.sinks.postgres.target import BATCH_COLUMN, SEQ_COLUMN, PostgresTarget

_INCOMING = sql.Identifier("pg_temp", "semel_incoming")
REFUSAL_COLUMN = "_semel_refusal"


class DroppedRowsError(TerminalError):
    """The table silently dropped rows: the statement succeeded, and some rows are missing."""


class RefusedRow(NamedTuple):
    """A row that the table refuses: its number in the batch, and the row with its reason. `row` has
    several rows if they are too wide.
    """

    number: int
    row: pa.Table


# Keeps PG12.
def land(
    connection: Connection,
    target: PostgresTarget,
    won: CommittedBatch,
    facts: TableFacts,
    rows: Iterable[pa.RecordBatch],
) -> int:
    """Put rows into the table. Returns how many rows it read.

    Raises DroppedRowsError if the table then lacks some. semel trusts the statement's row count,
    unless the table has triggers: then it counts the rows.
    """
    names = _copied_columns(facts.columns)
    if not target.key:
        old_count = batch_notes.count_rows(connection, target, won) if facts.triggers else 0
        read, put = _copy(connection, target.identifier, names, won, facts, rows)
        if facts.triggers:
            put = batch_notes.count_rows(connection, target, won) - old_count
        _check_dropped(target, facts, read - put, read)
        return read
    values = {"incoming": _INCOMING, "columns": names, "table": target.identifier}
    connection.execute("DROP TABLE IF EXISTS pg_temp.semel_incoming")
    connection.execute(fill_query("make_incoming", **values))
    read, _ = _copy(connection, _INCOMING, names, won, facts, rows)
    updated = [column.name for column in facts.columns if column.name not in target.key]
    pairs = [
        sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in (*updated, BATCH_COLUMN, SEQ_COLUMN)
    ]
    assignments = sql.SQL(", ").join(pairs)
    upsert = fill_query("upsert", **values, key=column_list(target.key), assignments=assignments)
    put = connection.execute(upsert).rowcount
    if put < read or facts.triggers:  # Rows of a later batch remain, and do not count as lacking.
        same = [
            sql.SQL("there.{} = incoming.{}").format(*(sql.Identifier(name),) * 2)
            for name in target.key
        ]
        lacking = fill_query(
            "rows_lacking",
            table=target.identifier,
            batch_id=won.batch_id,
            commit_seq=won.commit_seq,
            incoming=_INCOMING,
            same=sql.SQL(" AND ").join(same),
        )
        _check_dropped(target, facts, connection.execute(lacking).fetchone()["rows"], read)
    return read


def _check_dropped(target: PostgresTarget, facts: TableFacts, lacking: int, read: int) -> None:
    if lacking:
        who = f"the trigger {', '.join(facts.triggers)}" if facts.triggers else "cause unknown"
        raise DroppedRowsError(
            f"{target.address} silently dropped {lacking} of {read} rows ({who})"
        )


def _copy(
    connection: Connection,
    into: sql.Identifier,
    columns: sql.Composable,
    won: CommittedBatch,
    facts: TableFacts,
    rows: Iterable[pa.RecordBatch],
) -> tuple[int, int]:
    """COPY rows. Returns how many rows it read, and how many the server reports as inserted."""
    statement = fill_query("copy", into=into, columns=columns)
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for chunk in rows:
            read += chunk.num_rows
            yield chunk

    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in encode.CopyEncoder(won, facts.columns).chunks(counted()):
                copy.write(chunk)
        return read, cursor.rowcount


def land_accepted(
    connection: Connection, target: PostgresTarget, won: CommittedBatch, facts: TableFacts
) -> Iterator[RefusedRow]:
    """Put in the rows that the table accepts, by bisection. Yields the rows that it refuses."""
    refused_count = begin = 0
    for chunk in encode.staged(won):
        todo = [(begin, chunk)]
        if (wide := too_wide(facts, pa.Table.from_batches([chunk]))).any():  # All may be.
            yield RefusedRow(begin, with_reason(won, chunk.filter(pa.array(wide)), WIDE))
            todo = [(begin, chunk.filter(pa.array(~wide)))]
        begin += chunk.num_rows
        while todo:
            number, rows = todo.pop()
            why = _refusal(connection, target, won, facts, rows)
            if why is None:
                continue
            if rows.num_rows > 1:
                step = -(-rows.num_rows // limits.BISECT_WAYS)
                starts = range(0, rows.num_rows, step)
                todo += [(number + at, rows.slice(at, step)) for at in reversed(starts)]
                continue
            refused_count += 1
            if refused_count > limits.REFUSED_ROWS_MAX:
                raise LimitError(
                    f"batch {won.batch_id}: {target.address} refuses more than "
                    f"{limits.REFUSED_ROWS_MAX} of its rows ({why}). Nothing was written. Change "
                    "the table, then run finalize again"
                )
            yield RefusedRow(number, with_reason(won, rows, why))


def with_reason(won: CommittedBatch, rows: pa.RecordBatch, why: str) -> pa.Table:
    """Add the reason to refused rows, as the last column."""
    table = pa.Table.from_batches([rows]).select(won.schema.names).cast(won.schema)
    return table.append_column(REFUSAL_COLUMN, pa.repeat(pa.scalar(why), table.num_rows))


def _refusal(
    connection: Connection,
    target: PostgresTarget,
    won: CommittedBatch,
    facts: TableFacts,
    rows: pa.RecordBatch,
) -> str | None:
    """Put rows into the table, all or none. Returns why it refuses some, or None."""
    try:
        with connection.transaction():
            land(connection, target, won, facts, [rows])
    except (encode.ValueRefusedError, DroppedRowsError) as error:
        return str(error)
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        return reason(error)
    return None


def _copied_columns(columns: Sequence[ColumnFacts]) -> sql.Composable:
    return column_list([*(column.name for column in columns), BATCH_COLUMN, SEQ_COLUMN])


def column_list(columns: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
