"""Turn the bytes of one split into Arrow tables and rejected records.

A block of lines is parsed at once. Where the block is not proven good as a whole, it is cut into
parts until the bad lines stand alone, and a line that stands alone is judged by the same parse. So
the verdict on a record never depends on its neighbours, nor on where splits and blocks are cut.

What is refused in every format: invalid UTF-8 and NUL bytes anywhere in the record, numbers that
are not finite (NaN, Infinity, 1e400) in floating-point columns, records longer than
RECORD_BYTES_MAX. Timestamps without zone are UTC. A column that is missing or null is null.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from semel import limits
from semel.sources.blocks import Oversized, Piece, RecordEnds, owned_pieces
from semel.sources.columns import convert

OFFSET = "_semel_offset"
"""Column (int64) of each table: byte offset in the uncompressed file of the record's first byte."""

_BOM = b"\xef\xbb\xbf"


class Reason(StrEnum):
    """Why a record was rejected. Dead-letter files show these words: they stay as they are."""

    malformed = "malformed"
    encoding = "encoding"
    duplicate_key = "duplicate_key"
    field_count = "field_count"
    type_mismatch = "type_mismatch"
    too_long = "too_long"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A record that is not in the table.

    `length` counts its line end, `raw` leaves it out. Of a record that is too long, `raw` is the
    first REJECTED_HEAD_BYTES bytes.
    """

    offset: int
    length: int
    reason: str
    detail: str
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class Lines:
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

    def take(self, part: slice | np.ndarray) -> "Lines":
        """Some of the records."""
        return replace(
            self,
            starts=self.starts[part],
            ends=self.ends[part],
            offsets=self.offsets[part],
            lengths=self.lengths[part],
        )

    @property
    def span(self) -> tuple[int, int]:
        """Where the first record starts and the last one ends in `data`."""
        return int(self.starts[0]), int(self.ends[-1])

    def buffer(self) -> pa.Buffer:
        """The records and the line ends between them, without a copy."""
        start, end = self.span
        return pa.py_buffer(self.data).slice(start, end - start)

    def raw(self, index: int) -> bytes:
        """A copy of one record."""
        return bytes(memoryview(self.data)[self.starts[index] : self.ends[index]])


@dataclass(frozen=True, kw_only=True)
class Block:
    """The declared columns in declared order and OFFSET, in source order; what was rejected.

    `bytes_read` counts the bytes of all its lines, blank ones and the header too. `lines` are valid
    until the next block is asked for.
    """

    table: pa.Table
    rejected: list[Rejected]
    bytes_read: int
    lines: Lines | None = None

    def reject(self, offset: int, reason: str, detail: str) -> Rejected:
        """The record at an offset of the table, for a caller that finds fault with it."""
        index = int(np.searchsorted(self.lines.offsets, offset))
        return Rejected(
            offset=offset,
            length=int(self.lines.lengths[index]),
            reason=reason,
            detail=detail,
            raw=self.lines.raw(index),
        )


class BadRecords(Exception):
    """The records are not all good. For one record alone, this is the verdict.

    `index` is where a bad one probably is. It saves time, and decides nothing.
    """

    def __init__(self, reason: Reason, detail: str, index: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.index = index


class Parser(Protocol):
    """What a format does for a schema; in the task that reads a split, for each block."""

    header_records: int
    """Records at the file's start that are not data."""

    record_ends: RecordEnds

    def parse(self, lines: Lines) -> pa.Table:
        """One row for each record, or BadRecords.

        If it accepts records, then it accepts each one alone, with the same values: the strict
        path rests on this.
        """

    def clean(self, raw: bytes) -> bytes:
        """The record for the strict path; empty if it is a blank line. Must not change values."""


class Format(Protocol):
    """A declared format: JsonLines or Csv."""

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> Parser:
        """`columns` are the names in the file's header, None where the format has none.

        Raises SpecError for a type that the format cannot hold.
        """


def read_split(
    file: BinaryIO,
    *,
    start: int,
    end: int | None,
    range_start: int,
    range_end: int | None,
    schema: pa.Schema,
    format: Format,
    digest: xxhash.xxh3_128,
    columns: list[str] | None = None,
) -> Iterator[Block]:
    """Yield the records whose first byte is in [start, end) of the planned range, block by block.

    The range starts and ends at a record's border; `start` and `end` may be anywhere in it. The
    last record is read beyond `end`, never beyond `range_end`. `digest` is updated with exactly
    the bytes of the lines that the split owns. `range_end` None: a stream (gzip) read to its end
    by one split; `seek` is not called when `start` is 0. `columns` are from `read_header` (CSV).
    Raises SourceError for a file that is shorter than the range, or a damaged gzip stream.
    """
    parser = format.parser(schema, columns)
    header = parser.header_records if start == range_start == 0 else 0
    pieces = owned_pieces(
        file,
        start=start,
        end=end,
        range_start=range_start,
        range_end=range_end,
        record_ends=parser.record_ends,
        digest=digest,
    )
    for piece in pieces:
        if isinstance(piece, Oversized):
            rejected = _too_long(piece.offset, piece.length, piece.head)
            table = _empty(schema)
            yield Block(table=table, rejected=[rejected], bytes_read=piece.length)
            continue
        lines = _lines(piece, header)
        header = 0
        table, rejected = _judge(lines, parser, schema)
        size = int(piece.ends[-1])
        yield Block(table=table, rejected=rejected, bytes_read=size, lines=lines)


