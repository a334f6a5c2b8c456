"""Topics as a source: each record once, whatever a topic's offsets and timestamps look like."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import pytest
import xxhash
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.batches.account import advised, committed, ids, refusals, run, settled
from fixtures.batches.workbench import Workbench
from fixtures.kafka.broker import COMPACTED, Kafka, Record
from fixtures.kafka.topics import Topic, claimed, in_output, messages_of, stamp
from semel import failpoints
from semel.cli import main
from semel.clients.kafka.cluster import Cluster
from semel.errors import SourceError, UnavailableError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reports import completeness, summary
from semel.reports.gaps import gaps
from semel.sources.kafka import edges
from semel.sources.kafka.messages import PLAN_CHECK_SECONDS, first_sizes
from semel.sources.kafka.topics import Extent, FoundPartition
from semel_local.stack.process import wait_until

DAY = timedelta(days=1)
DAYS = [datetime(2026, 1, 1, tzinfo=UTC) + n * DAY for n in range(6)]
BY_INTERVAL = {"select": "interval"}


def of_day(ledger: Ledger, spec: Spec, day: int) -> None:
    """The run of one of DAYS."""
    run(ledger, spec, f"day{day}", (DAYS[day], DAYS[day + 1]))


# Attacks KS1.
def test_transactions(topic: Topic, ledger: Ledger) -> None:
    """Aborted records are never read, and those of an open transaction wait; gaps are no loss. A
    claim that ends with such offsets is read within seconds.
    """
    topic.append(0, 10)
    record = [Record(value=b'{"id":"aborted"}')] * 3
    topic.kafka.begin(topic.name, record).abort_transaction()
    topic.append(10, 20)
    opened = topic.kafka.begin(topic.name, [Record(value=b'{"id":"e000020"}')])
    topic.append(21, 30)
    spec, began = topic.spec(), time.monotonic()
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 20)
    assert run(ledger, spec, "r2").plan.batch is None
    opened.commit_transaction()
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 30)
    topic.kafka.begin(topic.name, record).abort_transaction()
    assert run(ledger, spec, "r4").finalized.counts.records_read == 0
    assert settled(spec).ids == ids(0, 30) and time.monotonic() - began < 20


# Attacks KS1.
def test_a_split_may_hold_nothing(topic: Topic, ledger: Ledger) -> None:
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
    for split_size in (3, 7):
        found = []
        for split in splits_of(claims, split_size, whole=set()):
            blocks = source.read(split, 1, xxhash.xxh3_128())
            found += [row["id"] for block in blocks for row in block.table.to_pylist()]
        assert found == ids(0, 15), split_size


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
    assert settled(spec).ids == ids(0, 100) + ids(150, 200)
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
    assert settled(spec).ids == ids(40, 110)
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
    assert settled(spec).ids == ids(5, 10) + ids(15, 20)


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
    with pytest.raises(SourceError, match="deleted and recreated") as told:
        run(ledger, spec, "r2")
    assert refusals(ledger) == {"0": "recreated"}
    assert ledger.rows("batch", "batch", batch_id=batch)[0]["status"] == "abandoned"
    advised(ledger, str(told.value))
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 100) + ids(200, 250)
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
    assert in_output(spec) == ids(0, 100) + ids(300, 310)


def test_partitions_and_topics_are_found(topic: Topic, ledger: Ledger) -> None:
    """New partitions are read from their start by the next plan, also those that come while others
    are read; and so are new topics of a pattern."""
    topic.append(0, 10)
    spec = topic.spec(source={"topics": None, "pattern": f"{topic.name}.*"})

    def more() -> None:
        topic.kafka.add_partitions(topic.name, 3)
        topic.append(10, 20, partition=2)

    with failpoints.armed("stage.after_begin", more) as fault:
        run(ledger, spec, "r1")
    assert fault.hit and in_output(spec) == ids(0, 10)
    other = topic.kafka.topic(f"{topic.name}-b")
    topic.kafka.produce(other, messages_of(20, 21))
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 21)


def test_names_as_kafka_allows_them(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """Dots, underscores and dashes anywhere: read like any other, and the advice can be typed."""
    names = ["a.b_c-", "-n", "_", "a--lost", "..."]
    topic = Topic(bench, kafka)
    spec = topic.spec(source={"topics": names, "on_refused": "warn"})

    def told(key: str, option: str) -> None:
        """Each topic is refused, and its advice followed."""
        found = run(ledger, spec, key).plan.refusals
        assert {one.name for one in found} == {f"{name}/0" for name in names}
        for one in found:
            advised(ledger, one.detail, option)

    def append(start: int, stop: int) -> None:
        for number, name in enumerate(names):
            kafka.produce(name, messages_of(100 * number + start, 100 * number + stop))

    try:
        for name in names:
            kafka.topic(name)
        append(0, 10)
        run(ledger, spec, "r1")
        append(10, 30)
        for name in names:
            kafka.delete_records(name, {0: 20})
        told("r2", "--lost")
        run(ledger, spec, "r3")
        for name in names:
            kafka.recreate(name)
        append(40, 50)
        told("r4", "")
        run(ledger, spec, "r5")
        spans = [(0, 10), (20, 30), (40, 50)]
        wanted = [ids(n + start, n + stop) for n in range(0, 500, 100) for start, stop in spans]
        assert in_output(spec) == [one for some in wanted for one in some]
    finally:
        for name in names:
            kafka.delete(name)


# Attacks KS5.
def test_a_backfill_by_timestamps(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each interval takes the offsets between its two times, in any order of the intervals, and
    each offset is in one; a record with an old timestamp is where it lies. `semel days` does not
    say of a day without a batch that nothing is there: of which day unread records are is not
    known.
    """
    for at, day in enumerate(DAYS[:3]):
        when = stamp(day) + 3_600_000
        topic.append(10 * at, 10 * at + 9, timestamp_ms=when)
        topic.append(10 * at + 9, 10 * at + 10, timestamp_ms=when - 7_200_000)
    spec = topic.spec(source=BY_INTERVAL)
    for at in (2, 0):
        of_day(ledger, spec, at)
        assert len(in_output(spec)) == (20 if at == 0 else 10)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    assert main(["days", spec.name, "--from", "2026-01-01", "--to", "2026-01-03"]) == 0
    told = capsys.readouterr().out
    lines = {words[0]: words[1:4] for line in told.splitlines() if (words := line.split())}
    assert lines["2026-01-01"] == lines["2026-01-03"] == ["done", "10", "10"]
    assert "2026-01-02 no batch" in told and "partitions 1 unclaimed" in told
    of_day(ledger, spec, 1)
    assert run(ledger, spec, "again", (DAYS[0], DAYS[1])).plan.batch is None
    assert settled(spec).ids == ids(0, 30)
    assert gaps(ledger, spec).gaps == ()


