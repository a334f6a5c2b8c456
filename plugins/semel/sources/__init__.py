"""The source seam: where records come from, and how a source distinguishes its partitions.

In every source, a position is a source partition and an int64. Plan, claims, stage and catalog use
nothing else. Each source decides what a source partition is (a generation of a file, a
partition of a topic), how to recognise it, and how to read its records.

How a plan queries a source:
1. `narrow` may skip items outside the plan's window, and `discover` lists the items that exist now;
2. the ledger removes settled items, and adds what it has about the others (`LedgerView`);
3. `match` sorts them into offers, refusals and lost ranges; it is pure, except that it may read the
   items again;
4. the ledger returns the free ranges of the offers, and `last_record_end` cuts them at a record's
   end.
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
"""Matches paths of writers' notes (_SUCCESS) and unfinished files (_temporary/a). A pattern
that has such a part still selects them."""

TABLE_LOG = "_delta_log"
"""A folder that contains this one is a Delta table: only its log says which files count."""

Window = tuple[datetime, datetime] | None
"""The times that a plan reads. None: all times."""

Evidence = dict[str, Any]
"""JSON that recognises a source partition. Only its own source can interpret it."""


@dataclass(kw_only=True)
class ReceiveResult:
    """The messages that one receive added to the spool. `size`: bytes of the values. `redelivered`:
    messages that the queue marked as delivered again. `unacknowledged`: messages whose
    acknowledgement failed, so that the queue delivers them again. `oldest_seconds`: how long the
    oldest message had waited. `ended_by`: the bound that ended it, such as `until.seconds`, or `a
    signal`. `waiting`: about how many messages the queue still had; None if unknown, or if `idle`
    ended the receive.
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
        """Return the result as a line of the log."""
        again = f" ({self.redelivered:,} redelivered so far)" if self.redelivered else ""
        messages = f"{count(self.messages, 'message')}{again}"
        backlog = ""
        if self.waiting:
            wait = "1 message waits" if self.waiting == 1 else f"{self.waiting:,} messages wait"
            backlog = f"; {self.ended_by} ended it, and about {wait} in the queue"
        if not self.messages:
            return f"no message came{backlog}"
        text = f"{messages}, {size(self.size)} in {count(self.segments, 'segment')}"
        if self.unacknowledged:
            text += f"; {self.unacknowledged:,} not acknowledged: the queue delivers them again"
        else:
            text += ", acknowledged"
        if self.oldest_seconds is not None:
            text += f"; the oldest waited {self.oldest_seconds:,.0f} s"
        return text + backlog


class SourceItem(Protocol):
    """A file, an object, a topic's partition ...: an item that may be a source partition.

    `identity` survives a rename. Among open partitions, names and identities are each unique.
    `fingerprint` changes when there may be something to read. `when` is the item's time, for
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
    """An item that plan does not claim, and why. Its records stay unclaimed until you accept it or
    remove the cause.

    `when` is the item's time; None if that is unknown or meaningless. For a file that may be a
    copy: `inode` and `size` of the file, `copy_of`, the name of the original, and `behind`, the
    position at which content beyond the original begins, if any.
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
    """The source refused an item during a claim or an accept."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal), next=AGAIN)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A source partition in the ledger that is not retired.

    Batches have claimed it up to `reached`; the last plan saw content up to `seen`. `settled`:
    plans may skip it while its name, identity and fingerprint stay the same and it is fully read.
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
        """Convert a partition to this source's subclass."""
        return cls(**vars(other))


@dataclass(frozen=True, kw_only=True)
class SourceListing:
    """The items that a source has now, oldest first, and refusals of ambiguous or unreadable ones.
    `notes`: lines for the log. `private`: names that only a plan that has already read from them
    reads.
    """

    items: Sequence[SourceItem]
    refusals: list[Refusal]
    notes: tuple[str, ...] = ()
    private: frozenset[str] = frozenset()

    def signatures(self) -> Iterable[str]:
        """One string per item, in order; the ledger stores the same string of a settled partition.

        Two slashes separate the three parts: a name or identity never contains two in a row.
        """
        return (f"{item.name}//{item.identity}//{item.fingerprint}" for item in self.items)

    def items_at(self, places: list[int]) -> list[Any]:
        """The items at these indices."""
        return [self.items[place] for place in places]


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """The ledger's knowledge about the items of a listing.

    `partitions` are open and not settled. `unsettled` are the items that match no settled
    partition. `refusals` come from the last plan. `query` runs one of the source's own queries.
    `orphans` are planned batches whose tasks no longer run; this plan may abandon them.
    """

    partitions: list[Partition]
    unsettled: list[Any]
    refusals: list[Refusal]
    query: "Callable[..., list[Row]]"
    orphans: frozenset[int] = frozenset()


