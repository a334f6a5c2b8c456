"""Rows in pieces whose memory is bounded: a Parquet file's own size says nothing of it.

A column that repeats its values is written as a dictionary: 65,536 texts of 20 kB may be a file of
190 kB, and are 1.3 GB when they are read. So files are written in row groups of bounded bytes, read
some rows at once, and what was read is cut by what it takes.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from semel import limits

PIECE_BYTES_MAX = 8 << 20
"""Bytes of rows in memory (Arrow) that are handed on at once, where rows are long: a sink encodes
them in some four times as much."""

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)

_BUFFER_BYTES = 64 << 10
"""Of a file at once, for each column; without a buffer a row group's bytes are read as a whole."""

_ROWS_MIN = 256
_STEPS = 8
"""Steps that a row group is read in at least: where its bytes bound it, one takes an eighth."""


# Keeps R5.
def read_pieces(
    path: str | Path, columns: Sequence[str] | None = None, bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, in order, in pieces of `bytes_max` or of one row.

    OSError, pa.ArrowException: it cannot be read.
    """
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        some = _rows_at_once(file.metadata, bytes_max)
        for rows in file.iter_batches(some, columns=columns and list(columns)):
            yield from cut(rows, bytes_max)


def _rows_at_once(found: pq.FileMetaData, bytes_max: int) -> int:
    groups = [found.row_group(n) for n in range(found.num_row_groups)]
    written = sum(group.total_byte_size for group in groups)
    fit = bytes_max * found.num_rows // max(written, 1)
    step = max(_ROWS_MIN, min((group.num_rows for group in groups), default=0) // _STEPS)
    return max(1, min(limits.PIECE_ROWS_MAX, fit, step))


def cut(rows: _Rows, bytes_max: int) -> Iterator[_Rows]:
    """Rows in pieces of `bytes_max` in memory, or of one row; nothing is copied."""
    if rows.num_rows < 2 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from cut(rows.slice(0, half), bytes_max)
    yield from cut(rows.slice(half), bytes_max)


def gather(parts: Iterable[pa.Table], bytes_min: int) -> Iterator[pa.Table]:
    """The same rows in tables of `bytes_min` or a little more: each has a cost of its own."""
    held: list[pa.Table] = []
    size = 0
    for part in parts:
        held.append(part)
        size += part.nbytes
        if size >= bytes_min:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
