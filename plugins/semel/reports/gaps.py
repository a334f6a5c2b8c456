"""gaps: what the source holds and no finalized batch has, by name, and who is working on it."""

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
    """No batch has it: the next run takes it."""
    PLANNED = "planned"
    COMMITTED = "committed"
    WAITING = "waiting"
    """An unfinished last line, or a file that is not yet closed: nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Positions [start, end) of a file, or the like. `silent`: its batch gives no sign of life; run
    it again. `interval`: its batch's, and what that `replays`. `day`: with `select: interval`, the
    day (UTC) of unclaimed records. `passed_by`: no plan looks there.
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
        """Whether nobody is working on it, though somebody could."""
        return self.state is GapReason.UNCLAIMED or self.silent


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss:
    """Positions [start, end) of a file, or the like, that were accepted as lost."""

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
    """The answer of gaps. Refused files are judged as a plan would judge them now.

    `losses` and `erasures` are the last LOSSES_SHOWN that a person accepted.
    """

    pipeline: str
    gaps: tuple[Gap, ...]
    refusals: tuple[Refusal, ...]
    losses: tuple[AcceptedLoss, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether a person or a run is needed: there are idle gaps or refused files."""
        return bool(self.refusals) or any(gap.idle for gap in self.gaps)

    @property
    def files(self) -> int:
        """The number of files, or the like, with something that no finalized batch has."""
        return len({item.name for item in (*self.gaps, *self.refusals)})


def gaps(ledger: Ledger, spec: Spec, log: Log = lambda _: None) -> Gaps:
    """List the gaps of a pipeline, ordered by path and position. `log`: as in `plan`.

    RetryableError: the ledger did not answer, or files move faster than they are read.
    """
    return gaps_beside(ledger, spec, log)[0]


def gaps_beside(
    ledger: Ledger, spec: Spec, log: Log = lambda _: None
) -> tuple[Gaps, Sequence[SourceItem]]:
    """As `gaps`, together with all that the source shows now."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        shown, offers, refused = steadily(spec.name, lambda: unplanned(spec))
        for note in shown.notes:
            log(note)
        whens = {one.name: one.when for one in shown.items}
        found = [_dated(gap, whens.get(gap.name)) for offer in offers for gap in _of(offer, {})]
        return Gaps(pipeline=spec.name, gaps=tuple(found), refusals=refused), shown.items
    pipeline_id = pipeline.pipeline_id
    seen = steadily(spec.name, lambda: take_survey(ledger, pipeline, Request(spec=spec, log=log)))
    with ledger.transaction() as connection:
        held = _opened(connection, spec, pipeline_id)
        losses = rows(
            connection,
            "partitions",
            "losses",
            pipeline_id=pipeline_id,
            count=LOSSES_SHOWN,
        )
        values = {"pipeline_id": pipeline_id, "count": LOSSES_SHOWN}
        erasures = rows(connection, "accept", "erasures", **values)
    whens = {one.name: one.when for one in seen.shown.items}
    found = [gap for offer in seen.matched.offers for gap in _of(offer, seen.free)]
    next_look = seen.source.narrow(None, partial(ledger.rows, pipeline_id=pipeline_id))
    if found and next_look != seen.source:
        looked = {one.name for one in next_look.discover().items}
        found = [replace(gap, passed_by=gap.name not in looked) for gap in found]
    found = [_dated(gap, whens.get(gap.name)) for gap in found]
    found += held
    found.sort(key=lambda gap: (gap.name, gap.start))
    answer = Gaps(
        pipeline=spec.name,
        gaps=tuple(found),
        refusals=seen.refusals,
        losses=tuple(AcceptedLoss(**r) for r in losses),
        erasures=tuple(Erasure(**r) for r in erasures),
    )
    return answer, seen.shown.items


def opened(ledger: Ledger, spec: Spec) -> list[Gap]:
    """The claims of open batches, by the ledger alone."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        return _opened(connection, spec, pipeline.pipeline_id) if pipeline else []


def _opened(connection: sa.Connection, spec: Spec, pipeline_id: int) -> list[Gap]:
    silent = spec.limits.orphan_after.total_seconds()
    values = {"pipeline_id": pipeline_id, "orphan_seconds": silent}
    return [_held(claim) for claim in rows(connection, "look", "open_claims", **values)]


def _held(claim: Row) -> Gap:
    """The claim of an open batch, as a gap."""
    values = {**claim, "state": GapReason(claim["state"])}
    start, end = values.pop("interval_start"), values.pop("interval_end")
    return Gap(**values, interval=(start, end) if start else None)


def _dated(gap: Gap, when: datetime | None) -> Gap:
    if gap.state is not GapReason.UNCLAIMED or when is None:
        return gap
    return replace(gap, day=when.astimezone(UTC).date())


def unplanned(spec: Spec) -> tuple[SourceListing, list[Offer], tuple[Refusal, ...]]:
    """What a first plan would see: all that is there, what it may take, and what is refused.

    FileNotFoundError: look again.
    """
    source = open_source(spec)
    shown = source.discover()
    matched = source.match(shown, empty_ledger_view(shown), None)
    return shown, matched.offers, (*shown.refusals, *matched.refusals)


def _of(offer: Offer, free: Spans) -> Iterator[Gap]:
    """The ranges of one offer that no batch has."""
    for start, end in unclaimed_ranges(offer, free):
        yield Gap(name=offer.name, start=start, end=end, state=GapReason.UNCLAIMED)
    reached = max(offer.end, offer.start, offer.partition.reached if offer.partition else 0)
    if reached < offer.ahead:
        yield Gap(name=offer.name, start=reached, end=offer.ahead, state=GapReason.WAITING)
