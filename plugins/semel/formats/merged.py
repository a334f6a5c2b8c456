"""The rows of windows, merged from partial rows: as SQL, for DuckDB and for PostgreSQL."""

from typing import TYPE_CHECKING

import pyarrow as pa

from semel.clients.sql import query
from semel.declare.aggregate import END, FINAL, START, Aggregate, Function
from semel.model.windows import UTC_TIME, Windows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

SLICE = "slice"
"""Of the table of windows: the slice of time that a row says is part of one."""


def merge_query(
    declared: Aggregate,
    windows_declared: Windows,
    *,
    parts: str,
    windows: str,
    texts: "Collection[str]" = (),
) -> str:
    """A SELECT with a row for each window and key of each level.

    `parts` and `windows`: tables, as they stand in a FROM; the second has what `windows_of` gives,
    and `final`. `texts`: columns that compare by their bytes only if they are told to.
    """
    level, no_key = query("windows", "level").text, query("windows", "no_key").text
    columns = [_merged(name, f, name in texts) for name, f in declared.columns.items()]

    start = f"{'p' if windows_declared.count == 1 else 'w'}.{START}"

    def of_level(number: int, own: tuple[str, ...]) -> str:
        keys = [
            f"p.{_name(key)}" if key in own else no_key.format(key=_name(key), parts=parts)
            for key in declared.keys
        ]
        shown = [f"{key} AS {_name(name)}" for key, name in zip(keys, declared.keys, strict=True)]
        by = [start, f"w.{END}", f"w.{FINAL}", *(f"p.{_name(key)}" for key in own)]
        return level.format(
            columns=", ".join([*shown, *columns]), number=number, parts=parts, windows=windows,
            start=start, by=", ".join(by),
        )  # fmt: skip

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
