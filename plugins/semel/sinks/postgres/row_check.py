"""Find values that a table will refuse, in a task without a connection to it.

Runs for each Arrow table of output rows, vectorised: most columns need one minimum and maximum.
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

from semel.formats.jsonlsink import as_mask, beyond_json
from semel.sinks import RefusedRows
from semel.sinks.postgres import types
from semel.sinks.postgres.facts import ColumnFacts, TableFacts
from semel.sinks.postgres.predicate import parse

JSON_DEPTH_MAX = 500
"""Maximum nesting in a JSON column: JSON readers recurse, PostgreSQL's too."""

_BOUNDS = {
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
_DAYS = (-2_440_588, 2_145_042_905)  # 4714-11-24 BC, and 5874897-12-31.
_MOMENT_FIRST = -210_866_803_200_000_000  # The same first day, in microseconds.
# May exceed the limits of jsonb: NUL, a lone surrogate, a huge number.
_ODD_JSON = r"\\u0000|\\u[dD][89a-fA-F]|[eE][+-]?[0-9]{4}|[0-9]{1000}"
_NUMBER_DIGITS = (131_072, 16_383)  # Before and after the decimal point.
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])

Row = np.ndarray


@dataclass(frozen=True, kw_only=True)
class PostgresRowCheck:
    """`find_refused_rows` with the facts of its table."""

    facts: TableFacts

    @property
    def notes(self) -> tuple[str, ...]:
        """For the operator: the rules that stage cannot check."""
        return self.facts.notes

    def __call__(self, table: pa.Table) -> list[RefusedRows]:
        return find_refused_rows(self.facts, table)


WIDE = "a row is larger than a page, even with its long values stored in the TOAST table"

_BYTES = {"boolean": 1, "smallint": 2, "integer": 4, "real": 4, "date": 4}
_LEAST = {"numeric": 3, "jsonb": 5}
"""Sizes in bytes. `_BYTES`: a fixed-width value, aligned to its size; 8 for types in neither.
`_LEAST`: the minimum of an unaligned value."""


# Keeps PG6.
def too_wide(facts: TableFacts, table: pa.Table) -> np.ndarray:
    """Mark the rows that fit no page, by the minimum that PostgreSQL needs for each value."""
    size, header = np.zeros(len(table), np.int64), np.full(len(table), 24)
    if 24 * (len(facts.columns) + 3) <= facts.row_bytes_max:  # Stored apart, they all fit.
        return size > 0
    types_of = {column.name: column.type for column in facts.columns}
    for name in facts.order:
        values, kind = table.column(name), types_of[name]
        if kind in types.VARYING and not types.is_nested(values.type):
            length = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64) + 1
            # Stored apart it leaves 18 bytes; from 32 bytes on it may be compressed.
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
def find_refused_rows(facts: TableFacts, table: pa.Table) -> list[RefusedRows]:
    """The rows of `table` that the target will refuse, once for each reason: null, nul, long,
    range, number, json, check, wide.
    """
    refused = [one for column in facts.columns for one in _check_column(facts, column, table)]
    _add(refused, too_wide(facts, table), "wide", f"{facts.table}: {WIDE}")
    kinds = {column.name: column.type for column in facts.columns}
    for check in facts.checks:
        judge = parse(check.text, kinds)
        bad = pc.invert(pc.fill_null(judge(table), True))
        _add(refused, bad, "check", f"{facts.table} has the CHECK {check.name!r}")
    return refused


def _add(refused: list[RefusedRows], bad: Any, reason: str, detail: str) -> None:
    mask = bad if isinstance(bad, np.ndarray) else as_mask(bad)
    if mask.any():
        refused.append(RefusedRows(np.flatnonzero(mask), reason, detail))


_IN_JSON = {
    "number": "NaN or an infinity, which JSON lacks",
    "nul": "NUL (U+0000)",
    "range": "times outside the years 1 to 9999, because JSON has them as texts",
}
"""Values that JSON cannot contain, by reason."""


def _check_column(facts: TableFacts, column: ColumnFacts, table: pa.Table) -> list[RefusedRows]:
    values, refused = table.column(column.name), []
    name = f"column {column.name!r} of {facts.table}"
    if values.null_count and (column.not_null or column.name in facts.key):
        why = "is in the key" if column.name in facts.key else "is NOT NULL"
        _add(refused, pc.is_null(values), "null", f"{name} {why}")
    kind = values.type
    if types.is_nested(kind):
        for reason, why in _IN_JSON.items():
            bad = beyond_json(values.combine_chunks(), reason)
            _add(refused, bad, reason, f"{name} cannot contain {why}")
        return refused
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        _check_text(refused, name, column, values)
    elif column.type in _BOUNDS:
        low, high = _BOUNDS[column.type]
        _check_range(refused, values.cast(pa.int64()), low, high, f"{name} is {column.type}")
    elif column.type == "numeric" and column.precision is not None:
        most = 10 ** (column.precision - column.scale)
        detail = f"{name} is numeric({column.precision},{column.scale})"
        _check_numeric(refused, values, most, detail)
    elif column.type == "date":
        _check_range(refused, values.cast(pa.int32()).cast(pa.int64()), *_DAYS, f"{name} is a date")
    elif column.type.startswith("timestamp"):
        moments = values.cast(pa.int64())
        _check_range(refused, moments, _MOMENT_FIRST, 2**63 - 1, f"{name} is a timestamp")
    return refused


