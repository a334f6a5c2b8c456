"""Windows by a zone's clock: each moment is in one slice, and the clock's changes are not lost."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from semel.declare.parts import DAY, WEEK, Window
from semel.model.windows import UTC_TIME, Slices, Windows

HOUR = 3_600
ZONES = (
    "UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu",
    "Africa/Casablanca", "America/Havana", "America/St_Johns", "Antarctica/Troll", "Pacific/Apia",
)  # fmt: skip
NO_ZONES = (
    "", "Mars/Phobos", "../etc/passwd", "/etc/passwd", "Europe/Berlin\n", "x" * 5_000, "Europe",
)  # fmt: skip
MOMENTS = st.integers(-2_000_000_000, 4_102_444_800).map(lambda s: datetime.fromtimestamp(s, UTC))


def local(zone: str, *at: int) -> datetime:
    return datetime(*at, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def walked(slices: Slices, start: datetime, end: datetime) -> list[datetime]:
    found = []
    while start < end:
        found.append(start)
        start = slices.after(start)
    assert start == end
    return found


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from([60, 900, 1_800, HOUR, 21_600, DAY, WEEK]))
def test_each_moment_is_in_one_slice(moment: datetime, zone: str, seconds: int) -> None:
    """Slices follow each other without a gap, whatever the clock of the zone does."""
    slices = Slices(seconds, zone)
    start = slices.start(moment)
    after = slices.after(start)
    assert start <= moment < after
    assert slices.start(start) == start and slices.start(after) == after
    assert slices.before(after) == start


@pytest.mark.parametrize(
    ("day", "hours"), [((2013, 3, 31), 23), ((2013, 10, 27), 25), ((2013, 7, 1), 24)]
)
def test_days_of_23_and_25_hours(day: tuple[int, int, int], hours: int) -> None:
    """A day in Berlin is from midnight to midnight, and has as many slices of an hour as it has."""
    berlin = "Europe/Berlin"
    start, end = local(berlin, *day), local(berlin, *day[:2], day[2]) + timedelta(hours=hours)
    assert Slices(DAY, berlin).after(start) == end
    found = walked(Slices(HOUR, berlin), start, end)
    assert found == [start + timedelta(hours=n) for n in range(hours)]
    six = [local(berlin, *day, hour) for hour in (0, 6, 12, 18)]
    assert walked(Slices(6 * HOUR, berlin), start, end) == six


def test_the_hour_that_is_shown_twice_is_two() -> None:
    moments = [datetime(2013, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]
    found = Slices(HOUR, "Europe/Berlin").starts(pa.array(moments, UTC_TIME)).to_pylist()
    assert found == [moment - timedelta(minutes=30) for moment in moments]


def test_a_day_that_begins_later_than_midnight() -> None:
    """In Sao Paulo the clock went from midnight to one; in Apia a whole day was skipped."""
    start = datetime(2013, 10, 19, 3, tzinfo=UTC)
    hours = [24, 23, 24]
    for length in hours:
        after = Slices(DAY, "America/Sao_Paulo").after(start)
        assert after - start == timedelta(hours=length)
        start = after
    midnight = local("America/Havana", 2013, 11, 3)  # It comes again, an hour later.
    assert Slices(DAY, "America/Havana").start(midnight + timedelta(hours=1, minutes=5)) == midnight
    assert Slices(DAY, "America/Havana").after(midnight) - midnight == timedelta(hours=25)
    thursday = local("Pacific/Apia", 2011, 12, 29)
    assert Slices(DAY, "Pacific/Apia").after(thursday) == local("Pacific/Apia", 2011, 12, 31)


def test_weeks_begin_on_monday() -> None:
    for moment in (datetime(2013, 1, 6, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)):
        assert Slices(WEEK).start(moment).weekday() == 0


def test_sliding_windows_go_over_midnight() -> None:
    """A moment is in as many windows as slices make one, the last of which begins with its own."""
    windows = Windows(Slices(HOUR, "Europe/Berlin"), 3)
    start = local("Europe/Berlin", 2013, 10, 27, 1)
    found = list(windows.of(start))
    hours = [timedelta(hours=n) for n in range(3)]
    assert found == [(start - n, start - n + timedelta(hours=3)) for n in hours]
    assert [str(one.astimezone(ZoneInfo("Europe/Berlin"))) for one, _ in found] == [
        "2013-10-27 01:00:00+02:00", "2013-10-27 00:00:00+02:00", "2013-10-26 23:00:00+02:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"size": "0 s"}, "size: is neither"),
        ({"size": "7 minutes"}, "size: is neither"),
        ({"size": "2 days"}, "size: is neither"),
        ({"size": "1 hour", "every": "7 minutes"}, "every: is neither"),
        ({"size": "0 s", "every": "10 minutes"}, "size: is no multiple of every"),
        ({"size": "25 minutes", "every": "10 minutes"}, "size: is no multiple of every"),
        ({"size": "1 day", "every": "1 s"}, "more than 1000 windows"),
        *(({"size": "1 day", "zone": zone}, "zone: is no time zone") for zone in NO_ZONES),
    ],
)
def test_what_is_refused(declared: dict[str, str], why: str) -> None:
    """A slice that begins nowhere in a day, and a zone that nobody knows."""
    with pytest.raises(ValidationError, match=why):
        Window(**declared)


def test_what_is_taken() -> None:
    for zone in ZONES:
        for size in ("1 s", "1 minute", "10 minutes", "1 hour", "1 day", "1 week"):
            assert Window(size=size, zone=zone).windows.count == 1
    sliding = Window(size="2 days", every="1 hour", delay="3 hours").windows
    assert (sliding.count, sliding.delay) == (48, timedelta(hours=3))


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_times_at_the_edges(year: int) -> None:
    """Times before 1970 and at the end of the calendar have slices like others."""
    moment = datetime(year, 6, 15, 12, 34, tzinfo=UTC)
    for zone in ZONES:
        found = Slices(HOUR, zone).starts(pa.array([moment], UTC_TIME))[0].as_py()
        assert timedelta() <= moment - found < timedelta(hours=1)
