"""A Delta table as a sink: one commit publishes the files of a batch.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: the commit sets a transaction with the batch's own id. The table's log therefore shows
whether a batch is published, however many attempts commit it (`landing`).
Limits: semel does not replace rows, partition or compact. Other programs may append, compact
(OPTIMIZE) and vacuum.
"""

from collections.abc import Iterator, Sequence
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable

from semel.declare.context import Context
from semel.model.manifest import Kind, ManifestFile, Published, StagedFile
from semel.sinks import CommittedBatch, MiscountError, Notes, NotesQuery, Presence, RemoteSink
from semel.sinks.delta import landing
from semel.sinks.delta.table import DeltaTarget
from semel.storage import ArchivePath

_ALL = 1 << 62


def open_sink(context: Context, address: str | None, files: object) -> "DeltaSink":  # noqa: ARG001
    """The table. Sends no request yet."""
    return DeltaSink(DeltaTarget(context.declared), context.name)


class DeltaSink(RemoteSink):
    """Rows go to a table. See `semel.sinks.Sink` for when each method is called."""

    self_noted = True

    def __init__(self, table: DeltaTarget, pipeline: str) -> None:
        self._table, self._pipeline = table, pipeline
        self.address = table.address
        self._is_open, self._seen = False, None

    def __repr__(self) -> str:
        return f"DeltaSink({self.address})"

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open, self._seen = False, None

    def _newest(self) -> DeltaTable | None:
        """The table, or None if it does not exist. Within a `with` block, semel loads it once and
        judges by that version until `publish`, whose commit fails on a version that is not newest.
        """
        return self._keep(self._seen or self._table.open_newest())

    def _keep(self, table: DeltaTable | None) -> DeltaTable | None:
        self._seen = table if self._is_open else None
        return table

    def check(self, schema: pa.Schema | None, staged: ArchivePath) -> None:  # noqa: ARG002 - the seam's
        self.describe(schema)

    def describe(self, schema: pa.Schema | None) -> str:
        table = self._keep(self._table.examine(schema, self._seen))
        self._table.check_store()
        if table is None:
            return f"Delta table {self.address}, which the first batch will create"
        return f"Delta table {self.address} at version {table.version()}"

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """Check the columns again: before the transform's job, they may be unknown."""
        self._table.examine(schema)

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        return landing.presences(self._table, won, self._newest())

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        seen, self._seen = self._seen, None
        if missing:
            landing.land(self._table, won, seen)
        elif won.files:
            self._table.sync_log()

    def repair_published(self, won: CommittedBatch) -> None:
        landing.restore_files(self._table, won, self._newest())

    def describe_removal(self, batches: Sequence[int]) -> str:
        numbers = ", ".join(map(str, batches))
        return f"Remove them: DELETE FROM delta.`{self.address}` WHERE _semel_batch IN ({numbers})"

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """Notes derived from the rows. A deleted batch lacks a note. Each note names `pipeline`."""
        count, table = newest.count if newest else _ALL, self._newest()
        return Notes(tuple(self._table.notes(table, self._pipeline, count) if table else ()))

    # Keeps DL7.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        published, count = sum(file.records for file in marker.of_kind(Kind.DATA)), 0
        for table in self._table.rows(marker.writer_id, marker.sink_schema):
            count += table.num_rows
            yield table
        if count != published:
            raise MiscountError(
                f"{self.address} has {count} rows of batch {marker.writer_id}, and semel published "
                f"{published}. Somebody has changed them. Restore them from a version n that has "
                f"them all: DELETE FROM delta.`{self.address}` WHERE _semel_batch = "
                f"{marker.writer_id}; INSERT INTO delta.`{self.address}` SELECT * FROM "
                f"delta.`{self.address}` VERSION AS OF n "
                f"WHERE _semel_batch = {marker.writer_id}"
            )
