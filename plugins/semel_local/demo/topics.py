"""The demo's own producers and consumer: confluent-kafka as anybody uses it, nothing of semel's.

The producer of the flights sends at least once, as the demo's files are written: it repeats
flights, and some values are broken. A message bears the scheduled departure of its flight as
timestamp, also where it is sent again a day later; what is on the ticket counts as UTC.

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

from semel_local.demo import flights
from semel.errors import TerminalError, UnavailableError

TOPIC = "flights"
PARTITIONS = 3
"""By carrier."""

ABORTED = 50
"""Messages of a transaction that is aborted."""

NOBODY = "ZZ"
"""The carrier of the flights in it, which never flew: a reader that gives one has read too much."""

ANSWER_SECONDS = 30

_DAY = "sent"
"""The header that says with which day's messages one was sent."""

Sent = Counter[tuple[date, int]]
"""How many messages of a day's are in a partition: the first ones of those that belong there."""


class DemoTopics:
    """Producers and consumers of one cluster, by its HOST:PORT."""

    def __init__(self, servers: str) -> None:
        self._servers = {"bootstrap.servers": servers, "log_level": 0}

    def make(self) -> None:
        """Make the topic of the flights, where there is none."""
        with _told():
            admin = AdminClient(self._servers)
            [made] = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
            try:
                made.result(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def sent(self) -> Sent:
        """What is there of each day's messages: a demo that died may have sent a part of them."""
        there: Sent = Counter()
        for message in self.drain(TOPIC):
            headers = dict(message.headers() or ())
            if _DAY in headers:
                there[date.fromisoformat(headers[_DAY].decode()), message.partition()] += 1
        return there

    def send(self, days: Sequence[date], there: Sent) -> int:
        """Send what is not there yet of the messages of some days. Returns how many these are."""
        left, count = Counter(there), 0
        with _told():
            producer = Producer(
                {**self._servers, "enable.idempotence": True, "compression.type": "lz4"}
            )
            for day in days:
                for line in flights.lines_of(day)[0]:
                    place = _place(line.flight)
                    if left[day, place]:
                        left[day, place] -= 1
                        continue
                    _produce(producer, line.flight, line.raw, place, day)
                    count += 1
                _flush(producer)
        return count

    def abort(self, day: date) -> None:
        """Send messages of flights that never flew, in a transaction, and abort it."""
        with _told():
            producer = Producer({**self._servers, "transactional.id": "semel-demo"})
            producer.init_transactions(ANSWER_SECONDS)
            producer.begin_transaction()
            for line in flights.lines_of(day)[0][:ABORTED]:
                nobody = line.flight | {"carrier": NOBODY}
                _produce(producer, nobody, flights.json_of(nobody), _place(nobody), day)
            _flush(producer)  # They are in the topic, and nobody may read them.
            producer.abort_transaction(ANSWER_SECONDS)

    def drain(self, topic: str) -> Iterator[Message]:
        """All messages of a topic that a committed reader sees now.

        TerminalError: there is no such topic. UnavailableError: the broker does not answer.
        """
        wanted = {
            **self._servers, "group.id": "semel-demo", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True,
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10,
        }  # fmt: skip
        with _told():
            consumer = Consumer(wanted)
            try:
                found = consumer.list_topics(topic, ANSWER_SECONDS).topics[topic]
                if found.error:
                    raise TerminalError(f"the broker has no topic {topic!r}: {found.error.str()}")
                # From 0: to ask for the first offset takes a second, and nothing is ever deleted.
                consumer.assign([TopicPartition(topic, n, 0) for n in found.partitions])
                yield from _to_ends(consumer, len(found.partitions))
            finally:
                consumer.close()


def _to_ends(consumer: Consumer, left: int) -> Iterator[Message]:
    """The messages up to the ends of so many partitions."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while left:
        found = consumer.consume(10_000, timeout=0.05)
        for message in found:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                left -= 1
            else:
                raise KafkaException(error)
        if found:
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
def _told() -> Iterator[None]:
    """What the client's errors say to a user."""
    try:
        yield
    except KafkaException as error:
        raise UnavailableError(
            f"the demo's Kafka broker: {error.args[0].str()}", next="semel status"
        ) from error
