"""Parquet as a sink's format: the code of the table's entry, see table.SinkCode."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from semel.formats.pieces import cut

if TYPE_CHECKING:
    import pyarrow.dataset as ds


DICTIONARY_BYTES_MAX = 64 << 10
"""Bytes of a Parquet column's dictionary. The writer gives up early on columns of many values (ids,
times), which saves a third of its time; their files are a fifth smaller."""

ROW_GROUP_BYTES = 64 << 20
"""Bytes of rows in memory (Arrow) per row group: readers often decode a whole row group."""


def refusal(kind: pa.DataType) -> str | None:
    """See table.SinkCode."""
    if pa.types.is_interval(kind):
        return f"{kind}, which Parquet does not have"
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return next(filter(None, map(refusal, inner)), None)


def read_back_type(kind: pa.DataType) -> pa.DataType:
    """See table.SinkCode."""
    return kind


def write(table: pa.Table, file: Any) -> None:
    """See table.SinkCode."""
    with pq.ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        compression_level=1,
        dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
    ) as writer:
        for rows in cut(table, ROW_GROUP_BYTES):
            writer.write_table(rows)


def dataset_format(path: Path | None, size: int) -> "ds.FileFormat":
    """See table.SinkCode."""
    return _parquet_format()


@cache
def _parquet_format() -> "ds.FileFormat":
    import pyarrow.dataset as ds  # Imports pandas; writers need neither.

    return ds.ParquetFileFormat()


def count_rows(path: Path) -> int:
    """See table.SinkCode."""
    return pq.read_metadata(path).num_rows
