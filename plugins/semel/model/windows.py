"""Windows of time: slices of a zone's clock, and windows of adjacent slices.

A slice begins when the clock reaches a multiple of the slice's length, counted from midnight
(weeks: from Monday), and ends where the next one begins. So each moment is in one slice, and an
hour that the clock shows twice is two slices. If the clock skips a multiple, the slice begins at
the skip. Days and weeks begin when the clock first shows their midnight, so a day has 23, 24 or 25
hours. A window has `count` adjacent slices, and begins with each slice. One slice makes tumbling
windows, more make sliding ones (Akidau et al., The Dataflow Model, VLDB 2015, section 2.1;
Li et al., No Pane, No Gain, SIGMOD Record 2005).

Between two changes of a clock its distance from UTC is constant. This module computes with such
periods, with numpy, in microseconds since 1970.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import TZPATH, ZoneInfo

import numpy as np

# Only what handles columns imports Arrow: commands that list windows start without it.
if TYPE_CHECKING:
    import pyarrow as pa

_SECOND = 1_000_000
_DAY, _WEEK, _MONDAY = 86_400, 7 * 86_400, 4 * 86_400
"""In seconds; 1970-01-05 was the first Monday of the epoch."""

_GRID = 2 * _DAY * _SECOND
"""Distance between two readings of a zone's clock. In the tz database, changes of a clock are 3.9
days apart or more, so the clock did not change between equal readings."""

_DECADE = 3_653 * _DAY * _SECOND
"""The length of the parts in which this module reads and caches a clock."""

_MARGIN = 20 * _DAY * _SECOND
"""Longer than two slices with any change of clocks."""

_NEVER = np.iinfo(np.int64).max // 2

_CALENDAR = tuple(
    int(end.replace(tzinfo=UTC).timestamp()) for end in (datetime(1, 1, 2), datetime(9999, 12, 30))
)
"""The range of Python's calendar in any zone, in seconds."""

_VERSION_BYTES_MAX = 64

_UNITS = {"D": _DAY, "h": 3_600, "m": 60, "s": 1}
"""The last unit in the name of a slice, by numpy's letter, with its length in seconds."""


class _Periods(NamedTuple):
    """Periods in which a clock's distance from UTC is constant. All are int64 arrays.

    `begin`: their first moments. `ahead`: the clock's distance from UTC. `carried`: the start of
    the slice in which the period begins. `next`: the first start of a slice in the period or after
    it. `passed`: the newest multiple that the clock showed before; days begin after it.
    """

    begin: np.ndarray
    ahead: np.ndarray
    carried: np.ndarray
    next: np.ndarray
    passed: np.ndarray


