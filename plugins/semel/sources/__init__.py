"""The seam to sources: where records come from, and what tells one part of it from another.

A position is a source partition and an int64, for every source: plan, claims, stage and catalog
know no more of it. What a source partition is (a generation of a file, a partition of a topic), how
it is recognised, and how its records are read is its source's own.

How a plan asks a source:
1. `discover`: what it shows now;
2. the ledger says which of that is settled, and what it knows of the rest (`Known`);
3. `match`: what is offered, refused, closed; it is pure but for looking again at what it shows;
4. the ledger says what of the offers is free, and `stop` cuts it where a record ends.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from semel.model.batch import Claim

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.ledger import Row
    from semel.model.split import Split

Spans = dict[int, list[tuple[int, int]]]
"""By source partition: ranges [start, end), ascending."""

Window = tuple[datetime, datetime] | None
"""The times that a plan asks for; None: all."""

Evidence = dict[str, Any]
"""What recognises a source partition, as JSON: its source's own."""


class Found(Protocol):
    """Something that a source shows, which may be a source partition.

    `identity` is the same under another name; of all open partitions, name and identity are each
    one's own. `fingerprint` differs when there may be something to read. `when` is its place in
    time, for `select: interval`.
    """

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def when(self) -> datetime | None: ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What plan leaves alone, and why. Its records stay unclaimed until that is settled.

    `when` is its place in time; None where that is not known, or has no meaning. Of a file that may
    be a copy: its inode and size, the name of the file that it is a copy of, and where what it
    holds beyond that begins, if it does.
    """

    name: str
    reason: str
    detail: str
    when: datetime | None = None
    inode: int | None = None
    size: int | None = None
    copy_of: str | None = None
    behind: int | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A source partition of the ledger that is not retired: what was claimed of it, up to
    `reached`, and how it looked when a plan last saw it, up to `seen`.

    `settled`: while it looks the same, and is read to the end, no plan need look at it.
    """

    source_partition_id: int
    name: str
    generation: int
    identity: str
    fingerprint: str
    settled: bool
    reached: int
    seen: int
    evidence: Evidence
    closed: bool

    def __str__(self) -> str:
        return (
            f"{self.name!r} (partition {self.source_partition_id}, generation {self.generation}, "
            f"read up to {self.reached})"
        )

    @classmethod
    def of(cls, other: "Partition") -> Self:
        """The same, as its source sees it."""
        return cls(**vars(other))


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a source shows now, oldest first, and what of it cannot be told apart or read."""

    found: Sequence[Found]
    refused: list[Refusal]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the ledger knows of what a source shows.

    `partitions` are open and not settled; `unsettled` is what is shown and none of the others is.
    `refused` is what the last plan refused. `rows` runs a query of the source's own.
    """

    partitions: list[Partition]
    unsettled: list[Any]
    refused: list[Refusal]
    rows: "Callable[..., list[Row]]"


