"""The source seam: where records come from, and how source partitions are told apart.

In every source, a position is a source partition and an int64. Plan, claims, stage and catalog know
nothing more about it. Each source decides what a source partition is (a generation of a file, a
partition of a topic), how to recognise it, and how to read its records.

How a plan asks a source:
1. `narrowed` may leave out what no plan of its times can take, and `discover` lists what the
   source shows now;
2. the ledger says which of that is settled, and adds what it knows about the rest (`LedgerView`);
3. `match` sorts it into offers, refusals and closed partitions; it is pure, except that it may read
   again what the source shows;
4. the ledger says which ranges of the offers are free, and `stop` cuts them at a record's end.
"""

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from semel.declare.wording import count, size
from semel.errors import AGAIN, SourceError, TerminalError
from semel.model.batch import Claim

if TYPE_CHECKING:
    from semel.declare.context import Context
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.ledger import Row
    from semel.model.split import Split

Spans = dict[int, list[tuple[int, int]]]
"""Ranges [start, end) by source partition, ascending."""

PRIVATE = re.compile(r"(?:^|/)[_.]")
"""Paths and keys with a part that begins so are notes of those who write (_SUCCESS), or not in their
place yet (_temporary/a). A pattern with such a part takes them all the same."""

TABLE_LOG = "_delta_log"
"""A folder with one of this name is a Delta table: its log alone says which files count."""

Window = tuple[datetime, datetime] | None
"""The times that a plan asks for. None: all times."""

Evidence = dict[str, Any]
"""JSON that recognises a source partition. Only its own source can interpret it."""


@dataclass(kw_only=True)
class ReceiveResult:
    """What a receive has put into the spool. `size`: bytes of the values. `redelivered`: messages
    of which the queue said that it delivers them again. `unacknowledged`: those whose
    acknowledgement failed: they come again. `oldest_seconds`: how long the oldest had waited.
    `ended_by`: the bound that was reached, as `until.seconds`, or `a signal`. `waiting`: about how
    many messages the queue had then, where another bound than `idle` ended it. None: not known.
    """

    messages: int = 0
    redelivered: int = 0
    size: int = 0
    segments: int = 0
    unacknowledged: int = 0
    oldest_seconds: float | None = None
    ended_by: str | None = None
    waiting: int | None = None

    def describe(self) -> str:
        """In words."""
        again = f" ({self.redelivered:,} redelivered so far)" if self.redelivered else ""
        of = f"{count(self.messages, 'message')}{again}"
        left = ""
        if self.waiting:
            wait = "1 message waits" if self.waiting == 1 else f"{self.waiting:,} messages wait"
            left = f"; {self.ended_by} ended it, and about {wait} in the queue"
        if not self.messages:
            return f"no message came{left}"
        said = f"{of}, {size(self.size)} in {count(self.segments, 'segment')}"
        if self.unacknowledged:
            said += f"; {self.unacknowledged:,} of them come again, as they were not acknowledged"
        else:
            said += ", acknowledged"
        if self.oldest_seconds is not None:
            said += f"; the oldest waited {self.oldest_seconds:,.0f} s"
        return said + left


class SourceItem(Protocol):
    """Something that a source shows, which may be a source partition.

    `identity` survives a rename. Among open partitions, names and identities are each unique.
    `fingerprint` changes when there may be something to read. `when` places it in time, for
    `select: interval`.
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
    """Something that plan leaves alone, and why. Its records stay unclaimed until that is settled.

    `when` places it in time; None if its time is unknown or meaningless. For a file that may be a
    copy: `inode` and `size` are its own, `copy_of` names the original, and `behind` is where
    content beyond the original begins, if there is any.
    """

    name: str
    reason: str
    detail: str
    when: datetime | None = None
    inode: int | None = None
    size: int | None = None
    copy_of: str | None = None
    behind: int | None = None

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}: {self.detail}"


class RefusedError(SourceError):
    """Something is refused while it is claimed or accepted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal), next=AGAIN)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A source partition in the ledger that is not retired.

    It was claimed up to `reached`, and seen by the last plan up to `seen`. `settled`: plans may
    skip it while it looks the same and is read to the end.
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
        """Convert to this class, the source's own."""
        return cls(**vars(other))


