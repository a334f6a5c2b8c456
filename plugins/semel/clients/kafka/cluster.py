"""A cluster as a pipeline declares it: clients for it, and what their errors mean."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel import limits
from semel.clients.connection import installed
from semel.clients.kafka.connection import config_of, servers_of, without_secrets
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

ANSWER_SECONDS = 8
"""A cluster that does not answer for so long is away: errors come within ten seconds."""

_STEP_SECONDS = 0.1
"""How long one call waits before errors of the client's threads are asked for."""

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
"""The leader of a partition changes, as when a broker is started: it has another one soon."""

_AWAY = (
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE",
    "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS", "BROKER_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS", *_MOVING,
)  # fmt: skip

_GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")

_REMEDIES = {
    ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
        "restore the topic, correct its name, or let the user of the connection see it",
    ("INVALID_TRANSACTION_TIMEOUT",):
        "let transaction.max.timeout.ms of its brokers be "
        f"{limits.KAFKA_TRANSACTION_SECONDS * 1000} or more",
    ("POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "INVALID_CONFIG"):
        "make the topic by hand, as docs/kafka.md shows",
    ("UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "_UNSUPPORTED_FEATURE"):
        "its brokers are too old, or keep messages in a format that is: upgrade them",
}  # fmt: skip
"""What somebody has to change, by what the client says."""

_WAIT = {
    "socket.connection.setup.timeout.ms": 5000,
    # The first thing that a client asks of any broker waits for half of this.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 3,
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Kafka cluster, by its Airflow connection or its addresses. It goes to tasks as it is.

    It holds no secret: each process that asks looks the connection up.
    """

    connection: str | None = None
    servers: str | None = None

    def __str__(self) -> str:
        named = f"connection {self.connection!r}" if self.connection else self.servers
        return f"the Kafka cluster of {named}" if self.connection else f"Kafka at {named}"

    @property
    def address(self) -> str:
        """Canonical, without secrets: `kafka://host:port,host:port`."""
        return f"kafka://{servers_of(self._config())}"

    def _config(self) -> dict[str, Any]:
        return config_of(self.connection, self.servers)

    @contextmanager
    def consumer(self, **config: Any) -> Iterator["Consumer"]:
        """A consumer that commits nothing, for the length of a block; its errors in semel's words.

        `config`: settings of librdkafka, with `_` for `.`.
        """
        kafka = client()
        values = {"group_id": "semel", "enable_auto_commit": False, **config}
        with self._within(values) as settings:
            consumer = kafka.Consumer(settings, logger=_LOG)
            try:
                yield consumer
            except kafka.KafkaException:
                consumer.poll(0)  # Hands out what the threads of the client have met.
                raise
            finally:
                consumer.close()

    @contextmanager
    def producer(self, **config: Any) -> Iterator["Producer"]:
        """The same of a producer. What it has not sent at the end of the block is forgotten."""
        kafka = client()
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
        """The same of an admin client. Its futures raise the same errors."""
        kafka = client()
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
        """The settings of a client, and its errors as SemelErrors."""
        kafka = client()
        met: list[KafkaError] = []

        def heard(error: "KafkaError") -> None:
            """Called while a client is asked: what is raised here ends that call."""
            met.append(error)
            if _of_login(error) or _of_tls(error):
                raise kafka.KafkaException(error)

        reached = self._config()
        own = {key.replace("_", "."): value for key, value in config.items()}
        try:
            yield {**reached, **_WAIT, **own, "error_cb": heard}
        except kafka.KafkaException as error:
            # Its words may hold a setting: they are quoted in `meaning`, and nowhere else.
            said = error.args[0]
            if not isinstance(said, kafka.KafkaError):
                said = kafka.KafkaError(kafka.KafkaError._FAIL, str(error))
            raise meaning(self, said, met, reached) from None


def client() -> Any:
    """The package confluent_kafka. TerminalError: it is not installed here."""
    with installed("Kafka", "kafka"):
        import confluent_kafka
    return confluent_kafka


def answered(admin: "AdminClient", future: Future) -> Any:
    """What an admin client is answered. A refused login or certificate ends the wait at once."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return future.result(timeout=_STEP_SECONDS)
        except TimeoutError:
            admin.poll(0)
            if time.monotonic() > deadline + 1:  # The client's own bound has better words.
                codes = client().KafkaError
                raise client().KafkaException(codes(codes._TIMED_OUT)) from None


def offsets_of(
    admin: "AdminClient",
    wanted: "Mapping[TopicPartition, OffsetSpec]",
    *,
    committed: bool,
) -> "dict[TopicPartition, ListOffsetsResultInfo]":
    """One offset of each partition, all of them asked at once; `committed`: as a committed reader
    sees it. While the leader of one changes, all are asked again.
    """
    if not wanted:
        return {}
    kafka = client()
    moving = {getattr(kafka.KafkaError, name) for name in _MOVING}
    level = kafka.IsolationLevel
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        asked = admin.list_offsets(
            dict(wanted),
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=ANSWER_SECONDS,
        )
        try:
            return {part: answered(admin, future) for part, future in asked.items()}
        except kafka.KafkaException as error:
            if error.args[0].code() not in moving or time.monotonic() > deadline:
                raise
            admin.poll(_STEP_SECONDS)


def of(what: str, error: "KafkaError") -> "KafkaError":
    """The same error, that says what it is of."""
    return client().KafkaError(error.code(), f"{what}: {error.str()}", retriable=error.retriable())


def listed(admin: "AdminClient") -> dict[str, Any]:
    """All topics that the user may see, by name. Waits as `answered` does."""
    kafka = client()
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return admin.list_topics(timeout=1).topics
        except kafka.KafkaException:
            admin.poll(_STEP_SECONDS)
            if time.monotonic() > deadline:
                raise


def meaning(
    cluster: Cluster,
    error: "KafkaError",
    met: "list[KafkaError]",
    config: Mapping[str, Any] | None = None,
) -> SemelError:
    """What an error of the client says to an operator.

    `met`: what its threads have met before: why a cluster does not answer is told there alone.
    `config`: the client's settings, whose secrets the message leaves out.
    """
    codes = client().KafkaError

    def said(error: "KafkaError") -> str:
        return without_secrets(_said(error), config or {})

    if login := next((e for e in (error, *met) if _of_login(e)), None):
        return TerminalError(
            f"{cluster} refuses the login ({said(login)}); correct user, password and "
            "sasl.mechanism of its connection"
        )
    if secure := next((e for e in (error, *met) if _of_tls(e)), None):
        return TerminalError(
            f"{cluster} and this side do not agree on TLS ({said(secure)}); correct "
            "security.protocol and the certificates (ssl.*) of its connection"
        )
    if error.code() == codes._INVALID_ARG:
        return TerminalError(
            f"{cluster}: its connection has a setting that librdkafka does not take "
            f"({said(error)}); correct it"
        )
    if error.code() in {getattr(codes, name) for name in _NO_RIGHT}:
        hidden = error.code() == codes.TOPIC_AUTHORIZATION_FAILED
        return TerminalError(
            f"{cluster} does not give the user of the connection a right ({said(error)}); give it "
            "the rights that docs/kafka.md lists"
            + (", and make the topic if there is none of this name" if hidden else "")
        )
    if error.code() in {getattr(codes, name) for name in _AWAY}:
        why = next((e for e in met if e.code() in (codes._TRANSPORT, codes._RESOLVE)), error)
        return UnavailableError(
            f"{cluster} does not answer ({said(why)}); start it, or correct its address or "
            "security.protocol"
        )
    if error.code() in {getattr(codes, name) for name in _GONE}:
        return UnavailableError(
            f"{cluster}: messages that were to be read were deleted meanwhile ({said(error)}); run "
            "this again"
        )
    for names, remedy in _REMEDIES.items():
        if error.code() in {getattr(codes, name) for name in names}:
            return TerminalError(f"{cluster}: {said(error)}; {remedy}")
    # What one producer, or one transaction, cannot do any more the next one may.
    if error.retriable() or error.fatal() or error.txn_requires_abort():
        return UnavailableError(f"{cluster}: {said(error)}; run this again")
    return TerminalError(f"{cluster}: {said(error)}; the logs of its brokers may say more")


_PASSING = ("transport failure", "timed out", "disconnected")
"""A login that fails with these words was cut off, and not refused."""

_REFUSED = ("certificate", "alert unknown ca", "alert handshake failure", "wrong version number")
"""Words about TLS for what does not pass. A broken connection has others: a load balancer in front
of a broker that is away takes a client, and ends the connection in the middle of the handshake."""


def _of_login(error: "KafkaError") -> bool:
    """Whether a login is refused."""
    codes, words = client().KafkaError, error.str().lower()
    of_login = error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED)
    return of_login and not any(word in words for word in _PASSING)


def _of_tls(error: "KafkaError") -> bool:
    """Whether TLS is refused. A refusal by the other side comes as a broken connection."""
    codes, words = client().KafkaError, error.str().lower()
    of_tls = error.code() == codes._SSL or (error.code() == codes._TRANSPORT and "ssl " in words)
    return of_tls and any(word in words for word in _REFUSED)


def _said(error: "KafkaError") -> str:
    """What the client says, on one line: the same each time."""
    words = re.sub(r"\(after \d+ms in state \w+\)", "", error.str())
    return " ".join(f"{error.name()}: {words}".split())[:300]
