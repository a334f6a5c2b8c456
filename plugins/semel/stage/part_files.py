"""Writes Arrow tables as files of the sink's format, in Hive-style folders if declared.

Runs in a write task, which closes and fsyncs a file before a report names it. Finalize gives it its
final name later.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.declare.aggregate import RECORDS
from semel.declare.parts import FolderWindow, folder_head
from semel.errors import LimitError
from semel.formats.table import sink_format
from semel.model.manifest import Kind, StagedFile
from semel.stage.combine import Combiner, records_of
from semel.stage.folders import labels
from semel.stage.job import OFFSET_COLUMN, SOURCE_COLUMN, StageJob
from semel.storage import ArchivePath, StorePath, new

PARTITION_FILES_PER_SPLIT_MAX = 4_096
"""Folders times shards for the rows of one split. More mean that partition_by is a wrong key."""

LETTERS_HELD_BYTES = 64 << 20
"""Bytes of dead letters (Arrow) that a task buffers before it writes a file."""

OBJECT_BYTES_HELD = 128 << 20
"""Bytes of rows (Arrow) that a task buffers for a store, which takes a file whole, from memory."""

Place = tuple[str, int]
"""A folder below the sink, and the shard in it."""


class PartWriter:
    """Collects the rows of one task. Writes one file per folder and shard, or several large files.

    `folder`: the attempt's data folder. `held_bytes_max`: the size of the buffer, by default the
    format's. `shards`: if above 1, the rows have their positions. `positions` and `keys`: whether
    to write the positions and the columns of `partition_by`. The rows MUST pass
    `folders.refused`.
    """

    def __init__(
        self,
        folder: ArchivePath,
        *,
        tag: str,
        kind: Kind = Kind.DATA,
        format: str = "parquet",
        partition_by: tuple[str | FolderWindow, ...] = (),
        shards: int = 1,
        positions: bool = True,
        keys: bool = False,
        held_bytes_max: int | None = None,
    ) -> None:
        self._folder = folder
        self._tag = tag
        self._kind = kind
        self._format = format
        self._by, self._shards = partition_by, shards
        self._names = [one if isinstance(one, str) else one.name for one in partition_by]
        self._left_out = [one for one in partition_by if isinstance(one, str) and not keys]
        if not positions and shards > 1:
            self._left_out += [SOURCE_COLUMN, OFFSET_COLUMN]
        self._held_bytes_max = held_bytes_max or sink_format(format).held_bytes_max
        if isinstance(folder, StorePath):
            self._held_bytes_max = min(self._held_bytes_max, OBJECT_BYTES_HELD)
        self._held: dict[Place, list[pa.Table]] = defaultdict(list)
        self._bytes: Counter[Place] = Counter()
        self._of_split: set[Place] = set()
        self._files: list[StagedFile] = []

    def write(self, table: pa.Table) -> None:
        for place, part in self._parts(table):
            self._of_split.add(place)
            self._held[place].append(part)
            self._bytes[place] += part.nbytes
            if self._bytes[place] > self._held_bytes_max:
                self._flush(place)
        if self._bytes.total() > self._held_bytes_max:
            self.close()
        if len(self._of_split) > PARTITION_FILES_PER_SPLIT_MAX:
            shards = f", with {self._shards} shards each," if self._shards > 1 else ""
            raise LimitError(
                f"sink.partition_by {self._names}{shards} has more than "
                f"{PARTITION_FILES_PER_SPLIT_MAX} values in one part of a batch. Nothing was "
                "committed. Choose columns with fewer values, longer windows or fewer shards"
            )

    def end_split(self) -> None:
        """End a split, and restart the count of folders."""
        self._of_split.clear()
        many = len(self._held) > PARTITION_FILES_PER_SPLIT_MAX
        if many or self._bytes.total() > self._held_bytes_max:
            self.close()

    def close(self) -> tuple[StagedFile, ...]:
        """Write the buffered rows, in folder order. Returns all files."""
        for place in sorted(self._held):
            self._flush(place)
        return tuple(self._files)

    def _parts(self, table: pa.Table) -> Iterator[tuple[Place, pa.Table]]:
        """The rows of each folder and shard, in their order."""
        if not table.num_rows:
            return
        if not self._by and self._shards == 1:
            yield ("", 0), table
            return
        folders, codes = [""], np.zeros(table.num_rows, np.int64)
        if self._by:
            names = [labels(table, one) for one in self._by]
            encoded = pc.dictionary_encode(pc.binary_join_element_wise(*names, "/"))
            folders = [self._path(label) for label in encoded.dictionary.to_pylist()]
            codes = encoded.indices.to_numpy().astype(np.int64)
        if self._shards > 1:
            codes = codes * self._shards + _shards(table, self._shards)
        output = table.drop_columns(self._left_out)
        distinct, counts = np.unique(codes, return_counts=True)
        if len(distinct) == 1:
            yield _place(folders, distinct[0], self._shards), output
            return
        row_groups = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
        output = output.combine_chunks()
        for code, rows in zip(distinct, row_groups, strict=True):
            yield _place(folders, code, self._shards), output.take(pa.array(rows))

    def _path(self, label: str) -> str:
        """The folder for a label of joined values."""
        return "/".join(
            f"{folder_head(name)}{value}"
            for name, value in zip(self._names, label.split("/"), strict=True)
        )

    def _flush(self, place: Place) -> None:
        tables = self._held.pop(place, [])
        del self._bytes[place]
        if not tables:
            return
        folder, shard = place
        table = pa.concat_tables(tables)
        path = self._folder / f"{self._tag}-{uuid.uuid4().hex}"
        file = write_table(path, table, self._kind, folder, self._format)
        self._files.append(replace(file, shard=shard))


class TaskFiles:
    """The files of a task for all of its splits, so that a task writes few files even if it reads a
    thousand. A file is created for its first rows, and `close` ends all files.

    `rows`: takes output rows, or records to aggregate. `decisions`: dropped records with the
    reasons. `letters`: rejected records.
    """

    def __init__(self, job: StageJob, tag: str) -> None:
        job.check_folder()
        sink, folder = job.spec.sink, job.data_dir
        output = PartWriter(
            folder,
            format=sink.format,
            partition_by=sink.partition_by,
            shards=sink.shards,
            positions=sink.position_columns,
            keys=job.spec.aggregate is not None,
            tag=tag,
        )
        decisions = PartWriter(folder, tag=f"{tag}-decisions", kind=Kind.DECISIONS)
        letters = PartWriter(
            folder,
            tag=f"{tag}-letters",
            kind=Kind.DEAD_LETTERS,
            held_bytes_max=LETTERS_HELD_BYTES,
        )
        self._writers = output, decisions, letters
        self.rows, self.decisions, self.letters = (writer.write for writer in self._writers)
        self._combiner = Combiner(job.spec, output.write) if job.spec.aggregate else None
        if self._combiner is not None:
            self.rows = self._combiner.add
        self.end_split = output.end_split

    def close(self) -> tuple[StagedFile, ...]:
        """Write the buffered rows. Returns all files."""
        if self._combiner is not None:
            self._combiner.end()
        return tuple(file for writer in self._writers for file in writer.close())


def write_table(
    path: ArchivePath, table: pa.Table, kind: Kind, folder: str, format: str
) -> StagedFile:
    """Durably write a table as a new file. Returns its description.

    Raises TerminalError if the format cannot represent one of its numbers.
    """
    form = sink_format(format)
    with new(path) as file:
        form.code().write(table, file)
    partial = kind is Kind.DATA and RECORDS in table.column_names
    return StagedFile(
        kind=kind,
        path=str(path),
        folder=folder,
        suffix=form.suffix,
        records=table.num_rows,
        bytes=file.size,
        checksum=file.checksum,
        stands_for=records_of(table) if partial else None,
    )


# Keeps L8.
def _shards(table: pa.Table, count: int) -> np.ndarray:
    """The shard of each row, a hash of its position: splitmix64's mix of both numbers."""
    source, offset = (
        pc.fill_null(table.column(name), 0).to_numpy().astype(np.uint64)
        for name in (SOURCE_COLUMN, OFFSET_COLUMN)
    )
    x = offset + source * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


def _place(folders: list[str], code: int, shards: int) -> Place:
    folder, shard = divmod(int(code), shards)
    return folders[folder], shard