@dataclass(frozen=True, kw_only=True)
class SourceListing:
    """What a source shows now, oldest first, and what it cannot tell apart or read. `notes`: lines
    about what was done for that. `private`: names that only who has read of them reads.
    """

    items: Sequence[SourceItem]
    refusals: list[Refusal]
    notes: tuple[str, ...] = ()
    private: frozenset[str] = frozenset()

    def signatures(self) -> Iterable[str]:
        """How each thing looks, in their order: what the ledger knows of one that is settled.

        Two slashes part the three: no name or identity holds two in a row.
        """
        return (f"{one.name}//{one.identity}//{one.fingerprint}" for one in self.items)

    def items_at(self, places: list[int]) -> list[Any]:
        """The things at some places of `found`."""
        return [self.items[place] for place in places]


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """What the ledger knows about the things that a source shows.

    `partitions` are open and not settled. `unsettled` are the things shown that match no settled
    partition. `refused` are the last plan's refusals. `rows` runs one of the source's own queries.
    `orphans` are planned batches without a sign of life, which this plan may abandon.
    """

    partitions: list[Partition]
    unsettled: list[Any]
    refusals: list[Refusal]
    query: "Callable[..., list[Row]]"
    orphans: frozenset[int] = frozenset()


def empty_ledger_view(shown: SourceListing) -> LedgerView:
    """The ledger's knowledge before the first plan: none."""
    return LedgerView(
        partitions=[], unsettled=list(shown.items), refusals=[], query=lambda *_, **__: []
    )


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Positions [start, end) that may be read now, of `known` or of a new partition.

    `whole`: claim as one range or not at all. There is no record before `start`; that gap is
    recorded as lost, with `reason`. Positions before `low` no longer exist; unclaimed ones count as
    lost. Unclaimed positions before `since` fall outside the window. `seen` is the end of what
    exists; `ahead` includes what cannot be read yet. `evidence` recognises the partition, besides
    the evidence of the range that is read. When `settled` is false, the next plan looks again.
    """

    name: str
    identity: str
    fingerprint: str
    partition: Partition | None
    start: int = 0
    reason: str = "hole"
    low: int = 0
    since: int = 0
    end: int = 0
    all_or_nothing: bool = False
    seen: int = 0
    ahead: int = 0
    evidence: Evidence = field(default_factory=dict)
    settled: bool = True


@dataclass(frozen=True, kw_only=True)
class TakenRange:
    """The positions [start, end) that a plan takes from one offer, and the evidence at `end`."""

    offer: Offer
    start: int
    end: int
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class LostRange:
    """An open partition that has vanished or begun a new life, with `seen`, the end of what was
    seen; or one whose positions before `seen` have vanished. `where` names what holds its content
    now, if the source shows that and does not read it.
    """

    partition: Partition
    seen: int
    content_holder: str | None = None


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """The source's verdict on what it shows and what is known. Each thing is decided once."""

    offers: list[Offer]
    """Oldest first."""
    refusals: list[Refusal]
    lost_ranges: list[LostRange]
    retired_ids: list[int] = field(default_factory=list)
    """Partitions that a new one contains entirely."""
    renamed_partitions: list[Partition] = field(default_factory=list)
    """Known partitions that are not offered, under their current names."""
    new_partition_offers: list[Offer]
    """Offers that get a new partition even if no range is taken from them."""
    resumed_names: tuple[tuple[str, str], ...] = ()
    """(name, known name) of partitions recognised by their content."""
    released_batches: tuple[int, ...] = ()
    """Orphans to abandon even if no range is taken: the source has replaced what they claimed."""
    notes: tuple[str, ...] = ()
    """Lines for the log about what is left to a batch that has not committed."""


