"""A real Kafka broker for tests: one for each worker, started when the first test asks for it.

Helpers make topics, write to them, and read them by clients that have nothing of semel. A test may
kill the broker: the next one finds it started again. Maven fetches it once into .semel/kafka/.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fix_certificates import Authority
from fix_wait import wait_for
from semel.errors import SemelError
from semel.stack import kafka as stack_kafka
from semel.stack.kafka import Broker, Listener, Tls

FETCHED = Path(__file__).resolve().parent.parent / ".semel" / "kafka"

SECONDS_MAX = 60
"""Bound of each wait for the broker, which mostly answers within milliseconds."""

SETTINGS = {
    # What is over its retention, or superseded under a key, goes within a second.
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For servers that live for minutes."""

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "200",
    "delete.retention.ms": "0",
}
"""For a topic that keeps the last record of each key. The newest segment is left as it is."""

_QUIET = {"log_level": 0}
"""librdkafka would say on standard error that a killed broker is away, also after the test."""

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is produced. A value of None is a tombstone; without a timestamp it is now."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True, kw_only=True)
class Read:
    """What was read, and where it lay."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Kafka:
    """The broker, and what a test does with it by the listener PLAIN, which may do everything."""

    def __init__(self, broker: Broker, authority: Authority) -> None:
        self.broker, self.authority = broker, authority
        self.admin = AdminClient(self.client() | _QUIET)
        self._open: list[Transaction] = []  # A producer that nobody holds is closed.
        self._idle: list[Producer] = []
        self._plain: Producer | None = None

    def client(self, listener: Listener = Listener.PLAIN, **more: str) -> dict[str, str]:
        """A client's settings for one of the listeners: `more` with `_` for each `.`."""
        settings = {"bootstrap.servers": self.broker.address(listener)}
        if listener != Listener.PLAIN:
            settings["security.protocol"] = listener.protocol
        if "SSL" in listener.protocol:
            settings["ssl.ca.location"] = str(self.authority.certificate)
        return settings | {name.replace("_", "."): value for name, value in more.items()}

    def topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] = {}
    ) -> str:
        """Make a topic, of a new name when none is given. Returns its name."""
        name = name or f"t-{secrets.token_hex(6)}"
        _done(self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))]))
        self._led(name, partitions)
        return name

    def configure(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic, and wait until the broker tells it so."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _done(self.admin.incremental_alter_configs([changed]))

        def told() -> bool:
            asked = ConfigResource(ResourceType.TOPIC, topic)
            [found] = self.admin.describe_configs([asked]).values()
            return found.result(SECONDS_MAX)[name].value == value

        wait_for(told, f"{name} of {topic}", SECONDS_MAX, 0.02)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have `total` partitions."""
        _done(self.admin.create_partitions([NewPartitions(topic, total)]))
        self._led(topic, total)
        self._forget()

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker knows nothing of it."""
        _done(self.admin.delete_topics([topic]))

        def gone() -> bool:
            return topic not in self.admin.list_topics(timeout=SECONDS_MAX).topics

        wait_for(gone, "the topic's end", SECONDS_MAX, 0.02)
        self._forget()

    def _forget(self) -> None:
        """Producers know partitions as they were."""
        self._plain = None
        self._idle.clear()

    def recreate(self, topic: str, *, partitions: int = 1) -> None:
        """Delete a topic, and make another one of its name."""
        self.delete(topic)
        self.topic(topic, partitions=partitions)

    def produce(self, topic: str, records: Iterable[Record], **settings: str) -> None:
        """Write records, and wait until each is acknowledged. `settings` as in `client`."""
        if settings:
            _send(Producer(self._producing(settings)), topic, records)
            return
        self._plain = self._plain or Producer(self._producing({}))
        _send(self._plain, topic, records)

    def begin(self, topic: str, records: Iterable[Record]) -> "Transaction":
        """Write records in a transaction that stays open, and wait until each is acknowledged."""
        if not self._idle:
            made = self._producing({"transactional_id": f"x-{secrets.token_hex(6)}"})
            self._idle.append(Producer(made))
            self._idle[0].init_transactions(SECONDS_MAX)
        opened = Transaction(self._idle.pop(), self._idle)
        self._open.append(opened)
        opened.producer.begin_transaction()
        _send(opened.producer, topic, records)
        return opened

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete what lies before an offset, by partition; not even SIGKILL brings it back then."""
        wanted = [TopicPartition(topic, number, offset) for number, offset in before.items()]
        _done(self.admin.delete_records(wanted))
        data = self.broker.folder / "data"

        def lasts(number: int, offset: int) -> bool:
            # The checkpoint leaves out what the name of the first segment says.
            first = min((data / f"{topic}-{number}").glob("*.log")).stem
            kept = (data / "log-start-offset-checkpoint").read_text().splitlines()
            return int(first) == offset or f"{topic} {number} {offset}" in kept

        wait_for(lambda: all(lasts(*item) for item in before.items()), "ends", SECONDS_MAX, 0.02)

    def lose_tail(self, topic: str, share: float = 0.25) -> int:
        """Let the broker die, and come back with the first part of partition 0 alone, by its bytes:
        what it had acknowledged is lost, as on a machine that forgets. Returns where it ends now.
        """
        self.broker.kill()
        [log] = (self.broker.folder / "data" / f"{topic}-0").glob("*.log")
        os.truncate(log, int(log.stat().st_size * share))
        self.broker.start()
        return self.ends(topic)[0][1]

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one after its last."""
        consumer = Consumer(self._reading("read_uncommitted"))
        try:
            return {part.partition: _ends(consumer, part) for part in self._partitions(topic)}
        finally:
            consumer.close()

    def drain(self, topic: str, *, isolation: str = "read_committed") -> list[Read]:
        """All that a topic has now, as a consumer reads it; ordered by partition and offset."""
        consumer = Consumer(self._reading(isolation))
        parts = self._partitions(topic)
        for part in parts:
            part.offset, _ = _ends(consumer, part)
        consumer.assign(parts)
        left, found, deadline = len(parts), [], time.monotonic() + SECONDS_MAX
        try:
            while left:
                assert time.monotonic() < deadline, f"{topic} was not read within {SECONDS_MAX} s"
                for message in consumer.consume(10_000, timeout=0.01):
                    if message.error() is None:
                        found.append(_read(message))
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        left -= 1
                    else:
                        raise KafkaException(message.error())
        finally:
            consumer.close()
        return sorted(found, key=lambda read: (read.partition, read.offset))

    def compacted(self, topic: str) -> list[Read]:
        """What is left of a topic of COMPACTED once each key has one record.

        To end its last segment, a record is written whose key and value are empty.
        """
        time.sleep(int(COMPACTED["segment.ms"]) / 1000)
        self.produce(topic, [Record(value=b"", key=b"")])
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            found = self.drain(topic)
            if len({read.key for read in found}) == len(found):
                return found
            time.sleep(0.1)
            assert time.monotonic() < deadline, f"{topic} was not compacted in {SECONDS_MAX} s"

    def user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        """Let somebody log in by a password."""
        kind = getattr(ScramMechanism, mechanism.replace("-", "_"))
        wanted = ScramCredentialInfo(kind, iterations=4096)
        made = UserScramCredentialUpsertion(name, wanted, password.encode())
        _done(self.admin.alter_user_scram_credentials([made]))

    def allow(self, user: str, operation: str, *, topic: str = "", ids_of: str = "") -> None:
        """Let a user (`CN=reader` by certificate) READ, WRITE, DESCRIBE and so on a topic, or the
        transactional ids that begin so."""
        kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
        if ids_of:
            kind, pattern = ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED
        rule = AclBinding(
            kind, topic or ids_of, pattern, f"User:{user}", "*", AclOperation[operation],
            AclPermissionType.ALLOW,
        )  # fmt: skip
        _done(self.admin.create_acls([rule]))

    def _producing(self, settings: Mapping[str, str]) -> dict[str, object]:
        # Reports of what arrived cost more than sending it.
        return {"delivery.report.only.error": True, **self.client(**settings), **_QUIET}

    def _reading(self, isolation: str) -> dict[str, object]:
        return {
            **self.client(), **_QUIET, "group.id": "tests", "enable.auto.commit": False,
            "enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 10,
        }  # fmt: skip

    def _partitions(self, topic: str) -> list[TopicPartition]:
        found = self.admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic]
        if found.error:
            raise KafkaException(found.error)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def _led(self, topic: str, partitions: int) -> None:
        """Wait until the broker leads each partition: before that, clients have to ask again."""

        def led() -> bool:
            found = self.admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
            return len(found) == partitions and all(p.leader >= 0 for p in found.values())

        wait_for(led, "a leader", SECONDS_MAX, 0.02)


