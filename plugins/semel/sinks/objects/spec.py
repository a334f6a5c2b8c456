"""The declaration of objects of a store as a sink."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from semel.clients.connection import require_package
from semel.clients.objects import access
from semel.clients.objects.access import URL
from semel.declare.parts import Text
from semel.declare.place import Location, service
from semel.declare.yaml import Key
from semel.sinks.in_files import LONGEST_WINDOW, FileSinkSpec

if TYPE_CHECKING:
    from semel.sinks.objects.reading import Prefix

KEY_BYTES_MAX = 1_024
"""Longest key, by all three services."""


class ObjectsSinkSpec(FileSinkSpec):
    """Objects below a prefix of a store. semel puts each once, and never overwrites one."""

    type: Literal["objects"]
    """The kind of sink."""
    url: str = Field(pattern=URL)
    """The bucket or container and a prefix: s3://bucket/prefix, gs://bucket/prefix or
    az://container/prefix. One prefix, one pipeline."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection (aws, google_cloud_platform or wasb); on the command line the variable
    AIRFLOW_CONN_<CONNECTION>. null: the machine's role."""
    archive: Text | None = None
    """The folder of markers, staged files and all else that is kept, or the URL of a store; null:
    `<pipeline>/` below SEMEL_ARCHIVES, or else `_semel/<pipeline>/` below the first data root."""

    place: ClassVar[tuple[str, ...]] = ("connection", "url")
    way: ClassVar[tuple[str, ...]] = ("connection",)
    located_by: ClassVar[str] = "url"

    def folders_bytes_max(self, pipeline: str) -> int:
        """The bytes of a key (KEY_BYTES_MAX) that prefix and file name leave for folders."""
        numbers = {"batch": 1 << 62, "part": 1 << 31, "fence": 1 << 31, "shard": 1 << 31}
        stem = self.stem(pipeline, **numbers, window=LONGEST_WINDOW)
        return KEY_BYTES_MAX - len(f"{self.prefix.prefix}//{stem}.{self.format}".encode())

    # Keeps OB9.
    def path_problems(self, pipeline: str) -> Iterator[tuple[Key, str]]:
        """Refuses a prefix that leaves no bytes of a key for the name of a file."""
        if self.folders_bytes_max(pipeline) < 0:
            yield ("url",), f"is too long: with a file's name a key has over {KEY_BYTES_MAX} bytes"

    @property
    def prefix(self) -> access.StoreLocation:
        """The location of the URL, without a slash at its end."""
        return access.StoreLocation.of(self.url)

    @property
    def connections(self) -> tuple[str, ...]:
        """The declared connection, if any."""
        return (self.connection,) if self.connection else ()

    def describe(self) -> str:
        """The prefix, the access to it, format and folders."""
        how = service(self.connection, None) if self.connection else "by the machine's role"
        return f"objects below `{self.prefix}` ({how}), {self.layout()}"

    def dataset(self, address: str) -> tuple[str, str]:  # noqa: ARG002 - the URL says it
        """Bucket and prefix."""
        return self.prefix.dataset

    def whereabouts(self) -> Location:
        """The prefix, whatever the credentials are."""
        return access.location(self.prefix, self.connection)

    @classmethod
    def output_at(cls, url: str, connection: str | None) -> "Prefix | None":
        """The output below a URL of a store."""
        if not re.fullmatch(URL, url):
            return None
        with require_package(url, "objects"):
            from semel.sinks.objects.reading import Prefix

            return Prefix(url, connection)

    _url = field_validator("url", mode="before")(access.check_url)


DECLARED = ObjectsSinkSpec
