"""A topic as a source, while the broker dies, freezes, forgets, or is given another topic."""

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import xxhash

from fix_account import advised, ids, quiet, refusals, settled
from fix_engine import LocalEngine
from fix_kafka import Kafka, Record
from fix_pipelines import Workbench
from fix_topics import Topic
from semel import faults
from semel.abandon import abandon
from semel.batch import Claim
from semel.errors import ChangedError, RetryableError, SourceError, UnavailableError
from semel.gaps import gaps
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.sources import kafka as source
from semel.sources.declared import open_source
from semel.sources.kafka import topics
from semel.spec.pipeline import Spec
from semel.steps.job import splits_of

# Its package has a function of that name.
reading = importlib.import_module("semel.sources.kafka.messages")


def run(ledger: Ledger, spec: Spec, key: str):
    return run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def in_output(spec: Spec) -> list[str]:
    return settled(spec, audited=False).ids


def statuses(ledger: Ledger) -> list[str]:
    with ledger.engine.connect() as connection:
        return [r[0] for r in connection.exec_driver_sql("SELECT status FROM semel.attempt")]


@pytest.fixture
def topic(bench: Workbench, kafka: Kafka) -> Topic:
    """One partition with `events(0, 2000)`, in many small fetches."""
    made = Topic(bench, kafka)
    for start in range(0, 2000, 100):
        made.append(start, start + 100)
    return made


@pytest.fixture
def while_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Arms what happens once, when a task has read its first messages and not yet all."""
    monkeypatch.setattr(reading, "FIRST", 50)
    monkeypatch.setattr(reading, "CHUNK", 50)
    small = {"queued_max_messages_kbytes": 1, "fetch_message_max_bytes": 1000}
    monkeypatch.setattr(reading, "READING", reading.READING | small)

    def arm(act: Callable[[], None]) -> None:
        left = [act]
        read = source.messages

        def messages(*where: object) -> Iterator:
            for chunk in read(*where):
                yield chunk
                if left:
                    left.pop()()

        monkeypatch.setattr(source, "messages", messages)

    return arm


# Attacks KS1.
@pytest.mark.proof
@pytest.mark.parametrize("point", ["plan.before_lock", "stage.after_begin", "stage.after_job"])
def test_the_broker_dies(
    topic: Topic, ledger: Ledger, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that needs the broker fails so that it may be tried again; with the broker there
    again the same run goes on, and reads each record once.
    """
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 2)
    spec = topic.spec()
    with faults.armed(point, topic.kafka.broker.kill) as fault:
        if point == "plan.before_lock":
            batch = plan(ledger, spec, "r1").batch
            with pytest.raises(UnavailableError, match="does not answer"):
                plan(ledger, spec, "r2")
        else:
            with pytest.raises(UnavailableError, match="does not answer"):
                run(ledger, spec, "r1")
        assert fault.hit
    topic.kafka.broker.start()
    done = run(ledger, spec, "r1")
    assert point != "plan.before_lock" or done.plan.batch == batch
    topic.append(2000, 2010)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 2010)


@pytest.mark.proof
def test_the_broker_dies_before_finalize(topic: Topic, ledger: Ledger) -> None:
    """What is committed needs no broker any more."""
    spec = topic.spec()
    with faults.armed("commit.after_win", topic.kafka.broker.kill) as fault:
        run(ledger, spec, "r1")
    assert fault.hit
    assert in_output(spec) == ids(0, 2000)


# Attacks KS1.
@pytest.mark.rest
def test_the_broker_is_started_again_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read
) -> None:
    """A task waits for a broker that comes back, and reads what it has not read."""
    spec = topic.spec()

    def again() -> None:
        topic.kafka.broker.kill()
        topic.kafka.broker.start()

    while_read(again)
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 2000)


