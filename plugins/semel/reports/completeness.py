"""Completeness: which windows have all their records, judged by the batches that semel finalized.

With select: interval a window is complete once finalized batches cover the window and the `delay`
after it. With select: arrival it is complete once the event time has passed both. A complete window
stays complete; a later record still changes its rows, and is not lost.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from semel.declare.parts import Select
from semel.errors import LimitError, TerminalError
from semel.ledger import Ledger
from semel.model.complete import Completeness, Range, WindowState
from semel.model.times import YEARS, TimeSet
from semel.pipeline.spec import Spec
from semel.reports import intervals

if TYPE_CHECKING:
    from semel.model.windows import Windows

WINDOWS_SHOWN = 31
"""Windows that `semel windows` lists by default."""

HOLDERS_SHOWN = 10
"""Blockers that one report names."""

WINDOWS_MAX = 1_000
"""Maximum windows of one report: a month of hours."""


@dataclass(frozen=True, kw_only=True)
class WindowProgress:
    """A window [start, end). `missing`: the times that runs must still read to complete it.
    `commands` read the missing times that are in the past.
    """

    start: datetime
    end: datetime
    state: WindowState
    missing: tuple[Range, ...]
    commands: tuple[str, ...] = ()


class WindowBlocker(NamedTuple):
    """A batch or a part of the source that keeps windows from being complete, and why."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class WindowReport:
    """Windows, newest first. `declared`: `window` defines them, not the schedule's intervals.

    `known`: the newest time that the ledger knows about; with select: arrival the event time.
    `holders`: the first HOLDERS_SHOWN blockers that the ledger knows.
    """

    pipeline: str
    select: Select
    declared: bool
    known: datetime | None
    windows: tuple[WindowProgress, ...]
    holders: tuple[WindowBlocker, ...] = ()


def read_completeness(ledger: Ledger, spec: Spec) -> Completeness:
    """The completeness of a pipeline. Raises TerminalError if the declaration cannot define it."""
    if spec.window is None and spec.source.select is Select.ARRIVAL:
        raise TerminalError(
            f"{spec.name}: semel cannot know which times are complete, because the pipeline reads "
            "by arrival and has no window. Declare record_time and window, or source.select: "
            "interval",
            next=f"semel validate {spec.name}",
        )
    rows = ledger.rows("completeness", "pipeline", name=spec.name)
    by_interval = spec.source.select is Select.INTERVAL
    covered = TimeSet.from_ledger(rows[0]["covered"]) if rows else TimeSet()
    return Completeness(
        covered=covered if by_interval else None,
        event_time=rows[0]["event_time"] if rows and not by_interval else None,
        arrived_to=rows[0]["arrived_to"] if rows and not by_interval else None,
        delay=spec.delay,
    )


def windows(
    ledger: Ledger,
    spec: Spec,
    *,
    since: date | None = None,
    until: date | None = None,
    now: datetime,
) -> WindowReport:
    """The state of each window. `since` and `until` are days (UTC), both included.

    The default is the last WINDOWS_SHOWN, up to the newest that may be complete, without windows
    before the first record. Raises LimitError if there are more than WINDOWS_MAX.
    """
    for day in filter(None, (since, until)):
        if not YEARS[0] <= day.year < YEARS[1]:
            raise LimitError(
                f"{day}: the year must be {YEARS[0]} to {YEARS[1] - 1}", next="semel windows --help"
            )
    is_complete = read_completeness(ledger, spec)
    last = (is_complete.newest_time or now) - is_complete.delay
    if until is not None:
        last = datetime.combine(until, time(), UTC) + timedelta(days=1) - intervals.TICK
    first = datetime.combine(since, time(), UTC) if since else None
    opened = ledger.rows("completeness", "open", name=spec.name)
    in_work = TimeSet.of((r["interval_start"], r["interval_end"]) for r in opened)
    due = intervals.due_end(spec.schedule, now) if is_complete.covered is not None else None
    progress = tuple(
        _window(spec, is_complete, in_work, start, end, now, due)
        for start, end in _window_ranges(spec, first, last)
    )
    began = _first_record_time(ledger, spec, progress)
    if began is not None:
        empty = [w for w in progress if w.end <= began and w.state is WindowState.COMPLETE]
        progress = tuple(window for window in progress if window not in empty)
        if since is not None:
            progress += tuple(replace(window, state=WindowState.BEFORE) for window in empty)
    return WindowReport(
        pipeline=spec.name,
        select=spec.source.select,
        declared=spec.window is not None,
        known=is_complete.newest_time
        if is_complete.covered is not None
        else is_complete.event_time,
        windows=progress,
        holders=_blockers(ledger, spec, {window.state for window in progress}),
    )


def _first_record_time(
    ledger: Ledger, spec: Spec, progress: tuple[WindowProgress, ...]
) -> datetime | None:
    """The time of the first record. Returns None if no window of `progress` ends before it.

    A window that the event time has passed counts as complete, even if it ends before all records.
    """
    if spec.source.select is not Select.ARRIVAL or not progress:
        return None
    began = ledger.rows("completeness", "began", name=spec.name)
    if not began or progress[-1].end > began[0]["passed_from"]:
        return None
    return ledger.rows("completeness", "first", name=spec.name)[0]["at"]


def _blockers(ledger: Ledger, spec: Spec, states: set[WindowState]) -> tuple[WindowBlocker, ...]:
    """The open batches, refusals and unread parts at the time of the last plan."""
    by_interval = spec.source.select is Select.INTERVAL
    if not (by_interval or WindowState.HELD in states) or states == {WindowState.COMPLETE}:
        return ()
    rows = ledger.rows("completeness", "holders", name=spec.name, count=HOLDERS_SHOWN)
    blockers = [
        WindowBlocker(r["name"], r["why"] or f"{r['unread']:,} {spec.source.unit} are unread")
        for r in rows
    ]
    unknown = WindowBlocker(
        "the source", "the newest run left data unread, or no run has read it since"
    )
    return tuple(blockers) or (() if by_interval else (unknown,))


