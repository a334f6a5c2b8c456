"""Why a plan found nothing to take: what its source shows, and which batches have it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from semel.ledger import Ledger, Row
from semel.model.batch import HOLDERS_SHOWN, BatchStatus, Pipeline
from semel.plan.survey import Request, Survey
from semel.sources import SourceItem, in_window

NAMES_ASKED_MAX = 1_000
"""Newest names whose batches are looked up when a plan takes nothing."""


@dataclass(frozen=True, kw_only=True)
class BlockingBatch:
    """A batch with records from the run's request. `survivors`: None until it has committed."""

    batch_id: int
    request_key: str
    status: BatchStatus
    names: int
    survivors: int | None


@dataclass(frozen=True, kw_only=True)
class Idle:
    """What the source shows, in a run's interval and beside it.

    `shown`: how much the source shows in the interval. `holders`: the newest batches with records
    of that, newest first, and `more` others. `unmatched`: where the source shows nothing of any
    time, why that may be. `waiting`: names whose last record is incomplete. `elsewhere`: by day
    (UTC), how much of other intervals is new or has changed since a plan saw it. `schedule`: the
    pipeline's.
    """

    interval: tuple[datetime, datetime] | None
    shown: int
    holders: tuple[BlockingBatch, ...]
    more: int
    unmatched: str
    waiting: tuple[str, ...]
    elsewhere: dict[date, int]
    schedule: str | None = None


def why(ledger: Ledger, pipeline: Pipeline, request: Request, survey: Survey) -> Idle:
    """Explain why a plan takes nothing. Asks the ledger about the newest names only."""
    waiting = [offer.name for offer in survey.matched.offers if offer.end < offer.ahead]
    own: Sequence[SourceItem] = survey.shown.items
    if request.window is not None:
        own = [found for found in own if in_window(found.when, request.window)]
    asked = waiting and {found.name for found in own}
    holders = ledger.rows(
        "look",
        "holders",
        pipeline_id=pipeline.pipeline_id,
        names=[found.name for found in own[-NAMES_ASKED_MAX:]],
        count=HOLDERS_SHOWN,
    )
    return Idle(
        interval=request.interval,
        shown=len(own),
        holders=tuple(map(_holder, holders)),
        more=max((r["batches"] for r in holders), default=0) - len(holders),
        unmatched="" if survey.shown.items else request.spec.source.no_match_advice(),
        waiting=tuple(name for name in waiting if name in asked),
        elsewhere=_by_day(survey.unread_elsewhere),
        schedule=request.spec.schedule,
    )


def _holder(row: Row) -> BlockingBatch:
    return BlockingBatch(
        batch_id=row["batch_id"],
        request_key=row["request_key"],
        status=BatchStatus(row["status"]),
        names=row["names"],
        survivors=row["survivors"],
    )


def earlier(request: Request, survey: Survey) -> dict[date, int]:
    """By day (UTC), how much from before the request's window and before today has something
    unclaimed: it came late, or nobody ran its interval.
    """
    if request.window is None:
        return {}
    start = min(request.window[0], datetime.combine(datetime.now(UTC), time(), UTC))
    return _by_day(f for f in survey.unread_elsewhere if f.when < start)


def _by_day(found: Iterable[SourceItem]) -> dict[date, int]:
    return dict(sorted(Counter(f.when.astimezone(UTC).date() for f in found).items()))
