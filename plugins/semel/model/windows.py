"""Windows of time: slices of a zone's clock, and windows that are runs of slices.

The clock's slices begin where the local time is a multiple of the slice's length, counted from
midnight (weeks: from Monday). So each day begins at midnight and has 23, 24 or 25 hours; the hour
that a clock shows twice is two slices; and a time that it skips begins none. A window is a run of
`count` slices, and begins with each slice: one slice makes tumbling windows, more make sliding ones
(Akidau et al., The Dataflow Model, VLDB 2015, section 2.1; Li et al., No Pane, No Gain, SIGMOD
Record 2005).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

UTC_TIME = pa.timestamp("us", tz="UTC")
_PLAIN = pa.timestamp("us")
_WEEK, _MONDAY = 7 * 86_400, 4 * 86_400
"""In seconds; 1970-01-05 was the first Monday of the epoch."""


@dataclass(frozen=True)
class Slices:
    """The slices of `seconds` by the clock of a zone, such as Europe/Berlin.

    A time is a moment: what it is called elsewhere does not matter.
    """

    seconds: int
    zone: str = "UTC"

    def starts(self, times: pa.Array) -> pa.Array:
        """The start of each time's slice. Both are timestamps in microseconds, UTC."""
        times = times.cast(UTC_TIME)
        if self.zone == "UTC":
            return self._floor(times.cast(_PLAIN)).cast(UTC_TIME)
        shown = pc.local_timestamp(times.cast(pa.timestamp("us", tz=self.zone)))
        first, second = self._moments(self._floor(shown))
        # A clock that was set back shows the start twice: the later one, once it has come.
        return pc.if_else(pc.greater(second, times), first, second)

    def start(self, time: datetime) -> datetime:
        """The start of one time's slice, in UTC."""
        return self.starts(pa.array([time], UTC_TIME))[0].as_py().astimezone(UTC)

    def after(self, start: datetime) -> datetime:
        """The start of the slice after the one that begins at `start`, in UTC."""
        now = pa.array([start], UTC_TIME)
        shown = pc.local_timestamp(now.cast(pa.timestamp("us", tz=self.zone)))
        at = self._floor(shown).cast(pa.int64())
        nexts = [self._moments(pc.add(at, n * self.seconds * 1_000_000)) for n in (0, 1, 2)]
        found = (moment[0].as_py().astimezone(UTC) for moment in chain(*nexts))
        after = min(moment for moment in found if moment > start)
        while (between := self.before(after)) > start:  # The clock was set back by some slices.
            after = between
        return after

    def before(self, start: datetime) -> datetime:
        """The start of the slice before the one that begins at `start`, in UTC."""
        return self.start(start - timedelta(microseconds=1))

    def _floor(self, shown: pa.Array) -> pa.Array:
        """The times of a clock, each down to the last multiple."""
        length = self.seconds * 1_000_000
        since = _MONDAY * 1_000_000 if self.seconds == _WEEK else 0
        at = pc.subtract(shown.cast(pa.int64()), since)
        down = pc.divide(at, length)  # Towards zero.
        down = pc.subtract(down, pc.less(at, pc.multiply(down, length)).cast(pa.int64()))
        return pc.add(pc.multiply(down, length), since).cast(_PLAIN)

    def _moments(self, shown: pa.Array) -> tuple[pa.Array, pa.Array]:
        """When a clock shows something: the first time and the last. Where it is skipped, both are
        when the clock was put forward.
        """
        def by(ambiguous: str) -> pa.Array:
            return pc.assume_timezone(
                shown.cast(_PLAIN), self.zone, ambiguous=ambiguous, nonexistent="latest"
            ).cast(UTC_TIME)

        return by("earliest"), by("latest")


@dataclass(frozen=True)
class Windows:
    """Windows of `count` slices each. `delay`: how much later than its time a record may come."""

    slices: Slices
    count: int = 1
    delay: timedelta = timedelta()

    @property
    def longest(self) -> timedelta:
        """No window is longer, whatever is done to clocks."""
        return self.count * timedelta(seconds=self.slices.seconds) + timedelta(days=2)

    def end(self, start: datetime) -> datetime:
        """The end, exclusive, of the window that begins with the slice at `start`."""
        for _ in range(self.count):
            start = self.slices.after(start)
        return start

    def of(self, start: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The windows [start, end) that a slice is part of, the newest first."""
        for _ in range(self.count):
            yield start, self.end(start)
            start = self.slices.before(start)
