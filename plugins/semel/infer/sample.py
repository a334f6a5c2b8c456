"""Read a bounded part of the sample files: the beginning of each, and some later parts.

All guesses, and the trial, use only these bytes. Each part begins and ends at a line end. Only the
first part of a CSV has the header.
"""

import gzip
import os
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import SourceError
from semel.sources.files.content import is_gzip, open_file
from semel.sources.files.listing import printable_path

NEW_SAMPLE_BYTES = 64 << 20
"""Bytes of sample files that `semel new` reads. It holds them in memory and parses them often."""

NEW_FILES_READ_MAX = 64
"""Sample files that it reads. It uses only the names of further ones."""

_PARTS_BEHIND = 3
_LINE_END = b"\n"


@dataclass(frozen=True, kw_only=True)
class SampledFile:
    """The bytes of one file that were read. `parts`: first its beginning; empty for an empty file.

    `complete`: the only part is the whole file. `open_end`: its last record lacks a line end.
    """

    path: Path
    parts: tuple[bytes, ...] = field(repr=False)
    complete: bool
    open_end: bool

    @property
    def bytes_read(self) -> int:
        """The size of all parts."""
        return sum(map(len, self.parts))


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples: the `paths` that the user named, and the `files` among them that semel read."""

    paths: tuple[Path, ...]
    files: tuple[SampledFile, ...]

    @property
    def nonempty_files(self) -> list[SampledFile]:
        """The files that were read and are not empty."""
        return [file for file in self.files if file.parts]

    def __str__(self) -> str:
        """The amount that was read: `all of 2 files, 1,000 bytes`."""
        size = sum(file.bytes_read for file in self.files)
        files = "1 file" if len(self.paths) == 1 else f"{len(self.paths):,} files"
        if len(self.files) == len(self.paths) and all(file.complete for file in self.files):
            return f"all of {files}, {size:,} bytes"
        share = "" if len(self.files) == len(self.paths) else f"{len(self.files)} of "
        return f"{size:,} bytes of {share}{files}: the beginning of each, and parts further on"


def display_path(path: Path) -> str:
    """A path in printable characters, on one line."""
    text = printable_path(str(path))
    return text if text.isprintable() else ascii(text)[1:-1]


def read_samples(paths: Sequence[Path], bytes_max: int = NEW_SAMPLE_BYTES) -> Samples:
    """Read at most `bytes_max` of the files. Raises SourceError if a file is not readable, or all
    are empty.
    """
    distinct = tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))
    for path in distinct:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            why = "its path is not UTF-8. Rename it"
            raise SourceError(f"{display_path(path)}: {why}") from None
    count = min(len(distinct), NEW_FILES_READ_MAX)
    chosen = [distinct[at * (len(distinct) - 1) // max(1, count - 1)] for at in range(count)]
    files = tuple(_file(path, bytes_max // count) for path in chosen)
    samples = Samples(paths=distinct, files=files)
    if not samples.nonempty_files:
        names = ", ".join(display_path(path) for path in chosen[:FILES_NAMED_MAX])
        raise SourceError(f"{names}: empty. Name files with records")
    return samples


def _file(path: Path, bytes_max: int) -> SampledFile:
    name = display_path(path)
    try:
        with open_file(str(path)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{name}: not a regular file. Name files, not folders")
            if is_gzip(str(path)):
                return _packed(path, file, bytes_max)
            return _plain(path, file, status.st_size, bytes_max)
    except OSError as error:
        # The strerror of gzip.BadGzipFile is None.
        why = error.strerror or f"its gzip stream is damaged ({error}). Replace the file"
        raise SourceError(f"{name}: {why}") from error
    except (EOFError, zlib.error) as error:
        why = f"its gzip stream is damaged or cut off ({error}). Replace the file"
        raise SourceError(f"{name}: {why}") from error


def _plain(path: Path, file: BinaryIO, size: int, bytes_max: int) -> SampledFile:
    if size <= bytes_max:
        return _sampled(path, file.read(size), complete=True)
    # One half is the file's beginning, the other half is later parts and the file's end.
    first = _cut(file.read(bytes_max // 2), path)
    length = bytes_max // 2 // _PARTS_BEHIND
    parts = [first]
    for at in range(1, _PARTS_BEHIND + 1):
        start = max(len(first), size * at // _PARTS_BEHIND - length)
        file.seek(start)
        data = file.read(length)
        data = data[data.find(_LINE_END) + 1 :]
        parts.append(data[: data.rfind(_LINE_END) + 1])
    file.seek(size - 1)
    ended = file.read(1) == _LINE_END
    parts = filter(None, parts)
    return SampledFile(path=path, parts=tuple(parts), complete=False, open_end=not ended)


def _packed(path: Path, file: BinaryIO, bytes_max: int) -> SampledFile:
    with gzip.GzipFile(fileobj=file, mode="rb") as stream:
        data = stream.read(bytes_max)
        complete = not stream.read(1)
    return _sampled(path, data if complete else _cut(data, path), complete=complete)


def _sampled(path: Path, data: bytes, *, complete: bool) -> SampledFile:
    open_end = bool(data) and not data.endswith(_LINE_END)
    parts = (data,) if data else ()
    return SampledFile(path=path, parts=parts, complete=complete, open_end=open_end)


def _cut(data: bytes, path: Path) -> bytes:
    """The data up to its last line end."""
    end = data.rfind(_LINE_END) + 1
    if not end:
        raise SourceError(
            f"{display_path(path)}: no line end in its first {len(data):,} bytes. Lines must "
            "end in LF"
        )
    return data[:end]
