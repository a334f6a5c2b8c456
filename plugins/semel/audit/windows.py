"""Compares partial rows with their records: DuckDB counts the records again.

Only for batches without transforms. The audit shares no code with the writer: SQL finds the slices
of time, from the UTC offsets in Python's zoneinfo.
"""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pyarrow as pa

from semel.clients.duck import DuckEngine, duck_type
from semel.clients.sql import column
from semel.declare.aggregate import RECORDS, START, Function
from semel.declare.ddl import ColumnType
from semel.declare.parts import DAY, WEEK, FolderWindow
from semel.formats.output import NULL_FOLDER
from semel.pipeline.spec import Spec

_MONDAY, _AROUND, _STEP = 4 * DAY, 20 * DAY, 2 * DAY
"""Seconds. `_AROUND` is longer than any slice; `_STEP` is shorter than the time between any two
changes of a clock."""

_CALENDAR = tuple(
    int(end.replace(tzinfo=UTC).timestamp()) for end in (datetime(1, 1, 2), datetime(9999, 12, 30))
)
"""The range of datetime in any zone, in seconds since 1970."""

NOTHING = {"time": "CAST(NULL AS TIMESTAMP)", "cells": "CAST(NULL AS VARCHAR[])"}
"""The expressions for pipelines without windows."""


def is_compared(kind: ColumnType) -> bool:
    """True if the audit compares the values of such a column with the source's."""
    return not kind.nested and kind.word != "json"


def record_expressions(spec: Spec, typed: dict[str, str]) -> dict[str, str]:
    """SQL expressions for a record's time and, as texts, the columns that `aggregate` reads.
    `typed`: the expression of each column.
    """
    if spec.aggregate is None or spec.transforms:
        return NOTHING
    time = f"CAST({typed[spec.record_time]} AS TIMESTAMP)"
    return {
        "time": time,
        "cells": _texts(typed.get(name, "NULL") for name in spec.aggregate.columns_read),
    }


def partial_row_expressions(spec: Spec) -> dict[str, str]:
    """SQL expressions for a partial row's start, record count and, as texts, its columns."""
    names = (*spec.aggregate.keys, *spec.aggregate.columns)
    cells = _texts(column(name) for name in names)
    return {"start": column(START), "records": column(RECORDS), "cells": cells}


def slices_of_records(engine: DuckEngine, spec: Spec) -> None:
    """Fill the table `slice` with the start of the slice of each record's time."""
    engine.run("times_of_records")
    dates = spec.column_types()[spec.record_time].word == "date"
    _fill_slices(engine, spec.window.zone, spec.window.windows.slices.seconds, dates=dates)


def slices_of_rows(engine: DuckEngine, zone: str, seconds: int, times: pa.Array) -> None:
    """Fill the table `slice` with the start of the slice of each time."""
    engine.run("times_of_rows", pa.table({"time": times}))
    _fill_slices(engine, zone, seconds, dates=pa.types.is_date(times.type))


def count_astray(engine: DuckEngine, window: FolderWindow, rows: pa.Table) -> int:
    """The number of rows whose time is outside of their folder's window."""
    if window.of not in rows.column_names:  # The marker's columns lack the folder's column.
        return rows.num_rows
    times = rows.column(window.of)
    if pa.types.is_string(times.type):  # JSON Lines has dates as texts.
        times = times.cast(pa.date32())
    seconds = int(window.window.total_seconds())
    slices_of_rows(engine, window.zone, seconds, times)
    incoming = pa.table({"time": times, "folder": rows.column(window.name)})
    distance = window.zone != "UTC" and seconds % DAY != 0
    values = {"form": _form(seconds), "distance": distance, "nothing": NULL_FOLDER}
    return engine.run("astray", incoming, **values).fetchone()[0]


def _form(seconds: int) -> str:
    """The strftime format of a folder's name, from the slice's start."""
    if seconds % DAY == 0:
        return "%Y-%m-%d"
    return "%Y-%m-%dT%H" + ("" if seconds % 3_600 == 0 else "%M" if seconds % 60 == 0 else "%M%S")


