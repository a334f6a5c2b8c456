"""Which source partition a batch of another pipeline is: its name says so, for ever.

A marker that is not there frees nothing. If a batch has claimed other content under a name, plan
never reads the new content by itself: it waits for that batch, takes it over, or refuses the name.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from semel.errors import SourceError
from semel.model.batch import run_of
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
)
from semel.sources.sealed.matching import refusal, show, unreadable
from semel.sources.sealed.parts import Listing, Looked, Opens, PartOffer


class OpenContent(StrEnum):
    """The content of the open partition under a batch's name, compared with the content shown."""

    NONE = "none"
    """The name has no partition."""
    SAME = "same"
    OTHER = "other"
    """It differs, or the name has only partitions that are closed."""


class Readers(StrEnum):
    """The batches that have claimed other content under the name. Abandoned ones do not count."""

    NONE = "none"
    ALIVE = "alive"
    """All are planned, and this plan may not abandon each of them."""
    SILENT = "silent"
    """All are planned orphans, which this plan may abandon."""
    COMMITTED = "committed"
    """At least one has committed."""


class Follower(StrEnum):
    """The newest replay of a batch, if it has claimed the content shown."""

    NONE = "none"
    ALIVE = "alive"
    SILENT = "silent"
    COMMITTED = "committed"


class Does(StrEnum):
    """What a plan does with a batch."""

    BEGIN = "begin"
    GO_ON = "go on"
    """Read what is free, in a new partition if none has the content shown."""
    FOLLOW = "follow"
    """Go on in the partition of the replay that has read this content."""
    TAKE_OVER = "take over"
    """As GO_ON; the orphans are abandoned."""
    WAIT = "wait"
    """Leave it to the batch that has claimed some of it."""
    REPLAYED = "replayed"
    """A refusal: a person decides. The orphans are abandoned."""


# Keeps CH1.
def judge(content: OpenContent, readers: Readers, follower: Follower) -> Does:
    """The decision table."""
    if content is OpenContent.SAME:
        return Does.GO_ON
    if readers is Readers.COMMITTED:
        follows = {Follower.ALIVE: Does.WAIT, Follower.COMMITTED: Does.FOLLOW}
        return follows.get(follower, Does.REPLAYED)
    unread = Does.BEGIN if content is OpenContent.NONE else Does.GO_ON
    return {Readers.ALIVE: Does.WAIT, Readers.SILENT: Does.TAKE_OVER}.get(readers, unread)


class _Reader(NamedTuple):
    """A batch with a claim under a name. `part`: the partition. `root`: the batch that it is or
    replays. `newest_replay`: whether it is the newest replay with a claim on that part.
    """

    part: Partition
    content: str
    batch_id: int
    request_key: str
    root: int
    committed: bool
    silent: bool
    newest_replay: bool

    def __str__(self) -> str:
        return f"batch {self.batch_id} (run {run_of(self.request_key)})"


@dataclass(frozen=True, kw_only=True)
class NameState:
    """What the ledger knows under the name of a batch. `newest`: the open partition, else the
    newest closed one. `orphans`: as in `Known`.
    """

    looked: Looked
    newest: Partition | None
    claims: list[_Reader]
    orphans: Collection[int]

    @property
    def is_same(self) -> bool:
        """Whether the newest partition has the content shown."""
        return self.newest is not None and self.newest.evidence.get("content") == self.looked.key

    @property
    def content(self) -> OpenContent:
        if self.newest is None:
            return OpenContent.NONE
        open_same = self.is_same and not self.newest.closed
        return OpenContent.SAME if open_same else OpenContent.OTHER

    @property
    def others(self) -> list[_Reader]:
        """Those of other content, the newest generation first."""
        return [one for one in self.claims if one.content != self.looked.key]

    @property
    def released(self) -> list[int]:
        """The orphans that have claimed other content."""
        return [one.batch_id for one in self.others if one.batch_id in self.orphans]

    @property
    def readers(self) -> Readers:
        if any(one.committed for one in self.others):
            return Readers.COMMITTED
        if len(self.released) < len(self.others):
            return Readers.ALIVE
        return Readers.SILENT if self.others else Readers.NONE

    @property
    def replay(self) -> _Reader | None:
        """The newest replay, if it has claimed the content shown."""
        found = (r for r in self.claims if r.newest_replay and r.content == self.looked.key)
        return next(found, None)

    @property
    def follower(self) -> Follower:
        if self.replay is None:
            return Follower.NONE
        if self.replay.committed:
            return Follower.COMMITTED
        return Follower.SILENT if self.replay.silent else Follower.ALIVE

    @property
    def does(self) -> Does:
        return judge(self.content, self.readers, self.follower)

    @property
    def known(self) -> Partition | None:
        """The partition that has the content shown. None: a new one gets it, from its first row."""
        if self.does is Does.FOLLOW:
            return self.replay.part
        return self.newest if self.is_same else None

    @property
    def holder(self) -> str:
        """The batch that plan waits for, and what it has claimed."""
        if self.readers is Readers.COMMITTED:
            return f"{self.replay}, a replay, has claimed the output"
        waited = (one for one in self.others if one.batch_id not in self.orphans)
        return f"{next(waited)} has claimed the older output"


