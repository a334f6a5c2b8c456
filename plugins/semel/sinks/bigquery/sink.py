"""A table of BigQuery as a sink: the rows of a batch are appended by one load job.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: a job's id is made of the batch and of its manifest's digest, so BigQuery itself runs
it once, whoever inserts it and however often (`landing`). A load job appends all or nothing. Which
batches are there the rows themselves say.
What it does not do: make tables, replace what was loaded, hold a connection between calls.
Known limitation: the real service was never met, only what its documents say.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import pyarrow as pa
from google.cloud.bigquery import Client

from semel.declare.context import Context
from semel.model.manifest import Kind, ManifestFile, Published, StagedFile
from semel.sinks import (
    CommittedBatch,
    MiscountError,
    Notes,
    NotesQuery,
    Presence,
    RemoteSink,
    RowChecker,
)
from semel.sinks.bigquery import facts, landing
from semel.sinks.bigquery.refused import BigQueryRowCheck
from semel.sinks.bigquery.target import BigQueryTarget

_ALL = 1 << 62


def opened(context: Context, address: str | None, looks: object) -> "BigQuerySink":  # noqa: ARG001
    """The table."""
    sink = context.declared
    target = BigQueryTarget(
        connection=sink.connection, project=sink.project, location=sink.location, table=sink.table
    )
    return BigQuerySink(target, context.name)


class BigQuerySink(RemoteSink):
    """Rows go to `target`. See `semel.sinks.Sink` for when each method is called."""

    self_noted = True

    def __init__(self, target: BigQueryTarget, pipeline: str) -> None:
        self._target, self._pipeline = target, pipeline
        self.address = target.address
        self._shared: Client | None = None

    def __repr__(self) -> str:
        return f"BigQuerySink({self.address})"

    def __enter__(self) -> Self:
        self._shared = self._target.client()
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()
        self._shared = None

    @contextmanager
    def _client(self) -> Iterator[Client]:
        if self._shared:
            yield self._shared
            return
        with closing(self._target.client()) as client:
            yield client

    def check(self, schema: pa.Schema | None, staged: Path) -> RowChecker:  # noqa: ARG002 - the seam's
        self.describe(schema)
        return BigQueryRowCheck()

    def describe(self, schema: pa.Schema | None) -> str:
        with self._client() as client:
            table = facts.examine(client, self._target, schema)
        by = table.clustering_fields or []
        note = "" if by[:1] == ["_semel_batch"] else (
            "; it is not clustered by _semel_batch, so each batch reads two columns of all of it"
        )  # fmt: skip
        return f"table {self.address} in {table.location}: {table.num_rows or 0:,} rows{note}"

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """The columns, where only the job could tell them."""
        self.describe(schema)

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        with self._client() as client:
            return [landing.presence(client, self._target, won)] * len(won.files)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if missing:
            with self._client() as client:
                landing.land(client, self._target, won)

    def forget(self, batches: Sequence[int]) -> str:
        shown = ", ".join(map(str, batches))
        return (
            f"Take them out: DELETE FROM `{self._target.name}` WHERE _semel_batch IN ({shown})"
        )

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """What the rows say: of a batch that was deleted nothing is left, and all are `pipeline`'s.
        """
        asked = (newest.has or 0, newest.count) if newest else (0, _ALL)
        with self._client() as client:
            return Notes(tuple(facts.notes(client, self._target, self._pipeline, *asked)))

    # Keeps BQ7.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        wanted, found = sum(file.records for file in marker.of_kind(Kind.DATA)), 0
        with self._client() as client:
            for some in facts.rows(client, self._target, marker.made_by, marker.sink_schema):
                found += some.num_rows
                yield some
        if found != wanted:
            raise MiscountError(
                f"{self.address} has {found} rows of batch {marker.made_by}, and {wanted} were put "
                "in: somebody has changed them; restore them, as by FOR SYSTEM_TIME AS OF"
            )
