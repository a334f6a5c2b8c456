"""Topics as a source: each record once, whatever a topic's offsets look like."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from fix_account import advised, committed, ids, lines, quiet, refusals, settled
from fix_engine import LocalEngine
from fix_kafka import Record
from fix_topics import Topic
from semel import summary
from semel.abandon import abandon
from semel.errors import SourceError
from semel.finalize import finalize
from semel.gaps import gaps
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.spec.pipeline import Spec


def run(ledger: Ledger, spec: Spec, key: str, interval=None):
    return run_batch(ledger, spec, key, LocalEngine(), interval, log=quiet)


def in_output(spec: Spec, *, audited: bool = True) -> list[str]:
    return settled(spec, audited=audited).ids


def test_what_is_there_is_read_once(topic: Topic, ledger: Ledger) -> None:
    """All that a topic has, and then what came since; nothing twice."""
    topic.append(0, 1000)
    spec = topic.spec()
    done = run(ledger, spec, "r1")
    assert done.finalized.counts.survivors == 1000
    topic.append(1000, 1010)
    run(ledger, spec, "r2")
    assert run(ledger, spec, "r3").plan.batch is None
    assert in_output(spec) == ids(0, 1010)


def test_repeats_are_dropped(topic: Topic, ledger: Ledger) -> None:
    """A producer that sent again after it died: with a record_id each record is there once."""
    topic.append(0, 100)
    topic.append(50, 150)
    spec = topic.spec(record_id=["id"])
    counts = run(ledger, spec, "r1").finalized.counts
    assert (counts.survivors, counts.duplicates_batch) == (150, 50)
    topic.append(100, 200)
    counts = run(ledger, spec, "r2").finalized.counts
    assert (counts.survivors, counts.duplicates_catalog) == (50, 50)
    assert in_output(spec) == ids(0, 200)


def test_bad_values_are_set_aside(topic: Topic, ledger: Ledger) -> None:
    """Each bad value with its reason and its offset; a line break between tokens is no fault."""
    good = json.dumps({"id": "e000000", "n": 1, "at": "2026-01-01T00:00:00Z"}, indent=1)
    values = [
        good.encode(), b"", b"  ", b"{", b'{"id": "a\nb"}', b'{"id": 1}', b'{"id":"a"}\n{"id":"b"}',
        b"\xff", b'{"id":"nul\x00"}',
    ]  # fmt: skip
    topic.put(values)
    spec = topic.spec()
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ["e000000"]
    assert [(offset, reason) for _, offset, reason, _ in found.letters] == [
        (1, "malformed"), (2, "malformed"), (3, "malformed"), (4, "malformed"),
        (5, "type_mismatch"), (6, "malformed"), (7, "encoding"), (8, "encoding"),
    ]  # fmt: skip
    assert [raw for *_, raw in found.letters] == values[1:]


def test_what_is_beside_a_value(topic: Topic, ledger: Ledger) -> None:
    """Key, timestamp and headers as columns; tombstones kept; text that is none is set aside."""
    topic.put(
        [
            Record(
                value=b'{"id":"a"}',
                key=b"k1",
                timestamp_ms=1000,
                headers=[("h", b"1"), ("h", b"2")],
            ),
            Record(value=None, key=b"k2", timestamp_ms=2000),
            Record(value=b'{"id":"b"}', key=b"\xff", timestamp_ms=3000),
            Record(value=b'{"id":"c"}', timestamp_ms=4000, headers=[("h", None), ("x", b"y")]),
        ]
    )  # fmt: skip
    columns = {"id": "string", "k": "string", "at": "timestamp", "h": "binary",
               "all": "array<struct<key:string,value:binary>>"}  # fmt: skip
    source = {"schema": columns, "key": "k", "timestamp": "at", "headers": {"h": "h", "all": "*"}}
    spec = topic.spec(source=source | {"tombstones": "keep"})
    run(ledger, spec, "r1")
    found = settled(spec)
    rows = [(r["id"], r["k"], r["at"].timestamp(), r["h"], len(r["all"])) for r in found.rows]
    assert rows == [
        ("a", "k1", 1.0, b"2", 2), (None, "k2", 2.0, None, 0), ("c", None, 4.0, None, 2)
    ]  # fmt: skip
    assert [(offset, reason) for _, offset, reason, _ in found.letters] == [(2, "encoding")]


@pytest.mark.parametrize("value", ["json", "csv", "bytes"])
def test_tombstones_are_passed_over(topic: Topic, ledger: Ledger, value: str) -> None:
    """Wherever they lie between other messages, also as the last one."""
    raw = {"json": b'{"id":"a"}', "csv": b"a", "bytes": b"a"}[value]
    topic.put(Record(value=one) for one in (raw, None, raw, None, None))
    columns = {"id": "binary" if value == "bytes" else "string"}
    spec = topic.spec(source={"value": value, "schema": columns})
    done = run(ledger, spec, "r1")
    assert (done.finalized.counts.survivors, done.finalized.counts.records_read) == (2, 2)
    topic.put([Record(value=None)])
    assert run(ledger, spec, "r2").finalized.counts.records_read == 0
    assert len(settled(spec).rows) == 2


def test_transactions(topic: Topic, ledger: Ledger) -> None:
    """Aborted records are never read, and those of an open transaction wait; gaps are no loss."""
    topic.append(0, 10)
    record = [Record(value=b'{"id":"aborted"}')] * 3
    topic.kafka.begin(topic.name, record).abort_transaction()
    topic.append(10, 20)
    opened = topic.kafka.begin(topic.name, [Record(value=b'{"id":"e000020"}')])
    topic.append(21, 30)
    spec = topic.spec()
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 20)
    assert run(ledger, spec, "r2").plan.batch is None
    opened.commit_transaction()
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 30)
    topic.kafka.begin(topic.name, record).abort_transaction()
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(0, 30)


# Attacks KS3.
def test_what_retention_took_is_told_until_accepted(topic: Topic, ledger: Ledger) -> None:
    """Records that were deleted before a plan took them: each run fails with the gap, in seconds,
    until a person accepts the loss; which is shown for ever. What came after is read then.
    """
    topic.append(0, 100)
    spec = topic.spec()
    run(ledger, spec, "r1")
    topic.append(100, 200)
    topic.kafka.delete_records(topic.name, {0: 150})
    for key in ("r2", "r3"):
        with pytest.raises(SourceError, match=f"offsets 100 to 150 .*{topic.at()} --lost") as told:
            run(ledger, spec, key)
    assert refusals(ledger) == {"0": "gone"} and in_output(spec) == ids(0, 100)
    assert [(r.name, r.reason) for r in gaps(ledger, spec).refusals] == [(topic.at(), "gone")]
    advised(ledger, str(told.value), "--lost")
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(0, 100) + ids(150, 200)
    found = gaps(ledger, spec)
    assert found.refusals == ()
    assert [(one.name, one.start, one.end) for one in found.losses] == [(topic.at(), 100, 150)]


# Attacks KS4.
def test_what_was_gone_before_is_no_loss(topic: Topic, ledger: Ledger) -> None:
    """A first plan begins with what the topic has; what retention took before is not asked about,
    and what it takes of that which was read is nothing new."""
    topic.append(0, 100)
    topic.kafka.delete_records(topic.name, {0: 40})
    spec = topic.spec()
    run(ledger, spec, "r1")
    topic.kafka.delete_records(topic.name, {0: 90})
    topic.append(100, 110)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(40, 110)
    found = gaps(ledger, spec)
    assert found.refusals == () and found.losses == () and found.gaps == ()


# Attacks KS4.
def test_records_that_nobody_saw_are_missed(topic: Topic, ledger: Ledger) -> None:
    """A partition that was empty at the first plan, or is new in a known topic: what is written and
    deleted between two plans is told."""
    spec = topic.spec(source={"on_refused": "warn"})
    assert run(ledger, spec, "r1").plan.batch is None
    topic.append(0, 10)
    topic.kafka.delete_records(topic.name, {0: 5})
    topic.kafka.add_partitions(topic.name, 2)
    topic.append(10, 20, partition=1)
    topic.kafka.delete_records(topic.name, {1: 5})
    told = run(ledger, spec, "r2").plan.refusals
    assert {(r.name, r.reason) for r in told} == {(topic.at(0), "gone"), (topic.at(1), "gone")}
    told = run(ledger, spec, "r3").plan.refusals
    for one in told:
        advised(ledger, one.detail, "--lost")
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(5, 10) + ids(15, 20)


# Attacks KS2.
def test_a_topic_that_was_made_anew_is_another(topic: Topic, ledger: Ledger) -> None:
    """Its offsets begin again: it is refused until a person accepts it, then read from its start.

    What was seen of the old one and never read is a loss.
    """
    topic.append(0, 100)
    spec = topic.spec()
    run(ledger, spec, "r1")
    topic.append(100, 110)
    batch = plan(ledger, spec, "r2").batch.batch_id
    topic.kafka.recreate(topic.name)
    topic.append(200, 250)
    with pytest.raises(SourceError, match="made anew") as told:
        run(ledger, spec, "r2")
    assert refusals(ledger) == {"0": "recreated"}
    assert ledger.rows("batch", "batch", batch_id=batch)[0]["status"] == "abandoned"
    advised(ledger, str(told.value))
    run(ledger, spec, "r3")
    assert in_output(spec, audited=False) == ids(0, 100) + ids(200, 250)
    assert [(x.start, x.end, x.reason) for x in gaps(ledger, spec).losses] == [
        (100, 110, "replaced")
    ]


# Attacks KS2.
def test_a_topic_that_was_deleted(topic: Topic, ledger: Ledger) -> None:
    """Each run fails while it is missing; what was never read of it is told by name."""
    topic.append(0, 100)
    spec = topic.spec()
    run(ledger, spec, "r1")
    topic.append(100, 110)
    abandon(ledger, plan(ledger, spec, "r2").batch.batch_id, "not now")
    topic.kafka.delete(topic.name)
    with pytest.raises(SourceError, match="no such topic") as told:
        run(ledger, spec, "r3")
    assert "offsets 100 to 110" in str(told.value)
    advised(ledger, str(told.value), "--lost")
    with pytest.raises(SourceError, match="no such topic"):
        run(ledger, spec, "r4")
    topic.kafka.topic(topic.name)
    topic.append(300, 310)
    run(ledger, spec, "r5")
    assert in_output(spec, audited=False) == ids(0, 100) + ids(300, 310)


# Attacks KS1.
def test_a_claim_of_what_is_gone(topic: Topic, ledger: Ledger) -> None:
    """Claimed offsets that were deleted fail the stage with the way out, which works."""
    topic.append(0, 100)
    spec = topic.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    topic.kafka.delete_records(topic.name, {0: 50})
    with pytest.raises(SourceError, match=f"those before 50 were deleted") as told:
        run(ledger, spec, "r1")
    assert told.value.next == f"semel abandon {batch}"
    abandon(ledger, batch, "deleted")
    with pytest.raises(SourceError, match="offsets 0 to 50") as told:
        run(ledger, spec, "r1")
    advised(ledger, str(told.value), "--lost")
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(50, 100)


def test_partitions_and_topics_are_found(topic: Topic, ledger: Ledger) -> None:
    """New partitions are read from their start, and so are new topics of a pattern."""
    topic.append(0, 10)
    spec = topic.spec(source={"topics": None, "pattern": f"{topic.name}.*"})
    run(ledger, spec, "r1")
    topic.kafka.add_partitions(topic.name, 3)
    topic.append(10, 20, partition=2)
    other = topic.kafka.topic(f"{topic.name}-b")
    topic.kafka.produce(other, [Record(value=lines(20, 21).rstrip())])
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 21)


# Attacks KS5.
def test_a_backfill_by_timestamps(topic: Topic, ledger: Ledger) -> None:
    """Each interval takes the offsets between its two times, in any order of the intervals, and
    each offset is in one; a record with an old timestamp is where it lies."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for at, day in enumerate(days[:3]):
        stamp = round(day.timestamp() * 1000) + 3_600_000
        topic.append(10 * at, 10 * at + 9, timestamp_ms=stamp)
        topic.append(10 * at + 9, 10 * at + 10, timestamp_ms=stamp - 7_200_000)
    spec = topic.spec(source={"select": "interval"})
    for at in (2, 0, 1):
        done = run(ledger, spec, f"day{at}", (days[at], days[at + 1]))
        assert done.finalized.counts.survivors == 10
    assert run(ledger, spec, "again", (days[0], days[1])).plan.batch is None
    assert in_output(spec) == ids(0, 30)
    assert gaps(ledger, spec).gaps == ()


