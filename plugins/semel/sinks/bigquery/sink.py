"""A BigQuery table as a sink: one load job appends the rows of a batch.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: a job's id consists of the batch and its manifest's digest, so BigQuery runs it once,
however many processes insert it (`landing`). A load job appends all rows or none. The rows
themselves show which batches the table has.
Limits: semel does not create tables, replace loaded rows, or keep a connection between calls. Tests
use a fake of the service, built from its documentation.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
from semel.storage import ArchivePath

_ALL = 1 << 62


def open_sink(context: Context, address: str | None, files: object) -> "BigQuerySink":  # noqa: ARG001
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

    def check(self, schema: pa.Schema | None, staged: ArchivePath) -> RowChecker:  # noqa: ARG002 - the seam's
        self.describe(schema)
        return BigQueryRowCheck()

    def describe(self, schema: pa.Schema | None) -> str:
        with self._client() as client:
            table = facts.examine(client, self._target, schema)
        by = table.clustering_fields or []
        note = "" if by[:1] == ["_semel_batch"] else (
            "; it is not clustered by _semel_batch, so each batch scans two columns of all rows"
        )  # fmt: skip
        return f"table {self.address} in {table.location}: {table.num_rows or 0:,} rows{note}"

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """Check the columns again: before the transform's job, they may be unknown."""
        self.describe(schema)

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        with self._client() as client:
            return [landing.presence(client, self._target, won)] * len(won.files)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if missing:
            with self._client() as client:
                landing.land(client, self._target, won)

    def describe_removal(self, batches: Sequence[int]) -> str:
        numbers = ", ".join(map(str, batches))
        return (
            f"Remove them: DELETE FROM `{self._target.name}` WHERE _semel_batch IN ({numbers})"
        )

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """Notes derived from the rows. A deleted batch lacks a note. Each note names `pipeline`."""
        has, count = (newest.has or 0, newest.count) if newest else (0, _ALL)
        with self._client() as client:
            return Notes(tuple(facts.notes(client, self._target, self._pipeline, has, count)))

    # Keeps BQ7.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        published, count = sum(file.records for file in marker.of_kind(Kind.DATA)), 0
        with self._client() as client:
            for table in facts.rows(client, self._target, marker.writer_id, marker.sink_schema):
                count += table.num_rows
                yield table
        if count != published:
            raise MiscountError(
                f"{self.address} has {count} rows of batch {marker.writer_id}, and semel loaded "
                f"{published}. Somebody has changed them. Restore them, for example with FOR "
                "SYSTEM_TIME AS OF"
            )