# Attacks KS1.
@pytest.mark.proof
def test_the_broker_stays_away_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task does not wait for ever: the run may be tried again, and reads all then."""
    monkeypatch.setattr(reading, "SILENT_SECONDS", 3)
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 2)
    spec = topic.spec()
    while_read(topic.kafka.broker.kill)
    with pytest.raises(RetryableError, match="from offset|does not answer"):
        run(ledger, spec, "r1")
    topic.kafka.broker.start()
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 2000)
    assert sorted(statuses(ledger)) == ["lost", "won"]


@contextmanager
def frozen_while(topic: Topic, while_read, seconds: int) -> Iterator[None]:
    timers: list[threading.Timer] = []

    def freeze() -> None:
        pid = topic.kafka.broker.pid
        os.kill(pid, signal.SIGSTOP)
        timers.append(threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)))
        timers[0].start()

    while_read(freeze)
    try:
        yield
    finally:
        for timer in timers:
            timer.join()
    assert timers


# Attacks KS1.
@pytest.mark.rest
@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.proof)])
def test_the_broker_is_frozen_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read, seconds: int
) -> None:
    """A broker that hangs for a while is waited for."""
    spec = topic.spec()
    with frozen_while(topic, while_read, seconds):
        run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 2000)


@pytest.mark.rest
def test_a_task_that_is_slow(
    topic: Topic, ledger: Ledger, while_read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a task takes for some messages, the cluster is not called silent for it."""
    monkeypatch.setattr(reading, "SILENT_SECONDS", 1)
    while_read(lambda: time.sleep(2))
    run(ledger, topic.spec(), "r1")
    assert in_output(topic.spec()) == ids(0, 2000)


# Attacks KS1, KS3.
def test_what_a_task_reads_is_deleted(topic: Topic, ledger: Ledger, while_read) -> None:
    """Never part of a range: the attempt is lost, and the way out is told, and works."""
    spec = topic.spec()
    while_read(lambda: topic.kafka.delete_records(topic.name, {0: 1990}))
    with pytest.raises(SourceError, match="planned are not there any more"):
        run(ledger, spec, "r1")
    assert statuses(ledger) == ["lost"] and in_output(spec) == []
    with pytest.raises(SourceError, match="those before 1990 were deleted") as told:
        run(ledger, spec, "r1")
    batch = int(told.value.next.split()[-1])
    abandon(ledger, batch, "deleted")
    with pytest.raises(SourceError, match="offsets 0 to 1990") as told:
        run(ledger, spec, "r1")
    advised(ledger, str(told.value), "--lost")
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(1990, 2000)


# Attacks KS1, KS2.
@pytest.mark.rest
@pytest.mark.parametrize("records", [10, 2500])
def test_a_topic_is_made_anew_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """Whether the new topic has fewer records than were claimed or more, none of them is taken for
    the old one's: the attempt is lost, and a person is asked.
    """
    monkeypatch.setattr(reading, "SHORT_SECONDS", 1)
    spec = topic.spec()

    def anew() -> None:
        topic.kafka.recreate(topic.name)
        for start in range(5000, 5000 + records, 100):
            topic.append(start, min(start + 100, 5000 + records))

    while_read(anew)
    with pytest.raises(SourceError):
        run(ledger, spec, "r1")
    assert statuses(ledger) == ["lost"] and in_output(spec) == []
    with pytest.raises(SourceError, match="made anew") as told:
        run(ledger, spec, "r1")
    assert refusals(ledger) == {"0": "recreated"}
    advised(ledger, str(told.value))
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(5000, 5000 + records)
    assert [(x.start, x.end) for x in gaps(ledger, spec).losses] == [(0, 2000)]


# Attacks KS1.
def test_a_task_reads_the_planned_topic_alone(topic: Topic, ledger: Ledger, while_read) -> None:
    """A task itself tells another topic of the same name, before and after it reads."""
    spec = topic.spec()
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    [split] = splits_of(claims, 1 << 20, whole=set())

    def anew() -> None:
        topic.kafka.recreate(topic.name)
        for start in range(5000, 7500, 100):
            topic.append(start, start + 100)

    while_read(anew)
    for _ in range(2):
        with pytest.raises((ChangedError, SourceError)):
            for _ in open_source(spec).read(split, 1, xxhash.xxh3_128()):
                pass


