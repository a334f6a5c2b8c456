"""The ledger: connections, transactions and the named statements of sql/queries/.

Transactions are READ COMMITTED. With REPEATABLE READ, a transaction that waits for a lock would
decide by its snapshot from before the lock.
"""

import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import errors as pg

from semel import settings
from semel.clients.sql import IDLE_IN_TRANSACTION_MS, LOCK_TIMEOUT_MS, query
from semel.errors import (
    AGAIN,
    CorruptionError,
    OutcomeUnknownError,
    RetryableError,
    StateError,
    TerminalError,
    UnavailableError,
    first_line,
)

UNUSED_CONNECTION_SECONDS = 30
"""semel replaces a connection that was idle for longer, because firewalls drop these silently."""

Row = sa.RowMapping

_CONTENTION = (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure)
_AWAY = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.TooManyConnections)
_REFUSED = {
    pg.ReadOnlySqlTransaction: "accepts no writes now: it is a standby until it is promoted",
    pg.DiskFull: "has no space on its disk: free some",
}
"""Temporary states of a running server."""
_OTHER_SCHEMA = (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName)
_IDS_TABLE = re.compile(r"\bids_\d+\b")
RESTORE_IDS = (
    "Restore the table from a backup of the ledger, or adopt the pipelines into an empty database "
    "(docs/operations.md, A lost ledger)"
)


