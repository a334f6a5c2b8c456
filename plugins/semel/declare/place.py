"""Where a declaration points to, as far as its text and this process tell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

FOLDER, PREFIX, TOPIC, TABLE = "folder", "prefix", "topic", "table"

_HERE = frozenset({""})


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place that rows are written to or read from.

    `kind`: FOLDER, PREFIX (of an object store), TOPIC or TABLE. `name`: canonical. `servers`: all
    names by which the service is known here; two locations with one in common are on one server.
    Empty: it may be any server.
    """

    kind: str
    name: str
    servers: frozenset[str] = _HERE

    @classmethod
    def of(cls, folder: Path | None) -> Self | None:
        """A folder, if there is one."""
        return None if folder is None else cls(kind=FOLDER, name=str(folder))

    @property
    def folder(self) -> Path | None:
        """The folder. None: it is none."""
        return Path(self.name) if self.kind == FOLDER else None

    def holds(self, other: "Location") -> bool:
        """Whether the other location is this one, or lies in it."""
        known = self.servers and other.servers
        if self.kind != other.kind or known and self.servers.isdisjoint(other.servers):
            return False
        if self.kind in (FOLDER, PREFIX):
            return f"{other.name.rstrip('/')}/".startswith(f"{self.name.rstrip('/')}/")
        return self.name == other.name

    # Keeps P12.
    def overlaps(self, other: "Location") -> bool:
        """Whether one of two locations holds the other."""
        return self.holds(other) or other.holds(self)

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


def reached(connection: str | None, servers: str | None) -> str:
    """How a service is reached, in Markdown: who sees this need not know more."""
    return f"connection `{connection}`" if connection else f"`{servers}`"
