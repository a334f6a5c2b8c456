"""Which table rows go to, and how its database is reached: values, made without any connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote

import psycopg
from psycopg import conninfo, sql

from semel import settings
from semel.clients.connection import ConnectionSettingsError, parsed, usable
from semel.declare.context import Counting
from semel.errors import TerminalError
from semel.sinks.postgres.spec import BATCHES, COMPLETE, PARTS, WINDOWS, names_of

BATCH_COLUMN = "_semel_batch"
SEQ_COLUMN = "_semel_seq"
NAME_BYTES_MAX = 63  # PostgreSQL cuts a longer name without a word.

_SCHEMES = ("postgres", "postgresql")
_OF_AIRFLOW = ("cursor", "enable_log_db_messages")  # What its own hook understands.


@dataclass(frozen=True, kw_only=True)
class PostgresTarget:
    """A table of some PostgreSQL, and how rows are put into it. TerminalError: it cannot be one.

    `dsn` is what libpq takes (with secrets: it is never shown). `table` is `table` (in the schema
    `public`) or `schema.table`; the names are taken as they stand, upper case included, and one
    with a dot is written in double quotes. `counting`: rows are partial and go to `<table>_parts`,
    and `<table>` is a view over them. `json_columns` are text columns that hold JSON: a
    table that is made gets them as jsonb. `connection` is the name that the declaration has for it.
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
                    f"sink.table {self.table!r}: a name has 1 to {NAME_BYTES_MAX} bytes in "
                    "PostgreSQL, and no NUL; write another one"
                )
        if {self.names[1], self.view_name} & {BATCHES, COMPLETE}:
            raise TerminalError(
                f"sink.table {self.table!r} is where semel writes which batches have landed, or "
                "what is complete; give the rows a table of another name"
            )
        if (self.mode == "upsert") != bool(self.key):
            raise TerminalError(
                f"sink.table {self.table!r}: mode upsert needs a key, and append has none; "
                "correct sink.mode or sink.key"
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
        """The table of their windows, for a statement."""
        return sql.Identifier(self.names[0], self.windows_name)

    @property
    def view_name(self) -> str:
        """The declared name, which the view has."""
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
        """The table of batches, for a statement."""
        return sql.Identifier(self.names[0], BATCHES)

    @cached_property
    def shown(self) -> str:
        """The table as SQL has it."""
        return self.identifier.as_string()

    @cached_property
    def address(self) -> str:
        """Canonical, without secrets: postgresql://host:port/database/schema.table."""
        parts = conninfo.conninfo_to_dict(self.dsn)
        host, port = parts.get("host") or parts.get("hostaddr") or "", parts.get("port") or 5432
        name = parts.get("dbname") or parts.get("user")
        if not name:
            raise TerminalError(
                f"the connection for {self.table!r} names no database; put it in the schema field "
                "of the connection"
            )
        table = ".".join(quote(part, safe="") for part in self.names)
        where = f"{quote(host.lower(), safe=',:')}:{port}"
        return f"postgresql://{where}/{quote(name, safe='')}/{table}"


def dsn_of(name: str, find: Callable[[str], str | None] = settings.connection) -> str:
    """What libpq takes, for the Airflow connection `name`. TerminalError: it is none, or wrong.

    `find` gives a connection as a URI or JSON, as Airflow writes it (`Connection.get_uri`,
    `as_json`), or None. No message holds what it gave: there are passwords in it.
    """
    text = find(name)
    if not text:
        raise TerminalError(
            f"there is no connection {name!r}; make it in Airflow, or for the command line `export "
            f"{settings.connection_variable(name)}=postgresql://user:password@host:5432/database`"
        )
    with usable(name, "PostgreSQL"):
        found = parsed(text)
        parts = {
            "host": found.host,
            "port": found.port,
            "user": found.login,
            "password": found.password,
            "dbname": found.schema,
            **_libpq(found.extra),
        }
        scheme = str(found.kind or "").lower().replace("-", "_")
        if scheme not in _SCHEMES:
            raise ConnectionSettingsError(f"its type is {scheme!r}, and not postgres")
        try:
            return conninfo.make_conninfo(**{k: v for k, v in parts.items() if v not in (None, "")})
        except psycopg.ProgrammingError as error:
            raise ConnectionSettingsError(type(error).__name__) from None


def _libpq(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a connection's extra that libpq knows. Unusable: it has others."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    left = {key: value for key, value in extra.items() if value and key not in _OF_AIRFLOW}
    if unknown := sorted(left.keys() - known):
        raise ConnectionSettingsError(f"its extra has {unknown[0]!r}, which libpq does not know")
    return left
