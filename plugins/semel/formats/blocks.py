"""Cut the bytes of one split into blocks of whole records, in one reused buffer.

The code reads the file and never maps it: if the file shrinks, a mapping kills the process with
SIGBUS, and a read raises SourceError.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import xxhash

from semel import limits
from semel.errors import SourceError

LINE_STEP_BYTES = 64 << 10
"""Bytes per read in the search for a line end at a split's two borders."""

RecordEnds = Callable[[bytearray, int], np.ndarray]
"""(buffer, filled) -> the position after each record that ends within buffer[:filled]."""


@dataclass(frozen=True, kw_only=True)
class RecordPiece:
    """Whole records, line ends included: data[:ends[-1]]. The next piece overwrites `data`."""

    offset: int
    data: bytearray
    ends: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Oversized:
    """A skipped record, longer than RECORD_BYTES_MAX. `head`: its first bytes.

    `length` includes its line end.
    """

    offset: int
    length: int
    head: bytes


def line_ends(buffer: bytearray, filled: int) -> np.ndarray:
    """RecordEnds of a format whose records are lines."""
    return np.flatnonzero(np.frombuffer(buffer, np.uint8, filled) == 10) + 1


def record_pieces(
    file: BinaryIO,
    *,
    start: int,
    end: int | None,
    range_start: int,
    range_end: int | None,
    record_ends: RecordEnds,
    digest: xxhash.xxh3_128,
) -> Iterator[RecordPiece | Oversized]:
    """Yield the records that start in [start, end), in order, and update `digest` with their bytes.

    `range_end` None reads to the end of the file, as one split. Raises SourceError if the file ends
    before `range_end`, or its gzip stream is damaged.
    """
    window = _Window(file, range_end)
    stop = None if range_end is None else end
    if stop is not None and start >= stop:
        return
    if not window.begin(start, range_start, stop):
        return
    while True:
        window.fill(stop)
        ends = record_ends(window.buffer, window.filled)
        if window.at_last_byte and window.filled:
            ends = _with_open_end(ends, window.filled)
        if stop is not None and len(ends):
            # A record starts at the end of its predecessor.
            ends = ends[: np.searchsorted(ends, end - window.offset) + 1]
        is_oversized = not len(ends) and window.filled > limits.RECORD_BYTES_MAX + len(b"\r\n")
        if len(ends):
            digest.update(memoryview(window.buffer)[: ends[-1]])
            yield RecordPiece(offset=window.offset, data=window.buffer, ends=ends)
            window.drop(int(ends[-1]))
        elif is_oversized:
            yield window.skip_record(digest)
        if window.at_last_byte and not window.filled:
            return
        if stop is not None and window.offset >= end:
            return
        if stop is not None and window.position >= stop and not is_oversized:
            # One line remains, which starts before `end` and continues after it. The steps double,
            # so that a long line is not searched too often.
            stop = min(range_end, window.position + max(LINE_STEP_BYTES, window.filled))


def _with_open_end(ends: np.ndarray, filled: int) -> np.ndarray:
    """The last record of a range may lack its line end."""
    return ends if len(ends) and ends[-1] == filled else np.append(ends, filled)


class _Window:
    """The bytes of a file in memory: buffer[:filled], from `offset` on."""

    def __init__(self, file: BinaryIO, range_end: int | None) -> None:
        self.file = file
        self.range_end = range_end
        self.offset = 0
        self.filled = 0
        self.ended = False
        self.buffer = bytearray()

    @property
    def position(self) -> int:
        """Offset of the next byte to read."""
        return self.offset + self.filled

    @property
    def at_last_byte(self) -> bool:
        """Whether the planned range is read completely."""
        return self.ended or self.position == self.range_end

    def begin(self, start: int, range_start: int, stop: int | None) -> bool:
        """Go to the first record at or after `start`. Returns False if it is not before `stop`."""
        if start == range_start:
            self.offset = start
            if start:
                self.file.seek(start)
            return True
        # Also read the byte before `start`: if it ends a line, a record starts at `start`.
        self.offset = start - 1
        self.file.seek(self.offset)
        while self.offset < stop:
            self._read(min(LINE_STEP_BYTES, stop - self.offset))
            line_end = self.buffer.find(b"\n", 0, self.filled)
            self.drop(line_end + 1 if line_end >= 0 else self.filled)
            if line_end >= 0:
                return self.offset < stop
        return False

    def fill(self, stop: int | None) -> None:
        """Read up to `stop`, at most a block, or twice `filled` if half a block is filled."""
        size = limits.BLOCK_BYTES if 2 * self.filled < limits.BLOCK_BYTES else 2 * self.filled
        size = min(size, max(limits.BLOCK_BYTES, limits.RECORD_BYTES_MAX + 4))
        self._read(size if stop is None else min(size, stop - self.offset))

    def drop(self, count: int) -> None:
        """Discard the first `count` bytes."""
        remaining = self.filled - count
        self.buffer[:remaining] = self.buffer[count : self.filled]
        self.offset += count
        self.filled = remaining

    def skip_record(self, digest: xxhash.xxh3_128) -> Oversized:
        """Skip the record that fills the window, up to the next line end."""
        offset, head = self.offset, bytes(self.buffer[: limits.REJECTED_HEAD_BYTES])
        digest.update(memoryview(self.buffer)[: self.filled])
        self.drop(self.filled)
        while not self.at_last_byte:
            size = limits.BLOCK_BYTES
            if self.range_end is not None:
                size = min(size, self.range_end - self.offset)
            self._read(size)
            line_end = self.buffer.find(b"\n", 0, self.filled)
            count = line_end + 1 if line_end >= 0 else self.filled
            digest.update(memoryview(self.buffer)[:count])
            self.drop(count)
            if line_end >= 0:
                break
        return Oversized(offset=offset, length=self.offset - offset, head=head)

    def _read(self, size: int) -> None:
        """Read until the buffer has `size` bytes, and grow it if necessary."""
        if size > len(self.buffer):
            grown = bytearray(size)
            grown[: self.filled] = memoryview(self.buffer)[: self.filled]
            self.buffer = grown
        view = memoryview(self.buffer)
        while self.filled < size and not self.ended:
            try:
                count = self.file.readinto(view[self.filled : size])
            except (EOFError, zlib.error) as error:
                raise self._damaged(error) from error
            except OSError as error:
                # gzip.BadGzipFile is an OSError without an errno; the system's errors have one.
                if error.errno is not None:
                    raise
                raise self._damaged(error) from error
            self.filled += count
            self.ended = not count
        if self.ended and self.range_end is not None:
            raise SourceError(
                f"{_name(self.file)} ends at byte {self.position}, and the plan has bytes up to "
                f"{self.range_end}: it was shortened since. Restore it, or accept the new file"
            )

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            f"{_name(self.file)}: the compressed stream is damaged or cut off after byte "
            f"{self.position} of its content ({error}). Replace the file"
        )


def _name(file: BinaryIO) -> str:
    return repr(getattr(file, "name", "the file"))