class SettledPartition(NamedTuple):
    """A source partition of a batch, and the position up to which all is finalized or lost."""

    name: str
    identity: str
    end: int


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The effect of accepting a refused name.

    `offer` is read on in its known partition, or from its start in a new one. `ended` are the
    partitions that it replaces; `superseded` are those that it contains entirely.
    """

    offer: Offer
    replaced_partitions: list[Partition]
    superseded_partitions: list[Partition] = field(default_factory=list)


class ExecutorCheck(NamedTuple):
    """What tasks of `semel check` do on their executors: call `look` of a module with `values`. It
    raises what is wrong there, of which `part` is the name.

    `right`, `remedy`: what is said where nothing is wrong, and what to do where something is.
    """

    part: str
    module: str
    values: tuple[Any, ...]
    success: str
    remedy: str


class Source(ABC):
    """Where the records of a pipeline come from.

    The driver makes it from a pipeline's spec and sends it to tasks as it is. It holds no secret,
    and no connection between calls.
    """

    split_size: int
    """The approximate number of positions in one split."""

    def narrow(
        self, window: Window, rows: "Callable[..., list[Row]]"  # noqa: ARG002 - most list all
    ) -> "Source":
        """The same source, whose `discover` leaves out what no plan of these times can take. Before
        that, in the driver. `rows`: as of `LedgerView`. What is left out is not gone.
        """
        return self

    @abstractmethod
    def discover(self) -> SourceListing:
        """List what exists now, in any interval. In the driver, outside any transaction."""

    def is_complete(self, shown: SourceListing) -> bool:  # noqa: ARG002 - what is there, is there
        """Whether nothing from before is still to come to what is shown. In the driver, when a
        plan would leave nothing.
        """
        return True

    @abstractmethod
    def match(self, shown: SourceListing, known: LedgerView, window: Window) -> MatchResult:
        """Classify what is shown, and offer what may be read. Changes nothing; in the driver.

        FileNotFoundError: the source changed meanwhile; look again.
        """

    def unread_since(
        self, found: SourceItem, known: Partition | None  # noqa: ARG002 - most have one time
    ) -> datetime | None:
        """Since when the unread part of something shown has been written, where its time is that of
        its last write. In the driver, when a plan does not take it. Returns None if nothing tells
        that, or if its time is that of all its records.
        """
        return None

    @abstractmethod
    def refuse_lost(self, gone: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        """The refusal shown for positions that vanished before anyone read them."""

    @abstractmethod
    def last_record_end(self, offer: Offer, start: int, end: int, room: int, *, first: bool) -> int:
        """The last end of a record in (start, end], at most `room` after `start`; `start` if there
        is none. `first`: nothing has been taken yet, so one record is taken in any case.

        LimitError: it is too large and cannot be cut.
        """

    @abstractmethod
    def capacity(self, offers: Sequence[Offer]) -> int:
        """The positions of these offers that one batch may take, by the declared limits."""

    @abstractmethod
    def evidence(self, offer: Offer, end: int) -> Evidence:
        """The evidence that recognises an offer once all positions before `end` are read.

        RefusedError: that cannot be told, so nothing of it can be read now.
        """

    @abstractmethod
    def accept(
        self,
        shown: SourceListing,
        known: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        """Decide what accepting a name means: read it from `start` as a new generation, or as the
        `same` partition. None: it is already read, in the partition that `is_open` under this name.

        SourceError: the name cannot be accepted so. FileNotFoundError: look again.
        """

    @abstractmethod
    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        """Find the partitions of a lost ledger, as they look now. None: not found."""

    def find(self, claims: Collection[Claim], batch_id: int) -> list[Claim]:
        """Prove the claims, and return their current places. In the driver, before the job.

        SourceError names what changed since the plan; ChangedError says that something else is
        there.
        """
        self.check(claims, batch_id)
        return list(claims)

    @abstractmethod
    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        """Prove that each claimed range is still what was planned. SourceError otherwise."""

    # Keeps RP10.
    def check_columns(self, claims: Collection[Claim], batch_id: int) -> None:  # noqa: B027
        """Prove that the declaration fits what the claims hold, by each header or footer. In the
        driver, with claims that `find` has returned. SourceError names the part, and says what to
        declare.
        """

    def find_replaced(
        self, claims: Collection[Claim], batch_id: int  # noqa: ARG002 - most replace nothing
    ) -> list[tuple[Claim, Offer]]:
        """The claims of a finalized batch whose part the source has replaced by another one, each
        with an offer of what is there now. In the driver, outside any transaction.

        Only a source that replaces what it has shown, by its own rules, tells any: what else is
        other than it was read is no longer there. RefusedError: its rows cannot be read.
        SourceError: it cannot be looked at.
        """
        return []

    def acknowledge(self, settled: Sequence[SettledPartition]) -> str | None:  # noqa: ARG002
        """Report the position up to which each partition is finalized, if it is still the same
        partition. Called after `finalized`, if the declaration asks for it.

        This serves other tools only: it may be lost or repeated, and semel never reads it. Returns
        a sentence for the operator when a partition could not be reported, with the reason.
        """
        return None

    def first_time(self, name: str, start: int, end: int) -> float | None:  # noqa: ARG002
        """The earliest time, in seconds since 1970, of the first records in a range of a part that
        has no time of its own. None: it is not known. Errors: as of `match`.
        """
        return None

    def archive_part(self, known: Partition) -> bool:  # noqa: ARG002 - most kinds stay
        """Move or remove a part of which all is finalized, if it is as it was read and cannot grow.
        Returns whether it was. SourceError: it cannot be. Called if the declaration asks for it.
        """
        return False

    def is_whole(self, claim: Claim) -> bool:  # noqa: ARG002
        """Whether one task must read the whole claim."""
        return False

    @abstractmethod
    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        """Read the records of a split in ascending positions; in a task. Repeatable: the same claim
        gives the same blocks, and the same bytes to `digest`, whatever `selection` leaves out.

        SourceError: the content is no longer what was planned.
        """

    def can_join(self, claim: Claim) -> bool:  # noqa: ARG002
        """Whether a claim's bytes may be parsed together with those of other claims."""
        return False

    def read_text(self, split: "Split", batch_id: int) -> bytes:  # noqa: ARG002
        """The bytes of a split whose claim `joins`. SourceError as in `read`."""
        raise NotImplementedError("no claim of this source joins others")

    def line_numbers(
        self, claim: Claim, positions: Sequence[int], batch_id: int
    ) -> list[int | None]:
        """The line numbers, from 1, at ascending positions of a claim. None: the claimed content is
        gone, it has no lines, or counting takes too long.
        """
        return [None] * len(positions)

    @abstractmethod
    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """An upper bound for the number of records in a split. None: finding one takes too long."""

    def probe(self) -> tuple[str, ExecutorCheck | None]:
        """What is there, in words, and what executors are to look at. By `semel check`, in the
        driver.

        SemelError: it cannot be read; its `next` is what to do.
        """
        return f"{len(self.discover().items)} to read", None

    def check_service(self, horizon: timedelta) -> str | None:  # noqa: ARG002 - only queues have one
        """What the service says that fills what is read. None: there is none. By `semel check`.

        SemelError: it cannot be asked, or it may repeat records for longer than `horizon`.
        """
        return None


