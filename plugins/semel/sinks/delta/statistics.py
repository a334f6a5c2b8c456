"""Per-file statistics of a Delta commit, with which readers skip files: each column's minimum,
maximum and number of nulls (the Delta protocol's "Per-file Statistics").

A bound may be wider than the values, never narrower, or a reader would miss rows. If JSON cannot
express a column's bounds, as with a NaN, the file gets no bounds: deltalake's datasets find no row
by a column that alone lacks bounds. Numbers have all digits, because some readers parse the text as
a decimal. Letters are not escaped, because deltalake's JSON reader joins surrogate pairs wrongly.
"""

import json
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TEXT_MAX = 32
"""Longest text of a bound, in characters."""

_SURROGATES = 0xD800, 0xE000


# Keeps DL6.
class Statistics:
    """The statistics of all added rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any] | None] = {}
        """By column. None if JSON cannot express a value."""

    def add(self, table: pa.Table) -> None:
        """Add rows of the file; all tables have the same columns."""
        self.rows += table.num_rows
        for field, column in zip(table.schema, table.columns, strict=True):
            if pa.types.is_nested(field.type) or _is_bytes(field.type):
                continue
            self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            if column.null_count < len(column):
                self._widen(field.name, _bounds(column))

    def _widen(self, name: str, new: tuple[Any, Any] | None) -> None:
        old = self._bounds.get(name, new)
        self._bounds[name] = old and new and (min(old[0], new[0]), max(old[1], new[1]))

    def text(self) -> str:
        """The JSON text for a commit."""
        counts = f'"numRecords":{self.rows},"nullCount":{_object(self._nulls)}'
        bounds = {name: both and (_low(both[0]), _high(both[1]))
                  for name, both in self._bounds.items()}  # fmt: skip
        if any(both is None or None in both for both in bounds.values()):
            return f"{{{counts}}}"
        low, high = ({name: both[at] for name, both in bounds.items()} for at in (0, 1))
        return f'{{{counts},"minValues":{_object(low)},"maxValues":{_object(high)}}}'


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Minimum and maximum. Returns None if a value is NaN or infinite, or outside Python's years."""
    if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is not True:
        return None
    try:
        bounds = pc.min_max(column).as_py()
    except (ValueError, OverflowError):
        return None
    return bounds["min"], bounds["max"]


def _object(values: dict[str, Any]) -> str:
    texts = (f"{json.dumps(name, ensure_ascii=False)}:{_json(value)}"
             for name, value in values.items())  # fmt: skip
    return f"{{{','.join(texts)}}}"


def _json(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return json.dumps(value, ensure_ascii=False)


def _low(value: Any) -> Any:
    if isinstance(value, datetime):
        return _time(value - timedelta(microseconds=value.microsecond % 1_000))
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, float) and value == 0:
        return -0.0  # Some readers order it before 0.0.
    return value.isoformat() if isinstance(value, date) else value


def _high(value: Any) -> Any:
    """The upper bound for JSON. Returns None if the time is too late for Python."""
    if isinstance(value, datetime):
        up = timedelta(microseconds=-value.microsecond % 1_000)
        return None if value.replace(tzinfo=None) > datetime.max - up else _time(value + up)
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return _above(value[:TEXT_MAX]) or value
    if isinstance(value, float) and value == 0:
        return 0.0
    return value.isoformat() if isinstance(value, date) else value


def _time(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z" if value.tzinfo else text


def _above(text: str) -> str | None:
    """The least text above all texts with this prefix, by code points."""
    for at in range(len(text) - 1, -1, -1):
        if (code := ord(text[at])) < sys.maxunicode:
            code = _SURROGATES[1] if code + 1 == _SURROGATES[0] else code + 1
            return text[:at] + chr(code)
    return None
