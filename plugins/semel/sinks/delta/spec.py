"""The declaration of a Delta table as a sink."""

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from semel import settings
from semel.clients.objects import access
from semel.declare.parts import Text
from semel.declare.place import Location, service
from semel.sinks.spec import ServiceSinkSpec, checked_folder


def name_problem(table: str) -> str | None:
    """Why deltalake would write to another table than the one with this name, or None."""
    if re.search(r"%[0-9A-Fa-f]{2}", table) or ("\\" in table and "://" not in table):
        return "has a % before two hex digits, or a backslash, which clients of Delta decode"
    return None


class DeltaSinkSpec(ServiceSinkSpec):
    """A Delta table. One commit publishes a batch."""

    no_aggregate_reason: ClassVar[str] = (
        "nothing there can merge partial rows; write to files or a PostgreSQL table"
    )
    type: Literal["delta"]
    """The kind of sink."""
    table: Text
    """The table: a folder (absolute, or relative to the first data root), or a prefix of a store:
    s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. One table, one pipeline."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection to a store (aws, google_cloud_platform or wasb); on the command line
    the variable AIRFLOW_CONN_<CONNECTION>. null: the machine's role."""
    archive: Text | None = None
    """The folder of markers and more, or the URL of a store; null: `<pipeline>/` below
    SEMEL_ARCHIVES, or else `_semel/<pipeline>/` below the first data root."""
    position_columns: bool = Field(default=False, strict=True)
    """Add the record's source partition and position as columns _semel_source and _semel_offset."""

    place: ClassVar[tuple[str, ...]] = ("connection", "table")
    way: ClassVar[tuple[str, ...]] = ("connection",)
    located_by: ClassVar[str] = "table"
    vacuumed: ClassVar[bool] = True

    @property
    def store(self) -> access.StoreLocation | None:
        """The table's location in a store. Returns None if the table is a folder."""
        return access.StoreLocation.of(self.table) if "://" in self.table else None

    @property
    def address(self) -> str:
        """Canonical, without secrets. Raises TerminalError if a folder is outside the data roots."""
        return str(self.store or self.absolute_folder())

    def absolute_folder(self) -> Path:
        """The table's folder. Raises TerminalError if it is outside the data roots."""
        return settings.allowed(self.table, "sink.table")

    def describe(self) -> str:
        """The table, and the access to it."""
        if self.store is None:
            return f"Delta table `{self.table}`"
        how = service(self.connection, None) if self.connection else "by the machine's role"
        return f"Delta table `{self.store}` ({how})"

    def dataset(self, address: str) -> tuple[str, str]:  # noqa: ARG002 - the table says it
        """The folder, or bucket and prefix."""
        return self.store.dataset if self.store else ("file", str(self.absolute_folder()))

    def whereabouts(self) -> Location:
        """The folder, or the prefix, whatever the credentials are."""
        if self.store is None:
            return Location.of(self.absolute_folder())
        return access.location(self.store, self.connection)

    @field_validator("table", mode="before")
    @classmethod
    def _table(cls, table: object) -> object:
        if isinstance(table, str) and (why := name_problem(table)):
            raise ValueError(why)
        if isinstance(table, str) and "://" in table:
            return access.check_url(table)
        return checked_folder(table) if isinstance(table, str) else table


DECLARED = DeltaSinkSpec
