"""The rows of windows, merged from partial rows: as SQL, for DuckDB and for PostgreSQL."""

from typing import TYPE_CHECKING

import pyarrow as pa

from semel.declare.aggregate import END, FINAL, LEVEL, START, Aggregate, Function
from semel.model.windows import UTC_TIME, Windows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

SLICE = "slice"
"""Of the table of windows: the slice of time that a row says is part of one."""


def merge_query(
    declared: Aggregate, *, parts: str, windows: str, texts: "Collection[str]" = ()
) -> str:
    """A SELECT with a row for each window and key of each level.

    `parts` and `windows`: tables, as they stand in a FROM; the second has what `windows_of` gives,
    and `final`. `texts`: columns that compare by their bytes only if they are told to.
    """
    base = f"w.{_name(START)}, w.{_name(END)}, w.{FINAL}"
    keys = [f"p.{_name(key)}" for key in declared.keys]
    shown = [*keys, *(_merged(name, f, name in texts) for name, f in declared.columns.items())]
    level = _level(declared)
    sets = ", ".join(
        f"({', '.join([base, *(f'p.{_name(key)}' for key in of)])})" for of in declared.by
    )
    return (
        f"SELECT {base}, {', '.join(shown)}, {level} AS {_name(LEVEL)}\n"
        f"FROM {parts} AS p\n"
        f"JOIN {windows} AS w ON w.{SLICE} = p.{_name(START)}\n"
        f"GROUP BY GROUPING SETS ({sets})"
    )


def windows_of(windows: Windows, slices: "Iterable[datetime]") -> pa.Table:
    """The windows that some slices are part of: slice, window_start and window_end, in UTC."""
    found = [
        (each, start, end) for each in sorted(set(slices)) for start, end in windows.of(each)
    ]
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    names = (SLICE, START, END)
    return pa.table({n: pa.array(c, UTC_TIME) for n, c in zip(names, columns, strict=True)})


def _merged(name: str, function: Function, is_text: bool) -> str:
    column = f"p.{_name(name)}"
    by_bytes = ' COLLATE "C"' if is_text else ""
    made = {
        "count": f"CAST(sum({column}) AS bigint)",
        "sum": f"sum({column})",
        "min": f"min({column}{by_bytes})",
        "max": f"max({column}{by_bytes})",
        "distinct": f"count(DISTINCT {column})",
    }
    return f"{made[function.word]} AS {_name(name)}"


def _level(declared: Aggregate) -> str:
    """The number of a row's level. GROUPING has a bit for each key that is not of its level."""
    keys = declared.keys
    if len(declared.by) == 1:
        return "0"
    last = len(keys) - 1
    cases = " ".join(
        f"WHEN {sum(1 << last - at for at, key in enumerate(keys) if key not in of)} THEN {number}"
        for number, of in enumerate(declared.by)
    )
    return f"CASE GROUPING({', '.join(f'p.{_name(key)}' for key in keys)}) {cases} END"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
