"""Claims of topics: prove that their records still exist, and locate them for a lost ledger."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster, kafka_package
from semel.declare.context import Context
from semel.errors import ChangedError, SemelError, SourceError
from semel.model.batch import Claim
from semel.sources import GIVE_UP, Offer, Partition, SettledPartition
from semel.sources.kafka import epochs
from semel.sources.kafka.epochs import ReadPosition
from semel.sources.kafka.messages import first_sizes
from semel.sources.kafka.topics import Extent, Place, ShownTopics, epoch_of, extents, topic_ids

if TYPE_CHECKING:
    from confluent_kafka import Message


MESSAGE_BYTES = 1 << 20
"""A broker's default limit for one message. A few such messages fit in any batch."""


def place_of(name: str) -> Place:
    """Split a source partition's name into topic and partition number."""
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)


# Keeps KS1.
def check_claims(cluster: Cluster, claims: Collection[Claim], batch_id: int) -> None:
    """Raises SourceError if claimed offsets are gone, ChangedError if the topic was recreated."""
    places = {place_of(claim.name) for claim in claims}
    with cluster.admin() as admin:
        ids, _ = topic_ids(admin, sorted({topic for topic, _ in places}))
        existing = [(t, p) for t, p in places if t in ids and p in ids[t][1]]
        extents_now = extents(admin, existing)
    for claim in claims:
        topic, partition = place_of(claim.name)
        _check_id(claim, ids[topic][0] if topic in ids else None, batch_id)
        if (topic, partition) not in extents_now:
            raise _missing_error(claim, batch_id)
        extent = extents_now[topic, partition]
        if extent.low > claim.start:
            why = f", but those below {extent.low} have been deleted for good"
            raise _claim_error(claim, batch_id, why)
        if extent.end < claim.end:
            raise _lost_error(claim, batch_id, f", but the partition now ends at {extent.end}")
    _check_epochs(cluster, claims, extents_now, batch_id)


# Keeps KS1, KS9.
def _check_epochs(
    cluster: Cluster, claims: Collection[Claim], extents_now: dict[Place, Extent], batch_id: int
) -> None:
    # One plan made all claims of a partition, so it is enough to check the end of the last one.
    last = {place_of(claim.name): claim for claim in sorted(claims, key=lambda claim: claim.end)}
    positions = {place: ReadPosition.of(claim) for place, claim in last.items()}
    try:
        lost_offsets = epochs.first_lost_offsets(cluster, positions, extents_now)
    except FileNotFoundError:  # The topic was deleted since `topic_ids`.
        raise _missing_error(next(iter(claims)), batch_id) from None
    for place, at in lost_offsets.items():
        why = f", but from offset {at} on the partition now has other records"
        raise _lost_error(last[place], batch_id, why)


# Keeps KS1, KS9.
def check_written(claim: Claim, messages: "Sequence[Message]", batch_id: int) -> None:
    """Raises SourceError if messages of a claim were written after its plan.

    Epochs only grow, so checking the last message is enough.
    """
    planned = ReadPosition.of(claim).epoch
    written = epoch_of(messages[-1].leader_epoch()) if messages else None
    if planned is not None and written is not None and written > planned:
        why = f", but another record is now at offset {messages[-1].offset()}"
        raise _lost_error(claim, batch_id, why)


def check_topic(cluster: Cluster, claim: Claim, batch_id: int) -> None:
    """Like `check_claims`, but checks only the id of the topic."""
    topic, _ = place_of(claim.name)
    with cluster.admin() as admin:
        ids, _ = topic_ids(admin, [topic])
    _check_id(claim, ids[topic][0] if topic in ids else None, batch_id)


def _check_id(claim: Claim, topic_id: str | None, batch_id: int) -> None:
    if topic_id is None:
        raise _missing_error(claim, batch_id)
    if not claim.identity.startswith(f"{topic_id}/"):
        raise ChangedError(
            f"{_claimed_offsets(claim, batch_id)}, but the topic was deleted and recreated since",
            lasting=True,
        )


