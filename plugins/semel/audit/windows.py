"""Partial rows, held against the records that they stand for: counted again, in DuckDB.

This is done for batches without transforms. The audit shares no code with the writer: it finds
slices of time by SQL, over what Python's zoneinfo says of the zone's clock.
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
"""Seconds. No slice is longer than `_AROUND`, and no two changes of a clock are closer than `_STEP`.
"""

_CALENDAR = tuple(
    int(end.replace(tzinfo=UTC).timestamp()) for end in (datetime(1, 1, 2), datetime(9999, 12, 30))
)
"""What a calendar holds in any zone, in seconds since 1970."""

NOTHING = {"time": "CAST(NULL AS TIMESTAMP)", "cells": "CAST(NULL AS VARCHAR[])"}
"""What a record has that no window counts."""


def compared(kind: ColumnType) -> bool:
    """Whether the values of a column are compared with the source's."""
    return not kind.nested and kind.word != "json"


def of_records(spec: Spec, typed: dict[str, str]) -> dict[str, str]:
    """What is kept of a record: its time, and what it is counted by, as texts. `typed`: the
    expression of each column.
    """
    if spec.aggregate is None or spec.transforms:
        return NOTHING
    time = f"CAST({typed[spec.record_time]} AS TIMESTAMP)"
    return {"time": time, "cells": _texts(typed.get(name, "NULL") for name in spec.aggregate.columns_read)}


def of_rows(spec: Spec) -> dict[str, str]:
    """What is kept of a partial row: the same, of its own columns."""
    names = (*spec.aggregate.keys, *spec.aggregate.columns)
    cells = _texts(column(name) for name in names)
    return {"start": column(START), "records": column(RECORDS), "cells": cells}


def slices_of_records(engine: DuckEngine, spec: Spec) -> None:
    """Fill the table `slice`: the start of the slice of each time that records have."""
    engine.run("times_of_records")
    dates = spec.column_types()[spec.record_time].word == "date"
    _fill_slices(engine, spec.window.zone, spec.window.windows.slices.seconds, dates=dates)


def slices_of_rows(engine: DuckEngine, zone: str, seconds: int, times: pa.Array) -> None:
    """Fill the table `slice`: the start of the slice of each of some times."""
    engine.run("times_of_rows", pa.table({"time": times}))
    _fill_slices(engine, zone, seconds, dates=pa.types.is_date(times.type))


def astray(engine: DuckEngine, window: FolderWindow, rows: pa.Table) -> int:
    """How many rows are of another window than the folder that they lie in."""
    if window.of not in rows.column_names:  # By no column that its marker has.
        return rows.num_rows
    times = rows.column(window.of)
    if pa.types.is_string(times.type):  # A day, in JSON Lines.
        times = times.cast(pa.date32())
    seconds = int(window.window.total_seconds())
    slices_of_rows(engine, window.zone, seconds, times)
    incoming = pa.table({"time": times, "folder": rows.column(window.name)})
    distance = window.zone != "UTC" and seconds % DAY != 0
    values = {"form": _form(seconds), "distance": distance, "nothing": NULL_FOLDER}
    return engine.run("astray", incoming, **values).fetchone()[0]


def _form(seconds: int) -> str:
    """How a slice's start is written as a folder's name."""
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
    """The periods in which a zone's clock keeps its distance from UTC, around some times of UTC:
    `begin`, `until` and the distance `ahead`, in seconds since 1970.
    """
    start, end = (int(each.replace(tzinfo=UTC).timestamp()) for each in (first, last))
    grid = range(start - _AROUND, end + _AROUND, _STEP)
    shown = [_ahead(zone, at) for at in grid]
    begin, ahead = [grid[0]], [shown[0]]
    for low, (old, new) in zip(grid, pairwise(shown), strict=False):
        if old != new:
            between = range(low, low + _STEP)
            changed = bisect_left(between, 1, key=lambda at, old=old: _ahead(zone, at) != old)
            begin.append(low + changed)
            ahead.append(new)
    return pa.table({"begin": begin, "until": [*begin[1:], end + _AROUND], "ahead": ahead})


def _ahead(zone: str, seconds: int) -> int:
    """How many seconds a zone's clock is ahead of UTC at a moment; at the ends of the calendar as
    inside of it.
    """
    inside = max(_CALENDAR[0], min(_CALENDAR[1], seconds))
    moment = datetime.fromtimestamp(inside, ZoneInfo(zone))
    return moment.utcoffset() // timedelta(seconds=1)


# Keeps AG6.
def proof(spec: Spec) -> dict[str, str]:
    """What the statement `windows` is filled with, for this declaration."""
    declared, kinds = spec.aggregate, spec.column_types()
    read = {name: at for at, name in enumerate(declared.read, start=1)}
    shown = {n: at for at, n in enumerate((*declared.keys, *declared.columns), start=1)}
    keys = [key for key in declared.keys if compared(kinds[key])]
    functions = [
        (name, f) for name, f in declared.columns.items()
        if f.column is None or compared(kinds[f.column])
    ]  # fmt: skip
    apart = [(name, f) for name, f in functions if f.word == "distinct"]
    counted = [(name, f) for name, f in functions if f.word != "distinct"]
    key_of_record = [_cell(read[key], kinds[key]) for key in keys]
    key_of_record += [_cell(read[f.column], kinds[f.column]) for _, f in apart]
    key_of_row = [_cell(shown[key], kinds[key]) for key in keys]
    key_of_row += [_cell(shown[name], kinds[f.column]) for name, f in apart]
    return {
        "read_key": _json(key_of_record),
        "read": _json(_of_records(f, read, kinds) for _, f in counted),
        "row_key": _json(key_of_row),
        "wrote": _json(_of_rows(f, shown[name], kinds) for name, f in counted),
    }


def _of_records(function: Function, places: dict[str, int], kinds: dict[str, ColumnType]) -> str:
    if function.column is None:
        return "count(*)"
    cell = f"cells[{places[function.column]}]"
    if function.word == "count":
        return f"count({cell})"
    kind = kinds[function.column]
    if function.word == "sum":
        return f"sum(CAST({cell} AS {_sum(kind)}))"
    return f"{function.word}(CAST({cell} AS {duck_type(kind)}))"


def _of_rows(function: Function, place: int, kinds: dict[str, ColumnType]) -> str:
    cell = f"cells[{place}]"
    if function.word == "count":
        return f"CAST(sum(CAST({cell} AS BIGINT)) AS BIGINT)"
    return _of_records(function, {function.column: place}, kinds)


def _sum(kind: ColumnType) -> str:
    return f"DECIMAL(38, {kind.scale})"


def _cell(place: int, kind: ColumnType) -> str:
    """A value of the key, written in one way."""
    return f"CAST(cells[{place}] AS {duck_type(kind)})"


def _texts(values: Iterable[str]) -> str:
    return f"CAST([{', '.join(f'CAST({value} AS VARCHAR)' for value in values)}] AS VARCHAR[])"


def _json(values: Iterable[str]) -> str:
    return f"CAST(to_json({_texts(values)}) AS VARCHAR)"
