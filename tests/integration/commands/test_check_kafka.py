"""`semel check` of a pipeline over topics: the driver reads a message of each, and executors do; of
Avro values, both ask the registry too."""

import json
import sys
import time
from collections.abc import Callable

import pytest

from fixtures.kafka.broker import Kafka
from fixtures.kafka.registry import AvroTopic, answering, connection
from fixtures.kafka.server import Listener
from fixtures.kafka.topics import Topic
from test_check import Machine, machine, wrong  # noqa: F401

PASSWORD = "pa55 of nobody's business"
VARIABLE = "AIRFLOW_CONN_EVENTS"


class Reader:
    """A pipeline over a topic and one without messages, by a user who may read both, in the driver
    and on executors."""

    def __init__(self, machine: Machine, topic: Topic, kafka: Kafka) -> None:
        self.machine, self.topic, self.kafka = machine, topic, kafka
        self.empty = kafka.topic()
        topic.append(0, 5)
        kafka.user("checks", PASSWORD)
        for name in (topic.name, self.empty):
            kafka.allow("checks", "READ", topic=name)
        login = {"mechanism": "SCRAM-SHA-256", "username": "checks", "password": PASSWORD}
        more = {f"sasl_{name}": value for name, value in login.items()}
        self.settings = kafka.client(Listener.SCRAM_TLS, **more)
        self.connect(self.settings)
        self.take([topic.name, self.empty])

    def take(self, topics: list[str]) -> None:
        source = {"bootstrap_servers": None, "connection": "events", "topics": topics}
        self.machine.spec = self.topic.spec(source=source)

    def connect(self, settings: dict[str, str], *, there: bool = True) -> None:
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        self.machine.patch.setenv(VARIABLE, text)
        if there:
            self.machine.in_workers(VARIABLE, text)


@pytest.fixture
def reader(machine: Machine, topic: Topic, kafka: Kafka) -> Reader:  # noqa: F811
    return Reader(machine, topic, kafka)


@pytest.mark.rest
def test_topics_that_can_be_read(reader: Reader) -> None:
    """Both ends have read each topic, also the one without messages; no password is told."""
    found = reader.machine.look()
    assert found.ok, wrong(found)
    told = {one.name: one.detail for one in found.checks}
    assert told["source"].startswith("2 partitions of 2 topics of events in the Kafka cluster")
    assert told["topics from executors"] == "2 topics read"
    assert PASSWORD not in repr(found)


def wrong_password(r: Reader) -> None:
    r.connect(r.settings | {"sasl.password": "hidden"})


def unknown_topic(r: Reader) -> None:
    r.take([r.topic.name, "no-such-topic"])


def no_right(r: Reader) -> None:
    r.take([r.kafka.topic("not-for-checks")])


def no_right_to_read(r: Reader) -> None:
    name = r.kafka.topic()
    r.kafka.allow("checks", "DESCRIBE", topic=name)
    r.take([name])


def broker_away(r: Reader) -> None:
    r.kafka.broker.kill()


def no_package(r: Reader) -> None:
    r.machine.patch.setitem(sys.modules, "confluent_kafka", None)


def no_connection(r: Reader) -> None:
    r.machine.patch.setenv(VARIABLE, "")


def no_package_there(r: Reader) -> None:
    r.machine.code_in_workers("import sys\nsys.modules['confluent_kafka'] = None\n")


def no_connection_there(r: Reader) -> None:
    r.machine.in_workers(VARIABLE, "")


def another_password_there(r: Reader) -> None:
    r.connect(r.settings | {"sasl.password": "hidden"})
    r.connect(r.settings, there=False)


THERE = "topics from executors"


@pytest.mark.rest
@pytest.mark.parametrize(("harm", "name", "words"), [
    (wrong_password, "source", "refuses the login"),
    (unknown_topic, "source", "no-such-topic"),
    (no_right, "source", "docs/kafka.md lists"),
    (no_right_to_read, "source", "docs/kafka.md lists"),
    (broker_away, "source", "does not answer"),
    (no_package, "source", "pip install 'semel[kafka]'"),
    (no_connection, "source", f"export {VARIABLE}"),
    (no_package_there, THERE, "pip install 'semel[kafka]'"),
    (no_connection_there, THERE, f"export {VARIABLE}"),
    (another_password_there, THERE, "refuses the login"),
])  # fmt: skip
def test_what_is_wrong_and_its_remedy(
    reader: Reader, harm: Callable[[Reader], None], name: str, words: str
) -> None:
    """It is found under its name, where it is, with the remedy, without a password; and in time."""
    harm(reader)
    began = time.monotonic()
    found = reader.machine.look()
    assert time.monotonic() - began < 60  # Spark starts in it; the clients' own bounds are minutes.
    assert {one.name for one in wrong(found)} == {name}, wrong(found)
    [one] = wrong(found)
    assert words in f"{one.detail} {one.remedy}"
    assert PASSWORD not in repr(found) and "hidden" not in repr(found)


@pytest.mark.proof
def test_both_ends_ask_the_registry(machine: Machine, avro: AvroTopic) -> None:  # noqa: F811
    """For a schema that a message names. What is wrong is found where it is, with the remedy and
    without the password."""
    variable = "AIRFLOW_CONN_SCHEMAS"

    def told(name: str, words: str) -> None:
        found = machine.look()
        assert {one.name for one in wrong(found)} == {name}, wrong(found)
        [one] = wrong(found)
        assert words in f"{one.detail} {one.remedy}"
        assert PASSWORD not in repr(found)

    machine.patch.setenv(variable, connection(avro.url, PASSWORD))
    machine.in_workers(variable, connection(avro.url, PASSWORD))
    machine.spec = avro.spec(source={"registry": "schemas"})
    assert machine.look().ok  # A registry is asked also where no message is.
    avro.append(0, 5)
    found = machine.look()
    assert found.ok, wrong(found)
    assert PASSWORD not in repr(found)
    detail = next(one.detail for one in found.checks if one.name == "source")
    assert "the Schema Registry of connection 'schemas' answers" in detail
    with answering() as answers:
        machine.patch.setenv(variable, connection(answers.url, PASSWORD))
        told("source", "which a message of")
        answers.status = 401
        told("source", "refuses the login")
        machine.patch.setenv(variable, connection(avro.url, PASSWORD))
        machine.in_workers(variable, connection(answers.url, PASSWORD))
        told(THERE, "refuses the login")
        machine.in_workers(variable, "")
        told(THERE, f"export {variable}")
