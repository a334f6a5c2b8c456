"""Offsets without a record, timestamps in any order, and names as Kafka allows them."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
import xxhash
from confluent_kafka import TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_account import advised, ids, quiet, settled
from fix_engine import LocalEngine
from fix_kafka import COMPACTED, Kafka
from fix_pipelines import Workbench
from fix_topics import Topic, messages_of, stamp
from semel.batch import Claim
from semel.errors import SourceError, SpecError, UnavailableError
from semel.gaps import gaps
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.sources.declared import open_source
from semel.spec.pipeline import Spec
from semel.steps.job import splits_of

DAY = timedelta(days=1)
DAYS = [datetime(2026, 1, 1, tzinfo=UTC) + n * DAY for n in range(6)]


def run(ledger: Ledger, spec: Spec, key: str, interval=None):
    return run_batch(ledger, spec, key, LocalEngine(), interval, log=quiet)


def in_output(spec: Spec) -> list[str]:
    return settled(spec, audited=False).ids


def claimed(ledger: Ledger, batch_id: int) -> list[Claim]:
    return [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]


# Attacks KS1.
@pytest.mark.parametrize("split_size", [1, 3, 7])
def test_a_split_may_hold_nothing(topic: Topic, ledger: Ledger, split_size: int) -> None:
    """Wherever aborted records and marks of transactions lie, each split gives the records at its
    offsets, those that have none too, and none waits for what never comes.
    """
    topic.append(0, 5)
    topic.kafka.begin(topic.name, messages_of(900, 910)).abort_transaction()
    topic.append(5, 10)
    topic.kafka.begin(topic.name, messages_of(10, 15)).commit_transaction()
    topic.kafka.begin(topic.name, messages_of(910, 920)).abort_transaction()
    spec = topic.spec()
    source = open_source(spec)
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    topic.append(15, 20)
    found = []
    for split in splits_of(claims, split_size, whole=set()):
        digest = xxhash.xxh3_128()
        blocks = source.read(split, 1, digest)
        found += [row["id"] for block in blocks for row in block.table.to_pylist()]
    assert found == ids(0, 15)


# Attacks KS1.
def test_what_compaction_left_is_read(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """Compacted offsets are no loss: whoever reads later has the last record of each key once."""
    topic = Topic(bench, kafka, config=COMPACTED)
    topic.put(r for n in range(100) for r in messages_of(n, n + 1, key=b"%d" % (n % 10)))
    spec = topic.spec(limits={"records_per_batch_max": 30})
    run(ledger, spec, "r1")
    left = [json.loads(r.value)["id"] for r in topic.kafka.compacted(topic.name) if r.value]
    assert left == ids(90, 100)
    for key in ("r2", "r3", "r4", "r5"):
        run(ledger, spec, key)
    found = settled(spec, audited=False)
    assert found.ids == ids(0, 30) + left
    assert [offset for _, offset, *_ in found.letters] == [100]
    assert gaps(ledger, spec).gaps == () and gaps(ledger, spec).refusals == ()


_numbers = count()


# Attacks KS5.
@pytest.mark.rest
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.integers(0, 5 * 24 - 1), max_size=4), st.integers(0, 4)),
        min_size=2,
        max_size=5,
    )
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_that_come_late(
    bench: Workbench, kafka: Kafka, ledger: Ledger, rounds: list[tuple[list[int], int]]
) -> None:
    """Records with any timestamp come between runs of any intervals: none is read twice, and what
    no run took is a gap that is shown.
    """
    topic, made = Topic(bench, kafka), 0
    spec = topic.spec(name=f"p{next(_numbers)}", source={"select": "interval"})
    for number, (stamps, day) in enumerate(rounds):
        for hours in stamps:
            topic.append(made, made + 1, timestamp_ms=stamp(DAYS[0] + timedelta(hours=hours)))
            made += 1
        run(ledger, spec, f"r{number}", (DAYS[day], DAYS[day + 1]))
    shown = [n for gap in gaps(ledger, spec).gaps for n in range(gap.start, gap.end)]
    assert sorted(in_output(spec) + [ids(n, n + 1)[0] for n in shown]) == ids(0, made)


# Attacks KS5.
def test_an_interval_before_all_times(topic: Topic, ledger: Ledger) -> None:
    """An interval, or its lookback, may begin before 1970: Kafka knows no such times."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    spec = topic.spec(source={"select": "interval"})
    assert run(ledger, spec, "none", (datetime(1960, 1, 1, tzinfo=UTC), DAYS[0])).plan.batch is None
    run(ledger, spec, "all", (datetime(1969, 12, 31, tzinfo=UTC), DAYS[1]))
    assert in_output(spec) == ids(0, 10)