# Keeps AG7.
@dataclass(frozen=True)
class Slices:
    """The slices of `seconds` by the clock of a zone, such as Europe/Berlin."""

    seconds: int
    zone: str = "UTC"

    def moments(self, column: "pa.ChunkedArray") -> "pa.ChunkedArray":
        """Timestamps or dates as moments in UTC. A date becomes its midnight by this clock."""
        import pyarrow as pa

        from semel.model.arrow import UTC_TIME

        if not pa.types.is_date(column.type):
            return column.cast(UTC_TIME)
        chunks = [self._midnights(chunk.cast(pa.timestamp("us"))) for chunk in column.chunks]
        return pa.chunked_array(chunks, UTC_TIME)

    def starts(self, times: "pa.Array") -> "pa.Array":
        """The start of the slice of each time. Both are timestamps in microseconds, UTC."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from semel.model.arrow import UTC_TIME

        values = times.cast(UTC_TIME).cast(pa.int64())
        if values.null_count == len(values):
            return pa.nulls(len(values), UTC_TIME)
        starts = self._starts(values.fill_null(pc.min(values)).to_numpy())
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return pa.array(starts, pa.int64(), mask=missing).cast(UTC_TIME)

    def start(self, time: datetime) -> datetime:
        """The start of the slice of a time, in UTC."""
        return _moment(self._starts(np.array([_microseconds(time)]))[0])

    def next_starts(self, starts: np.ndarray) -> np.ndarray:
        """The start of the slice after each one, in microseconds."""
        periods, at = self._within(starts)
        multiple = self._floor(starts + periods.ahead[at])
        starts = np.maximum(multiple, periods.passed[at]) + self._length - periods.ahead[at]
        ends, nexts = np.append(periods.begin[1:], _NEVER), np.append(periods.next[1:], _NEVER)
        return np.where(starts < ends[at], starts, nexts[at])

    def previous_starts(self, starts: np.ndarray) -> np.ndarray:
        """The start of the slice before each one, in microseconds."""
        return self._starts(starts - 1)

    def next_start(self, start: datetime) -> datetime:
        """The start of the slice after the one that begins at `start`, in UTC."""
        return _moment(self.next_starts(np.array([_microseconds(start)]))[0])

    def previous_start(self, start: datetime) -> datetime:
        """The start of the slice before the one that begins at `start`, in UTC."""
        return self.start(start - timedelta(microseconds=1))

    def names(self, times: "pa.Array") -> "pa.Array":
        """The name of the slice of each time, as text, and null for null.

        The name is the slice's start by the clock: 2013-10-27 for days and weeks, else
        2013-10-27T02. It has minutes and seconds if the slice's length needs them, and the clock's
        distance from UTC in zones other than UTC: 2013-10-27T02+0200. In one zone, names are
        unique, and in the order of time except in hours that the clock shows twice. A date is in
        the slice of that day.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        moments = self.moments(pa.chunked_array([times])).chunk(0)
        starts = self.starts(moments).cast(pa.int64()).dictionary_encode()
        each = starts.dictionary.to_numpy()
        ahead = self._ahead(each)
        unit = next(unit for unit, length in _UNITS.items() if self.seconds % length == 0)
        names = _texts(each + ahead, unit)
        if self.zone != "UTC" and not self._by_day:
            distances = pa.array(ahead).dictionary_encode()
            texts = pa.array(map(_distance, distances.dictionary.to_pylist()), pa.string())
            names = pc.binary_join_element_wise(names, texts.take(distances.indices), "")
        return names.take(starts.indices)

    @property
    def _length(self) -> int:
        return self.seconds * _SECOND

    @property
    def _by_day(self) -> bool:
        return self.seconds % _DAY == 0

    def _floor(self, clock: np.ndarray) -> np.ndarray:
        """Times of a clock, rounded down to a multiple of the slice's length."""
        since = _MONDAY * _SECOND if self.seconds == _WEEK else 0
        return clock - (clock - since) % self._length

    def _midnights(self, dates: "pa.Array") -> "pa.Array":
        """The moments when this clock first reaches some clock times, or skips them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from semel.model.arrow import UTC_TIME

        times = dates.cast(pa.int64())
        if times.null_count == len(times):
            return times.cast(UTC_TIME)
        clock = times.fill_null(pc.min(times)).to_numpy()
        periods = self._periods(clock.min(), clock.max())
        ends = np.append(periods.begin[1:], _NEVER) + periods.ahead
        at = np.searchsorted(np.maximum.accumulate(ends), clock, "right")
        moments = np.maximum(periods.begin[at], clock - periods.ahead[at])
        missing = times.is_null().to_numpy(zero_copy_only=False)
        return pa.array(moments, pa.int64(), mask=missing).cast(UTC_TIME)

    def _ahead(self, times: np.ndarray) -> np.ndarray:
        """The clock's distance from UTC at these moments."""
        if not len(times):
            return times
        periods, at = self._within(times)
        return periods.ahead[at]

    def _starts(self, times: np.ndarray) -> np.ndarray:
        periods, at = self._within(times)
        multiple = self._floor(times + periods.ahead[at])
        starts = multiple - periods.ahead[at]
        in_period = (starts >= periods.begin[at]) & (multiple > periods.passed[at])
        return np.where(in_period, starts, periods.carried[at])

    def _within(self, times: np.ndarray) -> tuple[_Periods, np.ndarray]:
        """The periods around some moments, and the index of each moment's period."""
        periods = self._periods(times.min(), times.max())
        return periods, np.searchsorted(periods.begin, times, "right") - 1

    def _periods(self, first: int, last: int) -> _Periods:
        """The periods from before the first moment to after the last one."""
        return self._of_decades((first - _MARGIN) // _DECADE, (last + _MARGIN) // _DECADE + 1)

    @lru_cache(maxsize=256)  # noqa: B019
    def _of_decades(self, start: int, stop: int) -> _Periods:
        """The periods of some decades, as one array across their bounds."""
        clocks = [_clock(self.zone, decade) for decade in range(start, stop)]
        begin, ahead = (np.concatenate(columns) for columns in zip(*clocks, strict=True))
        changed = np.append(True, ahead[1:] != ahead[:-1])
        begin, ahead = begin[changed], ahead[changed]
        carried, following, passed = begin.copy(), begin.copy(), np.full(len(begin), -_NEVER)
        for n in range(1, len(begin)):
            old, new = begin[n] - 1 + ahead[n - 1], begin[n] + ahead[n]
            last = self._floor(old)
            if self._by_day:
                passed[n] = max(passed[n - 1], last)
                begins = self._floor(new) > passed[n]
            else:
                begins = self._floor(new) == new or self._floor(new) > last
            if not begins:
                moment = last - ahead[n - 1]
                is_within = moment >= begin[n - 1] and last > passed[n - 1]
                carried[n] = moment if is_within else carried[n - 1]
        for n in reversed(range(len(begin))):
            if carried[n] != begin[n]:
                multiple = max(self._floor(begin[n] + ahead[n]), passed[n]) + self._length
                is_within = n + 1 == len(begin) or multiple - ahead[n] < begin[n + 1]
                following[n] = multiple - ahead[n] if is_within else following[n + 1]
        return _Periods(begin, ahead, carried, following, passed)


@lru_cache(maxsize=4_096)
def _clock(zone: str, decade: int) -> tuple[np.ndarray, np.ndarray]:
    """The moments when a clock's distance from UTC changes in a decade, with the new distances."""
    clock = ZoneInfo(zone)

    def ahead(at: int) -> int:
        seconds = max(_CALENDAR[0], min(_CALENDAR[1], at // _SECOND))
        return datetime.fromtimestamp(seconds, clock).utcoffset() // timedelta(microseconds=1)

    first = decade * _DECADE
    begin, distances = [first], [ahead(first)]
    for low in range(first, first + _DECADE, _GRID):
        high = min(low + _GRID, first + _DECADE)
        if (distance := ahead(high)) == distances[-1]:
            continue
        while high - low > _SECOND:
            middle = low + (high - low) // (2 * _SECOND) * _SECOND
            low, high = (middle, high) if ahead(middle) == distances[-1] else (low, middle)
        begin.append(high)
        distances.append(distance)
    return np.array(begin), np.array(distances)


def zones_version() -> str:
    """The version of the time zone database that `zoneinfo` reads, such as 2025b. Empty if unknown.
    """
    for folder in map(Path, TZPATH):
        if (folder / "UTC").exists():
            with suppress(OSError):
                with (folder / "tzdata.zi").open(encoding="utf-8") as file:
                    return file.readline(_VERSION_BYTES_MAX).removeprefix("# version ").strip()
            return ""
    with suppress(ImportError):
        return import_module("tzdata").IANA_VERSION
    return ""


def _microseconds(time: datetime) -> int:
    return (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(microseconds))


def _texts(clock: np.ndarray, unit: str) -> "pa.Array":
    """Times of a clock as text, down to a unit: 2013-10-27, 2013-10-27T02, 2013-10-27T0230."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(clock):
        return pa.array([], pa.string())
    texts = np.datetime_as_string(clock.astype("M8[us]").astype(f"M8[{unit}]"))
    return pc.replace_substring(pa.array(texts, pa.string()), ":", "")


def _distance(ahead: int) -> str:
    """A clock's distance from UTC, in microseconds, as +0200, or +005328 before zones existed."""
    minutes, seconds = divmod(abs(ahead) // 1_000_000, 60)
    sign = "-" if ahead < 0 else "+"
    return f"{sign}{minutes // 60:02}{minutes % 60:02}" + (f"{seconds:02}" if seconds else "")


@dataclass(frozen=True)
class Windows:
    """Windows of `count` slices each. `delay`: how long after its time a record may arrive."""

    slices: Slices
    count: int = 1
    delay: timedelta = timedelta()

    @property
    def longest(self) -> timedelta:
        """An upper bound of a window's length, with any change of clocks."""
        return self.count * timedelta(seconds=self.slices.seconds) + timedelta(days=2)

    def of(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The edges of the windows of some slices, and the index of each slice's start among them.

        The windows of the slice at index n begin at n, n - 1 ... and end `count` edges later.
        `starts`: the starts of slices, in microseconds, ascending and unique.
        """
        edges = starts
        steps = (self.slices.previous_starts, self.count - 1), (self.slices.next_starts, self.count)
        for step, times in steps:
            reached = starts
            for _ in range(times):
                reached = np.setdiff1d(step(reached), edges, assume_unique=True)
                if not len(reached):
                    break
                edges = np.union1d(edges, reached)
        return edges, np.searchsorted(edges, starts)
