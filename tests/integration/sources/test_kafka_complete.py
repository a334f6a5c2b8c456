"""Completeness of what is read from topics: by the event time of partitions, and by intervals."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from fixtures.batches.account import quiet, run
from fixtures.batches.workbench import Workbench
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.topics import Topic, stamp
from fixtures.postgres.server import lose
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.reports import completeness

START = datetime(2025, 11, 3, tzinfo=UTC)


def hour(number: float) -> datetime:
    return START + timedelta(hours=number)


def records(partition: int, *hours: float) -> list[Record]:
    """One record of each hour, stamped with it."""
    return [
        Record(
            value=json.dumps(
                {"id": f"{partition}-{number}", "n": 1, "at": hour(number).isoformat()}
            ).encode(),
            partition=partition,
            timestamp_ms=stamp(hour(number)),
        )
        for number in hours
    ]


def event_time(ledger: Ledger, spec: Spec) -> float | None:
    known = completeness.read_completeness(ledger, spec).newest_time
    return known and (known - START) / timedelta(hours=1)


def windowed(topic: Topic, **changes: Any) -> Spec:
    return topic.spec(record_time="at", window={"size": "1 hour"}, **changes)


# Attacks W3, W5.
def test_partitions_of_a_topic(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """The least of the partitions, up to where each is finalized, over what transactions leave."""
    topic = Topic(bench, kafka, partitions=2)
    spec = windowed(topic, limits={"records_per_batch_max": 4})
    topic.put(records(0, 1, 2, 3))
    kafka.begin(topic.name, records(0, 90)).abort_transaction()
    topic.put([*records(0, 4), *records(1, 7, 6)])
    run(ledger, spec, "r1")
    behind = event_time(ledger, spec)
    assert behind is None or behind <= 4, "the topic has more than the batch took"
    for number in range(2, 5):
        run(ledger, spec, f"r{number}")
    assert event_time(ledger, spec) == 4
    assert completeness.read_completeness(ledger, spec).complete(hour(3), hour(4))
    topic.put(records(0, 9))
    run(ledger, spec, "r9")
    assert event_time(ledger, spec) == 7
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert event_time(ledger, spec) == 7


# Attacks W2.
def test_an_open_transaction_keeps_its_interval_open(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """What it may still bring is of the interval: that is covered when it has ended."""
    topic = Topic(bench, kafka)
    spec = windowed(topic, source={"select": "interval"})
    topic.put(records(0, 1))
    day = START, START + timedelta(days=1)
    held = kafka.begin(topic.name, records(0, 2))
    run(ledger, spec, "r1", day)
    assert not completeness.read_completeness(ledger, spec).covered.ranges
    held.commit_transaction()
    run(ledger, spec, "r2", day)
    assert completeness.read_completeness(ledger, spec).covered.ranges == (day,)
