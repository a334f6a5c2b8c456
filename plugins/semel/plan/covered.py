"""The time that a plan covers: once its batch is finalized, so is everything that the source shows
for that time.

A plan with select: interval takes everything unclaimed in its window (P10). So it covers the window
up to the moment at which its survey began, except:
- nothing, if a part of the window is refused or incomplete;
- times whose records an open batch of another request may have claimed;
- windows within whose delay a file came after the run of its interval: they stay open;
- the time since the first write to a part that belongs to a later interval by its last write.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from semel.ledger import change, row
from semel.model.times import TimeSet
from semel.plan.cut import BatchDraft
from semel.plan.survey import GROWING, Request, Survey
from semel.sources import Refusal, SourceItem, in_window


# Keeps P10, W2.
def with_growing(request: Request, survey: Survey) -> Survey:
    """Return the survey with the growing parts that this plan leaves to a later interval.

    A part belongs to the interval of its last write. If it was written in this window too, the
    window stays open from the first such write on. Refuses a part that the run before this one has
    left as well.
    """
    if request.window is None:
        return survey
    (start, end), delay = request.window, request.spec.delay
    partitions = {
        offer.name: offer.partition for offer in survey.matched.offers
        if offer.partition and offer.partition.source_partition_id not in survey.holes
    }  # fmt: skip
    begun, refusals = [], []
    for part in survey.unread_elsewhere:
        since = part.when >= end and survey.source.unread_since(part, partitions.get(part.name))
        if not since or since >= min(end, part.when - delay):
            continue
        begun.append(since)
        if since < start - (request.interval[1] - request.interval[0]):
            refusals.append(_growing(request, part, since))
        else:
            request.log(
                f"{part.name!r} belongs to a later interval by its last write, and its unread part "
                f"begins at {since:%F %T} UTC. No window from then on is complete until a run "
                f"reads it. {_reading(request, part, since)} reads it now"
            )
    open_from = min(begun, default=None)
    return replace(survey, refusals=(*survey.refusals, *refusals), open_from=open_from)


def _growing(request: Request, part: SourceItem, since: datetime) -> Refusal:
    detail = (
        f"its unread part begins at {since:%F %T} UTC, and its last write was at "
        f"{part.when:%F %T} UTC, so each run leaves it to a later one. "
        f"{_reading(request, part, since)} reads it now. Declare source.select: arrival, or a "
        "source.lookback as long as such a file grows"
    )
    return Refusal(name=part.name, reason=GROWING, detail=detail, when=request.window[0])


def _reading(request: Request, part: SourceItem, since: datetime) -> str:
    """The command that reads a part, even if its writer goes on meanwhile."""
    until = max(part.when, datetime.now(UTC)).date() + timedelta(days=1)
    return f"`semel run {request.spec.name} --interval {since.date()} {until}`"


# Keeps W2.
def sees_all(request: Request, survey: Survey, draft: BatchDraft) -> bool:
    """Whether a plan sees and takes its whole window: it refuses no part of the window, and no part
    waits for the end of its last record.
    """
    if request.window is None or draft.failing:
        return False
    refused = (*survey.refusals, *draft.refused)
    if any(item.when is None or in_window(item.when, request.window) for item in refused):
        return False
    waiting = {offer.name for offer in survey.matched.offers if offer.end < offer.ahead}
    if not waiting or not request.spec.source.dated:
        return not waiting
    return not any(
        item.name in waiting and in_window(item.when, request.window)
        for item in survey.shown.items
    )


def late_times(request: Request, survey: Survey) -> list[datetime]:
    """The times of unclaimed parts of earlier windows that end within the delay of this one."""
    first, _ = request.listed  # Without a delay, this is where the window begins.
    unread = survey.unread_elsewhere
    return sorted({part.when for part in unread if first < part.when < request.window[0]})


# Keeps W2.
def covers(
    connection: sa.Connection, pipeline_id: int, request: Request, survey: Survey,
    late: list[datetime],
) -> tuple[TimeSet, bool]:  # fmt: skip
    """The time that a plan covers if it `sees_all`, and whether some of that time is new. The
    answer holds under the pipeline's lock. `late`: from `late_times`.
    """
    start, end = request.window
    end = min(end, request.looked_at, survey.open_from or end)
    answer = row(
        connection, "plan", "covers",
        pipeline_id=pipeline_id, start=start, end=max(start, end), late=late,
        delay=request.spec.delay,
    )  # fmt: skip
    return TimeSet.from_ledger(answer["covers"]), answer["is_new"]


def add(connection: sa.Connection, pipeline_id: int, times: TimeSet) -> None:
    """Cover times whose records are all finalized. The caller holds the pipeline's lock."""
    change(connection, "plan", "cover", pipeline_id=pipeline_id, covers=times.to_ledger())
