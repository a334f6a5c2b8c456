"""Turns the values of messages, and their metadata columns, into blocks of records.

The parsers of files validate the values, so that a record gets the same verdict in each source.
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

_EMPTY: Fault = (Reason.malformed, "expected a record, found a message whose value is empty")
_BREAK: Fault = (Reason.malformed, "expected one record, found a line break in the middle")


class Values:
    """Turns the messages of one split into blocks, in one pass."""

    def __init__(self, context: Context) -> None:
        self._source: MessagesSpec = context.declared
        schema = context.arrow_schema()
        self._schema = with_offset(schema)
        beside = set(self._source.unparsed_columns)
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

        `lines`: their values, each followed by one line break. `null` marks missing values, which
        become rows of nulls. `text`: the lines to parse instead; it is empty for `unread` ones.
        `beside`: the metadata columns, as bytes or in a type that casts to the declared one. Block
        documents the others.
        """
        null = np.zeros(len(lines), bool) if null is None else null
        table, faults, ignored = self._judge_values(lines if text is None else text, null)
        faults |= unread
        rows = np.searchsorted(lines.offsets, table.column(OFFSET).to_numpy())
        table, bad = self._add_unparsed(table, beside, rows)
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

    def _judge_values(
        self, lines: RecordLines, null: np.ndarray
    ) -> tuple[pa.Table, dict[int, Fault], Ignored]:
        """The columns of the values and OFFSET; a missing value is a row of nulls."""
        if self._judge is None:
            long = np.flatnonzero(lines.lengths > limits.RECORD_BYTES_MAX)
            faults = dict.fromkeys(long.tolist(), too_long())
            good = np.ones(len(lines), bool)
            good[long] = False
            valid = np.flatnonzero(good)
            values = [None if null[at] else lines.raw(at) for at in valid.tolist()]
            columns = [pa.array(values, pa.binary()), pa.array(lines.offsets[valid])]
            return pa.table(columns, schema=with_offset(self._values)), faults, Ignored()
        # A parser reads lines: empty values and line breaks within values are faults found here.
        faults = dict.fromkeys(np.flatnonzero((lines.lengths == 0) & ~null).tolist(), _EMPTY)
        lines, broken = self._replace_breaks(lines)
        faults |= broken
        judged = lines.lengths > 0
        judged[list(broken)] = False
        places = np.flatnonzero(judged)
        select_all = len(places) == len(lines)
        parsed = lines if select_all else lines.take(judged)
        table, line_faults = self._judge.judge(parsed if select_all else _pack(parsed))
        if table.num_rows + len(line_faults) < len(parsed):
            decided = np.isin(parsed.offsets, table.column(OFFSET).to_numpy())
            decided[list(line_faults)] = True
            line_faults |= dict.fromkeys(np.flatnonzero(~decided).tolist(), _EMPTY)
        ignored = self._parser.ignored(parsed.without(line_faults))
        faults |= {int(places[at]): fault for at, fault in line_faults.items()}
        if null.any():
            table = _insert_nulls(table, lines.offsets[null])
        return table, faults, ignored

    def _replace_breaks(self, lines: RecordLines) -> tuple[RecordLines, dict[int, Fault]]:
        """Replace line breaks within JSON by spaces; and faults of others with line breaks."""
        # One line break after each value separates it from the next.
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

    def _add_unparsed(
        self, table: pa.Table, beside: Mapping[str, pa.Array], rows: np.ndarray
    ) -> tuple[pa.Table, dict[int, Fault]]:
        """Add the metadata columns, in declared order; and faults of values that do not fit."""
        if not beside:
            return table, {}
        select_all = len(rows) == (len(next(iter(beside.values()))))
        converted, bad = {}, {}
        for name, column in beside.items():
            values = column if select_all else column.take(pa.array(rows))
            kind = self._schema.field(name).type
            if pa.types.is_string(kind):
                values, unfit = _decode_text(values)
                bad |= {
                    int(rows[at]): (Reason.encoding, f"{name}: expected text in UTF-8 without NUL")
                    for at in unfit
                }
            elif pa.types.is_timestamp(kind):
                field = self._schema.field(name)
                values, unfit = convert(pa.chunked_array([cast_exactly(values, kind)]), field)
                bad |= {int(rows[at]): (Reason.type_mismatch, why) for at, why in unfit}
            converted[name] = values.cast(kind)
        columns = [
            converted[field.name] if field.name in converted else table.column(field.name)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema), bad


def record_lines(values: list[bytes], offsets: np.ndarray) -> RecordLines:
    """Values as lines, each followed by one line break."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths + 1) - 1
    data = b"\n".join([*values, b""])
    return RecordLines(
        data=data, starts=ends - lengths, ends=ends, offsets=offsets, lengths=lengths
    )


def record_lines_of_column(values: pa.Array, offsets: np.ndarray) -> RecordLines:
    """A column of values without nulls as lines, without a copy of each value."""
    joined = pc.binary_join_element_wise(values, b"", b"\n")
    _, bounds, data = joined.buffers()
    bounds = np.frombuffer(bounds, np.int32, len(joined) + 1, 4 * joined.offset).astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:] - 1
    return RecordLines(
        data=data.to_pybytes() if data else b"",
        starts=starts, ends=ends, offsets=offsets, lengths=ends - starts,
    )  # fmt: skip


def _pack(lines: RecordLines) -> RecordLines:
    return lines.pack() if len(lines) else lines


def _is_json(raw: bytes) -> bool:
    """Whether it is standard JSON, which forbids line breaks within strings."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _insert_nulls(table: pa.Table, offsets: np.ndarray) -> pa.Table:
    """Insert a row of nulls at each offset, in order."""
    present = table.column(OFFSET).to_numpy()
    both = np.concatenate((present, offsets))
    order = np.argsort(both, kind="stable")
    indices = pa.array(order, mask=order >= len(present))
    columns = [
        pa.array(both[order]) if name == OFFSET else table.column(name).take(indices)
        for name in table.column_names
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _decode_text(column: pa.Array) -> tuple[pa.Array, list[int]]:
    """Bytes as text, and the indices of invalid values, which become null."""
    try:
        text, bad = column.cast(pa.string()), []
    except pa.ArrowInvalid:
        bad = [at for at, raw in enumerate(column.to_pylist()) if not _is_text(raw)]
        valid = np.ones(len(column), bool)
        valid[bad] = False
        text = pc.if_else(pa.array(valid), column, pa.scalar(None, column.type)).cast(pa.string())
    nul = pc.fill_null(pc.match_substring(text, "\0"), False)
    return text, [*bad, *np.flatnonzero(nul.to_numpy(zero_copy_only=False)).tolist()]


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeDecodeError:
        return False
