"""Event time: how far the records of a pipeline with select: arrival have come in their own time.

Purpose: say which windows are complete. It is a statement, and drops nothing.
How it works: of a source whose partitions are streams, each partition has come to the greatest
record time before its first position that is not finalized; the pipeline to the least of these.
What is idle holds nothing back: a partition without a backlog that did not move for
STREAM_IDLE_SECONDS. Other sources are one stream. A plan that leaves nothing has looked at all of
it: once the batches up to that plan's are finalized, the pipeline has come to the greatest record
time in them. It never goes back. A record whose clock is ahead of its plan tells nothing.
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
"""A partition that is read to its end and did not move for so long is idle. Hourly runs move it."""


def is_timed(spec: Spec) -> bool:
    """Whether a pipeline's records tell its event time."""
    return spec.window is not None and spec.source.select is Select.ARRIVAL


def is_one_stream(spec: Spec) -> bool:
    """Whether that is one for the whole source."""
    return is_timed(spec) and not spec.source.streams


# Keeps W6, W7.
def leaves_nothing(request: Request, survey: Survey, draft: BatchDraft) -> bool:
    """Whether all that a plan saw is claimed or lost once it is written. A line without its end
    comes later, and so does what its source has not sealed.
    """
    if request.spec.source.select is not Select.ARRIVAL or draft.left:
        return False
    if survey.refusals or draft.refused:
        return False
    waits = any(
        offer.end < offer.ahead and (offer.all_or_nothing or not offer.end)
        for offer in survey.matched.offers
    )
    return not waits and survey.source.is_complete(survey.shown)


def times(ledger: Ledger, spec: Spec, batch: Batch) -> list[Row]:
    """The first and the last record time of a batch: of each stream, or of all."""
    if spec.window is None or batch.replays is not None or batch.admits is not None:
        return []
    streams = spec.source.streams
    return ledger.rows("finalize", "times", batch_id=batch.batch_id, streams=streams)


def frontier(
    connection: sa.Connection, spec: Spec, pipeline_id: int, batch_id: int | None
) -> Row:
    """How far a pipeline has come once a batch is finalized. Changes nothing."""
    values = {"pipeline_id": pipeline_id, "batch_id": batch_id}
    if spec.source.select is not Select.ARRIVAL:
        return row(connection, "finalize", "frontier_of_intervals", **values)
    own = {"timed": is_one_stream(spec), "ahead": limits.CLOCKS_AHEAD}
    return row(connection, "finalize", "frontier", **values, **own)


def take_in(connection: sa.Connection, spec: Spec, batch: Batch) -> None:
    """Take in a batch that is finalized now. The caller holds the pipeline's lock."""
    passed = advance(connection, spec, batch.pipeline_id, batch.batch_id)
    for start, end in passed.ranges:
        values = {"batch_id": batch.batch_id, "start": start, "end": end}
        change(connection, "finalize", "passed", **values)


def look(connection: sa.Connection, spec: Spec, pipeline_id: int) -> TimeSet:
    """Take in a plan that left nothing and has no batch. Returns the time that it completes. The
    caller holds the pipeline's lock.
    """
    change(connection, "plan", "leaves_nothing", pipeline_id=pipeline_id)
    if not is_one_stream(spec):
        return TimeSet()
    return advance(connection, spec, pipeline_id, None)


# Keeps W4.
def advance(
    connection: sa.Connection, spec: Spec, pipeline_id: int, batch_id: int | None
) -> TimeSet:
    """Take in a batch that is finalized now, or a plan without one. Returns from where to where
    that moves the event time. The caller holds the pipeline's lock.
    """
    now = frontier(connection, spec, pipeline_id, batch_id)
    after: datetime | None = now["event_time"]
    if is_one_stream(spec):
        values = {key: now[key] for key in ("event_time", "arrived_to", "frontier")}
        change(connection, "finalize", "advance_files", pipeline_id=pipeline_id, **values)
    else:
        advance_streams(connection, pipeline_id, batch_id)
        after = row(connection, "finalize", "event_time", pipeline_id=pipeline_id)["event_time"]
    if after is None or after == now["before"]:
        return TimeSet()
    return TimeSet.of([(now["before"] or now["time_min"] or after, after)])


def advance_streams(
    connection: sa.Connection, pipeline_id: int, batch_id: int | None
) -> None:
    """Take in a batch of streams that is finalized now, or all."""
    values = {"pipeline_id": pipeline_id, "batch_id": batch_id}
    change(connection, "finalize", "advance", ahead=limits.CLOCKS_AHEAD, **values)
    idle = {"pipeline_id": pipeline_id, "idle_seconds": STREAM_IDLE_SECONDS}
    change(connection, "finalize", "event_time_of_streams", **idle)
