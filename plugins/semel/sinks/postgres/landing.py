"""How rows are put into a table: by COPY, in mode upsert over a temporary table; and which of them
it refuses.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from semel import limits
from semel.errors import LimitError, TerminalError
from semel.sinks import CommittedBatch
from semel.sinks.postgres import encode, noted
from semel.sinks.postgres.facts import ColumnFacts, TableFacts
from semel.sinks.postgres.link import Connection, filled, is_refusal, reason
from semel.sinks.postgres.refused import WIDE, too_wide
from semel.sinks.postgres.target import BATCH_COLUMN, SEQ_COLUMN, PostgresTarget

_INCOMING = sql.Identifier("pg_temp", "semel_incoming")
REFUSAL_COLUMN = "_semel_refusal"


class KeptBackError(TerminalError):
    """The table took rows without an error, and does not have all of them."""


class RefusedRow(NamedTuple):
    """A row that the table does not take: its number in the batch, and itself with the reason. Or
    several that are too wide.
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
    """Put rows into the table. Returns how many were read. KeptBackError: not all are there now.

    What a statement says that it put in is believed, unless triggers act on it: then they are
    counted.
    """
    names = _own_names(facts.columns)
    if not target.key:
        before = noted.count_of(connection, target, won) if facts.triggers else 0
        read, put = _copy(connection, target.identifier, names, won, facts, rows)
        there = noted.count_of(connection, target, won) - before if facts.triggers else put
        _check_there(target, facts, read - there, read)
        return read
    values = {"incoming": _INCOMING, "columns": names, "table": target.identifier}
    connection.execute("DROP TABLE IF EXISTS pg_temp.semel_incoming")
    connection.execute(filled("make_incoming", **values))
    read, _ = _copy(connection, _INCOMING, names, won, facts, rows)
    own = [column.name for column in facts.columns if column.name not in target.key]
    pairs = [
        sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in (*own, BATCH_COLUMN, SEQ_COLUMN)
    ]
    assignments = sql.SQL(", ").join(pairs)
    upsert = filled("upsert", **values, key=named(target.key), assignments=assignments)
    put = connection.execute(upsert).rowcount
    if put < read or facts.triggers:  # A later batch's rows stay, and count as there.
        same = [
            sql.SQL("there.{} = incoming.{}").format(*(sql.Identifier(name),) * 2)
            for name in target.key
        ]
        lacking = filled(
            "rows_lacking",
            table=target.identifier,
            batch_id=won.batch_id,
            commit_seq=won.commit_seq,
            incoming=_INCOMING,
            same=sql.SQL(" AND ").join(same),
        )
        _check_there(target, facts, connection.execute(lacking).fetchone()["rows"], read)
    return read


def _check_there(target: PostgresTarget, facts: TableFacts, lacking: int, read: int) -> None:
    if lacking:
        who = f"the trigger {', '.join(facts.triggers)}" if facts.triggers else "nobody knows why"
        raise KeptBackError(
            f"{target.address} keeps back {lacking} of {read} rows without an error ({who})"
        )


def _copy(
    connection: Connection,
    into: sql.Identifier,
    columns: sql.Composable,
    won: CommittedBatch,
    facts: TableFacts,
    rows: Iterable[pa.RecordBatch],
) -> tuple[int, int]:
    """COPY rows. Returns how many were read, and how many the server says that it has put in."""
    statement = filled("copy", into=into, columns=columns)
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for some in rows:
            read += some.num_rows
            yield some

    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in encode.CopyEncoder(won, facts.columns).chunks(counted()):
                copy.write(chunk)
        return read, cursor.rowcount


def land_most(
    connection: Connection, target: PostgresTarget, won: CommittedBatch, facts: TableFacts
) -> Iterator[RefusedRow]:
    """Land what the table takes, part by part; yields the rows that it does not."""
    left, begin = limits.REFUSED_ROWS_MAX, 0
    for whole in encode.staged(won):
        todo = [(begin, whole)]
        if (wide := too_wide(facts, pa.Table.from_batches([whole]))).any():  # All may be.
            yield RefusedRow(begin, with_reason(won, whole.filter(pa.array(wide)), WIDE))
            todo = [(begin, whole.filter(pa.array(~wide)))]
        begin += whole.num_rows
        while todo:
            number, some = todo.pop()
            why = _refusal(connection, target, won, facts, some)
            if why is None:
                continue
            if some.num_rows > 1:
                step = -(-some.num_rows // limits.BISECT_WAYS)
                starts = range(0, some.num_rows, step)
                todo += [(number + at, some.slice(at, step)) for at in reversed(starts)]
                continue
            left -= 1
            if left < 0:
                raise LimitError(
                    f"batch {won.batch_id}: {target.address} refuses more than "
                    f"{limits.REFUSED_ROWS_MAX} of its rows ({why}); nothing was written. Change "
                    "the table, and run finalize again"
                )
            yield RefusedRow(number, with_reason(won, some, why))


def with_reason(won: CommittedBatch, rows: pa.RecordBatch, why: str) -> pa.Table:
    """Rows that are refused, with the reason."""
    table = pa.Table.from_batches([rows]).select(won.schema.names).cast(won.schema)
    return table.append_column(REFUSAL_COLUMN, pa.repeat(pa.scalar(why), table.num_rows))


def _refusal(
    connection: Connection,
    target: PostgresTarget,
    won: CommittedBatch,
    facts: TableFacts,
    rows: pa.RecordBatch,
) -> str | None:
    """Put rows into the table, all or none. Returns why it takes not all of them."""
    try:
        with connection.transaction():
            land(connection, target, won, facts, [rows])
    except (encode.ValueRefusedError, KeptBackError) as error:
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
