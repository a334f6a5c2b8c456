"""The values of messages become blocks of records, and so do the columns beside them.

A value is judged as a line of a file is, by the same parsers, so that a record has the same verdict
wherever it comes from.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.declare.context import Context
from semel.formats import declared as formats
from semel.formats.columns import convert
from semel.formats.exact import cast_exactly
from semel.formats.lines import Fault, Parser, RecordLines
from semel.formats.records import OFFSET, Block, Judge, too_long, with_offset
from semel.formats.selection import NO_OFFSETS
from semel.model.batch import Ignored
from semel.model.reasons import Reason
from semel.sources.messages import MessagesSpec

_NOTHING: Fault = (Reason.malformed, "expected a record, found a message whose value is empty")
_BREAK: Fault = (Reason.malformed, "expected one record, found a line break in the middle")


class Values:
    """Turns the messages of one split into blocks, in one pass."""

    def __init__(self, context: Context) -> None:
        self._source: MessagesSpec = context.declared
        schema = context.arrow_schema()
        self._schema = with_offset(schema)
        beside = set(self._source.beside)
        self._values = pa.schema([field for field in schema if field.name not in beside])
        self._judge: Judge | None = None
        self._parser: Parser | None = None
        if self._source.value != "bytes":
            names = self._values.names if self._source.value == "csv" else None
            self._parser = formats.format_of(context).parser(self._values, names)
            self._judge = Judge(self._parser, self._values, context.record_id)

    def type_of(self, column: str) -> pa.DataType:
        """The declared type of a column, in Arrow."""
        return self._schema.field(column).type

    def block(
        self,
        lines: RecordLines,
        beside: Mapping[str, pa.Array],
        *,
        bytes_read: int,
        null: np.ndarray | None = None,
        text: RecordLines | None = None,
        unread: Mapping[int, Fault] = {},
        tombstones: int = 0,
        left_out: np.ndarray = NO_OFFSETS,
    ) -> Block:
        """The records of some messages, in the order of their offsets.

        `lines`: their values, each with one line break behind it; `null` marks those that have
        none, each a row of nothing. `text`: what is judged in their place; those that are `unread`
        have no text. `beside`: the columns that are not of the value, as they come: bytes, or what
        their type is cast from. The rest is as in Block.
        """
        null = np.zeros(len(lines), bool) if null is None else null
        table, faults, ignored = self._judged(lines if text is None else text, null)
        faults |= unread
        rows = np.searchsorted(lines.offsets, table.column(OFFSET).to_numpy())
        table, bad = self._completed(table, beside, rows)
        block = Block(
            table=table,
            faults=faults,
            lines=lines,
            bytes_read=bytes_read,
            ignored=replace(ignored, tombstones=tombstones),
            left_out=left_out,
        )
        if bad:
            places = sorted(bad)
            block = block.without(lines.offsets[places], [bad[at] for at in places])
        return block

    def _judged(
        self, lines: RecordLines, null: np.ndarray
    ) -> tuple[pa.Table, dict[int, Fault], Ignored]:
        """The columns of the values and OFFSET; a null is a row of nothing."""
        if self._judge is None:
            long = np.flatnonzero(lines.lengths > limits.RECORD_BYTES_MAX)
            faults = dict.fromkeys(long.tolist(), too_long())
            good = np.ones(len(lines), bool)
            good[long] = False
            kept = np.flatnonzero(good)
            values = [None if null[at] else lines.raw(at) for at in kept.tolist()]
            columns = [pa.array(values, pa.binary()), pa.array(lines.offsets[kept])]
            return pa.table(columns, schema=with_offset(self._values)), faults, Ignored()
        # Nothing in a value, or a line break in it, is seen here: a parser is given lines.
        faults = dict.fromkeys(np.flatnonzero((lines.lengths == 0) & ~null).tolist(), _NOTHING)
        lines, broken = self._without_breaks(lines)
        faults |= broken
        judged = lines.lengths > 0
        judged[list(broken)] = False
        places = np.flatnonzero(judged)
        whole = len(places) == len(lines)
        taken = lines if whole else lines.take(judged)
        table, found = self._judge.judge(taken if whole else _packed(taken))
        if table.num_rows + len(found) < len(taken):
            there = np.isin(taken.offsets, table.column(OFFSET).to_numpy())
            there[list(found)] = True
            found |= dict.fromkeys(np.flatnonzero(~there).tolist(), _NOTHING)
        ignored = self._parser.ignored(taken.without(found))
        faults |= {int(places[at]): fault for at, fault in found.items()}
        if null.any():
            table = _with_nothing(table, lines.offsets[null])
        return table, faults, ignored

    def _without_breaks(self, lines: RecordLines) -> tuple[RecordLines, dict[int, Fault]]:
        """The same with line breaks of JSON as spaces, and the values that cannot have them."""
        # Behind each value is one line break that is not of it.
        if lines.data.count(b"\n") == len(lines) and b"\r" not in lines.data:
            return lines, {}
        codes = np.frombuffer(lines.data, np.uint8)
        breaks = np.flatnonzero((codes == 10) | (codes == 13))
        inside = np.searchsorted(lines.ends, breaks)
        places = np.unique(inside[breaks != lines.ends[inside]])
        if not len(places):
            return lines, {}
        data, faults = bytearray(lines.data), {}
        for at in places.tolist():
            raw = lines.raw(at)
            if self._source.value == "csv" or not _is_json(raw):
                faults[at] = _BREAK
            else:
                plain = raw.replace(b"\n", b" ").replace(b"\r", b" ")
                data[lines.starts[at] : lines.ends[at]] = plain
        return replace(lines, data=data), faults

    def _completed(
        self, table: pa.Table, beside: Mapping[str, pa.Array], rows: np.ndarray
    ) -> tuple[pa.Table, dict[int, Fault]]:
        """The table with all columns in declared order, and faults of values that do not fit."""
        if not beside:
            return table, {}
        whole = len(rows) == (len(next(iter(beside.values()))))
        made, bad = {}, {}
        for name, column in beside.items():
            found = column if whole else column.take(pa.array(rows))
            kind = self._schema.field(name).type
            if pa.types.is_string(kind):
                found, unfit = _text(found)
                bad |= {
                    int(rows[at]): (Reason.encoding, f"{name}: expected text in UTF-8 without NUL")
                    for at in unfit
                }
            elif pa.types.is_timestamp(kind):
                field = self._schema.field(name)
                found, unfit = convert(pa.chunked_array([cast_exactly(found, kind)]), field)
                bad |= {int(rows[at]): (Reason.type_mismatch, why) for at, why in unfit}
            made[name] = found.cast(kind)
        columns = [
            made[field.name] if field.name in made else table.column(field.name)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema), bad


def lines_of(values: list[bytes], offsets: np.ndarray) -> RecordLines:
    """Values, each with one line break behind it."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths + 1) - 1
    data = b"\n".join([*values, b""])
    return RecordLines(
        data=data, starts=ends - lengths, ends=ends, offsets=offsets, lengths=lengths
    )


