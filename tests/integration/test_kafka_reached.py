"""A pipeline's Kafka connection reaches a real broker by each way, or says within 10 s why not."""

import json
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from fix_certificates import Authority, Signed
from fix_kafka import Kafka, Record
from semel.errors import SemelError, TerminalError, UnavailableError
from semel.kafka.cluster import ANSWER_SECONDS, Cluster
from semel.stack.kafka import Listener

TOLD_SECONDS_MAX = 10

Connect = Callable[[dict[str, str]], Cluster]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes the Airflow connection `broker` of a client's settings."""

    def made(settings: dict[str, str]) -> Cluster:
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        monkeypatch.setenv("AIRFLOW_CONN_BROKER", text)
        return Cluster(connection="broker")

    return made


@pytest.fixture
def user(kafka: Kafka) -> dict[str, str]:
    """The login of somebody who may read one topic at most."""
    kafka.user("reader", "s3cret")
    login = {"mechanism": "SCRAM-SHA-256", "username": "reader", "password": "s3cret"}
    return {f"sasl_{name}": value for name, value in login.items()}


def by(signed: Signed) -> dict[str, str]:
    key, own = str(signed.key), str(signed.certificate)
    return {"ssl_key_location": key, "ssl_certificate_location": own}


def refused(cluster: Cluster, kind: type[SemelError], seconds: float = 3) -> str:
    """What is said where a cluster cannot be asked; why is known within a second."""
    began = time.monotonic()
    with pytest.raises(SemelError) as caught, cluster.consumer() as consumer:
        consumer.list_topics(timeout=seconds)
    assert time.monotonic() - began < TOLD_SECONDS_MAX
    said = str(caught.value)
    assert type(caught.value) is kind, said
    assert "s3cret" not in said and "wrong" not in said
    return said


@pytest.mark.parametrize("listener", list(Listener))
def test_each_way_in(
    kafka: Kafka, authority: Authority, user: dict[str, str], connect: Connect, listener: Listener
) -> None:
    """With a password, a certificate, both or neither, a record is read."""
    topic = kafka.topic()
    kafka.produce(topic, [Record(value=b"v")])
    kafka.allow("reader", "READ", topic=topic)
    kafka.allow("CN=reader", "READ", topic=topic)
    login = user if listener.protocol.startswith("SASL") else {}
    shown = by(authority.sign("reader")) if listener == Listener.MTLS else {}
    # Without client certificate nobody is known, and may do all.
    cluster = connect(kafka.client(listener, **login, **shown))
    with cluster.consumer(auto_offset_reset="error") as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(5)
        if message.error():  # Of the group, which a reader without one passes over.
            message = consumer.poll(5)
        assert message.value() == b"v"


def test_a_wrong_password(kafka: Kafka, user: dict[str, str], connect: Connect) -> None:
    """It is the login that is refused, and no word of the password is told."""
    for listener in (Listener.SCRAM, Listener.SCRAM_TLS):
        settings = kafka.client(listener, **user | {"sasl_password": "wrong"})
        assert "refuses the login" in refused(connect(settings), TerminalError)


def test_certificates_that_do_not_fit(
    kafka: Kafka, stranger: Authority, connect: Connect
) -> None:
    """The broker's, a missing one of ours, and one that the broker does not trust."""
    strange = {"ssl.ca.location": str(stranger.certificate)}
    shown = kafka.client(Listener.MTLS, **by(stranger.sign("reader")))
    others = (kafka.client(Listener.TLS) | strange, kafka.client(Listener.MTLS), shown)
    for settings in others:
        assert "certificates (ssl.*)" in refused(connect(settings), TerminalError)


@pytest.mark.rest
def test_another_protocol(kafka: Kafka, connect: Connect) -> None:
    """A client without TLS before a listener with it, and the other way round."""
    plain = {"bootstrap.servers": kafka.broker.address(Listener.TLS)}
    assert "security.protocol" in refused(connect(plain), UnavailableError)
    tls = kafka.client(Listener.TLS) | {"bootstrap.servers": kafka.broker.bootstrap}
    # Closed in the handshake: a load balancer whose brokers are away does the same.
    assert "security.protocol" in refused(connect(tls), UnavailableError)


@pytest.mark.proof
def test_a_broker_that_is_away(kafka: Kafka, connect: Connect) -> None:
    """It is named with its address, and may be back later."""
    cluster = connect(kafka.client())
    kafka.broker.kill()
    said = refused(cluster, UnavailableError, ANSWER_SECONDS)
    assert "does not answer" in said and kafka.broker.bootstrap in said
    kafka.broker.start()
    with cluster.consumer() as consumer:
        assert consumer.list_topics(timeout=ANSWER_SECONDS).brokers
