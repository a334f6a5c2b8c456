"""Completeness: which windows of time are complete, as statements about what has been read.

With select: interval a window is complete when all of it, and of the `delay` after it, is covered:
looked at and finalized. With select: arrival when the event time is past both. A window that is
complete stays so; a record that comes later changes its rows, and is not lost.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise
from typing import NamedTuple

from semel.declare.parts import Select
from semel.errors import LimitError, TerminalError
from semel.ledger import Ledger
from semel.model.complete import Completeness, Range, WindowState
from semel.model.times import TimeSet
from semel.model.windows import YEARS, Windows
from semel.pipeline.spec import Spec
from semel.reports import intervals

WINDOWS_SHOWN = 31
"""Windows that `semel windows` lists by default."""

HOLDERS_SHOWN = 10
"""Holders that an answer names."""

WINDOWS_MAX = 1_000
"""Windows of one answer: a month of hours."""


@dataclass(frozen=True, kw_only=True)
class WindowProgress:
    """A window [start, end). `missing`: what must still be read before it is complete. `commands`
    read what of that is in the past.
    """

    start: datetime
    end: datetime
    state: WindowState
    missing: tuple[Range, ...]
    commands: tuple[str, ...] = ()


class WindowBlocker(NamedTuple):
    """What keeps held windows from being complete: a batch or a part of the source, and why."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class WindowReport:
    """The answer of windows, newest first. `known`: the newest time that something is known of: of
    a pipeline with select: arrival its event time. `declared`: they are those of `window`, and
    not the intervals of the schedule. `holders`: what holds the held ones, or keeps others from
    being complete, as far as the ledger knows, the first HOLDERS_SHOWN.
    """

    pipeline: str
    select: Select
    declared: bool
    known: datetime | None
    windows: tuple[WindowProgress, ...]
    holders: tuple[WindowBlocker, ...] = ()