# Attacks KS5.
@pytest.mark.parametrize("ahead", [timedelta(days=2), timedelta(days=27_000)], ids=str)
def test_a_clock_that_is_ahead_ends_no_interval(
    bench: Workbench, kafka: Kafka, ledger: Ledger, ahead: timedelta
) -> None:
    """One message of three days has a time that is ahead: each day's run takes what was sent on its
    day, and each day is complete.
    """
    topic = Topic(bench, kafka, config={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    for hour in range(72):
        when = DAYS[0] + timedelta(hours=hour)
        topic.append(hour, hour + 1, timestamp_ms=stamp(when + ahead if hour == 5 else when))
    spec = topic.spec(source=BY_INTERVAL)
    for day in range(3):
        of_day(ledger, spec, day)
        assert in_output(spec) == ids(0, 24 * (day + 1))
    covered = completeness.read_completeness(ledger, spec)
    assert covered.complete(DAYS[0], DAYS[3]) and gaps(ledger, spec).gaps == ()


def test_what_no_interval_took_has_a_command(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A message that came late lies between those of other intervals: gaps prints a run that takes
    it, and what else is unread.
    """
    topic.append(0, 10, timestamp_ms=stamp(DAYS[1]))
    topic.append(10, 20, timestamp_ms=stamp(DAYS[2]))
    topic.append(20, 21, timestamp_ms=stamp(DAYS[1]))
    spec = topic.spec(source=BY_INTERVAL)
    of_day(ledger, spec, 1)
    topic.append(21, 31, timestamp_ms=stamp(DAYS[3]))
    of_day(ledger, spec, 3)
    topic.append(31, 32, timestamp_ms=stamp(DAYS[2]))
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    assert main(["gaps", spec.name]) == 1
    said = capsys.readouterr().out
    [days] = re.findall(f"^next: semel run {spec.name} --interval (.*)$", said, re.M)
    first, last = (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in days.split())
    assert first == DAYS[1] and last > datetime.now(UTC)
    run(ledger, spec, "told", (first, last))
    assert settled(spec).ids == ids(0, 32) and gaps(ledger, spec).gaps == ()


# Attacks KS3.
def test_an_interval_that_retention_reached(topic: Topic, ledger: Ledger) -> None:
    """An interval that begins before the first record that is left is refused; others go on."""
    for at, day in enumerate(DAYS[:3]):
        topic.append(10 * at, 10 * at + 10, timestamp_ms=stamp(day))
    spec = topic.spec(source=BY_INTERVAL)
    of_day(ledger, spec, 2)
    topic.kafka.delete_records(topic.name, {0: 15})
    with pytest.raises(SourceError, match="offsets 0 to 15") as told:
        of_day(ledger, spec, 1)
    topic.append(30, 40, timestamp_ms=stamp(DAYS[3]))
    of_day(ledger, spec, 3)
    advised(ledger, str(told.value), "--lost")
    of_day(ledger, spec, 1)
    assert settled(spec).ids == ids(15, 40)


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
    spec = topic.spec(source=BY_INTERVAL)
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
    spec = topic.spec(source=BY_INTERVAL)
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
            assert "cannot yet find the first offset" in str(error)
            time.sleep(0.05)
    raise AssertionError("the segments of deleted records stay")


# Attacks KS5.
def test_an_interval_before_all_times(topic: Topic, ledger: Ledger) -> None:
    """An interval, or its lookback, may begin before 1970: Kafka knows no such times."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    spec = topic.spec(source=BY_INTERVAL)
    assert run(ledger, spec, "none", (datetime(1960, 1, 1, tzinfo=UTC), DAYS[0])).plan.batch is None
    run(ledger, spec, "all", (datetime(1969, 12, 31, tzinfo=UTC), DAYS[1]))
    assert in_output(spec) == ids(0, 10)


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
    assert floor(ledger) == 80 and settled(spec).ids == ids(0, 90)


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
    assert "did not commit offsets to consumer group 'away'" in done.note
    assert done.note in summary.finalize(done)
    assert group(topic, "away") == 10 and settled(spec).ids == ids(0, 12)


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


def transact(topic: Topic, start: int, stop: int, when: datetime, *, commit: bool = True) -> None:
    """Send some events in a transaction of its own. The mark behind them bears the time of now."""
    made = topic.kafka.begin(topic.name, messages_of(start, stop, timestamp_ms=stamp(when)))
    made.commit_transaction() if commit else made.abort_transaction()


def ends_at(topic: Topic, offset: int) -> bool:
    """Waits for the last mark, which is written some time after the producer has been told."""
    return wait_until(lambda: topic.kafka.ends(topic.name)[0][1] == offset, 30)


# Attacks KS5.
def test_history_that_was_sent_in_transactions(topic: Topic, ledger: Ledger) -> None:
    """Sent today in a transaction each, days of long ago are backfilled in any order: each has its
    own records, and none is left. The marks of transactions have the time of today.
    """
    for day in range(4):
        transact(topic, 10 * day, 10 * day + 10, DAYS[day])
        transact(topic, 900, 905, DAYS[day], commit=False)
    assert ends_at(topic, 4 * (11 + 6))
    for name, order in (("forth", (0, 1, 2, 3)), ("back", (3, 1, 2, 0))):
        spec = topic.spec(name=name, source=BY_INTERVAL)
        there: set[str] = set()
        for day in order:
            of_day(ledger, spec, day)
            found = in_output(spec)
            assert sorted(set(found) - there) == ids(10 * day, 10 * day + 10)
            there |= set(found)
        assert gaps(ledger, spec).gaps == () and len(found) == 40


_numbers = count()


# Attacks KS5.
@pytest.mark.rest
@given(
    sent=st.lists(
        st.tuples(st.integers(0, 5 * 24 - 1), st.sampled_from(["plain", "committed", "aborted"])),
        min_size=1,
        max_size=8,
    ),
    order=st.permutations(range(5)),
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_transactions_in_any_order(
    bench: Workbench,
    kafka: Kafka,
    ledger: Ledger,
    sent: list[tuple[int, str]],
    order: list[int],
) -> None:
    """Whatever is sent how and of which time: intervals that touch take each record once."""
    topic, made = Topic(bench, kafka), 0
    for hours, how in sent:
        when = DAYS[0] + timedelta(hours=hours)
        if how == "aborted":
            transact(topic, 900, 902, when, commit=False)
            continue
        if how == "committed":
            transact(topic, made, made + 2, when)
        else:
            topic.append(made, made + 2, timestamp_ms=stamp(when))
        made += 2
    assert ends_at(topic, sum(2 if how == "plain" else 3 for _, how in sent))
    spec = topic.spec(name=f"e{next(_numbers)}", source=BY_INTERVAL)
    for day in order:
        of_day(ledger, spec, day)
    assert in_output(spec) == ids(0, made)
    assert gaps(ledger, spec).gaps == ()


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
    spec = topic.spec(name=f"p{next(_numbers)}", source=BY_INTERVAL)
    for number, (stamps, day) in enumerate(rounds):
        for hours in stamps:
            topic.append(made, made + 1, timestamp_ms=stamp(DAYS[0] + timedelta(hours=hours)))
            made += 1
        run(ledger, spec, f"r{number}", (DAYS[day], DAYS[day + 1]))
    shown = [n for gap in gaps(ledger, spec).gaps for n in range(gap.start, gap.end)]
    assert sorted(in_output(spec) + [ids(n, n + 1)[0] for n in shown]) == ids(0, made)


def test_a_search_goes_on_where_an_earlier_interval_ended(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill in order reads each day once to find where it ends, however much was before."""
    for day in range(5):
        transact(topic, 100 * day, 100 * day + 100, DAYS[day])
    assert ends_at(topic, 505)
    began: list[int] = []

    class Searched(edges._Log):
        def _first(self, starts: dict, since: int, **votes: int) -> dict:
            began.extend(starts.values() if since >= 0 else ())
            return super()._first(starts, since, **votes)

    monkeypatch.setattr(edges, "_Log", Searched)
    spec = topic.spec(source=BY_INTERVAL)
    for day in range(5):
        began.clear()
        of_day(ledger, spec, day)
        assert min(began, default=0) >= 101 * day
    assert in_output(spec) == ids(0, 500)


def test_partitions_end_where_each_has_its_edge(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """Many partitions are searched at once, and each has its own edges; an empty one has none."""
    topic = Topic(bench, kafka, partitions=5)
    for day in range(3):
        made = []
        for at in range(4):
            start = 100 * at + 10 * day
            beside = {"timestamp_ms": stamp(DAYS[day]), "partition": at}
            made += messages_of(start, start + 10 - at, **beside)
        kafka.begin(topic.name, made).commit_transaction()
    ends = {at: (0, 3 * (11 - at)) for at in range(4)} | {4: (0, 0)}
    assert wait_until(lambda: kafka.ends(topic.name) == ends, 30)
    spec = topic.spec(source=BY_INTERVAL)
    for day in range(3):
        of_day(ledger, spec, day)
        starts = [(at, 100 * at + 10 * d) for at in range(4) for d in range(day + 1)]
        taken = [one for at, start in starts for one in ids(start, start + 10 - at)]
        assert in_output(spec) == taken


class Quiet(Cluster):
    """A cluster that gives nothing for a while, as where all that is read was aborted."""

    asked: ClassVar[int]

    @contextmanager
    def admin(self) -> Iterator[object]:
        type(self).asked += 1
        with super().admin() as admin:
            yield admin

    @contextmanager
    def consumer(self, **config: object) -> Iterator[object]:
        with super().consumer(**config) as consumer:
            until = time.monotonic() + 2.5 * PLAN_CHECK_SECONDS

            def consume(wanted: int, timeout: float) -> list[Message]:
                if time.monotonic() < until:
                    time.sleep(timeout)
                    return []
                return consumer.consume(wanted, timeout=timeout)

            yield SimpleNamespace(
                assign=consumer.assign,
                incremental_unassign=consumer.incremental_unassign,
                consume=consume,
            )


def test_a_plan_waits_while_the_cluster_answers(topic: Topic) -> None:
    """A plan that gets no message asks whether the cluster is there, and reads on when it is."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    cluster = Quiet(servers=topic.kafka.broker.bootstrap)
    Quiet.asked = 0
    assert len(first_sizes(cluster, topic.name, 0, 0, 10)) == 10
    assert Quiet.asked == 2
    extent = Extent(low=0, end=10, epoch=0)
    place = FoundPartition(topic=topic.name, topic_id="T", partition=0, extent=extent, high=10)
    found = edges.find_edges(cluster, [place], (DAYS[0], DAYS[1]), lambda _: {})
    assert found == ({(topic.name, 0): 0}, {(topic.name, 0): -1})
    assert Quiet.asked == 5


def test_a_topic_that_is_deleted_while_a_plan_looks(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan looks again, and says then what became of it; so it does where records go."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    spec = topic.spec(source=BY_INTERVAL)
    of_day(ledger, spec, 0)
    topic.append(10, 20, timestamp_ms=stamp(DAYS[1]))
    left: list[Callable[[], None]] = []

    class Late(edges._Log):
        def heads(self, starts: dict) -> dict:
            if left:
                left.pop()()
            return super().heads(starts)

    monkeypatch.setattr(edges, "_Log", Late)
    left.append(lambda: topic.kafka.delete_records(topic.name, {0: 15}))
    with pytest.raises(SourceError, match="1 partition is refused(?s:.*)offsets 10 to 15"):
        plan(ledger, spec, "r1", (DAYS[1], DAYS[2]))
    left.append(lambda: topic.kafka.delete(topic.name))
    with pytest.raises(SourceError, match="no such topic"):
        plan(ledger, spec, "r1", (DAYS[1], DAYS[2]))
