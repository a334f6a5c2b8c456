"""Where intervals of a topic begin and end, over logs that a test makes up: clocks may be wrong."""

from collections.abc import Iterable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import permutations
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.sources.kafka import edges
from semel.sources.kafka.topics import Extent, FoundPartition, milliseconds
from tiers import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLACE = "t", 0


class Log:
    """A partition that is a list of timestamps in ms, and runs of intervals over it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stamps: list[int] = []
        self.claims: list[tuple[datetime, set[int]]] = []
        self.now, self.at = START, -1
        log = self

        class Clock(datetime):
            @classmethod
            def now(cls, zone: object = None) -> datetime:
                return log.now

        monkeypatch.setattr(edges, "datetime", Clock)
        monkeypatch.setattr(edges, "offsets", self.offsets)
        monkeypatch.setattr(edges, "newest", lambda *_: {PLACE: -1})

    def offsets(self, _: object, __: object, when: datetime) -> dict:
        """What a broker tells: the first that is not older."""
        since = milliseconds(when)
        return {PLACE: next((n for n, ms in enumerate(self.stamps) if ms >= since), -1)}

    @contextmanager
    def admin(self) -> Iterable[None]:
        yield None

    @contextmanager
    def consumer(self, **_: object) -> Iterable["Log"]:
        yield self

    def assign(self, parts: list) -> None:
        self.at = parts[0].offset if parts else -1

    def incremental_unassign(self, _: object) -> None:
        self.at = -1

    def consume(self, wanted: int, timeout: float) -> list:  # noqa: ARG002
        assert self.at >= 0
        some = self.stamps[self.at : self.at + wanted]
        found = [message(n, ms) for n, ms in enumerate(some, self.at)]
        self.at += len(some)
        return found or [message(self.at, 0, KafkaError(KafkaError._PARTITION_EOF))]

    def send(self, *stamps: datetime) -> None:
        self.stamps += map(milliseconds, stamps)

    def run(self, start: datetime, end: datetime) -> list[int]:
        """What the run of an interval takes."""

        def reached(until: datetime) -> dict:
            taken = [max(some) + 1 for when, some in self.claims if when <= until and some]
            return {PLACE: max(taken)} if taken else {}

        extent = Extent(low=0, end=len(self.stamps), epoch=0)
        place = FoundPartition(
            topic="t", topic_id="T", partition=0, extent=extent, high=extent.end
        )
        first, last = edges.find_edges(self, [place], (start, end), reached)
        first, last = (at[PLACE] if at[PLACE] >= 0 else extent.end for at in (first, last))
        taken = set(range(first, last)) - self.read
        self.claims.append((end, taken))
        return sorted(taken)

    @property
    def read(self) -> set[int]:
        return set().union(*(some for _, some in self.claims))


def message(offset: int, ms: int, error: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        offset=lambda: offset, timestamp=lambda: (1, ms), error=lambda: error,
        topic=lambda: "t", partition=lambda: 0,
    )  # fmt: skip


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


AHEAD = {"of the future": timedelta(days=27_000), "of another day": timedelta(days=2)}


# Attacks KS5.
@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
@pytest.mark.parametrize("late", [False, True], ids=["each day", "backfill"])
def test_one_clock_that_is_ahead(
    log: Log, ahead: timedelta, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 72 messages of three days the sixth has a time that is ahead. Each day's run takes its own
    24, and the log names that message.
    """
    taken = []
    for hour in range(72):
        when = START + hour * HOUR
        log.send(when + ahead if hour == 5 else when)
        log.now = START + (hour + 1) * HOUR
        if not late and hour % 24 == 23:
            taken.append(log.run(log.now - 24 * HOUR, log.now))
    if late:
        log.now += timedelta(days=30)
        taken = [log.run(START + n * 24 * HOUR, START + (n + 1) * 24 * HOUR) for n in range(3)]
    assert taken == [[*range(24 * n, 24 * n + 24)] for n in range(3)]
    when = f"{START + 5 * HOUR + ahead:%Y-%m-%dT%H:%M}"
    assert "'t/0': the message at offset 5 has a later time" in caplog.text
    assert when in caplog.text


# Attacks KS5.
def test_a_clock_that_stays_ahead(log: Log) -> None:
    """The first ten messages of each hour are of a clock that is three hours ahead. Each hour's run
    takes what was sent in its hour, also when times that are ahead have come.
    """
    for hour in range(9):
        times = (START + hour * HOUR + timedelta(seconds=n) for n in range(20))
        log.send(*(when + 3 * HOUR * (n < 10) for n, when in enumerate(times)))
        log.now = START + (hour + 1) * HOUR
        assert log.run(log.now - HOUR, log.now) == [*range(20 * hour, 20 * hour + 20)]


# Attacks KS5.
def test_a_pipeline_that_begins_behind_a_clock_that_was_ahead(log: Log) -> None:
    """Its first run takes its own interval, and no history behind that message."""
    log.send(*(START + n * HOUR for n in range(5)), START + 10_000 * HOUR)
    log.send(*(START + n * HOUR for n in range(5, 50)))
    log.now = START + 50 * HOUR
    assert log.run(START + 48 * HOUR, log.now) == [49, 50]
    assert log.run(START + 24 * HOUR, START + 48 * HOUR) == [*range(25, 49)]


# Attacks KS5.
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_messages_that_are_late_move_no_interval(log: Log, order: tuple[int, ...]) -> None:
    """Each day has three messages of its own, and behind them one of the day before."""
    days = [START + n * timedelta(days=1) for n in range(4)]
    for day in days[:3]:
        log.send(*(day + n * HOUR for n in (1, 2, 3, -2)))
    log.now = days[3]
    for n in order:
        assert log.run(days[n], days[n + 1]) == [*range(4 * n, 4 * n + 4)]


SENT = st.tuples(st.integers(0, 59), st.sampled_from([0, 0, 0, 1, 3, 50, 10**6]))


# Attacks KS5.
@settings(max_examples=examples(200), deadline=None)
@given(
    hours=st.lists(st.lists(SENT, max_size=12), min_size=2, max_size=12),
    lags=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_clocks_that_are_ahead(hours: list[list[tuple[int, int]]], lags: list[int]) -> None:
    """Runs of all hours in their order, some of them hours late: once one is over, no message of a
    right clock that was sent before its end is unread; and in the end none is.

    Times that have come by then are not ahead one behind the other: that may outvote a right one.
    """
    with pytest.MonkeyPatch.context() as patch:
        log, due, right = Log(patch), 0, []
        for hour, sent in enumerate(hours):
            for minute, ahead in sorted(sent):
                when = START + hour * HOUR + timedelta(minutes=minute)
                if ahead <= max(lags) and right[-1:] == [None]:
                    ahead = 0
                right.append(None if ahead else when)
                log.send(when + ahead * HOUR)
            log.now = START + (hour + 1) * HOUR
            while due <= hour - lags[hour]:
                due += 1
                end = START + due * HOUR
                log.run(end - HOUR, end)
                unread = {*range(len(right))} - log.read
                assert [n for n in unread if right[n] and right[n] < end] == []
        for last in range(due, len(hours) + 60):
            log.now = max(log.now, START + (last + 1) * HOUR)
            log.run(START + last * HOUR, START + (last + 1) * HOUR)
        assert log.read == {*range(len(log.stamps))}
