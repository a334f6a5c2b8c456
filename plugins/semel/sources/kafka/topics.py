"""Lists the declared topics of a cluster: their partitions, and the readable offsets."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from semel.clients.kafka.cluster import (
    ANSWER_SECONDS,
    Cluster,
    await_answer,
    kafka_package,
    prefix_error,
    query_offsets,
    query_topics,
)
from semel.sources import Refusal, SourceListing
from semel.sources.kafka.spec import KafkaSourceSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

_INTERNAL = "__"
"""The prefix of Kafka's internal topics, which a pattern never matches."""


Place = tuple[str, int]
"""A topic's name and a partition number."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The readable offsets of a partition are [low, end); lower ones were deleted.

    `epoch`: the epoch of the leader that reported this, which grows with each leader. None if the
    cluster does not number its leaders.
    """

    low: int
    end: int
    epoch: int | None


@dataclass(frozen=True, kw_only=True)
class FoundPartition:
    """One partition of a topic, as it is now.

    Offsets from the end of `extent` to `high` belong to open transactions. A recreated topic has
    another `topic_id`.
    """

    topic: str
    topic_id: str
    partition: int
    extent: Extent
    high: int
    when: datetime | None = None
    """Always None, because the records of a partition have times of their own."""

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
        # Keeps KS9. Another leader may have other records at the same offsets.
        ends = str(self.end) if self.end == self.high else f"{self.end}, open to {self.high}"
        return ends if self.extent.epoch is None else f"{ends}, leader {self.extent.epoch}"


@dataclass(frozen=True, kw_only=True)
class ShownTopics(SourceListing):
    """All partitions of the existing topics. `missing`: declared topics that do not exist."""

    items: list[FoundPartition]
    missing: tuple[str, ...]


def discover(cluster: Cluster, source: KafkaSourceSpec) -> ShownTopics:
    """As `Source.discover`. For its errors see `cluster.translate_error`."""
    with cluster.admin() as admin:
        names = source.topics or _matching(admin, source.pattern)
        ids, missing = topic_ids(admin, names)
        places = [(topic, part) for topic, (_, parts) in ids.items() for part in parts]
        extent_of, high = extents(admin, places), offsets(admin, places, "high")
    items = [
        FoundPartition(
            topic=topic,
            topic_id=ids[topic][0],
            partition=part,
            extent=extent_of[topic, part],
            high=high[topic, part],
        )
        for topic, part in places
    ]
    refused = [
        Refusal(
            name=name,
            reason="missing",
            detail="the cluster has no such topic, or the connection's user may not describe it. "
            "Create it, or correct source.topics",
        )
        for name in missing
    ]
    return ShownTopics(items=items, refusals=refused, missing=missing)


def _matching(admin: "AdminClient", pattern: str) -> list[str]:
    """The topics whose whole name matches, without internal ones."""
    matches = re.compile(pattern).fullmatch
    return sorted(n for n in query_topics(admin) if matches(n) and not n.startswith(_INTERNAL))


def topic_ids(
    admin: "AdminClient", names: Iterable[str]
) -> tuple[dict[str, tuple[str, list[int]]], tuple[str, ...]]:
    """The id and the partitions of each topic, and the names of topics that do not exist."""
    kafka = kafka_package()
    topics = kafka.TopicCollection(list(names))
    described_topics, missing = {}, []
    for name, future in admin.describe_topics(topics, request_timeout=ANSWER_SECONDS).items():
        try:
            described = await_answer(admin, future)
        except kafka.KafkaException as error:
            if not is_missing(error.args[0]):
                named = prefix_error(f"topic {name!r}", error.args[0])
                raise kafka.KafkaException(named) from error
            missing.append(name)
            continue
        # URL-safe base64, because an identity must not contain a second slash.
        topic_id = str(described.topic_id).replace("/", "_").replace("+", "-")
        described_topics[name] = topic_id, sorted(p.id for p in described.partitions)
    return described_topics, tuple(missing)


def is_missing(error: "KafkaError") -> bool:
    """Whether an error reports that a topic or partition does not exist."""
    codes = kafka_package().KafkaError
    return error.code() in (
        codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
    )  # fmt: skip


def extents(admin: "AdminClient", places: Iterable[Place]) -> dict[Place, Extent]:
    """The offsets of each partition that a `read_committed` consumer can read."""
    low, end = offsets(admin, places, "low"), _list_offsets(admin, places, "end")
    return {
        place: Extent(low=low[place], end=answer.offset, epoch=epoch_of(answer.leader_epoch))
        for place, answer in end.items()
    }


def epoch_of(epoch: int | None) -> int | None:
    """Returns None for a missing epoch, for which the client returns None or -1."""
    return None if epoch is None or epoch < 0 else epoch


def offsets(
    admin: "AdminClient", places: Iterable[Place], which: "str | datetime"
) -> dict[Place, int]:
    """One offset of each partition, in one request.

    `which`: `low`, the first readable offset; `end`, the one after the last that a `read_committed`
    consumer may see; `high`, the one after the last; or a time, for the first offset that is not
    older, or else -1.
    """
    return {place: answer.offset for place, answer in _list_offsets(admin, places, which).items()}


def _list_offsets(
    admin: "AdminClient", places: Iterable[Place], which: "str | datetime"
) -> "dict[Place, ListOffsetsResultInfo]":
    """As `offsets`, but with the complete answers, which include the leader's epoch."""
    kafka = kafka_package()
    from confluent_kafka.admin import OffsetSpec

    if isinstance(which, datetime):
        spec = OffsetSpec.for_timestamp(milliseconds(which))
    else:
        spec = OffsetSpec.earliest() if which == "low" else OffsetSpec.latest()
    specs: dict[Any, Any] = {kafka.TopicPartition(*place): spec for place in places}
    answers = query_offsets(admin, specs, committed=which == "end")
    return {(at.topic, at.partition): answers[at] for at in specs}


def milliseconds(when: datetime) -> int:
    """A time in milliseconds since 1970, as in a message; 0 for an earlier one."""
    return max(0, round(when.timestamp() * 1000))


def newest(admin: "AdminClient", places: Iterable[Place]) -> dict[Place, int]:
    """The newest timestamp of each partition, in milliseconds since 1970; -1 if it is empty."""
    kafka = kafka_package()
    from confluent_kafka.admin import OffsetSpec

    specs = {kafka.TopicPartition(*place): OffsetSpec.max_timestamp() for place in places}
    answers = query_offsets(admin, specs, committed=False)
    return {(at.topic, at.partition): answers[at].timestamp for at in specs}
