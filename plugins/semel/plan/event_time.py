"""Event time: how far the records of a pipeline with select: arrival have come in their own time.

Purpose: say which windows are complete. It is a statement, and drops nothing.
How it works: of a source whose partitions are streams, each partition has come to the greatest
record time before its first position that is not finalized; the pipeline to the least of these.
What is idle holds nothing back: a partition without a backlog that did not move for
STREAM_IDLE_SECONDS. Files are no streams of their own: together they have come to the greatest
record time that is finalized. It never goes back.
"""

import sqlalchemy as sa

from semel.declare.parts import Select
from semel.ledger import Ledger, Row, change, row
from semel.model.batch import Batch
from semel.pipeline.spec import Spec

STREAM_IDLE_SECONDS = 3_600
"""A partition that is read to its end and did not move for so long is idle. Hourly runs move it."""


def is_timed(spec: Spec) -> bool:
    """Whether a pipeline's records tell its event time."""
    return spec.window is not None and spec.source.select is Select.ARRIVAL


def times(ledger: Ledger, spec: Spec, batch: Batch) -> list[Row]:
    """The first and the last record time of a batch: of each stream, or of all."""
    if spec.window is None or batch.replays is not None or batch.admits is not None:
        return []
    streams = spec.source.streams
    return ledger.rows("finalize", "times", batch_id=batch.batch_id, streams=streams)


def take_in(connection: sa.Connection, spec: Spec, batch: Batch) -> None:
    """Take in a batch that is finalized now. The caller holds the pipeline's lock."""
    before = row(connection, "finalize", "event_time", pipeline_id=batch.pipeline_id)
    advance(connection, spec, batch.pipeline_id, batch.batch_id)
    values = {"batch_id": batch.batch_id, "before": before["event_time"]}
    change(connection, "finalize", "passed", **values)


# Keeps W4.
def advance(
    connection: sa.Connection, spec: Spec, pipeline_id: int, batch_id: int | None
) -> None:
    """Take in a batch that is finalized now, or all. The caller holds the pipeline's lock."""
    values = {"pipeline_id": pipeline_id, "batch_id": batch_id}
    if not spec.source.streams:
        change(connection, "finalize", "event_time_of_files", **values)
        return
    change(connection, "finalize", "advance", **values)
    idle = {"pipeline_id": pipeline_id, "idle_seconds": STREAM_IDLE_SECONDS}
    change(connection, "finalize", "event_time_of_streams", **idle)
