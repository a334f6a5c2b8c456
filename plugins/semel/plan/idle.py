"""Explain an empty plan: what the source shows, and which batches have read it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from semel.ledger import Ledger, Row
from semel.model.batch import HOLDERS_SHOWN, BatchStatus, Pipeline
from semel.plan.survey import Request, Survey
from semel.sources import SourceItem, in_window

NAMES_ASKED_MAX = 1_000
"""The number of newest names whose batches semel looks up for an empty plan."""


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
    """The contents of the source, within a run's interval and outside it.

    `shown_count`: the number of parts in the interval. `holders`: the newest batches that claimed
    these parts, newest first, and `more` others. `unmatched`: a possible reason if the source is
    empty. `waiting`: names whose last record is incomplete. `elsewhere`: by day (UTC), the number
    of parts of other intervals that are new or have changed since a plan saw them. `schedule`: the
    pipeline's schedule.
    """

    interval: tuple[datetime, datetime] | None
    shown_count: int
    holders: tuple[BlockingBatch, ...]
    more: int
    unmatched: str
    waiting: tuple[str, ...]
    elsewhere: dict[date, int]
    schedule: str | None = None


def explain_idle(ledger: Ledger, pipeline: Pipeline, request: Request, survey: Survey) -> Idle:
    """Explain an empty plan. Queries the ledger for the newest names only."""
    waiting = [offer.name for offer in survey.matched.offers if offer.end < offer.ahead]
    items: Sequence[SourceItem] = survey.shown.items
    if request.window is not None:
        items = [item for item in items if in_window(item.when, request.window)]
    names = waiting and {item.name for item in items}
    holders = ledger.rows(
        "look",
        "holders",
        pipeline_id=pipeline.pipeline_id,
        names=[item.name for item in items[-NAMES_ASKED_MAX:]],
        count=HOLDERS_SHOWN,
    )
    return Idle(
        interval=request.interval,
        shown_count=len(items),
        holders=tuple(map(_holder, holders)),
        more=max((r["batches"] for r in holders), default=0) - len(holders),
        unmatched="" if survey.shown.items else request.spec.source.no_match_advice(),
        waiting=tuple(name for name in waiting if name in names),
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
    """By day (UTC), the number of parts before the request's window and before today that have
    unclaimed records: they came late, or their interval never ran.
    """
    if request.window is None:
        return {}
    start = min(request.window[0], datetime.combine(datetime.now(UTC), time(), UTC))
    return _by_day(f for f in survey.unread_elsewhere if f.when < start)


def _by_day(items: Iterable[SourceItem]) -> dict[date, int]:
    return dict(sorted(Counter(item.when.astimezone(UTC).date() for item in items).items()))
