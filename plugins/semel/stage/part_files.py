"""Write Arrow tables as files of the sink's format, in Hive-style folders if asked.

Called in a write task. A file is closed and fsynced before a report names it. Finalize, later,
gives it its final name.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.declare.aggregate import RECORDS
from semel.errors import LimitError
from semel.formats.output import NULL_FOLDER
from semel.formats.table import sink_format
from semel.model.manifest import Kind, StagedFile
from semel.stage.combine import Combiner, records_of
from semel.stage.job import StageJob
from semel.storage import Sealed

PARTITION_FILES_PER_SPLIT_MAX = 4_096
"""Folders for the rows of one split; beyond that, partition_by is refused as a wrong key."""

LETTERS_HELD_BYTES = 64 << 20
"""Bytes of dead letters (Arrow) that a task holds before it writes a file."""


class PartWriter:
    """Collects the rows of one task. Writes one file per folder, or several when they grow large.

    `folder` is the attempt's data folder. At most `held_bytes_max` bytes are held (by default, the
    format's). TerminalError: the format cannot hold a value.
    """

    def __init__(
        self,
        folder: str,
        *,
        tag: str,
        kind: Kind = Kind.DATA,
        format: str = "parquet",
        partition_by: tuple[str, ...] = (),
        held_bytes_max: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._tag = tag
        self._kind = kind
        self._format = format
        self._keys = list(partition_by)
        self._held_bytes_max = held_bytes_max or sink_format(format).held_bytes_max
        self._held: dict[str, list[pa.Table]] = defaultdict(list)
        self._bytes: Counter[str] = Counter()
        self._of_split: set[str] = set()
        self._files: list[StagedFile] = []

    def write(self, table: pa.Table) -> None:
        for folder, part in self._parts(table):
            self._of_split.add(folder)
            self._held[folder].append(part)
            self._bytes[folder] += part.nbytes
            if self._bytes[folder] > self._held_bytes_max:
                self._flush(folder)
        if self._bytes.total() > self._held_bytes_max:
            self.close()
        if len(self._of_split) > PARTITION_FILES_PER_SPLIT_MAX:
            raise LimitError(
                f"sink.partition_by {self._keys} has more than "
                f"{PARTITION_FILES_PER_SPLIT_MAX} values in one split; choose columns with "
                "fewer values"
            )

    def end_split(self) -> None:
        """End a split, and count the folders of the next one anew."""
        self._of_split.clear()
        many = len(self._held) > PARTITION_FILES_PER_SPLIT_MAX
        if many or self._bytes.total() > self._held_bytes_max:
            self.close()

    def close(self) -> tuple[StagedFile, ...]:
        """Write what is held, in folder order. Returns all files."""
        for folder in sorted(self._held):
            self._flush(folder)
        return tuple(self._files)

    def _parts(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not table.num_rows:
            return
        if not self._keys:
            yield "", table
            return
        names = [_folder_values(table.column(key)) for key in self._keys]
        labels = pc.binary_join_element_wise(*names, "/")
        rest = table.drop_columns(self._keys)
        encoded = pc.dictionary_encode(labels)
        for code, label in enumerate(encoded.dictionary.to_pylist()):
            folder = "/".join(
                f"{quote(key, safe='')}={value}"
                for key, value in zip(self._keys, label.split("/"), strict=True)
            )
            if any(len(name) > limits.FILE_NAME_BYTES_MAX for name in folder.split("/")):
                raise LimitError(
                    f"sink.partition_by {self._keys}: a record's folder is longer than "
                    f"{limits.FILE_NAME_BYTES_MAX} bytes; choose columns with shorter values"
                )
            yield folder, rest.filter(pc.equal(encoded.indices, code))

    def _flush(self, folder: str) -> None:
        held = self._held.pop(folder, [])
        del self._bytes[folder]
        if not held:
            return
        table = pa.concat_tables(held)
        path = self._folder / f"{self._tag}-{uuid.uuid4().hex}"
        self._files.append(write_table(path, table, self._kind, folder, self._format))


class TaskFiles:
    """The files that a task writes for all of its splits, so that a task that reads a thousand
    small files leaves few behind. Each appears with its first rows, and `close` ends them all.

    `rows` of the output, or what it is to count; `decisions`: records that were dropped, with the reasons; `letters`:
    records that were rejected.
    """

    def __init__(self, job: StageJob, tag: str) -> None:
        sink, folder = job.spec.sink, str(job.data_dir)
        output = PartWriter(folder, format=sink.format, partition_by=sink.partition_by, tag=tag)
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
        """Write what is held. Returns all files."""
        if self._combiner is not None:
            self._combiner.end()
        return tuple(file for writer in self._writers for file in writer.close())


def write_table(path: Path, table: pa.Table, kind: Kind, folder: str, format: str) -> StagedFile:
    """Write a table durably, as one new file. Returns its description.

    TerminalError: the format cannot hold one of its numbers.
    """
    form = sink_format(format)
    with Sealed(path) as file:
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


def _folder_values(column: pa.ChunkedArray) -> pa.Array:
    """A column's values for folder names: escaped, with null as Hive writes it."""
    encoded = pa.concat_arrays(column.cast(pa.string()).chunks).dictionary_encode()
    values = (quote(value, safe="") for value in encoded.dictionary.to_pylist())
    # Escape a text equal to null's folder, so that it is not read as null.
    names = pa.array(
        [v.replace("_", "%5F", 1) if v == NULL_FOLDER else v for v in values], pa.string()
    )
    return pc.fill_null(names.take(encoded.indices), NULL_FOLDER)
