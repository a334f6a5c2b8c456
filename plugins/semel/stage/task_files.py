"""The files that a task writes for all of its splits: output by folder, decisions, dead letters.

With them, a task that reads a thousand small files leaves few files behind.
"""

import pyarrow as pa

from semel.model.manifest import Kind, StagedFile
from semel.stage.job import StageJob
from semel.stage.part_files import PartWriter

LETTERS_HELD_BYTES = 64 << 20
"""Bytes of dead letters (Arrow) that a task holds before it writes a file."""


class TaskFiles:
    """The files of one task. Each appears with its first rows, and `close` ends them all."""

    def __init__(self, job: StageJob, tag: str) -> None:
        sink, folder = job.spec.sink, str(job.data_dir)
        self._output = PartWriter(
            folder, format=sink.format, partition_by=sink.partition_by, tag=tag
        )
        self._decisions = PartWriter(folder, tag=f"{tag}-decisions", kind=Kind.DECISIONS)
        self._letters = PartWriter(
            folder,
            tag=f"{tag}-letters",
            kind=Kind.DEAD_LETTERS,
            held_bytes_max=LETTERS_HELD_BYTES,
        )

    def rows(self, table: pa.Table) -> None:
        """Write rows of the output."""
        self._output.write(table)

    def decisions(self, table: pa.Table) -> None:
        """Write records that were dropped, with the reasons."""
        self._decisions.write(table)

    def letters(self, table: pa.Table) -> None:
        """Write records that were rejected."""
        self._letters.write(table)

    def end_split(self) -> None:
        """End a split: what follows belongs to the next one."""
        self._output.end_split()

    def close(self) -> tuple[StagedFile, ...]:
        """Write what is held. Returns all files."""
        return (*self._output.close(), *self._decisions.close(), *self._letters.close())
