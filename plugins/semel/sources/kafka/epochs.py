"""Whether a cluster still has what was read of a partition, by the epochs of its leaders (KIP-320).

A leader only appends, and each record has the epoch of the leader that took it. Records are lost
where another leader takes over that does not have them: it gives their offsets to others, and the
partition may soon end where it did before, or behind. So the ledger keeps the epoch that a
partition's leader had when it was read; once another one leads, the cluster is asked where the
records of that epoch end.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from semel.clients.kafka.cluster import Cluster, client
from semel.model.batch import Claim
from semel.sources import Evidence, Partition
from semel.sources.kafka.edges import partition_end
from semel.sources.kafka.messages import PLAN_CHECK_SECONDS, READER_CONFIG, WAIT_SECONDS, check_silence
from semel.sources.kafka.topics import Extent, Place

_EPOCH_READER = READER_CONFIG | {
    # Where the records of an epoch end before the offset that was asked for, the client goes there;
    # with "error" it tells only that they do.
    "auto_offset_reset": "earliest",
    "isolation_level": "read_uncommitted",
    "max_partition_fetch_bytes": 1 << 10,
}


class ReadEnd(StrEnum):
    """Where the end of what was read lies in what a partition has now."""

    BEFORE = "before its first offset, or at it"
    WITHIN = "behind its first offset"
    BEHIND = "behind its end"


class LeaderChange(StrEnum):
    """Who leads a partition, against who did when it was read."""

    UNKNOWN = "one of the two is not known"
    SAME = "the same leader"
    OTHER = "another leader"


class EpochVerdict(StrEnum):
    """What becomes of that."""

    LOST = "lost"
    KEPT = "kept"
    ASK = "asked"
    """Lost, where the records of the epoch end before what was read."""


# Keeps KS9.
def judge(lies: ReadEnd, led: LeaderChange) -> EpochVerdict:
    """The decision table: all nine cases."""
    match lies, led:
        case ReadEnd.BEHIND, _:
            return EpochVerdict.LOST
        case ReadEnd.WITHIN, LeaderChange.OTHER:
            return EpochVerdict.ASK
        case _:
            return EpochVerdict.KEPT


@dataclass(frozen=True, kw_only=True)
class ReadPosition:
    """How far a partition was read, or is claimed, and by which leader that was told."""

    end: int
    epoch: int | None

    @classmethod
    def of(cls, read: Partition | Claim) -> "ReadPosition":
        end = read.reached if isinstance(read, Partition) else read.end
        return cls(end=end, epoch=read.evidence.get("leader_epoch"))


def evidence(topic_id: str, extent: Extent) -> Evidence:
    """What recognises a partition of which something was read."""
    return {"topic_id": topic_id, "leader_epoch": extent.epoch}


def first_lost_offsets(
    cluster: Cluster, read: Mapping[Place, ReadPosition], there: Mapping[Place, Extent]
) -> dict[Place, int]:
    """Of partitions that were read, those that have lost some of it: each with the offset from
    which on it has other records, or none.

    FileNotFoundError: a topic was deleted meanwhile.
    """
    found, asked = {}, {}
    for place, one in read.items():
        extent = there[place]
        proof = judge(_end_position(one.end, extent), _leader_change(one.epoch, extent.epoch))
        if proof is EpochVerdict.LOST:
            found[place] = extent.end
        elif proof is EpochVerdict.ASK:
            asked[place] = one
    return found | (_query_epoch_ends(cluster, asked) if asked else {})


def _end_position(end: int, extent: Extent) -> ReadEnd:
    if end > extent.end:
        return ReadEnd.BEHIND
    return ReadEnd.WITHIN if end > extent.low else ReadEnd.BEFORE


def _leader_change(then: int | None, now: int | None) -> LeaderChange:
    if then is None or now is None:
        return LeaderChange.UNKNOWN
    return LeaderChange.SAME if then == now else LeaderChange.OTHER


def _query_epoch_ends(cluster: Cluster, read: Mapping[Place, ReadPosition]) -> dict[Place, int]:
    """As `lost`. A reader that goes on behind records of an epoch asks the cluster for their end,
    and is sent there where that lies before.
    """
    kafka = client()
    left = {place: one.end for place, one in read.items()}
    found: dict[Place, int] = {}
    with cluster.consumer(**_EPOCH_READER) as consumer:
        consumer.assign([
            kafka.TopicPartition(*place, one.end, leader_epoch=one.epoch)
            for place, one in read.items()
        ])  # fmt: skip
        heard, asked = time.monotonic(), 0
        while left:
            seconds = time.monotonic() - heard
            if seconds > PLAN_CHECK_SECONDS * (asked + 1):
                asked += 1
                check_silence(cluster, left, seconds)
            over = []
            for message in consumer.consume(len(left), timeout=WAIT_SECONDS):
                place = message.topic(), message.partition()
                if place not in left:
                    continue
                at = message.offset() if message.error() is None else partition_end(place, message)
                if at < left.pop(place):
                    found[place] = at
                over.append(kafka.TopicPartition(*place))
                heard, asked = time.monotonic(), 0
            if over:
                consumer.incremental_unassign(over)
    return found
