"""The rows of a committed batch, from its staged files, as sinks that are no folder take them."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from semel import limits
from semel.errors import CorruptionError
from semel.sinks import Won


def staged(won: Won, at_once: int = limits.SINK_BYTES_AT_ONCE) -> Iterator[pa.RecordBatch]:
    """All rows of a batch, in the order of its files, some `at_once` bytes after the other.

    CorruptionError: a file cannot be read.
    """
    for file in won.files:
        try:
            with pq.ParquetFile(file.staged_path) as rows:
                yield from rows.iter_batches(_rows_at_once(rows, at_once), columns=won.schema.names)
        except pa.ArrowException as error:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} cannot be read ({error}); restore it "
                "from a backup: the batch has committed"
            ) from error


def _rows_at_once(rows: pq.ParquetFile, at_once: int) -> int:
    found = rows.metadata
    size = sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
    fit = at_once * found.num_rows // max(size, 1)
    return max(1, min(limits.SINK_ROWS_AT_ONCE, fit))


def check_count(won: Won, landed: int) -> None:
    """CorruptionError when the staged files do not hold as many rows as the manifest says."""
    wanted = sum(file.records for file in won.files)
    if landed != wanted:
        raise CorruptionError(
            f"batch {won.batch_id}: its staged files hold {landed} rows, and its manifest says "
            f"{wanted}; nothing was written. Restore them from a backup: the batch has committed"
        )
