"""A consumer that has nothing of semel, nor of its client: kafka-python, committed messages alone.

`consumer.py SERVERS SEED SOURCE SINK`, to SIGTERM. It reads both topics from their first offset on,
and again at random. It ends with exit code 1 at the first id that it sees twice in SINK, and at the
first message of either that it saw and that is another one now. Else it reads both to their ends.
Its first line is `looking`, its last one a JSON object with what it saw, and the ids in each topic.
"""

import json
import logging
import random
import sys
import time
from array import array
from bisect import bisect_left
from dataclasses import asdict, dataclass, field

from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from beside import BrokenPromise, Going
from kafka import KafkaConsumer, TopicPartition

POLL_MS = 500
AGAIN_SECONDS = 2.0
"""How often messages are read again that were seen long ago."""

AGAIN_RECORDS = 200
END_SECONDS_MAX = 100
"""Bound of the last pass: transactions that were left open time out first."""


@dataclass(kw_only=True)
class Seen:
    """What was read. `source` and `sink`: the ids that are there, each once."""

    passes: int = 0
    records: int = 0
    """Messages of the sink."""
    read_again: int = 0
    """Messages that were read once more, long after they had been seen."""
    broken: str = ""
    source: list[str] = field(default_factory=list)
    sink: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Partition:
    """All messages of a partition that were seen, in their order."""

    offsets: array = field(default_factory=lambda: array("q"))
    values: list[int] = field(default_factory=list)
    """A hash of each value."""


class Watch:
    """Both topics, as they were seen so far, held against what is there now."""

    def __init__(self, servers: str, source: str, sink: str) -> None:
        self.servers, self.source, self.sink = servers, source, sink
        self.seen = Seen()
        self.consumer, self.other = self._consumer(), self._consumer()
        self.there = {
            TopicPartition(topic, number): Partition()
            for topic in (source, sink)
            for number in self.consumer.partitions_for_topic(topic)
        }
        self.consumer.assign(list(self.there))
        for place in self.there:
            self.consumer.seek(place, 0)
        self.places: dict[str, tuple[int, int]] = {}
        """Partition and offset of each id of the sink."""
        self.produced: dict[str, None] = {}
        """The ids of the source's valid messages."""

    def look(self) -> bool:
        """Take what is new. Returns whether something was."""
        found = self.consumer.poll(timeout_ms=POLL_MS, max_records=10_000)
        for place, records in found.items():
            for record in records:
                self._take(place, record)
        self.seen.passes += 1
        return bool(found)

    def look_again(self, dice: random.Random) -> None:
        """Read some messages that were seen: each is there still, at its offset, and no other."""
        places = [place for place, partition in self.there.items() if partition.offsets]
        if not places:
            return
        place = dice.choice(places)
        partition = self.there[place]
        at = dice.randrange(len(partition.offsets))
        self.other.assign([place])
        self.other.seek(place, partition.offsets[at])
        found = self.other.poll(timeout_ms=POLL_MS, max_records=AGAIN_RECORDS)
        for record in found.get(place, []):
            if record.offset > partition.offsets[-1]:
                return
            at = bisect_left(partition.offsets, record.offset, at)
            if (partition.offsets[at], partition.values[at]) != _known(record):
                raise BrokenPromise(f"{place}: at offset {record.offset} is another message now")
            self.seen.read_again += 1

    def end(self) -> Seen:
        """Read both topics to their ends, with what is open now. TimeoutError."""
        deadline = time.monotonic() + END_SECONDS_MAX
        whole = self._consumer(isolation_level="read_uncommitted")
        ends = whole.end_offsets(list(self.there))
        while any(self.consumer.position(place) < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not at {ends} after {END_SECONDS_MAX} s")
            self.look()
        self.seen.source, self.seen.sink = list(self.produced), list(self.places)
        return self.seen

    def _take(self, place: TopicPartition, record: ConsumerRecord) -> None:
        partition = self.there[place]
        if partition.offsets and record.offset <= partition.offsets[-1]:
            raise BrokenPromise(f"{place}: offset {record.offset} comes a second time")
        offset, value = _known(record)
        partition.offsets.append(offset)
        partition.values.append(value)
        record_id = _id(record.value)
        if place.topic == self.source:
            if record_id:
                self.produced[record_id] = None
            return
        here = place.partition, record.offset
        before = self.places.setdefault(record_id, here)
        if before != here:
            raise BrokenPromise(f"{self.sink}: {record_id} is at {before} and at {here}")
        self.seen.records += 1

    def _consumer(self, **settings: str) -> KafkaConsumer:
        settings = {"isolation_level": "read_committed"} | settings
        return KafkaConsumer(
            bootstrap_servers=self.servers, group_id=None, enable_auto_commit=False,
            # An offset that is gone is an error, and never another place to read from.
            auto_offset_reset="none", **settings,
        )  # fmt: skip


def _known(record: ConsumerRecord) -> tuple[int, int]:
    return record.offset, hash(record.value)


def _id(value: bytes | None) -> str | None:
    """The id of a valid message."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    return found.get("id")


def main() -> int:
    """Look until SIGTERM, and then to the ends."""
    going = Going()
    # That a killed broker is away is known.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    servers, seed, source, sink = sys.argv[1:]
    dice, watch = random.Random(int(seed)), Watch(servers, source, sink)
    print("looking", flush=True)
    again = 0.0
    try:
        while going:
            watch.look()
            if time.monotonic() > again:
                watch.look_again(dice)
                again = time.monotonic() + AGAIN_SECONDS
        watch.end()
    except (BrokenPromise, TimeoutError, KafkaError) as error:
        watch.seen.broken = f"{type(error).__name__}: {error}"
    print(json.dumps(asdict(watch.seen)), flush=True)
    return 1 if watch.seen.broken else 0


if __name__ == "__main__":
    sys.exit(main())
