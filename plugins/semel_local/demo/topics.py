"""The demo's own producers and consumer. They use confluent-kafka directly, without semel.

The producer of the flights sends at least once, like the demo's files: it repeats flights, and some
values are broken. A message's timestamp is the scheduled departure of its flight, also if it is
sent again a day later. Times on the ticket are treated as UTC.

Another producer aborts a transaction among them.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from zlib import crc32

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from semel.errors import TerminalError, UnavailableError
from semel_local.demo import flights

TOPIC = "flights"
PARTITIONS = 3
"""Partitions of the topic. A flight's carrier determines its partition."""

ABORTED = 50
"""Messages of the aborted transaction."""

NOBODY = "ZZ"
"""The carrier of the aborted flights, which do not exist: no committed reader may return one."""

ANSWER_SECONDS = 30

_DAY = "sent"
"""The header with the day in whose file a message belongs."""

Sent = Counter[tuple[date, int]]
"""The number of messages in the topic, by day and partition. They are the first ones of the day."""


class DemoTopics:
    """Producers and consumers of one cluster (HOST:PORT)."""

    def __init__(self, servers: str) -> None:
        self._servers = {"bootstrap.servers": servers, "log_level": 0}

    def make(self) -> None:
        """Create the topic of the flights, unless it exists."""
        with _unavailable_on_error():
            admin = AdminClient(self._servers)
            [future] = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
            try:
                future.result(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def count_sent(self) -> Sent:
        """Count the messages in the topic. A killed demo may have sent a part of a day."""
        sent: Sent = Counter()
        for message in self.drain(TOPIC):
            headers = dict(message.headers() or ())
            if _DAY in headers:
                sent[date.fromisoformat(headers[_DAY].decode()), message.partition()] += 1
        return sent

    def send(self, days: Sequence[date], sent: Sent) -> int:
        """Send the messages of `days` that are not in `sent`. Returns their number."""
        to_skip, count = Counter(sent), 0
        with _unavailable_on_error():
            producer = Producer(
                {**self._servers, "enable.idempotence": True, "compression.type": "lz4"}
            )
            for day in days:
                for line in flights.lines_of(day)[0]:
                    place = _place(line.flight)
                    if to_skip[day, place]:
                        to_skip[day, place] -= 1
                        continue
                    _produce(producer, line.flight, line.raw, place, day)
                    count += 1
                _flush(producer)
        return count

    def abort(self, day: date) -> None:
        """Send messages of flights that do not exist, in a transaction, and abort it."""
        with _unavailable_on_error():
            producer = Producer({**self._servers, "transactional.id": "semel-demo"})
            producer.init_transactions(ANSWER_SECONDS)
            producer.begin_transaction()
            for line in flights.lines_of(day)[0][:ABORTED]:
                flight = line.flight | {"carrier": NOBODY}
                _produce(producer, flight, flights.json_of(flight), _place(flight), day)
            _flush(producer)  # The broker now has them, and readers must not return them.
            producer.abort_transaction(ANSWER_SECONDS)

    def drain(self, topic: str) -> Iterator[Message]:
        """All messages of a topic that a committed reader sees now.

        Raises TerminalError if there is no such topic, UnavailableError if the broker does not
        answer.
        """
        settings = {
            **self._servers, "group.id": "semel-demo", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True,
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10,
        }  # fmt: skip
        with _unavailable_on_error():
            consumer = Consumer(settings)
            try:
                metadata = consumer.list_topics(topic, ANSWER_SECONDS).topics[topic]
                if metadata.error:
                    why = metadata.error.str()
                    raise TerminalError(f"the broker does not have the topic {topic!r}: {why}")
                # From 0: a query of the first offset takes a second, and the topic deletes nothing.
                consumer.assign([TopicPartition(topic, n, 0) for n in metadata.partitions])
                yield from _to_ends(consumer, len(metadata.partitions))
            finally:
                consumer.close()


def _to_ends(consumer: Consumer, partitions: int) -> Iterator[Message]:
    """The messages up to the ends of this many partitions."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while partitions:
        messages = consumer.consume(10_000, timeout=0.05)
        for message in messages:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions -= 1
            else:
                raise KafkaException(error)
        if messages:
            deadline = time.monotonic() + ANSWER_SECONDS
        elif time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _produce(
    producer: Producer, flight: flights.Flight, value: bytes, partition: int, day: date
) -> None:
    names = ("year", "month", "day", "hour", "minute")
    departs = datetime(*(flight[name] for name in names), tzinfo=UTC)
    producer.produce(
        TOPIC, value, flight["carrier"], partition, timestamp=int(departs.timestamp() * 1000),
        headers={_DAY: day.isoformat()},
    )  # fmt: skip


def _place(flight: flights.Flight) -> int:
    """The partition of a flight."""
    return crc32(flight["carrier"].encode()) % PARTITIONS


def _flush(producer: Producer) -> None:
    """Wait until the broker has acknowledged all messages."""
    if producer.flush(ANSWER_SECONDS):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@contextmanager
def _unavailable_on_error() -> Iterator[None]:
    """Raises UnavailableError for the client's errors."""
    try:
        yield
    except KafkaException as error:
        raise UnavailableError(
            f"the demo's Kafka broker: {error.args[0].str()}", next="semel status"
        ) from error