def of(ledger: Ledger, spec: Spec) -> Completeness:
    """The completeness of a pipeline. TerminalError: nothing tells it."""
    if spec.window is None and spec.source.select is Select.ARRIVAL:
        raise TerminalError(
            f"{spec.name} takes what has arrived, and declares no window: nothing tells what is "
            "complete. Declare record_time and window, or source.select: interval",
            next=f"semel validate {spec.name}",
        )
    found = ledger.rows("completeness", "pipeline", name=spec.name)
    by_interval = spec.source.select is Select.INTERVAL
    covered = TimeSet.from_ledger(found[0]["covered"]) if found else TimeSet()
    return Completeness(
        covered=covered if by_interval else None,
        event_time=found[0]["event_time"] if found and not by_interval else None,
        arrived_to=found[0]["arrived_to"] if found and not by_interval else None,
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

    By default the last WINDOWS_SHOWN, up to the newest that may be complete, and none from before
    the first record. LimitError: more than
    WINDOWS_MAX.
    """
    for day in filter(None, (since, until)):
        if not YEARS[0] <= day.year < YEARS[1]:
            raise LimitError(f"{day} is no day of records", next="semel windows --help")
    is_complete = of(ledger, spec)
    last = (is_complete.newest_time or now) - is_complete.delay
    if until is not None:
        last = datetime.combine(until, time(), UTC) + timedelta(days=1) - intervals.TICK
    first = datetime.combine(since, time(), UTC) if since else None
    opened = ledger.rows("completeness", "open", name=spec.name)
    in_work = TimeSet.of((r["interval_start"], r["interval_end"]) for r in opened)
    due = intervals.due(spec.schedule, now) if is_complete.covered is not None else None
    found = tuple(
        _window(spec, is_complete, in_work, start, end, now, due)
        for start, end in _cut(spec, first, last)
    )
    began = _began(ledger, spec, found)
    if began is not None:
        before = [one for one in found if one.end <= began and one.state is WindowState.COMPLETE]
        found = tuple(one for one in found if one not in before)
        if since is not None:
            found += tuple(replace(one, state=WindowState.BEFORE) for one in before)
    return WindowReport(
        pipeline=spec.name,
        select=spec.source.select,
        declared=spec.window is not None,
        known=(
            is_complete.event_time if is_complete.covered is None else is_complete.newest_time
        ),
        windows=found,
        holders=_holders(ledger, spec, {window.state for window in found}),
    )


def _began(ledger: Ledger, spec: Spec, found: tuple[WindowProgress, ...]) -> datetime | None:
    """The time of the first record, if there are windows before it. What an event time is past
    counts as complete, however long before all records it is.
    """
    if spec.source.select is not Select.ARRIVAL or not found:
        return None
    began = ledger.rows("completeness", "began", name=spec.name)
    if not began or found[-1].end > began[0]["passed_from"]:
        return None
    return ledger.rows("completeness", "first", name=spec.name)[0]["at"]


def _holders(ledger: Ledger, spec: Spec, states: set[WindowState]) -> tuple[WindowBlocker, ...]:
    """The open batches, refusals and unread parts, as the last plan saw them."""
    by_interval = spec.source.select is Select.INTERVAL
    if not (by_interval or WindowState.HELD in states) or states == {WindowState.COMPLETE}:
        return ()
    found = ledger.rows("completeness", "holders", name=spec.name, count=HOLDERS_SHOWN)
    holders = [
        WindowBlocker(r["name"], r["why"] or f"{r['unread']:,} {spec.source.unit} are unread")
        for r in found
    ]
    nothing = WindowBlocker(
        "the source", "the newest run left data unread, or none has looked since"
    )
    return tuple(holders) or (() if by_interval else (nothing,))


def newest(is_complete: Completeness, declared: Windows) -> Range | None:
    """The newest complete window, if there is one."""
    times = is_complete.covered
    ends = [is_complete.event_time] if times is None else [end for _, end in times.ranges]
    for end in reversed(ends):
        # The newest that can be complete by this end, and those that overlap it.
        around = islice(_back(declared, end - is_complete.delay), declared.count + 1) if end else ()
        for window in around:
            if is_complete.complete(*window):
                return window
    return None


# Keeps W9.
def of_batch(ledger: Ledger, spec: Spec, batch_id: int) -> tuple[Range, ...]:
    """The complete windows that a finalized batch has a part in: those that it made complete, those
    of time that it has looked at again, and those whose rows it may have changed. First ones first:
    the newest WINDOWS_MAX.
    """
    if spec.window is None:
        return ()
    [found] = ledger.rows("completeness", "batch", batch_id=batch_id)
    covers = TimeSet.from_ledger(found["covers"] or ())
    passed = found["passed_from"], found["passed_to"]
    parts = covers if found["passed_to"] is None else TimeSet.of([passed])
    is_complete, declared = of(ledger, spec), spec.window.windows
    rows = TimeSet.from_ledger(found["times"] or ())
    changed = touched(is_complete, declared, rows, waits=timedelta())
    windows = {*touched(is_complete, declared, parts), *changed}
    return tuple(sorted(windows)[-WINDOWS_MAX:])


def touched(
    is_complete: Completeness, declared: Windows, parts: TimeSet, *, waits: timedelta | None = None
) -> tuple[Range, ...]:
    """The complete windows that wait for some of these times, first ones first: the newest
    WINDOWS_MAX. `waits`: for how long after its end a window does, by default for the delay.
    """
    if not parts.ranges:
        return ()
    waits = is_complete.delay if waits is None else waits
    first, found, lows = parts.ranges[0][0], [], [low for low, _ in parts.ranges]
    for start, end in _back(declared, parts.ranges[-1][1]):
        until = end + waits
        if until <= first or len(found) == WINDOWS_MAX:
            break
        at = bisect_left(lows, until)  # The last range that begins before the window ends.
        if at and start < parts.ranges[at - 1][1] and is_complete.complete(start, end):
            found.append((start, end))
    return tuple(reversed(found))


def _cut(spec: Spec, first: datetime | None, last: datetime) -> Iterator[Range]:
    """The windows that begin by `last`, newest first. LimitError: more than WINDOWS_MAX."""
    found = _back(spec.window.windows, last) if spec.window else _scheduled(spec, first, last)
    for count, (start, end) in enumerate(found):
        if end <= first if first else count == WINDOWS_SHOWN:
            return
        if count == WINDOWS_MAX:
            raise LimitError(
                f"there are more than {WINDOWS_MAX:,} windows since {first:%F}; ask for fewer days "
                "with --from and --to",
                next="semel windows --help",
            )
        yield start, end


def _back(declared: Windows, last: datetime) -> Iterator[Range]:
    """The windows that begin by `last`, newest first."""
    edges = deque([declared.slices.start(last)])
    for _ in range(declared.count):
        edges.append(declared.slices.next_start(edges[-1]))
    while True:
        yield edges[0], edges[-1]
        edges.pop()
        edges.appendleft(declared.slices.previous_start(edges[0]))


def _scheduled(spec: Spec, first: datetime | None, last: datetime) -> Iterator[Range]:
    if first is None:
        edges = intervals.ending(spec.schedule, last + intervals.TICK)
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
    made = WindowProgress(
        start=start,
        end=end,
        state=is_complete.state(start, end, due),
        missing=is_complete.missing(start, end),
    )
    if made.missing and not any(in_work.holes(*part) for part in made.missing):
        return replace(made, state=WindowState.IN_WORK)
    if made.state is not WindowState.HOLE:
        return made
    past = (
        _cells(spec, is_complete.covered, low, min(high, max(is_complete.newest_time, due), now))
        for low, high in made.missing
    )
    return replace(
        made,
        commands=tuple(
            f"semel run {spec.name} --interval {intervals.moment(low)} {intervals.moment(high)}"
            for low, high in past
            if low < high
        ),
    )


def _cells(spec: Spec, covered: TimeSet, low: datetime, high: datetime) -> Range:
    """The intervals of the schedule that a part of a hole lies in, as far as the hole goes."""
    if low >= high:
        return low, high
    first = intervals.cells_of(spec.schedule, low, low + intervals.TICK)[0]
    last = intervals.cells_of(spec.schedule, high - intervals.TICK, high)[-1]
    before = max((end for _, end in covered.ranges if end <= low), default=first)
    after = min((start for start, _ in covered.ranges if start >= high), default=high)
    return max(first, before), min(last, after)
