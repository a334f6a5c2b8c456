"""Turn the bytes of one split into Arrow tables and rejected records.

A block of lines is parsed at once. Where the block is not proven good as a whole, the format's
finders say of many bad lines at once what is wrong with them; they name only lines that the parse
refuses. What is left is parsed again, and when that fails too, cut into parts until the bad lines
stand alone, each judged by the same parse. So the verdict on a record never depends on its
neighbours, nor on where splits and blocks are cut. Values that a column cannot hold are found
behind the parse, all at once, and cost their own records alone.

What is refused in every format: invalid UTF-8 and NUL bytes anywhere in the record, numbers that
are not finite (NaN, Infinity, 1e400) in floating-point columns, records longer than
RECORD_BYTES_MAX. Timestamps without zone are UTC. A column that is missing or null is null.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from semel import limits
from semel.formats.blocks import Oversized, RecordPiece, record_pieces
from semel.formats.columns import convert
from semel.formats.lines import BadRecords, Fault, Finder, Format, Parser, RecordLines
from semel.formats.rows import Rows
from semel.formats.selection import NONE, Selection, among
from semel.model.batch import Ignored
from semel.model.reasons import Reason

REJECTED_DETAIL_CHARS_MAX = 200
"""Characters of a dead letter's explanation."""

__all__ = ["OFFSET", "REJECTED", "Block", "Reason", "printable", "read_split", "with_offset"]

OFFSET = "_semel_offset"
"""Column (int64) of each table: byte offset in the uncompressed file of the record's first byte."""

REJECTED = pa.schema(
    [
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.large_binary()),
    ]
)
"""Records that are not in the table, in source order. `length` counts the line end, `raw` leaves it
out; of a record that is too long, `raw` is the first REJECTED_HEAD_BYTES bytes."""

_BOM = b"\xef\xbb\xbf"
_SPACE = 32
_QUICK = 1  # The number of the parser's first finder, behind that of bytes.
_NUL: Fault = (Reason.encoding, "expected text, found a NUL byte")
_NO_UTF8: Fault = (Reason.encoding, "expected text in UTF-8")


@dataclass(frozen=True, kw_only=True)
class Block:
    """The declared columns in declared order and OFFSET, in source order; what was rejected.

    `faults` names the rejected ones of `lines` by their index. `bytes_read` counts the bytes of all
    its lines, blank ones and the header too. `lines` are valid until the next block is asked for.
    `left_out`: the offsets of records that were not taken, and are in nothing else of it.
    """

    table: pa.Table
    faults: dict[int, Fault]
    lines: "RecordLines | Rows"
    bytes_read: int
    ignored: Ignored = Ignored()
    left_out: np.ndarray = field(default_factory=lambda: NONE)

    def without(self, offsets: np.ndarray, faults: Iterable[Fault]) -> "Block":
        """The block without the records at some offsets of its table, which have faults."""
        places = np.searchsorted(self.lines.offsets, offsets).tolist()
        left = self.table.filter(pa.array(~among(self.table.column(OFFSET).to_numpy(), offsets)))
        more = dict(zip(places, faults, strict=True))
        return replace(self, table=left, faults=self.faults | more)

    def rejected(self) -> pa.Table:
        """The rejected records, as a table of REJECTED."""
        if not self.faults:
            return REJECTED.empty_table()
        places = sorted(self.faults)
        raws = self.lines.raws(places)
        reasons = [str(self.faults[at][0]) for at in places]
        details = [printable(self.faults[at][1]) for at in places]
        raws = [
            raw[: limits.REJECTED_HEAD_BYTES] if reason == Reason.too_long else raw
            for raw, reason in zip(raws, reasons, strict=True)
        ]
        arrays = (self.lines.offsets[places], self.lines.lengths[places], reasons, details, raws)
        columns = [pa.array(a, f.type) for a, f in zip(arrays, REJECTED, strict=True)]
        return pa.table(columns, schema=REJECTED)


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
    exact: Collection[str] = (),
    selection: Selection | None = None,
) -> Iterator[Block]:
    """Yield the records whose first byte is in [start, end) of the planned range, block by block.

    The range starts and ends at a record's border; `start` and `end` may be anywhere in it. The
    last record is read beyond `end`, never beyond `range_end`. `digest` is updated with exactly
    the bytes of the lines that the split owns. `range_end` None: a stream (gzip) read to its end
    by one split; `seek` is not called when `start` is 0. `columns` are from `read_header` (CSV). No
    value of the columns `exact` may lose digits: two records would become one. `selection`: the
    records that are taken.
    Raises SourceError for a file that is shorter than the range, or a damaged gzip stream.
    """
    parser = format.parser(schema, columns)
    header = parser.header_records if start == range_start == 0 else 0
    pieces = record_pieces(
        file,
        start=start,
        end=end,
        range_start=range_start,
        range_end=range_end,
        record_ends=parser.record_ends,
        digest=digest,
    )
    judge = Judge(parser, schema, exact)
    for piece in pieces:
        if isinstance(piece, Oversized):
            yield _oversized(piece, schema, selection)
            continue
        lines, left_out = _lines(piece, header), NONE
        header = 0
        if selection is not None:
            lines, left_out = selection.of(lines, parser)
        table, faults = judge.judge(lines)
        yield Block(
            table=table,
            faults=faults,
            lines=lines,
            bytes_read=int(piece.ends[-1]),
            ignored=parser.ignored(lines.without(faults)),
            left_out=left_out,
        )


