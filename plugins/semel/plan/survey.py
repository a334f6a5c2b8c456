"""survey, the first step of plan: list what there is to take, and what is refused. Changes nothing.

How it works:
1. the source lists its parts, outside any transaction, while a thread reads the ledger;
2. the source matches its listing with the ledger's view;
3. the ledger returns the unclaimed ranges of the offers, and the unread ranges of lost parts.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.model.batch import Batch, Log, Pipeline
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.plan.partitions import LedgerState, PlanInputs
from semel.sources import (
    LostRange,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    Source,
    SourceItem,
    SourceListing,
    Spans,
    Window,
    in_window,
)

_T = TypeVar("_T")

GROWING = "growing"
"""The reason for a refusal of a part with writes both before and after a plan's window."""

LOOKS_MAX = 20
"""The number of attempts to read a source that changes meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A plan's request. `before`: the last batch with the same key, which has ended. `log`: takes
    the source's notes. `looked_at`: the ledger's time before the survey, for a run with an interval.

    Without a key this is a survey for a report, not for a plan: orphans keep their claims.
    """

    spec: Spec
    key: str | None = None
    before: Batch | None = None
    interval: tuple[datetime, datetime] | None = None
    looked_at: datetime | None = None
    log: Log = lambda _: None

    @property
    def window(self) -> Window:
        """The times that plan may take. None means all times."""
        if self.interval is None:
            return None
        return self.interval[0] - self.spec.source.lookback, self.interval[1]

    @property
    def listed(self) -> Window:
        """The times that plan surveys: the window; and with a delay the times before it, in which a
        late part keeps a window open. A part spans at most the run's interval.
        """
        if not (self.interval and self.spec.delay):
            return self.window
        start, end = self.window
        return start - self.spec.delay - (self.interval[1] - self.interval[0]), end


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The basis of a plan, all read from one `version` of the pipeline's ledger."""

    source: Source
    shown: SourceListing
    unsettled: list[SourceItem]
    """Items that are new, changed since the last plan, or not read to their end."""
    version: int
    orphans: list[int]
    matched: MatchResult
    free: Spans
    holes: Spans
    """Free ranges before the read position: their batch was abandoned, or is an orphan."""
    lost: Spans
    """Unread ranges of partitions that the source no longer shows."""
    missing: list[tuple[Partition, list[tuple[int, int]]]]
    """Unread ranges that open partitions no longer have."""
    refusals: tuple[Refusal, ...]
    stored: list[Refusal]
    """The rows of semel.refusal."""
    unread: list[SourceItem]
    """Items outside the window with unclaimed positions."""
    is_full: bool
    """Whether a plan since the newest batch has left nothing unread."""
    open_from: datetime | None = None
    """The first write to a part that belongs to a later interval: from then on, time stays open."""

    @property
    def unread_elsewhere(self) -> list[SourceItem]:
        """`unread` without refused items."""
        refused = {refusal.name for refusal in self.refusals}
        return [part for part in self.unread if part.name not in refused]

    @property
    def same_refusals(self) -> bool:
        """Whether semel.refusal already has the rows that plan would write."""
        return {replace(r, when=None) for r in self.refusals} == set(self.stored)


def _unread(
    window: Window, parts: list[SourceItem], offers: list[Offer], holes: Spans
) -> list[SourceItem]:
    """The items outside the window that are not read to their end."""
    if window is None:
        return []
    over = {
        o.name for o in offers
        if o.partition and o.ahead <= o.partition.reached > 0
        and o.partition.source_partition_id not in holes
    }  # fmt: skip
    others = (part for part in parts if part.when and not in_window(part.when, window))
    return [part for part in others if part.name not in over]


def steadily(pipeline: str, ask: Callable[[], _T]) -> _T:
    """Query a source again while its parts are being moved or deleted.

    Raises RetryableError if that happens LOOKS_MAX times in a row.
    """
    for _ in range(LOOKS_MAX):
        with suppress(FileNotFoundError):
            return ask()
    raise RetryableError(
        f"the source of {pipeline} changed {LOOKS_MAX} times in a row while semel read it. Run "
        "this again"
    )


def take_survey(ledger: Ledger, pipeline: Pipeline, request: Request) -> Survey:
    """Survey the source and the ledger. Raises FileNotFoundError if a part moved: survey again.

    It reads the version before anything else in the ledger, so plan sees any later change under the
    lock.
    """
    spec, pipeline_id = request.spec, pipeline.pipeline_id
    source = open_source(spec)
    if request.key is not None:
        source = source.narrow(request.listed, partial(ledger.rows, pipeline_id=pipeline_id))

    def read() -> tuple[PlanInputs, LedgerState, list[Partition], Spans]:
        silent = spec.limits.orphan_after.total_seconds()
        with ledger.transaction() as connection:
            state = partitions.state(connection, pipeline_id, request.key, silent)
            ledger_state = partitions.read_state(connection, pipeline_id, state.orphans)
            return state, ledger_state, *partitions.unaccounted(connection, pipeline_id)

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        listing = source.discover()
        state, ledger_state, closed_before, spans = reading.result()
    listing, view = ledger_state.compare(ledger, pipeline_id, listing)
    stored = view.refusals
    # Each plan decides for itself whether a part still grows.
    refused = [refusal for refusal in stored if refusal.reason != GROWING]
    view = replace(view, orphans=frozenset(state.orphans), refusals=refused)
    matched = source.match(listing, view, request.window)
    for note in (*listing.notes, *matched.notes):
        request.log(note)
    offers = [offer for offer in matched.offers if offer.partition]
    ends = {o.partition.source_partition_id: o.end for o in offers if o.end}
    read = {o.partition.source_partition_id: o.partition.reached for o in offers}
    closed = {item.partition.source_partition_id: item.seen for item in matched.lost_ranges}
    lows = {o.partition.source_partition_id: o.low for o in offers if o.low}
    orphans = [*matched.released_batches]
    free, lost, passed = {}, {}, {}
    if read or closed:
        with ledger.transaction() as connection:
            orphans = sorted({*orphans, *partitions.holders(connection, state.orphans, ends)})
            furthest = {part: max(end, ends.get(part, 0)) for part, end in read.items()}
            free = partitions.free_ranges(connection, furthest, orphans)
            lost = partitions.free_ranges(connection, closed)
            passed = partitions.free_ranges(connection, lows)
    vanished = [item for item in matched.lost_ranges if item.partition.source_partition_id in lost]
    handled = read.keys() | closed.keys()
    vanished += [
        LostRange(partition=k, seen=k.seen)
        for k in closed_before
        if k.source_partition_id not in handled
    ]
    # Keeps KS3.
    missing = [o for o in offers if o.since <= o.low and o.partition.source_partition_id in passed]
    vanished += [LostRange(partition=o.partition, seen=o.low) for o in missing]
    spans |= lost | passed
    matched = replace(matched, offers=[o for o in matched.offers if o not in missing])
    holes = partitions.up_to(free, read)
    return Survey(
        source=source,
        shown=listing,
        unsettled=view.unsettled,
        version=state.version,
        orphans=orphans,
        matched=matched,
        free=partitions.up_to(free, ends),
        holes=holes,
        lost=lost,
        missing=[(o.partition, passed[o.partition.source_partition_id]) for o in missing],
        refusals=(
            *listing.refusals,
            *matched.refusals,
            *(
                source.refuse_lost(item, spans[item.partition.source_partition_id])
                for item in vanished
            ),
        ),
        stored=stored,
        unread=_unread(request.window, view.unsettled, matched.offers, holes),
        is_full=state.is_full,
    )
