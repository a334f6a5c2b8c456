"""The current row of a batch."""

import sqlalchemy as sa

from semel.errors import StateError
from semel.ledger import row
from semel.model.batch import Batch, Pipeline


def batch_of(connection: sa.Connection, pipeline: str, batch_id: int) -> Batch:
    """The current row of a batch. Raises StateError if it does not belong to this pipeline."""
    return pipeline_and_batch(connection, pipeline, batch_id)[1]


def pipeline_and_batch(
    connection: sa.Connection, pipeline: str, batch_id: int
) -> tuple[Pipeline, Batch]:
    """The pipeline's row, and the batch as `batch_of` returns it."""
    joined = row(connection, "batch", "batch", batch_id=batch_id)
    if joined is None or joined["name"] != pipeline:
        whose = f"belongs to {joined['name']!r}" if joined else "is not in this ledger"
        raise StateError(
            f"batch {batch_id} {whose}, not to pipeline {pipeline!r}",
            next=f"semel batches {pipeline}",
        )
    batch = Batch.from_row(joined)
    return Pipeline.from_row({**joined, "commit_seq": joined["pipeline_seq"]}), batch