def _lines(piece: Piece, header: int) -> Lines:
    """The records of a piece, without the header, line ends and empty lines."""
    starts = np.concatenate((np.zeros(1, piece.ends.dtype), piece.ends[:-1]))[header:]
    ends = piece.ends[header:].copy()
    lengths = ends - starts
    if len(ends):
        # 1. The mark of UTF-8 is allowed at the start of the file only, and is no part of a record.
        if piece.offset + starts[0] == 0 and piece.data.startswith(_BOM, 0, int(ends[0])):
            starts[0] += len(_BOM)
            lengths[0] -= len(_BOM)
        # 2. Take the line ends off, LF and CRLF. Only the last record may lack its LF.
        data = np.frombuffer(piece.data, np.uint8, int(ends[-1]))
        ends[:-1] -= 1
        ends[-1] -= data[-1] == 10
        #    A CR before the CR is no line end, and stays, so that the format can tell.
        crlf = (data[ends - 1] == 13) & (ends > starts)
        if crlf.any():
            ends -= crlf & ((ends - 2 < starts) | (data[ends - 2] != 13))
    lines = Lines(
        data=piece.data,
        starts=starts,
        ends=ends,
        offsets=starts + piece.offset,
        lengths=lengths,
    )
    filled = ends > starts
    return lines if filled.all() else lines.take(filled)


def _judge(lines: Lines, parser: Parser, schema: pa.Schema) -> tuple[pa.Table, list[Rejected]]:
    if not len(lines):
        return _empty(schema), []
    if (lines.ends - lines.starts).max() <= limits.RECORD_BYTES_MAX:
        try:
            return _parse(lines, parser, schema), []
        except BadRecords:
            pass  # One of them is bad, which one shows below.
    return _judge_strictly(lines, parser, schema)


def _judge_strictly(
    lines: Lines, parser: Parser, schema: pa.Schema
) -> tuple[pa.Table, list[Rejected]]:
    """Bisect until the bad lines stand alone."""
    tables, rejected = [_empty(schema)], []
    # 1. Leave out lines that are too long, and blank ones. The rest is joined anew, because a
    #    parse reads all that lies between its first and its last line.
    texts, kept = [], []
    for i in range(len(lines)):
        if lines.ends[i] - lines.starts[i] > limits.RECORD_BYTES_MAX:
            head = lines.raw(i)[: limits.REJECTED_HEAD_BYTES]
            rejected.append(_too_long(int(lines.offsets[i]), int(lines.lengths[i]), head))
        elif text := parser.clean(lines.raw(i)):
            texts.append(text)
            kept.append(i)
    original = lines.take(np.array(kept, np.int64))
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(sizes + 1) - 1
    clean = replace(original, data=b"\n".join(texts), starts=ends - sizes, ends=ends)
    # 2. Parse part by part, in source order: the stack's top is the first part.
    stack = [(0, len(texts))] if texts else []
    while stack:
        first, behind = stack.pop()
        try:
            tables.append(_parse(clean.take(slice(first, behind)), parser, schema))
        except BadRecords as bad:
            if behind - first == 1:
                rejected.append(_rejected(original, first, bad))
            else:
                stack.extend(reversed(_parts(first, behind, bad.index)))
    rejected.sort(key=lambda record: record.offset)
    return pa.concat_tables(tables).combine_chunks(), rejected


def _parts(first: int, behind: int, index: int | None) -> list[tuple[int, int]]:
    """Cut [first, behind) into smaller parts; a line that is known to be bad is one of its own."""
    if index is None or not 0 <= index < behind - first:
        step = -(-(behind - first) // limits.BISECT_WAYS)
        cuts = [*range(first, behind, step), behind]
    else:
        bad = first + index
        cuts = [first, bad, bad + 1, (bad + 1 + behind) // 2, behind]
    return [(low, high) for low, high in pairwise(cuts) if low < high]


def _rejected(lines: Lines, index: int, bad: BadRecords) -> Rejected:
    return Rejected(
        offset=int(lines.offsets[index]),
        length=int(lines.lengths[index]),
        reason=bad.reason,
        detail=_printable(bad.detail),
        raw=lines.raw(index),
    )


def _too_long(offset: int, length: int, head: bytes) -> Rejected:
    detail = f"longer than {limits.RECORD_BYTES_MAX} bytes"
    return Rejected(offset=offset, length=length, reason=Reason.too_long, detail=detail, raw=head)


def _printable(text: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown[: limits.REJECTED_DETAIL_CHARS_MAX]


def _parse(lines: Lines, parser: Parser, schema: pa.Schema) -> pa.Table:
    """The declared columns and OFFSET, one row for each record; BadRecords unless all are good."""
    _check_bytes(lines)
    table = parser.parse(lines)
    if table.num_rows != len(lines):
        raise BadRecords(Reason.malformed, f"holds {table.num_rows} records, not one")
    try:
        columns = [convert(table.column(field.name), field.type) for field in schema]
    except ValueError as error:
        raise BadRecords(Reason.type_mismatch, str(error)) from error
    columns.append(pa.array(lines.offsets, pa.int64()))
    return pa.Table.from_arrays(columns, schema=with_offset(schema))


def _check_bytes(lines: Lines) -> None:
    # pyarrow takes a NUL for the end of its input, and lets invalid UTF-8 pass.
    if (found := lines.data.find(b"\0", *lines.span)) >= 0:
        index = int(np.searchsorted(lines.ends, found))
        raise BadRecords(Reason.encoding, "a NUL byte", index)
    buffer = lines.buffer()
    sizes = pa.py_buffer(np.array([0, buffer.size], np.int32))
    try:
        pa.Array.from_buffers(pa.binary(), 1, [None, sizes, buffer]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadRecords(Reason.encoding, "not UTF-8") from error


def with_offset(schema: pa.Schema) -> pa.Schema:
    """The columns of a block's table."""
    return schema.append(pa.field(OFFSET, pa.int64(), nullable=False))


def _empty(schema: pa.Schema) -> pa.Table:
    return with_offset(schema).empty_table()