def match(source: Opens, shown: Listing, known: Known, window: Window) -> Matched:
    """As `Source.match`."""
    names = {part.name for part in shown.found}
    offers, begun, notes, over, replayed = [], [], [], [], []
    looked, refused = _looked(source, known)
    refused += [one.refused for one in looked if not one.key]
    states = _states(source, known, [one for one in looked if one.key])
    for state in states:
        one, goes_on, old = state.looked, state.known, state.newest
        if state.does is Does.REPLAYED:
            replayed.append(state)
        elif state.does is Does.WAIT:
            offers.append(replace(offer_of(one, None), end=0))
            notes.append(
                f"{one.part.name!r}: {state.holder}. This plan left it alone; a later run decides"
            )
        elif one.refused and goes_on is None:
            refused.append(one.refused)
        else:
            offers.append(offer_of(one, goes_on))
            over += [old] if old and old != goes_on and (old.seen or not old.closed) else []
            if goes_on is None and not one.rows:
                begun.append(offers[-1])
    gone = [
        Gone(partition=k, seen=k.seen)
        for k in known.partitions
        if shown.complete and k.name not in names and k.reached < k.seen and _is_of(source, k)
    ]
    # Nothing is missing of content that the source has replaced.
    gone += [Gone(partition=partition, seen=0) for partition in over]
    released = {n for s in states if s.does in (Does.TAKE_OVER, Does.REPLAYED) for n in s.released}
    return Matched(
        offers=offers,
        refused=refused + _replayed(source, known, replayed),
        gone=gone,
        retired=[],
        renamed=[],
        begun=begun,
        resumed=(),
        released=tuple(sorted(released)),
        notes=tuple(notes),
    )


def _is_of(source: Opens, known: Partition) -> bool:
    """Whether a partition is of the pipeline that is declared now."""
    return known.name.startswith(f"{source.context.declared.pipeline}/")


def _looked(source: Opens, known: Known) -> tuple[list[Looked], list[Refusal]]:
    """The batches that are not settled, opened; and those that cannot be."""
    looked, refused = [], []
    for part in known.unsettled:
        try:
            looked.append(source.look(part))
        except FileNotFoundError:
            continue  # It is being replaced: the next plan sees the new one.
        except OSError as error:
            refused.append(unreadable(part, error))
    return looked, refused


def _held(known: Known, looked: list[Looked]) -> dict[str, Partition]:
    """The partition of each name: the open one, else the newest that was closed."""
    held = {k.name: k for k in known.partitions}
    new = [one.part.name for one in looked if one.part.name not in held]
    closed = known.rows("sealed", "closed", names=new) if new else []
    return {r["name"]: Partition(**r) for r in closed} | held


