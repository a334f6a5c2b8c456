"""Claims of topics: proven where they are, and found again for a ledger that was lost."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster, client
from semel.declare.context import Context
from semel.errors import ChangedError, SemelError, SourceError
from semel.model.batch import Claim
from semel.sources import GIVE_UP, Offer, Partition, SettledPartition
from semel.sources.kafka import epochs
from semel.sources.kafka.epochs import ReadPosition
from semel.sources.kafka.messages import first_sizes
from semel.sources.kafka.topics import Extent, Place, ShownTopics, epoch_of, extents, ids_of

if TYPE_CHECKING:
    from confluent_kafka import Message


MESSAGE_BYTES = 1 << 20
"""What a broker takes as one message by default: a few of these need no look at their size."""


def place_of(name: str) -> Place:
    """The topic and the partition of a source partition's name."""
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)


# Keeps KS1.
def check(cluster: Cluster, claims: Collection[Claim], batch_id: int) -> None:
    """SourceError where claimed offsets are not there any more; ChangedError where others are."""
    places = {place_of(claim.name) for claim in claims}
    with cluster.admin() as admin:
        ids, _ = ids_of(admin, sorted({topic for topic, _ in places}))
        there = [(t, p) for t, p in places if t in ids and p in ids[t][1]]
        found = extents(admin, there)
    for claim in claims:
        topic, partition = place_of(claim.name)
        _check_id(claim, ids[topic][0] if topic in ids else None, batch_id)
        if (topic, partition) not in found:
            raise _away(claim, batch_id)
        extent = found[topic, partition]
        if extent.low > claim.start:
            why = f", and those before {extent.low} were deleted since; they do not come back"
            raise _gone(claim, batch_id, why)
        if extent.end < claim.end:
            raise _lost(claim, batch_id, f", which ends at {extent.end} now")
    _check_kept(cluster, claims, found, batch_id)


# Keeps KS1, KS9.
def _check_kept(
    cluster: Cluster, claims: Collection[Claim], there: dict[Place, Extent], batch_id: int
) -> None:
    # Of claims of one partition the last one's end tells of all: they are of one plan.
    last = {place_of(claim.name): claim for claim in sorted(claims, key=lambda claim: claim.end)}
    read = {place: ReadPosition.of(claim) for place, claim in last.items()}
    try:
        lost = epochs.lost(cluster, read, there)
    except FileNotFoundError:  # Deleted since it was asked for.
        raise _away(next(iter(claims)), batch_id) from None
    for place, at in lost.items():
        raise _lost(last[place], batch_id, f", and from {at} on others have their places now")


# Keeps KS1, KS9.
def check_written(claim: Claim, found: "Sequence[Message]", batch_id: int) -> None:
    """SourceError where messages of a claim were written after it was planned. Epochs only grow, so
    the last message tells of all.
    """
    planned = ReadPosition.of(claim).epoch
    written = epoch_of(found[-1].leader_epoch()) if found else None
    if planned is not None and written is not None and written > planned:
        why = f", and another record has the place of the one at {found[-1].offset()} now"
        raise _lost(claim, batch_id, why)


def check_topic(cluster: Cluster, claim: Claim, batch_id: int) -> None:
    """The same of the topic alone."""
    topic, _ = place_of(claim.name)
    with cluster.admin() as admin:
        ids, _ = ids_of(admin, [topic])
    _check_id(claim, ids[topic][0] if topic in ids else None, batch_id)


def _check_id(claim: Claim, topic_id: str | None, batch_id: int) -> None:
    if topic_id is None:
        raise _away(claim, batch_id)
    if not claim.identity.startswith(f"{topic_id}/"):
        raise ChangedError(
            f"{_claimed(claim, batch_id)}, and the topic was deleted and made anew since",
            lasting=True,
        )


def _away(claim: Claim, batch_id: int) -> SourceError:
    why = ", and the cluster has no such topic any more, or its user may not see it"
    return _gone(claim, batch_id, f"{why}; give the right back", lasting=False)


def _lost(claim: Claim, batch_id: int, why: str) -> SourceError:
    why = f"{why}: the cluster lost records"
    then = "takes what is there now, or names what was read and is lost"
    return _gone(claim, batch_id, why, then)


def _gone(
    claim: Claim,
    batch_id: int,
    why: str,
    then: str = "names what is lost",
    *,
    lasting: bool = True,
) -> SourceError:
    return SourceError(
        f"{_claimed(claim, batch_id)}{why}. {GIVE_UP} (`semel abandon {batch_id}`): the next plan "
        f"{then}",
        next=f"semel abandon {batch_id}",
        lasting=lasting,
    )


def _claimed(claim: Claim, batch_id: int) -> str:
    return f"batch {batch_id} has claimed offsets {claim.start} to {claim.end} of {claim.name!r}"


def locate(shown: ShownTopics, partitions: Iterable[Partition]) -> list[Partition | None]:
    """As `Source.locate`: a topic's id tells it."""
    there = {found.identity: found for found in shown.items}
    placed: list[Partition | None] = []
    for known in partitions:
        found = there.get(known.identity)
        placed.append(found and replace(known, name=found.name, seen=max(known.seen, found.end)))
    return placed


# Keeps F10.
def acknowledge(cluster: Cluster, group: str, settled: Sequence[SettledPartition]) -> str | None:
    """As `Source.acknowledge`: the offsets of a consumer group, which nobody joins."""
    stay = f"the offsets of consumer group {group!r} stay what they were"
    try:
        kafka = client()
        with cluster.admin() as admin:
            ids, _ = ids_of(admin, sorted({place_of(one.name)[0] for one in settled}))
        ours = tuple(f"{topic_id}/" for topic_id, _ in ids.values())
        there = [one for one in settled if one.identity.startswith(ours)]
        if there:
            offsets = [kafka.TopicPartition(*place_of(one.name), one.end) for one in there]
            with cluster.consumer(group_id=group) as consumer:
                consumer.list_topics(timeout=ANSWER_SECONDS)  # A commit would wait for a minute.
                consumer.commit(offsets=offsets, asynchronous=False)
    except SemelError as error:
        return f"{stay}: {error}"
    if others := [one.name for one in settled if one not in there]:
        return (
            f"{stay} for {', '.join(others)}: {cluster} has another topic of that name, or none. "
            "Where the connection is wrong, correct it: the next batch tells these offsets too"
        )
    return None


def room(context: Context, cluster: Cluster, offers: Sequence[Offer]) -> int:
    """How many offsets a batch takes: the declared bytes by the size of some messages.

    Of the offer with the most to read, the first messages are read to see how large they are.
    """
    records, declared = context.limits.records_per_batch_max, context.limits.bytes_per_batch_max
    largest = max(offers, key=_ahead, default=None)
    if largest is None or sum(map(_ahead, offers)) * MESSAGE_BYTES <= declared:
        return records
    start, found = largest.end - _ahead(largest), largest.found
    sizes = first_sizes(cluster, found.topic, found.partition, start, largest.end)
    return min(records, declared // max(1, sum(sizes) // max(len(sizes), 1)))


def _ahead(offer: Offer) -> int:
    reached = offer.partition.reached if offer.partition else 0
    return max(0, offer.end - max(offer.start, offer.low, offer.since, reached))
