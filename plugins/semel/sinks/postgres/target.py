"""The target: a table and how to reach its database. Plain values, made without a connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote

import psycopg
from psycopg import conninfo, sql

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    parse_connection,
    translate_settings_errors,
)
from semel.declare.context import Counting
from semel.errors import TerminalError
from semel.sinks.postgres.spec import BATCHES, COMPLETE, PARTS, WINDOWS, names_of

BATCH_COLUMN = "_semel_batch"
SEQ_COLUMN = "_semel_seq"
NAME_BYTES_MAX = 63  # PostgreSQL silently cuts a longer name.

_SCHEMES = ("postgres", "postgresql")
_OF_AIRFLOW = ("cursor", "enable_log_db_messages")  # Options of Airflow's own hook.


@dataclass(frozen=True, kw_only=True)
class PostgresTarget:
    """A PostgreSQL table, and how to put rows into it. Raises TerminalError if it is malformed.

    `dsn` is libpq's connection string (it has secrets: never print it). `table` is `table` (in the
    schema `public`) or `schema.table`, case-sensitive; a name with a dot is in double quotes.
    `counting`: rows are partial and go to `<table>_parts`, and `<table>` is a view over them.
    `json_columns`: text columns with JSON, which a new table has as jsonb. `connection`: its name
    in the declaration.
    """

    dsn: str = field(repr=False)
    table: str
    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] = ()
    create: bool = False
    counting: Counting | None = None
    json_columns: tuple[str, ...] = ()
    connection: str = ""

    def __post_init__(self) -> None:
        longest = [self.windows_name] if self.counting else []
        for name in (*self.names, *longest):
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
                raise TerminalError(
                    f"sink.table {self.table!r}: a name in PostgreSQL has 1 to {NAME_BYTES_MAX} "
                    "bytes and no NUL. Write another name"
                )
        if {self.names[1], self.view_name} & {BATCHES, COMPLETE}:
            raise TerminalError(
                f"sink.table {self.table!r} is the name of a table of semel's own ({BATCHES}, "
                f"{COMPLETE}). Give the rows a table of another name"
            )
        if (self.mode == "upsert") != bool(self.key):
            raise TerminalError(
                f"sink.table {self.table!r}: mode upsert needs a key, and mode append does not "
                "have one. Correct sink.mode or sink.key"
            )

    @cached_property
    def names(self) -> tuple[str, str]:
        """Schema and table, unquoted."""
        schema, table = names_of(self.table)
        return schema, PARTS.format(table) if self.counting else table

    @property
    def view(self) -> sql.Identifier:
        """The view that merges partial rows, for a statement."""
        return sql.Identifier(self.names[0], self.view_name)

    @property
    def windows(self) -> sql.Identifier:
        """The table of the partial rows' windows, for a statement."""
        return sql.Identifier(self.names[0], self.windows_name)

    @property
    def view_name(self) -> str:
        """The view's name: the declared one."""
        return names_of(self.table)[1]

    @property
    def windows_name(self) -> str:
        """The name of the table of windows."""
        return WINDOWS.format(self.view_name)

    @property
    def identifier(self) -> sql.Identifier:
        """The table, for a statement."""
        return sql.Identifier(*self.names)

    @property
    def batches(self) -> sql.Identifier:
        """The table of batch notes, for a statement."""
        return sql.Identifier(self.names[0], BATCHES)

    @cached_property
    def sql_name(self) -> str:
        """The table as quoted SQL."""
        return self.identifier.as_string()

    @cached_property
    def address(self) -> str:
        """Canonical, without secrets: postgresql://host:port/database/schema.table."""
        parts = conninfo.conninfo_to_dict(self.dsn)
        host, port = (parts.get("host") or parts.get("hostaddr") or "", parts.get("port") or 5432)
        name = parts.get("dbname") or parts.get("user")
        if not name:
            raise TerminalError(
                f"the connection for {self.table!r} does not name a database. Put its name in the "
                "schema field of the connection"
            )
        table = ".".join(quote(part, safe="") for part in self.names)
        where = f"{quote(host.lower(), safe=',:')}:{port}"
        return f"postgresql://{where}/{quote(name, safe='')}/{table}"


def dsn_of(name: str, find: Callable[[str], str | None] = settings.connection) -> str:
    """libpq's connection string for the Airflow connection `name`.

    `find` returns the connection as Airflow writes it (a URI, or JSON), or None. A message MUST NOT
    quote it, because it has passwords. Raises TerminalError if it is missing or unusable.
    """
    text = find(name)
    if not text:
        raise TerminalError(
            f"there is no connection {name!r}. Create it in Airflow; for the command line, `export "
            f"{settings.connection_variable(name)}=postgresql://user:password@host:5432/database`"
        )
    with translate_settings_errors(name, "PostgreSQL"):
        given_parts = parse_connection(text)
        parts = {
            "host": given_parts.host,
            "port": given_parts.port,
            "user": given_parts.login,
            "password": given_parts.password,
            "dbname": given_parts.schema,
            **_libpq(given_parts.extra),
        }
        scheme = str(given_parts.kind or "").lower().replace("-", "_")
        if scheme not in _SCHEMES:
            raise ConnectionSettingsError(f"its type is {scheme!r} instead of postgres")
        try:
            return conninfo.make_conninfo(**{k: v for k, v in parts.items() if v not in (None, "")})
        except psycopg.ProgrammingError as error:
            raise ConnectionSettingsError(type(error).__name__) from None


def _libpq(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The libpq options in a connection's extra. Raises ConnectionSettingsError for any other."""
    options = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    wanted = {key: value for key, value in extra.items() if value and key not in _OF_AIRFLOW}
    if unknown := sorted(wanted.keys() - options):
        raise ConnectionSettingsError(f"its extra has {unknown[0]!r}, which libpq does not know")
    return wanted
