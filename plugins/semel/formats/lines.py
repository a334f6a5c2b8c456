"""Lines, verdicts and the interface of a parser, which the formats and the reader of splits share."""

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
"""Why semel rejects a record: a Reason (or the reason of a later step), and a sentence."""


@dataclass(frozen=True, kw_only=True)
class RecordLines:
    """Records data[starts[i]:ends[i]], without line ends, none empty.

    `offsets` and `lengths`: their positions and sizes in the file, with line ends.
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
        """The records except those at `places`."""
        if not places:
            return self
        mask = np.ones(len(self), bool)
        mask[list(places)] = False
        return self.take(mask)

    def compact(self, mask: np.ndarray) -> "RecordLines":
        """The records of a mask, adjacent, without the other records between them.

        Changes `data`, which makes older RecordLines of the same `data` useless.
        """
        # Neighbours move together.
        borders = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        firsts, behinds = borders[::2], borders[1::2]
        lows = self.starts[firsts]
        highs = self.starts[behinds - 1] + self.lengths[behinds - 1]
        sizes = highs - lows
        places = np.cumsum(sizes) - sizes
        data = memoryview(self.data)
        for place, low, high in zip(places.tolist(), lows.tolist(), highs.tolist(), strict=True):
            data[place : place + high - low] = data[low:high]
        moved = np.repeat(places - lows, behinds - firsts)
        records = self.take(mask)
        return replace(records, starts=records.starts + moved, ends=records.ends + moved)

    def overwrite(self) -> None:
        """Overwrite the records with line ends."""
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for start, end in bounds:
            self.data[start:end] = b"\n" * (end - start)

    def pack(self) -> "RecordLines":
        """A copy of the records with one line end after each, and nothing else."""
        codes = np.frombuffer(self.data, np.uint8)
        next_bytes, previous = codes[self.ends[:-1]], codes[self.starts[1:] - 1]
        gaps = self.starts[1:] - self.ends[:-1]
        close = (gaps == 1) & (previous == 10) | (gaps == 2) & (next_bytes == 13) & (previous == 10)
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
        """The indexes of records that match a pattern (RE2, of bytes), or where the bytes before
        the next record do."""
        bounds = pa.py_buffer(np.append(self.starts, self.ends[-1]).astype(np.int32))
        data = [None, bounds, pa.py_buffer(self.data)]
        mask = pc.match_substring_regex(pa.Array.from_buffers(pa.binary(), len(self), data), form)
        return np.flatnonzero(mask.to_numpy(zero_copy_only=False))

    @property
    def span(self) -> tuple[int, int]:
        """The start of the first record and the end of the last one in `data`."""
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
    """At least one of the records is bad. For a single record, this is its verdict.

    `index` is where a bad record probably is. It only saves time.
    """

    def __init__(self, reason: Reason, detail: str, index: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.index = index


Finder = Callable[[RecordLines], dict[int, Fault]]
"""Finds faults of many records at once; returns them by the records' indexes.

`parse` MUST refuse each record that a finder names, whatever its neighbours are. The fault depends
on that record alone. A finder may miss bad records. The records are clean, packed, and UTF-8
without NUL.
"""


class Parser(Protocol):
    """A format's parser for a schema. A task that reads a split calls it for each block."""

    header_records: int
    """Records at the start of the file that are not data."""

    record_ends: RecordEnds

    skips_line_ends: bool
    """Whether the parser skips many line ends faster than it parses records."""

    finders: tuple[Finder, ...]
    """The cheapest first. Each finder gets the records in which earlier ones found no fault."""

    def parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """Parse each record into a row, or raise BadRecords.

        The faults, by row, are of values that mean nothing; no fault depends on other records. If
        the parser accepts records together, it MUST accept each alone, with the same values. The
        strict path relies on this.
        """

    def ignored(self, lines: RecordLines) -> Ignored:
        """The keys of good records that the parser skipped. Called once per block, after its parse."""

    def clean(self, raw: bytes) -> bytes:
        """The record for the strict path; empty for a blank line. MUST NOT change values.

        The caller passes only records that begin or end with white space; others are clean.
        """


class Format(Protocol):
    """A declared format: JsonLines or Csv."""

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> Parser:
        """`columns`: the names in the file's header, None for a format without headers.

        Raises SpecError for a type that the format cannot hold.
        """
