"""Why a plan found nothing to take: what its source shows, and who has it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from semel import limits
from semel.ledger import Ledger
from semel.model.batch import BatchStatus, Pipeline
from semel.plan.survey import Request, Survey
from semel.sources import Found, in_window

NAMES_ASKED_MAX = 1_000
"""Names, the newest, whose batches a plan that takes nothing asks for."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A batch with records of what the run asked for. `survivors`: None until it has committed."""

    batch_id: int
    request_key: str
    status: BatchStatus
    names: int
    survivors: int | None


@dataclass(frozen=True, kw_only=True)
class Idle:
    """What there is, of a run's interval and beside it.

    `shown`: how much the source shows of it. `holders`: the newest batches that have records of
    that, the newest first. `waiting`: names whose last record is not complete yet. `elsewhere`: by
    day (UTC), how much of other intervals is new, or is not what a plan saw last. `schedule`: the
    pipeline's.
    """

    interval: tuple[datetime, datetime] | None
    shown: int
    holders: tuple[Holder, ...]
    waiting: tuple[str, ...]
    elsewhere: dict[date, int]
    schedule: str | None = None


def why(ledger: Ledger, pipeline: Pipeline, request: Request, survey: Survey) -> Idle:
    """What keeps a plan from taking anything. Asks the ledger for some of the names, not all."""
    own = [found for found in survey.shown.found if in_window(found.when, request.window)]
    names = [found.name for found in own[-NAMES_ASKED_MAX :]]
    holders = ledger.rows(
        "look",
        "holders",
        pipeline_id=pipeline.pipeline_id,
        names=names,
        count=limits.HOLDERS_SHOWN,
    )
    offers, asked = survey.matched.offers, {found.name for found in own}
    return Idle(
        interval=request.interval,
        shown=len(own),
        holders=tuple(Holder(**{**r, "status": BatchStatus(r["status"])}) for r in holders),
        waiting=tuple(o.name for o in offers if o.end < o.ahead and o.name in asked),
        elsewhere=_elsewhere(request, survey),
        schedule=request.spec.schedule,
    )


def earlier(request: Request, survey: Survey) -> dict[date, int]:
    """By day (UTC), how much of days before the request's window and before today is new, or is not
    what a plan saw last: it came late, or nobody ran its interval. Not what is refused.
    """
    if request.window is None:
        return {}
    start = min(request.window[0], datetime.combine(datetime.now(UTC), time(), UTC))
    return _by_day(f for f in _others(request, survey) if f.when < start)


def _elsewhere(request: Request, survey: Survey) -> dict[date, int]:
    return _by_day(_others(request, survey))


def _others(request: Request, survey: Survey) -> list[Found]:
    if request.window is None:
        return []
    refused = {refusal.name for refusal in survey.refusals}
    others = (f for f in survey.unsettled if f.when and not in_window(f.when, request.window))
    return [found for found in others if found.name not in refused]


def _by_day(found: Iterable[Found]) -> dict[date, int]:
    return dict(sorted(Counter(f.when.astimezone(UTC).date() for f in found).items()))
