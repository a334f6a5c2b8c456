"""From lines of a source to ids and hashes of their records, in the audit's DuckDB."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from semel import limits
from semel.audit.exact import Judge, JudgedLine, LineKind, bytes_judge, csv_judge, json_judge
from semel.audit.fast import LineDialect, sift
from semel.clients.duck import DuckEngine
from semel.model.reasons import Reason
from semel.sources.reread import ClaimedRecords


class Kept(NamedTuple):
    """The bytes that a dead letter keeps of its record: how many, and their digest."""

    length: int
    digest: bytes

    @classmethod
    def of(cls, raw: bytes) -> "Kept":
        return cls(len(raw), xxhash.xxh3_128_digest(raw))


Letters = dict[tuple[int, int], dict[int, list[tuple[str, Kept]]]]
"""Dead letters by (batch, source partition) and offset: reason and kept bytes, once each."""

_LETTER = pa.schema(
    [
        ("batch", pa.int64()), ("part", pa.int64()), ("pos", pa.int64()), ("reason", pa.string()),
        ("wrong_bytes", pa.bool_()),
    ]
)  # fmt: skip
_JUDGED = pa.schema(
    [
        ("batch", pa.int64()), ("claim", pa.int32()), ("part", pa.int64()), ("pos", pa.int64()),
        ("word", pa.string()), ("why", pa.string()), ("f", pa.list_(pa.string())),
    ]
)  # fmt: skip


class SourceReader:
    """Reads lines into a table like `source`: fast where that decides, exactly elsewhere.

    `wrong_bytes`: the dead letters (batch, source partition, offset) that keep other bytes than the
    source has.
    """

    def __init__(self, engine: DuckEngine, letters: Letters, table: str = "source") -> None:
        self._engine = engine
        self._table = table
        self._letters = letters
        self.wrong_bytes: set[tuple[int, int, int]] = set()
        self._held: list[ClaimedRecords] = []
        self._bytes = 0
        self._dialect: LineDialect | None = None

    def read(self, lines: ClaimedRecords, dialect: LineDialect) -> None:
        """Take lines; they are in the table after the next `flush`."""
        if dialect != self._dialect:
            self.flush()
            self._dialect = dialect
        self._held.append(lines)
        self._bytes += lines.nbytes
        if self._bytes >= limits.AUDIT_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Bring what is held into the table."""
        if not self._held:
            return
        held, self._held, self._bytes = self._held, [], 0
        tables, exact, base = [], [], 0
        for lines in held:
            slow = self._slow(lines)
            fast = lines.is_record & ~slow
            tables.append(_table(lines, fast, base, text=self._dialect.text))
            exact += [(lines, int(at)) for at in np.flatnonzero(lines.is_record & slow)]
            base += len(lines.is_record)
        statement, braces = sift(self._dialect)
        self._engine.run(statement, pa.concat_tables(tables), braces)
        rest = self._engine.run("unsifted").fetchnumpy()["line_no"]
        starts = np.cumsum([0, *(len(lines.is_record) for lines in held)])
        for number in np.sort(rest):
            at = int(np.searchsorted(starts, number, side="right")) - 1
            exact.append((held[at], int(number - starts[at])))
        d = self._dialect
        braces = {"table": self._table, "id": d.id, "bucket": d.bucket, "content": d.content}
        braces |= {"time": d.time, "cells": d.cells}
        self._engine.run("insert_source", self._judged(exact), braces)

    def _slow(self, lines: ClaimedRecords) -> np.ndarray:
        """Which lines only the exact path may judge: dead letters, what is bad by itself, and bytes
        that are no text."""
        slow = np.zeros(len(lines.is_record), bool)
        found = self._letters.get((lines.batch, lines.claim.source_partition_id))
        if found:
            slow |= np.isin(lines.positions, np.fromiter(found, np.int64, len(found)))
        slow[[*lines.faults, *lines.doubts]] = True
        sizes = np.diff(lines.bounds)
        slow |= sizes > limits.RECORD_BYTES_MAX
        if not self._dialect.text:
            return slow
        csv = self._dialect.csv
        if csv is not None and csv.multiline:
            slow[:] = True
        if b"\0" in lines.data:
            nulls = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == 0)
            slow[_line_of(lines, nulls)] = True
        if not _is_text(lines):
            high = np.flatnonzero(np.frombuffer(lines.data, np.uint8) >= 128)
            slow[_line_of(lines, high)] = True
        return slow

    def _judged(self, exact: list[tuple[ClaimedRecords, int]]) -> pa.Table:
        judge = _judge_of(self._dialect)
        width = len(self._dialect.columns)
        rows, beside = [], []
        for lines, at in exact:
            raw, position = lines.raw(at), int(lines.positions[at])
            part = lines.claim.source_partition_id
            if at in lines.faults:
                found = JudgedLine(word=LineKind.BAD, why=lines.faults[at])
            elif lines.is_null is not None and lines.is_null[at]:
                found = JudgedLine(word=LineKind.GOOD)
            else:
                found = judge(lines.text(at))
            if at in lines.doubts and found.word is LineKind.GOOD:
                found = replace(found, word=LineKind.UNSURE, why=lines.doubts[at])
            beside.append(_beside(lines).slice(at, 1))
            found_letters = self._letters.get((lines.batch, part), {}).get(position, ())
            if any(not _kept_right(raw, *letter) for letter in found_letters):
                self.wrong_bytes.add((lines.batch, part, position))
            values = found.values or (None,) * width
            ordinal = lines.claim.ordinal
            rows.append((lines.batch, ordinal, part, position, found.word, found.why, values))
        table = _of_rows(rows, _JUDGED)
        return table.append_column("beside", pa.concat_arrays(beside) if beside else pa.nulls(0))


