"""Rows in pieces of bounded memory. The size of a Parquet file does not bound it.

Parquet writes a column that repeats its values as a dictionary: 65,536 texts of 20 kB may be a file
of 190 kB, and take 1.3 GB in memory. So semel writes row groups of bounded bytes and reads a few
rows at once. It cuts the rows by their memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from semel import limits
from semel.storage import ArchivePath, readable

PIECE_BYTES_MAX = 8 << 20
"""Bytes of long rows in memory (Arrow) per piece: a sink encodes them in some four times as much.
"""

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)

_BUFFER_BYTES = 64 << 10
"""Bytes that pyarrow reads at once per column; without a buffer it reads a whole row group."""

_ROWS_MIN = 256
_STEPS = 8
"""Minimum of steps per row group: if its bytes bound the steps, each takes an eighth."""


# Keeps R5.
def read_pieces(
    path: ArchivePath, columns: Sequence[str] | None = None, bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, in order, in pieces of `bytes_max` or of one row.

    Raises OSError or pa.ArrowException if the file is unreadable.
    """
    with pq.ParquetFile(readable(path), pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        step = _rows_at_once(file.metadata, bytes_max)
        for rows in file.iter_batches(step, columns=columns and list(columns)):
            yield from cut(rows, bytes_max)


def _rows_at_once(metadata: pq.FileMetaData, bytes_max: int) -> int:
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    written = sum(group.total_byte_size for group in groups)
    fit = bytes_max * metadata.num_rows // max(written, 1)
    step = max(_ROWS_MIN, min((group.num_rows for group in groups), default=0) // _STEPS)
    return max(1, min(limits.PIECE_ROWS_MAX, fit, step))


def cut(rows: _Rows, bytes_max: int) -> Iterator[_Rows]:
    """Cut rows into pieces of `bytes_max` in memory, or of one row, without copying."""
    if rows.num_rows < 2 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from cut(rows.slice(0, half), bytes_max)
    yield from cut(rows.slice(half), bytes_max)


def gather(parts: Iterable[pa.Table], bytes_min: int) -> Iterator[pa.Table]:
    """Join tables to `bytes_min` or slightly more, because each table has a fixed cost."""
    pending: list[pa.Table] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += part.nbytes
        if size >= bytes_min:
            yield pa.concat_tables(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_tables(pending)
