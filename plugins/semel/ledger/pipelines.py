"""The row of a pipeline: found by name, by number or by its sink, and locked."""

import sqlalchemy as sa

from semel.errors import RetryableError, StateError
from semel.ledger import Ledger, row
from semel.model.batch import Pipeline


def find(connection: sa.Connection, name: str) -> Pipeline | None:
    """The pipeline of a name; None when it never planned a batch."""
    found = row(connection, "pipelines", "by_name", name=name)
    return Pipeline.from_row(found) if found else None


def require(ledger: Ledger, name: str) -> Pipeline:
    """The same. StateError: it never planned a batch."""
    with ledger.transaction() as connection:
        found = find(connection, name)
    if found is None:
        raise StateError(
            f"pipeline {name} never planned a batch; run it first", next=f"semel run {name}"
        )
    return found


def get(connection: sa.Connection, pipeline_id: int) -> Pipeline:
    """The pipeline of a number that another row of the ledger holds."""
    return Pipeline.from_row(row(connection, "pipelines", "by_id", pipeline_id=pipeline_id))


def owner(connection: sa.Connection, address: str, archive: str) -> Pipeline | None:
    """The pipeline whose sink this is, else the one whose archive it is."""
    found = row(
        connection, "pipelines", "owner", sink_address=address, archive_path=archive
    )
    return Pipeline.from_row(found) if found else None


# Keeps P15.
def lock(connection: sa.Connection, pipeline: Pipeline) -> None:
    """Take the pipeline's lock until the transaction ends; it is what nobody else changes now.

    RetryableError when its sink was moved since the row was read.
    """
    found = row(connection, "pipelines", "lock", pipeline_id=pipeline.pipeline_id)
    now = found["sink_address"], found["archive_path"]
    if now != (pipeline.sink_address, pipeline.archive_path):
        raise RetryableError(
            f"the sink of {pipeline.name} was moved from {pipeline.sink_address} to "
            f"{found['sink_address']} meanwhile; run this again"
        )
