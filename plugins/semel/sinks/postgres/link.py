"""Transactions in the target, and the translation of its errors into semel's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import dict_row

from semel.clients.sql import IDLE_IN_TRANSACTION_MS, LOCK_TIMEOUT_MS, query
from semel.errors import (
    OutcomeUnknownError,
    RetryableError,
    TerminalError,
    UnavailableError,
    first_line,
)
from semel.sinks.postgres.target import PostgresTarget

Connection = psycopg.Connection[dict[str, Any]]

_CONNECT_SECONDS = 8
_CONTENTION = (
    pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled,
)  # fmt: skip
_AWAY = ("08", "53", "57", "58")  # Connection, resources (a full disk), operator, system.
_REFUSES_ROWS = ("21", "22", "23", "44", "54", "P0")
_QUOTES_NO_ROW = ("23", "54")


@contextmanager
def transaction(target: PostgresTarget, connection: Connection) -> Iterator[None]:
    """A transaction in the target, committed at the end of the block.

    An error leaves it open: the caller MUST close the connection, and the server rolls back.
    Raises UnavailableError if the connection broke, or the target is read-only or full. Then
    nothing was committed.
    Raises OutcomeUnknownError if semel sent COMMIT and no reply arrived.
    Raises RetryableError after a lock timeout, deadlock or cancellation.
    Raises TerminalError if the statement would fail again (a right, a changed table, a row).
    """
    committing = False
    try:
        connection.execute(query("postgres", "settings").text, _SETTINGS)
        yield
        committing = True
        connection.commit()
    except psycopg.Error as error:
        raise translate_error(target, connection, error, committing) from error


_SETTINGS = {"lock": f"{LOCK_TIMEOUT_MS}ms", "idle": f"{IDLE_IN_TRANSACTION_MS}ms"}


@contextmanager
def open_connection(target: PostgresTarget) -> Iterator[Connection]:
    """A connection for the length of a block.

    Raises UnavailableError if the server does not answer, TerminalError if its address is wrong.
    """
    try:
        connection = psycopg.connect(
            target.dsn,
            connect_timeout=_CONNECT_SECONDS,
            application_name="semel",
            client_encoding="utf8",
            row_factory=dict_row,
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        raise UnavailableError(
            f"{target.address} does not answer, or refuses the login ({first_line(error)}). Check "
            f"the connection {target.connection!r}, then run this again"
        ) from error
    except psycopg.ProgrammingError as error:
        raise TerminalError(
            f"semel cannot connect to {target.address} ({first_line(error)}). Correct the "
            f"connection {target.connection!r}"
        ) from error
    # Not the role's default: after waiting for a lock, a query MUST see what others committed.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    try:
        yield connection
    finally:
        connection.close()


def fill_query(name: str, **braces: Any) -> sql.Composed:
    """The statement `name` of sql/queries/postgres.sql with its braces filled in, values quoted."""
    return sql.SQL(query("postgres", name).text).format(**braces)


def table_exists(connection: Connection, name: sql.Identifier) -> bool:
    """Whether a table exists in the statement's own snapshot. `to_regclass` may use the session's
    cache instead.
    """
    sql_name = name.as_string(connection)
    return connection.execute(query("postgres", "is_there").text, [sql_name]).fetchone()["found"]


def row_rights(connection: Connection, target: PostgresTarget) -> dict[str, Any] | None:
    """The user's rights to find and delete a batch's rows. None if the table does not exist."""
    schema, table = target.names
    names = {"schema": schema, "table": table}
    return connection.execute(query("postgres", "may_delete").text, names).fetchone()


def is_refusal(error: psycopg.Error) -> bool:
    """Whether the target refuses a row's values, and would again. An SQLSTATE unknown to PostgreSQL
    counts, because a trigger may raise it.
    """
    state = error.sqlstate or ""
    return state[:2] in _REFUSES_ROWS or bool(state) and not _is_known(state)


def _is_known(state: str) -> bool:
    try:
        pg.lookup(state)
    except KeyError:
        return False
    return True


def refuses_rows(error: TerminalError) -> bool:
    """Whether an error that `transaction` raised is such a refusal."""
    return isinstance(error.__cause__, psycopg.Error) and is_refusal(error.__cause__)


def reason(error: psycopg.Error) -> str:
    """Why the target refuses rows, without quoting any of their values."""
    if error.sqlstate[:2] in _QUOTES_NO_ROW:
        return error.diag.message_primary or type(error).__name__
    named = error.diag.constraint_name or error.diag.column_name or error.sqlstate
    return f"{type(error).__name__} ({named})"


def translate_error(
    target: PostgresTarget, connection: Connection, error: psycopg.Error, committing: bool = False
) -> Exception:
    """The error of semel's to raise instead of a PostgreSQL error."""
    state, text = error.sqlstate or "", first_line(error)
    if isinstance(error, _CONTENTION):
        return RetryableError(
            f"{target.address} did not give a lock in time ({text}): another run or a user works "
            "with the table. Run this again"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return UnavailableError(
            f"{target.address} accepts no writes now: it is a standby ({text}). Run this again "
            "once it is promoted"
        )
    if isinstance(error, pg.DiskFull):
        return UnavailableError(
            f"{target.address} has no space left on its disk ({text}). Nothing was written. Free "
            "some space, then run this again"
        )
    if connection.broken or state[:2] in _AWAY:
        kind = OutcomeUnknownError if committing else UnavailableError
        what = "reply to a commit" if committing else "connection"
        return kind(f"{target.address}: the {what} was lost ({text}). Run this again")
    if is_refusal(error):
        return TerminalError(f"{target.address} refuses rows: {reason(error)}")
    if state[:2] in ("42", "0A"):
        return TerminalError(
            f"{target.address} refused a statement ({text}). Grant the connection's user the "
            "missing right, or change the table as docs/postgres.md describes"
        )
    return TerminalError(
        f"{target.address} failed with an error that semel does not know ({text}, SQLSTATE "
        f"{state}). Nothing was written. Ask the administrator of that server"
    )
