"""Whatever the clients of Kafka and of a registry raise becomes an error of semel's, which says
what to do next."""

import json
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from semel.clients.kafka.cluster import Cluster, translate_error
from semel.clients.kafka.registry import Registry
from semel.errors import RetryableError, SemelError, TerminalError

CLUSTER = Cluster(servers="broker:9092")
CODES = {
    name: code for name in dir(KafkaError)
    if name.lstrip("_").isupper() and isinstance(code := getattr(KafkaError, name), int) and code
}  # fmt: skip


def of(name: str, **more: bool) -> SemelError:
    return translate_error(CLUSTER, KafkaError(CODES[name], "said so", **more), [])


def test_each_code_of_the_client() -> None:
    """It names the cluster, says what was wrong, and then what to do."""
    for name in CODES:
        found = of(name)
        fact, _, action = str(found).partition(". ")
        assert isinstance(found, RetryableError | TerminalError)
        assert "Kafka at broker:9092" in fact and "said so" in fact and action, (name, found)


@pytest.mark.parametrize("mark", ["retriable", "fatal", "txn_requires_abort"])
def test_what_passes_may_be_tried_again(mark: str) -> None:
    """Another producer, or another transaction, may do what this one cannot any more."""
    assert isinstance(of("UNKNOWN_PRODUCER_ID", **{mark: True}), RetryableError)
    assert isinstance(of("UNKNOWN_PRODUCER_ID"), TerminalError)


def test_what_stays_wrong_is_not_tried_again() -> None:
    """Also where the client calls it fatal for its producer."""
    assert isinstance(of("UNSUPPORTED_VERSION", fatal=True), TerminalError)
    found = of("INVALID_TRANSACTION_TIMEOUT", fatal=True)
    assert isinstance(found, TerminalError) and "transaction.max.timeout.ms" in str(found)


@pytest.mark.parametrize("servers", [9092, 1.5, True])
def test_servers_that_are_a_number(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose bootstrap.servers is no text is refused, whatever is asked of it."""
    extra = {"bootstrap.servers": servers}
    text = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", text)
    with pytest.raises(TerminalError, match=r"'events'.*bootstrap\.servers.*Correct it"):
        _ = Cluster(connection="events").address


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_an_error_with_words_alone(kind: str) -> None:
    """The client may raise words where it mostly raises a code."""
    said = pytest.raises(SemelError, match=r"Kafka at broker:9092: .*out of tune.*\. ")
    with said, getattr(CLUSTER, kind)():
        raise KafkaException("out of tune")


def test_an_answer_that_nests_too_deep() -> None:
    """A registry's answer that no reader of JSON takes is that of no registry."""
    pytest.importorskip("fastavro")
    registry = Registry(declared="http://schemas:8081")
    with pytest.raises(TerminalError, match="does not answer as a Schema Registry"):
        registry._request(lambda: json.loads("[" * 100_000))


def test_the_client_is_as_these_tests_take_it() -> None:
    """All of its codes are looked at, those of brokers and its own."""
    assert len(CODES) > 150, confluent_kafka.__version__