def empty_ledger_view(listing: SourceListing) -> LedgerView:
    """The view before the first plan: an empty ledger."""
    return LedgerView(
        partitions=[], unsettled=list(listing.items), refusals=[], query=lambda *_, **__: []
    )


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Positions [start, end) that a batch may read now, of `partition` or, if None, of a new one.

    `all_or_nothing`: claim as one range or not at all. No record exists before `start`; plan stores
    that gap as lost, with `reason`. Positions before `low` no longer exist; unclaimed ones count as
    lost. Unclaimed positions before `since` fall outside the window. `seen` is the end of existing
    content; `ahead` includes content that is not readable yet. `evidence` recognises the partition,
    next to the evidence of the claimed range. If `settled` is false, the next plan checks it again.
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
    """An open partition that disappeared or started a new generation; `seen` is the end that the
    last plan saw. Or a partition that has lost its positions before `seen`. `content_holder`: the
    name that has its content now, if the source lists that name and does not read it.
    """

    partition: Partition
    seen: int
    content_holder: str | None = None


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """The source's decision about each item of the listing and each partition of the ledger."""

    offers: list[Offer]
    """Oldest first."""
    refusals: list[Refusal]
    lost_ranges: list[LostRange]
    retired_ids: list[int] = field(default_factory=list)
    """Partitions that a new one contains entirely."""
    renamed_partitions: list[Partition] = field(default_factory=list)
    """Partitions without an offer, under their current names."""
    new_partition_offers: list[Offer]
    """Offers that start a new partition even if the batch claims nothing from them."""
    resumed_names: tuple[tuple[str, str], ...] = ()
    """(name, former name) of partitions recognised by their content."""
    released_batches: tuple[int, ...] = ()
    """Orphans to abandon in any case: the source has replaced the content that they claimed."""
    notes: tuple[str, ...] = ()
    """Lines for the log about content reserved for a batch that has not committed."""


