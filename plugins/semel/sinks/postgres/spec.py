"""The declaration of a PostgreSQL table as a sink."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, model_validator

from semel import settings
from semel.clients.connection import parse_connection, translate_settings_errors
from semel.declare.parts import Text, twice
from semel.declare.place import TABLE, Location
from semel.declare.yaml import Key, Problem, Problems
from semel.errors import TerminalError
from semel.sinks.spec import ServiceSinkSpec

_PART = r'"(?:[^"]|"")+"|[^".]+'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_PORT = 5432

BATCHES = "semel_batch"
"""The table of batch notes, in the target's schema."""

COMPLETE = "semel_complete"
"""The table of complete time ranges, for all targets in its schema."""

PARTS, WINDOWS = "{}_parts", "{}_windows"
"""The tables of partial rows and of their windows. `{}`: the name of the view over both."""


def names_of(table: str) -> tuple[str, str]:
    """The schema and table of `sink.table`, unquoted. Raises TerminalError if it is malformed."""
    match = _TABLE.fullmatch(table)
    if not match:
        raise TerminalError(
            f"sink.table {table!r} is neither `table` nor `schema.table`. Put a name with dots or "
            'quotes in double quotes, as in "na""me"'
        )
    schema, name = (
        part[1:-1].replace('""', '"') if part and part[0] == '"' else part
        for part in match.groups()
    )
    return schema or "public", name


class PostgresSinkSpec(ServiceSinkSpec):
    """A PostgreSQL table. Finalize writes all rows of a batch in one transaction."""

    type: Literal["postgres"]
    """The kind of sink."""
    connection: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection; for the command line, the variable AIRFLOW_CONN_<CONNECTION>."""
    table: Text
    """The table, as `table` (in the schema public) or `schema.table`."""
    mode: Literal["append", "upsert"] = "append"
    """append: finalize adds rows. upsert: a row replaces the row with the same key."""
    key: tuple[Text, ...] = ()
    """The columns of the key, for mode: upsert."""
    create: bool = Field(default=False, strict=True)
    """Create the table, and the key's unique index, if they are missing."""
    archive: Text | None = None
    """The folder of markers and more, or the URL of a store; null: `<pipeline>/` below
    SEMEL_ARCHIVES, or else `_semel/<pipeline>/` below the first data root."""
    position_columns: bool = Field(default=False, strict=True)
    """Add the record's source partition and position as columns _semel_source and _semel_offset."""

    place: ClassVar[tuple[str, ...]] = ("connection", "table")
    way: ClassVar[tuple[str, ...]] = ("connection",)
    located_by: ClassVar[str] = "table"

    @property
    def replaces_rows(self) -> bool:
        """True if a row replaces the row with the same key."""
        return self.mode == "upsert"

    def describe(self) -> str:
        """The table, its connection, the mode and the key."""
        by = f" by {', '.join(f'`{name}`' for name in self.key)}" if self.key else ""
        return f"table `{self.table}` of connection `{self.connection}`, {self.mode}{by}"

    def dataset(self, address: str) -> tuple[str, str]:
        """Server and table, as OpenLineage names them."""
        split = urlsplit(address)
        database, table = map(unquote, split.path.strip("/").split("/"))
        return f"postgres://{split.netloc}", f"{database}.{table}"

    def whereabouts(self) -> Location:
        """The table."""
        with suppress(TerminalError):  # The sink reports a malformed name.
            return self._location(*names_of(self.table))
        return Location(kind=TABLE, name=self.table, servers=self._servers())

    def derived_places(self, *, counts: bool) -> tuple[Location, ...]:
        """The tables of notes and of complete ranges; with `counts`, also those below the view."""
        with suppress(TerminalError):
            schema, table = names_of(self.table)
            parts = [PARTS.format(table), WINDOWS.format(table)] if counts else []
            return tuple(self._location(schema, name) for name in (BATCHES, COMPLETE, *parts))
        return ()

    def _location(self, schema: str, table: str) -> Location:
        """The location of a table in the connection's database."""
        name = ".".join(f'"{part}"' if "." in part else part for part in (schema, table))
        return Location(kind=TABLE, name=name, servers=self._servers())

    def _servers(self) -> frozenset[str]:
        """The names of the database: the connection's, and its address if this process knows it."""
        servers = {f"connection {self.connection}"}
        with suppress(TerminalError):  # The sink reports an unusable connection.
            if text := settings.connection(self.connection):
                with translate_settings_errors(self.connection, "PostgreSQL"):
                    parts = parse_connection(text)
                host = re.sub(r"^localhost$", "127.0.0.1", (parts.host or "").lower())
                servers.add(f"{host}:{parts.port or _PORT}/{parts.schema or parts.login}")
        return frozenset(servers)

    def named_columns(self) -> Iterator[tuple[Key, str]]:
        """The columns of the key."""
        return ((("key", at), name) for at, name in enumerate(self.key))

    def aggregate_problems(self, names: Collection[str]) -> Iterator[tuple[Key, str]]:
        """Also yields the problems with the view that semel creates over the tables."""
        yield from super().aggregate_problems(names)
        if self.replaces_rows:
            yield (("mode",), "upsert does not work with aggregate: the view adds rows up")
        if not self.create:
            yield (("create",), "is false, but semel must create the view that adds rows up")

    @model_validator(mode="after")
    def _check_key(self) -> "PostgresSinkSpec":
        if self.mode == "upsert" and not self.key:
            why = "is missing, but mode: upsert replaces the row with the same key"
            raise Problems([Problem(("key",), why)])
        if self.mode == "append" and self.key:
            raise Problems([Problem(("key",), "does not apply to mode: append")])
        if name := twice(self.key):
            raise Problems([Problem(("key",), f"names {name!r} twice")])
        return self


DECLARED = PostgresSinkSpec
