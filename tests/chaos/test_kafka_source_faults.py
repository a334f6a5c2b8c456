"""A topic as a source, while the broker dies, freezes, forgets, or is given another topic; while a
batch's process is killed; when messages are compacted, or are many."""

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
import xxhash

from fixtures.batches.account import advised, ids, refusals, run, settled
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench
from fixtures.kafka.broker import COMPACTED, Kafka, Record
from fixtures.kafka.topics import Topic, claimed, in_output, messages_of
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.errors import (
    ChangedError,
    RetryableError,
    SourceError,
    TerminalError,
    UnavailableError,
)
from semel.ledger import Ledger
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reports.gaps import gaps
from semel.sources.kafka import claim_checks as claims_of_kafka
from semel.sources.kafka import edges, source, topics
from test_kill import scripts

# Its package has a function of that name.
reading = importlib.import_module("semel.sources.kafka.messages")


def statuses(ledger: Ledger) -> list[str]:
    with ledger.engine.connect() as connection:
        return [r[0] for r in connection.exec_driver_sql("SELECT status FROM semel.attempt")]


@pytest.fixture
def topic(bench: Workbench, kafka: Kafka) -> Topic:
    """One partition with `events(0, 2000)`, in many small fetches."""
    made = Topic(bench, kafka)
    kafka.produce(made.name, messages_of(0, 2000), batch_num_messages="100")
    return made


@pytest.fixture
def while_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Arms what happens once, when a task has read its first messages and not yet all."""
    monkeypatch.setattr(reading, "FIRST", 50)
    monkeypatch.setattr(reading, "CHUNK", 50)
    small = {"queued_max_messages_kbytes": 1, "fetch_message_max_bytes": 1000}
    monkeypatch.setattr(reading, "READER_CONFIG", reading.READER_CONFIG | small)

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
@pytest.mark.parametrize(
    "point", ["plan.before_lock", "stage.after_begin", "stage.after_job", "commit.after_win"]
)
def test_the_broker_dies(
    topic: Topic, ledger: Ledger, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that needs the broker fails so that it may be tried again; with the broker there
    again the same run goes on, and reads each record once. What is committed needs no broker.
    """
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 2)
    spec = topic.spec()
    away = pytest.raises(UnavailableError, match="does not answer")
    with failpoints.armed(point, topic.kafka.broker.kill) as fault:
        with nullcontext() if point == "commit.after_win" else away:
            run(ledger, spec, "r1")
    assert fault.hit
    topic.kafka.broker.start()
    run(ledger, spec, "r1")
    topic.append(2000, 2010)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 2010) and statuses(ledger).count("won") == 2


@pytest.mark.proof
@pytest.mark.parametrize(
    ("place", "name", "declared"),
    [
        (edges._Log, "heads", {"source": {"select": "interval"}}),
        (claims_of_kafka, "first_sizes", {"limits": {"bytes_per_batch_max": 100}}),
    ],
    ids=["for an interval", "for sizes"],
)
def test_the_broker_dies_while_a_plan_looks(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, place: object, name: str,
    declared: dict,
) -> None:  # fmt: skip
    """The plan fails within ten seconds and some, writes nothing, and may be tried again."""
    spec, real = topic.spec(**declared), getattr(place, name)
    always = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    interval = always if "source" in declared else None

    def dies(*words: object) -> object:
        topic.kafka.broker.kill()
        return real(*words)

    began = time.monotonic()
    with monkeypatch.context() as patched, pytest.raises(UnavailableError, match="not answer"):
        patched.setattr(place, name, dies)
        plan(ledger, spec, "r1", interval)
    assert time.monotonic() - began < 10
    topic.kafka.broker.start()
    assert plan(ledger, spec, "r1", interval).batch.batch_id == 1


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


# Attacks KS1.
@pytest.mark.rest
@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.proof)])
def test_the_broker_is_frozen_while_a_task_reads(
    topic: Topic, ledger: Ledger, while_read, seconds: int
) -> None:
    """A broker that hangs for a while is waited for."""
    spec, thaws = topic.spec(), []

    def freeze() -> None:
        pid = topic.kafka.broker.pid
        os.kill(pid, signal.SIGSTOP)
        thaws.append(threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)))
        thaws[0].start()

    while_read(freeze)
    run(ledger, spec, "r1")
    thaws[0].join()
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
    with pytest.raises(SourceError, match="planned offsets below .* no longer exist"):
        run(ledger, spec, "r1")
    assert statuses(ledger) == ["lost"] and in_output(spec) == []
    with pytest.raises(SourceError, match="those below 1990 have been deleted") as told:
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
        topic.append(5000, 5000 + records)

    while_read(anew)
    with pytest.raises(SourceError):
        run(ledger, spec, "r1")
    assert statuses(ledger) == ["lost"] and in_output(spec) == []
    with pytest.raises(SourceError, match="deleted and recreated") as told:
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
        topic.append(5000, 7500)

    while_read(anew)
    for _ in range(2):
        with pytest.raises((ChangedError, SourceError)):
            for _ in open_source(spec).read(split, 1, xxhash.xxh3_128()):
                pass


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
    for claims, why in ((read, f"ends at offset {end}"), (batch, "no longer exist")):
        [split] = splits_of(claimed(ledger, claims), 1 << 20, whole=set())
        with pytest.raises(SourceError, match=why):
            list(open_source(spec).read(split, claims, xxhash.xxh3_128()))
    with pytest.raises(SourceError, match=f"now ends at {end}") as told:
        run(ledger, spec, "r2")
    assert told.value.next == f"semel abandon {batch}"
    abandon(ledger, batch, "lost")
    with pytest.raises(SourceError, match="truncated") as told:
        run(ledger, spec, "r2")
    advised(ledger, str(told.value), "--from")
    topic.append(3000, 3010)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 1000) + ids(3000, 3010)


