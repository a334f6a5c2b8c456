"""The consumer group of a batch: it is told by the declaration that the batch was planned with."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from fixtures.batches.account import committed
from fixtures.kafka.broker import Kafka, Light
from fixtures.kafka.topics import Topic
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec

FILES = {"type": "files", "path": "in/*.jsonl", "format": "jsonl",
         "schema": {"id": "string", "n": "bigint", "at": "timestamp"}}  # fmt: skip


@pytest.fixture
def elsewhere(kafka_jars: Path) -> Iterator[Light]:
    """Another cluster."""
    folder = Path(tempfile.mkdtemp(prefix="semel-kafka-"))
    made = Light(folder, jars=kafka_jars)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)


def told(servers: str, topic: str, group: str = "lag") -> int:
    """The offset of the topic's first partition that a group has; below 0: none."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                return consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset
            except KafkaException:  # A broker that was just started knows no group yet.
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        consumer.close()


# Attacks F10.
@pytest.mark.parametrize("now", ["another group", "no group", "no topic", "files"])
def test_the_group_is_that_of_the_batch(
    topic: Topic, ledger: Ledger, now: str
) -> None:
    """The declaration is edited between commit and finalize, the topics and the kind of source too:
    the group that the batch was planned with is told, and no other.
    """
    topic.append(0, 10)
    servers = topic.kafka.broker.bootstrap
    batch = committed(ledger, topic.spec(source={"consumer_group": "lag"}), "r1")
    edited = {
        "another group": lambda: topic.spec(source={"consumer_group": "new"}),
        "no group": topic.spec,
        "no topic": lambda: topic.spec(source={"consumer_group": "new", "topics": ["others"]}),
        "files": lambda: topic.bench.spec(record_id=None, source=FILES),
    }[now]()
    assert finalize(ledger, edited, batch).note is None
    assert told(servers, topic.name) == 10 and told(servers, topic.name, "new") < 0


# Attacks F10.
def test_a_batch_of_files_tells_no_group(topic: Topic, ledger: Ledger) -> None:
    """The pipeline has gone over to a topic since: nothing is told, and nothing fails."""
    topic.bench.write("in/1.jsonl", [{"id": "1", "n": 1, "at": None}])
    batch = committed(ledger, topic.bench.spec(record_id=None, source=FILES), "r1")
    now = topic.spec(source={"consumer_group": "lag"})
    assert finalize(ledger, now, batch).note is None


def by(topic: Topic, connection: str) -> Spec:
    source = {"bootstrap_servers": None, "connection": connection, "consumer_group": "lag"}
    return topic.spec(source=source)


# Attacks F10.
def test_the_group_is_in_the_cluster_that_was_read(
    topic: Topic, ledger: Ledger, elsewhere: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection is declared, or leads elsewhere, to a cluster with a topic of this name:
    that cluster is told nothing. A connection that was renamed is followed.
    """
    Kafka(elsewhere, topic.kafka.authority).topic(topic.name)
    here, there = topic.kafka.broker.bootstrap, elsewhere.bootstrap
    variable = "AIRFLOW_CONN_{}".format
    to = '{{"conn_type": "kafka", "extra": {{"bootstrap.servers": "{}"}}}}'.format
    monkeypatch.setenv(variable("FORMER"), to(here))
    monkeypatch.setenv(variable("OTHER"), to(there))
    spec, edited = by(topic, "former"), by(topic, "other")

    topic.append(0, 10)
    batch = committed(ledger, spec, "r1")
    assert finalize(ledger, edited, batch).note is None
    assert (told(here, topic.name), told(there, topic.name) < 0) == (10, True)

    topic.append(10, 20)
    batch = committed(ledger, spec, "r2")
    monkeypatch.setenv(variable("FORMER"), to(there))
    note = finalize(ledger, edited, batch).note
    assert "semel did not commit offsets to consumer group 'lag'" in note, note
    assert "another topic" in note, note
    assert (told(here, topic.name), told(there, topic.name) < 0) == (10, True)

    monkeypatch.setenv(variable("FORMER"), to(here))
    topic.append(20, 30)
    batch = committed(ledger, spec, "r3")
    monkeypatch.delenv(variable("FORMER"))
    monkeypatch.setenv(variable("RENAMED"), to(here))
    assert finalize(ledger, by(topic, "renamed"), batch).note is None
    assert told(here, topic.name) == 30


# Attacks F10.
def test_a_topic_that_was_made_anew_is_told_nothing(topic: Topic, ledger: Ledger) -> None:
    """Offsets of the topic that was read mean nothing in another one of its name: it gets none,
    and the operator is told.
    """
    topic.append(0, 10)
    spec = topic.spec(source={"consumer_group": "lag"})
    batch = committed(ledger, spec, "r1")
    topic.kafka.recreate(topic.name)
    assert "another topic" in finalize(ledger, spec, batch).note
    assert told(topic.kafka.broker.bootstrap, topic.name) < 0
