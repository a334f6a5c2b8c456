"""SQL that merges partial rows into the rows of windows, for DuckDB and for PostgreSQL."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.clients.sql import column, query, quote_text
from semel.declare.aggregate import END, FINAL, START, Aggregate, Function
from semel.declare.parts import folder_head
from semel.formats.output import NULL_FOLDER
from semel.model.arrow import UTC_TIME
from semel.model.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Collection

    from semel.declare.context import Counting

SLICE = "slice"
"""The column of a table of windows with a slice of time that belongs to the window."""


def merge_query(
    declared: Aggregate,
    windows_declared: Windows,
    *,
    parts: str,
    windows: str | None,
    texts: "Collection[str]" = (),
) -> str:
    """A SELECT that returns a row for each window and key of each level.

    `parts` and `windows`: tables, as a FROM names them. `windows` has the columns of `windows_of`,
    and `final`. If it is None, each partial row belongs to the window that it names, and no row has
    an end. `texts`: columns that need a COLLATE to compare by bytes.
    """
    of_windows, of_parts = query("windows", "level").text, query("windows", "level_alone").text
    no_key = query("windows", "no_key").text
    columns = [_merged_column(name, f, name in texts) for name, f in declared.columns.items()]
    start = f"{'p' if windows_declared.count == 1 else 'w'}.{START}"

    def of_level(number: int, names: tuple[str, ...]) -> str:
        keys = [
            f"p.{column(key)}" if key in names else no_key.format(key=column(key), parts=parts)
            for key in declared.keys
        ]
        named = zip(keys, declared.keys, strict=True)
        selected = [f"{key} AS {column(name)}" for key, name in named]
        ends = [f"w.{END}", f"w.{FINAL}"] if windows else []
        by = [start if windows else f"p.{START}", *ends, *(f"p.{column(key)}" for key in names)]
        return (of_windows if windows else of_parts).format(
            columns=", ".join([*selected, *columns]), number=number, parts=parts, windows=windows,
            start=start, by=", ".join(by),
        )  # fmt: skip

    return "\nUNION ALL\n".join(of_level(*each) for each in enumerate(declared.by))


# Keeps L9.
def files_query(counting: "Counting", folder: Path, markers: Path, by: pa.Schema) -> str:
    """DuckDB statements that read the windows of a folder of Parquet files, without their ends.
    `by`: the columns that are folders."""
    import duckdb

    windows, of_folder = counting.windows, query("windows", "of_folder").text
    types = duckdb.from_arrow(by.empty_table()).types if by.names else []
    kinds = dict(zip(by.names, types, strict=True))
    values = {START: START} | {
        name: of_folder.format(
            column=column(name), kind=kind, at=len(f"{folder}/"),
            name=quote_text(f"/{folder_head(name)}"), nothing=quote_text(NULL_FOLDER),
        )
        for name, kind in kinds.items()
    }  # fmt: skip
    start = values.pop(START)
    return query("windows", "of_files").text.format(
        folder=quote_text(f"{folder}/"),
        markers=quote_text(f"{markers}/b*.json"),
        empty="".join(f", CAST(NULL AS {kinds[name]}) AS {column(name)}" for name in values),
        start=start,
        keys="".join(f", {value} AS {column(name)}" for name, value in values.items()),
        seconds=windows.slices.seconds,
        slices=windows.count,
        merged=merge_query(counting.aggregate, windows, parts="parts", windows=None),
    )


def windows_of(windows: Windows, starts: pa.ChunkedArray) -> pa.Table:
    """The windows that contain slices: slice, window_start and window_end, in UTC. `starts`: the
    starts of the slices."""
    slices = np.unique(pc.drop_null(starts).cast(pa.int64()).to_numpy())
    edges, places = windows.of(slices)
    first = (places[:, None] - np.arange(windows.count)).ravel()
    columns = [np.repeat(slices, windows.count), edges[first], edges[first + windows.count]]
    return pa.table(
        {n: pa.array(c).cast(UTC_TIME) for n, c in zip((SLICE, START, END), columns, strict=True)}
    )


def _merged_column(name: str, function: Function, is_text: bool) -> str:
    part = f"p.{column(name)}"
    by_bytes = ' COLLATE "C"' if is_text else ""
    calls = {
        "count": f"CAST(sum({part}) AS bigint)",
        "sum": f"sum({part})",
        "min": f"min({part}{by_bytes})",
        "max": f"max({part}{by_bytes})",
        "distinct": f"count(DISTINCT {part})",
    }
    return f"{calls[function.word]} AS {column(name)}"