def nothing_known(shown: Shown) -> Known:
    """What the ledger knows before a first plan."""
    return Known(
        partitions=[], unsettled=list(shown.found), refused=[], rows=lambda *_, **__: []
    )


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What may be read now: positions [start, end) of `known`, or of a partition that is new.

    `whole`: as one range or not at all. Before `start` no record stands, which is written down as
    a loss for that `reason`. What was before `low` is gone: what of it nobody claimed is missing.
    What is free before `since` belongs to another time. `seen` is the end of what is there, `ahead`
    also of what cannot be read yet. `evidence`: what recognises it besides what is read of it. Not
    `settled`: a plan looks again.
    """

    name: str
    identity: str
    fingerprint: str
    known: Partition | None
    start: int = 0
    reason: str = "hole"
    low: int = 0
    since: int = 0
    end: int = 0
    whole: bool = False
    seen: int = 0
    ahead: int = 0
    evidence: Evidence = field(default_factory=dict)
    settled: bool = True


@dataclass(frozen=True, kw_only=True)
class Range:
    """What a plan takes of one offer: positions [start, end); and what recognises it at `end`."""

    offer: Offer
    start: int
    end: int
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Gone:
    """An open partition that is not there any more, or has a new life, with the end of what was
    seen of it; or one of which what was before `seen` is not there. `where`: what holds it now, if
    that is in the source and is not read.
    """

    partition: Partition
    seen: int
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class Matched:
    """What a source made of what it shows and what is known: nothing is decided twice."""

    offers: list[Offer]
    """Oldest first."""
    refused: list[Refusal]
    gone: list[Gone]
    retired: list[int]
    """Partitions that a new one holds all of."""
    renamed: list[Partition]
    """Known ones that are not offered, as they are called now."""
    begun: list[Offer]
    """What gets a new partition even if nothing is taken of it."""
    resumed: tuple[tuple[str, str], ...]
    """(name, known name) of what is known by what is in it."""


class Settled(NamedTuple):
    """A source partition of a batch, and its position up to which all is finalized or lost."""

    name: str
    identity: str
    end: int


@dataclass(frozen=True, kw_only=True)
class Word:
    """What accepting a refused name comes to.

    `offer` is read on in its known partition, or from its start in a new one. `ended` are the
    partitions that it takes the place of; `superseded` those that it holds all of.
    """

    offer: Offer
    ended: list[Partition]
    superseded: list[Partition]


class Source(Protocol):
    """Where the records of a pipeline come from.

    Made from a pipeline's spec in the driver; it goes to tasks as it is, holds no secret, and no
    connection between calls.
    """

    split_size: int
    """The positions of one split, about."""

    def discover(self) -> Shown:
        """What is there now, whatever interval it belongs to. In the driver, in no transaction."""
        ...

    def match(self, shown: Shown, known: Known, window: Window) -> Matched:
        """What each of it is, and what may be read. Changes nothing; in the driver.

        FileNotFoundError: it changed meanwhile; look again.
        """
        ...

    def gone(self, gone: Gone, spans: list[tuple[int, int]]) -> Refusal:
        """What is said of positions that were seen, never read, and are not there any more."""
        ...

    def stop(self, offer: Offer, start: int, end: int, room: int, *, first: bool) -> int:
        """The last end of a record in (start, end] that is `room` behind start at most; `start`
        when there is none. `first`: nothing was taken before, so one record is taken in any case.

        LimitError: it cannot be cut, and is too large.
        """
        ...

    def room(self, offers: Sequence[Offer]) -> int:
        """How many positions of these one batch takes at most, by the declared limits."""
        ...

    def evidence(self, offer: Offer, end: int) -> Evidence:
        """What recognises an offer of which the positions before `end` are read."""
        ...

    def accept(
        self, shown: Shown, known: Known, name: str, *, same: bool, start: int, is_open: bool
    ) -> Word | None:
        """What accepting a name means: to read it from `start` as a new generation, or as
        the `same` partition. None: it is read already, in the partition that `is_open` under it.

        SourceError: the word cannot be taken. FileNotFoundError: look again.
        """
        ...

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        """Where the partitions of a lost ledger are now, as they look now; None: nowhere."""
        ...

    def find(self, claims: Collection[Claim], batch_id: int) -> list[Claim]:
        """The same claims, proven, where their records are now. In the driver, before the job.

        SourceError names what changed since the plan; ChangedError, when something else is there.
        """
        ...

    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        """Prove that each claimed range is still what was planned. SourceError."""
        ...

    def acknowledge(self, settled: Sequence[Settled]) -> str | None:
        """Tell it up to which position each partition is finalized, if it is still that one. After
        `finalized`, where the declaration says that it is to be told.

        For other tools alone: it may be lost or repeated, and nothing of semel's reads it. Returns
        what an operator should know: of which it was not told, and why.
        """
        ...

    def is_whole(self, claim: Claim) -> bool:
        """Whether a claim is read by one task."""
        ...

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        """The records of a split in ascending positions; in a task. Repeatable: the same claim
        gives the same blocks, and the same bytes to `digest`, whatever the `selection` leaves out.

        SourceError: it is not what was planned, any more.
        """
        ...

    def joins(self, claim: Claim) -> bool:
        """Whether a claim's bytes may be parsed together with those of others."""
        ...

    def text(self, split: "Split", batch_id: int) -> bytes:
        """The bytes of a split whose claim `joins`. SourceError as in `read`."""
        ...

    def lines_of(
        self, claim: Claim, positions: Sequence[int], batch_id: int
    ) -> list[int | None]:
        """The numbers, from 1 on, of the lines at ascending positions of a claim. None: what was
        claimed is not there any more, it has no lines, or counting them takes too long.
        """
        ...

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """A number that the split's records cannot be more than; None: that takes too long."""
        ...


def in_window(when: datetime | None, window: Window) -> bool:
    """Whether a time lies in a window; all do when there is none."""
    return window is None or (when is not None and window[0] <= when < window[1])


def unclaimed(offer: Offer, free: Spans) -> list[tuple[int, int]]:
    """The ranges of an offer that may be taken. `free`: those of each known partition."""
    known = offer.known
    spans = free.get(known.source_partition_id, []) if known else [(0, offer.end)]
    first = max(offer.start, offer.low, offer.since)
    spans = [(max(start, first), end) for start, end in spans]
    return [(start, end) for start, end in spans if start < end]


def as_read(offer: Offer, last: Range | None, *, settled: bool) -> Partition:
    """A known partition as it is once the plan is written. Not `settled`: a plan looks at it
    again, also when it did not change.
    """
    known = offer.known
    further = last is not None and last.end > known.reached
    return replace(
        known,
        name=offer.name,
        identity=offer.identity,
        fingerprint=offer.fingerprint,
        settled=settled and offer.settled,
        reached=last.end if further else known.reached,
        seen=offer.seen,
        evidence=known.evidence | offer.evidence | (last.evidence if further else {}),
        closed=False,
    )


GIVE_UP = "A batch that never committed can be given up"
"""How the advice begins, at the end of an error about claims, for a batch that is not finalized."""


def of_finalized(error: Exception) -> str:
    """What an error about claims says where their batch is finalized; without a full stop."""
    return str(error).partition(f" {GIVE_UP}")[0].removesuffix(".")


def quoted(name: str) -> str:
    """A name as one word of a shell's command."""
    if name.isprintable():
        return shlex.quote(name)
    text = name.replace("\\", "\\\\").replace("'", "\\'")
    # Bytes that are no UTF-8 come as surrogates, which end in the byte's own number.
    odd = r"[\x00-\x1f\x7f\udc80-\udcff]"
    return "$'" + re.sub(odd, lambda c: f"\\x{ord(c[0]) & 0xFF:02x}", text) + "'"
