"""Finds the row of a pipeline by name, number or sink, and locks it."""

import sqlalchemy as sa

from semel.errors import RetryableError, StateError
from semel.ledger import Ledger, row
from semel.model.batch import Pipeline


def find(connection: sa.Connection, name: str) -> Pipeline | None:
    """The pipeline of a name. Returns None if it never planned a batch."""
    pipeline = row(connection, "pipelines", "by_name", name=name)
    return Pipeline.from_row(pipeline) if pipeline else None


def require(ledger: Ledger, name: str) -> Pipeline:
    """The pipeline of a name. Raises StateError if it never planned a batch."""
    with ledger.transaction() as connection:
        pipeline = find(connection, name)
    if pipeline is None:
        raise StateError(
            f"pipeline {name} never planned a batch. Run it first", next=f"semel run {name}"
        )
    return pipeline


def get(connection: sa.Connection, pipeline_id: int) -> Pipeline:
    """The pipeline of a number from another row of the ledger."""
    return Pipeline.from_row(row(connection, "pipelines", "by_id", pipeline_id=pipeline_id))


def owner(connection: sa.Connection, address: str, archive: str) -> Pipeline | None:
    """The pipeline that owns this sink, else the one that owns this archive."""
    pipeline = row(
        connection, "pipelines", "owner", sink_address=address, archive_path=archive
    )
    return Pipeline.from_row(pipeline) if pipeline else None


# Keeps P15.
def lock(connection: sa.Connection, pipeline: Pipeline) -> None:
    """Take the pipeline's lock until the transaction ends.

    Raises RetryableError if its sink was moved since the row was read.
    """
    current = row(connection, "pipelines", "lock", pipeline_id=pipeline.pipeline_id)
    now = current["sink_address"], current["archive_path"]
    if now != (pipeline.sink_address, pipeline.archive_path):
        raise RetryableError(
            f"the sink of {pipeline.name} was moved from {pipeline.sink_address} to "
            f"{current['sink_address']} meanwhile. Run this again"
        )
