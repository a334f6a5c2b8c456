"""The demo's producer and consumer on a real broker: what they say is in a topic is there."""

import secrets
from datetime import UTC, date, datetime

import pytest

from fixtures.kafka.broker import Kafka
from semel_local.demo import flights, topics
from semel_local.demo.topics import ABORTED, NOBODY, PARTITIONS, DemoTopics

DAYS = [date(2013, 1, 1), date(2013, 1, 2)]


@pytest.fixture
def made(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> DemoTopics:
    """With a topic of this test's own."""
    monkeypatch.setattr(topics, "TOPIC", f"flights-{secrets.token_hex(6)}")
    found = DemoTopics(kafka.broker.bootstrap)
    found.make()
    return found


def test_a_producer_that_died_goes_on(made: DemoTopics, kafka: Kafka) -> None:
    """Each line of a day's file is one message: in its order, with its key and its flight's time.

    What was sent is not sent again, and of an aborted transaction nothing is there to be read.
    """
    made.make()  # It is there already.
    assert not made.count_sent()
    records = flights.lines_of(DAYS[0])[1].counts.records_read
    assert made.send(DAYS[:1], made.count_sent()) == records
    made.abort(DAYS[0])
    # It dies when it has sent a part of the second day.
    lines = flights.lines_of(DAYS[1])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights, "lines_of", lambda _: (lines[:300], None))
        assert made.send(DAYS[1:], made.count_sent()) == 300
    assert made.send(DAYS, made.count_sent()) == len(lines) - 300
    assert made.send(DAYS, made.count_sent()) == 0

    sent = [line for day in DAYS for line in flights.lines_of(day)[0]]
    found = kafka.drain(topics.TOPIC)
    assert sorted(one.value for one in found) == sorted(line.raw for line in sent)
    for place in range(PARTITIONS):
        inside = [one for one in found if one.partition == place]
        keys = {one.key.decode() for one in inside}
        wanted = [line for line in sent if line.flight["carrier"] in keys]
        assert [one.value for one in inside] == [line.raw for line in wanted]
        for one, line in zip(inside, wanted, strict=True):
            day = datetime.fromtimestamp(one.timestamp_ms / 1000, UTC)
            names = ("month", "day", "hour", "minute")
            assert [getattr(day, name) for name in names] == [line.flight[n] for n in names]
    aborted = kafka.drain(topics.TOPIC, isolation="read_uncommitted")
    nobodies = [one for one in aborted if one.key == NOBODY.encode()]
    assert len(aborted) - len(found) == len(nobodies) == ABORTED
    assert {one.partition for one in nobodies} <= {one.partition for one in found}