def claimed(ledger: Ledger, batch_id: int) -> list[Claim]:
    return [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]


# Attacks KS1.
def test_a_topic_is_deleted_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read
) -> None:
    """A task ends within seconds, and says that the topic is gone."""
    spec = topic.spec()
    while_read(lambda: topic.kafka.delete(topic.name))
    began = time.monotonic()
    with pytest.raises(SourceError, match="no such topic"):
        run(ledger, spec, "r1")
    assert time.monotonic() - began < 20 and in_output(spec) == []


# Attacks KS1, KS2.
@pytest.mark.proof
def test_the_cluster_lost_what_was_claimed(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that comes back with a shorter log than was claimed, or read: the stage fails, then
    the plan; once a person says from where on, what came since is read, and nothing twice.
    """
    monkeypatch.setattr(reading, "SHORT_SECONDS", 1)
    spec = topic.spec(limits={"records_per_batch_max": 1000})
    read = run(ledger, spec, "r1").plan.batch.batch_id
    batch = plan(ledger, spec, "r2").batch.batch_id
    broker = topic.kafka.broker
    broker.kill()
    [log] = (broker.folder / "data" / f"{topic.name}-0").glob("*.log")
    os.truncate(log, log.stat().st_size // 4)
    broker.start()
    [(_, end)] = topic.kafka.ends(topic.name).values()
    assert 0 < end < 1000
    monkeypatch.setattr(reading, "SILENT_SECONDS", 5)
    # Of the one only a part is there, of the other nothing.
    for claims, why in ((read, f"ends at offset {end}"), (batch, "not there any more")):
        [split] = splits_of(claimed(ledger, claims), 1 << 20, whole=set())
        with pytest.raises(SourceError, match=why):
            list(open_source(spec).read(split, claims, xxhash.xxh3_128()))
    with pytest.raises(SourceError, match=f"ends at {end} now") as told:
        run(ledger, spec, "r2")
    assert told.value.next == f"semel abandon {batch}"
    abandon(ledger, batch, "lost")
    with pytest.raises(SourceError, match="truncated") as told:
        run(ledger, spec, "r2")
    advised(ledger, str(told.value), "--from")
    topic.append(3000, 3010)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 1000) + ids(3000, 3010)


# Attacks KS1.
@pytest.mark.parametrize("tail", ["aborted", "open"])
def test_the_end_of_a_claim_has_no_record(topic: Topic, ledger: Ledger, tail: str) -> None:
    """A claim that ends with aborted records, or just before an open transaction, is read within
    seconds.
    """
    record = [Record(value=b'{"id":"never"}')] * 100
    producer = topic.kafka.begin(topic.name, record)
    if tail == "aborted":
        producer.abort_transaction()
    began = time.monotonic()
    run(ledger, topic.spec(), "r1")
    assert time.monotonic() - began < 8
    assert in_output(topic.spec()) == ids(0, 2000)


# Attacks KS2.
def test_partitions_come_while_others_are_read(topic: Topic, ledger: Ledger, while_read) -> None:
    """New partitions are the next plan's, from their start."""
    spec = topic.spec()

    def more() -> None:
        topic.kafka.add_partitions(topic.name, 3)
        topic.append(2000, 2010, partition=2)

    while_read(more)
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 2000)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 2010)


# Attacks P2, P3.
def test_two_plans_at_once(topic: Topic, ledger: Ledger) -> None:
    """Whoever plans second takes what the first one left."""
    spec = topic.spec(limits={"records_per_batch_max": 700})
    with faults.armed("plan.before_lock", lambda: plan(ledger, spec, "r2")) as fault:
        run(ledger, spec, "r1")
    assert fault.hit
    for key in ("r2", "r3", "r4"):
        run(ledger, spec, key)
    assert in_output(spec) == ids(0, 2000)
