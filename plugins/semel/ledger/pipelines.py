"""The row of a pipeline: found by name, by number or by its sink, and locked."""

import sqlalchemy as sa

from semel.batch import Pipeline
from semel.errors import RetryableError
from semel.ledger import row


def find(connection: sa.Connection, name: str) -> Pipeline | None:
    """The pipeline of a name; None when it never planned a batch."""
    found = row(connection, "pipelines", "by_name", name=name)
    return Pipeline.from_row(found) if found else None


def get(connection: sa.Connection, pipeline_id: int) -> Pipeline:
    """The pipeline of a number that another row of the ledger holds."""
    return Pipeline.from_row(row(connection, "pipelines", "by_id", pipeline_id=pipeline_id))


def owner(connection: sa.Connection, sink_path: str) -> str | None:
    """The name of the pipeline whose sink this is."""
    found = row(connection, "pipelines", "owner", sink_path=sink_path)
    return found["name"] if found else None


# Keeps P15.
def lock(connection: sa.Connection, pipeline: Pipeline) -> None:
    """Take the pipeline's lock until the transaction ends; it is what nobody else changes now.

    RetryableError when its sink was moved since the row was read.
    """
    found = row(connection, "pipelines", "lock", pipeline_id=pipeline.pipeline_id)
    if found["sink_path"] != pipeline.sink_path:
        raise RetryableError(
            f"the sink of {pipeline.name} was moved from {pipeline.sink_path} to "
            f"{found['sink_path']} meanwhile; run this again"
        )
