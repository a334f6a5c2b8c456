"""Turn the bytes of one split into Arrow tables and rejected records.

The parser reads a block of lines at once. If that does not prove all lines good, the format's
finders name many bad lines at once; they name only lines that the parser refuses. The parser then
reads the other lines. If it fails again, the block is cut into parts until the bad lines stand
alone, and the same parser judges each. So the verdict on a record never depends on its neighbours,
nor on where splits and blocks are cut. After the parse, semel finds all values that a column cannot
hold, and rejects only their records.

Every format rejects invalid UTF-8 and NUL bytes anywhere in the record, numbers that are not finite
(NaN, Infinity, 1e400) in floating-point columns, and records longer than RECORD_BYTES_MAX.
Timestamps without zone are UTC. A missing column is null.
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
from semel.formats.selection import NO_OFFSETS, Selection, membership
from semel.model.batch import Ignored
from semel.model.reasons import Reason

REJECTED_DETAIL_CHARS_MAX = 200
"""Characters of a dead letter's explanation."""

__all__ = ["OFFSET", "REJECTED", "Block", "Reason", "printable", "read_split", "with_offset"]

OFFSET = "_semel_offset"
"""Column (int64) of each table: the offset of a record's first byte in the uncompressed file."""

REJECTED = pa.schema(
    [
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.large_binary()),
    ]
)
"""Records that are not in the table, in source order. `length` includes the line end, `raw` does
not. If a record is too long, `raw` is its first REJECTED_HEAD_BYTES bytes."""

_BOM = b"\xef\xbb\xbf"
_SPACE = 32
_QUICK = 1  # The index of the parser's first finder; `_byte_faults` comes before it.
_NUL: Fault = (Reason.encoding, "expected text, found a NUL byte")
_NO_UTF8: Fault = (Reason.encoding, "expected text in UTF-8")


@dataclass(frozen=True, kw_only=True)
class Block:
    """The declared columns in declared order and OFFSET, in source order; and the rejected records.

    `faults`: of the rejected ones, by their index in `lines`. `bytes_read`: bytes of all lines,
    with blank ones and the header. `lines` are valid until the caller takes the next block.
    `left_out`: offsets of records that the selection skips; `table` and `lines` lack these.
    """

    table: pa.Table
    faults: dict[int, Fault]
    lines: "RecordLines | Rows"
    bytes_read: int
    ignored: Ignored = Ignored()
    left_out: np.ndarray = field(default_factory=lambda: NO_OFFSETS)

    def without(self, offsets: np.ndarray, faults: Iterable[Fault]) -> "Block":
        """The block without the records at some offsets of its table, which have `faults`."""
        places = np.searchsorted(self.lines.offsets, offsets).tolist()
        faulty = membership(self.table.column(OFFSET).to_numpy(), offsets)
        table = self.table.filter(pa.array(~faulty))
        added = dict(zip(places, faults, strict=True))
        return replace(self, table=table, faults=self.faults | added)

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
    last record is read beyond `end`, never beyond `range_end`. If `range_end` is None, one split
    reads a stream (gzip) to its end, without calling `seek` if `start` is 0. `digest` covers
    exactly the bytes of the split's own lines. `columns` are from `read_header` (CSV). No value of
    the columns `exact` may lose digits: two records would become one. `selection`: the records to
    take.

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
        lines, left_out = _lines(piece, header), NO_OFFSETS
        header = 0
        if selection is not None:
            lines, left_out = selection.select(lines, parser)
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
    selected = selection is None or selection.takes(lines.offsets)[0]
    return Block(
        table=_empty(schema),
        faults={0: too_long()} if selected else {},
        lines=lines,
        bytes_read=piece.length,
        left_out=NO_OFFSETS if selected else lines.offsets,
    )


def _lines(piece: RecordPiece, header: int) -> RecordLines:
    """The records of a piece, without the header, line ends and empty lines."""
    starts = np.concatenate((np.zeros(1, piece.ends.dtype), piece.ends[:-1]))[header:]
    ends = piece.ends[header:].copy()
    lengths = ends - starts
    if len(ends):
        # 1. A BOM is allowed at the start of the file only, and is not part of a record.
        if piece.offset + starts[0] == 0 and piece.data.startswith(_BOM, 0, int(ends[0])):
            starts[0] += len(_BOM)
            lengths[0] -= len(_BOM)
        # 2. Remove the line ends, LF and CRLF. Only the last record may lack its LF.
        data = np.frombuffer(piece.data, np.uint8, int(ends[-1]))
        ends[:-1] -= 1
        ends[-1] -= data[-1] == 10
        #    A CR before the CR is not part of the line end, and stays for the format to judge.
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
    """The columns and OFFSET of the good records, and the faults of the others."""
    return Judge(parser, schema, ()).judge(lines)


class _Remainder:
    """The packed records of a block without a fault so far, and the faults of the others."""

    def __init__(self, lines: RecordLines, faults: dict[int, Fault]) -> None:
        self._faults = faults
        self._places = np.arange(len(lines))
        self.lines = lines
        self._keep(lines.ends > lines.starts)

    def leave_out(self, find: Finder) -> bool:
        """Remove the records that `find` names. Returns whether it names any."""
        faults = find(self.lines) if len(self.lines) else {}
        if faults:
            self._faults = self.all_faults(faults)
            good = np.ones(len(self.lines), bool)
            good[list(faults)] = False
            self._keep(good)
        return bool(faults)

    def all_faults(self, more: dict[int, Fault]) -> dict[int, Fault]:
        """All faults by their index in the block, including those of remaining records."""
        places = self._places[list(more)].tolist()
        return self._faults | dict(zip(places, more.values(), strict=True))

    def _keep(self, good: np.ndarray) -> None:
        self._places = self._places[good]
        self.lines = self.lines.take(good).pack() if len(self._places) else self.lines.take(good)