# Keeps CH1, CH2.
def _states(source: Opens, known: Known, looked: list[Looked]) -> list[NameState]:
    """What the ledger knows under the names of some batches."""
    held = _held(known, looked)
    states = [
        NameState(
            looked=one, newest=held.get(one.part.name), claims=[], orphans=known.orphans
        )
        for one in looked
    ]
    asked = [s.looked.part.name for s in states if s.content is OpenContent.OTHER]
    if not asked:
        return states
    claims, silent = defaultdict(list), source.context.limits.orphan_after.total_seconds()
    for r in known.rows("sealed", "readers", names=asked, silent_seconds=silent):
        reader = {key: r[key] for key in _Reader._fields if key != "part"}
        part = Partition(**{key: value for key, value in r.items() if key not in reader})
        claims[part.name].append(_Reader(part=part, **reader))
    return [replace(s, claims=claims[s.looked.part.name]) for s in states]


def offer_of(one: Looked, held: Partition | None) -> PartOffer:
    """A batch's rows."""
    part = one.part
    return PartOffer(
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        known=held,
        end=one.rows,
        seen=one.rows,
        ahead=one.rows,
        evidence={"head_hash": one.key, "content": one.key, "bytes": one.length},
        part=part,
        length=one.length,
        content=one.key,
        refused=one.refused,
    )


def word(
    source: Opens, known: Known, name: str, *, same: bool, start: int, is_open: bool
) -> Word | None:
    """As `Source.accept`."""
    looked, _ = _looked(source, known)
    asked = [one for one in looked if one.part.name == name and one.key]
    state, pipeline = next(iter(_states(source, known, asked)), None), source.context.name
    does = state and state.does
    if does is Does.WAIT or does is Does.REPLAYED and state.follower is Follower.SILENT:
        raise SourceError(
            f"{name!r}: {state.holder}, so there is nothing to accept. Let it finish, or abandon it",
            next=f"semel batches {pipeline}",
        )
    if does is not Does.REPLAYED:
        if is_open and not same:
            return None
        raise SourceError(
            f"{name!r} is not refused as a batch that was replayed, so there is nothing to accept",
            next=f"semel gaps {pipeline}",
        )
    if same or start:
        raise SourceError(
            f"{name!r} is another output of that batch, and its rows have other numbers: all of it "
            "is accepted, or nothing",
            next=accepting(pipeline, name),
        )
    old = state.newest
    return Word(
        offer=offer_of(state.looked, None), ended=[] if old.closed else [old], superseded=[]
    )


def _replayed(source: Opens, known: Known, states: list[NameState]) -> list[Refusal]:
    """The refusals of batches that were replayed."""
    read = [next(one for one in state.others if one.committed) for state in states]
    pairs = {"roots": [one.root for one in read], "names": [one.part.name for one in read]}
    pairs["orphans"] = [*known.orphans]
    apart = {r["root"] for r in known.rows("replay", "apart", **pairs)} if read else set()
    return [
        _refused(source, state, one, follows=one.root not in apart)
        for state, one in zip(states, read, strict=True)
    ]


def _refused(source: Opens, state: NameState, read: _Reader, *, follows: bool) -> Refusal:
    """`follows`: a replay of the batch that has read the older output can read this one."""
    context, part = source.context, state.looked.part
    upstream, _, number = part.name.rpartition("/b")
    replay = f"semel replay {context.name} --batches {read.root}"
    if follows and not context.record_id:
        what = (
            f"`{replay}` reads it in the place of that; and "
            f"`semel replay {upstream} --batches {int(number)} --downstream` does so for each "
            f"pipeline that reads {upstream}"
        )
    else:
        what = (
            f"What was read stays, as no replay takes another output (`{replay} --dry-run` tells "
            "why): declare a pipeline of another name and sink, which reads all from its start"
        )
    accept = (
        f"{accept_command(context, part.name)} reads the new output as new rows, beside the old "
        "ones"
    )
    if state.follower is Follower.SILENT:
        accept = (
            f"`semel abandon {state.replay.batch_id}` ends {state.replay}, a replay that has "
            "claimed it and gives no sign of life"
        )
    return refusal(
        part,
        Does.REPLAYED,
        f"its output is not what was read as {show(source, read.part)}; it has "
        f"{state.looked.rows} rows now. {what}; or {accept}",
    )