# Attacks KS3.
def test_an_interval_reaches_back_to_a_gap(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """What is left of a topic may begin with offsets that have no record: the interval that reaches
    back to there is refused like any other.
    """
    topic = Topic(bench, kafka, config={**COMPACTED, "cleanup.policy": "compact,delete"})
    for day, start, keys in ((0, 0, "abcdexxxxx"), (1, 10, "x" * 10), (2, 20, "fghijklmno")):
        made = messages_of(start, start + 10, timestamp_ms=stamp(DAYS[day]))
        topic.put(replace(one, key=key.encode()) for one, key in zip(made, keys, strict=True))
    spec = topic.spec(source={"select": "interval"})
    run(ledger, spec, "r2", (DAYS[2], DAYS[3]))
    topic.kafka.compacted(topic.name)
    topic.kafka.delete_records(topic.name, {0: 5})  # The next one that has a record is 19.
    with pytest.raises(SourceError, match="offsets 0 to 5"):
        once_told(lambda: run(ledger, spec, "r0", (DAYS[0], DAYS[1])))


# Attacks KS5.
@pytest.mark.proof
def test_an_interval_of_deleted_records_takes_no_other(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """Deleted by hand, records lie in their segments for up to five minutes, and the cluster tells
    no offset by a time in them: a run of such an interval waits, and takes nothing of another one.
    """
    topic = Topic(bench, kafka, config={"segment.ms": "3600000"})
    for day in range(4):
        topic.put(messages_of(10 * day, 10 * day + 10, timestamp_ms=stamp(DAYS[day])))
    spec = topic.spec(source={"select": "interval"})
    for day in range(3):
        run(ledger, spec, f"r{day}", (DAYS[day], DAYS[day + 1]))
    # Not `Kafka.delete_records`, which waits: the segments are there for 0.2 s here.
    [deleted] = topic.kafka.admin.delete_records([TopicPartition(topic.name, 0, 20)]).values()
    deleted.result()
    once_told(lambda: run(ledger, spec, "again", (DAYS[0], DAYS[1])))
    assert in_output(spec) == ids(0, 30)
    run(ledger, spec, "r3", (DAYS[3], DAYS[4]))
    assert in_output(spec) == ids(0, 40)


def once_told(call: Callable[[], object]) -> None:
    """Tries again while the broker has segments of deleted records, which it removes soon here."""
    for _ in range(100):
        try:
            call()
            return
        except UnavailableError as error:
            assert "cannot tell yet" in str(error)
            time.sleep(0.05)
    raise AssertionError("the segments of deleted records stay")


@pytest.mark.parametrize("name", ["a.b_c-", "-n", "_", "a--lost", "..."])
def test_names_as_kafka_allows_them(
    bench: Workbench, kafka: Kafka, ledger: Ledger, name: str
) -> None:
    """Dots, underscores and dashes anywhere: read like any other, and the advice can be typed."""
    topic = Topic(bench, kafka)
    topic.name = name
    kafka.topic(name)
    try:
        topic.append(0, 10)
        spec = topic.spec()
        run(ledger, spec, "r1")
        topic.append(10, 30)
        kafka.delete_records(name, {0: 20})
        with pytest.raises(SourceError, match="offsets 10 to 20") as told:
            run(ledger, spec, "r2")
        advised(ledger, str(told.value), "--lost")
        run(ledger, spec, "r3")
        kafka.recreate(name)
        topic.append(40, 50)
        with pytest.raises(SourceError, match="made anew") as told:
            run(ledger, spec, "r4")
        advised(ledger, str(told.value))
        run(ledger, spec, "r5")
        assert in_output(spec) == ids(0, 10) + ids(20, 30) + ids(40, 50)
    finally:
        kafka.delete(name)


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_kafka_refuses(topic: Topic, name: str) -> None:
    """A topic that cannot be is told when the pipeline is loaded."""
    with pytest.raises(SpecError, match="topics"):
        topic.spec(source={"topics": [name]})
