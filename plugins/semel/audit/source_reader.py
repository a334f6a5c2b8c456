"""Turns lines of a source into ids and hashes of their records, in the audit's DuckDB."""

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


class LetterBytes(NamedTuple):
    """The length and the digest of the bytes that a dead letter keeps of its record."""

    length: int
    digest: bytes

    @classmethod
    def from_raw(cls, raw: bytes) -> "LetterBytes":
        return cls(len(raw), xxhash.xxh3_128_digest(raw))


Letters = dict[tuple[int, int], dict[int, list[tuple[str, LetterBytes]]]]
"""Dead letters by (batch, source partition) and offset: each copy's reason and bytes."""

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
    """Reads lines into a table like `source`: by the fast path if it can decide, else by the exact
    path.

    `wrong_bytes`: the dead letters (batch, source partition, offset) whose bytes differ from the
    source's.
    """

    def __init__(self, engine: DuckEngine, letters: Letters, table: str = "source") -> None:
        self._engine = engine
        self._table = table
        self._letters = letters
        self.wrong_bytes: set[tuple[int, int, int]] = set()
        self._pending: list[ClaimedRecords] = []
        self._bytes = 0
        self._dialect: LineDialect | None = None

    def read(self, lines: ClaimedRecords, dialect: LineDialect) -> None:
        """Add lines. They are in the table after the next `flush`."""
        if dialect != self._dialect:
            self.flush()
            self._dialect = dialect
        self._pending.append(lines)
        self._bytes += lines.nbytes
        if self._bytes >= limits.AUDIT_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Insert the pending lines into the table."""
        if not self._pending:
            return
        chunks, self._pending, self._bytes = self._pending, [], 0
        tables, exact, base = [], [], 0
        for lines in chunks:
            slow = self._needs_exact_path(lines)
            fast = lines.is_record & ~slow
            tables.append(_table(lines, fast, base, text=self._dialect.text))
            exact += [(lines, int(at)) for at in np.flatnonzero(lines.is_record & slow)]
            base += len(lines.is_record)
        statement, braces = sift(self._dialect)
        self._engine.run(statement, pa.concat_tables(tables), braces)
        undecided = self._engine.run("unsifted").fetchnumpy()["line_no"]
        starts = np.cumsum([0, *(len(lines.is_record) for lines in chunks)])
        for number in np.sort(undecided):
            at = int(np.searchsorted(starts, number, side="right")) - 1
            exact.append((chunks[at], int(number - starts[at])))
        d = self._dialect
        braces = {"table": self._table, "id": d.id, "bucket": d.bucket, "content": d.content}
        braces |= {"time": d.time, "cells": d.cells}
        self._engine.run("insert_source", self._judge_lines(exact), braces)

    def _needs_exact_path(self, lines: ClaimedRecords) -> np.ndarray:
        """The lines that only the exact path may judge: dead letters, lines that the second reader
        calls bad or doubtful, and bytes that are not text."""
        slow = np.zeros(len(lines.is_record), bool)
        letters = self._letters.get((lines.batch, lines.claim.source_partition_id))
        if letters:
            slow |= np.isin(lines.positions, np.fromiter(letters, np.int64, len(letters)))
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

    def _judge_lines(self, exact: list[tuple[ClaimedRecords, int]]) -> pa.Table:
        judge = _judge_of(self._dialect)
        width = len(self._dialect.columns)
        rows, beside = [], []
        for lines, at in exact:
            raw, position = lines.raw(at), int(lines.positions[at])
            part = lines.claim.source_partition_id
            if at in lines.faults:
                line = JudgedLine(kind=LineKind.BAD, why=lines.faults[at])
            elif lines.is_null is not None and lines.is_null[at]:
                line = JudgedLine(kind=LineKind.GOOD)
            else:
                line = judge(lines.text(at))
            if at in lines.doubts and line.kind is LineKind.GOOD:
                line = replace(line, kind=LineKind.UNSURE, why=lines.doubts[at])
            beside.append(_beside(lines).slice(at, 1))
            copies = self._letters.get((lines.batch, part), {}).get(position, ())
            if any(not _keeps_bytes(raw, *letter) for letter in copies):
                self.wrong_bytes.add((lines.batch, part, position))
            values = line.values or (None,) * width
            ordinal = lines.claim.ordinal
            rows.append((lines.batch, ordinal, part, position, line.kind, line.why, values))
        table = _of_rows(rows, _JUDGED)
        return table.append_column("beside", pa.concat_arrays(beside) if beside else pa.nulls(0))


def _table(lines: ClaimedRecords, fast: np.ndarray, base: int, *, text: bool) -> pa.Table:
    """The lines that `fast` marks, for DuckDB. Copies no bytes if `fast` marks all lines.

    `text`: the lines are text, not bytes. A line without a value is null.
    """
    count = len(fast)
    offsets = pa.py_buffer(np.ascontiguousarray(lines.bounds, np.int64))
    array = pa.Array.from_buffers(
        pa.large_binary(), count, [None, offsets, pa.py_buffer(lines.data)]
    )
    beside, marked = _beside(lines), np.flatnonzero(fast)
    if len(marked) < count:
        array, beside = array.take(pa.array(marked)), beside.take(pa.array(marked))
    if lines.is_null is not None and lines.is_null.any():
        has_value = pa.array(~lines.is_null[marked])
        array = pc.if_else(has_value, array, pa.scalar(None, array.type))
    claim = lines.claim
    return pa.table(
        {
            "line_no": marked + base,
            "batch": np.full(len(marked), lines.batch, np.int64),
            "claim": np.full(len(marked), claim.ordinal, np.int32),
            "part": np.full(len(marked), claim.source_partition_id, np.int64),
            "pos": lines.positions[marked],
            "line": array.view(pa.large_string()) if text else array,
            "beside": beside,
        }
    )


def _beside(lines: ClaimedRecords) -> pa.Array:
    columns = lines.unparsed_columns
    return pa.nulls(len(lines.is_record)) if columns is None else columns


def _is_text(lines: ClaimedRecords) -> bool:
    """True if each line alone is UTF-8: no character begins in one line and ends in the next."""
    try:
        lines.data.decode()
    except UnicodeDecodeError:
        return False
    starts = lines.bounds[:-1]
    first = np.frombuffer(lines.data, np.uint8)[starts[starts < len(lines.data)]]
    return not np.any(first & 0xC0 == 0x80)


def _line_of(lines: ClaimedRecords, places: np.ndarray) -> np.ndarray:
    """The lines that contain these bytes of `data`. Ignores bytes before the first line."""
    places = places[places >= lines.bounds[0]]
    return np.unique(np.searchsorted(lines.bounds, places, side="right") - 1)


def _judge_of(dialect: LineDialect) -> Judge:
    columns = dict(dialect.columns)
    if not dialect.text:
        return bytes_judge
    if dialect.csv is None:
        return json_judge(columns, dialect.rules)
    return csv_judge(columns, list(dialect.header), dialect.csv, dialect.rules)


def _keeps_bytes(raw: bytes, reason: str, letter: LetterBytes) -> bool:
    """True if a dead letter keeps its record's bytes, or a too long record's first bytes."""
    if reason == Reason.too_long and len(raw) > limits.RECORD_BYTES_MAX:
        raw = raw[: limits.REJECTED_HEAD_BYTES]
    return letter == LetterBytes.from_raw(raw)


def letters_table(letters: Letters, wrong: set[tuple[int, int, int]]) -> pa.Table:
    """Dead letters as rows of the table `letter`."""
    rows = [
        (batch, part, position, reason, (batch, part, position) in wrong)
        for (batch, part), by_offset in letters.items()
        for position, copies in by_offset.items()
        for reason, _ in copies
    ]
    return _of_rows(rows, _LETTER)


def _of_rows(rows: list[tuple], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([list(column) for column in columns], schema=schema)
