"""Which windows are complete: by what is covered, and by the event time."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from semel.model.complete import Completeness, WindowState
from semel.model.times import TimeSet
from semel.model.windows import Slices, Windows
from semel.reports.completeness import affected_windows, newest_complete

DAY = timedelta(days=1)


def day(number: float) -> datetime:
    return datetime(2025, 11, 1, tzinfo=UTC) + (number - 1) * DAY


def covered(*parts: tuple[float, float], delay: float = 0) -> Completeness:
    times = TimeSet.of((day(start), day(end)) for start, end in parts)
    return Completeness(covered=times, delay=delay * DAY)


@pytest.mark.parametrize("bits", list(product([False, True], repeat=6)))
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_every_set_of_days(bits: tuple[bool, ...], delay: int) -> None:
    """Of each set of six days: a window is complete when each day of it and of the delay is there.
    """
    there = {n for n, bit in enumerate(bits, 1) if bit}
    found = covered(*((n, n + 1) for n in there), delay=delay)
    for start, end in ((s, e) for s in range(1, 7) for e in range(s + 1, 8)):
        lacks = set(range(start, end + delay)) - there
        assert found.complete(day(start), day(end)) == (not lacks)
        gone = [(day(n), day(n + 1)) for n in lacks]
        assert TimeSet.of(found.missing(day(start), day(end))) == TimeSet.of(gone)
        state = found.state(day(start), day(end))
        if not lacks:
            assert state is WindowState.COMPLETE
        else:
            first, ends = min(lacks), (min(there, default=9), max(there, default=0))
            expected = WindowState.NOT_RUN if first < ends[0] else WindowState.HOLE
            assert state is (WindowState.NOT_YET if first > ends[1] else expected)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("at", [None, 1.5, 2, 2.5, 3, 3.5])
def test_every_event_time(at: float | None, delay: int) -> None:
    """It is past the end of the window, and the delay; at the end is past it."""
    found = Completeness(event_time=at and day(at), delay=delay * DAY)
    done = at is not None and at >= 2 + delay
    assert found.complete(day(1), day(2)) == done
    assert found.state(day(1), day(2)) is (WindowState.COMPLETE if done else WindowState.NOT_YET)
    low = max(day(1), day(at)) if at else day(1)
    assert found.missing(day(1), day(2)) == (() if done else ((low, day(2 + delay)),))


def test_days_of_23_and_25_hours() -> None:
    """A day in Berlin is complete when all of its hours are covered, by UTC."""
    days = Windows(Slices(86_400, "Europe/Berlin"))
    for date, hours in (datetime(2025, 3, 30), 23), (datetime(2025, 10, 26), 25):
        start = days.slices.start(date.replace(tzinfo=UTC) + DAY / 2)
        end = days.slices.next_start(start)
        assert end - start == timedelta(hours=hours)
        for short in (1, 0):
            upto = start + timedelta(hours=hours - short)
            found = Completeness(covered=TimeSet.of([(start, upto)]))
            assert found.complete(start, end) == (not short)


def test_the_windows_that_a_batch_completes() -> None:
    """Those that wait for its time, with the delay behind them, and wait for nothing else."""
    days = Windows(Slices(86_400), delay=DAY)
    found = covered((3, 6), (7, 8), delay=1)
    ends = (day(3), day(4)), (day(4), day(5))
    assert affected_windows(found, days, TimeSet.of([(day(5), day(6))])) == ends[1:]
    assert affected_windows(found, days, TimeSet.of([(day(3), day(6))])) == ends
    assert affected_windows(found, days, TimeSet.of([(day(7), day(8))])) == ()
    passed = Completeness(event_time=day(6), delay=DAY)
    assert affected_windows(passed, days, TimeSet.of([(day(5), day(6))])) == ends[1:]
    assert affected_windows(passed, days, TimeSet()) == ()


def test_the_newest_complete_window() -> None:
    """Before a hole, where what is covered behind it holds none; or none at all."""
    days = Windows(Slices(86_400), delay=DAY)
    assert newest_complete(covered((1, 4), (5, 6), delay=1), days) == (day(2), day(3))
    assert newest_complete(covered((1, 4), (5, 7.5), delay=1), days) == (day(5), day(6))
    assert newest_complete(covered((1, 2), delay=1), days) is None
    assert newest_complete(covered(), days) is newest_complete(Completeness(), days) is None
    weeks = Windows(Slices(86_400), count=7)
    assert newest_complete(Completeness(event_time=day(9.5)), weeks) == (day(2), day(9))


def test_windows_that_overlap() -> None:
    """Each hour a window of a thousand hours: the newest are told, and soon."""
    found = Completeness(event_time=day(40))
    hours = Windows(Slices(3_600), count=1_000)
    told = affected_windows(found, hours, TimeSet.of([(day(1), day(40))]))
    assert len(told) == 936 and told[-1] == (day(40) - timedelta(hours=1_000), day(40))


@pytest.mark.parametrize(
    "plain",
    [
        [["2025-11-02T00:00:00+00:00", "2025-11-01T00:00:00+00:00"]],
        [["2025-11-01T00:00:00+00:00", "2025-11-02T00:00:00+00:00"]] * 2,
    ],
)
def test_a_set_of_times_in_a_marker_is_in_order(plain: list) -> None:
    """What is not was not written by semel."""
    with pytest.raises(ValueError, match="not in order"):
        TimeSet.from_plain(plain)


def test_a_set_of_times_reads_itself() -> None:
    """As JSON, with microseconds."""
    times = TimeSet.of([(day(1), day(2.5)), (day(2), day(3)), (day(5), day(5))])
    assert times.ranges == ((day(1), day(3)),)
    assert TimeSet.from_plain(times.to_plain()) == times
