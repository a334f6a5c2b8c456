"""Cut the bytes of one split into blocks of whole records, with one buffer that is used again.

The bytes are read, never memory-mapped: a file that shrinks under a mapping kills the process with
SIGBUS, a file that shrinks under a read is a SourceError.
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
"""Bytes read at once where only a line's end is looked for: at a split's two borders."""

RecordEnds = Callable[[bytearray, int], np.ndarray]
"""(buffer, filled) -> the position behind each record that ends within buffer[:filled]."""


@dataclass(frozen=True, kw_only=True)
class RecordPiece:
    """Whole records, line ends included: data[:ends[-1]]. `data` is overwritten by the next one."""

    offset: int
    data: bytearray
    ends: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Oversized:
    """A record that was passed over because it is longer than RECORD_BYTES_MAX. `head` begins it.

    `length` counts its line end.
    """

    offset: int
    length: int
    head: bytes


def line_ends(buffer: bytearray, filled: int) -> np.ndarray:
    """RecordEnds of a format whose records are lines."""
    return np.flatnonzero(np.frombuffer(buffer, np.uint8, filled) == 10) + 1


def owned_pieces(
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

    `range_end` None reads to the end of the file, as one split. A file that ends before
    `range_end`, or a damaged gzip stream, raises SourceError.
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
            # A record starts where the one before it ends.
            ends = ends[: np.searchsorted(ends, end - window.offset) + 1]
        passed = not len(ends) and window.filled > limits.RECORD_BYTES_MAX + len(b"\r\n")
        if len(ends):
            digest.update(memoryview(window.buffer)[: ends[-1]])
            yield RecordPiece(offset=window.offset, data=window.buffer, ends=ends)
            window.drop(int(ends[-1]))
        elif passed:
            yield window.skip_record(digest)
        if window.at_last_byte and not window.filled:
            return
        if stop is not None and window.offset >= end:
            return
        if stop is not None and window.position >= stop and not passed:
            # What is left is one line that starts before `end` and goes on behind it. It is read
            # in steps that double, so that a long one is not searched too often.
            stop = min(range_end, window.position + max(LINE_STEP_BYTES, window.filled))


def _with_open_end(ends: np.ndarray, filled: int) -> np.ndarray:
    """The last record of a range may lack its line end."""
    return ends if len(ends) and ends[-1] == filled else np.append(ends, filled)


class _Window:
    """The bytes of a file from `offset` on that are in memory: buffer[:filled]."""

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
        """Nothing is left to read in the planned range."""
        return self.ended or self.position == self.range_end

    def begin(self, start: int, range_start: int, stop: int | None) -> bool:
        """Go to the first record that starts at `start` or later; False if none before `stop`."""
        if start == range_start:
            self.offset = start
            if start:
                self.file.seek(start)
            return True
        # The byte before `start` is read too: when it ends a line, a record starts at `start`.
        self.offset = start - 1
        self.file.seek(self.offset)
        while self.offset < stop:
            self._read(min(LINE_STEP_BYTES, stop - self.offset))
            found = self.buffer.find(b"\n", 0, self.filled)
            self.drop(found + 1 if found >= 0 else self.filled)
            if found >= 0:
                return self.offset < stop
        return False

    def fill(self, stop: int | None) -> None:
        """Read up to `stop`, or a block, or twice what is there when that is half a block."""
        size = limits.BLOCK_BYTES if 2 * self.filled < limits.BLOCK_BYTES else 2 * self.filled
        size = min(size, max(limits.BLOCK_BYTES, limits.RECORD_BYTES_MAX + 4))
        self._read(size if stop is None else min(size, stop - self.offset))

    def drop(self, count: int) -> None:
        """Forget the first `count` bytes."""
        rest = self.filled - count
        self.buffer[:rest] = self.buffer[count : self.filled]
        self.offset += count
        self.filled = rest

    def skip_record(self, digest: xxhash.xxh3_128) -> Oversized:
        """Pass over the record that fills the window: up to the next line end."""
        offset, head = self.offset, bytes(self.buffer[: limits.REJECTED_HEAD_BYTES])
        digest.update(memoryview(self.buffer)[: self.filled])
        self.drop(self.filled)
        while not self.at_last_byte:
            size = limits.BLOCK_BYTES
            if self.range_end is not None:
                size = min(size, self.range_end - self.offset)
            self._read(size)
            found = self.buffer.find(b"\n", 0, self.filled)
            count = found + 1 if found >= 0 else self.filled
            digest.update(memoryview(self.buffer)[:count])
            self.drop(count)
            if found >= 0:
                break
        return Oversized(offset=offset, length=self.offset - offset, head=head)

    def _read(self, size: int) -> None:
        """Read until `size` bytes are filled. The buffer is as large as what is asked of it."""
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
                # gzip.BadGzipFile is an OSError without an errno; one of the system has it.
                if error.errno is not None:
                    raise
                raise self._damaged(error) from error
            self.filled += count
            self.ended = not count
        if self.ended and self.range_end is not None:
            raise SourceError(
                f"{_name(self.file)} ends at byte {self.position}, the plan names bytes up to "
                f"{self.range_end}: it was shortened since; put it back, or accept the new file"
            )

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            f"{_name(self.file)}: the compressed stream is damaged or cut off after byte "
            f"{self.position} of its content ({error}); replace the file"
        )


def _name(file: BinaryIO) -> str:
    return repr(getattr(file, "name", "the file"))
