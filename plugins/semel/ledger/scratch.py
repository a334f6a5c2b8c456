"""A scratch ledger: an empty database on the ledger's server, for one compare, dropped after it.

Its maker holds an advisory lock in it as long as it lives. One in which nobody does is left from a
process that was killed; whoever makes the next one, or collects, drops it.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from psycopg import errors as pg

from semel import settings
from semel.clients.sql import query
from semel.errors import AGAIN, TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.storage import remove_folder

_KEY = 0x73636D70  # "scmp"
_OWN_BYTES_MAX = 32  # Of the ledger's database: names have 63 bytes.
_KEY_DIGITS = re.compile(r"[0-9a-f]{12}")


@contextmanager
def scratch_ledger(ledger: Ledger) -> Iterator[Ledger]:
    """A ledger that knows nothing, for the length of a block. Its `scratch` is its database.

    UnavailableError: the server does not answer. TerminalError: the user may not make databases.
    """
    name = _beginning(ledger) + secrets.token_hex(6)
    url = ledger.engine.url.set(database=name)
    made = Ledger(url.render_as_string(hide_password=False), scratch=name)
    try:
        with ExitStack() as kept:
            _make(ledger, made, name, kept)
            with made.engine.begin() as connection:
                # In half the time of the migrations, which make the same.
                connection.exec_driver_sql((settings.sql_dir() / "schema.sql").read_text("utf-8"))
            yield made
    finally:
        made.engine.dispose()
        with suppress(sa.exc.DBAPIError, UnavailableError):  # The next one drops it.
            _run(ledger, "drop", name)


def folder_of(made: Ledger, staging: Path) -> Path:
    """The folder of a scratch ledger's files, below the folder of an archive's attempts."""
    return staging / f"compare-{(made.scratch or '').rpartition('_')[2]}"


def remove_left(ledger: Ledger, staging: Path) -> None:
    """Drop the scratch databases whose makers are gone, and remove their folders."""
    beginning = _beginning(ledger)
    if _left(ledger, beginning):
        with _held(ledger):
            for name in _left(ledger, beginning):
                with suppress(sa.exc.DBAPIError):
                    _run(ledger, "drop", name)
    there = ledger.rows("scratch", "there", beginning=beginning)
    keys = {row["name"].removeprefix(beginning) for row in there}
    for folder in staging.glob("compare-*"):
        key = folder.name.removeprefix("compare-")
        if _KEY_DIGITS.fullmatch(key) and key not in keys:
            remove_folder(folder)


def _left(ledger: Ledger, beginning: str) -> list[str]:
    found = [row["name"] for row in ledger.rows("scratch", "left", beginning=beginning)]
    return [name for name in found if _KEY_DIGITS.fullmatch(name.removeprefix(beginning))]


def _beginning(ledger: Ledger) -> str:
    own = (ledger.engine.url.database or "").encode()[:_OWN_BYTES_MAX].decode(errors="ignore")
    return f"{own}_semel_compare_"


def _make(ledger: Ledger, made: Ledger, name: str, kept: ExitStack) -> None:
    """Create the database. `kept` takes the connection that keeps it."""
    with _held(ledger):
        try:
            _run(ledger, "create", name)
        except sa.exc.ProgrammingError as error:
            if not isinstance(error.orig, pg.InsufficientPrivilege):
                raise
            user = _quoted(ledger, ledger.rows("scratch", "user")[0]["name"])
            raise TerminalError(
                f"the user of the ledger {ledger} may not create a database, and a compare needs "
                f"one of its own for as long as it runs; let an administrator run `ALTER ROLE "
                f"{user} CREATEDB`",
                next=AGAIN,
            ) from error
        keeper = kept.enter_context(_connected(made))
        keeper.execute(query("scratch", "keep"), {"key": _KEY})


@contextmanager
def _held(ledger: Ledger) -> Iterator[None]:
    """The lock, in the ledger's own database, of whoever makes or removes scratch databases."""
    with _connected(ledger) as connection:
        connection.execute(query("scratch", "hold"), {"key": _KEY})
        try:
            yield
        finally:
            connection.execute(query("scratch", "release"), {"key": _KEY})


def _run(ledger: Ledger, statement: str, name: str) -> None:
    texts: dict[str, Any] = {"create": query("scratch", "create"), "drop": query("scratch", "drop")}
    with _connected(ledger) as connection:
        text = texts[statement].text.replace("{database}", _quoted(ledger, name))
        connection.exec_driver_sql(text)


@contextmanager
def _connected(ledger: Ledger) -> Iterator[sa.Connection]:
    """A connection without transactions: CREATE DATABASE takes none."""
    try:
        with ledger.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")
    except sa.exc.OperationalError as error:
        raise UnavailableError(f"the ledger {ledger} does not answer ({error.orig})") from error


def _quoted(ledger: Ledger, name: str) -> str:
    return ledger.engine.dialect.identifier_preparer.quote_identifier(name)
