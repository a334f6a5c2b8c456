"""Match partitions of topics with source partitions, and decide what may be read of each."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial

from semel.clients.kafka.cluster import Cluster
from semel.declare.context import Context
from semel.errors import SourceError
from semel.sources import (
    Acceptance,
    LedgerView,
    LostRange,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    Window,
)
from semel.sources.kafka import epochs
from semel.sources.kafka.edges import Edges, find_edges
from semel.sources.kafka.epochs import ReadPosition
from semel.sources.kafka.topics import FoundPartition, Place, ShownTopics


class LedgerMatch(StrEnum):
    """The state of a topic partition in the ledger."""

    NOTHING = "nothing"
    OPEN = "open"
    """An open source partition of this topic id."""
    CLOSED = "closed"
    """A closed source partition of this topic id: the cluster did not list it for a while."""
    OTHER = "other"
    """An open source partition of this name, but of an earlier topic with another id."""


class TopicDecision(StrEnum):
    """The plan's decision about a topic partition."""

    BEGIN = "begin"
    """Partition and topic are new: read the records that exist now, not the deleted ones."""
    JOIN = "join"
    """A new partition of a known topic: read it from offset 0."""
    GO_ON = "go on"
    REFUSE = "refuse"


# Keeps KS2.
def judge(ledger_match: LedgerMatch, topic_known: bool, lost: bool) -> TopicDecision:
    """The decision table: all sixteen cases.

    `lost`: the cluster has lost records that were read, and reuses their offsets.
    """
    match ledger_match, topic_known, lost:
        case LedgerMatch.NOTHING, False, _:
            return TopicDecision.BEGIN
        case LedgerMatch.NOTHING, True, _:
            return TopicDecision.JOIN
        case ((LedgerMatch.OPEN | LedgerMatch.CLOSED), _, False):
            return TopicDecision.GO_ON
        case _:
            return TopicDecision.REFUSE


@dataclass(frozen=True, kw_only=True)
class PartitionOffer(Offer):
    """A topic partition to read, either on from its source partition or as a new one."""

    topic_partition: FoundPartition


@dataclass(frozen=True, kw_only=True)
class JudgedPartition:
    """A topic partition, the source partition that it is or was, and the plan's decision.

    `lost_from`: the first offset that was read and then lost by the cluster, if any.
    """

    topic_partition: FoundPartition
    ledger_match: LedgerMatch
    source_partition: Partition | None
    lost_from: int | None
    decision: TopicDecision


def match(
    context: Context, cluster: Cluster, listing: ShownTopics, ledger: LedgerView, window: Window
) -> MatchResult:
    """As `Source.match`."""
    judged = judge_all(cluster, ledger)
    edges = None
    if window is not None and judged:
        reached = partial(_reached, judged, ledger)
        edges = find_edges(cluster, [one.topic_partition for one in judged], window, reached)
    offers, begun, refused = [], [], []
    for partition in judged:
        if partition.decision is TopicDecision.REFUSE:
            refused.append(_refusal(context, partition))
            continue
        offer = offer_of(partition, edges)
        if partition.source_partition is None:
            begun.append(offer)
        if partition.decision is TopicDecision.JOIN and partition.topic_partition.low:
            refused.append(_late_join_refusal(partition.topic_partition))
        else:
            offers.append(offer)
    identities = {item.identity for item in listing.items}
    names = {item.name for item in listing.items}
    lost = [
        LostRange(partition=k, seen=max(k.seen, k.reached))
        for k in ledger.partitions
        # If another topic has the name now, its refusal waits for `semel accept`.
        if k.identity not in identities and k.name not in names
    ]
    return MatchResult(offers=offers, refusals=refused, lost_ranges=lost, new_partition_offers=begun)


