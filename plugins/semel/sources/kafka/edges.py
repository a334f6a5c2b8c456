"""Where an interval begins and ends in each partition of a topic, as offsets.

A cluster tells the first offset that is not older than a time, whatever lies there: also the mark
that ends a transaction, which has the time at which it was made, and messages of a transaction that
was aborted. So a search begins at its answer, and reads on to the first message that is not older.
Mostly that is the first one of all. It is not where history was sent in transactions: there the
search goes on from where batches of earlier intervals have come to.

A clock that is ahead would end an interval early, and keep what follows from each one until its own
time. So a message ends no interval where it is later than now, or where older ones follow it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from semel.clients.kafka.cluster import Cluster, client, of
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
"""Of each partition: where an interval begins and where it ends; -1: behind all there is."""

Reached = Callable[[datetime], dict[Place, int]]
"""How far batches of intervals that ended by a time have come in some partitions."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
"""No record is older."""

_FETCH_BYTES = 256 << 10
"""What is fetched of a partition at once: of most, one message is wanted."""

VOTES = 8
"""An interval ends at a message that is not older than its end, unless the messages behind it outvote
it: as many older ones as others, before the others are so many more."""

AHEAD_SECONDS = 300
"""So far ahead of this machine a producer's clock may be."""

_PROGRESS_SECONDS = 10
"""A search that takes longer says so each time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """`ms`: its timestamp, in milliseconds since 1970; -1: it has none."""

    offset: int
    ms: int


@dataclass
class _Edge:
    """The first message that is not older than `since`, nor later than `now`, and for which `votes`
    messages vote with its own, or that older ones have not outvoted by the end.

    `begin`: the same, but for whether it is later. `ahead`: the latest one that is passed over.
    """

    since: int
    votes: int = 1
    now: float = float("inf")
    message: _Message | None = None
    begin: _Message | None = None
    ahead: _Message | None = None
    _votes: int = 0

    def is_final_with(self, message: _Message) -> bool:
        """Whether it is known with one more message."""
        passed = None
        if message.ms < self.since:
            self._votes = max(0, self._votes - 1)
            if not self._votes:
                passed, self.message, self.begin = self.message, None, None
        else:
            self.begin = self.begin or message
            if message.ms > self.now:
                passed = message
            else:
                self.message, self._votes = self.message or message, self._votes + 1
        if passed and (self.ahead is None or passed.ms > self.ahead.ms):
            self.ahead = passed
        return self._votes == self.votes


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
        first, since, until = told = [offsets(admin, ends, when) for when in (_EPOCH_START, *window)]
        _check_deletion(admin, found, zip((_EPOCH_START, *window), told, strict=True))
    with cluster.consumer(**READER_CONFIG, max_partition_fetch_bytes=_FETCH_BYTES) as consumer:
        log = _Log(cluster, consumer, ends)
        heads = log.heads(since)
        starts = log.not_older(heads, window[0], reached)
        # 1. A first one that is later than all of the interval may be ahead. What lies behind the
        #    batches of earlier intervals is of this one then.
        begin = {place: start.offset for place, start in starts.items()}
        later = [place for place, start in starts.items() if start.ms >= milliseconds(window[1])]
        before = reached(window[0]) if later else {}
        edges = log.edges({p: begin[p] for p in later if p not in before}, window[0])
        for place in later:
            known = edges[place].begin if place in edges else None
            at = known.offset if known else -1
            begin[place] = max(begin[place], before[place]) if place in before else at
        # 2. What batches of intervals that ended by then have taken ends none of them again.
        before = reached(window[1])
        later = {
            place: max(until[place], at, before.get(place, 0))
            for place, at in begin.items()
            if min(until[place], at) >= 0
        }
        edges = log.edges(later, window[1])
        stops = {place: edge.message.offset for place, edge in edges.items() if edge.message}
    none = dict.fromkeys(ends, -1)
    begin = none | begin
    for f in found:
        place = f.topic, f.partition
        # Keeps KS3. What is left may begin with offsets that have no record.
        head = heads[place].offset if place in heads else -1
        if since[place] == first[place] and begin[place] == head:
            begin[place] = f.low
    return begin, none | stops


# Keeps KS5.
def _check_deletion(
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
        edges = self._first(starts, -1)
        return {place: edge.message for place, edge in edges.items() if edge.message}

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
            edges = self._first(older, since)
            found |= {place: edge.message for place, edge in edges.items() if edge.message}
        return found

    def edges(self, starts: dict[Place, int], when: datetime) -> dict[Place, _Edge]:
        """Where each partition comes to a time, from an offset on."""
        now = milliseconds(datetime.now(UTC)) + 1_000 * AHEAD_SECONDS
        edges = self._first(starts, since := milliseconds(when), votes=VOTES, now=now)
        for place, edge in edges.items():
            latest = edge.message.ms if edge.message else since
            if edge.ahead and edge.ahead.ms > latest + 1_000 * AHEAD_SECONDS:
                _log.warning(
                    "%r: the message at offset %d has a time that is ahead of those behind it, %s; "
                    "it is read together with them",
                    _name(place), edge.ahead.offset, np.datetime64(edge.ahead.ms, "ms"),
                )  # fmt: skip
        return edges

    def _first(
        self, starts: dict[Place, int], since: int, **how: int
    ) -> dict[Place, _Edge]:
        kafka = client()
        left = {place: at for place, at in starts.items() if 0 <= at < self.ends[place]}
        self.consumer.assign([kafka.TopicPartition(*place, at) for place, at in left.items()])
        found = {place: _Edge(since, **how) for place in starts}
        wanted, asked = len(left) * how.get("votes", 1), 0
        told = heard = time.monotonic()
        while left:
            seconds = time.monotonic() - heard
            if seconds > PLAN_CHECK_SECONDS * (asked + 1):
                asked += 1
                check_silence(self.cluster, left, seconds)
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                self._log_progress(left)
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
                    left[place] = partition_end(place, message)
                else:
                    left[place] = message.offset() + 1
                    _, ms = message.timestamp()
                    if left[place] <= self.ends[place]:
                        seen = _Message(offset=message.offset(), ms=ms)
                        if found[place].is_final_with(seen):
                            over.add(place)
                if left[place] >= self.ends[place]:
                    over.add(place)
            if over:
                self.consumer.incremental_unassign([kafka.TopicPartition(*p) for p in over])
                left = {place: at for place, at in left.items() if place not in over}
        return found

    def _log_progress(self, left: dict[Place, int]) -> None:
        place, at = next(iter(left.items()))
        _log.warning(
            "%r is read to find where the interval begins or ends, because messages of other times "
            "were sent in transactions: at offset %d of %d",
            _name(place), at, self.ends[place],
        )  # fmt: skip


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def partition_end(place: Place, message: "Message") -> int:
    """The offset before which a reader has seen all there is.

    FileNotFoundError: the topic was deleted meanwhile, or its first messages.
    """
    codes, error = client().KafkaError, message.error()
    if error.code() == codes._PARTITION_EOF:
        return message.offset()
    if is_deleted(error):
        raise FileNotFoundError(_name(place))
    raise client().KafkaException(of(f"reading {_name(place)!r}", error))
