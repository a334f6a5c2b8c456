"""semel.stack.kafka: a real broker that keeps what it acknowledged, and lets in whom it should."""

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from fix_certificates import Authority, Signed
from fix_kafka import COMPACTED, Kafka, Record
from semel.stack.kafka import Listener

ANSWER_SECONDS = 10

NO_ANSWER = (KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED)
"""Errors that come beside the one that says why. A reader without a group has one all the same."""


def values(kafka: Kafka, topic: str, **options: str) -> list[bytes | None]:
    return [read.value for read in kafka.drain(topic, **options)]


def numbered(first: int, after: int, **fields: object) -> list[Record]:
    return [Record(value=b"%d" % n, **fields) for n in range(first, after)]


def answer(settings: dict[str, str], topic: str) -> Message | KafkaError:
    """The first record, or the first error, that a reader gets, but for its group's.

    What is wrong with a certificate comes as _SSL or _TRANSPORT, as it happens: go by the words.
    """
    errors: list[KafkaError] = []
    # Without a right to its group, closing would wait 45 s for what it commits there by itself.
    wanted = {
        **settings, "group.id": "none", "enable.auto.commit": False, "log_level": 0,
        "auto.offset.reset": "error", "error_cb": errors.append,
    }  # fmt: skip
    consumer = Consumer(wanted)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(ANSWER_SECONDS * 10):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                return message
            if message is not None:
                errors.append(message.error())
            told = [one for one in errors if one.code() not in NO_ANSWER]
            if told:
                return told[0]
    finally:
        consumer.close()
    pytest.fail(f"neither a record nor an error within {ANSWER_SECONDS} s")


def listed(settings: dict[str, str], topic: str) -> KafkaError | None:
    """What the broker says of a topic. One that it does not show is silence to a reader."""
    return AdminClient(settings).list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].error


def test_all_of_a_record_comes_back(kafka: Kafka) -> None:
    """Key, value, timestamp and headers, also null ones and those of one name."""
    topic = kafka.topic(partitions=2)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    kafka.produce(topic, [
        Record(value=b"v", key=b"k", headers=headers, timestamp_ms=1_357_000_000_000, partition=1),
        Record(value=None, key=b"k", partition=1),
    ])  # fmt: skip
    first, second = kafka.drain(topic)
    assert (first.partition, first.offset, first.key, first.value) == (1, 0, b"k", b"v")
    assert first.headers == headers and first.timestamp_ms == 1_357_000_000_000
    assert (second.offset, second.value, second.headers) == (1, None, [])


@pytest.mark.rest
def test_what_is_acknowledged_outlives_sigkill(kafka: Kafka) -> None:
    """On the same address: each record, and that records were deleted."""
    topic, address = kafka.topic(), kafka.broker.bootstrap
    kafka.produce(topic, numbered(0, 1000))
    kafka.delete_records(topic, {0: 400})
    kafka.produce(topic, numbered(1000, 1100))
    pid = kafka.broker.pid
    kafka.broker.kill()
    assert kafka.broker.pid is None
    kafka.broker.start()
    assert kafka.broker.pid != pid and kafka.broker.bootstrap == address
    assert values(kafka, topic) == [b"%d" % n for n in range(400, 1100)]
    assert kafka.ends(topic) == {0: (400, 1100)}


def test_transactions(kafka: Kafka) -> None:
    """What is committed is read; what is aborted or open is not, and what follows it waits."""
    topic = kafka.topic()
    kafka.begin(topic, numbered(0, 2)).commit_transaction()
    kafka.begin(topic, numbered(2, 4)).abort_transaction()
    kafka.produce(topic, numbered(4, 5))
    open_one = kafka.begin(topic, numbered(5, 6))
    kafka.produce(topic, numbered(6, 7))
    assert values(kafka, topic) == [b"0", b"1", b"4"]
    assert len(values(kafka, topic, isolation="read_uncommitted")) == 7
    open_one.commit_transaction()
    assert values(kafka, topic) == [b"0", b"1", b"4", b"5", b"6"]


