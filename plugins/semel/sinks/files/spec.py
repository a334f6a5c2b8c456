"""The declaration of a folder of files as a sink."""

import re
from pathlib import Path
from string import Formatter
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from semel import limits, settings
from semel.declare.parts import Text, twice
from semel.declare.place import Place
from semel.formats.table import SINKS
from semel.sinks.spec import Declared, folder_of


class FilesSink(Declared):
    """A folder of files that are only ever added, whole batches at a time."""

    in_folder: ClassVar[bool] = True

    type: Literal["files"]
    """The kind of sink."""
    path: Text
    """The folder: relative to the first data root, or absolute. One pipeline, one folder."""
    archive: Text | None = None
    """The folder of markers and all else that is kept; null: `_semel/` beside the sink's folder."""
    format: Literal[tuple(SINKS)]  # type: ignore[valid-type]
    """The format of the files."""
    partition_by: tuple[Text, ...] = ()
    """Columns that become folders (column=value), outermost first."""
    file_name: str = "{pipeline}-b{batch:08d}-{part:05d}"
    """A file's name without extension, from {pipeline}, {batch}, {part} and {fence}."""
    position_columns: bool = Field(default=False, strict=True)
    """Add each record's source file and byte position to the output, as _semel columns."""

    def describe(self) -> str:
        """Its path, format and folders."""
        names = ", ".join(f"`{name}`" for name in self.partition_by)
        return f"`{self.path}`, {self.format}" + (f", in folders by {names}" if names else "")

    def dataset(self, address: str) -> tuple[str, str]:  # noqa: ARG002 - the folder says it
        """The folder."""
        return "file", str(self.folder())

    def whereabouts(self) -> Place:
        """The folder."""
        return "folder", str(self.folder())

    def meets(self, other: Declared) -> str | None:
        """Whether one folder holds the other."""
        own, there = self.folder(), other.folder()
        if own.is_relative_to(there) or there.is_relative_to(own):
            return f"sink.path: {own} overlaps with {there}"
        return None

    def folder(self) -> Path:
        """Its path."""
        return settings.allowed(self.path, "sink.path")

    @field_validator("file_name")
    @classmethod
    def _file_name(cls, template: str) -> str:
        if why := _template_problem(template):
            raise ValueError(f"{template!r} {why}")
        return template

    @field_validator("path", "archive")
    @classmethod
    def _path(cls, path: str | None) -> str | None:
        return folder_of(path)

    @field_validator("partition_by")
    @classmethod
    def _partition_by(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if name := twice(names):
            raise ValueError(f"names {name!r} twice")
        if name := next((name for name in names if name[0] in "._"), None):
            raise ValueError(f"{name!r} begins with '.' or '_': readers take that for hidden files")
        return names


DECLARED = FilesSink


# Keeps L1.
def _template_problem(template: str) -> str | None:
    """What is wrong with sink.file_name. Two (batch, part) must never give one name."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"is not a template: {error}"
    literals = "".join(literal for literal, *_ in parts)
    if not re.fullmatch(r"[A-Za-z0-9._-]*", literals, re.ASCII):
        return "may hold letters, digits, '.', '_', '-' and fields, and no slashes"
    if template[:1] in (".", "_", "-"):
        return "begins with '.', '_' or '-': readers such as Spark take that for a hidden file"
    apart, seen = True, []
    for literal, field, spec, conversion in parts:
        apart = apart or bool(re.search(r"[^0-9]", literal))
        if field is None:
            continue
        if field not in ("pipeline", "batch", "part", "fence"):
            return f"has the unknown field {{{field}}}; known: pipeline, batch, part, fence"
        if conversion or not re.fullmatch(r"(0[0-9]{1,2}d)?" if field != "pipeline" else "", spec):
            return f"formats {{{field}}} in another way than {{batch:08d}}"
        if field != "pipeline" and not apart:
            return f"has a number right before {{{field}}}: 1 and 12 would read like 11 and 2"
        apart = field == "pipeline"
        seen.append(field)
    if missing := {"batch", "part"} - set(seen):
        return f"lacks {{{sorted(missing)[0]}}}: two files would have one name"
    longest = template.format(pipeline="p" * 63, batch=1 << 62, part=1 << 31, fence=1 << 31)
    if len(longest) > limits.FILE_NAME_BYTES_MAX:
        return f"can grow longer than {limits.FILE_NAME_BYTES_MAX} bytes"
    return None
