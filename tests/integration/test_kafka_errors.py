"""What a pipeline over a topic says when its cluster cannot be read: soon, and what to do."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fix_account import ids, quiet, settled
from fix_certificates import Authority
from fix_engine import LocalEngine
from fix_kafka import Kafka
from fix_topics import Topic
from semel.errors import SemelError, SourceError, TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.sources.kafka import claimed
from semel.sources.kafka.messages import first_sizes
from semel.spec.pipeline import Spec
from semel.stack.kafka import Listener

TOLD_SECONDS_MAX = 10

CERTAIN_SECONDS_MAX = 5
"""What does not pass is told at once; a busy machine takes a while all the same."""

PASSWORD = "pa55 of nobody's business"
WRONG = "a wr0ng one"

Connect = Callable[..., Spec]


@pytest.fixture
def connect(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A pipeline over the topic, which has 10 records, by a connection with these settings."""
    topic.append(0, 10)

    def made(settings: dict[str, str], **source: object) -> Spec:
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        monkeypatch.setenv("AIRFLOW_CONN_EVENTS", text)
        return topic.spec(source={"bootstrap_servers": None, "connection": "events", **source})

    return made


def login(kafka: Kafka, user: str, *rights: str, topic: str = "") -> dict[str, str]:
    """The settings of a user who has some rights to a topic."""
    kafka.user(user, PASSWORD, "SCRAM-SHA-512")
    for right in rights:
        kafka.allow(user, right, topic=topic)
    more = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user, "sasl_password": PASSWORD}
    return kafka.client(Listener.SCRAM_TLS, **more)


def told(
    kind: type[SemelError], seconds: float, function: Callable, *arguments: object
) -> SemelError:
    """The error of a call, which says nothing secret and comes in time."""
    began = time.monotonic()
    with pytest.raises(SemelError) as caught:
        function(*arguments)
    assert time.monotonic() - began < seconds
    assert type(caught.value) is kind, caught.value
    said = str(caught.value)
    assert PASSWORD not in said and WRONG not in said and "'events'" in said
    return caught.value


def refused(kind: type[SemelError], seconds: float, ledger: Ledger, spec: Spec) -> str:
    return str(told(kind, seconds, plan, ledger, spec, "r1"))


def test_a_login_that_is_refused(
    topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect
) -> None:
    """A wrong password, an unknown user, a mechanism that the broker does not have: it is said at
    once that it is the login, and for a pattern of topics too."""
    good = login(kafka, "somebody", "READ", topic=topic.name)
    bad = good | {"sasl.password": WRONG}
    others = [good | {"sasl.username": "stranger"}, bad | {"sasl.mechanism": "PLAIN"}]
    for settings in (bad, *others):
        said = refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, connect(settings))
        assert "refuses the login" in said and "correct user, password and sasl.mechanism" in said
    assert "supported mechanisms: SCRAM-SHA-512" in said
    spec = connect(bad, topics=None, pattern="t-.*")
    assert "refuses the login" in refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, spec)


def test_certificates(
    kafka: Kafka, ledger: Ledger, connect: Connect, stranger: Authority
) -> None:
    """A wrong authority, none, and mutual TLS without a certificate: it is said at once."""
    wrong = {"ssl.ca.location": str(stranger.certificate)}
    tls = kafka.client(Listener.TLS)
    nothing = {k: v for k, v in tls.items() if k != "ssl.ca.location"}
    for settings in (tls | wrong, nothing, kafka.client(Listener.MTLS)):
        said = refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, connect(settings))
        assert "certificate" in said and "correct security.protocol and the certificates" in said


def test_files_that_are_not_there(kafka: Kafka, ledger: Ledger, connect: Connect) -> None:
    """Which setting names the file is said."""
    for name in ("ssl.ca.location", "ssl.key.location", "ssl.certificate.location"):
        spec = connect(kafka.client(Listener.MTLS) | {name: "/nowhere/of/mine.pem"})
        assert f"{name} failed" in refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, spec)


@pytest.mark.parametrize("setting, value, words", [
    ("sasl.colour", WRONG, 'No such configuration property: "sasl.colour"'),
    ("security.protocol", WRONG, 'configuration property "security.protocol"'),
    ("sasl.mechanism", "SCRAM-MD5", "Unsupported SASL mechanism: SCRAM-MD5"),
    ("sasl.jaas.config", f"password={WRONG}", "JAAS"),
    ("ssl.key.pem", WRONG, "ssl.key.pem"),
])  # fmt: skip
def test_a_setting_that_the_client_does_not_take(
    kafka: Kafka, ledger: Ledger, connect: Connect, setting: str, value: str, words: str
) -> None:
    """Which one, in the client's words, without its value."""
    spec = connect(login(kafka, "somebody") | {setting: value})
    said = refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, spec)
    assert words in said and "librdkafka does not take" in said


