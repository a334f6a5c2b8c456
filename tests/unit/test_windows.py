"""Windows by a zone's clock: each moment is in one slice, and the clock's changes are not lost."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from semel.audit import windows as audit_windows
from semel.audit.windows import clock, slices_of_rows
from semel.clients.duck import DuckEngine
from semel.declare.aggregate import END, START
from semel.declare.parts import DAY, WEEK, WindowSpec
from semel.formats.windowsql import windows_of
from semel.model.arrow import UTC_TIME
from semel.model.windows import Slices, Windows

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
        start = slices.next_start(start)
    assert start == end
    return found


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from([60, 900, 1_800, HOUR, 21_600, DAY, WEEK]))
def test_each_moment_is_in_one_slice(moment: datetime, zone: str, seconds: int) -> None:
    """Slices follow each other without a gap, whatever the clock of the zone does."""
    slices = Slices(seconds, zone)
    start = slices.start(moment)
    after = slices.next_start(start)
    assert start <= moment < after
    assert slices.start(start) == start and slices.start(after) == after
    assert slices.previous_start(after) == start


SIZES = [n for n in range(1, DAY + 1) if DAY % n == 0] + [WEEK]
"""Of slices, in seconds: all that `validate` accepts."""
FIRST, LAST = datetime(1970, 1, 1), datetime(2037, 12, 31)


@lru_cache
def whole_clock(zone: str) -> pa.Table:
    """A zone's clock from 1970 to 2037."""
    return clock(zone, FIRST, LAST)


def changes(zone: str) -> np.ndarray:
    """When a zone's clock changes from 1970 to 2037, in seconds."""
    return whole_clock(zone)["begin"].to_numpy()[1:]


def around(zone: str, seconds: int) -> np.ndarray:
    """Moments around the changes of a clock, where slices may go wrong, in microseconds."""
    near = {0, 1, 60, 1_800, 2_700, HOUR, 5_400, 2 * HOUR, 3 * HOUR, DAY // 2, DAY - 1, DAY}
    near |= {seconds - 1, seconds, seconds + 1, 2 * seconds, *range(0, 3 * HOUR, 527)}
    beside = np.array(sorted(near | {-n for n in near}))
    at = np.append(changes(zone), [0, 10**9])
    return np.unique((at[:, None] + beside).ravel()) * 1_000_000


def judged(engine: DuckEngine, zone: str, seconds: int, times: pa.Array) -> np.ndarray:
    """The starts of the slices of some times as the audit finds them, by SQL over zoneinfo."""
    slices_of_rows(engine, zone, seconds, times)
    found = engine.connection.execute("SELECT epoch_us(start) AS start FROM slice ORDER BY time")
    return found.fetchnumpy()["start"]


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckEngine]:
    with DuckEngine("audit") as engine:
        yield engine


def check_slices(engine: DuckEngine, zone: str, seconds: int) -> None:
    """Slices have no gap and no overlap, and writer and audit find the same ones."""
    times, slices = around(zone, seconds), Slices(seconds, zone)
    moments = pa.array(times).cast(UTC_TIME)
    starts = slices.starts(moments).cast(pa.int64()).to_numpy()
    ends = slices.next_starts(starts)
    assert (starts <= times).all() and (times < ends).all()
    assert (slices.previous_starts(ends) == starts).all()
    assert (slices.previous_starts(ends + 1) == ends).all()
    assert (judged(engine, zone, seconds, moments) == starts).all(), (zone, seconds)


# Attacks AG7.
@pytest.mark.parametrize("zone", [*ZONES, "America/New_York", "America/Goose_Bay"])
@pytest.mark.parametrize("seconds", [60 * n for n in (20, 24, 40, 45, 90, 360)] + [1, DAY, WEEK])
def test_where_clocks_go_back(engine: DuckEngine, zone: str, seconds: int) -> None:
    """Each moment is in one slice, also of a length that divides no hour."""
    check_slices(engine, zone, seconds)


# Attacks AG7.
@given(st.sampled_from(sorted(available_timezones())), st.sampled_from(SIZES))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_zone_and_length(engine: DuckEngine, zone: str, seconds: int) -> None:
    """Any that `validate` accepts."""
    check_slices(engine, zone, seconds)


