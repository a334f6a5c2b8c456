"""The time that a plan covers: all that its source shows of it is finalized once its batch is.

A plan with select: interval takes all that is unclaimed of its window (P10). So it covers that
window, up to the moment at which it began to look, unless something of it is refused or not whole,
and but for what an open batch of another request may have claimed. A file that came after the run
of its interval, but within the delay of its windows, is not in it: these windows stay open. So does
the time since when a part has been written that is of a later interval by its last write.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from semel.ledger import change, row
from semel.model.times import TimeSet
from semel.plan.cut import BatchDraft
from semel.plan.survey import GROWING, Request, Survey
from semel.sources import SourceItem, Refusal, in_window


# Keeps P10, W2.
def with_growing(request: Request, survey: Survey) -> Survey:
    """The survey of a plan that passes over unread parts, because they were written after its
    window: if they were written in it too, its time stays open from there on. Refuses a part that
    the run before this one has passed over as well.
    """
    if request.window is None:
        return survey
    (start, end), delay = request.window, request.spec.delay
    known = {
        offer.name: offer.partition for offer in survey.matched.offers
        if offer.partition and offer.partition.source_partition_id not in survey.holes
    }  # fmt: skip
    begun, refusals = [], []
    for part in survey.unread_elsewhere:
        since = part.when >= end and survey.source.unread_since(part, known.get(part.name))
        if not since or since >= min(end, part.when - delay):
            continue
        begun.append(since)
        if since < start - (request.interval[1] - request.interval[0]):
            refusals.append(_growing(request, part, since))
        else:
            request.log(
                f"{part.name!r} is of a later interval, by its last write, and has been written "
                f"since {since:%F %T} UTC: from then on nothing is complete until it is read. "
                f"{_reading(request, part, since)} reads it now"
            )
    open_from = min(begun, default=None)
    return replace(survey, refusals=(*survey.refusals, *refusals), open_from=open_from)


def _growing(request: Request, part: SourceItem, since: datetime) -> Refusal:
    detail = (
        f"it has been written since {since:%F %T} UTC, and last at {part.when:%F %T} UTC, so each "
        f"run leaves it to a later one. {_reading(request, part, since)} reads it now. Declare "
        "source.select: arrival, or a source.lookback of as long as such a file is written"
    )
    return Refusal(name=part.name, reason=GROWING, detail=detail, when=request.window[0])


def _reading(request: Request, part: SourceItem, since: datetime) -> str:
    """The command that reads a part, also if it is written meanwhile."""
    until = max(part.when, datetime.now(UTC)).date() + timedelta(days=1)
    return f"`semel run {request.spec.name} --interval {since.date()} {until}`"


# Keeps W2.
def sees_all(request: Request, survey: Survey, draft: BatchDraft) -> bool:
    """Whether a plan has seen all of its window, and takes it: nothing of it is refused, or waits
    for its end.
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
    first, _ = request.listed  # Without a delay nothing is between them.
    unread = survey.unread_elsewhere
    return sorted({part.when for part in unread if first < part.when < request.window[0]})


# Keeps W2.
def covers(
    connection: sa.Connection, pipeline_id: int, request: Request, survey: Survey,
    late: list[datetime],
) -> tuple[TimeSet, bool]:  # fmt: skip
    """The time that a plan covers which sees all, and whether some of that is not covered yet. It
    holds under the pipeline's lock. `late`: as `late_times` returns.
    """
    start, end = request.window
    end = min(end, request.looked_at, survey.open_from or end)
    found = row(
        connection, "plan", "covers",
        pipeline_id=pipeline_id, start=start, end=max(start, end), late=late,
        delay=request.spec.delay,
    )  # fmt: skip
    return TimeSet.from_ledger(found["covers"]), found["is_new"]


def add(connection: sa.Connection, pipeline_id: int, times: TimeSet) -> None:
    """Cover a time, of which all is finalized. The caller holds the pipeline's lock."""
    change(connection, "plan", "cover", pipeline_id=pipeline_id, covers=times.to_ledger())