def delta_table_error(table: str) -> TerminalError:
    """The error of a source whose pattern finds files of a Delta table."""
    return TerminalError(
        f"{table}: it is a Delta table, and the source's pattern finds its files. Some of them may "
        "be of no version of the table, or of an earlier one. Nothing was planned. Narrow the source "
        "to other folders",
        next=AGAIN,
    )


def in_window(when: datetime | None, window: Window) -> bool:
    """Whether a time lies in a window. Without a window, all times do."""
    return window is None or (when is not None and window[0] <= when < window[1])


def unclaimed_ranges(offer: Offer, free: Spans) -> list[tuple[int, int]]:
    """The ranges of an offer that may be taken. `free` has those of each known partition."""
    known = offer.partition
    spans = free.get(known.source_partition_id, []) if known else [(0, offer.end)]
    first = max(offer.start, offer.low, offer.since)
    spans = [(max(start, first), end) for start, end in spans]
    return [(start, end) for start, end in spans if start < end]


def partition_after(offer: Offer, last: TakenRange | None, *, settled: bool) -> Partition:
    """A known partition as the plan will write it.

    Unless `settled`, the next plan looks again even if the partition looks the same.
    """
    known = offer.partition
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


def start_evidence(offer: Offer) -> Evidence:
    """Where an offer's partition begins, as evidence: nothing before it is ever read. Empty: at 0.

    A claim that has it lets adopt know it, without the ledger.
    """
    if offer.partition is None:
        return {"since": offer.start} if offer.start else {}
    return {key: offer.partition.evidence[key] for key in ("since",) if key in offer.partition.evidence}


GIVE_UP = "A batch that never committed can be given up"
"""Begins the advice that ends an error about claims. It applies to batches not yet finalized."""


def finalized_reason(error: Exception) -> str:
    """An error about claims in the words for a finalized batch, without the full stop."""
    return str(error).partition(f" {GIVE_UP}")[0].removesuffix(".")


def accept_command(context: "Context", name: str, option: str = "") -> str:
    """The command that settles a name, as it is typed."""
    return f"`{bare_accept_command(context.name, name, option)}`"


def bare_accept_command(pipeline: str, name: str, option: str = "") -> str:
    """The same, for whoever prints it by itself."""
    words = [quoted(name), option]
    if name.startswith("-"):  # Or it would be taken for an option.
        words = [option, "--", quoted(name)]
    return " ".join(filter(None, ["semel accept", pipeline, *words]))


def quoted(name: str) -> str:
    """Quote a name as one word of a shell command."""
    if name.isprintable():
        return shlex.quote(name)
    text = name.replace("\\", "\\\\").replace("'", "\\'")
    # Bytes that are not UTF-8 come as surrogates, whose low byte is the original byte.
    odd = r"[\x00-\x1f\x7f\udc80-\udcff]"
    return "$'" + re.sub(odd, lambda c: f"\\x{ord(c[0]) & 0xFF:02x}", text) + "'"
