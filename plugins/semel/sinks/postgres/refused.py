"""Values that a table will refuse, found in a task that has no connection to it.

Called for each table of output rows, vectorised: what is most often asked is answered by one
minimum and maximum.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.formats.jsonlsink import beyond_json, marked
from semel.sinks import RefusedRows
from semel.sinks.postgres import types
from semel.sinks.postgres.facts import ColumnFacts, TableFacts
from semel.sinks.postgres.predicate import parse

JSON_DEPTH_MAX = 500
"""Deepest value of a JSON column of a PostgreSQL: readers of JSON recurse, also PostgreSQL's."""

_BOUNDS = {
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
_DAYS = (-2_440_588, 2_145_042_905)  # 4714-11-24 BC, and 5874897-12-31.
_MOMENT_FIRST = -210_866_803_200_000_000  # The same first day, in microseconds.
# What may be more than jsonb takes: NUL, half a character, a huge number.
_ODD_JSON = r"\\u0000|\\u[dD][89a-fA-F]|[eE][+-]?[0-9]{4}|[0-9]{1000}"
_NUMBER_DIGITS = (131_072, 16_383)  # Before and behind the point.
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])

Row = np.ndarray


@dataclass(frozen=True, kw_only=True)
class PostgresRowCheck:
    """`refused`, with what it needs to know of the table."""

    facts: TableFacts

    @property
    def notes(self) -> tuple[str, ...]:
        """What will refuse rows without being looked at before."""
        return self.facts.notes

    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        return refused(self.facts, table)


WIDE = "a row is larger than a page of the table, even with its long values stored apart"

_BYTES = {"boolean": 1, "smallint": 2, "integer": 4, "real": 4, "date": 4}
_LEAST = {"numeric": 3, "jsonb": 5}
"""Bytes of a value, which begins at a multiple of them: 8 where neither names its type. And at
least of one that begins anywhere, as texts do."""


