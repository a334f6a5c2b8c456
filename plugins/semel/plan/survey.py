"""survey, the first step of plan: what there is to take, and what is refused. Changes nothing.

How it works:
1. ask the source what it shows, outside any transaction, and read meanwhile what the ledger knows;
2. let the source match the two;
3. read which ranges of the offers are unclaimed, and which are missing from what is gone.
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
    SourceItem,
    LostRange,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    SourceListing,
    Source,
    Spans,
    Window,
    in_window,
)

_T = TypeVar("_T")

GROWING = "growing"
"""The reason why a part is refused that was written before a plan's window, and after it."""

LOOKS_MAX = 20
"""Looks at a source that changes meanwhile: one that does so more often never holds still."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A plan's request. `before`: the last batch with the same key, which is over. `log`: takes
    what the source says when it is looked at. `looked_at`: the ledger's time before that, of a run
    with an interval.

    Without a key, nobody asked for a plan: orphans keep their claims.
    """

    spec: Spec
    key: str | None = None
    before: Batch | None = None
    interval: tuple[datetime, datetime] | None = None
    looked_at: datetime | None = None
    log: Log = lambda _: None

    @property
    def window(self) -> Window:
        """The times that may be taken. None: all times."""
        if self.interval is None:
            return None
        return self.interval[0] - self.spec.source.lookback, self.interval[1]

    @property
    def listed(self) -> Window:
        """The times that a plan looks at: those that it may take; and before them, with a delay,
        those of which something late keeps a window open. A part is of as much time as the run's
        interval, or less.
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
    """Things that are new or changed since the last plan, or were not read to their end."""
    version: int
    orphans: list[int]
    matched: MatchResult
    free: Spans
    holes: Spans
    """Free ranges before the end of what was read: their batch was abandoned, or is an orphan."""
    lost: Spans
    """Ranges never read, of partitions that are gone."""
    missing: list[tuple[Partition, list[tuple[int, int]]]]
    """Ranges never read that are gone, of open partitions."""
    refusals: tuple[Refusal, ...]
    stored: list[Refusal]
    """The rows of semel.refusal."""
    unread: list[SourceItem]
    """Things of another time than the window of which something is unclaimed."""
    is_full: bool
    """Whether a plan has left nothing since the newest batch."""
    open_from: datetime | None = None
    """Since when a part of a later time has been written: the time from there on stays open."""

    @property
    def unread_elsewhere(self) -> list[SourceItem]:
        """`unread` without what is refused."""
        refused = {refusal.name for refusal in self.refusals}
        return [part for part in self.unread if part.name not in refused]

    @property
    def same_refusals(self) -> bool:
        """Whether semel.refusal already holds what a plan would write."""
        return {replace(r, when=None) for r in self.refusals} == set(self.stored)


def _unread(
    window: Window, parts: list[SourceItem], offers: list[Offer], holes: Spans
) -> list[SourceItem]:
    """The things of another time than the window that are not read to their end."""
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
    """Ask about a source again while something of it is moved or deleted meanwhile.

    RetryableError: that happened LOOKS_MAX times in a row.
    """
    for _ in range(LOOKS_MAX):
        with suppress(FileNotFoundError):
            return ask()
    raise RetryableError(
        f"the source of {pipeline} changed {LOOKS_MAX} times in a row while it was looked at; run "
        "this again"
    )


def look(ledger: Ledger, pipeline: Pipeline, request: Request) -> Survey:
    """Survey the source and the ledger. FileNotFoundError: look again.

    The version is read before anything else of the ledger, so that any later change shows under the
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
            held = partitions.held(connection, pipeline_id, state.orphans)
            return state, held, *partitions.unaccounted(connection, pipeline_id)

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        shown = source.discover()
        state, held, before, spans = reading.result()
    shown, known = held.known(ledger, pipeline_id, shown)
    stored = known.refusals
    # Each plan decides by itself whether a part is written on.
    refused = [refusal for refusal in stored if refusal.reason != GROWING]
    known = replace(known, orphans=frozenset(state.orphans), refusals=refused)
    matched = source.match(shown, known, request.window)
    for note in (*shown.notes, *matched.notes):
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
    gone = [item for item in matched.lost_ranges if item.partition.source_partition_id in lost]
    done = read.keys() | closed.keys()
    gone += [
        LostRange(partition=k, seen=k.seen) for k in before if k.source_partition_id not in done
    ]
    # Keeps KS3.
    missing = [o for o in offers if o.since <= o.low and o.partition.source_partition_id in passed]
    gone += [LostRange(partition=o.partition, seen=o.low) for o in missing]
    spans |= lost | passed
    matched = replace(matched, offers=[o for o in matched.offers if o not in missing])
    holes = partitions.up_to(free, read)
    return Survey(
        source=source,
        shown=shown,
        unsettled=known.unsettled,
        version=state.version,
        orphans=orphans,
        matched=matched,
        free=partitions.up_to(free, ends),
        holes=holes,
        lost=lost,
        missing=[(o.partition, passed[o.partition.source_partition_id]) for o in missing],
        refusals=(
            *shown.refusals,
            *matched.refusals,
            *(source.refuse_lost(item, spans[item.partition.source_partition_id]) for item in gone),
        ),
        stored=stored,
        unread=_unread(request.window, known.unsettled, matched.offers, holes),
        is_full=state.is_full,
    )
