"""The folders of output rows, and the rows without a valid folder."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.declare.parts import FolderWindow, folder_head
from semel.formats.output import NULL_FOLDER, folder_value
from semel.sinks import RefusedRows

if TYPE_CHECKING:
    from semel.sinks.spec import SinkSpec

YEAR = "^[0-9]{4}-"
"""The name of a window begins with a year of four digits, so that names sort by time."""

_ENCODED_BYTES_MAX = 3
"""Bytes of a folder's name for a byte of its value, at most."""


# Keeps S27.
def refused(sink: "SinkSpec", pipeline: str, table: pa.Table) -> list[RefusedRows]:
    """The rows whose folders would have invalid names. The sink has `partition_by`."""
    refusals: list[RefusedRows] = []
    path_max = sink.folders_bytes_max(pipeline)
    longest = [_longest(table, key) for key in sink.partition_by]
    short = max(longest) <= limits.FOLDER_NAME_BYTES_MAX and sum(longest) <= path_max
    if short and all(_has_four_digits(table.column(window.of)) for window in sink.windows):
        return refusals
    path_bytes = np.full(table.num_rows, -1)
    for name, key in zip(sink.folders, sink.partition_by, strict=True):
        values = labels(table, key)
        if isinstance(key, FolderWindow):
            dated = pc.or_(pc.match_substring_regex(values, YEAR), pc.equal(values, NULL_FOLDER))
            why = f"{key.of!r} holds a time whose year has not four digits by the clock of "
            _add(refusals, pc.invert(dated).to_numpy(zero_copy_only=False), "range", why + key.zone)
        size = len(folder_head(name).encode()) + pc.binary_length(values).to_numpy()
        why = f"the folder of {name!r} would be longer than {limits.FOLDER_NAME_BYTES_MAX} bytes"
        _add(refusals, size > limits.FOLDER_NAME_BYTES_MAX, "long", why)
        path_bytes += 1 + size
    why = f"its folders would be longer than {path_max} bytes together"
    _add(refusals, path_bytes > path_max, "long", why)
    return refusals


def labels(table: pa.Table, key: str | FolderWindow) -> pa.Array:
    """The value in each row's folder name, from a column or a window of time."""
    if isinstance(key, FolderWindow):
        names = key.slices.names(pa.concat_arrays(table.column(key.of).chunks))
        return pc.fill_null(names, NULL_FOLDER)
    column = table.column(key)
    encoded = pa.concat_arrays(column.cast(pa.string()).chunks).dictionary_encode()
    names = pa.array(map(folder_value, encoded.dictionary.to_pylist()), pa.string())
    return pc.fill_null(names.take(encoded.indices), NULL_FOLDER)


def _has_four_digits(times: pa.ChunkedArray) -> bool:
    """Whether all times have years of four digits in every time zone."""
    ends = pc.min_max(times)
    years = [pc.year(ends[end]).as_py() for end in ("min", "max") if ends[end].is_valid]
    return all(1 < year < 9_999 for year in years)


def _longest(table: pa.Table, key: str | FolderWindow) -> int:
    """An upper bound for the bytes of a folder's name. Numbers and times are short."""
    name = key if isinstance(key, str) else key.name
    longest = len(NULL_FOLDER)
    if isinstance(key, str) and pa.types.is_string(table.schema.field(key).type):
        longest = max(longest, pc.max(pc.binary_length(table.column(key))).as_py() or 0)
    return len(f"{folder_head(name)}/".encode()) + _ENCODED_BYTES_MAX * longest


def _add(refusals: list[RefusedRows], bad: np.ndarray, reason: str, why: str) -> None:
    if bad.any():
        refusals.append(RefusedRows(np.flatnonzero(bad), reason, why))
