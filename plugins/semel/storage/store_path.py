"""The place of an object in a store, with the names that `pathlib.Path` has."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.clients.objects import Store
    from semel.declare.place import Location

_SERVICES = ("s3://", "gs://", "az://")


@dataclass(frozen=True, order=True)
class StorePath:
    """The place of an object, or of all objects below it, in a bucket.

    `bucket`: s3://bucket, gs://bucket or az://container. `connection`: the name of an Airflow
    connection, or None for the machine's own credentials; so a key has no secret. It is no
    `os.PathLike`: a function that can open only local files raises TypeError. Methods that send a
    request raise the errors of `Store`, and FileNotFoundError if the object does not exist.
    """

    bucket: str
    connection: str | None
    path: PurePosixPath

    @staticmethod
    def is_url(text: str) -> bool:
        """Whether a text is the URL of a store, and not a path."""
        return text.startswith(_SERVICES)

    @classmethod
    def of(cls, url: str, connection: str | None) -> "StorePath":
        """The place at the URL of a store: s3://bucket/prefix."""
        service, _, rest = url.partition("://")
        bucket, _, path = rest.partition("/")
        return cls(f"{service}://{bucket}", connection, PurePosixPath(path))

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str | PurePosixPath) -> "StorePath":
        return replace(self, path=self.path / name)

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """The extension of the name."""
        return self.path.suffix

    @property
    def parent(self) -> "StorePath":
        """The place without its last part."""
        return replace(self, path=self.path.parent)

    @property
    def parents(self) -> "list[StorePath]":
        """All places that contain this one, the nearest first."""
        return [replace(self, path=path) for path in self.path.parents]

    def is_relative_to(self, other: object) -> bool:
        """Whether this place is the other one, or lies in it."""
        same = isinstance(other, StorePath) and (self.bucket, self.connection) == (
            other.bucket,
            other.connection,
        )
        return same and self.path.is_relative_to(other.path)

    def relative_to(self, other: "StorePath") -> PurePosixPath:
        """The path from the other place to this one. Raises ValueError if it does not contain it.
        """
        return self.path.relative_to(other.path)

    @property
    def key(self) -> str:
        """The object's key in the bucket; empty for the whole bucket."""
        return "" if self.path == PurePosixPath() else str(self.path)

    @property
    def location(self) -> "Location":
        """The place as declarations compare places."""
        from semel.clients.objects import access

        return access.location(access.StoreLocation.of(str(self)), self.connection)

    @property
    def store(self) -> "Store":
        """The client of the bucket."""
        from semel.clients.objects import Store  # Most commands read no store.

        return Store(self.bucket, self.connection)

    def read_bytes(self) -> bytes:
        """The bytes of one version of the object."""
        return self.store.get(self.key)[0]

    def write_bytes(self, data: bytes) -> None:
        """Put an object, which nobody else puts, whether it exists or not."""
        self.store.overwrite(self.key, data)

    def exists(self) -> bool:
        """Whether the object exists."""
        return self.store.exists(self.key)

    def is_dir(self) -> bool:
        """Whether there are objects below this place."""
        return any(page for page in self.store.list(self.key))

    def mkdir(self, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        """Nothing: a store has no folders."""

    def glob(self, pattern: str) -> "Iterator[StorePath]":
        """The places directly below this one with a matching name."""
        return (self / name for name in self.names() if fnmatchcase(name, pattern))

    def names(self, after: str = "") -> list[str]:
        """The names greater than `after` directly below this place."""
        keys = self.keys(after)
        return list(dict.fromkeys(key.partition("/")[0] for key in keys))

    def keys(self, after: str = "") -> "Iterator[str]":
        """The keys below this place, relative to it, in their order, from the name `after` on."""
        below = f"{self.key}/".lstrip("/")
        pages = self.store.list(self.key, f"{below}{after}" if after else None)
        return (item.key.removeprefix(below) for page in pages for item in page)

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        """Delete the object. Without `missing_ok`, raises FileNotFoundError if it does not exist.
        """
        if not missing_ok:
            self.store.head(self.key)
        self.store.remove(self.key)