def newest_complete(is_complete: Completeness, declared: "Windows") -> Range | None:
    """The newest complete window. Returns None if no window is complete."""
    times = is_complete.covered
    ends = [is_complete.event_time] if times is None else [end for _, end in times.ranges]
    for end in reversed(ends):
        # The newest window that can be complete by this end, and the windows that overlap it.
        newest_first = _ranges_back_from(declared, end - is_complete.delay) if end else ()
        for window in islice(newest_first, declared.count + 1):
            if is_complete.complete(*window):
                return window
    return None


# Keeps W9.
def windows_of_batch(ledger: Ledger, spec: Spec, batch_id: int) -> tuple[Range, ...]:
    """The newest WINDOWS_MAX complete windows that a finalized batch affects, oldest first.

    The batch completed them, read their times again, or may have changed their rows.
    """
    if spec.window is None:
        return ()
    [batch] = ledger.rows("completeness", "batch", batch_id=batch_id)
    covers = TimeSet.from_ledger(batch["covers"] or ())
    passed = batch["passed_from"], batch["passed_to"]
    parts = covers if batch["passed_to"] is None else TimeSet.of([passed])
    is_complete, declared = read_completeness(ledger, spec), spec.window.windows
    rows = TimeSet.from_ledger(batch["times"] or ())
    changed = affected_windows(is_complete, declared, rows, waits=timedelta())
    windows = {*affected_windows(is_complete, declared, parts), *changed}
    return tuple(sorted(windows)[-WINDOWS_MAX:])


def affected_windows(
    is_complete: Completeness,
    declared: "Windows",
    parts: TimeSet,
    *,
    waits: timedelta | None = None,
) -> tuple[Range, ...]:
    """The newest WINDOWS_MAX complete windows that wait for times in `parts`, oldest first.

    `waits`: how long a window waits after its end; the default is the delay.
    """
    if not parts.ranges:
        return ()
    waits = is_complete.delay if waits is None else waits
    first, affected, lows = parts.ranges[0][0], [], [low for low, _ in parts.ranges]
    for start, end in _ranges_back_from(declared, parts.ranges[-1][1]):
        until = end + waits
        if until <= first or len(affected) == WINDOWS_MAX:
            break
        at = bisect_left(lows, until)  # The last range that begins before the window ends.
        if at and start < parts.ranges[at - 1][1] and is_complete.complete(start, end):
            affected.append((start, end))
    return tuple(reversed(affected))


def _window_ranges(spec: Spec, first: datetime | None, last: datetime) -> Iterator[Range]:
    """The windows that begin by `last`, newest first. Raises LimitError after WINDOWS_MAX."""
    if spec.window:
        ranges = _ranges_back_from(spec.window.windows, last)
    else:
        ranges = _scheduled_ranges(spec, first, last)
    for count, (start, end) in enumerate(ranges):
        if end <= first if first else count == WINDOWS_SHOWN:
            return
        if count == WINDOWS_MAX:
            raise LimitError(
                f"there are more than {WINDOWS_MAX:,} windows since {first:%F}. Choose fewer days "
                "with --from and --to",
                next="semel windows --help",
            )
        yield start, end


def _ranges_back_from(declared: "Windows", last: datetime) -> Iterator[Range]:
    """The windows that begin by `last`, newest first."""
    edges = deque([declared.slices.start(last)])
    for _ in range(declared.count):
        edges.append(declared.slices.next_start(edges[-1]))
    while True:
        yield edges[0], edges[-1]
        edges.pop()
        edges.appendleft(declared.slices.previous_start(edges[0]))


def _scheduled_ranges(spec: Spec, first: datetime | None, last: datetime) -> Iterator[Range]:
    if first is None:
        edges = intervals.last_edges(spec.schedule, last + intervals.TICK)
    else:
        edges = intervals.cells_of(spec.schedule, first, last)
    yield from reversed(list(pairwise(edges)))


def _window(
    spec: Spec,
    is_complete: Completeness,
    in_work: TimeSet,
    start: datetime,
    end: datetime,
    now: datetime,
    due: datetime | None,
) -> WindowProgress:
    progress = WindowProgress(
        start=start,
        end=end,
        state=is_complete.state(start, end, due),
        missing=is_complete.missing(start, end),
    )
    if progress.missing and not any(in_work.holes(*part) for part in progress.missing):
        return replace(progress, state=WindowState.IN_WORK)
    if progress.state is not WindowState.HOLE:
        return progress
    past = (
        _hole_range(
            spec, is_complete.covered, low, min(high, max(is_complete.newest_time, due), now)
        )
        for low, high in progress.missing
    )
    return replace(
        progress,
        commands=tuple(
            f"semel run {spec.name} --interval {intervals.moment(low)} {intervals.moment(high)}"
            for low, high in past
            if low < high
        ),
    )


def _hole_range(spec: Spec, covered: TimeSet, low: datetime, high: datetime) -> Range:
    """The schedule's intervals that overlap [low, high), cut to the hole around it."""
    if low >= high:
        return low, high
    first = intervals.cells_of(spec.schedule, low, low + intervals.TICK)[0]
    last = intervals.cells_of(spec.schedule, high - intervals.TICK, high)[-1]
    hole_start = max((end for _, end in covered.ranges if end <= low), default=first)
    hole_end = min((start for start, _ in covered.ranges if start >= high), default=high)
    return max(first, hole_start), min(last, hole_end)
