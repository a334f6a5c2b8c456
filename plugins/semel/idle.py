"""Why a plan found nothing to take: what its source shows, and who has it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from semel import limits
from semel.batch import BatchStatus, Pipeline
from semel.ledger import Ledger
from semel.sources import Found, in_window
from semel.survey import Request, Survey


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
    names = [found.name for found in own[-limits.NAMES_ASKED_MAX :]]
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
        elsewhere=_elsewhere(request, survey.unsettled),
        schedule=request.spec.schedule,
    )


def _elsewhere(request: Request, unsettled: Sequence[Found]) -> dict[date, int]:
    if request.window is None:
        return {}
    others = (f.when for f in unsettled if f.when and not in_window(f.when, request.window))
    days = Counter(when.astimezone(UTC).date() for when in others)
    return dict(sorted(days.items()))
