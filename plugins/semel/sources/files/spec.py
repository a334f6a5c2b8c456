"""The declaration of files as a source."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from pydantic import field_validator

from semel import settings
from semel.declare import ddl
from semel.declare.parts import (
    GLOB,
    Duration,
    OnRefused,
    Select,
    Text,
    Unknown,
    path_problem,
)
from semel.formats.table import SOURCES, source_format
from semel.sources.spec import Csv, Records


class FilesSource(Records):
    """Files that grow at their end, or appear."""

    unit: ClassVar[str] = "bytes"
    part: ClassVar[str] = "file"
    complete: ClassVar[str] = "complete record"
    awaited: ClassVar[str] = "the end of a last line, or of a file"
    limits: ClassVar[str] = "limits.bytes_per_batch_max"

    type: Literal["files"]
    """The kind of source."""
    path: Text
    """The files: relative to the first data root, or absolute. May hold *, ?, [...] and **."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line."""
    interval_from: str | None = None
    """Where a file's time is read: a strptime pattern of its whole name, or "mtime"."""
    closed_after: Duration | None = None
    """A last line without newline, and a multiline CSV file, is taken once the file is this old."""

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared, or what is right for the selection."""
        by_interval = self.select is Select.INTERVAL
        return self.on_refused or (OnRefused.FAIL if by_interval else OnRefused.WARN)

    def describe(self) -> str:
        """Its path and format."""
        return f"`{self.path}`, {self.format}"

    def selected_by(self) -> str:
        """What gives a file its time."""
        return f"`{self.interval_from}`"

    def folder(self) -> Path:
        """The folder before the first part of `path` with a wildcard."""
        return settings.allowed(_split_glob(self.path)[0], "source.path")

    def below(self) -> str:
        """What the files' paths match, relative to that folder (`*.jsonl`, `**/*.csv`)."""
        return _split_glob(self.path)[1]

    @field_validator("path")
    @classmethod
    def _path(cls, path: str) -> str:
        if why := path_problem(path):
            raise ValueError(f"{path!r} {why}")
        if path.endswith("/") or not PurePosixPath(path).name:
            raise ValueError(f"{path!r} is a folder; add a pattern such as *.jsonl")
        return path

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.select is Select.INTERVAL and self.interval_from is None:
            yield ("interval_from",), (
                "is missing: select: interval needs a pattern of the file names "
                '("flights-%Y-%m-%d.jsonl") or "mtime"'
            )
        if self.select is Select.ARRIVAL and self.interval_from is not None:
            yield ("interval_from",), "has no meaning with select: arrival; leave it out"
        if self.interval_from not in (None, "mtime") and not _reads_dates(self.interval_from):
            yield ("interval_from",), (
                f"{self.interval_from!r} is not a strptime pattern of a file name with a date: "
                'write one like "flights-%Y-%m-%d.jsonl", or "mtime"'
            )
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if form.header and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), (
                f"{self.unknown} has no meaning with format: {self.format}: a file whose header "
                "does not name exactly the schema's columns is refused; leave it out"
            )
        if self.format != "csv" and self.csv != Csv():
            yield ("csv",), f"has no meaning with format: {self.format}; leave it out"


DECLARED = FilesSource


def _reads_dates(pattern: str) -> bool:
    """Whether file names written with this pattern give their dates back."""
    if "/" in pattern or "%Y" not in pattern:
        return False
    sample = datetime(2013, 1, 1)
    try:
        return datetime.strptime(sample.strftime(pattern), pattern).replace(tzinfo=None) == sample
    except (ValueError, re.error):  # strptime makes a regex of it, and says so of "%Y%Y".
        return False


def _split_glob(path: str) -> tuple[str, str]:
    """The folder before the first part with a wildcard, and the pattern from there on."""
    parts = PurePosixPath(path).parts
    first = next((n for n, part in enumerate(parts) if GLOB.search(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:first])), "/".join(parts[first:])
