"""The time that a plan covers: all that its source shows of it is finalized once its batch is.

A plan with select: interval takes all that is unclaimed of its window (P10). So it covers that
window, up to the moment at which it began to look, unless something of it is refused or not whole,
and but for what an open batch of another request may have claimed. A file that came after the run of
its interval, but within the delay of its windows, is not in it: these windows stay open.
"""

from datetime import datetime

import sqlalchemy as sa

from semel.ledger import change, row
from semel.model.times import Times
from semel.plan import idle
from semel.plan.cut import Draft
from semel.plan.survey import Request, Survey
from semel.sources import in_window


# Keeps W2.
def sees_all(request: Request, survey: Survey, draft: Draft) -> bool:
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
        for item in survey.shown.found
    )


def late_times(request: Request, survey: Survey) -> list[datetime]:
    """The times of unclaimed parts of earlier windows that end within the delay of this one."""
    start, delay = request.window[0], request.spec.delay
    if not delay:
        return []
    # A part is of as much time as the run's interval, or less.
    first = start - delay - (request.interval[1] - request.interval[0])
    parts = idle.others(request, survey)
    return sorted({part.when for part in parts if first < part.when < start})


# Keeps W2.
def covers(
    connection: sa.Connection, pipeline_id: int, request: Request, late: list[datetime]
) -> tuple[Times, bool]:
    """The time that a plan covers which sees all, and whether some of that is not covered yet. It
    holds under the pipeline's lock. `late`: as `late_times` returns.
    """
    start, end = request.window
    found = row(
        connection, "plan", "covers",
        pipeline_id=pipeline_id, start=start, end=max(start, min(end, request.looked_at)),
        late=late, delay=request.spec.delay,
    )  # fmt: skip
    return Times.from_ledger(found["covers"]), found["is_new"]


def add(connection: sa.Connection, pipeline_id: int, times: Times) -> None:
    """Cover a time, of which all is finalized. The caller holds the pipeline's lock."""
    change(connection, "plan", "cover", pipeline_id=pipeline_id, covers=times.to_ledger())
