"""What the formats and the reader of splits share: lines, verdicts, and what a parser does."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.formats.blocks import RecordEnds
from semel.model.batch import Ignored
from semel.model.reasons import Reason

Fault = tuple[str, str]
"""Why a record was rejected: a Reason (or what a later step calls it), and a sentence."""


@dataclass(frozen=True, kw_only=True)
class RecordLines:
    """Records data[starts[i]:ends[i]], without line ends, none empty.

    In the file they are at `offsets` and take `lengths` bytes, with their line ends.
    """

    data: bytearray | bytes
    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, part: slice | np.ndarray) -> "RecordLines":
        """Some of the records."""
        return replace(
            self,
            starts=self.starts[part],
            ends=self.ends[part],
            offsets=self.offsets[part],
            lengths=self.lengths[part],
        )

    def without(self, places: Collection[int]) -> "RecordLines":
        """The records but for some of them."""
        if not places:
            return self
        left = np.ones(len(self), bool)
        left[list(places)] = False
        return self.take(left)

    def compacted(self, taken: np.ndarray) -> "RecordLines":
        """The records that are marked, with nothing of the others between them. Their bytes move:
        `data` is changed, and of no use to who has the records of before.
        """
        # Neighbours move together.
        borders = np.flatnonzero(np.diff(taken, prepend=False, append=False))
        firsts, behinds = borders[::2], borders[1::2]
        lows = self.starts[firsts]
        highs = self.starts[behinds - 1] + self.lengths[behinds - 1]
        sizes = highs - lows
        places = np.cumsum(sizes) - sizes
        data = memoryview(self.data)
        for place, low, high in zip(places.tolist(), lows.tolist(), highs.tolist(), strict=True):
            data[place : place + high - low] = data[low:high]
        moved = np.repeat(places - lows, behinds - firsts)
        left = self.take(taken)
        return replace(left, starts=left.starts + moved, ends=left.ends + moved)

    def overwrite(self) -> None:
        """Put line ends in the place of the records."""
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for start, end in bounds:
            self.data[start:end] = b"\n" * (end - start)

    def packed(self) -> "RecordLines":
        """The records with nothing but line ends between and behind them, in bytes of their own."""
        codes = np.frombuffer(self.data, np.uint8)
        behind, before = codes[self.ends[:-1]], codes[self.starts[1:] - 1]
        gaps = self.starts[1:] - self.ends[:-1]
        close = (gaps == 1) & (before == 10) | (gaps == 2) & (behind == 13) & (before == 10)
        # Neighbours are copied together.
        firsts = np.concatenate(([0], np.flatnonzero(~close) + 1))
        lasts = np.append(firsts[1:], len(self)) - 1
        lows, highs = self.starts[firsts], self.ends[lasts]
        data = memoryview(self.data)
        bounds = zip(lows.tolist(), highs.tolist(), strict=True)
        joined = b"\n".join([*(data[low:high] for low, high in bounds), b""])
        places = np.cumsum(highs - lows + 1) - (highs - lows + 1)
        moved = np.repeat(places - lows, lasts - firsts + 1)
        return replace(self, data=joined, starts=self.starts + moved, ends=self.ends + moved)

    def matching(self, form: str) -> np.ndarray:
        """The indexes of records in which a pattern (RE2, of bytes) is found, or in what lies
        behind them before the next one."""
        bounds = pa.py_buffer(np.append(self.starts, self.ends[-1]).astype(np.int32))
        data = [None, bounds, pa.py_buffer(self.data)]
        found = pc.match_substring_regex(pa.Array.from_buffers(pa.binary(), len(self), data), form)
        return np.flatnonzero(found.to_numpy(zero_copy_only=False))

    @property
    def span(self) -> tuple[int, int]:
        """Where the first record starts and the last one ends in `data`."""
        return int(self.starts[0]), int(self.ends[-1])

    def buffer(self) -> pa.Buffer:
        """The records and the line ends between them, without a copy."""
        start, end = self.span
        return pa.py_buffer(self.data).slice(start, end - start)

    def raws(self, places: list[int] | np.ndarray) -> list[bytes]:
        """Copies of some records."""
        data = memoryview(self.data)
        bounds = zip(self.starts[places].tolist(), self.ends[places].tolist(), strict=True)
        return [bytes(data[start:end]) for start, end in bounds]

    def raw(self, index: int) -> bytes:
        """A copy of one record."""
        return bytes(memoryview(self.data)[self.starts[index] : self.ends[index]])

    def beginning(self, index: int, size: int) -> bytes:
        """A copy of a record's first bytes."""
        start = int(self.starts[index])
        return bytes(memoryview(self.data)[start : min(int(self.ends[index]), start + size)])


class BadRecords(Exception):
    """The records are not all good. For one record alone, this is the verdict.

    `index` is where a bad one probably is. It saves time, and decides nothing.
    """

    def __init__(self, reason: Reason, detail: str, index: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.index = index


Finder = Callable[[RecordLines], dict[int, Fault]]
"""Says what is surely wrong with some of the records, by their index, found all at once.

A record that is named is one that `parse` refuses, whatever is around it; what is said of it
depends on nothing else. Not every bad record needs to be found. The records are clean, packed, and
UTF-8 without NUL.
"""


class Parser(Protocol):
    """What a format does for a schema; in the task that reads a split, for each block."""

    header_records: int
    """Records at the file's start that are not data."""

    record_ends: RecordEnds

    skips_line_ends: bool
    """Whether the parse passes over many line ends in less time than over records."""

    finders: tuple[Finder, ...]
    """From what is found quickly to what takes longer. Each gets what those before it left."""

    def parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """One row for each record, or BadRecords; and the rows that mean nothing, by their index,
        each with its fault: what is said of such a record depends on nothing around it.

        If it accepts records, then it accepts each one alone, with the same values: the strict
        path rests on this.
        """

    def ignored(self, lines: RecordLines) -> Ignored:
        """The keys of good records that were passed over. Called once for each block, behind its
        parse."""

    def clean(self, raw: bytes) -> bytes:
        """The record for the strict path; empty if it is a blank line. Must not change values.

        Only called for a record that begins or ends with white space; others are clean.
        """


class Format(Protocol):
    """A declared format: JsonLines or Csv."""

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> Parser:
        """`columns` are the names in the file's header, None where the format has none.

        Raises SpecError for a type that the format cannot hold.
        """
