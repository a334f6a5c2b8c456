"""A Delta table as a sink: the files of a batch become visible by one commit.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: the commit sets a transaction that is the batch's own, so it is found in the table
whether the batch has landed, whoever commits and however often (`landing`).
What it does not do: replace what is there, partition, compact. Somebody else may append, compact
(OPTIMIZE) and vacuum.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from semel.declare.context import Context
from semel.model.manifest import Kind, ManifestFile, Published, StagedFile
from semel.sinks import CommittedBatch, MiscountError, Notes, NotesQuery, Presence, RemoteSink
from semel.sinks.delta import landing
from semel.sinks.delta.table import Table

_ALL = 1 << 62


def opened(context: Context, address: str | None, looks: object) -> "DeltaSink":  # noqa: ARG001
    """The table, which is not asked yet."""
    return DeltaSink(Table(context.declared), context.name)


class DeltaSink(RemoteSink):
    """Rows go to a table. See `semel.sinks.Sink` for when each method is called."""

    self_noted = True

    def __init__(self, table: Table, pipeline: str) -> None:
        self._table, self._pipeline = table, pipeline
        self.address = table.address

    def __repr__(self) -> str:
        return f"DeltaSink({self.address})"

    def check(self, schema: pa.Schema | None, staged: Path) -> None:  # noqa: ARG002 - the seam's
        self.describe(schema)

    def describe(self, schema: pa.Schema | None) -> str:
        found = self._table.examine(schema)
        self._table.prove()
        if found is None:
            return f"Delta table {self.address}, which the first batch will make"
        return f"Delta table {self.address} at version {found.version()}"

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """The columns, where only the job could tell them."""
        self._table.examine(schema)

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        return landing.presences(self._table, won)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if missing:
            landing.land(self._table, won)
        elif won.files:
            self._table.settle()

    def repair_published(self, won: CommittedBatch) -> None:
        landing.mend(self._table, won)

    def forget(self, batches: Sequence[int]) -> str:
        shown = ", ".join(map(str, batches))
        return f"Take them out: DELETE FROM delta.`{self.address}` WHERE _semel_batch IN ({shown})"

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """What the rows say: of a batch that was deleted nothing is left, and all are `pipeline`'s.
        """
        asked = (newest.has or 0, newest.count) if newest else (0, _ALL)
        return Notes(tuple(self._table.notes(self._pipeline, *asked)))

    # Keeps DL7.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        wanted, found = sum(file.records for file in marker.of_kind(Kind.DATA)), 0
        for some in self._table.rows(marker.made_by, marker.sink_schema):
            found += some.num_rows
            yield some
        if found != wanted:
            raise MiscountError(
                f"{self.address} has {found} rows of batch {marker.made_by}, and {wanted} were put "
                "in: somebody has changed them. Put them back from a version that had them: "
                f"DELETE FROM delta.`{self.address}` WHERE _semel_batch = {marker.made_by}; INSERT "
                f"INTO delta.`{self.address}` SELECT * FROM delta.`{self.address}` VERSION AS OF n "
                f"WHERE _semel_batch = {marker.made_by}"
            )