def _oversized(piece: Oversized, schema: pa.Schema, selection: Selection | None) -> Block:
    lines = RecordLines(
        data=piece.head,
        starts=np.array([0]),
        ends=np.array([len(piece.head)]),
        offsets=np.array([piece.offset]),
        lengths=np.array([piece.length]),
    )
    taken = selection is None or selection.takes(lines.offsets)[0]
    return Block(
        table=_empty(schema),
        faults={0: too_long()} if taken else {},
        lines=lines,
        bytes_read=piece.length,
        left_out=NONE if taken else lines.offsets,
    )


def _lines(piece: RecordPiece, header: int) -> RecordLines:
    """The records of a piece, without the header, line ends and empty lines."""
    starts = np.concatenate((np.zeros(1, piece.ends.dtype), piece.ends[:-1]))[header:]
    ends = piece.ends[header:].copy()
    lengths = ends - starts
    if len(ends):
        # 1. A BOM is allowed at the start of the file only, and is no part of a record.
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
    lines = RecordLines(
        data=piece.data,
        starts=starts,
        ends=ends,
        offsets=starts + piece.offset,
        lengths=lengths,
    )
    filled = ends > starts
    return lines if filled.all() else lines.take(filled)


def judge_lines(
    parser: Parser, schema: pa.Schema, lines: RecordLines
) -> tuple[pa.Table, dict[int, Fault]]:
    """The columns and OFFSET of the good ones of some records, and the faults of the others."""
    return Judge(parser, schema, ()).judge(lines)


class _Left:
    """The packed records of a block that nothing was found wrong with so far, and the faults."""

    def __init__(self, lines: RecordLines, faults: dict[int, Fault]) -> None:
        self._faults = faults
        self._places = np.arange(len(lines))
        self.lines = lines
        self._keep(lines.ends > lines.starts)

    def leave_out(self, find: Finder) -> bool:
        """Leave out what is found; whether that is anything."""
        found = find(self.lines) if len(self.lines) else {}
        if found:
            self._faults = self.with_more(found)
            good = np.ones(len(self.lines), bool)
            good[list(found)] = False
            self._keep(good)
        return bool(found)

    def with_more(self, found: dict[int, Fault]) -> dict[int, Fault]:
        """All faults by their place in the block, with those of records that are left."""
        places = self._places[list(found)].tolist()
        return self._faults | dict(zip(places, found.values(), strict=True))

    def _keep(self, good: np.ndarray) -> None:
        self._places = self._places[good]
        self.lines = self.lines.take(good).packed() if len(self._places) else self.lines.take(good)


