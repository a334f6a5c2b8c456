"""The location of a source or a sink, derived from the declaration and this process alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

FOLDER, PREFIX, TOPIC, TABLE = "folder", "prefix", "topic", "table"

_HERE = frozenset({""})


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place that a pipeline reads or writes.

    `kind`: FOLDER, PREFIX (of an object store), TOPIC or TABLE. `name`: canonical. `servers`: all
    names of the service on this machine; two locations with a common name are on one server.
    Empty: it may be any server.
    """

    kind: str
    name: str
    servers: frozenset[str] = _HERE

    @classmethod
    def of(cls, folder: Path | None) -> Self | None:
        """The location of a folder. Returns None if there is no folder."""
        return None if folder is None else cls(kind=FOLDER, name=str(folder))

    @property
    def folder(self) -> Path | None:
        """Returns None if the location is not a folder."""
        return Path(self.name) if self.kind == FOLDER else None

    def holds(self, other: "Location") -> bool:
        """True if the other location is this one, or lies in it."""
        comparable = self.servers and other.servers
        if self.kind != other.kind or comparable and self.servers.isdisjoint(other.servers):
            return False
        if self.kind in (FOLDER, PREFIX):
            return f"{other.name.rstrip('/')}/".startswith(f"{self.name.rstrip('/')}/")
        return self.name == other.name

    # Keeps P12.
    def overlaps(self, other: "Location") -> bool:
        """True if one of the two locations lies in the other, or if they are equal."""
        return self.holds(other) or other.holds(self)

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


def service(connection: str | None, servers: str | None) -> str:
    """A service's connection or address in Markdown, without credentials."""
    return f"connection `{connection}`" if connection else f"`{servers}`"
