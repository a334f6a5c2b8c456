"""The spill: the valid records of a task's splits in one Arrow file, from read to write.

So a task that reads a thousand small files writes one file. A split's rows are contiguous, and its
report gives the row of the file where they begin. In a store the spill is a few objects, each with
the row after its last one as its name. A thread puts and gets them while the task works.
"""

import io
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import pyarrow as pa

from semel.errors import CorruptionError
from semel.formats.records import with_offset
from semel.stage.job import StageJob
from semel.storage import ArchivePath, StorePath, names

_BATCH_BYTES = 1 << 20  # Rows are buffered up to this size: each Arrow batch has a fixed cost.
_OBJECT_BYTES = 32 << 20  # Rows in memory; packed, an object has a fifth of it or less.


class Spill:
    """The spill of one task, for writing. It can be read after it is closed."""

    def __init__(self, job: StageJob, task: int) -> None:
        self.path = job.spill_dir / f"s{task:05d}-{uuid.uuid4().hex}.arrow"
        self.rows = 0
        self._buffer: list[pa.Table] = []
        self._bytes = 0
        schema = with_offset(job.spec.arrow_schema())
        writer = _ObjectWriter if isinstance(self.path, StorePath) else _FileWriter
        self._out = writer(self.path, schema)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self.rows += table.num_rows
        self._buffer.append(table)
        self._bytes += table.nbytes
        if self._bytes >= self._out.bytes_at_once:
            self._flush()

    def _flush(self) -> None:
        tables, self._buffer, self._bytes = self._buffer, [], 0
        if len(tables) > 1:
            tables = [pa.concat_tables(tables).combine_chunks()]
        for table in tables:
            self._out.write(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._out.close(whole=kind is None)


class _FileWriter:
    """A spill in a folder."""

    bytes_at_once = _BATCH_BYTES

    def __init__(self, path: ArchivePath, schema: pa.Schema) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self, *, whole: bool) -> None:
        try:
            if whole:
                self._writer.close()
        finally:
            self._file.close()


class _ObjectWriter:
    """A spill in a store. It holds the rows of two objects in memory."""

    bytes_at_once = _OBJECT_BYTES

    def __init__(self, path: StorePath, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._rows = 0
        self._thread = ThreadPoolExecutor(1)
        self._put: Future[None] | None = None

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return  # Its object would have the name of the previous one.
        file = io.BytesIO()
        packed = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(file, self._schema, options=packed) as writer:
            writer.write_table(table)
        self._wait()
        self._rows += table.num_rows
        key = self._path / f"{self._rows:012d}"
        self._put = self._thread.submit(key.write_bytes, file.getvalue())

    def _wait(self) -> None:
        if self._put is not None:
            self._put.result()

    def close(self, *, whole: bool) -> None:
        try:
            if whole:
                self._wait()
        finally:
            self._thread.shutdown()


class Spilled:
    """A spill, open for reading. `path` is its file."""

    def __init__(self, path: ArchivePath) -> None:
        self.path = path
        self._in = (_ObjectReader if isinstance(path, StorePath) else _FileReader)(path)

    def rows(self, start: int, count: int) -> Iterator[pa.Table]:
        """The `count` rows from `start`, in pieces."""
        at, ends = start, self._in.ends
        for index in range(int(np.searchsorted(ends, at, side="right")), len(ends)):
            if at == start + count:
                return
            rows = self._in.rows(index)
            piece = rows.slice(at - (int(ends[index]) - rows.num_rows), start + count - at)
            yield piece
            at += piece.num_rows
        if at != start + count:
            raise CorruptionError(
                f"the temporary file {self.path} ends at row {at}, but should have "
                f"{start + count}. Nothing was committed. Run stage again"
            )


class _FileReader:
    """A spill in a folder. `ends`: the row after each of its Arrow batches."""

    def __init__(self, path: ArchivePath) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = map(self._reader.get_batch, range(self._reader.num_record_batches))
        self.ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)

    def rows(self, index: int) -> pa.Table:
        return pa.Table.from_batches([self._reader.get_batch(index)])


class _ObjectReader:
    """A spill in a store. `ends`: the row after each object."""

    def __init__(self, path: StorePath) -> None:
        ends = sorted(map(int, names(path)))
        self._keys = [path / f"{end:012d}" for end in ends]
        self.ends = np.array(ends, np.int64)
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[bytes]] | None = None
        self._last: tuple[int, pa.Table] | None = None

    def rows(self, index: int) -> pa.Table:
        if self._last is None or self._last[0] != index:
            data = pa.py_buffer(self._get(index))
            self._last = index, pa.ipc.open_file(data).read_all()
        return self._last[1]

    def _get(self, index: int) -> bytes:
        """The bytes of an object. A thread gets those of the next one."""
        at, got = self._next if self._next else (-1, None)
        data = got.result() if got and at == index else self._keys[index].read_bytes()
        if index + 1 < len(self._keys):
            self._next = index + 1, self._thread.submit(self._keys[index + 1].read_bytes)
        return data
