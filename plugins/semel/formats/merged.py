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
    window = f"w.{_name(START)}, w.{_name(END)}, w.{FINAL}"
    columns = [_merged(name, f, name in texts) for name, f in declared.columns.items()]

    def of_level(number: int, level: tuple[str, ...]) -> str:
        # What is no key of the level is null, of the key's type. GROUPING SETS would do, but then
        # PostgreSQL computes all windows before it looks for those that are asked for.
        keys = [
            f"p.{_name(key)}" if key in level else f"(SELECT {_name(key)} FROM {parts} LIMIT 0)"
            for key in declared.keys
        ]
        shown = [f"{key} AS {_name(name)}" for key, name in zip(keys, declared.keys, strict=True)]
        by = ", ".join([window, *(f"p.{_name(key)}" for key in level)])
        return (
            f"SELECT {', '.join([window, *shown, *columns])}, {number} AS {_name(LEVEL)}\n"
            f"FROM {parts} AS p\nJOIN {windows} AS w ON w.{SLICE} = p.{_name(START)}\n"
            f"GROUP BY {by}"
        )

    return "\nUNION ALL\n".join(of_level(*each) for each in enumerate(declared.by))


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


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