class Judge:
    """Says of each record whether it is good: its row, or its fault."""

    def __init__(self, parser: Parser, schema: pa.Schema, exact: Collection[str]) -> None:
        self._parser, self._schema, self._exact = parser, schema, exact
        # What was so in the last block is so in the next one, probably. It decides no verdict: a
        # record that is named as bad is one that the parse refuses.
        self._probably_bad = False
        self._needed = _QUICK

    def judge(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """The rows of the good records, and the faults of the others by their index."""
        if not len(lines):
            return _empty(self._schema), {}
        fits = (lines.ends - lines.starts).max() <= limits.RECORD_BYTES_MAX
        if fits and not self._probably_bad:
            try:
                _check_bytes(lines)
                return self._parse(lines)
            except BadRecords:
                pass  # One of them is bad, which one shows below.
        return self._strictly(lines)

    def _strictly(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        # 1. Leave out lines that are too long, and blank ones. The rest is packed, because a parse
        #    reads all that lies between its first and its last line.
        left = _Left(*self._cleaned(lines))
        # 2. Leave out what is surely bad, until the rest is good.
        finders = (_byte_faults, *self._parser.finders)
        needed, self._needed = self._needed, _QUICK
        self._probably_bad = False
        for number, find in enumerate(finders):
            if left.leave_out(find):
                self._probably_bad = True
                self._needed = max(number, _QUICK)
            if needed <= number < len(finders) - 1 and len(left.lines):
                try:
                    table, more = self._parse(left.lines)
                    return table, left.with_more(more)
                except BadRecords:
                    pass
        # 3. Parse the whole, and then part by part.
        table, more = self._bisect(left.lines)
        return table, left.with_more(more)

    def _cleaned(self, lines: RecordLines) -> tuple[RecordLines, dict[int, Fault]]:
        """The records as the finders take them, blank and too long ones empty; these faults."""
        codes = np.frombuffer(lines.data, np.uint8)
        starts, ends = lines.starts.copy(), lines.ends.copy()
        long = ends - starts > limits.RECORD_BYTES_MAX
        padded = (codes[starts] <= _SPACE) | (codes[ends - 1] <= _SPACE)
        places = np.flatnonzero(padded & ~long)
        for at, raw in zip(places.tolist(), lines.raws(places), strict=True):
            text = self._parser.clean(raw)
            starts[at] += raw.find(text)
            ends[at] = starts[at] + len(text)
        ends[long] = starts[long]
        faults = dict.fromkeys(np.flatnonzero(long).tolist(), too_long())
        return replace(lines, starts=starts, ends=ends), faults

    def _bisect(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """Cut until the bad lines stand alone; the stack has the first part at its top."""
        tables, faults = [_empty(self._schema)], {}
        stack = [(0, len(lines))] if len(lines) else []
        while stack:
            first, behind = stack.pop()
            try:
                table, found = self._parse(lines.take(slice(first, behind)))
                tables.append(table)
                faults |= {first + at: fault for at, fault in found.items()}
            except BadRecords as bad:
                if behind - first == 1:
                    faults[first] = (bad.reason, bad.detail)
                else:
                    stack.extend(reversed(_parts(first, behind, bad.index)))
        return pa.concat_tables(tables).combine_chunks(), faults

    def _parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """The declared columns and OFFSET of the records whose values the columns can hold.

        BadRecords unless all are good but for that.
        """
        table, unmeant = self._parser.parse(lines)
        if table.num_rows != len(lines):
            raise BadRecords(Reason.malformed, f"expected one record, found {table.num_rows}")
        columns, faults = [], dict(unmeant)
        for field in self._schema:
            read = table.column(field.name)
            column, unfit = convert(read, field, exact=field.name in self._exact)
            columns.append(column)
            for at, why in unfit:
                faults.setdefault(at, (Reason.type_mismatch, why))
        columns.append(pa.array(lines.offsets, pa.int64()))
        found = pa.Table.from_arrays(columns, schema=with_offset(self._schema))
        if faults:
            good = np.ones(len(lines), bool)
            good[list(faults)] = False
            found = found.filter(pa.array(good))
        return found, faults


def _parts(first: int, behind: int, index: int | None) -> list[tuple[int, int]]:
    """Cut [first, behind) into smaller parts; a line that is known to be bad is one of its own."""
    if index is None or not 0 <= index < behind - first:
        step = -(-(behind - first) // limits.BISECT_WAYS)
        cuts = [*range(first, behind, step), behind]
    else:
        bad = first + index
        cuts = [first, bad, bad + 1, (bad + 1 + behind) // 2, behind]
    return [(low, high) for low, high in pairwise(cuts) if low < high]


def too_long() -> Fault:
    """That a record is longer than RECORD_BYTES_MAX."""
    return Reason.too_long, f"expected a record of at most {limits.RECORD_BYTES_MAX} bytes"


def printable(text: str) -> str:
    """A fault's sentence as it is shown and kept: one short line."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text[:REJECTED_DETAIL_CHARS_MAX]


def _byte_faults(lines: RecordLines) -> dict[int, Fault]:
    """Records that are no text."""
    found: dict[int, Fault] = dict.fromkeys(lines.matching(r"\x00").tolist(), _NUL)
    if not lines.data.isascii():
        places = lines.matching(r"[\x80-\xff]")
        for at, raw in zip(places.tolist(), lines.raws(places), strict=True):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                why = f"found the byte 0x{raw[error.start]:02x} at byte {error.start} of the record"
                found.setdefault(at, (Reason.encoding, f"{_NO_UTF8[1]}, {why}"))
    return found


def _check_bytes(lines: RecordLines) -> None:
    # pyarrow takes a NUL for the end of its input, and lets invalid UTF-8 pass.
    if lines.data.find(b"\0", *lines.span) >= 0:
        raise BadRecords(*_NUL)
    buffer = lines.buffer()
    sizes = pa.py_buffer(np.array([0, buffer.size], np.int32))
    try:
        pa.Array.from_buffers(pa.binary(), 1, [None, sizes, buffer]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadRecords(*_NO_UTF8) from error


def with_offset(schema: pa.Schema) -> pa.Schema:
    """The columns of a block's table."""
    return schema.append(pa.field(OFFSET, pa.int64(), nullable=False))


def _empty(schema: pa.Schema) -> pa.Table:
    return with_offset(schema).empty_table()