@pytest.mark.rest
def test_rights(topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect) -> None:
    """Who may not see a topic is told so in plan, who may not read it in stage; it is named. Who
    may read it needs no right to a group."""
    nobody = login(kafka, "sees-nothing")
    said = refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, connect(nobody))
    assert topic.name in said and "TOPIC_AUTHORIZATION_FAILED" in said and "docs/kafka.md" in said
    sees = login(kafka, "sees", "DESCRIBE", topic=topic.name)

    def run() -> None:
        run_batch(ledger, spec, "r1", LocalEngine(), None, log=quiet)

    spec = connect(sees)
    said = str(told(TerminalError, TOLD_SECONDS_MAX, run))
    assert topic.at() in said and "TOPIC_AUTHORIZATION_FAILED" in said and "docs/kafka.md" in said
    kafka.allow("sees", "READ", topic=topic.name)
    run()
    assert settled(spec, audited=False).ids == ids(0, 10)


def test_a_topic_that_is_not_there(
    topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect
) -> None:
    """It is named. To a user without a right to it a cluster says no more than that."""
    spec = connect(kafka.client(), topics=[topic.name, "no-such-topic"])
    began = time.monotonic()
    with pytest.raises(SourceError, match="no-such-topic.*make it, or correct source.topics"):
        plan(ledger, spec, "r1")
    assert time.monotonic() - began < CERTAIN_SECONDS_MAX
    spec = connect(login(kafka, "somebody-else"), topics=["no-such-topic"])
    said = refused(TerminalError, CERTAIN_SECONDS_MAX, ledger, spec)
    assert "'no-such-topic'" in said and "make the topic" in said


@pytest.mark.rest
@pytest.mark.parametrize(
    "servers",
    ["127.0.0.1:1", pytest.param("kafka.nowhere.invalid:9092", marks=pytest.mark.proof)],
)
def test_an_address_where_no_cluster_is(ledger: Ledger, connect: Connect, servers: str) -> None:
    """A wrong port, a host that does not resolve: it is away, and may come; the address is told."""
    said = refused(
        UnavailableError, TOLD_SECONDS_MAX, ledger, connect({"bootstrap.servers": servers})
    )
    assert servers in said and "does not answer" in said and "correct its address" in said


@pytest.fixture
def closing() -> Iterator[str]:
    """What takes clients and closes: a load balancer whose brokers are away."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.proof
def test_behind_a_load_balancer(
    kafka: Kafka, ledger: Ledger, connect: Connect, closing: str
) -> None:
    """A connection that is closed in TLS's handshake is no certificate that is refused: it is tried
    again, as with each cluster that is away."""
    spec = connect(login(kafka, "somebody") | {"bootstrap.servers": closing})
    refused(UnavailableError, TOLD_SECONDS_MAX, ledger, spec)


@pytest.mark.proof
def test_a_broker_that_is_killed(
    topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect
) -> None:
    """Before plan, and before stage: each fails in time, and goes on once it is back."""
    spec = connect(login(kafka, "somebody", "READ", topic=topic.name))

    def run() -> object:
        return run_batch(ledger, spec, "r1", LocalEngine(), None, log=quiet)

    kafka.broker.kill()
    said = str(told(UnavailableError, TOLD_SECONDS_MAX, plan, ledger, spec, "r1"))
    assert "does not answer" in said and kafka.broker.address(Listener.SCRAM_TLS) in said
    kafka.broker.start()
    plan(ledger, spec, "r1")
    kafka.broker.kill()
    told(UnavailableError, TOLD_SECONDS_MAX, run)
    kafka.broker.start()
    run()
    assert settled(spec, audited=False).ids == ids(0, 10)


@pytest.mark.proof
def test_a_broker_that_dies_while_a_plan_measures_messages(
    topic: Topic, kafka: Kafka, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan fails in time too, and writes nothing."""
    topic.append(0, 10)
    spec = topic.spec(limits={"bytes_per_batch_max": 100})

    def dies(*place: object) -> list[int]:
        kafka.broker.kill()
        return first_sizes(*place)

    began = time.monotonic()
    with monkeypatch.context() as patched, pytest.raises(UnavailableError, match="not answer"):
        patched.setattr(claimed, "first_sizes", dies)
        plan(ledger, spec, "r1")
    assert time.monotonic() - began < TOLD_SECONDS_MAX
    kafka.broker.start()
    assert plan(ledger, spec, "r1").batch.batch_id == 1