class Judge:
    """Judges each record: returns its row, or its fault."""

    def __init__(self, parser: Parser, schema: pa.Schema, exact: Collection[str]) -> None:
        self._parser, self._schema, self._exact = parser, schema, exact
        # Guesses from the last block. They change no verdict, as a finder names only records that
        # the parser refuses.
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
                pass  # The strict path finds the bad ones.
        return self._strictly(lines)

    def _strictly(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        # 1. Remove lines that are too long, and blank ones. Pack the others, because a parse reads
        #    all bytes between its first and its last line.
        remainder = _Remainder(*self._clean(lines))
        # 2. Remove lines that finders name, until the others are good.
        finders = (_byte_faults, *self._parser.finders)
        needed, self._needed = self._needed, _QUICK
        self._probably_bad = False
        for number, find in enumerate(finders):
            if remainder.leave_out(find):
                self._probably_bad = True
                self._needed = max(number, _QUICK)
            if needed <= number < len(finders) - 1 and len(remainder.lines):
                try:
                    table, more = self._parse(remainder.lines)
                    return table, remainder.all_faults(more)
                except BadRecords:
                    pass
        # 3. Parse the remaining lines at once, then part by part.
        table, more = self._bisect(remainder.lines)
        return table, remainder.all_faults(more)

    def _clean(self, lines: RecordLines) -> tuple[RecordLines, dict[int, Fault]]:
        """The records for the finders, with blank and too long ones emptied; and the faults of the
        latter."""
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
        """Cut until the bad lines stand alone. The first part is at the top of the stack."""
        tables, faults = [_empty(self._schema)], {}
        stack = [(0, len(lines))] if len(lines) else []
        while stack:
            first, end = stack.pop()
            try:
                table, part_faults = self._parse(lines.take(slice(first, end)))
                tables.append(table)
                faults |= {first + at: fault for at, fault in part_faults.items()}
            except BadRecords as bad:
                if end - first == 1:
                    faults[first] = (bad.reason, bad.detail)
                else:
                    stack.extend(reversed(_parts(first, end, bad.index)))
        return pa.concat_tables(tables).combine_chunks(), faults

    def _parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """The declared columns and OFFSET of the records whose values fit, and the faults of
        others.

        Raises BadRecords if the parser refuses any record.
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
        rows = pa.Table.from_arrays(columns, schema=with_offset(self._schema))
        if faults:
            good = np.ones(len(lines), bool)
            good[list(faults)] = False
            rows = rows.filter(pa.array(good))
        return rows, faults


def _parts(first: int, end: int, index: int | None) -> list[tuple[int, int]]:
    """Cut [first, end) into smaller parts. The line that is probably bad becomes its own part."""
    if index is None or not 0 <= index < end - first:
        step = -(-(end - first) // limits.BISECT_WAYS)
        cuts = [*range(first, end, step), end]
    else:
        bad = first + index
        cuts = [first, bad, bad + 1, (bad + 1 + end) // 2, end]
    return [(low, high) for low, high in pairwise(cuts) if low < high]


def too_long() -> Fault:
    """The fault of a record longer than RECORD_BYTES_MAX."""
    return Reason.too_long, f"expected a record of at most {limits.RECORD_BYTES_MAX} bytes"


def printable(text: str) -> str:
    """A fault's sentence for logs, pages and dead letters: one short line."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text[:REJECTED_DETAIL_CHARS_MAX]


def _byte_faults(lines: RecordLines) -> dict[int, Fault]:
    """The faults of records that are not text."""
    faults: dict[int, Fault] = dict.fromkeys(lines.matching(r"\x00").tolist(), _NUL)
    if not lines.data.isascii():
        places = lines.matching(r"[\x80-\xff]")
        for at, raw in zip(places.tolist(), lines.raws(places), strict=True):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                why = f"found the byte 0x{raw[error.start]:02x} at byte {error.start} of the record"
                faults.setdefault(at, (Reason.encoding, f"{_NO_UTF8[1]}, {why}"))
    return faults


def _check_bytes(lines: RecordLines) -> None:
    # pyarrow treats a NUL as the end of its input, and accepts invalid UTF-8.
    if lines.data.find(b"\0", *lines.span) >= 0:
        raise BadRecords(*_NUL)
    buffer = lines.buffer()
    sizes = pa.py_buffer(np.array([0, buffer.size], np.int32))
    try:
        pa.Array.from_buffers(pa.binary(), 1, [None, sizes, buffer]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadRecords(*_NO_UTF8) from error


def with_offset(schema: pa.Schema) -> pa.Schema:
    """The columns of a block's table: those of `schema` and OFFSET."""
    return schema.append(pa.field(OFFSET, pa.int64(), nullable=False))


def _empty(schema: pa.Schema) -> pa.Table:
    return with_offset(schema).empty_table()