# Attacks KS3.
def test_an_interval_that_retention_reached(topic: Topic, ledger: Ledger) -> None:
    """An interval that begins before the first record that is left is refused; others go on."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for at, day in enumerate(days[:3]):
        topic.append(10 * at, 10 * at + 10, timestamp_ms=round(day.timestamp() * 1000))
    spec = topic.spec(source={"select": "interval"})
    run(ledger, spec, "last", (days[2], days[3]))
    topic.kafka.delete_records(topic.name, {0: 15})
    with pytest.raises(SourceError, match="offsets 0 to 15") as told:
        run(ledger, spec, "middle", (days[1], days[2]))
    topic.append(30, 40, timestamp_ms=round(days[3].timestamp() * 1000))
    run(ledger, spec, "next", (days[3], days[3] + timedelta(days=1)))
    advised(ledger, str(told.value), "--lost")
    run(ledger, spec, "middle", (days[1], days[2]))
    assert in_output(spec) == ids(15, 40)


def test_batches_are_bounded(topic: Topic, ledger: Ledger) -> None:
    """By records, and by bytes as some messages show them; the rest is left for the next run."""
    topic.append(0, 100)
    spec = topic.spec(limits={"records_per_batch_max": 30})
    done = [run(ledger, spec, f"r{n}").finalized.counts.records_read for n in range(2)]
    spec = topic.spec(limits={"bytes_per_batch_max": 1000})
    rest = run(ledger, spec, "r3").finalized.counts
    assert done == [30, 30] and 10 <= rest.records_read <= 20 and rest.bytes_read <= 1000


@pytest.mark.rest
def test_a_plan_does_not_pay_for_its_history(topic: Topic, ledger: Ledger) -> None:
    """What a plan looks at of a partition are the claims from its floor on: not those of finalized
    batches, and always those that may still be abandoned.
    """
    spec = topic.spec()
    for at in range(5):
        topic.append(10 * at, 10 * at + 10)
        run(ledger, spec, f"r{at}")
    assert floor(ledger) == 40
    topic.append(50, 60)
    planned = plan(ledger, spec, "p5").batch.batch_id
    topic.append(60, 70)
    run(ledger, spec, "r6")
    topic.append(70, 80)
    run(ledger, spec, "r7")
    assert floor(ledger) == 50
    abandon(ledger, planned, "not now")
    run(ledger, spec, "r8")
    topic.append(80, 90)
    run(ledger, spec, "r9")
    assert floor(ledger) == 80 and in_output(spec) == ids(0, 90)


def floor(ledger: Ledger) -> int:
    with ledger.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT floor FROM semel.source_partition").scalar_one()


def test_a_group_shows_what_is_finalized(topic: Topic, ledger: Ledger) -> None:
    """Its offsets are the end of what is finalized without a gap."""
    topic.append(0, 10)
    spec = topic.spec(source={"consumer_group": "lag"}, limits={"records_per_batch_max": 4})
    plan(ledger, spec, "first")
    assert run(ledger, spec, "r1").finalized.note is None
    assert group(topic, "lag") == 0
    run(ledger, spec, "first")
    assert group(topic, "lag") == 8
    run(ledger, spec, "r2")
    assert group(topic, "lag") == 10


@pytest.mark.proof
def test_a_group_that_cannot_be_told(topic: Topic, ledger: Ledger) -> None:
    """Nothing depends on a group: a cluster that is away is told, and changes nothing."""
    topic.append(0, 10)
    spec = topic.spec(source={"consumer_group": "away"})
    run(ledger, spec, "first")
    topic.append(10, 12)
    last = committed(ledger, spec, "last")
    topic.kafka.broker.kill()
    done = finalize(ledger, spec, last)
    topic.kafka.broker.start()
    assert "group 'away' stay" in done.note and done.note in summary.finalize(done)
    assert group(topic, "away") == 10 and in_output(spec) == ids(0, 12)


def group(topic: Topic, name: str) -> int:
    """The offset that a consumer of this group would begin at."""
    consumer = Consumer(topic.kafka.client(group_id=name))
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                return consumer.committed([TopicPartition(topic.name, 0)], timeout=20)[0].offset
            except KafkaException:  # A broker that was just started again knows no group yet.
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        consumer.close()