def lines_in(values: pa.Array, offsets: np.ndarray) -> RecordLines:
    """The same of a column of values, none of them null, without a copy of each."""
    joined = pc.binary_join_element_wise(values, b"", b"\n")
    _, bounds, data = joined.buffers()
    bounds = np.frombuffer(bounds, np.int32, len(joined) + 1, 4 * joined.offset).astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:] - 1
    return RecordLines(
        data=data.to_pybytes() if data else b"",
        starts=starts, ends=ends, offsets=offsets, lengths=ends - starts,
    )  # fmt: skip


def _packed(lines: RecordLines) -> RecordLines:
    return lines.pack() if len(lines) else lines


def _is_json(raw: bytes) -> bool:
    """Whether it is JSON as the standard has it: no line break within a string."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _with_nothing(table: pa.Table, offsets: np.ndarray) -> pa.Table:
    """The table with a row of nothing at each of some offsets, in order."""
    there = table.column(OFFSET).to_numpy()
    both = np.concatenate((there, offsets))
    order = np.argsort(both, kind="stable")
    taken = pa.array(order, mask=order >= len(there))
    columns = [
        pa.array(both[order]) if name == OFFSET else table.column(name).take(taken)
        for name in table.column_names
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _text(column: pa.Array) -> tuple[pa.Array, list[int]]:
    """Bytes as text, and the rows that are none, which are null in it."""
    try:
        text, bad = column.cast(pa.string()), []
    except pa.ArrowInvalid:
        bad = [at for at, raw in enumerate(column.to_pylist()) if not _is_text(raw)]
        left = np.ones(len(column), bool)
        left[bad] = False
        text = pc.if_else(pa.array(left), column, pa.scalar(None, column.type)).cast(pa.string())
    nul = pc.fill_null(pc.match_substring(text, "\0"), False)
    return text, [*bad, *np.flatnonzero(nul.to_numpy(zero_copy_only=False)).tolist()]


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeDecodeError:
        return False
