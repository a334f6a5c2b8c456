"""The folders of output rows, and the rows that no folder can hold."""

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
"""How the name of a window begins, so that names are in the order of time."""

_ENCODED_BYTES_MAX = 3
"""Bytes of a folder's name for a byte of its value, at most."""


# Keeps S27.
def refused(sink: "SinkSpec", pipeline: str, table: pa.Table) -> list[RefusedRows]:
    """The rows whose folders would have no valid names. The sink has `partition_by`."""
    found: list[RefusedRows] = []
    most = sink.folders_bytes_max(pipeline)
    longest = [_longest(table, one) for one in sink.partition_by]
    short = max(longest) <= limits.FOLDER_NAME_BYTES_MAX and sum(longest) <= most
    if short and all(_has_four_digits(table.column(one.of)) for one in sink.windows):
        return found
    whole = np.full(table.num_rows, -1)
    for name, one in zip(sink.folders, sink.partition_by, strict=True):
        values = labels(table, one)
        if isinstance(one, FolderWindow):
            dated = pc.or_(pc.match_substring_regex(values, YEAR), pc.equal(values, NULL_FOLDER))
            why = f"{one.of!r} holds a time whose year has not four digits by the clock of "
            _add(found, pc.invert(dated).to_numpy(zero_copy_only=False), "range", why + one.zone)
        size = len(folder_head(name).encode()) + pc.binary_length(values).to_numpy()
        why = f"the folder of {name!r} would be longer than {limits.FOLDER_NAME_BYTES_MAX} bytes"
        _add(found, size > limits.FOLDER_NAME_BYTES_MAX, "long", why)
        whole += 1 + size
    _add(found, whole > most, "long", f"its folders would be longer than {most} bytes together")
    return found


def labels(table: pa.Table, one: str | FolderWindow) -> pa.Array:
    """The value in each row's folder, of a column or of a window of time."""
    if isinstance(one, FolderWindow):
        names = one.slices.names(pa.concat_arrays(table.column(one.of).chunks))
        return pc.fill_null(names, NULL_FOLDER)
    column = table.column(one)
    encoded = pa.concat_arrays(column.cast(pa.string()).chunks).dictionary_encode()
    names = pa.array(map(folder_value, encoded.dictionary.to_pylist()), pa.string())
    return pc.fill_null(names.take(encoded.indices), NULL_FOLDER)


def _has_four_digits(times: pa.ChunkedArray) -> bool:
    """Whether the years of all times have by any clock."""
    ends = pc.min_max(times)
    years = [pc.year(ends[end]).as_py() for end in ("min", "max") if ends[end].is_valid]
    return all(1 < year < 9_999 for year in years)


def _longest(table: pa.Table, one: str | FolderWindow) -> int:
    """No row's folder has more bytes. Numbers and times are short."""
    name = one if isinstance(one, str) else one.name
    longest = len(NULL_FOLDER)
    if isinstance(one, str) and pa.types.is_string(table.schema.field(one).type):
        longest = max(longest, pc.max(pc.binary_length(table.column(one))).as_py() or 0)
    return len(f"{folder_head(name)}/".encode()) + _ENCODED_BYTES_MAX * longest


def _add(found: list[RefusedRows], bad: np.ndarray, reason: str, why: str) -> None:
    if bad.any():
        found.append(RefusedRows(np.flatnonzero(bad), reason, why))
