"""A bounded part of some sample files: the beginning of each, and parts from further behind.

All that is inferred, and the trial, is of these bytes. Each part is cut at line ends and can be
read by itself, but that only the first one of a CSV has the header.
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
"""Bytes of sample files that `semel new` reads: they are in memory, and parsed some times."""

NEW_FILES_READ_MAX = 64
"""Sample files that it reads; of more it takes the names alone."""

_PARTS_BEHIND = 3
_LINE_END = b"\n"


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What was read of one file. `parts`: the first is its beginning; none where it is empty.

    `whole`: the one part is all of it. `open_end`: its last record has no line end.
    """

    path: Path
    parts: tuple[bytes, ...] = field(repr=False)
    whole: bool
    open_end: bool

    @property
    def bytes_read(self) -> int:
        """Bytes of content in the parts."""
        return sum(map(len, self.parts))


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What was read of the files that were named. `named` are all of them, `read` some."""

    named: tuple[Path, ...]
    read: tuple[Sampled, ...]

    @property
    def filled(self) -> list[Sampled]:
        """Those that were read and hold something."""
        return [one for one in self.read if one.parts]

    def __str__(self) -> str:
        """How much was read, in a sentence without its end."""
        size = sum(one.bytes_read for one in self.read)
        files = "1 file" if len(self.named) == 1 else f"{len(self.named):,} files"
        if len(self.read) == len(self.named) and all(one.whole for one in self.read):
            return f"all of {files}, {size:,} bytes"
        some = "" if len(self.read) == len(self.named) else f"{len(self.read)} of "
        return f"{size:,} bytes of {some}{files}: the beginning of each, and parts further on"


def told(path: Path) -> str:
    """A path on one line of any terminal."""
    text = printable_path(str(path))
    return text if text.isprintable() else ascii(text)[1:-1]


def read(paths: Sequence[Path], bytes_max: int = NEW_SAMPLE_BYTES) -> Samples:
    """Read at most `bytes_max` of the files. SourceError: one is no file that can be read, or
    all are empty.
    """
    named = tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))
    for path in named:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            why = "its name, or its folder's, is not UTF-8; rename it"
            raise SourceError(f"{told(path)}: {why}") from None
    count = min(len(named), NEW_FILES_READ_MAX)
    some = [named[at * (len(named) - 1) // max(1, count - 1)] for at in range(count)]
    found = tuple(_file(path, bytes_max // count) for path in some)
    samples = Samples(named=named, read=found)
    if not samples.filled:
        names = ", ".join(told(path) for path in some[:FILES_NAMED_MAX])
        raise SourceError(f"{names}: empty; name files that hold records")
    return samples


def _file(path: Path, bytes_max: int) -> Sampled:
    name = told(path)
    try:
        with open_file(str(path)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{name}: not a regular file; name files, not folders")
            if is_gzip(str(path)):
                return _packed(path, file, bytes_max)
            return _plain(path, file, status.st_size, bytes_max)
    except OSError as error:
        # gzip.BadGzipFile is one without a number.
        why = error.strerror or f"its gzip stream is damaged ({error}); replace the file"
        raise SourceError(f"{name}: {why}") from error
    except (EOFError, zlib.error) as error:
        why = f"its gzip stream is damaged or cut off ({error}); replace the file"
        raise SourceError(f"{name}: {why}") from error


def _plain(path: Path, file: BinaryIO, size: int, bytes_max: int) -> Sampled:
    if size <= bytes_max:
        return _sampled(path, file.read(size), whole=True)
    # Half of it from the beginning; the last part is the file's end.
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
    return Sampled(path=path, parts=tuple(parts), whole=False, open_end=not ended)


def _packed(path: Path, file: BinaryIO, bytes_max: int) -> Sampled:
    with gzip.GzipFile(fileobj=file, mode="rb") as stream:
        data = stream.read(bytes_max)
        whole = not stream.read(1)
    return _sampled(path, data if whole else _cut(data, path), whole=whole)


def _sampled(path: Path, data: bytes, *, whole: bool) -> Sampled:
    open_end = bool(data) and not data.endswith(_LINE_END)
    parts = (data,) if data else ()
    return Sampled(path=path, parts=parts, whole=whole, open_end=open_end)


def _cut(data: bytes, path: Path) -> bytes:
    """The data up to its last line end."""
    end = data.rfind(_LINE_END) + 1
    if not end:
        raise SourceError(
            f"{told(path)}: no line end in its first {len(data):,} bytes; semel reads files "
            "of lines that end in LF"
        )
    return data[:end]
