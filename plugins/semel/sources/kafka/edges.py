"""Where an interval begins and ends in each partition of a topic, as offsets.

A cluster tells the first offset that is not older than a time, whatever lies there: also the mark
that ends a transaction, which has the time at which it was made, and messages of a transaction that
was aborted. So a search begins at its answer, and reads on to the first message that is not older.
Mostly that is the first one of all. It is not where history was sent in transactions: there the
search goes on from where batches of earlier intervals have come to.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semel.clients.kafka.cluster import Cluster, client, of
from semel.errors import AGAIN, UnavailableError
from semel.sources.kafka.messages import (
    CHUNK,
    PLAN_ASKS_SECONDS,
    READING,
    WAIT_SECONDS,
    check_asked,
    is_gone,
)
from semel.sources.kafka.topics import FoundPartition, Place, milliseconds, newest, offsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

Edges = tuple[dict[Place, int], dict[Place, int]]
"""Of each partition: where an interval begins and where it ends; -1: behind all there is."""

Reached = Callable[[datetime], dict[Place, int]]
"""How far batches of intervals that ended by a time have come in some partitions."""

_EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""No record is older."""

_FETCH_BYTES = 256 << 10
"""What is fetched of a partition at once: of most, one message is wanted."""

_TOLD_SECONDS = 10
"""A search that takes longer says so each time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """`ms`: its timestamp, in milliseconds since 1970; -1: it has none."""

    offset: int
    ms: int


# Keeps KS5.
def find_edges(
    cluster: Cluster,
    found: list[FoundPartition],
    window: tuple[datetime, datetime],
    reached: Reached,
) -> Edges:
    """The offset of the first record that is not older than each of a window's times.

    An offset belongs to one window alone, whatever the order of the timestamps is.
    FileNotFoundError: a topic, or what was to be read of it, was deleted meanwhile.
    """
    ends = {(f.topic, f.partition): f.end for f in found}
    with cluster.admin() as admin:
        first, since, until = told = [offsets(admin, ends, when) for when in (_EVER, *window)]
        _check_told(admin, found, zip((_EVER, *window), told, strict=True))
    with cluster.consumer(**READING, max_partition_fetch_bytes=_FETCH_BYTES) as consumer:
        log = _Log(cluster, consumer, ends)
        heads = log.heads(since)
        starts = log.not_older(heads, window[0], reached)
        later = {
            place: max(until[place], start.offset)
            for place, start in starts.items()
            if until[place] >= 0
        }
        stops = log.not_older(log.heads(later), window[1], reached)
    none = dict.fromkeys(ends, -1)
    begin = none | {place: message.offset for place, message in starts.items()}
    for f in found:
        place = f.topic, f.partition
        # Keeps KS3. What is left may begin with offsets that have no record.
        if since[place] == first[place] and heads.get(place) == starts.get(place):
            begin[place] = f.low
    return begin, none | {place: message.offset for place, message in stops.items()}


# Keeps KS5.
def _check_told(
    admin: "AdminClient",
    found: list[FoundPartition],
    edges: Iterable[tuple[datetime, dict[Place, int]]],
) -> None:
    """UnavailableError: a cluster has no offset for a time, and yet records that are not older.

    So it is where records were deleted, and their segments are still to be removed.
    """
    untold = [
        (when, f) for when, told in edges for f in found
        if f.low and told[f.topic, f.partition] < 0
    ]  # fmt: skip
    last = newest(admin, {(f.topic, f.partition) for _, f in untold})
    for when, f in untold:
        if last[f.topic, f.partition] >= milliseconds(when):
            raise UnavailableError(
                f"{f.name} cannot tell yet which of its offsets is the first from {when} on: "
                f"records before offset {f.low} were deleted, and lie in their segments until the "
                "broker removes these, each log.retention.check.interval.ms (5 minutes)",
                next=AGAIN,
            )


@dataclass(frozen=True)
class _Log:
    """The committed messages of some partitions, each up to an offset."""

    cluster: Cluster
    consumer: "Consumer"
    ends: dict[Place, int]

    def heads(self, starts: dict[Place, int]) -> dict[Place, _Message]:
        """The first message of each partition from an offset on, where there is one."""
        return self._first(starts, -1)

    def not_older(
        self, heads: dict[Place, _Message], when: datetime, reached: Reached
    ) -> dict[Place, _Message]:
        """The first message from each of some on that is not older than a time."""
        since = milliseconds(when)
        older = {place: head.offset + 1 for place, head in heads.items() if head.ms < since}
        found = {place: head for place, head in heads.items() if place not in older}
        if older:
            # What such an interval has taken lies before the first message of a later time.
            before = reached(when)
            older = {place: max(at, before.get(place, 0)) for place, at in older.items()}
            found |= self._first(older, since)
        return found

    def _first(self, starts: dict[Place, int], since: int) -> dict[Place, _Message]:
        kafka = client()
        left = {place: at for place, at in starts.items() if 0 <= at < self.ends[place]}
        self.consumer.assign([kafka.TopicPartition(*place, at) for place, at in left.items()])
        found: dict[Place, _Message] = {}
        wanted, asked = len(left), 0
        told = heard = time.monotonic()
        while left:
            seconds = time.monotonic() - heard
            if seconds > PLAN_ASKS_SECONDS * (asked + 1):
                asked += 1
                check_asked(self.cluster, left, seconds)
            if time.monotonic() - told > _TOLD_SECONDS:
                told = time.monotonic()
                self._tell(left)
            got = self.consumer.consume(wanted, timeout=WAIT_SECONDS)
            # Where the first ones were not enough, many may be to read.
            wanted = min(2 * wanted, CHUNK)
            over = set()
            if got:
                heard, asked = time.monotonic(), 0
            for message in got:
                place = message.topic(), message.partition()
                if place in over or place not in left:
                    continue
                if message.error() is not None:
                    left[place] = ended(place, message)
                else:
                    left[place] = message.offset() + 1
                    _, ms = message.timestamp()
                    if ms >= since and left[place] <= self.ends[place]:
                        found[place] = _Message(offset=message.offset(), ms=ms)
                if place in found or left[place] >= self.ends[place]:
                    over.add(place)
            if over:
                self.consumer.incremental_unassign([kafka.TopicPartition(*p) for p in over])
                left = {place: at for place, at in left.items() if place not in over}
        return found

    def _tell(self, left: dict[Place, int]) -> None:
        place, at = next(iter(left.items()))
        _log.warning(
            "%r is read to find where the interval begins or ends, because messages of other times "
            "were sent in transactions: at offset %d of %d",
            _name(place), at, self.ends[place],
        )  # fmt: skip


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def ended(place: Place, message: "Message") -> int:
    """The offset before which a reader has seen all there is.

    FileNotFoundError: the topic was deleted meanwhile, or its first messages.
    """
    codes, error = client().KafkaError, message.error()
    if error.code() == codes._PARTITION_EOF:
        return message.offset()
    if is_gone(error):
        raise FileNotFoundError(_name(place))
    raise client().KafkaException(of(f"reading {_name(place)!r}", error))
