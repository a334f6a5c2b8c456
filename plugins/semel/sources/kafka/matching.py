"""Which source partition each partition of a topic is, and what of it may be read now."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial

from semel.clients.kafka.cluster import Cluster
from semel.declare.context import Context
from semel.errors import SourceError
from semel.sources import (
    LostRange,
    LedgerView,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    Window,
    Acceptance,
)
from semel.sources.kafka import epochs
from semel.sources.kafka.edges import Edges, find_edges
from semel.sources.kafka.epochs import ReadPosition
from semel.sources.kafka.topics import FoundPartition, Place, ShownTopics


class LedgerMatch(StrEnum):
    """What the ledger holds of a partition that a cluster shows."""

    NOTHING = "nothing"
    OPEN = "open"
    """An open source partition of this topic id."""
    CLOSED = "closed"
    """One that was not to be seen for a while."""
    OTHER = "other"
    """Its name is open, under the id of an earlier topic of that name."""


class TopicDecision(StrEnum):
    """What a plan does with it."""

    BEGIN = "begin"
    """It is new, and so is its topic: what is there is read, what was there before is not."""
    JOIN = "join"
    """It is new in a topic that is known: all that was ever in it is read."""
    GO_ON = "go on"
    REFUSE = "refuse"


# Keeps KS2.
def judge(held: LedgerMatch, topic_known: bool, lost: bool) -> TopicDecision:
    """The decision table: all sixteen cases.

    `lost`: it lost records that were read, so that their offsets are given to others.
    """
    match held, topic_known, lost:
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
    """A partition of a topic that is read on, or as a new source partition."""

    found: FoundPartition


@dataclass(frozen=True, kw_only=True)
class JudgedPartition:
    """A partition of a topic, the source partition that it is or was, and what a plan does.

    `lost`: the offset from which on the cluster has lost what was read, if it has.
    """

    found: FoundPartition
    held: LedgerMatch
    known: Partition | None
    lost: int | None
    does: TopicDecision


def match(
    context: Context, cluster: Cluster, shown: ShownTopics, known: LedgerView, window: Window
) -> MatchResult:
    """As `Source.match`."""
    judged = judge_all(cluster, known)
    edges = None
    if window is not None and judged:
        before = partial(_reached, judged, known)
        edges = find_edges(cluster, [one.found for one in judged], window, before)
    offers, begun, refused = [], [], []
    for one in judged:
        if one.does is TopicDecision.REFUSE:
            refused.append(_refused(context, one))
            continue
        offer = offer_of(one, edges)
        if one.known is None:
            begun.append(offer)
        if one.does is TopicDecision.JOIN and one.found.low:
            refused.append(_joined_late(one.found))
        else:
            offers.append(offer)
    there = {item.identity for item in shown.items}
    named = {item.name for item in shown.items}
    gone = [
        LostRange(partition=k, seen=max(k.seen, k.reached))
        for k in known.partitions
        # One whose name has another topic now waits for a person's word.
        if k.identity not in there and k.name not in named
    ]
    return MatchResult(
        offers=offers, refusals=refused, lost_ranges=gone, new_partition_offers=begun
    )


def word(
    context: Context, cluster: Cluster, known: LedgerView, name: str,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    one = next((one for one in judge_all(cluster, known) if one.found.name == name), None)
    if one is None or one.does is not TopicDecision.REFUSE:
        if is_open and not same:
            return None
        raise SourceError(
            f"{name!r} is not refused as a topic that was made anew or lost records at its end, so "
            "there is nothing to accept",
            next=f"semel gaps {context.name}",
        )
    found = one.found
    if same:
        raise _not_same(context, one)
    if one.held is not LedgerMatch.OTHER:
        # Keeps A3. What was read before that offset is there still, and is not read twice.
        start = start or one.lost
    if start and not found.low <= start <= found.end:
        raise SourceError(
            f"no record of {name!r} is at offset {start}: those from {found.low} to {found.end} "
            "can be read"
        )
    offer = offer_of(replace(one, known=None, does=TopicDecision.BEGIN), None)
    if start:
        offer = replace(offer, start=start, reason="repeated")
    return Acceptance(offer=offer, replaced_partitions=[one.known])


def _not_same(context: Context, one: JudgedPartition) -> SourceError:
    name, option = one.found.name, ""
    what = f"{name!r} cannot go on where it was read to: its offsets"
    if one.held is not LedgerMatch.OTHER:
        what, option = f"{what} from offset {one.lost} on", f"--from {one.lost}"
    return SourceError(
        f"{what} are given to other records now; accept these as a new generation instead",
        next=_accepting(context, name, option),
    )


def judge_all(cluster: Cluster, known: LedgerView) -> list[JudgedPartition]:
    """What a plan does with each partition that is not as it was, or not read to its end."""
    held = _held(known, known.unsettled)
    ours = {i: p for i, (h, p, _) in held.items() if h in (LedgerMatch.OPEN, LedgerMatch.CLOSED)}
    read = {item.place: ReadPosition.of(partition) for item, partition in ours.items()}
    lost = epochs.lost(cluster, read, {item.place: item.extent for item in ours})
    return [
        JudgedPartition(
            found=item,
            held=state,
            known=partition,
            lost=lost.get(item.place),
            does=judge(state, topic_known, item.place in lost),
        )
        for item, (state, partition, topic_known) in held.items()
    ]


def _held(
    known: LedgerView, unsettled: list[FoundPartition]
) -> dict[FoundPartition, tuple[LedgerMatch, Partition | None, bool]]:
    """What the ledger holds of each, and whether it knows another part of its topic.

    Closed partitions are asked for, and topics only where one of their partitions is new.
    """
    by_identity = {k.identity: k for k in known.partitions}
    by_name = {k.name: k for k in known.partitions}
    new = [f for f in unsettled if f.identity not in by_identity]
    closed, topics = {}, set()
    if new:
        found = known.query("kafka", "closed", identities=[f.identity for f in new])
        closed = {r["identity"]: Partition(**r) for r in found}
        asked = sorted({f.topic_id for f in new})
        topics = {r["topic"] for r in known.query("kafka", "topics", topics=asked)}
    held = {}
    for found in unsettled:
        mine = by_identity.get(found.identity)
        if mine is not None:
            held[found] = LedgerMatch.OPEN, mine, True
        elif found.identity in closed:
            held[found] = LedgerMatch.CLOSED, closed[found.identity], True
        elif found.name in by_name:
            held[found] = LedgerMatch.OTHER, by_name[found.name], False
        else:
            held[found] = LedgerMatch.NOTHING, None, found.topic_id in topics
    return held


def _reached(judged: list[JudgedPartition], known: LedgerView, until: datetime) -> dict[Place, int]:
    """How far batches of intervals that ended by a time have come in each partition."""
    places = {
        one.known.source_partition_id: (one.found.topic, one.found.partition)
        for one in judged
        if one.does is TopicDecision.GO_ON
    }
    found = known.query("kafka", "reached", until=until, partitions=list(places))
    return {places[r["source_partition_id"]]: r["reached"] for r in found}


def offer_of(one: JudgedPartition, edges: Edges | None) -> PartitionOffer:
    """What may be read of a partition, in a window."""
    found, known = one.found, one.known
    since, end = 0, found.end
    if edges is not None:
        since, end = (
            found.end if edge[found.topic, found.partition] < 0
            else min(edge[found.topic, found.partition], found.end)
            for edge in edges
        )  # fmt: skip
    begins = one.does is TopicDecision.BEGIN
    return PartitionOffer(
        name=found.name,
        identity=found.identity,
        fingerprint=found.fingerprint,
        partition=known,
        # Keeps KS4.
        start=found.low if begins else 0,
        reason="before",
        low=0 if begins else found.low,
        since=since,
        end=end,
        seen=found.end,
        ahead=end if end < found.end else found.high,
        # What is free before an interval is no hole, and what is open may become a record.
        settled=edges is None and found.end == found.high,
        evidence=epochs.evidence(found.topic_id, found.extent),
        found=found,
    )


def _refused(context: Context, one: JudgedPartition) -> Refusal:
    found, known = one.found, one.known
    number = f"partition {known.source_partition_id}, generation {known.generation}"
    if one.held is LedgerMatch.OTHER:
        return Refusal(
            name=found.name,
            reason="recreated",
            detail=f"the topic was deleted and made anew since it was read up to offset "
            f"{known.reached} ({number}); what came after that and was deleted with it is gone. "
            f"`{_accepting(context, found.name)}` reads the new topic from its start",
        )
    what = f"it ends at offset {found.end}"
    if one.lost < found.end:
        what = f"it has other records from offset {one.lost} on"
    return Refusal(
        name=found.name,
        reason="truncated",
        detail=f"{what}, and was read up to {known.reached} ({number}): the cluster lost records, "
        "and gives their offsets to others. "
        f"`{_accepting(context, found.name, f'--from {one.lost}')}` reads what comes from there on",
    )


def _accepting(context: Context, name: str, option: str = "") -> str:
    """The command that accepts a name. A topic's may begin like an option."""
    words = [option, "--", name] if name.startswith("-") else [name, option]
    return " ".join(word for word in ("semel accept", context.name, *words) if word)


def _joined_late(found: FoundPartition) -> Refusal:
    return Refusal(
        name=found.name,
        reason="gone",
        detail=f"offsets 0 to {found.low} were deleted before a plan saw this new partition; the "
        "next plan names the command that goes on",
    )


def gone(context: Context, gone: LostRange, spans: list[tuple[int, int]]) -> Refusal:
    """As `Source.gone`."""
    known = gone.partition
    shown = ", ".join(f"{start} to {end}" for start, end in spans)
    return Refusal(
        name=known.name,
        reason="gone",
        detail=f"offsets {shown} (partition {known.source_partition_id}, generation "
        f"{known.generation}) were never read, and the cluster does not have them any more: they "
        "passed the topic's retention, or were deleted with it. "
        f"`{_accepting(context, known.name, '--lost')}` records them as lost, and what comes after "
        "them is read",
    )
