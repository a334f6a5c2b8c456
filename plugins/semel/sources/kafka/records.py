"""Messages become blocks of records: the columns of their values, and those of what is beside them.

A value is judged as a line of a file is, by the same parsers, so that a record has the same verdict
wherever it comes from.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from semel import limits
from semel.clients.kafka.registry import Registry
from semel.declare.context import Context
from semel.formats import declared as formats
from semel.formats.lines import Fault, Lines, Parser
from semel.formats.records import OFFSET, Block, Judge, too_long, with_offset
from semel.formats.selection import Selection
from semel.model.batch import Ignored
from semel.model.reasons import Reason
from semel.sources.kafka.avro import Avro
from semel.sources.kafka.spec import ALL_HEADERS, KafkaSource

if TYPE_CHECKING:
    from confluent_kafka import Message

_NOTHING: Fault = (Reason.malformed, "expected a record, found a message whose value is empty")
_BREAK: Fault = (Reason.malformed, "expected one record, found a line break in the middle")


class Records:
    """Turns the messages of one split into blocks, in one pass."""

    def __init__(self, context: Context, name: str) -> None:
        """`name`: the partition that they are of."""
        self._source: KafkaSource = context.declared
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
        registry = Registry.of(self._source.registry)
        self._avro = Avro(registry, name, context.limits.unknown_schemas_max) if registry else None
        self._streams = {name: _Stream() for name in (OFFSET, "", *self._source.beside)}

    def close(self) -> None:
        """End what was opened to read values."""
        if self._avro is not None:
            self._avro.close()

    def digests(self) -> Iterable[bytes]:
        """What was read, however it came in chunks."""
        return (part for stream in self._streams.values() for part in stream.digests())

    def block(self, chunk: Sequence["Message"], selection: Selection | None = None) -> Block:
        """The records of some messages, in the order of their offsets."""
        offsets = np.fromiter((m.offset() for m in chunk), np.int64, len(chunk))
        values = [m.value() for m in chunk]
        beside = self._beside(chunk)
        self._streams[OFFSET].fixed(offsets)
        self._streams[""].add(values)
        # 1. Messages without a value are records only where that is declared. Of the records, some
        #    may be left out.
        null = np.fromiter((value is None for value in values), bool, len(values))
        keep = self._source.tombstones == "keep"
        tombstones = 0 if keep else int(null.sum())
        records = np.ones(len(values), bool) if keep else ~null
        taken = records if selection is None else records & selection.takes(offsets)
        bytes_read, left_out = sum(map(len, filter(None, values))), offsets[records & ~taken]
        if not taken.all():
            values, offsets = list(compress(values, taken.tolist())), offsets[taken]
            beside = {name: column.filter(pa.array(taken)) for name, column in beside.items()}
            null = null[taken]
        lines = _lines([value or b"" for value in values], offsets)
        # 2. The values.
        text, unread = lines, {}
        if self._avro is not None:
            texts, unread = self._avro.texts(values)
            text = _lines(texts, offsets)
        table, faults, ignored = self._judged(text, null)
        faults |= unread
        # 3. The columns beside them.
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
        self, lines: Lines, null: np.ndarray
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

    def _without_breaks(self, lines: Lines) -> tuple[Lines, dict[int, Fault]]:
        """The same with line breaks of JSON as spaces, and the values that cannot have them."""
        codes = np.frombuffer(lines.data, np.uint8)
        breaks = np.flatnonzero((codes == 10) | (codes == 13))
        # Behind each value is one line break that is not of it.
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

    def _beside(self, chunk: Sequence["Message"]) -> dict[str, pa.Array]:
        """The columns that are not of the value, as they come: bytes, or lists of headers."""
        source, columns = self._source, {}
        if source.key:
            keys = [m.key() for m in chunk]
            self._streams[source.key].add(keys)
            columns[source.key] = pa.array(keys, pa.binary())
        if source.timestamp:
            stamps = [m.timestamp() for m in chunk]
            times = np.fromiter((ms if kind else -1 for kind, ms in stamps), np.int64, len(chunk))
            self._streams[source.timestamp].fixed(times)
            known = pa.array(times, mask=times < 0)
            columns[source.timestamp] = known.cast(pa.timestamp("ms", "UTC"))
        if source.headers:
            headers = [m.headers() or [] for m in chunk]
            for column, name in source.headers.items():
                columns[column] = self._header(column, name, headers)
        return columns

    def _header(
        self, column: str, name: str, headers: list[list[tuple[str, bytes | None]]]
    ) -> pa.Array:
        if name == ALL_HEADERS:
            self._streams[column].add([repr(found).encode() for found in headers])
            kind = self._schema.field(column).type
            return pa.array([[{"key": k, "value": v} for k, v in h] for h in headers], kind)
        values = [dict(found).get(name) for found in headers]
        self._streams[column].add(values)
        return pa.array(values, pa.binary())

    def _completed(
        self, table: pa.Table, beside: dict[str, pa.Array], rows: np.ndarray
    ) -> tuple[pa.Table, dict[int, Fault]]:
        """The table with all columns in declared order, and faults of text that is none."""
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
            made[name] = found.cast(kind)
        columns = [
            made[field.name] if field.name in made else table.column(field.name)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema), bad


class _Stream:
    """Hashes a column of values that comes in chunks, wherever these are cut."""

    def __init__(self) -> None:
        self._bytes, self._lengths = xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, values: list[bytes | None]) -> None:
        self._bytes.update(b"".join([value for value in values if value]))
        lengths = (-1 if value is None else len(value) for value in values)
        self._lengths.update(np.fromiter(lengths, np.int64, len(values)).tobytes())

    def fixed(self, values: np.ndarray) -> None:
        self._lengths.update(values.tobytes())

    def digests(self) -> Iterator[bytes]:
        yield self._bytes.digest()
        yield self._lengths.digest()


def _lines(values: list[bytes], offsets: np.ndarray) -> Lines:
    """Values, each with one line break behind it."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths + 1) - 1
    data = b"\n".join([*values, b""])
    return Lines(data=data, starts=ends - lengths, ends=ends, offsets=offsets, lengths=lengths)


def _packed(lines: Lines) -> Lines:
    return lines.packed() if len(lines) else lines


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
