"""Detects that a cluster has lost records that semel has read, by its leaders' epochs (KIP-320).

A leader only appends, and each record carries the epoch of the leader that wrote it. If a replica
that lacks records becomes leader, it gives their offsets to new records. Soon the partition ends
where it did before, or later. So the ledger keeps the leader's epoch of each read. When another
leader has taken over, semel asks the cluster where the records of that epoch end.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from semel.clients.kafka.cluster import Cluster, kafka_package
from semel.model.batch import Claim
from semel.sources import Evidence, Partition
from semel.sources.kafka.edges import partition_end
from semel.sources.kafka.messages import (
    PLAN_CHECK_SECONDS,
    READER_CONFIG,
    WAIT_SECONDS,
    check_silence,
)
from semel.sources.kafka.topics import Extent, Place

_EPOCH_READER = READER_CONFIG | {
    # If the records of an epoch end below the requested offset, the client moves to that end. With
    # "error" it would report only the fact.
    "auto_offset_reset": "earliest",
    "isolation_level": "read_uncommitted",
    "max_partition_fetch_bytes": 1 << 10,
}


class ReadEnd(StrEnum):
    """Where the end of the last read lies within the partition as it is now."""

    DELETED = "before its first offset, or at it"
    WITHIN = "behind its first offset"
    PAST_END = "behind its end"


class LeaderChange(StrEnum):
    """Whether a partition has the same leader as at the last read."""

    UNKNOWN = "one of the two is not known"
    SAME = "the same leader"
    OTHER = "another leader"


class EpochVerdict(StrEnum):
    """Whether the cluster still has the records that were read."""

    LOST = "lost"
    INTACT = "kept"
    QUERY = "asked"
    """Lost if the records of the epoch end below the end of the last read: query the cluster."""


# Keeps KS9.
def judge(end: ReadEnd, leader: LeaderChange) -> EpochVerdict:
    """The decision table: all nine cases."""
    match end, leader:
        case ReadEnd.PAST_END, _:
            return EpochVerdict.LOST
        case ReadEnd.WITHIN, LeaderChange.OTHER:
            return EpochVerdict.QUERY
        case _:
            return EpochVerdict.INTACT


@dataclass(frozen=True, kw_only=True)
class ReadPosition:
    """How far a partition was read or claimed, and the leader epoch at that time."""

    end: int
    epoch: int | None

    @classmethod
    def of(cls, read: Partition | Claim) -> "ReadPosition":
        end = read.reached if isinstance(read, Partition) else read.end
        return cls(end=end, epoch=read.evidence.get("leader_epoch"))


def evidence(topic_id: str, extent: Extent) -> Evidence:
    """The evidence of a partition that semel has read."""
    return {"topic_id": topic_id, "leader_epoch": extent.epoch}


def first_lost_offsets(
    cluster: Cluster, positions: Mapping[Place, ReadPosition], extents: Mapping[Place, Extent]
) -> dict[Place, int]:
    """The partitions that have lost records, each with the first lost offset.

    At that offset there is another record or none. Raises FileNotFoundError if a topic was deleted
    meanwhile.
    """
    lost, unclear = {}, {}
    for place, position in positions.items():
        extent = extents[place]
        leader = _leader_change(position.epoch, extent.epoch)
        verdict = judge(_end_position(position.end, extent), leader)
        if verdict is EpochVerdict.LOST:
            lost[place] = extent.end
        elif verdict is EpochVerdict.QUERY:
            unclear[place] = position
    return lost | (_query_epoch_ends(cluster, unclear) if unclear else {})


def _end_position(end: int, extent: Extent) -> ReadEnd:
    if end > extent.end:
        return ReadEnd.PAST_END
    return ReadEnd.WITHIN if end > extent.low else ReadEnd.DELETED


def _leader_change(then: int | None, now: int | None) -> LeaderChange:
    if then is None or now is None:
        return LeaderChange.UNKNOWN
    return LeaderChange.SAME if then == now else LeaderChange.OTHER


def _query_epoch_ends(
    cluster: Cluster, positions: Mapping[Place, ReadPosition]
) -> dict[Place, int]:
    """As `first_lost_offsets`. A consumer with an epoch queries its end, and moves there if lower."""
    kafka = kafka_package()
    pending = {place: position.end for place, position in positions.items()}
    lost: dict[Place, int] = {}
    with cluster.consumer(**_EPOCH_READER) as consumer:
        consumer.assign([
            kafka.TopicPartition(*place, position.end, leader_epoch=position.epoch)
            for place, position in positions.items()
        ])  # fmt: skip
        answered, checks = time.monotonic(), 0
        while pending:
            seconds = time.monotonic() - answered
            if seconds > PLAN_CHECK_SECONDS * (checks + 1):
                checks += 1
                check_silence(cluster, pending, seconds)
            finished = []
            for message in consumer.consume(len(pending), timeout=WAIT_SECONDS):
                place = message.topic(), message.partition()
                if place not in pending:
                    continue
                at = message.offset() if message.error() is None else partition_end(place, message)
                if at < pending.pop(place):
                    lost[place] = at
                finished.append(kafka.TopicPartition(*place))
                answered, checks = time.monotonic(), 0
            if finished:
                consumer.incremental_unassign(finished)
    return lost
