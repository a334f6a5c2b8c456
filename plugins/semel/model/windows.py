"""Windows of time: slices of a zone's clock, and windows that are runs of slices.

The clock's slices begin where the local time is a multiple of the slice's length, counted from
midnight (weeks: from Monday). So each day begins at midnight and has 23, 24 or 25 hours; the hour
that a clock shows twice is two slices; and a time that it skips begins none. A window is a run of
`count` slices, and begins with each slice: one slice makes tumbling windows, more make sliding ones
(Akidau et al., The Dataflow Model, VLDB 2015, section 2.1; Li et al., No Pane, No Gain, SIGMOD
Record 2005).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

UTC_TIME = pa.timestamp("us", tz="UTC")
_PLAIN = pa.timestamp("us")
_DAY, _WEEK, _MONDAY = 86_400, 7 * 86_400, 4 * 86_400
"""In seconds; 1970-01-05 was the first Monday of the epoch."""

_EDGES_KEPT = 1 << 16
"""Ends of slices that are remembered: each is asked for by all windows that it is part of, and takes
0.4 ms to find."""

YEARS = 100, 9_900
"""A time outside of them is in no window: the end of one might be in no calendar."""

_UNITS = {"D": _DAY, "h": 3_600, "m": 60, "s": 1}
"""What the name of a slice ends with, by numpy's letters, and how long that is in seconds."""


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
        first, second = self._moments(self._floor(self._shown(times)))
        # A clock that was set back shows the start twice: the later one, once it has come.
        return pc.if_else(pc.greater(second, times), first, second)

    def start(self, time: datetime) -> datetime:
        """The start of one time's slice, in UTC."""
        return self.starts(pa.array([time], UTC_TIME))[0].as_py().astimezone(UTC)

    def names(self, times: pa.Array) -> pa.Array:
        """What the slice of each time is called, as text; null for no time.

        It is the slice's start by the clock: 2013-10-27 where slices are days or weeks, else
        2013-10-27T02, with minutes and seconds where slices begin with such, and with the clock's
        distance from UTC where the zone has another name: 2013-10-27T02+0200. In one zone no two
        slices have one name, but for the two that a midnight shown twice makes of one day; and
        names are in the order of time, but for hours that are shown twice.
        Dates are days by any clock.
        """
        times = times.cast(UTC_TIME)
        whole_days = self.seconds % _DAY == 0
        starts = self._floor(self._shown(times)) if whole_days else self.starts(times)
        starts = starts.dictionary_encode()
        each = starts.dictionary
        shown = each if whole_days else self._shown(each)
        unit = next(unit for unit, length in _UNITS.items() if self.seconds % length == 0)
        names = _texts(shown, unit)
        if self.zone != "UTC" and not whole_days:
            ahead = pc.subtract(shown.cast(pa.int64()), each.cast(pa.int64())).dictionary_encode()
            known = pa.array(map(_distance, ahead.dictionary.to_pylist()), pa.string())
            names = pc.binary_join_element_wise(names, known.take(ahead.indices), "")
        return names.take(starts.indices)

    @lru_cache(maxsize=_EDGES_KEPT)
    def after(self, start: datetime) -> datetime:
        """The start of the slice after the one that begins at `start`, in UTC."""
        at = self._floor(self._shown(pa.array([start], UTC_TIME))).cast(pa.int64())
        nexts = [self._moments(pc.add(at, n * self.seconds * 1_000_000)) for n in (0, 1, 2)]
        found = (moment[0].as_py().astimezone(UTC) for moment in chain(*nexts))
        after = min(moment for moment in found if moment > start)
        while (between := self.before(after)) > start:  # The clock was set back by some slices.
            after = between
        return after

    @lru_cache(maxsize=_EDGES_KEPT)
    def before(self, start: datetime) -> datetime:
        """The start of the slice before the one that begins at `start`, in UTC."""
        return self.start(start - timedelta(microseconds=1))

    def _shown(self, times: pa.Array) -> pa.Array:
        """What the clock shows at these times."""
        return pc.local_timestamp(times.cast(pa.timestamp("us", tz=self.zone)))

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
        when the clock was put forward. A day has one midnight, the first.
        """
        def by(ambiguous: str) -> pa.Array:
            return pc.assume_timezone(
                shown.cast(_PLAIN), self.zone, ambiguous=ambiguous, nonexistent="latest"
            ).cast(UTC_TIME)

        first = by("earliest")
        return first, first if self.seconds % _DAY == 0 else by("latest")


def _texts(times: pa.Array, unit: str) -> pa.Array:
    """Times of a clock as text, down to a unit: 2013-10-27, 2013-10-27T02, 2013-10-27T0230."""
    if not len(times):
        return pa.array([], pa.string())
    texts = np.datetime_as_string(times.to_numpy(zero_copy_only=False).astype(f"M8[{unit}]"))
    return pc.replace_substring(pa.array(texts, pa.string()), ":", "")


def _distance(ahead: int) -> str:
    """How far a clock is ahead of UTC, from microseconds: +0200; +005328 before there were zones.
    """
    minutes, seconds = divmod(abs(ahead) // 1_000_000, 60)
    sign = "-" if ahead < 0 else "+"
    return f"{sign}{minutes // 60:02}{minutes % 60:02}" + (f"{seconds:02}" if seconds else "")


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
        edges = deque([start])
        for _ in range(self.count - 1):
            edges.appendleft(self.slices.before(edges[0]))
        for _ in range(self.count):
            edges.append(self.slices.after(edges[-1]))
        whole = tuple(edges)
        yield from zip(whole[self.count - 1 :: -1], whole[: self.count - 1 : -1], strict=True)
