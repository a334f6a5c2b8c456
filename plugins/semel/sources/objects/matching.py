"""Which source partition an object is: its key says so, for ever; and its etag, whether it is what
was read.

So nothing is hashed, and what has another etag under a key of which something was claimed is never
read by itself. A copy under another key is another object.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from semel.errors import SourceError
from semel.sources import (
    Gone,
    Known,
    Matched,
    Partition,
    Refusal,
    Window,
    Word,
    accept_command,
    accepting,
    in_window,
)
from semel.sources.objects.listing import ObjectListing, ObjectPart
from semel.sources.sealed.matching import refusal, show
from semel.sources.sealed.parts import Looked, Opens, PartOffer

Look = Callable[[list[ObjectPart]], Iterable[Looked]]
"""Opens parts, some at once. FileNotFoundError: one is not as it was listed."""


class OpensObjects(Opens, Protocol):
    """What is asked of the source."""

    def is_whole_key(self, key: str) -> bool:
        """Whether an object is read once, as one range."""


class Own(StrEnum):
    """What is known under an object's key."""

    NOTHING = "nothing"
    UNREAD = "unread"
    """Another object, of which nothing was claimed."""
    SAME = "same"
    """This object."""
    OTHER = "other"
    """Another object, of which something was claimed."""


class Does(StrEnum):
    """What a plan does with an object."""

    BEGIN = "begin"
    GO_ON = "go on"
    REPLACED = "replaced"
    """A refusal: a person decides."""


# Keeps OB1.
def judge(own: Own) -> Does:
    """The decision table."""
    return {Own.NOTHING: Does.BEGIN, Own.OTHER: Does.REPLACED}.get(own, Does.GO_ON)


@dataclass(frozen=True, kw_only=True)
class _Judged:
    part: ObjectPart
    held: Partition | None
    own: Own

    @property
    def is_read(self) -> bool:
        """Whether all of it is claimed, so that nobody opens it again."""
        return self.own is Own.SAME and self.held.reached >= self.held.seen > 0


def _judged(known: Known, parts: list[ObjectPart]) -> list[_Judged]:
    """Each part against the partition of its key: the open one, else the newest that was closed."""
    held = {k.name: k for k in known.partitions}
    new = [part.name for part in parts if part.name not in held]
    closed = known.rows("sealed", "closed", names=new) if new else []
    held |= {r["name"]: Partition(**r) for r in closed}
    return [
        _Judged(part=part, held=was, own=_own(part, was))
        for part, was in ((part, held.get(part.name)) for part in parts)
    ]


def _own(part: ObjectPart, held: Partition | None) -> Own:
    if held is None:
        return Own.NOTHING
    if held.fingerprint == part.fingerprint:
        return Own.SAME
    return Own.OTHER if held.reached else Own.UNREAD


def match(
    source: OpensObjects, shown: ObjectListing, known: Known, window: Window, look: Look
) -> Matched:
    """As `Source.match`."""
    offers, refused, begun = [], [], []
    judged = _judged(known, known.unsettled)
    doubtful = {one.name for one in known.refused}
    # Keeps OB16.
    asked = [
        replace(one.part, doubtful=one.part.name in doubtful) for one in judged
        if judge(one.own) is not Does.REPLACED and not one.is_read
        and (in_window(one.part.when, window) or one.part.name in doubtful)
    ]  # fmt: skip
    looked = {one.part.name: one for one in look(asked)}
    for one in judged:
        found = looked.get(one.part.name)
        if judge(one.own) is Does.REPLACED:
            refused.append(_replaced(source, one))
        elif found is not None and found.refused:
            refused.append(found.refused)
        elif found is not None and in_window(one.part.when, window):
            offers.append(offer_of(source, one.part, found, one.held))
            if one.held is None and not found.rows:
                begun.append(offers[-1])
        elif one.held is not None:
            offers.append(_as_it_was(source, one))
    return Matched(
        offers=offers,
        refused=refused,
        gone=_gone(shown, known),
        retired=[],
        renamed=[],
        begun=begun,
        resumed=(),
    )


# Keeps OB3.
def _gone(shown: ObjectListing, known: Known) -> list[Gone]:
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
            gone.append(Gone(partition=k, seen=max(k.seen, k.reached)))
    if over:
        asked = [k.source_partition_id for k in over]
        finalized = {r["id"] for r in known.rows("objects", "finalized", partitions=asked)}
        gone += [
            Gone(partition=k, seen=k.seen) for k in over if k.source_partition_id in finalized
        ]
    return gone


def offer_of(
    source: OpensObjects, part: ObjectPart, looked: Looked, held: Partition | None
) -> PartOffer:
    """What may be read of an object."""
    return PartOffer(
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        known=held,
        end=looked.rows,
        whole=source.is_whole_key(part.name),
        seen=looked.rows,
        ahead=looked.rows,
        evidence={"bytes": part.length, "content": part.fingerprint, "etag": part.etag},
        part=part,
        length=part.length,
        content=part.fingerprint,
    )


def _as_it_was(source: OpensObjects, one: _Judged) -> PartOffer:
    """An object that is read, or whose time is another one: nothing of it may be read now."""
    rows = one.held.seen if one.own is Own.SAME else one.held.reached
    offer = offer_of(source, one.part, Looked(part=one.part, length=0, rows=rows), one.held)
    if one.own is not Own.SAME:  # It was never opened: the next plan looks at it again.
        offer = replace(offer, fingerprint=one.held.fingerprint, evidence={}, settled=False)
    return replace(offer, end=rows if one.is_read else 0)


def word(
    source: OpensObjects, known: Known, name: str, look: Look,
    *, same: bool, start: int, is_open: bool,
) -> Word | None:
    """As `Source.accept`."""
    pipeline = source.context.name
    found = _judged(known, [part for part in known.unsettled if part.name == name])
    if not found or judge(found[0].own) is not Does.REPLACED:
        if is_open and not same:
            return None
        raise SourceError(
            f"{name!r} is not refused as an object that was replaced, so there is nothing to "
            "accept",
            next=f"semel gaps {pipeline}",
        )
    one = found[0]
    if same or start:
        raise SourceError(
            f"{name!r} is another object than was read, and its positions are others: all of it "
            "is accepted, or nothing",
            next=accepting(pipeline, name),
        )
    (looked,) = look([one.part])
    if looked.refused:
        raise SourceError(f"{name!r}: {looked.refused.detail}")
    offer = offer_of(source, one.part, looked, None)
    return Word(offer=offer, ended=[] if one.held.closed else [one.held], superseded=[])


def _replaced(source: OpensObjects, one: _Judged) -> Refusal:
    context, part = source.context, one.part
    detail = (
        f"it is another object than was read as {show(source, one.held)}: it has {part.length} "
        f"bytes and the etag {part.etag} now. Put back what was there, or "
        f"{accept_command(context, part.name)} reads all of it as a new generation"
    )
    if context.by_position:
        detail += "; without a record_id, what it repeats is written again"
    return refusal(part, Does.REPLACED, detail)