class SettledPartition(NamedTuple):
    """A source partition of a batch; every position before `end` is finalized or lost."""

    name: str
    identity: str
    end: int


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The effect of accepting a refused name.

    `offer` continues its partition, or starts a new one. It replaces `replaced_partitions`, and
    contains `superseded_partitions` entirely.
    """

    offer: Offer
    replaced_partitions: list[Partition]
    superseded_partitions: list[Partition] = field(default_factory=list)


class ExecutorCheck(NamedTuple):
    """A check that `semel check` runs on each executor: it calls `check_access(*values)` of a module, which
    raises an error if something is wrong there. `part` names the object of the check.

    `semel check` prints `success` or, with the error, `remedy`.
    """

    part: str
    module: str
    values: tuple[Any, ...]
    success: str
    remedy: str


class Source(ABC):
    """Where the records of a pipeline come from.

    The driver creates it from a pipeline's spec and sends it to tasks. It stores no secrets and no
    connections.
    """

    split_size: int
    """The approximate number of positions in one split."""

    def narrow(
        self, window: Window, query: "Callable[..., list[Row]]"  # noqa: ARG002 - most list all
    ) -> "Source":
        """Return a source whose `discover` skips items outside this window; a skipped item is not
        lost. Runs before `discover`, in the driver. `query` is `LedgerView.query`.
        """
        return self

    @abstractmethod
    def discover(self) -> SourceListing:
        """List what exists now, in any interval. In the driver, outside any transaction."""

    def is_complete(self, listing: SourceListing) -> bool:  # noqa: ARG002 - most are
        """True if the listing cannot gain items of earlier times. Runs in the driver, when a plan
        would leave nothing unread.
        """
        return True

    @abstractmethod
    def match(self, listing: SourceListing, view: LedgerView, window: Window) -> MatchResult:
        """Classify the items, and offer readable ranges. Runs in the driver; changes nothing.

        Raises FileNotFoundError if the source changed meanwhile; the caller lists it again.
        """

    def unread_since(
        self, item: SourceItem, partition: Partition | None  # noqa: ARG002 - most have one time
    ) -> datetime | None:
        """When the writing of an item's unread part began, if the item's time is that of its last
        write. Runs in the driver, for items that a plan does not claim. Returns None if unknown, or
        if all records have the item's time.
        """
        return None

    @abstractmethod
    def refuse_lost(self, lost: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        """The refusal for positions that disappeared before a batch read them."""

    @abstractmethod
    def last_record_end(self, offer: Offer, start: int, end: int, room: int, *, first: bool) -> int:
        """The last end of a record in (start, end], at most `room` after `start`; else `start`.
        `first`: the batch has claimed nothing yet, so it takes one record in any case.

        Raises LimitError if the range is too large and cannot be cut.
        """

    @abstractmethod
    def capacity(self, offers: Sequence[Offer]) -> int:
        """How many positions of the offers one batch may take, by the declared limits."""

    @abstractmethod
    def evidence(self, offer: Offer, end: int) -> Evidence:
        """The evidence that recognises an offer after a batch has read all positions before `end`.

        Raises RefusedError if the source cannot compute it; the offer is then not readable now.
        """

    @abstractmethod
    def accept(
        self,
        listing: SourceListing,
        view: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        """Decide what accepting a name means: read it from `start` as a new generation, or as the
        `same` partition. Returns None if the partition that `is_open` under this name covers it.

        Raises SourceError if the source cannot accept the name in this way. Raises
        FileNotFoundError if the source changed meanwhile; the caller lists it again.
        """

    @abstractmethod
    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        """Find the partitions of a lost ledger, as they are now; None for each missing one."""

    def find(self, claims: Collection[Claim], batch_id: int) -> list[Claim]:
        """Prove the claims, and return them with their current names. Runs in the driver, before
        the job.

        Raises SourceError if the content changed since the plan, ChangedError if other content has
        replaced it.
        """
        self.check(claims, batch_id)
        return list(claims)

    @abstractmethod
    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        """Raises SourceError if the content of a claimed range changed since the plan."""

    # Keeps RP10.
    def check_columns(self, claims: Collection[Claim], batch_id: int) -> None:  # noqa: B027
        """Raises SourceError if a claim's header or footer does not fit the declaration; the error
        names the part, and what to declare. Runs in the driver, with claims that `find` returned.
        """

    def find_replaced(
        self, claims: Collection[Claim], batch_id: int  # noqa: ARG002 - most replace nothing
    ) -> list[tuple[Claim, Offer]]:
        """The claims of a finalized batch whose part the source has replaced, each with an offer of
        the new part. Runs in the driver, outside any transaction.

        Only a source whose own rules allow replacements returns any; in other sources, changed
        content counts as missing. Raises RefusedError if the new rows cannot be read, SourceError
        if the source cannot be queried.
        """
        return []

    def acknowledge(self, settled: Sequence[SettledPartition]) -> str | None:  # noqa: ARG002
        """Report to the source up to which position each partition is finalized, if it is still the
        same partition. Finalize calls it afterwards, if the declaration enables it.

        The report serves other tools only: it may get lost or repeat, and semel never reads it.
        Returns a sentence for the operator, with the reason, if a report failed.
        """
        return None

    def first_time(self, name: str, start: int, end: int) -> float | None:  # noqa: ARG002
        """The earliest time, in seconds since 1970, of the first records in a range, for parts
        without a time of their own. Returns None if unknown. Raises the errors of `match`.
        """
        return None

    def archive_part(self, partition: Partition) -> bool:  # noqa: ARG002 - most kinds stay
        """Move or remove a fully finalized part, if it did not change since and cannot grow.
        Returns True if it did so. Raises SourceError if that fails. Runs only if the declaration
        enables it.
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

        Raises SourceError if the content changed since the plan.
        """

    def can_join(self, claim: Claim) -> bool:  # noqa: ARG002
        """Whether a task may parse a claim's bytes together with bytes of other claims."""
        return False

    def read_text(self, split: "Split", batch_id: int) -> bytes:  # noqa: ARG002
        """The bytes of a split whose claim `can_join`. Raises SourceError as `read` does."""
        raise NotImplementedError("this source does not join claims")

    def line_numbers(
        self, claim: Claim, positions: Sequence[int], batch_id: int
    ) -> list[int | None]:
        """The line numbers, from 1, at ascending positions of a claim. None for each if the content
        is missing, consists of rows instead of lines, or takes too long to count.
        """
        return [None] * len(positions)

    @abstractmethod
    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """An upper bound for the records in a split. Returns None if finding one takes too long."""

    def probe(self) -> tuple[str, ExecutorCheck | None]:
        """Describe the content in one line, and return the check that executors run. `semel check`
        calls it, in the driver.

        Raises SemelError if the source is unreadable; its `next` is the remedy.
        """
        return f"{len(self.discover().items)} to read", None

    def check_service(self, horizon: timedelta) -> str | None:  # noqa: ARG002 - only for queues
        """Describe the service that fills the source, for `semel check`. Returns None without one.

        Raises SemelError if it cannot be queried, or may repeat records for longer than `horizon`.
        """
        return None


