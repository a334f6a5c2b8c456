"""What a commit says of a file, by which readers pass over it: of each column the least and the
greatest value, and how many are null (the Delta protocol's "Per-file Statistics").

A bound may be wider than the values, and never narrower: a reader would miss rows. Where a column
has no bounds that JSON can hold, as with a NaN, the file has none at all: deltalake's datasets find
no row by a column that lacks bounds which other columns of the file have. Numbers have all their
digits, for some readers take the text itself for a decimal; and letters are not escaped, for
deltalake's reader of JSON joins the halves of a surrogate pair wrongly.
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
    """Of the rows that were added."""

    def __init__(self) -> None:
        self.rows = 0
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any] | None] = {}
        """None: there is no bound, as some value is none of JSON."""

    def add(self, table: pa.Table) -> None:
        """More rows of the file, all with the same columns."""
        self.rows += table.num_rows
        for field, column in zip(table.schema, table.columns, strict=True):
            if pa.types.is_nested(field.type) or _is_bytes(field.type):
                continue
            self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            if column.null_count < len(column):
                self._widen(field.name, _bounds(column))

    def _widen(self, name: str, found: tuple[Any, Any] | None) -> None:
        known = self._bounds.get(name, found)
        both = known and found and (min(known[0], found[0]), max(known[1], found[1]))
        self._bounds[name] = both

    def text(self) -> str:
        """As a commit has them."""
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
    """The least and the greatest value; None: one is no number, or is of no year that there is."""
    if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is not True:
        return None
    try:
        found = pc.min_max(column).as_py()
    except (ValueError, OverflowError):
        return None
    return found["min"], found["max"]


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
    """None: no time that there is is as great."""
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
    """The next text that is greater than all that begin so, by code points."""
    for at in range(len(text) - 1, -1, -1):
        if (code := ord(text[at])) < sys.maxunicode:
            code = _SURROGATES[1] if code + 1 == _SURROGATES[0] else code + 1
            return text[:at] + chr(code)
    return None
