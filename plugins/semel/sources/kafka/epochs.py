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
from semel.sources.kafka.edges import ended
from semel.sources.kafka.messages import PLAN_ASKS_SECONDS, READING, WAIT_SECONDS, check_asked
from semel.sources.kafka.topics import Extent, Place

_ASKING = READING | {
    # Where the records of an epoch end before the offset that was asked for, the client goes there;
    # with "error" it tells only that they do.
    "auto_offset_reset": "earliest",
    "isolation_level": "read_uncommitted",
    "max_partition_fetch_bytes": 1 << 10,
}


class Lies(StrEnum):
    """Where the end of what was read lies in what a partition has now."""

    BEFORE = "before its first offset, or at it"
    WITHIN = "behind its first offset"
    BEHIND = "behind its end"


class Led(StrEnum):
    """Who leads a partition, against who did when it was read."""

    UNKNOWN = "one of the two is not known"
    SAME = "the same leader"
    OTHER = "another leader"


class Proof(StrEnum):
    """What becomes of that."""

    LOST = "lost"
    KEPT = "kept"
    ASK = "asked"
    """Lost, where the records of the epoch end before what was read."""


# Keeps KS9.
def judge(lies: Lies, led: Led) -> Proof:
    """The decision table: all nine cases."""
    match lies, led:
        case Lies.BEHIND, _:
            return Proof.LOST
        case Lies.WITHIN, Led.OTHER:
            return Proof.ASK
        case _:
            return Proof.KEPT


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


def lost(
    cluster: Cluster, read: Mapping[Place, ReadPosition], there: Mapping[Place, Extent]
) -> dict[Place, int]:
    """Of partitions that were read, those that have lost some of it: each with the offset from
    which on it has other records, or none.

    FileNotFoundError: a topic was deleted meanwhile.
    """
    found, asked = {}, {}
    for place, one in read.items():
        extent = there[place]
        proof = judge(_lies(one.end, extent), _led(one.epoch, extent.epoch))
        if proof is Proof.LOST:
            found[place] = extent.end
        elif proof is Proof.ASK:
            asked[place] = one
    return found | (_ask(cluster, asked) if asked else {})


def _lies(end: int, extent: Extent) -> Lies:
    if end > extent.end:
        return Lies.BEHIND
    return Lies.WITHIN if end > extent.low else Lies.BEFORE


def _led(then: int | None, now: int | None) -> Led:
    if then is None or now is None:
        return Led.UNKNOWN
    return Led.SAME if then == now else Led.OTHER


def _ask(cluster: Cluster, read: Mapping[Place, ReadPosition]) -> dict[Place, int]:
    """As `lost`. A reader that goes on behind records of an epoch asks the cluster for their end,
    and is sent there where that lies before.
    """
    kafka = client()
    left = {place: one.end for place, one in read.items()}
    found: dict[Place, int] = {}
    with cluster.consumer(**_ASKING) as consumer:
        consumer.assign([
            kafka.TopicPartition(*place, one.end, leader_epoch=one.epoch)
            for place, one in read.items()
        ])  # fmt: skip
        heard, asked = time.monotonic(), 0
        while left:
            seconds = time.monotonic() - heard
            if seconds > PLAN_ASKS_SECONDS * (asked + 1):
                asked += 1
                check_asked(cluster, left, seconds)
            over = []
            for message in consumer.consume(len(left), timeout=WAIT_SECONDS):
                place = message.topic(), message.partition()
                if place not in left:
                    continue
                at = message.offset() if message.error() is None else ended(place, message)
                if at < left.pop(place):
                    found[place] = at
                over.append(kafka.TopicPartition(*place))
                heard, asked = time.monotonic(), 0
            if over:
                consumer.incremental_unassign(over)
    return found
