"""Which source partition an object is: its key says so, for ever; and its etag, whether it is what
was read.

So nothing is hashed, and what has another etag under a key of which something was claimed is never
read by itself. A copy under another key is another object.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from semel.errors import SourceError
from semel.sources import (
    LostRange,
    LedgerView,
    MatchResult,
    Partition,
    Refusal,
    Window,
    Acceptance,
    accept_command,
    in_window,
)
from semel.sources.objects.listing import ObjectListing, ObjectPart
from semel.sources.sealed.matching import (
    PartDecision,
    NameMatch,
    Twin,
    by_name,
    judge,
    new_word,
    offer_of,
    refusal,
    show,
    unrefused,
)
from semel.sources.sealed.parts import Looked, Opens, PartOffer

Look = Callable[[list[ObjectPart]], Iterable[Looked]]
"""Opens parts, some at once. FileNotFoundError: one is not as it was listed."""


class OpensObjects(Opens, Protocol):
    """What is asked of the source."""

    def is_whole_key(self, key: str) -> bool:
        """Whether an object is read once, as one range."""


@dataclass(frozen=True, kw_only=True)
class _Judged:
    part: ObjectPart
    held: Partition | None
    own: NameMatch

    # Keeps OB1.
    @property
    def is_replaced(self) -> bool:
        """Whether a person decides, by the table of sealed parts. A copy is another object."""
        return judge(self.own, Twin.NONE, by_position=True) is PartDecision.CHANGED

    @property
    def is_read(self) -> bool:
        """Whether all of it is claimed, so that nobody opens it again."""
        return self.own is NameMatch.SAME and self.held.reached >= self.held.seen > 0


def _judged(known: LedgerView, parts: list[ObjectPart]) -> list[_Judged]:
    """Each part, with the partition of its key and what the ledger knows under that."""
    held = by_name(known, parts)
    return [
        _Judged(part=part, held=was, own=_own(part, was))
        for part, was in ((part, held.get(part.name)) for part in parts)
    ]


def _own(part: ObjectPart, held: Partition | None) -> NameMatch:
    if held is None:
        return NameMatch.FREE
    if held.fingerprint == part.fingerprint:
        return NameMatch.SAME
    return NameMatch.OTHER if held.reached else NameMatch.UNREAD


def match(
    source: OpensObjects, shown: ObjectListing, known: LedgerView, window: Window, look: Look
) -> MatchResult:
    """As `Source.match`."""
    offers, refused, begun = [], [], []
    judged = _judged(known, known.unsettled)
    doubtful = {one.name for one in known.refusals}
    # Keeps OB16.
    asked = [
        replace(one.part, doubtful=one.part.name in doubtful) for one in judged
        if not one.is_replaced and not one.is_read
        and (in_window(one.part.when, window) or one.part.name in doubtful)
    ]  # fmt: skip
    looked = {one.part.name: one for one in look(asked)}
    for one in judged:
        found = looked.get(one.part.name)
        if one.is_replaced:
            refused.append(_replaced(source, one))
        elif found is not None and found.refused:
            refused.append(found.refused)
        elif found is not None and in_window(one.part.when, window):
            offers.append(_offer_of(source, found, one.held))
            if one.held is None and not found.rows:
                begun.append(offers[-1])
        elif one.held is not None:
            offers.append(_as_it_was(source, one))
    gone = _gone(shown, known)
    return MatchResult(
        offers=offers, refusals=refused, lost_ranges=gone, new_partition_offers=begun
    )


# Keeps OB3.
def _gone(shown: ObjectListing, known: LedgerView) -> list[LostRange]:
    """The partitions that were not read to their end, of keys that would be listed if they were
    there. And those of other keys, or deleted ones, of which all is finalized: plans need not see
    them any more.
    """
    gone, over = [], []
    there = shown.shows([k.name for k in known.partitions])
    for k in known.partitions:
        if k.name in there:
            continue
        if k.settled and k.reached >= k.seen:
            over.append(k)
        elif k.name in shown.scope:
            gone.append(LostRange(partition=k, seen=max(k.seen, k.reached)))
    if over:
        asked = [k.source_partition_id for k in over]
        finalized = {r["id"] for r in known.query("objects", "finalized", partitions=asked)}
        gone += [
            LostRange(partition=k, seen=k.seen) for k in over if k.source_partition_id in finalized
        ]
    return gone


def _offer_of(source: OpensObjects, looked: Looked, held: Partition | None) -> PartOffer:
    """What may be read of an object."""
    part = looked.part
    offer = offer_of(looked, held, part.fingerprint, end=looked.rows)
    evidence = {"bytes": part.length, "content": part.fingerprint, "etag": part.etag}
    return replace(offer, all_or_nothing=source.is_whole_key(part.name), evidence=evidence)


def _as_it_was(source: OpensObjects, one: _Judged) -> PartOffer:
    """An object that is read, or whose time is another one: nothing of it may be read now."""
    rows = one.held.seen if one.own is NameMatch.SAME else one.held.reached
    looked = Looked(part=one.part, length=one.part.length, rows=rows)
    offer = _offer_of(source, looked, one.held)
    if one.own is not NameMatch.SAME:  # It was never opened: the next plan looks at it again.
        offer = replace(offer, fingerprint=one.held.fingerprint, evidence={}, settled=False)
    return replace(offer, end=rows if one.is_read else 0)


def word(
    source: OpensObjects, known: LedgerView, name: str, look: Look,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    pipeline = source.context.name
    judged = _judged(known, [part for part in known.unsettled if part.name == name])
    one = next((one for one in judged if one.is_replaced), None)
    if one is None:
        as_what = "an object that was replaced"
        return unrefused(pipeline, name, as_what, may_be=is_open and not same)

    def offer() -> PartOffer:
        (looked,) = look([one.part])
        if looked.refused:
            raise SourceError(f"{name!r}: {looked.refused.detail}")
        return _offer_of(source, looked, None)

    as_what = "another object than was read, and its positions are others"
    return new_word(pipeline, name, as_what, one.held, offer, same=same, start=start)


def _replaced(source: OpensObjects, one: _Judged) -> Refusal:
    context, part = source.context, one.part
    detail = (
        f"it is another object than was read as {show(source, one.held)}: it has {part.length} "
        f"bytes and the etag {part.etag} now. Put back what was there, or "
        f"{accept_command(context, part.name)} reads all of it as a new generation"
    )
    if context.by_position:
        detail += "; without a record_id, what it repeats is written again"
    return refusal(part, "replaced", detail)
