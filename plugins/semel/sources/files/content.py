"""The content of a file: its bytes, or those that a gzip file unpacks to. Positions count these.

So reading goes on at the same position after log rotation compresses a log: claims of the plain
file apply to the compressed one. semel unpacks a compressed file once to find its end.
"""

import errno
import gzip
import os
import zlib
from abc import ABC, abstractmethod
from typing import BinaryIO

import numpy as np
import xxhash

from semel import limits
from semel.errors import SourceError

HEAD_BYTES = 4_096
"""Bytes at a file's start that are hashed to recognise it."""

_SCAN_BYTES = 1 << 16
_UNPACK_BYTES = 1 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang the planner


class UnfinishedError(SourceError):
    """A gzip stream is incomplete: a program still writes it, or it was cut off."""


class Content(ABC):
    """The bytes of a file. Each call may raise OSError, and FileNotFoundError if the file moved."""

    size: int
    head: bytes
    """The first HEAD_BYTES."""

    @abstractmethod
    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer at the end."""

    def hash(self, start: int, length: int) -> str:
        """The xxh3_128 of bytes [start, start + length), in hexadecimal digits."""
        if start + length <= len(self.head):
            return xxhash.xxh3_128_hexdigest(self.head[start : start + length])
        return xxhash.xxh3_128_hexdigest(self.read(start, length))

    def tail_hash(self, end: int) -> str:
        """Hash of the bytes before `end`, at most TAIL_BYTES."""
        start = max(0, end - limits.TAIL_BYTES)
        return self.hash(start, end - start)

    def record_end(self, floor: int, ceiling: int) -> int:
        """The last end of a line in (floor, ceiling]. Returns `floor` if no line ends there."""
        position = ceiling
        while position > floor:
            start = max(floor, position - _SCAN_BYTES)
            newline = self.read(start, position - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
        return floor

    def next_record_end(self, start: int, ceiling: int) -> int:
        """The first end of a line after `start`, at most `ceiling`."""
        for position in range(start, ceiling, _SCAN_BYTES):
            newline = self.read(position, min(_SCAN_BYTES, ceiling - position)).find(b"\n")
            if newline >= 0:
                return position + newline + 1
        return ceiling

    def count_leading_nuls(self) -> int:
        """The number of NULs at the start: a hole, if a writer kept its offset after truncation."""
        if self.head[:1] != b"\0":
            return 0
        position = 0
        while position < self.size:
            data = self.read(position, _UNPACK_BYTES)
            text = data.lstrip(b"\0")
            position += len(data) - len(text)
            if text or not data:
                break
        return position

    def last_record(self, end: int) -> tuple[int, str]:
        """(length, hash) of the line that ends at `end`. Returns (0, "") if there is no such line,
        or if it is longer than 64 KiB.
        """
        start = max(0, end - _SCAN_BYTES)
        line = self.read(start, end - start)
        line = line[line.rfind(b"\n", 0, max(0, len(line) - 1)) + 1 :]
        if not line or (len(line) == end - start and start):
            return 0, ""
        return len(line), xxhash.xxh3_128_hexdigest(line)

    def find_line(self, length: int, digest: str) -> int | None:
        """The end of the last line with this length and hash, or None without a match."""
        last_end, position = None, 0
        while position < self.size:
            data = self.read(position, _UNPACK_BYTES)
            data = data[: data.rfind(b"\n") + 1 or None]
            if not data:
                break
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
            lengths = np.diff(ends, prepend=0)
            for end in ends[lengths == length]:
                if xxhash.xxh3_128_hexdigest(data[end - length : end]) == digest:
                    last_end = position + int(end)
            position += len(data)
        return last_end

    def first_record(self, start: int, end: int) -> str:
        """Hash of the line at `start`, at most its first HEAD_BYTES. Returns "" if it is empty."""
        line = self.first_line(start, end)
        return xxhash.xxh3_128_hexdigest(line) if line else ""

    def first_line(self, start: int, end: int) -> bytes:
        """The line at `start` with its newline, at most its first HEAD_BYTES."""
        end = min(end, start + HEAD_BYTES)
        line = self.head[start:end]
        if b"\n" not in line and end > len(self.head):
            line = self.read(start, end - start)
        return line[: line.find(b"\n") + 1 or None]


class _Reopener:
    """Opens a file again, and proves by device and inode that it is the same one."""

    def __init__(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        self._path, self._identity = file.name, (status.st_dev, status.st_ino)

    def open(self) -> BinaryIO:
        file = open_file(self._path)
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) == self._identity:
            return file
        file.close()
        raise FileNotFoundError(errno.ENOENT, "it was moved while it was read", self._path)


class PlainContent(Content):
    """The bytes of a file as they are on disk. A small file is read once."""

    def __init__(self, file: BinaryIO) -> None:
        self._reopener = _Reopener(file)
        self.size = os.fstat(file.fileno()).st_size
        self.head = os.pread(file.fileno(), min(self.size, HEAD_BYTES), 0)
        self._block = 0, self.head  # Callers often repeat their last read.

    def read(self, start: int, length: int) -> bytes:
        length = max(0, min(length, self.size - start))
        for at, block in ((0, self.head), self._block):
            if at <= start and start + length <= at + len(block):
                return block[start - at : start - at + length]
        with self._reopener.open() as file:
            self._block = start, os.pread(file.fileno(), length, start)
        return self._block[1]


class GzipContent(Content):
    """The unpacked bytes of all members of a gzip file.

    Raises UnfinishedError if the stream is incomplete, SourceError if it is damaged.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._reopener = _Reopener(file)
        self._last_pieces: list[bytes] = []  # Most reads are near the end.
        self.size = self._line_end = 0
        self.head = b""
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                while data := stream.read(_UNPACK_BYTES):
                    self._add(data)
        except EOFError as error:
            raise UnfinishedError(f"{file.name!r}: its gzip stream is incomplete") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise SourceError(
                f"{file.name!r}: its gzip stream is damaged ({error}); replace the file"
            ) from error

    def _add(self, data: bytes) -> None:
        if len(self.head) < HEAD_BYTES:
            self.head = (self.head + data)[:HEAD_BYTES]
        newline = data.rfind(b"\n")
        if newline >= 0:
            self._line_end = self.size + newline + 1
        self.size += len(data)
        self._last_pieces = [*self._last_pieces[-1:], data]

    def record_end(self, floor: int, ceiling: int) -> int:
        if ceiling == self.size:
            return max(floor, self._line_end)
        return super().record_end(floor, ceiling)

    def read(self, start: int, length: int) -> bytes:
        tail = b"".join(self._last_pieces)
        at = start - (self.size - len(tail))
        if at >= 0:
            return tail[at : at + length]
        with self._reopener.open() as file, gzip.GzipFile(fileobj=file, mode="rb") as stream:
            stream.seek(start)
            return stream.read(length)


def content_of(file: BinaryIO) -> Content:
    """The content of an open file. Raises UnfinishedError or SourceError as GzipContent does."""
    return GzipContent(file) if is_gzip(file.name) else PlainContent(file)


def is_gzip(path: str) -> bool:
    """Whether semel unpacks a file, by its name."""
    return path.endswith(".gz")


def open_file(path: str) -> BinaryIO:
    """Open a file for reading without blocking, even if it is a pipe."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | _OPEN))
