"""Open clients for a declared cluster, and translate their errors."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel import limits
from semel.clients.connection import require_package
from semel.clients.kafka.connection import cluster_settings, remove_secrets, sorted_servers
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

ANSWER_SECONDS = 8
"""Longest wait for a cluster's answer, so that an error comes within ten seconds."""

_STEP_SECONDS = 0.1
"""How often a waiting call polls for errors of the client's threads."""

_LOG = logging.getLogger("semel.kafka")  # librdkafka's own lines, which go to stderr otherwise.
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False

_NO_RIGHT = (
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)  # fmt: skip
_MOVING = (
    "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "_NOENT",
)  # fmt: skip
"""A partition lacks a leader for a moment, for example while a broker restarts."""

_AWAY = (
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE",
    "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS", "BROKER_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS", *_MOVING,
)  # fmt: skip

_DELETED = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")

_REMEDIES = {
    ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
        "Restore the topic, correct its name, or grant the user of the connection Describe on it",
    ("INVALID_TRANSACTION_TIMEOUT",):
        "Set transaction.max.timeout.ms of its brokers to "
        f"{limits.KAFKA_TRANSACTION_SECONDS * 1000} or more",
    ("POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "INVALID_CONFIG"):
        "Create the topic by hand, as docs/kafka.md shows",
    ("UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "_UNSUPPORTED_FEATURE"):
        "Upgrade its brokers or their message format, which is too old",
}  # fmt: skip
"""The operator's remedy, by error codes."""

_WAIT = {
    "socket.connection.setup.timeout.ms": 5000,
    # A client's first request to any broker waits for half of this.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 3,
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Kafka cluster, by its Airflow connection or its addresses.

    semel sends it to tasks. It does not hold secrets: each process looks the connection up.
    """

    connection: str | None = None
    servers: str | None = None

    def __str__(self) -> str:
        named = f"connection {self.connection!r}" if self.connection else self.servers
        return f"the Kafka cluster of {named}" if self.connection else f"Kafka at {named}"

    @property
    def address(self) -> str:
        """`kafka://host:port,host:port`: sorted, without secrets."""
        return f"kafka://{sorted_servers(self._config())}"

    def _config(self) -> dict[str, Any]:
        return cluster_settings(self.connection, self.servers)

    @contextmanager
    def consumer(self, **config: Any) -> Iterator["Consumer"]:
        """A consumer for one block, without auto-commit. Raises SemelErrors.

        `config`: settings of librdkafka, with `_` for `.`.
        """
        kafka = kafka_package()
        values = {"group_id": "semel", "enable_auto_commit": False, **config}
        with self._within(values) as settings:
            consumer = kafka.Consumer(settings, logger=_LOG)
            try:
                yield consumer
            except kafka.KafkaException:
                consumer.poll(0)  # Reports errors of the client's threads to `error_cb`.
                raise
            finally:
                consumer.close()

    @contextmanager
    def producer(self, **config: Any) -> Iterator["Producer"]:
        """A producer for one block. At its end semel discards unsent messages."""
        kafka = kafka_package()
        with self._within(config) as settings:
            producer = kafka.Producer(settings, logger=_LOG)
            try:
                yield producer
            except kafka.KafkaException:
                producer.poll(0)
                raise
            finally:
                producer.purge()

    @contextmanager
    def admin(self) -> Iterator["AdminClient"]:
        """An admin client for one block. Its futures raise SemelErrors, too."""
        kafka = kafka_package()
        from confluent_kafka.admin import AdminClient

        with self._within({}) as settings:
            admin = AdminClient(settings, logger=_LOG)
            try:
                yield admin
            except kafka.KafkaException:
                admin.poll(0)
                raise

    @contextmanager
    def _within(self, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Settings for a client, whose errors within the block become SemelErrors."""
        kafka = kafka_package()
        earlier_errors: list[KafkaError] = []

        def record_error(error: "KafkaError") -> None:
            """The client calls this during a poll. An exception ends the polling call."""
            earlier_errors.append(error)
            if _is_refused_login(error) or _is_refused_tls(error):
                raise kafka.KafkaException(error)

        connection = self._config()
        options = {key.replace("_", "."): value for key, value in config.items()}
        try:
            yield {**connection, **_WAIT, **options, "error_cb": record_error}
        except kafka.KafkaException as error:
            # The text may contain a secret setting. Only `translate_error` quotes it.
            kafka_error = error.args[0]
            if not isinstance(kafka_error, kafka.KafkaError):
                kafka_error = kafka.KafkaError(kafka.KafkaError._FAIL, str(error))
            raise translate_error(self, kafka_error, earlier_errors, connection) from None


def kafka_package() -> Any:
    """The package confluent_kafka. Raises TerminalError if it is not installed."""
    with require_package("Kafka", "kafka"):
        import confluent_kafka
    return confluent_kafka


def await_answer(admin: "AdminClient", future: Future) -> Any:
    """The result of an admin client's future. A refused login or certificate ends the wait."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return future.result(timeout=_STEP_SECONDS)
        except TimeoutError:
            admin.poll(0)
            if time.monotonic() > deadline + 1:  # The client's own timeout has a better message.
                codes = kafka_package().KafkaError
                raise kafka_package().KafkaException(codes(codes._TIMED_OUT)) from None


def query_offsets(
    admin: "AdminClient",
    wanted: "Mapping[TopicPartition, OffsetSpec]",
    *,
    committed: bool,
) -> "dict[TopicPartition, ListOffsetsResultInfo]":
    """Query one offset of each partition in one request, and again while a leader changes.

    `committed`: as a reader with isolation level read_committed sees it.
    """
    if not wanted:
        return {}
    kafka = kafka_package()
    moving = {getattr(kafka.KafkaError, name) for name in _MOVING}
    level = kafka.IsolationLevel
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        futures = admin.list_offsets(
            dict(wanted),
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=ANSWER_SECONDS,
        )
        try:
            return {part: await_answer(admin, future) for part, future in futures.items()}
        except kafka.KafkaException as error:
            if error.args[0].code() not in moving or time.monotonic() > deadline:
                raise
            admin.poll(_STEP_SECONDS)


def prefix_error(thing: str, error: "KafkaError") -> "KafkaError":
    """The same error, with the name of a topic or partition before its text."""
    text = f"{thing}: {error.str()}"
    return kafka_package().KafkaError(error.code(), text, retriable=error.retriable())


def query_topics(admin: "AdminClient") -> dict[str, Any]:
    """All topics that the user may see, by name. Waits as `await_answer` does."""
    kafka = kafka_package()
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return admin.list_topics(timeout=1).topics
        except kafka.KafkaException:
            admin.poll(_STEP_SECONDS)
            if time.monotonic() > deadline:
                raise


def translate_error(
    cluster: Cluster,
    error: "KafkaError",
    earlier_errors: "list[KafkaError]",
    config: Mapping[str, Any] | None = None,
) -> SemelError:
    """Translate an error of the client for an operator.

    `earlier_errors`: from the client's threads; only they say why a cluster does not answer.
    `config`: the client's settings. The message leaves their secrets out.
    """
    codes = kafka_package().KafkaError

    def text(error: "KafkaError") -> str:
        return remove_secrets(_error_text(error), config or {})

    if login := next((e for e in (error, *earlier_errors) if _is_refused_login(e)), None):
        return TerminalError(
            f"{cluster} refuses the login ({text(login)}). Correct user, password and "
            "sasl.mechanism of its connection"
        )
    if secure := next((e for e in (error, *earlier_errors) if _is_refused_tls(e)), None):
        return TerminalError(
            f"{cluster} and semel do not agree on TLS ({text(secure)}). Correct "
            "security.protocol and the certificates (ssl.*) of its connection"
        )
    if error.code() == codes._INVALID_ARG:
        return TerminalError(
            f"{cluster}: its connection has a setting that librdkafka does not accept "
            f"({text(error)}). Correct it"
        )
    if error.code() in {getattr(codes, name) for name in _NO_RIGHT}:
        hidden = error.code() == codes.TOPIC_AUTHORIZATION_FAILED
        return TerminalError(
            f"{cluster}: the user of the connection lacks a right ({text(error)}). Grant it "
            "the rights that docs/kafka.md lists"
            + (", and create the topic if it does not exist" if hidden else "")
        )
    if error.code() in {getattr(codes, name) for name in _AWAY}:
        connecting = (codes._TRANSPORT, codes._RESOLVE)
        cause = next((e for e in earlier_errors if e.code() in connecting), error)
        return UnavailableError(
            f"{cluster} does not answer ({text(cause)}). Start it, or correct its address or "
            "security.protocol"
        )
    if error.code() in {getattr(codes, name) for name in _DELETED}:
        return UnavailableError(
            f"{cluster} deleted messages while semel was about to read them ({text(error)}). Run "
            "this again"
        )
    for names, remedy in _REMEDIES.items():
        if error.code() in {getattr(codes, name) for name in names}:
            return TerminalError(f"{cluster}: {text(error)}. {remedy}")
    # The next attempt has another producer and another transaction.
    if error.retriable() or error.fatal() or error.txn_requires_abort():
        return UnavailableError(f"{cluster}: {text(error)}. Run this again")
    return TerminalError(f"{cluster}: {text(error)}. See the logs of its brokers")


_PASSING = ("transport failure", "timed out", "disconnected")
"""The text of a login that failed because the connection broke, not because of its password."""

_REFUSED = ("certificate", "alert unknown ca", "alert handshake failure", "wrong version number")
"""The text of a refused TLS handshake. A load balancer in front of a stopped broker accepts a
client and breaks the connection during the handshake: that error has another text."""


def _is_refused_login(error: "KafkaError") -> bool:
    codes, words = kafka_package().KafkaError, error.str().lower()
    of_login = error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED)
    return of_login and not any(word in words for word in _PASSING)


def _is_refused_tls(error: "KafkaError") -> bool:
    """True if either side refuses TLS. A broker refuses it by breaking the connection."""
    codes, words = kafka_package().KafkaError, error.str().lower()
    of_tls = error.code() == codes._SSL or (error.code() == codes._TRANSPORT and "ssl " in words)
    return of_tls and any(word in words for word in _REFUSED)


def _error_text(error: "KafkaError") -> str:
    """The client's message on one line, without times, so that it is the same each time."""
    words = re.sub(r"\(after \d+ms in state \w+\)", "", error.str())
    return " ".join(f"{error.name()}: {words}".split())[:300]