# Attacks AG7.
@pytest.mark.proof
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(16))
def test_all_zones_and_lengths(
    engine: DuckEngine, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zones of one clock since 1970 are one: some 300 are left of 600, with 97 lengths each. A part
    takes two minutes, because each clock is read once.
    """
    zones = {str(whole_clock(z).to_pylist()): z for z in sorted(available_timezones())}
    monkeypatch.setattr(audit_windows, "clock", lambda zone, *_: whole_clock(zone))
    pairs = [(zone, seconds) for zone in zones.values() for seconds in SIZES]
    for zone, seconds in pairs[len(pairs) * part // 16 : len(pairs) * (part + 1) // 16]:
        check_slices(engine, zone, seconds)


ICU_DIFFERS = {
    "America/Ensenada", "America/Santa_Isabel", "America/Tijuana", "EET", "Europe/Chisinau",
    "Europe/Tiraspol", "Mexico/BajaNorte", "WET",
}  # fmt: skip
"""Zones whose clock DuckDB's ICU takes for another than the tz database does, 1970 to 2037."""


@pytest.mark.proof
def test_where_the_clock_of_duckdb_is_another(engine: DuckEngine) -> None:
    """So nothing is asked of it in a zone. Both are compared around each change, and each month."""
    low, high = (int(time.replace(tzinfo=UTC).timestamp()) for time in (FIRST, LAST))
    differs = set()
    for zone in sorted(available_timezones() - {"localtime", "Factory"}):
        known = clock(zone, FIRST, LAST)
        begin, ahead = (known.column(name).to_numpy() for name in ("begin", "ahead"))
        at = np.unique(np.concatenate([np.arange(low, high, 30 * DAY), begin, begin - 1]))
        at = at[(at >= low) & (at < high)]
        engine.connection.register("moments", pa.table({"moment": at}))
        found = engine.connection.execute(
            "SELECT CAST(epoch(timezone(?, to_timestamp(moment))) AS BIGINT) - moment FROM moments "
            "ORDER BY moment", [zone],
        ).fetchnumpy()  # fmt: skip
        if (next(iter(found.values())) != ahead[np.searchsorted(begin, at, "right") - 1]).any():
            differs.add(zone)
    assert differs == ICU_DIFFERS


def test_a_slice_that_the_clock_comes_to_twice() -> None:
    """At 3:00 in Berlin it is 2:00 again. The slice of 45 minutes that begins at 2:15 ends when it is
    2:15 again, and nothing goes back into the one before it.
    """
    slices = Slices(45 * 60, "Europe/Berlin")
    first = datetime(2013, 10, 27, 0, 15, tzinfo=UTC)
    assert slices.next_start(first) == first + timedelta(hours=1)
    again = datetime(2013, 10, 27, 1, 5, tzinfo=UTC)  # 2:05 by the clock that was set back.
    assert slices.start(again) == first


def test_a_midnight_that_is_taken_back() -> None:
    """In St. John's the clock went from 0:01 back to 23:01: the day had begun."""
    midnight = local("America/St_Johns", 2010, 11, 7)
    assert Slices(DAY, "America/St_Johns").start(midnight + timedelta(minutes=30)) == midnight
    before = Slices(DAY, "America/St_Johns").previous_start(midnight)
    assert before == local("America/St_Johns", 2010, 11, 6)


# Attacks AG7.
@pytest.mark.parametrize("seconds", [DAY, WEEK])
@pytest.mark.parametrize("zone", [*ZONES, "America/New_York"])
def test_a_date_is_a_day_by_the_clock(engine: DuckEngine, zone: str, seconds: int) -> None:
    """A date counts in the window of its midnight, whichever side of Greenwich the zone is on. A day
    that the clock skipped counts in the next one.
    """
    slices, first = Slices(seconds, zone), date(2009, 12, 28)
    days = pa.array([first + timedelta(days=n) for n in range(1_500)])
    starts = slices.starts(slices.moments(pa.chunked_array([days])).chunk(0))
    assert (judged(engine, zone, seconds, days) == starts.cast(pa.int64()).to_numpy()).all()
    skipped = {date(2011, 12, 30): date(2011, 12, 31)} if zone == "Pacific/Apia" else {}
    for day, start in zip(days.to_pylist(), starts.to_pylist(), strict=True):
        shown = start.astimezone(ZoneInfo(zone)).date()
        monday = day - timedelta(days=day.weekday())
        assert shown == (monday if seconds == WEEK else skipped.get(day, day))


def test_many_slices() -> None:
    """A year of minutes, and five days of five minutes in windows of a day, each in bounded memory."""
    minutes = pa.chunked_array([pa.array(np.arange(525_600) * 60_000_000).cast(UTC_TIME)])
    found = windows_of(Windows(Slices(60, "Europe/Berlin")), minutes)
    assert found.num_rows == 525_600
    assert pc.all(pc.equal(found[END][:-1], found[START][1:])).as_py()
    month = minutes.slice(0, 5 * 1440).take(pa.array(np.arange(0, 5 * 1440, 5)))
    found = windows_of(Windows(Slices(300, "Europe/Berlin"), 288), month)
    assert found.num_rows == 5 * 288 * 288


@pytest.mark.parametrize(
    ("day", "hours"), [((2013, 3, 31), 23), ((2013, 10, 27), 25), ((2013, 7, 1), 24)]
)
def test_days_of_23_and_25_hours(day: tuple[int, int, int], hours: int) -> None:
    """A day in Berlin is from midnight to midnight, and has as many slices of an hour as it has."""
    berlin = "Europe/Berlin"
    start, end = local(berlin, *day), local(berlin, *day[:2], day[2]) + timedelta(hours=hours)
    assert Slices(DAY, berlin).next_start(start) == end
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
        after = Slices(DAY, "America/Sao_Paulo").next_start(start)
        assert after - start == timedelta(hours=length)
        start = after
    midnight = local("America/Havana", 2013, 11, 3)  # It comes again, an hour later.
    assert Slices(DAY, "America/Havana").start(midnight + timedelta(hours=1, minutes=5)) == midnight
    assert Slices(DAY, "America/Havana").next_start(midnight) - midnight == timedelta(hours=25)
    thursday = local("Pacific/Apia", 2011, 12, 29)
    assert Slices(DAY, "Pacific/Apia").next_start(thursday) == local("Pacific/Apia", 2011, 12, 31)


def test_weeks_begin_on_monday() -> None:
    for moment in (datetime(2013, 1, 6, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)):
        assert Slices(WEEK).start(moment).weekday() == 0


def test_sliding_windows_go_over_midnight() -> None:
    """A moment is in as many windows as slices make one, the last of which begins with its own."""
    windows = Windows(Slices(HOUR, "Europe/Berlin"), 3)
    start = local("Europe/Berlin", 2013, 10, 27, 1)
    found = windows_of(windows, pa.chunked_array([[start]], UTC_TIME))
    hours = [timedelta(hours=n) for n in range(3)]
    found = list(zip(found[START].to_pylist(), found[END].to_pylist(), strict=True))
    assert found == [(start - n, start - n + timedelta(hours=3)) for n in hours]
    assert [str(one.astimezone(ZoneInfo("Europe/Berlin"))) for one, _ in found] == [
        "2013-10-27 01:00:00+02:00", "2013-10-27 00:00:00+02:00", "2013-10-26 23:00:00+02:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"size": "0 s"}, "size: is not a week"),
        ({"size": "7 minutes"}, "size: is not a week"),
        ({"size": "2 days"}, "size: is not a week"),
        ({"size": "1 hour", "every": "7 minutes"}, "every: is not a week"),
        ({"size": "0 s", "every": "10 minutes"}, "size: is not a multiple of every"),
        ({"size": "25 minutes", "every": "10 minutes"}, "size: is not a multiple of every"),
        ({"size": "1 day", "every": "1 s"}, "more than 1000 windows"),
        *(({"size": "1 day", "zone": zone}, "zone: is not a time zone") for zone in NO_ZONES),
    ],
)
def test_what_is_refused(declared: dict[str, str], why: str) -> None:
    """A slice that begins nowhere in a day, and a zone that nobody knows."""
    with pytest.raises(ValidationError, match=why):
        WindowSpec(**declared)


def test_what_is_taken() -> None:
    for zone in ZONES:
        for size in ("1 s", "1 minute", "10 minutes", "1 hour", "1 day", "1 week"):
            assert WindowSpec(size=size, zone=zone).windows.count == 1
    sliding = WindowSpec(size="2 days", every="1 hour", delay="3 hours").windows
    assert (sliding.count, sliding.delay) == (48, timedelta(hours=3))


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_times_at_the_edges(year: int) -> None:
    """Times before 1970 and at the end of the calendar have slices like others."""
    moment = datetime(year, 6, 15, 12, 34, tzinfo=UTC)
    for zone in ZONES:
        found = Slices(HOUR, zone).starts(pa.array([moment], UTC_TIME))[0].as_py()
        assert timedelta() <= moment - found < timedelta(hours=1)