def accept_partition(
    context: Context, cluster: Cluster, ledger: LedgerView, name: str,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    named = (one for one in judge_all(cluster, ledger) if one.topic_partition.name == name)
    judged = next(named, None)
    if judged is None or judged.decision is not TopicDecision.REFUSE:
        if is_open and not same:
            return None
        raise SourceError(
            f"{name!r}: there is nothing to accept. Its topic was not recreated, and it has not "
            "lost records that were read",
            next=f"semel gaps {context.name}",
        )
    topic_partition = judged.topic_partition
    if same:
        raise _same_error(context, judged)
    if judged.ledger_match is not LedgerMatch.OTHER:
        # Keeps A3. The records below that offset still exist, and are not read twice.
        start = start or judged.lost_from
    if start and not topic_partition.low <= start <= topic_partition.end:
        raise SourceError(
            f"{name!r}: cannot start at offset {start}. Give an offset from {topic_partition.low} "
            f"to {topic_partition.end}"
        )
    offer = offer_of(replace(judged, source_partition=None, decision=TopicDecision.BEGIN), None)
    if start:
        offer = replace(offer, start=start, reason="repeated")
    return Acceptance(offer=offer, replaced_partitions=[judged.source_partition])


def _same_error(context: Context, judged: JudgedPartition) -> SourceError:
    name, option = judged.topic_partition.name, ""
    what = f"{name!r}: cannot continue the old partition, because its offsets"
    if judged.ledger_match is not LedgerMatch.OTHER:
        what, option = f"{what} from offset {judged.lost_from} on", f"--from {judged.lost_from}"
    return SourceError(
        f"{what} now have other records. Accept these as a new generation instead",
        next=_accept_words(context, name, option),
    )


def judge_all(cluster: Cluster, ledger: LedgerView) -> list[JudgedPartition]:
    """Decide about each partition that has changed or is not read to its end."""
    matches = _ledger_matches(ledger, ledger.unsettled)
    same_topic = (LedgerMatch.OPEN, LedgerMatch.CLOSED)
    read = {item: known for item, (match, known, _) in matches.items() if match in same_topic}
    positions = {item.place: ReadPosition.of(partition) for item, partition in read.items()}
    extents = {item.place: item.extent for item in read}
    lost = epochs.first_lost_offsets(cluster, positions, extents)
    return [
        JudgedPartition(
            topic_partition=item,
            ledger_match=state,
            source_partition=partition,
            lost_from=lost.get(item.place),
            decision=judge(state, topic_known, item.place in lost),
        )
        for item, (state, partition, topic_known) in matches.items()
    ]


def _ledger_matches(
    ledger: LedgerView, unsettled: list[FoundPartition]
) -> dict[FoundPartition, tuple[LedgerMatch, Partition | None, bool]]:
    """The ledger's match for each, its source partition, and whether the topic is known.

    It queries closed partitions and topics only for partitions whose identity is new.
    """
    by_identity = {k.identity: k for k in ledger.partitions}
    by_name = {k.name: k for k in ledger.partitions}
    new = [f for f in unsettled if f.identity not in by_identity]
    closed, topics = {}, set()
    if new:
        rows = ledger.query("kafka", "closed", identities=[f.identity for f in new])
        closed = {r["identity"]: Partition(**r) for r in rows}
        topic_ids = sorted({f.topic_id for f in new})
        topics = {r["topic"] for r in ledger.query("kafka", "topics", topics=topic_ids)}
    matches = {}
    for item in unsettled:
        partition = by_identity.get(item.identity)
        if partition is not None:
            matches[item] = LedgerMatch.OPEN, partition, True
        elif item.identity in closed:
            matches[item] = LedgerMatch.CLOSED, closed[item.identity], True
        elif item.name in by_name:
            matches[item] = LedgerMatch.OTHER, by_name[item.name], False
        else:
            matches[item] = LedgerMatch.NOTHING, None, item.topic_id in topics
    return matches


def _reached(
    judged: list[JudgedPartition], ledger: LedgerView, until: datetime
) -> dict[Place, int]:
    """The offset up to which batches of intervals ending by a time have read each partition."""
    places = {
        item.source_partition.source_partition_id: item.topic_partition.place
        for item in judged
        if item.decision is TopicDecision.GO_ON
    }
    rows = ledger.query("kafka", "reached", until=until, partitions=list(places))
    return {places[r["source_partition_id"]]: r["reached"] for r in rows}


def offer_of(judged: JudgedPartition, edges: Edges | None) -> PartitionOffer:
    """The offer of a partition, limited to the edges of a window if there is one."""
    item = judged.topic_partition
    since, end = 0, item.end
    if edges is not None:
        since, end = (
            item.end if edge[item.topic, item.partition] < 0
            else min(edge[item.topic, item.partition], item.end)
            for edge in edges
        )  # fmt: skip
    begins = judged.decision is TopicDecision.BEGIN
    return PartitionOffer(
        name=item.name,
        identity=item.identity,
        fingerprint=item.fingerprint,
        partition=judged.source_partition,
        # Keeps KS4.
        start=item.low if begins else 0,
        reason="before",
        low=0 if begins else item.low,
        since=since,
        end=end,
        seen=item.end,
        ahead=end if end < item.end else item.high,
        # An interval may leave offsets before it, and open transactions may add records.
        settled=edges is None and item.end == item.high,
        evidence=epochs.evidence(item.topic_id, item.extent),
        topic_partition=item,
    )


def _refusal(context: Context, judged: JudgedPartition) -> Refusal:
    item, partition = judged.topic_partition, judged.source_partition
    number = f"partition {partition.source_partition_id}, generation {partition.generation}"
    if judged.ledger_match is LedgerMatch.OTHER:
        return Refusal(
            name=item.name,
            reason="recreated",
            detail=f"the topic was deleted and recreated after it was read up to offset "
            f"{partition.reached} ({number}); any later records of the old topic are lost. "
            f"`{_accept_words(context, item.name)}` reads the new topic from its start",
        )
    what = f"it now ends at offset {item.end}"
    if judged.lost_from < item.end:
        what = f"it now has other records from offset {judged.lost_from} on"
    return Refusal(
        name=item.name,
        reason="truncated",
        detail=f"{what}, but was read up to {partition.reached} ({number}): the cluster has lost "
        "records, and reuses their offsets. "
        f"`{_accept_words(context, item.name, f'--from {judged.lost_from}')}` reads on from there",
    )


def _accept_words(context: Context, name: str, option: str = "") -> str:
    """The command that accepts a name. A topic's name may begin like an option."""
    words = [option, "--", name] if name.startswith("-") else [name, option]
    return " ".join(word for word in ("semel accept", context.name, *words) if word)


def _late_join_refusal(item: FoundPartition) -> Refusal:
    return Refusal(
        name=item.name,
        reason="gone",
        detail=f"offsets 0 to {item.low} were deleted before a plan saw this new partition; the "
        "next plan prints the command to continue",
    )


def lost_refusal(context: Context, lost: LostRange, spans: list[tuple[int, int]]) -> Refusal:
    """As `Source.refuse_lost`."""
    partition = lost.partition
    ranges = ", ".join(f"{start} to {end}" for start, end in spans)
    return Refusal(
        name=partition.name,
        reason="gone",
        detail=f"offsets {ranges} (partition {partition.source_partition_id}, generation "
        f"{partition.generation}) were never read and no longer exist: the topic's retention has "
        "passed, or it was deleted. "
        f"`{_accept_words(context, partition.name, '--lost')}` records them as lost and reads on",
    )