def _table(lines: ClaimedRecords, fast: np.ndarray, base: int, *, text: bool) -> pa.Table:
    """The lines that `fast` marks, as DuckDB reads them; a view of the bytes when these are all.

    `text`: they are. Null: there is no value.
    """
    count = len(fast)
    offsets = pa.py_buffer(np.ascontiguousarray(lines.bounds, np.int64))
    array = pa.Array.from_buffers(
        pa.large_binary(), count, [None, offsets, pa.py_buffer(lines.data)]
    )
    beside, kept = _beside(lines), np.flatnonzero(fast)
    if len(kept) < count:
        array, beside = array.take(pa.array(kept)), beside.take(pa.array(kept))
    if lines.is_null is not None and lines.is_null.any():
        there = pa.array(~lines.is_null[kept])
        array = pc.if_else(there, array, pa.scalar(None, array.type))
    claim = lines.claim
    return pa.table(
        {
            "line_no": kept + base,
            "batch": np.full(len(kept), lines.batch, np.int64),
            "claim": np.full(len(kept), claim.ordinal, np.int32),
            "part": np.full(len(kept), claim.source_partition_id, np.int64),
            "pos": lines.positions[kept],
            "line": array.view(pa.large_string()) if text else array,
            "beside": beside,
        }
    )


def _beside(lines: ClaimedRecords) -> pa.Array:
    return pa.nulls(len(lines.is_record)) if lines.unparsed_columns is None else lines.unparsed_columns


def _is_text(lines: ClaimedRecords) -> bool:
    """Whether each line is UTF-8 by itself: a letter may not begin in one and end in the next."""
    try:
        lines.data.decode()
    except UnicodeDecodeError:
        return False
    starts = lines.bounds[:-1]
    first = np.frombuffer(lines.data, np.uint8)[starts[starts < len(lines.data)]]
    return not np.any(first & 0xC0 == 0x80)


def _line_of(lines: ClaimedRecords, places: np.ndarray) -> np.ndarray:
    """The lines in which bytes of `data` lie; bytes before the first line are in none."""
    places = places[places >= lines.bounds[0]]
    return np.unique(np.searchsorted(lines.bounds, places, side="right") - 1)


def _judge_of(dialect: LineDialect) -> Judge:
    columns = dict(dialect.columns)
    if not dialect.text:
        return bytes_judge
    if dialect.csv is None:
        return json_judge(columns, dialect.rules)
    return csv_judge(columns, list(dialect.header), dialect.csv, dialect.rules)


def _kept_right(raw: bytes, reason: str, kept: Kept) -> bool:
    """Whether a dead letter keeps a record's bytes; of one that is too long, its first bytes."""
    if reason == Reason.too_long and len(raw) > limits.RECORD_BYTES_MAX:
        raw = raw[: limits.REJECTED_HEAD_BYTES]
    return kept == Kept.of(raw)


def letters_table(letters: Letters, wrong: set[tuple[int, int, int]]) -> pa.Table:
    """Dead letters as rows of the table `letter`."""
    rows = [
        (batch, part, position, reason, (batch, part, position) in wrong)
        for (batch, part), found in letters.items()
        for position, copies in found.items()
        for reason, _ in copies
    ]
    return _of_rows(rows, _LETTER)


def _of_rows(rows: list[tuple], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([list(column) for column in columns], schema=schema)