def _missing_error(claim: Claim, batch_id: int) -> SourceError:
    why = ", but the cluster has no such topic any more, or its user may not describe it"
    why = f"{why}. If it exists, restore that right"
    return _claim_error(claim, batch_id, why, lasting=False)


def _lost_error(claim: Claim, batch_id: int, why: str) -> SourceError:
    why = f"{why}: the cluster has lost records"
    then = "takes the records that are there now, or names those that were read and lost"
    return _claim_error(claim, batch_id, why, then)


def _claim_error(
    claim: Claim,
    batch_id: int,
    why: str,
    then: str = "names the lost records",
    *,
    lasting: bool = True,
) -> SourceError:
    return SourceError(
        f"{_claimed_offsets(claim, batch_id)}{why}. {GIVE_UP} (`semel abandon {batch_id}`): "
        f"the next plan {then}",
        next=f"semel abandon {batch_id}",
        lasting=lasting,
    )


def _claimed_offsets(claim: Claim, batch_id: int) -> str:
    return f"batch {batch_id} has claimed offsets {claim.start} to {claim.end} of {claim.name!r}"


def locate_partitions(
    listing: ShownTopics, partitions: Iterable[Partition]
) -> list[Partition | None]:
    """As `Source.locate`, by the topic's id."""
    by_identity = {item.identity: item for item in listing.items}
    located: list[Partition | None] = []
    for old in partitions:
        item = by_identity.get(old.identity)
        located.append(item and replace(old, name=item.name, seen=max(old.seen, item.end)))
    return located


# Keeps F10.
def commit_group_offsets(
    cluster: Cluster, group: str, settled: Sequence[SettledPartition]
) -> str | None:
    """As `Source.acknowledge`: commit the offsets to a consumer group, without joining it."""
    problem = f"semel did not commit offsets to consumer group {group!r}"
    try:
        kafka = kafka_package()
        with cluster.admin() as admin:
            ids, _ = topic_ids(admin, sorted({place_of(part.name)[0] for part in settled}))
        prefixes = tuple(f"{topic_id}/" for topic_id, _ in ids.values())
        existing = [part for part in settled if part.identity.startswith(prefixes)]
        if existing:
            offsets = [kafka.TopicPartition(*place_of(part.name), part.end) for part in existing]
            with cluster.consumer(group_id=group) as consumer:
                consumer.list_topics(timeout=ANSWER_SECONDS)  # Fails fast; a commit waits a minute.
                consumer.commit(offsets=offsets, asynchronous=False)
    except SemelError as error:
        return f"{problem}: {error}"
    if skipped := [part.name for part in settled if part not in existing]:
        return (
            f"{problem} for {', '.join(skipped)}: {cluster} has another topic of that name, or "
            "none. If the connection is wrong, correct it; the next batch commits them too"
        )
    return None


def batch_capacity(context: Context, cluster: Cluster, offers: Sequence[Offer]) -> int:
    """How many offsets a batch may take within the declared limits of records and bytes.

    It estimates the size of a message from the first messages of the longest offer.
    """
    limits = context.limits
    records_max, bytes_max = limits.records_per_batch_max, limits.bytes_per_batch_max
    largest = max(offers, key=_ahead, default=None)
    if largest is None or sum(map(_ahead, offers)) * MESSAGE_BYTES <= bytes_max:
        return records_max
    start, place = largest.end - _ahead(largest), largest.topic_partition.place
    sizes = first_sizes(cluster, *place, start, largest.end)
    return min(records_max, bytes_max // max(1, sum(sizes) // max(len(sizes), 1)))


def _ahead(offer: Offer) -> int:
    reached = offer.partition.reached if offer.partition else 0
    return max(0, offer.end - max(offer.start, offer.low, offer.since, reached))