def _check_range(
    refused: list[RefusedRows], values: pa.ChunkedArray, low: int, high: int, detail: str
) -> None:
    ends = pc.min_max(values).as_py()
    if ends["min"] is not None and (ends["min"] < low or ends["max"] > high):
        bad = pc.or_(pc.less(values, pa.scalar(low)), pc.greater(values, pa.scalar(high)))
        _add(refused, bad, "range", detail)


def _check_numeric(
    refused: list[RefusedRows], values: pa.ChunkedArray, most: int, detail: str
) -> None:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or (-most < ends["min"] and ends["max"] < most):
        return
    digits = values.type.precision if pa.types.is_decimal(values.type) else 19
    scale = values.type.scale if pa.types.is_decimal(values.type) else 0
    wide = pa.decimal256(min(76, digits + 1), scale)
    exact = values if pa.types.is_decimal(values.type) else values.cast(pa.decimal128(19, 0))
    bound = pa.scalar(Decimal(most), wide)
    bad = pc.or_(
        pc.greater_equal(exact.cast(wide), bound),
        pc.less_equal(exact.cast(wide), pa.scalar(Decimal(-most), wide)),
    )
    _add(refused, bad, "range", detail)


def _check_text(
    refused: list[RefusedRows], name: str, column: ColumnFacts, values: pa.ChunkedArray
) -> None:
    if column.type in types.JSON:
        bad = np.zeros(len(values), dtype=bool)
        bad[list(_refused_json(values, strict=column.type == "jsonb"))] = True
        _add(refused, bad, "json", f"{name} is {column.type}")
        return
    if pc.any(has_nul := pc.match_substring(values, "\0")).as_py():
        _add(refused, has_nul, "nul", f"{name} cannot contain NUL (U+0000)")
    if column.length is not None:
        # Bytes first: faster. PostgreSQL would silently cut trailing blanks.
        if (pc.max(pc.binary_length(values)).as_py() or 0) > column.length:
            bad = pc.greater(pc.utf8_length(values), column.length)
            _add(refused, bad, "long", f"{name} is varchar({column.length})")


def _refused_json(values: pa.ChunkedArray, *, strict: bool) -> Iterator[int]:
    """The row numbers of texts that are not JSON, or that jsonb (`strict`) refuses."""
    texts = values.cast(pa.large_binary()).to_pylist()
    yield from _malformed_json(texts, [n for n, text in enumerate(texts) if text is not None])
    odd = as_mask(pc.match_substring_regex(values, _ODD_JSON)) if strict else None
    long = as_mask(pc.greater(pc.binary_length(values), 2 * JSON_DEPTH_MAX))
    for n in np.flatnonzero(long if odd is None else odd | long).tolist():
        if not _json_fits(texts[n], strict=strict):
            yield n


def _malformed_json(texts: list[bytes | None], among: list[int]) -> Iterator[int]:
    """The row numbers of texts that are not JSON. Parses all as one array; bisects on failure."""
    if not among:
        return
    try:
        raws = _RAWS.decode(b"[" + b",".join([texts[n] for n in among]) + b"]")
        # Broken texts such as `[1` and `2]` could complete each other: compare the sizes.
        sizes = [len(memoryview(raw)) for raw in raws]
        all_valid = sizes == [len(texts[n].strip(b" \t\r\n")) for n in among]
    except (msgspec.DecodeError, RecursionError):
        all_valid = False
    if all_valid:
        return
    if len(among) == 1:
        yield among[0]
        return
    half = len(among) // 2
    yield from _malformed_json(texts, among[:half])
    yield from _malformed_json(texts, among[half:])


def _json_fits(text: bytes, *, strict: bool) -> bool:
    """Whether PostgreSQL accepts a text as JSON (`strict`: as jsonb)."""
    if _depth(text) > JSON_DEPTH_MAX:
        return False
    if not strict:
        return True
    try:
        plain = json.loads(
            text, parse_float=_check_number, parse_int=_check_number, parse_constant=_check_number
        )
        return b"\0" not in "".join(_strings(plain)).encode()
    except ValueError:  # A lone surrogate, or a number that is too large.
        return False


def _check_number(number: str) -> int:
    """Returns 0 if jsonb can store the number. Raises ValueError if not."""
    try:
        exact = Decimal(number)
    except InvalidOperation as error:
        raise ValueError("the exponent is too large") from error
    integer_digits, fraction_digits = _NUMBER_DIGITS
    if exact and (
        exact.adjusted() >= integer_digits or -exact.as_tuple().exponent > fraction_digits
    ):
        raise ValueError("the number is too large for PostgreSQL")
    return 0


def _strings(plain: Any) -> Iterator[str]:
    todo = [plain]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            todo += value


def _depth(text: bytes) -> int:
    """The nesting depth of a JSON text: brackets outside of its strings."""
    data = np.frombuffer(text, np.uint8)
    quote = data == ord('"')
    # A quote after an odd number of backslashes is part of its string.
    slash = data == ord("\\")
    at = np.arange(len(data))
    run = at - np.maximum.accumulate(np.where(slash, -1, at))
    escaped = np.concatenate(([False], (run[:-1] % 2) == 1))
    inside = np.cumsum(quote & ~escaped) % 2 == 1
    opens = ((data == ord("[")) | (data == ord("{"))) & ~inside
    ends = ((data == ord("]")) | (data == ord("}"))) & ~inside
    return int(np.cumsum(opens.astype(np.int64) - ends).max(initial=0))