@dataclass(frozen=True)
class Transaction:
    """An open transaction, which commits, aborts, or is left as it is."""

    producer: Producer
    idle: list[Producer]
    """Where its producer waits for the next one: to make another takes longer than to use it."""

    def commit_transaction(self) -> None:
        self.producer.commit_transaction()
        self.idle.append(self.producer)

    def abort_transaction(self) -> None:
        self.producer.abort_transaction()
        self.idle.append(self.producer)


_STARTING = (
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)  # fmt: skip


def _ends(consumer: Consumer, part: TopicPartition) -> tuple[int, int]:
    """A broker that was started a moment ago does not lead its partitions yet."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return consumer.get_watermark_offsets(part, SECONDS_MAX, cached=False)
        except KafkaException as error:
            if error.args[0].code() not in _STARTING or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _send(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    failed: list[KafkaError] = []
    for record in records:
        words = (topic, record.value, record.key, record.partition)
        more = {"headers": record.headers, "timestamp": record.timestamp_ms or 0}
        while True:
            try:
                producer.produce(*words, on_delivery=lambda error, _: failed.append(error), **more)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(SECONDS_MAX)
    if failed:
        raise KafkaException(failed[0])
    assert not left, f"{left} records were not acknowledged within {SECONDS_MAX} s"


def _read(message: Message) -> Read:
    return Read(
        partition=message.partition(), offset=message.offset(), key=message.key(),
        value=message.value(), headers=message.headers() or [], timestamp_ms=message.timestamp()[1],
    )  # fmt: skip


def _done(futures: Mapping[object, Future]) -> None:
    for future in futures.values():
        future.result(SECONDS_MAX)


class Light(Broker):
    """A broker whose Java compiles less, and collects in one thread: half the CPU of a start."""

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
            super().start()


@contextmanager
def skipping() -> Iterator[None]:
    """Where Maven is missing, or finds no repository, the test is skipped."""
    try:
        yield
    except SemelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The broker's jars, shared by all workers and kept for later runs."""
    with skipping():
        return stack_kafka.jars(FETCHED)


@pytest.fixture(scope="session")
def broker(kafka_jars: Path, authority: Authority) -> Iterator[Broker]:
    """This worker's broker, with all listeners and with ACLs for whoever logs in."""
    folder = Path(tempfile.mkdtemp(prefix="semel-kafka-"))
    tls = Tls(own=authority.sign("broker").both, authority=authority.certificate)
    made = Light(
        folder, jars=kafka_jars, listeners=set(Listener) - {Listener.PLAIN}, tls=tls,
        authorizer=True, settings=SETTINGS,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)


@pytest.fixture
def kafka(broker: Broker, authority: Authority) -> Kafka:
    """The worker's broker, which runs; a test before this one may have killed it."""
    broker.start()
    return Kafka(broker, authority)
