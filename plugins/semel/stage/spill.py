"""The spill: the valid records of a task's splits in one Arrow file, from read to write.

So a task that reads a thousand small files writes one file. A split's rows are contiguous, and its
report gives the row of the file where they begin.
"""

import uuid
from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from semel.errors import CorruptionError
from semel.formats.records import with_offset
from semel.stage.job import StageJob

_BATCH_BYTES = 1 << 20  # Rows are buffered up to this size: each Arrow batch has a fixed cost.


class Spill:
    """The spill of one task, for writing. It can be read after it is closed."""

    def __init__(self, job: StageJob, task: int) -> None:
        self.path = str(job.spill_dir / f"s{task:05d}-{uuid.uuid4().hex}.arrow")
        self.rows = 0
        self._buffer: list[pa.Table] = []
        self._bytes = 0
        self._file = pa.OSFile(self.path, "wb")
        self._writer = pa.ipc.new_file(self._file, with_offset(job.spec.arrow_schema()))

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self.rows += table.num_rows
        self._buffer.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        tables, self._buffer, self._bytes = self._buffer, [], 0
        if len(tables) > 1:
            tables = [pa.concat_tables(tables).combine_chunks()]
        for table in tables:
            self._writer.write_table(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._writer.close()
        finally:
            self._file.close()


class Spilled:
    """A spill, open for reading. `path` is its file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader = pa.ipc.open_file(pa.memory_map(path))
        batches = map(self._reader.get_batch, range(self._reader.num_record_batches))
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)

    def rows(self, start: int, count: int) -> Iterator[pa.Table]:
        """The `count` rows from `start`, in pieces."""
        at = start
        for index in range(int(np.searchsorted(self._ends, at, side="right")), len(self._ends)):
            if at == start + count:
                return
            batch = self._reader.get_batch(index)
            first = at - (int(self._ends[index]) - batch.num_rows)
            piece = batch.slice(first, start + count - at)
            yield pa.Table.from_batches([piece])
            at += piece.num_rows
        if at != start + count:
            raise CorruptionError(
                f"the temporary file {self.path} ends at row {at}, but should have "
                f"{start + count}. Nothing was committed. Run stage again"
            )
