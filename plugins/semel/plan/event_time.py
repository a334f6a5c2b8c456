"""Event time: how far a pipeline with select: arrival has read, in its records' own time.

Purpose: decide which windows are complete. It never makes semel drop a record.
How it works:
- If partitions are streams (Kafka), the event time of a partition is the greatest record time
  before its first position that is not finalized. The pipeline's is the least of its partitions.
- A partition without a backlog is idle once it has not moved for STREAM_IDLE_SECONDS. The pipeline
  does not wait for it.
- Any other source is one stream. A plan that leaves nothing unread has seen the whole source: once
  the batches up to that plan are finalized, the event time is the greatest record time in them.
Event time never goes back. It ignores a record whose clock is ahead of the plan that claimed it.
"""

from datetime import datetime

import sqlalchemy as sa

from semel import limits
from semel.declare.parts import Select
from semel.ledger import Ledger, Row, change, row
from semel.model.batch import Batch
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.plan.cut import BatchDraft
from semel.plan.survey import Request, Survey

STREAM_IDLE_SECONDS = 3_600
"""After this time without progress, a partition that is read to its end is idle. Runs every hour
keep it busy."""


def is_timed(spec: Spec) -> bool:
    """Whether a pipeline has an event time."""
    return spec.window is not None and spec.source.select is Select.ARRIVAL


def is_one_stream(spec: Spec) -> bool:
    """Whether a pipeline has one event time for its whole source."""
    return is_timed(spec) and not spec.source.streams


# Keeps W6, W7.
def leaves_nothing(request: Request, survey: Survey, draft: BatchDraft) -> bool:
    """Whether everything that a plan saw is claimed or lost once it is written. A line without its
    end comes later, and so does a part that its writer has not sealed.
    """
    if request.spec.source.select is not Select.ARRIVAL or draft.remaining:
        return False
    if survey.refusals or draft.refused:
        return False
    waits = any(
        offer.end < offer.ahead and (offer.all_or_nothing or not offer.end)
        for offer in survey.matched.offers
    )
    return not waits and survey.source.is_complete(survey.shown)


def times(ledger: Ledger, spec: Spec, batch: Batch) -> list[Row]:
    """The first and the last record time of a batch, for each stream or for the whole source."""
    if spec.window is None or batch.replays is not None or batch.admits is not None:
        return []
    streams = spec.source.streams
    return ledger.rows("finalize", "times", batch_id=batch.batch_id, streams=streams)


def frontier(
    connection: sa.Connection, spec: Spec, pipeline_id: int, batch_id: int | None
) -> Row:
    """The event time of a pipeline once a batch is finalized. Changes nothing."""
    values = {"pipeline_id": pipeline_id, "batch_id": batch_id}
    if spec.source.select is not Select.ARRIVAL:
        return row(connection, "finalize", "frontier_of_intervals", **values)
    values |= {"timed": is_one_stream(spec), "ahead": limits.CLOCKS_AHEAD}
    return row(connection, "finalize", "frontier", **values)


def take_in(connection: sa.Connection, spec: Spec, batch: Batch) -> None:
    """Advance the event time by a batch that is finalized now. The caller holds the lock."""
    passed = advance(connection, spec, batch.pipeline_id, batch.batch_id)
    for start, end in passed.ranges:
        values = {"batch_id": batch.batch_id, "start": start, "end": end}
        change(connection, "finalize", "passed", **values)


def record_full_plan(connection: sa.Connection, spec: Spec, pipeline_id: int) -> TimeSet:
    """Advance the event time by a plan without a batch that leaves nothing unread. Returns the time
    that becomes complete. The caller holds the pipeline's lock.
    """
    change(connection, "plan", "leaves_nothing", pipeline_id=pipeline_id)
    if not is_one_stream(spec):
        return TimeSet()
    return advance(connection, spec, pipeline_id, None)


# Keeps W4.
def advance(
    connection: sa.Connection, spec: Spec, pipeline_id: int, batch_id: int | None
) -> TimeSet:
    """Advance the event time by a batch that is finalized now, or by a plan without a batch.
    Returns the range that the event time passes. The caller holds the pipeline's lock.
    """
    now = frontier(connection, spec, pipeline_id, batch_id)
    event_time: datetime | None = now["event_time"]
    if is_one_stream(spec):
        values = {key: now[key] for key in ("event_time", "arrived_to", "frontier")}
        change(connection, "finalize", "advance_files", pipeline_id=pipeline_id, **values)
    else:
        advance_streams(connection, pipeline_id, batch_id)
        event_time = row(connection, "finalize", "event_time", pipeline_id=pipeline_id)[
            "event_time"
        ]
    if event_time is None or event_time == now["before"]:
        return TimeSet()
    return TimeSet.of([(now["before"] or now["time_min"] or event_time, event_time)])


def advance_streams(
    connection: sa.Connection, pipeline_id: int, batch_id: int | None
) -> None:
    """Advance each stream by a batch that is finalized now, or by all batches."""
    values = {"pipeline_id": pipeline_id, "batch_id": batch_id}
    change(connection, "finalize", "advance", ahead=limits.CLOCKS_AHEAD, **values)
    idle = {"pipeline_id": pipeline_id, "idle_seconds": STREAM_IDLE_SECONDS}
    change(connection, "finalize", "event_time_of_streams", **idle)