# Keeps AG7.
def _fill_slices(engine: DuckEngine, zone: str, seconds: int, *, dates: bool) -> None:
    [ends] = engine.rows("times")
    if ends["first"] is None:
        ends = {"first": datetime(1970, 1, 1), "last": datetime(1970, 1, 1)}
    engine.run("clock", clock(zone, ends["first"], ends["last"]))
    since = _MONDAY if seconds == WEEK else 0
    braces = {"seconds": seconds, "since": since, "by_day": seconds % DAY == 0}
    engine.run("slices_of_dates" if dates else "slices", braces=braces)


def clock(zone: str, first: datetime, last: datetime) -> pa.Table:
    """The periods with a constant UTC offset, around some UTC times: `begin` and `until`, in
    seconds since 1970, and the offset `ahead`, in seconds.
    """
    start, end = (int(each.replace(tzinfo=UTC).timestamp()) for each in (first, last))
    grid = range(start - _AROUND, end + _AROUND, _STEP)
    offsets = [_utc_offset(zone, at) for at in grid]
    begin, ahead = [grid[0]], [offsets[0]]
    for low, (old, new) in zip(grid, pairwise(offsets), strict=False):
        if old != new:
            between = range(low, low + _STEP)
            changed = bisect_left(between, 1, key=lambda at, old=old: _utc_offset(zone, at) != old)
            begin.append(low + changed)
            ahead.append(new)
    return pa.table({"begin": begin, "until": [*begin[1:], end + _AROUND], "ahead": ahead})


def _utc_offset(zone: str, seconds: int) -> int:
    """A zone's UTC offset at a moment, in seconds. Clamps the moment to the calendar."""
    inside = max(_CALENDAR[0], min(_CALENDAR[1], seconds))
    moment = datetime.fromtimestamp(inside, ZoneInfo(zone))
    return moment.utcoffset() // timedelta(seconds=1)


# Keeps AG6.
def recount_expressions(spec: Spec) -> dict[str, str]:
    """The values of the braces of the statement `windows`, for this declaration."""
    declared, kinds = spec.aggregate, spec.column_types()
    read = {name: at for at, name in enumerate(declared.columns_read, start=1)}
    written = {n: at for at, n in enumerate((*declared.keys, *declared.columns), start=1)}
    keys = [key for key in declared.keys if is_compared(kinds[key])]
    functions = [
        (name, f) for name, f in declared.columns.items()
        if f.column is None or is_compared(kinds[f.column])
    ]  # fmt: skip
    apart = [(name, f) for name, f in functions if f.word == "distinct"]
    counted = [(name, f) for name, f in functions if f.word != "distinct"]
    key_of_record = [_cell(read[key], kinds[key]) for key in keys]
    key_of_record += [_cell(read[f.column], kinds[f.column]) for _, f in apart]
    key_of_row = [_cell(written[key], kinds[key]) for key in keys]
    key_of_row += [_cell(written[name], kinds[f.column]) for name, f in apart]
    return {
        "read_key": _json(key_of_record),
        "read": _json(_over_records(f, read, kinds) for _, f in counted),
        "row_key": _json(key_of_row),
        "wrote": _json(_over_rows(f, written[name], kinds) for name, f in counted),
    }


def _over_records(function: Function, places: dict[str, int], kinds: dict[str, ColumnType]) -> str:
    if function.column is None:
        return "count(*)"
    cell = f"cells[{places[function.column]}]"
    if function.word == "count":
        return f"count({cell})"
    kind = kinds[function.column]
    if function.word == "sum":
        return f"sum(CAST({cell} AS {_sum(kind)}))"
    return f"{function.word}(CAST({cell} AS {duck_type(kind)}))"


def _over_rows(function: Function, place: int, kinds: dict[str, ColumnType]) -> str:
    cell = f"cells[{place}]"
    if function.word == "count":
        return f"CAST(sum(CAST({cell} AS BIGINT)) AS BIGINT)"
    return _over_records(function, {function.column: place}, kinds)


def _sum(kind: ColumnType) -> str:
    return f"DECIMAL(38, {kind.scale})"


def _cell(place: int, kind: ColumnType) -> str:
    """A value of the key, in a single notation."""
    return f"CAST(cells[{place}] AS {duck_type(kind)})"


def _texts(values: Iterable[str]) -> str:
    return f"CAST([{', '.join(f'CAST({value} AS VARCHAR)' for value in values)}] AS VARCHAR[])"


def _json(values: Iterable[str]) -> str:
    return f"CAST(to_json({_texts(values)}) AS VARCHAR)"