# Keeps PG6.
def too_wide(facts: TableFacts, table: pa.Table) -> np.ndarray:
    """Which rows no page holds, by what PostgreSQL needs for each value at least."""
    size, header = np.zeros(len(table), np.int64), np.full(len(table), 24)
    if 24 * (len(facts.columns) + 3) <= facts.row_bytes_max:  # More stays in no row of a value.
        return size > 0
    types_of = {column.name: column.type for column in facts.columns}
    for name in facts.order:
        values, kind = table.column(name), types_of[name]
        if kind in types.VARYING and not types.is_nested(values.type):
            length = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64) + 1
            # Apart it leaves 18; from 32 on it may be compressed.
            end = size + np.select([length <= 24, length <= 32], [length, 18], 12)
        elif kind in types.VARYING or kind in _LEAST:
            end = size + _LEAST.get(kind, 1)
        else:
            end = -(-size // _BYTES.get(kind, 8)) * _BYTES.get(kind, 8) + _BYTES.get(kind, 8)
        empty = values.is_null().to_numpy()
        size = np.where(empty, size, end)
        header[empty] = 23 + (len(types_of) + 9) // 8  # A bit for each column, and semel's two.
    return -(-size // 8) + -(-header // 8) + 2 > facts.row_bytes_max // 8


# Keeps PG6.
def refused(facts: TableFacts, table: pa.Table) -> list[RefusedRows]:
    """The rows of `table` that the target will refuse. A row may be there for several reasons:
    null, nul, long, range, number, json, check, wide.
    """
    found = [one for column in facts.columns for one in _of_column(facts, column, table)]
    _add(found, too_wide(facts, table), "wide", f"{facts.table}: {WIDE}")
    kinds = {column.name: column.type for column in facts.columns}
    for check in facts.checks:
        judge = parse(check.text, kinds)
        bad = pc.invert(pc.fill_null(judge(table), True))
        _add(found, bad, "check", f"{facts.table} has the CHECK {check.name!r}")
    return found


def _add(found: list[RefusedRows], bad: Any, reason: str, detail: str) -> None:
    mask = bad if isinstance(bad, np.ndarray) else marked(bad)
    if mask.any():
        found.append(RefusedRows(np.flatnonzero(mask), reason, detail))


_IN_JSON = {
    "number": "no NaN and no infinity: JSON has none",
    "nul": "no NUL (U+0000)",
    "range": "times of the years 1 to 9999: in JSON they are texts",
}
"""What no value within JSON may be, by its reason."""


def _of_column(facts: TableFacts, column: ColumnFacts, table: pa.Table) -> list[RefusedRows]:
    values, found = table.column(column.name), []
    name = f"column {column.name!r} of {facts.table}"
    if values.null_count and (column.not_null or column.name in facts.key):
        why = "is in the key" if column.name in facts.key else "is NOT NULL"
        _add(found, pc.is_null(values), "null", f"{name} {why}")
    kind = values.type
    if types.is_nested(kind):
        for reason, why in _IN_JSON.items():
            _add(found, beyond_json(values.combine_chunks(), reason), reason, f"{name} takes {why}")
        return found
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        _of_text(found, name, column, values)
    elif column.type in _BOUNDS:
        low, high = _BOUNDS[column.type]
        _outside(found, values.cast(pa.int64()), low, high, f"{name} is {column.type}")
    elif column.type == "numeric" and column.precision is not None:
        most = 10 ** (column.precision - column.scale)
        said = f"{name} is numeric({column.precision},{column.scale})"
        _of_numeric(found, values, most, said)
    elif column.type == "date":
        _outside(found, values.cast(pa.int32()).cast(pa.int64()), *_DAYS, f"{name} is a date")
    elif column.type.startswith("timestamp"):
        moments = values.cast(pa.int64())
        _outside(found, moments, _MOMENT_FIRST, 2**63 - 1, f"{name} is a timestamp")
    return found


def _outside(
    found: list[RefusedRows], values: pa.ChunkedArray, low: int, high: int, said: str
) -> None:
    ends = pc.min_max(values).as_py()
    if ends["min"] is not None and (ends["min"] < low or ends["max"] > high):
        bad = pc.or_(pc.less(values, pa.scalar(low)), pc.greater(values, pa.scalar(high)))
        _add(found, bad, "range", said)


def _of_numeric(found: list[RefusedRows], values: pa.ChunkedArray, most: int, said: str) -> None:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or (-most < ends["min"] and ends["max"] < most):
        return
    digits = values.type.precision if pa.types.is_decimal(values.type) else 19
    scale = values.type.scale if pa.types.is_decimal(values.type) else 0
    wide = pa.decimal256(min(76, digits + 1), scale)
    whole = values if pa.types.is_decimal(values.type) else values.cast(pa.decimal128(19, 0))
    bound = pa.scalar(Decimal(most), wide)
    bad = pc.or_(
        pc.greater_equal(whole.cast(wide), bound),
        pc.less_equal(whole.cast(wide), pa.scalar(Decimal(-most), wide)),
    )
    _add(found, bad, "range", said)


def _of_text(
    found: list[RefusedRows], name: str, column: ColumnFacts, values: pa.ChunkedArray
) -> None:
    if column.type in types.JSON:
        bad = np.zeros(len(values), dtype=bool)
        bad[list(_no_json(values, strict=column.type == "jsonb"))] = True
        _add(found, bad, "json", f"{name} is {column.type}")
        return
    if pc.any(has_nul := pc.match_substring(values, "\0")).as_py():
        _add(found, has_nul, "nul", f"{name} takes no NUL (U+0000)")
    if column.length is not None:
        # No text has more characters than bytes. PostgreSQL would cut blanks off, without a word.
        if (pc.max(pc.binary_length(values)).as_py() or 0) > column.length:
            bad = pc.greater(pc.utf8_length(values), column.length)
            _add(found, bad, "long", f"{name} is varchar({column.length})")


def _no_json(values: pa.ChunkedArray, *, strict: bool) -> Iterator[int]:
    """The numbers of the texts that are no JSON, or such that jsonb (`strict`) does not take."""
    texts = values.cast(pa.large_binary()).to_pylist()
    yield from _broken(texts, [n for n, text in enumerate(texts) if text is not None])
    odd = marked(pc.match_substring_regex(values, _ODD_JSON)) if strict else None
    long = marked(pc.greater(pc.binary_length(values), 2 * JSON_DEPTH_MAX))
    for n in np.flatnonzero(long if odd is None else odd | long).tolist():
        if not _jsonb_takes(texts[n], strict=strict):
            yield n


def _broken(texts: list[bytes | None], among: list[int]) -> Iterator[int]:
    """Which of them are no JSON: all are read as one array, and halves of it where that fails."""
    if not among:
        return
    try:
        raws = _RAWS.decode(b"[" + b",".join([texts[n] for n in among]) + b"]")
        # One that holds a part of an array could end where another one begins.
        sizes = [len(memoryview(raw)) for raw in raws]
        whole = sizes == [len(texts[n].strip(b" \t\r\n")) for n in among]
    except (msgspec.DecodeError, RecursionError):
        whole = False
    if whole:
        return
    if len(among) == 1:
        yield among[0]
        return
    half = len(among) // 2
    yield from _broken(texts, among[:half])
    yield from _broken(texts, among[half:])


def _jsonb_takes(text: bytes, *, strict: bool) -> bool:
    """Whether PostgreSQL takes a text, of which is known that it is JSON or broken."""
    if _depth(text) > JSON_DEPTH_MAX:
        return False
    if not strict:
        return True
    try:
        plain = json.loads(text, parse_float=_counted, parse_int=_counted, parse_constant=_counted)
        return b"\0" not in "".join(_strings(plain)).encode()
    except ValueError:  # Half a character, or a number that is too large.
        return False


def _counted(number: str) -> int:
    """0 for a number that jsonb holds. ValueError for another."""
    try:
        exact = Decimal(number)
    except InvalidOperation as error:
        raise ValueError("the exponent is beyond all numbers") from error
    before, behind = _NUMBER_DIGITS
    if exact and (exact.adjusted() >= before or -exact.as_tuple().exponent > behind):
        raise ValueError("the number is too large for PostgreSQL")
    return 0


def _strings(plain: Any) -> Iterator[str]:
    todo = [plain]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            todo += one


def _depth(text: bytes) -> int:
    """How deep a JSON text nests: brackets outside of its strings."""
    data = np.frombuffer(text, np.uint8)
    quote = data == ord('"')
    # A quote behind an odd number of backslashes is part of its string.
    slash = data == ord("\\")
    at = np.arange(len(data))
    run = at - np.maximum.accumulate(np.where(slash, -1, at))
    escaped = np.concatenate(([False], (run[:-1] % 2) == 1))
    inside = np.cumsum(quote & ~escaped) % 2 == 1
    opens = ((data == ord("[")) | (data == ord("{"))) & ~inside
    ends = ((data == ord("]")) | (data == ord("}"))) & ~inside
    return int(np.cumsum(opens.astype(np.int64) - ends).max(initial=0))
