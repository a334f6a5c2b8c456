"""Whether a window of time is complete: a statement about what was read, which drops nothing."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from semel.model.reasons import Said
from semel.model.times import TimeSet

Range = tuple[datetime, datetime]
"""Times [start, end)."""


class WindowState(Said):
    """What is known of a window."""

    COMPLETE = "complete", "All that may be expected of it is finalized."
    HOLE = "hole", "Some of it is not covered, though its time is over: a run failed, or never ran."
    NOT_RUN = "not run", "Nothing of it is covered, nor of any time before it."
    NOT_YET = "not yet", "Its time, or the delay behind it, has not come yet."
    IN_WORK = "in work", "A batch that is not finalized yet has what is missing of it."
    BEFORE = "before", "It ends before the first record that was read: there is nothing of it."
    HELD = "held", "Later records are finalized, but an open batch or unread data may still add some."


@dataclass(frozen=True, kw_only=True)
class Completeness:
    """What a pipeline has read, in time: `covered` with select: interval, else `event_time` (None:
    not known). `delay`: how much later than its time a record may come. `arrived_to`: the greatest
    record time that is finalized, although something from before it may be unread or open.
    """

    covered: TimeSet | None = None
    event_time: datetime | None = None
    arrived_to: datetime | None = None
    delay: timedelta = timedelta()

    @property
    def known(self) -> datetime | None:
        """The newest time that something is known of. None: of none."""
        if self.covered is None:
            return max(filter(None, (self.event_time, self.arrived_to)), default=None)
        return self.covered.ranges[-1][1] if self.covered.ranges else None

    def missing(self, start: datetime, end: datetime) -> tuple[Range, ...]:
        """What must still be read before [start, end) is complete, first ones first."""
        until = end + self.delay
        if self.covered is not None:
            return self.covered.holes(start, until)
        if self.event_time is None:
            return ((start, until),)
        return ((max(start, self.event_time), until),) if self.event_time < until else ()

    def complete(self, start: datetime, end: datetime) -> bool:
        """Whether the window [start, end) is complete."""
        return not self.missing(start, end)

    # Keeps W8.
    def held(self, start: datetime, end: datetime) -> bool:
        """Whether the window [start, end) is not complete, and records after it are finalized."""
        come = self.arrived_to is not None and end + self.delay <= self.arrived_to
        return come and not self.complete(start, end)

    def completes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Whether each window is complete. `starts` and `ends`: datetime64, in UTC."""
        until = ends + np.timedelta64(self.delay)
        if self.covered is None:
            known = self.event_time
            return np.zeros(len(ends), bool) if known is None else until <= _plain(known)
        low, high = ([_plain(range_[n]) for range_ in self.covered.ranges] for n in (0, 1))
        if not low:
            return np.zeros(len(ends), bool)
        at = np.searchsorted(np.array(low), starts, "right") - 1
        return (at >= 0) & (np.array(high)[at] >= until)

    def state(self, start: datetime, end: datetime, due: datetime | None = None) -> WindowState:
        """What is known of the window [start, end). `due`: runs have had the time to cover all that
        is before it.
        """
        missing = self.missing(start, end)
        if not missing:
            return WindowState.COMPLETE
        if self.held(start, end):
            return WindowState.HELD
        over, first = max(filter(None, (self.known, due)), default=None), missing[0][0]
        if self.covered is None or over is None or first >= over:
            return WindowState.NOT_YET
        covered = self.covered.ranges
        return WindowState.HOLE if covered and first >= covered[0][0] else WindowState.NOT_RUN


def _plain(moment: datetime) -> np.datetime64:
    return np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us")
