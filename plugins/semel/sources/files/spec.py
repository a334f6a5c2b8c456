"""The declaration of files as a source."""

import os
from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from pydantic import field_validator

from semel import settings
from semel.declare.parts import GLOB, Duration, Model, Text, path_problem, zone_problem
from semel.declare.place import Location
from semel.formats.table import SOURCES, source_format
from semel.sources.formatted import FormattedSourceSpec, parses_time

_NAMES_LOOKED_AT, _NAMES_SHOWN = 1_000, 3
_PATHS_KEPT = 1_024  # semel compares each pipeline of a folder with every other one.


class Move(Model):
    """The destination of finalized files."""

    move: Text
    """A folder below the source's, where the pattern does not find files."""


class FilesSourceSpec(FormattedSourceSpec):
    """Files that grow at their end, or appear."""

    page: ClassVar[str] = "files"
    part: ClassVar[str] = "file"
    complete: ClassVar[str] = "complete record"
    awaited: ClassVar[str] = "the end of a last line, or of a file"
    limits: ClassVar[str] = "limits.bytes_per_batch_max"
    plan_keys: ClassVar[tuple[str, ...]] = (*FormattedSourceSpec.plan_keys, "after_finalize")
    pattern_of_time: ClassVar[str] = 'a pattern of the file names ("flights-%Y-%m-%d.jsonl")'

    type: Literal["files"]
    """The kind of source."""
    path: Text
    """The files: relative to the first data root, or absolute. May hold *, ?, [...] and **."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line. parquet: files that are
    whole when they appear."""
    interval_from: str | None = None
    """Where a file's time is read: a strptime pattern of its whole name, or "mtime"."""
    interval_zone: str = "UTC"
    """The time zone of the times in names, such as Europe/Berlin."""
    closed_after: Duration | None = None
    """A last line without newline, and a multiline CSV file, is taken once the file is this old."""
    after_finalize: Literal["keep"] | Move = "keep"
    """The fate of a file that cannot grow (Parquet, gzip), once all of it is finalized.
    keep: nothing. move: it goes into a folder below the source's, where replays and the audit find
    it."""

    @property
    def resumes(self) -> bool:
        """True for formats whose files can grow: a Parquet file cannot."""
        return not source_format(self.format).sealed

    @property
    def retention(self) -> timedelta | None:
        """Collect moves a finalized file at once, if at all."""
        return None if self.after_finalize == "keep" else timedelta(0)

    def describe(self) -> str:
        """Its path and format."""
        return f"`{self.path}`, {self.format}"

    def folder(self) -> Path:
        """The folder above the first part of `path` with a wildcard."""
        return settings.allowed(_split_glob(self.path)[0], "source.path")

    def below(self) -> str:
        """The pattern of the files' paths, relative to that folder (`*.jsonl`, `**/*.csv`)."""
        return _split_glob(self.path)[1]

    def folder_problem(self) -> str | None:
        """The error of a path that names a folder instead of files. None for other paths."""
        if not GLOB.search(self.path) and os.path.isdir(self.folder() / self.below()):
            return f"{self.path!r} is a folder; add a pattern such as /*.jsonl"
        return None

    def no_match_advice(self) -> str:
        """A sentence: no file matches the path, and its folder has these similar names."""
        folder = self.folder()
        if not folder.is_dir():
            return f"there is no folder {str(folder)!r}"
        files = (path for path in folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in islice(files, _NAMES_LOOKED_AT)]
        names = [name for name in names if not any(p[0] in "._" for p in name.split("/"))]
        close = get_close_matches(self.below(), names, n=_NAMES_SHOWN, cutoff=0)
        similar = f"; {str(folder)!r} has {', '.join(map(repr, close))}" if close else ""
        more = f", and {len(names) - len(close):,} more" if len(names) > len(close) else ""
        return f"no file matches {self.path!r}{similar}{more}"

    def reads_from(self, place: Location) -> bool:
        """Whether a sink's folder and the source's are the same, or one contains the other."""
        return place.folder is not None and place.overlaps(self.place())

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
        rule = self.interval_from
        if rule not in (None, "mtime") and ("/" in rule or not parses_time(rule)):
            yield ("interval_from",), (
                f"{rule!r} is not a strptime pattern of a file name with a date, down to some unit "
                'without a gap: write one like "flights-%Y-%m-%d.jsonl", or "mtime"'
            )
        if why := zone_problem(self.interval_zone):
            yield ("interval_zone",), why
        if self.interval_zone != "UTC" and self.interval_from in (None, "mtime"):
            yield ("interval_zone",), "applies only if interval_from is a pattern; remove it"
        if self.after_finalize != "keep" and (why := self._why_not_moved(self.after_finalize.move)):
            yield ("after_finalize", "move"), why

    def _why_not_moved(self, folder: str) -> str | None:
        """Why semel cannot move finalized files into a folder. None if it can."""
        below = PurePosixPath(self.below())
        if not (source_format(self.format).sealed or below.name.endswith(".gz")):
            return (
                "is for files that cannot grow: format: parquet, or a path that ends in .gz; the "
                "guide says how to move others by hand (docs/guide/archiving.md)"
            )
        if why := path_problem(folder):
            return f"{folder!r} {why}"
        place = PurePosixPath(folder)
        if place.is_absolute() or GLOB.search(folder) or not place.parts:
            return f"{folder!r} is not a folder below the source's: write its name, such as done"
        if "**" in below.parts:  # Other patterns do not reach as deep as the moved files.
            return f"the pattern {self.path!r} finds {folder!r} too, and would read it again"
        return None


DECLARED = (FilesSourceSpec,)


@lru_cache(maxsize=_PATHS_KEPT)
def _split_glob(path: str) -> tuple[str, str]:
    """(folder above the first part with a wildcard, pattern below it)."""
    parts = PurePosixPath(path).parts
    first = next((n for n, part in enumerate(parts) if GLOB.search(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:first])), "/".join(parts[first:])
