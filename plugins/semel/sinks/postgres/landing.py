"""How rows are put into a table: by COPY, in mode upsert over a temporary table; and which of them
it refuses.
"""

from collections.abc import Iterable, Iterator, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql

from semel import limits
from semel.errors import LimitError
from semel.ledger import query
from semel.sinks import Won
from semel.sinks.postgres import encode
from semel.sinks.postgres.facts import ColumnFacts, TableFacts
from semel.sinks.postgres.link import Connection, filled, is_refusal, reason
from semel.sinks.postgres.target import BATCH_COLUMN, SEQ_COLUMN, PostgresTarget

_INCOMING = sql.Identifier("pg_temp", "semel_incoming")
REFUSAL_COLUMN = "_semel_refusal"


def land(
    connection: Connection,
    target: PostgresTarget,
    won: Won,
    facts: TableFacts,
    rows: Iterable[pa.RecordBatch],
) -> int:
    """Put rows into the table. Returns how many were read."""
    names = _own_names(facts.columns)
    if not target.key:
        return _copy(connection, target.identifier, names, encode.Encoder(won, facts.columns), rows)
    make = query("postgres", "make_incoming")
    values = {"incoming": _INCOMING, "columns": names, "table": target.identifier}
    connection.execute("DROP TABLE IF EXISTS pg_temp.semel_incoming")
    connection.execute(filled(make, **values))
    count = _copy(connection, _INCOMING, names, encode.Encoder(won, facts.columns), rows)
    own = [column.name for column in facts.columns if column.name not in target.key]
    pairs = [
        sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in (*own, BATCH_COLUMN, SEQ_COLUMN)
    ]
    assignments = sql.SQL(", ").join(pairs)
    upsert = query("postgres", "upsert")
    connection.execute(
        filled(upsert, **values, key=named(target.key), assignments=assignments)
    )
    return count


def _copy(
    connection: Connection,
    into: sql.Identifier,
    columns: sql.Composable,
    encoder: encode.Encoder,
    rows: Iterable[pa.RecordBatch],
) -> int:
    statement = filled(query("postgres", "copy"), into=into, columns=columns)
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in encoder.chunks(rows):
                copy.write(chunk)
        return cursor.rowcount


def land_most(
    connection: Connection, target: PostgresTarget, won: Won, facts: TableFacts
) -> Iterator[pa.Table]:
    """Land what the table takes, part by part; yields the refused rows, each with its reason."""
    left = limits.REFUSED_ROWS_MAX
    for whole in encode.staged(won):
        todo = [whole]
        while todo:
            some = todo.pop()
            why = _refusal(connection, target, won, facts, some)
            if why is None:
                continue
            if some.num_rows > 1:
                step = -(-some.num_rows // limits.BISECT_WAYS)
                starts = range(0, some.num_rows, step)
                todo += [some.slice(start, step) for start in reversed(starts)]
                continue
            left -= 1
            if left < 0:
                raise LimitError(
                    f"batch {won.batch_id}: {target.address} refuses more than "
                    f"{limits.REFUSED_ROWS_MAX} of its rows ({why}); nothing was written. Change "
                    "the table, and run finalize again"
                )
            table = pa.Table.from_batches([some]).select(won.schema.names).cast(won.schema)
            yield table.append_column(REFUSAL_COLUMN, pa.array([why], pa.string()))


def _refusal(
    connection: Connection,
    target: PostgresTarget,
    won: Won,
    facts: TableFacts,
    rows: pa.RecordBatch,
) -> str | None:
    """Put rows into the table, all or none. Returns why it takes not all of them."""
    try:
        with connection.transaction():
            land(connection, target, won, facts, [rows])
    except encode.ValueRefusedError as error:
        return str(error)
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        return reason(error)
    return None


def _own_names(columns: Sequence[ColumnFacts]) -> sql.Composable:
    return named([*(column.name for column in columns), BATCH_COLUMN, SEQ_COLUMN])


def named(columns: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