def delta_table_error(table: str) -> TerminalError:
    """The error of a source whose pattern matches files of a Delta table."""
    return TerminalError(
        f"{table}: the source's pattern matches files of a Delta table. Some of them may belong to "
        "an earlier version of the table, or to no version. Nothing was planned. Narrow the source "
        "to other folders",
        next=AGAIN,
    )


def in_window(when: datetime | None, window: Window) -> bool:
    """Whether a time lies in a window. Without a window, all times do."""
    return window is None or (when is not None and window[0] <= when < window[1])


def unclaimed_ranges(offer: Offer, free: Spans) -> list[tuple[int, int]]:
    """The ranges of an offer that a batch may claim. `free`: the free ranges by partition."""
    partition = offer.partition
    spans = free.get(partition.source_partition_id, []) if partition else [(0, offer.end)]
    first = max(offer.start, offer.low, offer.since)
    spans = [(max(start, first), end) for start, end in spans]
    return [(start, end) for start, end in spans if start < end]


def partition_after(offer: Offer, last: TakenRange | None, *, settled: bool) -> Partition:
    """The offer's partition as the plan will write it to the ledger.

    Unless `settled`, the next plan checks it again, even if its signature is unchanged.
    """
    partition = offer.partition
    further = last is not None and last.end > partition.reached
    return replace(
        partition,
        name=offer.name,
        identity=offer.identity,
        fingerprint=offer.fingerprint,
        settled=settled and offer.settled,
        reached=last.end if further else partition.reached,
        seen=offer.seen,
        evidence=partition.evidence | offer.evidence | (last.evidence if further else {}),
        closed=False,
    )


def start_evidence(offer: Offer) -> Evidence:
    """The start of an offer's partition, as evidence: batches never read before it. Empty: at 0.

    Adopt reads it from the claims if the ledger is lost.
    """
    if offer.partition is None:
        return {"since": offer.start} if offer.start else {}
    evidence = offer.partition.evidence
    return {"since": evidence["since"]} if "since" in evidence else {}


GIVE_UP = "A batch that never committed can be given up"
"""Begins the advice at the end of an error about claims, for batches that are not yet finalized."""


def finalized_reason(error: Exception) -> str:
    """The error's text without the advice and the full stop, for a finalized batch."""
    return str(error).partition(f" {GIVE_UP}")[0].removesuffix(".")


def accept_command(context: "Context", name: str, option: str = "") -> str:
    """The command that accepts a name, in backticks."""
    return f"`{bare_accept_command(context.name, name, option)}`"


def bare_accept_command(pipeline: str, name: str, option: str = "") -> str:
    """The command that accepts a name."""
    words = [quoted(name), option]
    if name.startswith("-"):  # semel would parse it as an option.
        words = [option, "--", quoted(name)]
    return " ".join(filter(None, ["semel accept", pipeline, *words]))


def quoted(name: str) -> str:
    """Quote a name as one word of a shell command."""
    if name.isprintable():
        return shlex.quote(name)
    text = name.replace("\\", "\\\\").replace("'", "\\'")
    # A byte that is not UTF-8 is a surrogate; its low byte is the original byte.
    odd = r"[\x00-\x1f\x7f\udc80-\udcff]"
    return "$'" + re.sub(odd, lambda c: f"\\x{ord(c[0]) & 0xFF:02x}", text) + "'"
