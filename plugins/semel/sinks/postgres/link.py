"""Transactions in the target, and what its errors mean for the caller."""

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
_AWAY = ("08", "53", "57", "58")  # Connection, resources (a full disk), operator, its system.
_REFUSES_ROWS = ("21", "22", "23", "44", "54", "P0")
_QUOTES_NO_ROW = ("23", "54")


@contextmanager
def within(target: PostgresTarget, connection: Connection) -> Iterator[None]:
    """A transaction in the target, committed at the end of the block.

    After an error it is still open: then the caller closes the connection, which rolls it back.
    UnavailableError: its connection was lost, it takes no writes, or has no room; nothing was
    committed.
    OutcomeUnknownError: COMMIT was sent and its reply did not arrive.
    RetryableError: a lock was not had in time.
    TerminalError: the statement will fail again (a right, a table that has changed, a row).
    """
    committing = False
    try:
        connection.execute(query("postgres", "settings").text, _SETTINGS)
        yield
        committing = True
        connection.commit()
    except psycopg.Error as error:
        raise meaning(target, connection, error, committing) from error


_SETTINGS = {
    "lock": f"{LOCK_TIMEOUT_MS}ms",
    "idle": f"{IDLE_IN_TRANSACTION_MS}ms",
}


@contextmanager
def connected(target: PostgresTarget) -> Iterator[Connection]:
    """A connection for the length of a block. UnavailableError: it does not answer.

    TerminalError: its address is wrong.
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
            f"{target.address} does not answer, or refuses the login ({first_line(error)}); check "
            f"the connection {target.connection!r}, then run this again"
        ) from error
    except psycopg.ProgrammingError as error:
        raise TerminalError(
            f"{target.address} cannot be reached ({first_line(error)}); correct the connection "
            f"{target.connection!r}"
        ) from error
    # Of a role's default nothing is taken: what is looked at behind a lock must be of now.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    try:
        yield connection
    finally:
        connection.close()


def filled(name: str, **braces: Any) -> sql.Composed:
    """The statement `name` of sql/queries/postgres.sql, its braces filled. Values are quoted."""
    return sql.SQL(query("postgres", name).text).format(**braces)


def is_there(connection: Connection, name: sql.Identifier) -> bool:
    """Whether a table of a schema is there, as the statement's own snapshot has it: to_regclass
    may answer from what the session remembers.
    """
    shown = name.as_string(connection)
    return connection.execute(query("postgres", "is_there").text, [shown]).fetchone()["found"]


def rights(connection: Connection, target: PostgresTarget) -> dict[str, Any] | None:
    """Which of a batch's rows in the table the user may find and delete. None: it is not there."""
    schema, table = target.names
    names = {"schema": schema, "table": table}
    return connection.execute(query("postgres", "may_delete").text, names).fetchone()


def is_refusal(error: psycopg.Error) -> bool:
    """Whether the target refuses what is in a row, and would again: a trigger may say so by a code
    that PostgreSQL does not have.
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
    """The same of what `transaction` raised."""
    return isinstance(error.__cause__, psycopg.Error) and is_refusal(error.__cause__)


def reason(error: psycopg.Error) -> str:
    """Why rows are refused, without any value of theirs."""
    if error.sqlstate[:2] in _QUOTES_NO_ROW:
        return error.diag.message_primary or type(error).__name__
    named = error.diag.constraint_name or error.diag.column_name or error.sqlstate
    return f"{type(error).__name__} ({named})"


def meaning(
    target: PostgresTarget, connection: Connection, error: psycopg.Error, committing: bool = False
) -> Exception:
    """The error of semel's to raise in its place."""
    state, said = error.sqlstate or "", first_line(error)
    if isinstance(error, _CONTENTION):
        return RetryableError(
            f"{target.address} did not give a lock in time ({said}): another run or a user works "
            "with the table; run this again"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return UnavailableError(
            f"{target.address} accepts no writes now: it is a standby, until it is promoted "
            f"({said}); run this again"
        )
    if isinstance(error, pg.DiskFull):
        return UnavailableError(
            f"{target.address} has no room on its disk ({said}); nothing was written, make some "
            "and run this again"
        )
    if connection.broken or state[:2] in _AWAY:
        kind = OutcomeUnknownError if committing else UnavailableError
        what = "reply to a commit" if committing else "connection"
        return kind(f"{target.address}: the {what} was lost ({said}); run this again")
    if is_refusal(error):
        return TerminalError(f"{target.address} refuses rows: {reason(error)}")
    if state[:2] in ("42", "0A"):
        return TerminalError(
            f"{target.address} refused a statement ({said}); give the user of its "
            "connection the right to, or make the table as docs/postgres.md has it"
        )
    return TerminalError(
        f"{target.address} failed with an error that is unknown here ({said}, SQLSTATE {state}); "
        "nothing was written. Ask who runs that server"
    )
