"""Whether a window of time is complete: a report about the records read, which drops none."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from semel.model.reasons import ExplainedEnum
from semel.model.times import TimeSet

# Only what handles columns imports NumPy: commands that list intervals start without it.
if TYPE_CHECKING:
    import numpy as np

Range = tuple[datetime, datetime]
"""Times [start, end)."""


class WindowState(ExplainedEnum):
    """The state of a window, with a sentence about the window."""

    COMPLETE = "complete", "All records that it may have are finalized."
    HOLE = "hole", "Its time is over, but a part is not covered: a run failed, or never ran."
    NOT_RUN = "not run", "No run has covered it, or any time before it."
    NOT_YET = "not yet", "Its time, or the delay after it, is not over yet."
    IN_WORK = "in work", "A batch that is not finalized yet has its missing records."
    BEFORE = "before", "It ends before the first record that semel read, so it is empty."
    HELD = "held", "Later records are finalized, but an open batch or unread data may add some."


@dataclass(frozen=True, kw_only=True)
class Completeness:
    """How far a pipeline has read, in time: `covered` with select: interval, else `event_time`
    (None if unknown). `delay`: how long after its time a record may arrive. `arrived_to`: the
    greatest finalized record time; earlier records may still be unread or in an open batch.
    """

    covered: TimeSet | None = None
    event_time: datetime | None = None
    arrived_to: datetime | None = None
    delay: timedelta = timedelta()

    @property
    def newest_time(self) -> datetime | None:
        """The newest time of a record or run that semel knows. Returns None if it knows none."""
        if self.covered is None:
            return max(filter(None, (self.event_time, self.arrived_to)), default=None)
        return self.covered.ranges[-1][1] if self.covered.ranges else None

    def missing(self, start: datetime, end: datetime) -> tuple[Range, ...]:
        """The ranges that runs must still read before [start, end) is complete, in order."""
        until = end + self.delay
        if self.covered is not None:
            return self.covered.holes(start, until)
        if self.event_time is None:
            return ((start, until),)
        return ((max(start, self.event_time), until),) if self.event_time < until else ()

    def complete(self, start: datetime, end: datetime) -> bool:
        """True if the window [start, end) is complete."""
        return not self.missing(start, end)

    # Keeps W8.
    def is_held(self, start: datetime, end: datetime) -> bool:
        """True if the window [start, end) is not complete, but later records are finalized."""
        is_over = self.arrived_to is not None and end + self.delay <= self.arrived_to
        return is_over and not self.complete(start, end)

    def completes(self, starts: "np.ndarray", ends: "np.ndarray") -> "np.ndarray":
        """A mask of the complete windows. `starts` and `ends`: datetime64, in UTC."""
        import numpy as np

        until = ends + np.timedelta64(self.delay)
        if self.covered is None:
            newest = self.event_time
            return np.zeros(len(ends), bool) if newest is None else until <= _plain(newest)
        low, high = ([_plain(range_[n]) for range_ in self.covered.ranges] for n in (0, 1))
        if not low:
            return np.zeros(len(ends), bool)
        at = np.searchsorted(np.array(low), starts, "right") - 1
        return (at >= 0) & (np.array(high)[at] >= until)

    def state(self, start: datetime, end: datetime, due: datetime | None = None) -> WindowState:
        """The state of the window [start, end). `due`: the time up to which runs should have
        covered everything by now.
        """
        missing = self.missing(start, end)
        if not missing:
            return WindowState.COMPLETE
        if self.is_held(start, end):
            return WindowState.HELD
        over, first = max(filter(None, (self.newest_time, due)), default=None), missing[0][0]
        if self.covered is None or over is None or first >= over:
            return WindowState.NOT_YET
        covered = self.covered.ranges
        return WindowState.HOLE if covered and first >= covered[0][0] else WindowState.NOT_RUN


def _plain(moment: datetime) -> "np.datetime64":
    import numpy as np

    return np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us")
