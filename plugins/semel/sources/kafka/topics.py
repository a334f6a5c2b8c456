"""What a cluster shows of the declared topics: partitions, and the offsets that can be read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from semel.clients.kafka.cluster import (
    ANSWER_SECONDS,
    Cluster,
    answered,
    client,
    listed,
    of,
    offsets_of,
)
from semel.sources import Refusal, SourceListing
from semel.sources.kafka.spec import KafkaSourceSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

_INTERNAL = "__"
"""Topics of Kafka's own begin so; a pattern does not find them."""


Place = tuple[str, int]
"""A topic's name, and a partition of it."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Records of a partition that can be read are in [low, end): what is before was deleted.

    `epoch`: the number of the leader that said so, which grows with each leader; None: the cluster
    gives its leaders none.
    """

    low: int
    end: int
    epoch: int | None


@dataclass(frozen=True, kw_only=True)
class FoundPartition:
    """One partition of a topic, as it is now.

    What is behind the `extent` belongs to an open transaction, up to `high`. The topic's id is
    another one once it was made anew.
    """

    topic: str
    topic_id: str
    partition: int
    extent: Extent
    high: int
    when: datetime | None = None
    """A partition has no time of its own: its records have."""

    @property
    def low(self) -> int:
        return self.extent.low

    @property
    def end(self) -> int:
        return self.extent.end

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def identity(self) -> str:
        return f"{self.topic_id}/{self.partition}"

    @property
    def fingerprint(self) -> str:
        # Keeps KS9. Under another leader the same offsets may have other records.
        ends = str(self.end) if self.end == self.high else f"{self.end}, open to {self.high}"
        return ends if self.extent.epoch is None else f"{ends}, leader {self.extent.epoch}"


@dataclass(frozen=True, kw_only=True)
class ShownTopics(SourceListing):
    """All partitions of the topics that are there; `missing`: declared ones that are not."""

    items: list[FoundPartition]
    missing: tuple[str, ...]


def discover(cluster: Cluster, source: KafkaSourceSpec) -> ShownTopics:
    """As `Source.discover`. UnavailableError, TerminalError: see cluster.meaning."""
    with cluster.admin() as admin:
        names = source.topics or _matching(admin, source.pattern)
        ids, missing = ids_of(admin, names)
        places = [(topic, part) for topic, (_, parts) in ids.items() for part in parts]
        there, high = extents(admin, places), offsets(admin, places, "high")
    found = [
        FoundPartition(
            topic=topic,
            topic_id=ids[topic][0],
            partition=part,
            extent=there[topic, part],
            high=high[topic, part],
        )
        for topic, part in places
    ]
    refused = [
        Refusal(
            name=name,
            reason="missing",
            detail="the cluster has no such topic, or the connection's user may not see it; make "
            "it, or correct source.topics",
        )
        for name in missing
    ]
    return ShownTopics(items=found, refusals=refused, missing=missing)


def _matching(admin: "AdminClient", pattern: str) -> list[str]:
    """The topics of which the whole name matches."""
    own = re.compile(pattern)
    return sorted(n for n in listed(admin) if own.fullmatch(n) and not n.startswith(_INTERNAL))


def ids_of(
    admin: "AdminClient", names: Iterable[str]
) -> tuple[dict[str, tuple[str, list[int]]], tuple[str, ...]]:
    """The id and the partitions of each topic; and the names of those that are not there."""
    kafka = client()
    asked = kafka.TopicCollection(list(names))
    found, missing = {}, []
    for name, future in admin.describe_topics(asked, request_timeout=ANSWER_SECONDS).items():
        try:
            described = answered(admin, future)
        except kafka.KafkaException as error:
            if not is_missing(error.args[0]):
                raise kafka.KafkaException(of(f"topic {name!r}", error.args[0])) from error
            missing.append(name)
            continue
        # As in URLs: an identity must not hold two slashes.
        topic_id = str(described.topic_id).replace("/", "_").replace("+", "-")
        found[name] = topic_id, sorted(p.id for p in described.partitions)
    return found, tuple(missing)


def is_missing(error: "KafkaError") -> bool:
    """Whether an error says that a topic, or a partition of it, is not there."""
    codes = client().KafkaError
    return error.code() in (
        codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
    )  # fmt: skip


def extents(admin: "AdminClient", places: Iterable[Place]) -> dict[Place, Extent]:
    """What of each partition a committed reader can read."""
    low, end = offsets(admin, places, "low"), _answers(admin, places, "end")
    return {
        place: Extent(low=low[place], end=told.offset, epoch=epoch_of(told.leader_epoch))
        for place, told in end.items()
    }


def epoch_of(told: int | None) -> int | None:
    """An epoch as the client tells it, which has two ways to say that there is none."""
    return None if told is None or told < 0 else told


def offsets(
    admin: "AdminClient", places: Iterable[Place], which: "str | datetime"
) -> dict[Place, int]:
    """One offset of each partition, all of them asked at once.

    `which`: `low`, the first that can be read; `end`, behind the last one that a committed reader
    may see; `high`, behind the last one there is; or the first of a record that is not older than a
    time, -1 where there is none.
    """
    return {place: told.offset for place, told in _answers(admin, places, which).items()}


def _answers(
    admin: "AdminClient", places: Iterable[Place], which: "str | datetime"
) -> "dict[Place, ListOffsetsResultInfo]":
    """As `offsets`: all that is told."""
    kafka = client()
    from confluent_kafka.admin import OffsetSpec

    if isinstance(which, datetime):
        spec = OffsetSpec.for_timestamp(milliseconds(which))
    else:
        spec = OffsetSpec.earliest() if which == "low" else OffsetSpec.latest()
    asked: dict[Any, Any] = {kafka.TopicPartition(*place): spec for place in places}
    found = offsets_of(admin, asked, committed=which == "end")
    return {(at.topic, at.partition): found[at] for at in asked}


def milliseconds(when: datetime) -> int:
    """A time as a message has it. Kafka knows none before 1970."""
    return max(0, round(when.timestamp() * 1000))


def newest(admin: "AdminClient", places: Iterable[Place]) -> dict[Place, int]:
    """The newest timestamp of each partition, in milliseconds; -1 where it has no record."""
    kafka = client()
    from confluent_kafka.admin import OffsetSpec

    asked = {kafka.TopicPartition(*place): OffsetSpec.max_timestamp() for place in places}
    found = offsets_of(admin, asked, committed=False)
    return {(at.topic, at.partition): found[at].timestamp for at in asked}
