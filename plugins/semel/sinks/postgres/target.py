"""Which table rows go to, and how its database is reached: values, made without any connection."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import psycopg
from psycopg import conninfo, sql

from semel import settings
from semel.errors import TerminalError

BATCHES = "semel_batch"
"""The table, beside the target, that says which batches have landed."""

BATCH_COLUMN = "_semel_batch"
SEQ_COLUMN = "_semel_seq"
NAME_BYTES_MAX = 63  # PostgreSQL cuts a longer name without a word.

_PART = r'"(?:[^"]|"")+"|[^".]+'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_SCHEMES = ("postgres", "postgresql")
_OF_AIRFLOW = ("cursor", "enable_log_db_messages")  # What its own hook understands.


@dataclass(frozen=True, kw_only=True)
class PostgresTarget:
    """A table of some PostgreSQL, and how rows are put into it. TerminalError: it cannot be one.

    `dsn` is what libpq takes (with secrets: it is never shown). `table` is `table` (in the schema
    `public`) or `schema.table`; the names are taken as they stand, upper case included, and one
    with a dot is written in double quotes. `json_columns` are text columns that hold JSON: a
    table that is made gets them as jsonb.
    """

    dsn: str = field(repr=False)
    table: str
    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] = ()
    create: bool = False
    json_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
                raise TerminalError(
                    f"sink.table {self.table!r}: a name has 1 to {NAME_BYTES_MAX} bytes in "
                    "PostgreSQL, and no NUL; write another one"
                )
        if self.names[1] == BATCHES:
            raise TerminalError(
                f"sink.table {self.table!r} is where semel writes which batches have landed; give "
                "the rows a table of another name"
            )
        if (self.mode == "upsert") != bool(self.key):
            raise TerminalError(
                f"sink.table {self.table!r}: mode upsert needs a key, and append has none; "
                "correct sink.mode or sink.key"
            )

    @cached_property
    def names(self) -> tuple[str, str]:
        """Schema and table, unquoted."""
        found = _TABLE.fullmatch(self.table)
        if not found:
            raise TerminalError(
                f"sink.table {self.table!r} is neither `table` nor `schema.table`; write a name "
                'with dots or quotes as "na""me"'
            )
        schema, table = (
            part[1:-1].replace('""', '"') if part and part[0] == '"' else part
            for part in found.groups()
        )
        return schema or "public", table

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
    try:
        parts = _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
        scheme = str(parts.pop("conn_type", "")).lower().replace("-", "_")
        if scheme not in _SCHEMES:
            raise ValueError(f"its type is {scheme!r}, and not postgres")
        return conninfo.make_conninfo(**{k: v for k, v in parts.items() if v not in (None, "")})
    except (ValueError, AttributeError, TypeError, psycopg.ProgrammingError) as error:
        raise TerminalError(
            f"the connection {name!r} cannot be used for PostgreSQL ({_without(text, error)}); "
            f"correct it in Airflow, or in {settings.connection_variable(name)}"
        ) from None


def _from_uri(text: str) -> dict[str, Any]:
    split = urlsplit(text)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return {
        "conn_type": split.scheme,
        "host": _host(split),
        "port": split.port,
        "user": unquote(split.username or ""),
        "password": unquote(split.password or ""),
        "dbname": unquote(split.path[1:]),
        **_libpq(extra),
    }


def _host(split: SplitResult) -> str:
    """The host as Airflow reads it: a path of a socket keeps its upper case."""
    host = unquote(split.hostname or "")
    return unquote(split.netloc.rpartition("@")[2].partition(":")[0]) if "/" in host else host


def _from_json(text: str) -> dict[str, Any]:
    plain = json.loads(text)
    extra = plain.get("extra") or {}
    return {
        "conn_type": plain.get("conn_type"),
        "host": plain.get("host"),
        "port": plain.get("port"),
        "user": plain.get("login"),
        "password": plain.get("password"),
        "dbname": plain.get("schema"),
        **_libpq(json.loads(extra) if isinstance(extra, str) else extra),
    }


def _libpq(extra: dict[str, Any]) -> dict[str, Any]:
    """The fields of a connection's extra that libpq knows. ValueError for others."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    left = {key: value for key, value in extra.items() if value and key not in _OF_AIRFLOW}
    if unknown := sorted(left.keys() - known):
        raise ValueError(f"its extra has {unknown[0]!r}, which libpq does not know")
    return left


def _without(text: str, error: Exception) -> str:
    """What is wrong, unless the words might quote the connection."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error.msg} at character {error.pos}"
    said = str(error)
    return said if said.startswith("its ") else type(error).__name__
