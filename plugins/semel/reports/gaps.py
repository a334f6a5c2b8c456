"""gaps: the source's ranges that no finalized batch has, by name, and the batches that read them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import partial

import sqlalchemy as sa

from semel.ledger import Ledger, Row, pipelines, rows
from semel.model.batch import Log
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan.survey import Request, steadily, take_survey
from semel.sources import (
    Offer,
    Refusal,
    SourceItem,
    SourceListing,
    Spans,
    empty_ledger_view,
    unclaimed_ranges,
)

LOSSES_SHOWN = 50
"""Recorded losses that `semel gaps` lists, newest first."""


class GapReason(StrEnum):
    """Why a range is not finalized."""

    UNCLAIMED = "unclaimed"
    """No batch has it: the next run reads it."""
    PLANNED = "planned"
    COMMITTED = "committed"
    WAITING = "waiting"
    """An unfinished last line, or a file that its producer has not closed yet: nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Positions [start, end) of one name in the source, such as a file. `silent`: its batch's
    heartbeat has stopped; run it again. `interval` and `replays`: its batch's interval, and the
    batch that it replays. `day`: with `select: interval`, the day (UTC) of unclaimed records.
    `passed_by`: no plan surveys it.
    """

    name: str
    start: int
    end: int
    state: GapReason
    batch_id: int | None = None
    replays: int | None = None
    request_key: str | None = None
    silent: bool = False
    interval: tuple[datetime, datetime] | None = None
    day: date | None = None
    passed_by: bool = False

    @property
    def idle(self) -> bool:
        """True if no run is working on it, although one could."""
        return self.state is GapReason.UNCLAIMED or self.silent


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss:
    """Positions [start, end) of a source's name that a person accepted as lost."""

    name: str
    start: int
    end: int
    reason: str
    accepted_by: str
    accepted_at: datetime


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """Rows of a batch, and records of its files in the archive, that a person has erased."""

    batch_id: int
    rows: int
    records: int
    reason: str
    accepted_by: str
    accepted_at: datetime


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The gaps of a pipeline, and the files that a plan would refuse now.

    `losses` and `erasures`: the last LOSSES_SHOWN that a person accepted.
    """

    pipeline: str
    gaps: tuple[Gap, ...]
    refusals: tuple[Refusal, ...]
    losses: tuple[AcceptedLoss, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def idle(self) -> bool:
        """True if a person or a run has to act: there are idle gaps or refused files."""
        return bool(self.refusals) or any(gap.idle for gap in self.gaps)

    @property
    def files(self) -> int:
        """The number of the source's names with a gap or a refusal."""
        return len({item.name for item in (*self.gaps, *self.refusals)})


def gaps(ledger: Ledger, spec: Spec, log: Log = lambda _: None) -> Gaps:
    """List the gaps of a pipeline, ordered by path and position. `log`: as in `plan`.

    Raises RetryableError if the ledger does not answer, or files move during each survey.
    """
    return gaps_and_items(ledger, spec, log)[0]


def gaps_and_items(
    ledger: Ledger, spec: Spec, log: Log = lambda _: None
) -> tuple[Gaps, Sequence[SourceItem]]:
    """The same as `gaps`, with the items of the source's present listing."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        listing, offers, refused = steadily(spec.name, lambda: first_survey(spec))
        for note in listing.notes:
            log(note)
        whens = {one.name: one.when for one in listing.items}
        unclaimed = [gap for offer in offers for gap in _offer_gaps(offer, {})]
        dated = tuple(_with_day(gap, whens.get(gap.name)) for gap in unclaimed)
        return Gaps(pipeline=spec.name, gaps=dated, refusals=refused), listing.items
    pipeline_id = pipeline.pipeline_id
    survey = steadily(spec.name, lambda: take_survey(ledger, pipeline, Request(spec=spec, log=log)))
    with ledger.transaction() as connection:
        claimed = _open_gaps(connection, spec, pipeline_id)
        values = {"pipeline_id": pipeline_id, "count": LOSSES_SHOWN}
        losses = rows(connection, "partitions", "losses", **values)
        erasures = rows(connection, "accept", "erasures", **values)
    whens = {one.name: one.when for one in survey.shown.items}
    unclaimed = [gap for offer in survey.matched.offers for gap in _offer_gaps(offer, survey.free)]
    next_source = survey.source.narrow(None, partial(ledger.rows, pipeline_id=pipeline_id))
    if unclaimed and next_source != survey.source:
        listed = {one.name for one in next_source.discover().items}
        unclaimed = [replace(gap, passed_by=gap.name not in listed) for gap in unclaimed]
    unclaimed = [_with_day(gap, whens.get(gap.name)) for gap in unclaimed]
    answer = Gaps(
        pipeline=spec.name,
        gaps=tuple(sorted([*unclaimed, *claimed], key=lambda gap: (gap.name, gap.start))),
        refusals=survey.refusals,
        losses=tuple(AcceptedLoss(**r) for r in losses),
        erasures=tuple(Erasure(**r) for r in erasures),
    )
    return answer, survey.shown.items


def open_gaps(ledger: Ledger, spec: Spec) -> list[Gap]:
    """The claims of open batches, as gaps. Reads only the ledger."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        return _open_gaps(connection, spec, pipeline.pipeline_id) if pipeline else []


def _open_gaps(connection: sa.Connection, spec: Spec, pipeline_id: int) -> list[Gap]:
    seconds = spec.limits.orphan_after.total_seconds()
    values = {"pipeline_id": pipeline_id, "orphan_seconds": seconds}
    return [_claim_gap(claim) for claim in rows(connection, "look", "open_claims", **values)]


def _claim_gap(claim: Row) -> Gap:
    """Convert the claim of an open batch to a gap."""
    values = {**claim, "state": GapReason(claim["state"])}
    start, end = values.pop("interval_start"), values.pop("interval_end")
    return Gap(**values, interval=(start, end) if start else None)


def _with_day(gap: Gap, when: datetime | None) -> Gap:
    if gap.state is not GapReason.UNCLAIMED or when is None:
        return gap
    return replace(gap, day=when.astimezone(UTC).date())


def first_survey(spec: Spec) -> tuple[SourceListing, list[Offer], tuple[Refusal, ...]]:
    """The listing, offers and refusals of a pipeline's first plan.

    Raises FileNotFoundError if a file disappears meanwhile; call it again.
    """
    source = open_source(spec)
    listing = source.discover()
    matched = source.match(listing, empty_ledger_view(listing), None)
    return listing, matched.offers, (*listing.refusals, *matched.refusals)


def _offer_gaps(offer: Offer, free: Spans) -> Iterator[Gap]:
    """The unclaimed ranges of one offer, and its incomplete end."""
    for start, end in unclaimed_ranges(offer, free):
        yield Gap(name=offer.name, start=start, end=end, state=GapReason.UNCLAIMED)
    reached = max(offer.end, offer.start, offer.partition.reached if offer.partition else 0)
    if reached < offer.ahead:
        yield Gap(name=offer.name, start=reached, end=offer.ahead, state=GapReason.WAITING)
