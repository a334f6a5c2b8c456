"""The state of a file of an archive, as `stat` reports it without reading the file."""

from collections.abc import Hashable
from dataclasses import dataclass


CHECKSUM = "semelxxh3"
"""The metadata with the checksum of an object. Azure allows no hyphens in these names."""


@dataclass(frozen=True, kw_only=True)
class FileStat:
    """A file's size in bytes. `version` changes with each write, and is equal for all names of a
    file. `checksum`: None unless the store keeps it with the bytes.
    """

    size: int
    version: Hashable
    checksum: str | None = None
