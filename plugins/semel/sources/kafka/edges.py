"""The offsets at which an interval begins and ends in each partition of a topic.

For a time, a cluster returns the first offset whose entry is not older. That entry may be a
transaction marker, with the time of its own writing, or an aborted message. So semel reads from
there to the first committed message that is not older: usually the very first. If producers sent
history in transactions, semel starts the search where batches of earlier intervals ended.

A producer whose clock is ahead would end an interval early, and hide the messages behind it until
that time. So a message does not end an interval if it is later than now, or if older ones follow.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from semel.clients.kafka.cluster import Cluster, kafka_package, prefix_error
from semel.errors import AGAIN, UnavailableError
from semel.sources.kafka.messages import (
    CHUNK,
    PLAN_CHECK_SECONDS,
    READER_CONFIG,
    WAIT_SECONDS,
    check_silence,
    is_deleted,
)
from semel.sources.kafka.topics import FoundPartition, Place, milliseconds, newest, offsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

Edges = tuple[dict[Place, int], dict[Place, int]]
"""For each partition, the first offset of an interval and the one after its last; -1: the end."""

Reached = Callable[[datetime], dict[Place, int]]
"""For a time, the offset up to which batches of intervals ending by then have read each partition.
It leaves out partitions without such batches."""

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
"""The earliest timestamp that Kafka supports."""

_FETCH_BYTES = 256 << 10
"""The fetch size for a partition: most searches need a single message."""

VOTES = 8
"""Messages after the end of an interval vote on it: one that is not older confirms it, an older one
cancels a vote. This lead confirms the end; at 0 the search moves on."""

AHEAD_SECONDS = 300
"""How far a producer's clock may be ahead of this machine's."""

_PROGRESS_SECONDS = 10
"""How often a long search logs its position."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """`ms`: the timestamp, in milliseconds since 1970; -1 for a message without it."""

    offset: int
    ms: int


@dataclass
class _Edge:
    """A search for the first message between `since` and `now` that gets a lead of `votes`.

    At the end of the partition, a lead of 1 is enough. `begin` is the same message, except that it
    may be later than `now`. `ahead` is the latest message that the search has skipped.
    """

    since: int
    votes: int = 1
    now: float = float("inf")
    message: _Message | None = None
    begin: _Message | None = None
    ahead: _Message | None = None
    _votes: int = 0

    def is_final_with(self, message: _Message) -> bool:
        """Count one more message. Returns True if this completes the search."""
        skipped = None
        if message.ms < self.since:
            self._votes = max(0, self._votes - 1)
            if not self._votes:
                skipped, self.message, self.begin = self.message, None, None
        else:
            self.begin = self.begin or message
            if message.ms > self.now:
                skipped = message
            else:
                self.message, self._votes = self.message or message, self._votes + 1
        if skipped and (self.ahead is None or skipped.ms > self.ahead.ms):
            self.ahead = skipped
        return self._votes == self.votes


# Keeps KS5.
def find_edges(
    cluster: Cluster,
    partitions: list[FoundPartition],
    window: tuple[datetime, datetime],
    reached: Reached,
) -> Edges:
    """The offsets of the first records that are not older than a window's begin, and than its end.

    Each offset belongs to exactly one window, in whatever order the timestamps are.
    Raises FileNotFoundError if a topic, or the offsets to search, were deleted meanwhile.
    """
    ends = {(f.topic, f.partition): f.end for f in partitions}
    with cluster.admin() as admin:
        times = _EARLIEST, *window
        first, since, until = answers = [offsets(admin, ends, when) for when in times]
        _check_deletion(admin, partitions, zip(times, answers, strict=True))
    with cluster.consumer(**READER_CONFIG, max_partition_fetch_bytes=_FETCH_BYTES) as consumer:
        log = _Log(cluster, consumer, ends)
        heads = log.heads(since)
        starts = log.not_older(heads, window[0], reached)
        # 1. If the first message is later than the whole interval, its clock may be ahead. Then the
        #    interval begins where the batches of earlier intervals ended.
        begin = {place: start.offset for place, start in starts.items()}
        later = [place for place, start in starts.items() if start.ms >= milliseconds(window[1])]
        taken_to = reached(window[0]) if later else {}
        edges = log.edges({p: begin[p] for p in later if p not in taken_to}, window[0])
        for place in later:
            edge_begin = edges[place].begin if place in edges else None
            at = edge_begin.offset if edge_begin else -1
            begin[place] = max(begin[place], taken_to[place]) if place in taken_to else at
        # 2. An offset that batches of intervals ending by then have taken cannot end this one.
        taken_to = reached(window[1])
        later = {
            place: max(until[place], at, taken_to.get(place, 0))
            for place, at in begin.items()
            if min(until[place], at) >= 0
        }
        edges = log.edges(later, window[1])
        stops = {place: edge.message.offset for place, edge in edges.items() if edge.message}
    none = dict.fromkeys(ends, -1)
    begin = none | begin
    for f in partitions:
        place = f.topic, f.partition
        # Keeps KS3. The first offsets of a partition may lack a record.
        head = heads[place].offset if place in heads else -1
        if since[place] == first[place] and begin[place] == head:
            begin[place] = f.low
    return begin, none | stops


# Keeps KS5.
def _check_deletion(
    admin: "AdminClient",
    partitions: list[FoundPartition],
    edges: Iterable[tuple[datetime, dict[Place, int]]],
) -> None:
    """Raises UnavailableError if a cluster lacks the offset for a time, but has newer records.

    This happens between the deletion of records and the removal of their log segments.
    """
    unanswered = [
        (when, f) for when, offset_of in edges for f in partitions
        if f.low and offset_of[f.topic, f.partition] < 0
    ]  # fmt: skip
    last = newest(admin, {(f.topic, f.partition) for _, f in unanswered})
    for when, f in unanswered:
        if last[f.topic, f.partition] >= milliseconds(when):
            raise UnavailableError(
                f"{f.name}: Kafka cannot yet find the first offset from {when} on. Records below "
                f"offset {f.low} were deleted, but the broker removes their files only every "
                "log.retention.check.interval.ms (5 minutes)",
                next=AGAIN,
            )


@dataclass(frozen=True)
class _Log:
    """The committed messages of some partitions, each up to an offset."""

    cluster: Cluster
    consumer: "Consumer"
    ends: dict[Place, int]

    def heads(self, starts: dict[Place, int]) -> dict[Place, _Message]:
        """The first message of each partition at or after an offset, if it has one."""
        edges = self._first(starts, -1)
        return {place: edge.message for place, edge in edges.items() if edge.message}

    def not_older(
        self, heads: dict[Place, _Message], when: datetime, reached: Reached
    ) -> dict[Place, _Message]:
        """From these messages on, the first one of each partition that is not older than `when`."""
        since = milliseconds(when)
        older = {place: head.offset + 1 for place, head in heads.items() if head.ms < since}
        first = {place: head for place, head in heads.items() if place not in older}
        if older:
            # Offsets that earlier intervals have taken lie before the first message of this one.
            taken_to = reached(when)
            older = {place: max(at, taken_to.get(place, 0)) for place, at in older.items()}
            edges = self._first(older, since)
            first |= {place: edge.message for place, edge in edges.items() if edge.message}
        return first

    def edges(self, starts: dict[Place, int], when: datetime) -> dict[Place, _Edge]:
        """The edge at `when` of each partition, searched from an offset on."""
        now = milliseconds(datetime.now(UTC)) + 1_000 * AHEAD_SECONDS
        edges = self._first(starts, since := milliseconds(when), votes=VOTES, now=now)
        for place, edge in edges.items():
            latest = edge.message.ms if edge.message else since
            if edge.ahead and edge.ahead.ms > latest + 1_000 * AHEAD_SECONDS:
                _log.warning(
                    "%r: the message at offset %d has a later time (%s) than those after it; semel "
                    "reads it in their interval",
                    _name(place), edge.ahead.offset, np.datetime64(edge.ahead.ms, "ms"),
                )  # fmt: skip
        return edges

    def _first(
        self, starts: dict[Place, int], since: int, **how: int
    ) -> dict[Place, _Edge]:
        kafka = kafka_package()
        positions = {place: at for place, at in starts.items() if 0 <= at < self.ends[place]}
        self.consumer.assign([kafka.TopicPartition(*place, at) for place, at in positions.items()])
        edges = {place: _Edge(since, **how) for place in starts}
        wanted, checks = len(positions) * how.get("votes", 1), 0
        logged = answered = time.monotonic()
        while positions:
            seconds = time.monotonic() - answered
            if seconds > PLAN_CHECK_SECONDS * (checks + 1):
                checks += 1
                check_silence(self.cluster, positions, seconds)
            if time.monotonic() - logged > _PROGRESS_SECONDS:
                logged = time.monotonic()
                self._log_progress(positions)
            messages = self.consumer.consume(wanted, timeout=WAIT_SECONDS)
            # If the first messages were not enough, many may follow.
            wanted = min(2 * wanted, CHUNK)
            finished = set()
            if messages:
                answered, checks = time.monotonic(), 0
            for message in messages:
                place = message.topic(), message.partition()
                if place in finished or place not in positions:
                    continue
                if message.error() is not None:
                    positions[place] = partition_end(place, message)
                else:
                    positions[place] = message.offset() + 1
                    _, ms = message.timestamp()
                    if positions[place] <= self.ends[place]:
                        candidate = _Message(offset=message.offset(), ms=ms)
                        if edges[place].is_final_with(candidate):
                            finished.add(place)
                if positions[place] >= self.ends[place]:
                    finished.add(place)
            if finished:
                self.consumer.incremental_unassign([kafka.TopicPartition(*p) for p in finished])
                positions = {place: at for place, at in positions.items() if place not in finished}
        return edges

    def _log_progress(self, positions: dict[Place, int]) -> None:
        place, at = next(iter(positions.items()))
        _log.warning(
            "%r: semel is reading messages to find where the interval begins or ends, because "
            "transactions hide it: at offset %d of %d",
            _name(place), at, self.ends[place],
        )  # fmt: skip


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def partition_end(place: Place, message: "Message") -> int:
    """The offset at which a reader has reached the end of a partition.

    Raises FileNotFoundError if the topic, or the messages to read, were deleted meanwhile.
    """
    codes, error = kafka_package().KafkaError, message.error()
    if error.code() == codes._PARTITION_EOF:
        return message.offset()
    if is_deleted(error):
        raise FileNotFoundError(_name(place))
    raise kafka_package().KafkaException(prefix_error(f"reading {_name(place)!r}", error))
