"""The declaration of a folder of files as a sink."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import field_validator

from semel import settings
from semel.declare.parts import Text
from semel.declare.place import Location
from semel.sinks.in_files import FileSinkSpec
from semel.sinks.spec import checked_folder


class FilesSinkSpec(FileSinkSpec):
    """A folder of files that are only ever added, whole batches at a time."""

    in_folder: ClassVar[bool] = True
    located_by: ClassVar[str] = "path"

    type: Literal["files"]
    """The kind of sink."""
    path: Text
    """The folder: relative to the first data root, or absolute. One pipeline, one folder."""
    archive: Text | None = None
    """The folder of markers and all else that is kept; null: `_semel/` next to the sink's
    folder."""

    def describe(self) -> str:
        """Its path, format and folders."""
        return f"`{self.path}`, {self.layout()}"

    def dataset(self, address: str) -> tuple[str, str]:  # noqa: ARG002 - the folder says it
        """The folder."""
        return "file", str(self.folder())

    def whereabouts(self) -> Location:
        """The folder."""
        return Location.of(self.folder())

    def folder(self) -> Path:
        """Its path."""
        return settings.allowed(self.path, "sink.path")

    @field_validator("path")
    @classmethod
    def _path(cls, path: str) -> str | None:
        return checked_folder(path)


DECLARED = FilesSinkSpec