class Ledger:
    """One Postgres database that holds the schema `semel`.

    Purpose: provide transactions with the settings that the protocol relies on.
    It does not retry. Calling a verb again is the only way to retry.
    """

    def __init__(self, dsn: str | None = None) -> None:
        """`dsn` defaults to `settings.ledger_dsn()`, which raises UnavailableError if unset."""
        url = sa.make_url(dsn or settings.ledger_dsn()).set(drivername="postgresql+psycopg")
        self.dsn = url.render_as_string(hide_password=False)
        self.engine = sa.create_engine(
            url,
            pool_size=2,
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": 10, "application_name": "semel",
                # Firewalls drop idle connections, and with them the locks of a session.
                "keepalives_idle": UNUSED_CONNECTION_SECONDS,
            },  # fmt: skip
        )
        sa.event.listen(self.engine, "checkin", _note_return)
        sa.event.listen(self.engine, "checkout", _replace_dead)

    def __str__(self) -> str:
        """The address without the password."""
        address = self.engine.url.set(drivername="postgresql")
        return address.render_as_string(hide_password=True)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A transaction, committed at the end of the block and rolled back after an error.

        Raises UnavailableError if the ledger did not answer or refused writes (nothing was
        committed), OutcomeUnknownError if the reply to COMMIT did not arrive, RetryableError if a
        lock was not free in time, CorruptionError if a table of ids is missing, TerminalError if
        the database has another version's schema or the user lacks a right.
        """
        connection = self._connect()
        committing = False
        try:
            with connection, connection.begin() as transaction:
                connection.exec_driver_sql(query("ledger", "begin").text.format_map(_SETTINGS))
                yield connection
                if transaction.is_active:
                    committing = True
                    transaction.commit()
        except sa.exc.DBAPIError as error:
            if isinstance(error.orig, _CONTENTION):
                raise RetryableError(
                    f"the ledger did not give a lock in time ({first_line(error.orig)}). Run this "
                    "again"
                ) from error
            if why := _REFUSED.get(type(error.orig)):
                raise UnavailableError(
                    f"the ledger {self} {why} ({first_line(error.orig)}). Nothing was written. Run "
                    "this again"
                ) from error
            if isinstance(error.orig, _OTHER_SCHEMA):
                raise self._refuse_schema(error.orig) from error
            if isinstance(error.orig, pg.InsufficientPrivilege):
                raise self._refuse_rights(error.orig) from error
            if error.connection_invalidated or isinstance(error.orig, _AWAY):
                # Keeps C11.
                kind = OutcomeUnknownError if committing else UnavailableError
                what = "reply to a commit" if committing else "connection"
                why = f"the {what} was lost ({first_line(error.orig)})"
                raise kind(f"the ledger {self}: {why}. Run this again") from error
            raise
        except _OTHER_SCHEMA as error:  # From the driver's own cursors.
            raise self._refuse_schema(error) from error
        except pg.InsufficientPrivilege as error:
            raise self._refuse_rights(error) from error

    def _connect(self) -> sa.Connection:
        try:
            # Otherwise the driver sends its own BEGIN first.
            return self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        except sa.exc.OperationalError as error:
            raise UnavailableError(
                f"the ledger {self} does not answer ({first_line(error.orig)})"
            ) from error

    @contextmanager
    def session(self) -> Iterator[sa.Connection]:
        """A connection that nobody else gets: its advisory locks end with the block or the process.

        Raises UnavailableError if the ledger does not answer.
        """
        connection = self._connect()
        connection.detach()
        with connection:
            yield connection

    def _refuse_rights(self, error: BaseException) -> TerminalError:
        return TerminalError(
            f"the ledger {self} denies its user a right ({first_line(error)}). Nothing was "
            "written. Let the ledger's owner run the SQL of `semel migrate --roles`, which gives "
            "executors their rights; all other processes must be that owner",
            next="semel migrate --roles",
        )

    def _refuse_schema(self, error: BaseException) -> TerminalError:
        why = first_line(error)
        if table := _IDS_TABLE.search(why):
            return CorruptionError(
                f"the ledger {self}: its table semel.{table[0]} is missing, which holds ids of "
                f"records. Nothing was committed. {RESTORE_IDS}",
                next=AGAIN,
            )
        return TerminalError(
            f"the database {self} does not have the schema of this version of semel ({why}). "
            "Migrate it, or install the version that made it",
            next="semel migrate",
        )

    def rows(self, verb: str, name: str, /, **values: Any) -> list[Row]:
        """The rows of one statement in a transaction of its own."""
        with self.transaction() as connection:
            return rows(connection, verb, name, **values)


_SETTINGS = {
    "lock_timeout": f"{LOCK_TIMEOUT_MS}ms",
    "idle_timeout": f"{IDLE_IN_TRANSACTION_MS}ms",
}


def _note_return(_: object, record: sa.pool.ConnectionPoolEntry) -> None:
    record.info["unused_since"] = time.monotonic()


def _replace_dead(
    connection: psycopg.Connection[Any], record: sa.pool.ConnectionPoolEntry, _: object
) -> None:
    """Make the pool replace a dead connection.

    An idle connection has data to read only if the server or the network has ended it. One that was
    idle for long may be dead without a sign.
    """
    if (since := record.info.pop("unused_since", None)) is None:
        return  # A new connection.
    unread = select.poll()
    unread.register(connection.fileno(), select.POLLIN)
    if unread.poll(0) or time.monotonic() - since > UNUSED_CONNECTION_SECONDS:
        raise sa.exc.DisconnectionError


def rows(connection: sa.Connection, verb: str, name: str, /, **values: Any) -> list[Row]:
    """All rows that a statement of sql/queries/<verb>.sql returns."""
    return list(connection.execute(query(verb, name), values).mappings())


def row(connection: sa.Connection, verb: str, name: str, /, **values: Any) -> Row | None:
    """The only row of a statement, or None."""
    return connection.execute(query(verb, name), values).mappings().one_or_none()


def change(connection: sa.Connection, verb: str, name: str, /, **values: Any) -> int:
    """Run a statement that returns no rows. Returns how many rows it changed."""
    return connection.execute(query(verb, name), values).rowcount


def transition(
    connection: sa.Connection, verb: str, name: str, otherwise: str, /, *, next: str = "",
    **values: Any,
) -> Row:
    """The row of a guarded transition. Raises StateError(otherwise) if its guard matched no row."""
    changed = row(connection, verb, name, **values)
    if changed is None:
        raise StateError(otherwise, next=next)
    return changed