@pytest.mark.rest
def test_what_is_acknowledged_outlives_sigkill(kafka: Kafka) -> None:
    """On the same address: each record, and that records were deleted."""
    topic, address = kafka.topic(), kafka.broker.bootstrap
    values = [b"%d" % n for n in range(1100)]
    kafka.produce(topic, [Record(value=value) for value in values[:1000]])
    kafka.delete_records(topic, {0: 400})
    kafka.produce(topic, [Record(value=value) for value in values[1000:]])
    pid = kafka.broker.pid
    kafka.broker.kill()
    assert kafka.broker.pid is None
    kafka.broker.start()
    assert kafka.broker.pid != pid and kafka.broker.bootstrap == address
    assert [read.value for read in kafka.drain(topic)] == values[400:]
    assert kafka.ends(topic) == {0: (400, 1100)}


def keyed(bench: Workbench, kafka: Kafka) -> Topic:
    """Ten keys, ten records each, in a topic that is compacted."""
    made = Topic(bench, kafka, config=COMPACTED)
    made.put(r for n in range(100) for r in messages_of(n, n + 1, key=b"%d" % (n % 10)))
    return made


def test_compacted_between_two_attempts(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """The output is one attempt's, whole: here the second one's, which found fewer records."""
    topic = keyed(bench, kafka)
    spec = topic.spec(record_id=["id"])

    def fails(_: object) -> None:
        raise RetryableError("the engine failed")

    with pytest.raises(RetryableError):
        run(ledger, spec, "r1", engine=LocalEngine(before_write=fails))
    topic.kafka.compacted(topic.name)
    counts = run(ledger, spec, "r1").finalized.counts
    assert counts.records_read == counts.survivors == 10
    assert in_output(spec) == ids(90, 100)


# Attacks S13.
@pytest.mark.rest
def test_compacted_after_an_attempt_was_staged(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """An attempt that was staged and lost to another batch, then fewer records: told, and what is
    left is read once the batch is given up."""
    topic = keyed(bench, kafka)
    spec = topic.spec(record_id=["id"], limits={"records_per_batch_max": 100})

    left = [True]

    def rival(_: object) -> None:
        if left:
            left.pop()
            topic.append(95, 105, key=b"other")
            run(ledger, spec, "r2")
            topic.kafka.compacted(topic.name)

    with pytest.raises(TerminalError, match="read other bytes") as told:
        run(ledger, spec, "r1", engine=LocalEngine(before_write=rival))
    assert told.value.next == "semel abandon 1"
    abandon(ledger, 1, "compacted")
    run(ledger, spec, "r3")
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(90, 105)


POINTS = [point for point in failpoints.points() if "contested" in scripts("files", point)[:1]]
SHORT = (
    "plan.before_write", "plan.after_write", "stage.after_begin", "stage.after_seal",
    "commit.before_restage", "commit.after_win", "finalize.after_mark",
)  # fmt: skip


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in SHORT else pytest.mark.proof) for p in POINTS]
)
def test_the_process_is_killed(
    bench: Workbench, kafka: Kafka, ledger: Ledger, children: Children, point: str
) -> None:
    """SIGKILL at each point of a run over a topic, once more at its next pass, then the same
    requests again: each record once, repeats and bad values accounted for.
    """
    topic = Topic(bench, kafka, partitions=2)
    spec = topic.spec(record_id=["id"], limits={"records_per_batch_max": 60})
    topic.append(0, 50)
    topic.put([b"{bad"])
    topic.append(20, 80, partition=1)
    for _ in range(2):
        child = children.start("contested", f"{point}:pause")
        if child.reached(point):
            os.kill(child.process.pid, signal.SIGKILL)
            assert child.ended()[0] == -signal.SIGKILL
    for key in ("r1", "r2", "r3"):
        run(ledger, spec, key)
    found = settled(spec, audited=False)
    assert found.ids == ids(0, 80)
    assert (len(found.decisions), len(found.letters)) == (30, 1)
    assert found.counts.records_read == 111 and gaps(ledger, spec).gaps == ()


@pytest.mark.proof
def test_a_million_records(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """1 M records of 4 partitions, and a partition that comes meanwhile: each once."""
    topic = Topic(bench, kafka, partitions=4)
    for part in range(4):
        topic.append(part * 250_000, (part + 1) * 250_000, partition=part)
    spec = topic.spec(record_id=["id"])

    def meanwhile(_: object) -> None:
        topic.kafka.add_partitions(topic.name, 5)
        topic.append(1_000_000, 1_000_100, partition=4)

    began = time.monotonic()
    done = run(ledger, spec, "r1", engine=LocalEngine(before_write=meanwhile))
    print(f"1 M records in {time.monotonic() - began:.1f} s: {done.seconds}")
    assert done.finalized.counts.survivors == 1_000_000
    run(ledger, spec, "r2")
    assert in_output(spec) == sorted(ids(0, 1_000_100))