def test_a_topic_changes(kafka: Kafka) -> None:
    """Partitions are added; a recreated topic is an empty one of another id."""
    topic = kafka.topic()
    kafka.produce(topic, numbered(0, 3))
    kafka.add_partitions(topic, 3)
    assert kafka.ends(topic) == {0: (0, 3), 1: (0, 0), 2: (0, 0)}
    before = kafka.topic_id(topic)
    kafka.recreate(topic)
    assert kafka.topic_id(topic) != before and kafka.ends(topic) == {0: (0, 0)}


def test_a_topic_is_compacted(kafka: Kafka) -> None:
    """Of each key the last record stays, on its offset."""
    topic = kafka.topic(config=COMPACTED)
    for n in range(3):
        kafka.produce(topic, [Record(value=b"%d" % n, key=b"k"), Record(value=b"x", key=b"%d" % n)])
    left = [(read.key, read.offset) for read in kafka.compacted(topic)]
    assert left == [(b"0", 1), (b"1", 3), (b"k", 4), (b"2", 5), (b"", 6)]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", [Listener.SCRAM, Listener.SCRAM_TLS])
def test_a_password(kafka: Kafka, listener: Listener, mechanism: str) -> None:
    """The right one lets in, within TLS or without; a wrong one does not."""
    topic, user = kafka.topic(), f"reader-{mechanism}-{listener}"
    kafka.produce(topic, numbered(0, 1))
    kafka.user(user, "right", mechanism)
    kafka.allow(user, "READ", topic=topic)
    login = {"sasl_mechanism": mechanism, "sasl_username": user}
    good = kafka.client(listener, **login, sasl_password="right")
    assert answer(good, topic).value() == b"0"
    bad = answer(kafka.client(listener, **login, sasl_password="wrong"), topic)
    assert bad.code() == KafkaError._AUTHENTICATION


def test_a_right_to_read(kafka: Kafka) -> None:
    """Who has logged in and may not see or not read the topic is told so."""
    topic = kafka.topic()
    kafka.user("nobody", "right")
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "nobody"}
    settings = kafka.client(Listener.SCRAM, **login, sasl_password="right")
    assert listed(settings, topic).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.allow("nobody", "DESCRIBE", topic=topic)
    assert listed(settings, topic) is None
    assert answer(settings, topic).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.produce(topic, numbered(0, 1))
    kafka.allow("nobody", "READ", topic=topic)
    assert answer(settings, topic).value() == b"0"


def test_tls(kafka: Kafka, stranger: Authority) -> None:
    """The broker shows a certificate for its address, which only its authority vouches for."""
    topic = kafka.topic()
    kafka.produce(topic, numbered(0, 1))
    settings = kafka.client(Listener.TLS)
    assert answer(settings, topic).value() == b"0"
    other = settings | {"ssl.ca.location": str(stranger.certificate)}
    assert "certificate verify failed" in answer(other, topic).str()


def shown(kafka: Kafka, signed: Signed) -> dict[str, str]:
    return kafka.client(
        Listener.MTLS,
        ssl_certificate_location=str(signed.certificate), ssl_key_location=str(signed.key),
    )  # fmt: skip


def test_mutual_tls(kafka: Kafka, authority: Authority, stranger: Authority) -> None:
    """A client is who its certificate says; without one, or with a stranger's, it is refused."""
    topic = kafka.topic()
    kafka.produce(topic, numbered(0, 1))
    kafka.allow("CN=reader", "READ", topic=topic)
    assert answer(shown(kafka, authority.sign("reader")), topic).value() == b"0"
    other = listed(shown(kafka, authority.sign("other")), topic)
    assert other.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for settings in (kafka.client(Listener.MTLS), shown(kafka, stranger.sign("reader"))):
        assert "bad certificate" in answer(settings, topic).str()
