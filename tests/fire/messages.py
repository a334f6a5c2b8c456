"""Writes messages under fire, as producers do, until SIGTERM: `messages.py SERVERS SEED TOPIC`.

A producer that knows nothing of the one before sends some a second time; transactions are
committed, aborted and sent again, or left open until they are committed late or time out. What
became of them needs no word of its own: it can be read from the topic.
"""

import logging
import random
import sys
import time
from datetime import UTC, datetime

from confluent_kafka import KafkaException, Producer

from beside import Going
from producer import RECORDS_PER_SECOND, Lines
from topics import PARTITIONS

KINDS = {"plain": 12, "committed": 4, "aborted": 2, "late": 1, "left": 1}
"""How often each kind comes: without a transaction, or as that one ends."""

OPEN_SECONDS = 8
"""After so long the broker aborts a transaction that was left open."""

LATE_SECONDS = 4
"""So long after its messages a late transaction is committed."""

ANSWER_SECONDS = 20

_LOG = logging.getLogger("messages")
_LOG.addHandler(logging.NullHandler())  # That a killed broker is away is known.
_LOG.propagate = False


class Messages:
    """Producers of one topic."""

    def __init__(self, servers: str, seed: int, topic: str) -> None:
        self.topic, self.dice = topic, random.Random(seed)
        self.settings = {"bootstrap.servers": servers, "compression.type": "lz4"}
        # After a lost answer it sends again what is there already.
        self.plain = Producer({**self.settings, "enable.idempotence": False}, logger=_LOG)
        self.lines, self.never = Lines("m", self.dice), Lines("x", self.dice)
        self.transactions = 0
        self.late: list[tuple[float, Producer]] = []

    def second(self) -> None:
        """What is sent in one second."""
        [kind] = self.dice.choices(list(KINDS), list(KINDS.values()))
        lines = self.never if kind == "left" else self.lines
        count = self.dice.randrange(2 * RECORDS_PER_SECOND)
        values = lines.some(count, datetime.now(UTC)).splitlines()
        if kind == "plain":
            self._send(self.plain, values)
            self.plain.poll(0)
        elif kind == "aborted":
            self._transact(values, "aborted")
            self._transact(values, "committed")
        else:
            self._transact(values, kind)
        self._commit_late(time.monotonic())

    def end(self) -> None:
        """Commit what is late, and wait until what was sent without a transaction has arrived."""
        self._commit_late(float("inf"))
        if left := self.plain.flush(ANSWER_SECONDS):
            raise TimeoutError(f"{left} messages were not acknowledged in {ANSWER_SECONDS} s")

    def _transact(self, values: list[bytes], kind: str) -> None:
        self.transactions += 1
        producer = Producer(
            {
                **self.settings,
                "transactional.id": f"fire-{self.transactions}",
                "transaction.timeout.ms": OPEN_SECONDS * 1000,
            },
            logger=_LOG,
        )
        try:
            producer.init_transactions(ANSWER_SECONDS)
            producer.begin_transaction()
            self._send(producer, values)
            producer.flush(ANSWER_SECONDS)
            if kind == "committed":
                producer.commit_transaction(ANSWER_SECONDS)
            elif kind == "aborted":
                producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException:
            return  # The broker was killed: it landed, or it times out.
        if kind == "late":
            self.late.append((time.monotonic() + LATE_SECONDS, producer))

    def _commit_late(self, until: float) -> None:
        due = [producer for when, producer in self.late if when <= until]
        self.late = [(when, producer) for when, producer in self.late if when > until]
        for producer in due:
            try:
                producer.commit_transaction(ANSWER_SECONDS)
            except KafkaException:
                continue  # The broker was away for too long, and has aborted it.

    def _send(self, producer: Producer, values: list[bytes]) -> None:
        for value in values:
            producer.produce(self.topic, value, partition=self.dice.randrange(PARTITIONS))


def main() -> None:
    """Until SIGTERM; no transaction is open for long then."""
    servers, seed, topic = sys.argv[1:]
    messages = Messages(servers, int(seed), topic)
    going = Going()
    while going:
        messages.second()
        time.sleep(1)
    messages.end()


if __name__ == "__main__":
    main()
