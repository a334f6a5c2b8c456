"""A batch of a pipeline, as the ledger has it now."""

import sqlalchemy as sa

from semel.errors import StateError
from semel.ledger import row
from semel.model.batch import Batch, Pipeline


def batch_of(connection: sa.Connection, pipeline: str, batch_id: int) -> Batch:
    """A pipeline's batch as it is now. StateError when it is not one of this pipeline's."""
    return pipeline_and_batch(connection, pipeline, batch_id)[1]


def pipeline_and_batch(connection: sa.Connection, pipeline: str, batch_id: int) -> tuple[Pipeline, Batch]:
    """A batch as `batch_of` has it, and its pipeline's row."""
    found = row(connection, "batch", "batch", batch_id=batch_id)
    if found is None or found["name"] != pipeline:
        whose = f"belongs to {found['name']!r}" if found else "is not in this ledger"
        raise StateError(
            f"batch {batch_id} {whose}, not to pipeline {pipeline!r}",
            next=f"semel batches {pipeline}",
        )
    return Pipeline.from_row({**found, "commit_seq": found["pipeline_seq"]}), Batch.from_row(found)
