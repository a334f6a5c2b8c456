"""Decides what a plan does with each object. Its key is its source partition for ever; its etag
shows whether it is still the version that was read.

So semel hashes nothing. It never reads a new version of a key by itself once something of an older
version is claimed. A copy under another key is another object.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from semel.errors import SourceError
from semel.sources import (
    Acceptance,
    LedgerView,
    LostRange,
    MatchResult,
    Partition,
    Refusal,
    Window,
    accept_command,
    in_window,
)
from semel.sources.objects.listing import ObjectListing, ObjectPart
from semel.sources.sealed.matching import (
    NameMatch,
    PartDecision,
    Twin,
    accept_new_content,
    accept_unrefused,
    describe_partition,
    judge,
    make_offer,
    partitions_by_name,
    refusal,
)
from semel.sources.sealed.parts import PartAccess, PartInspection, PartOffer

InspectAll = Callable[[list[ObjectPart]], Iterable[PartInspection]]
"""Inspects parts, several at once. Raises FileNotFoundError if one changed since it was listed."""


class ObjectAccess(PartAccess, Protocol):
    """A source of objects, for these functions."""

    def is_whole_key(self, key: str) -> bool:
        """Whether an object is read at once, as one range."""


@dataclass(frozen=True, kw_only=True)
class _JudgedObject:
    part: ObjectPart
    partition: Partition | None
    name_match: NameMatch

    # Keeps OB1.
    @property
    def is_replaced(self) -> bool:
        """Whether an operator decides, by the table of sealed parts. A copy is another object."""
        return judge(self.name_match, Twin.NONE, by_position=True) is PartDecision.CHANGED

    @property
    def is_claimed(self) -> bool:
        """Whether batches have claimed the whole object, so that no plan opens it again."""
        partition = self.partition
        return self.name_match is NameMatch.SAME and partition.reached >= partition.seen > 0


def _judge_all(ledger: LedgerView, parts: list[ObjectPart]) -> list[_JudgedObject]:
    """Compare each part with the partition of its key."""
    partitions = partitions_by_name(ledger, parts)
    return [
        _JudgedObject(part=part, partition=partition, name_match=_match_name(part, partition))
        for part, partition in ((part, partitions.get(part.name)) for part in parts)
    ]


def _match_name(part: ObjectPart, partition: Partition | None) -> NameMatch:
    if partition is None:
        return NameMatch.FREE
    if partition.fingerprint == part.fingerprint:
        return NameMatch.SAME
    return NameMatch.OTHER if partition.reached else NameMatch.UNREAD


def match(
    source: ObjectAccess,
    listing: ObjectListing,
    ledger: LedgerView,
    window: Window,
    inspect_all: InspectAll,
) -> MatchResult:
    """As `Source.match`."""
    offers, refused, begun = [], [], []
    all_judged = _judge_all(ledger, ledger.unsettled)
    doubtful = {refusal.name for refusal in ledger.refusals}
    # Keeps OB16.
    parts = [
        replace(j.part, doubtful=j.part.name in doubtful) for j in all_judged
        if not j.is_replaced and not j.is_claimed
        and (in_window(j.part.when, window) or j.part.name in doubtful)
    ]  # fmt: skip
    inspections = {inspection.part.name: inspection for inspection in inspect_all(parts)}
    for judged in all_judged:
        inspection = inspections.get(judged.part.name)
        if judged.is_replaced:
            refused.append(_refuse_replaced(source, judged))
        elif inspection is not None and inspection.refusal:
            refused.append(inspection.refusal)
        elif inspection is not None and in_window(judged.part.when, window):
            offers.append(_object_offer(source, inspection, judged.partition))
            if judged.partition is None and not inspection.rows:
                begun.append(offers[-1])
        elif judged.partition is not None:
            offers.append(_offer_nothing(source, judged))
    lost = _lost_ranges(listing, ledger)
    return MatchResult(offers=offers, refusals=refused, lost_ranges=lost, new_partition_offers=begun)


# Keeps OB3.
def _lost_ranges(listing: ObjectListing, ledger: LedgerView) -> list[LostRange]:
    """The partitions without an object. Those with unread positions count only if the listing's
    scope has their key. Those that are read to their end count once all is finalized, whatever
    the scope, so that later plans can skip them.
    """
    lost, ended = [], []
    listed = listing.listed_names([k.name for k in ledger.partitions])
    for k in ledger.partitions:
        if k.name in listed:
            continue
        if k.settled and k.reached >= k.seen:
            ended.append(k)
        elif k.name in listing.scope:
            lost.append(LostRange(partition=k, seen=max(k.seen, k.reached)))
    if ended:
        ids = [k.source_partition_id for k in ended]
        in_work = {r["id"] for r in ledger.query("objects", "in_work", partitions=ids)}
        lost += [
            LostRange(partition=k, seen=k.seen)
            for k in ended
            if k.source_partition_id not in in_work
        ]
    return lost


def _object_offer(
    source: ObjectAccess, inspection: PartInspection, partition: Partition | None
) -> PartOffer:
    """Offer all of an object."""
    part = inspection.part
    offer = make_offer(inspection, partition, part.fingerprint, end=inspection.rows)
    evidence = {"bytes": part.length, "content": part.fingerprint, "etag": part.etag}
    return replace(offer, all_or_nothing=source.is_whole_key(part.name), evidence=evidence)


def _offer_nothing(source: ObjectAccess, judged: _JudgedObject) -> PartOffer:
    """Offer nothing new of an object that is fully claimed, or whose time is outside the window."""
    partition, is_same = judged.partition, judged.name_match is NameMatch.SAME
    rows = partition.seen if is_same else partition.reached
    inspection = PartInspection(part=judged.part, length=judged.part.length, rows=rows)
    offer = _object_offer(source, inspection, partition)
    if not is_same:  # It was never opened: the next plan inspects it again.
        offer = replace(offer, fingerprint=partition.fingerprint, evidence={}, settled=False)
    return replace(offer, end=rows if judged.is_claimed else 0)


def accept_object(
    source: ObjectAccess, ledger: LedgerView, name: str, inspect_all: InspectAll,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    pipeline = source.context.name
    all_judged = _judge_all(ledger, [part for part in ledger.unsettled if part.name == name])
    judged = next((j for j in all_judged if j.is_replaced), None)
    if judged is None:
        as_what = "an object that was replaced"
        return accept_unrefused(pipeline, name, as_what, may_be=is_open and not same)

    def offer() -> PartOffer:
        (inspection,) = inspect_all([judged.part])
        if inspection.refusal:
            raise SourceError(f"{name!r}: {inspection.refusal.detail}")
        return _object_offer(source, inspection, None)

    as_what = "a new version of an object, with positions of its own"
    return accept_new_content(
        pipeline, name, as_what, judged.partition, offer, same=same, start=start
    )


def _refuse_replaced(source: ObjectAccess, judged: _JudgedObject) -> Refusal:
    context, part = source.context, judged.part
    detail = (
        f"the object was replaced since {describe_partition(source, judged.partition)}: it has "
        f"{part.length} bytes and the etag {part.etag} now. Restore the old object, or read all of "
        f"this one as a new generation: {accept_command(context, part.name)}"
    )
    if context.by_position:
        detail += ". Without a record_id, semel writes the records that it repeats again"
    return refusal(part, "replaced", detail)
