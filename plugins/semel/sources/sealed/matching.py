"""Which source partition each part is, and what of it may be read.

How it works:
1. open the parts that are not settled: those of the plan's window and of known names, and all
   others when a partition does not find its content under its name;
2. hold each against the partition of its name, then against partitions of its content, open or
   closed; a partition that no part holds goes to the first part with its content;
3. by position, hold those that would be read against each other;
4. ask the table.

Nothing here changes anything.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from semel.errors import SourceError
from semel.sources import (
    LostRange,
    LedgerView,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Window,
    Acceptance,
    accept_command,
    bare_accept_command,
    in_window,
)
from semel.sources.sealed.parts import PartListing, Looked, Opens, SealedPart, PartOffer


class NameMatch(StrEnum):
    """What the ledger knows under the part's name."""

    FREE = "free"
    """Nothing, or a partition that another part goes on with, or whose part is elsewhere now."""
    UNREAD = "unread"
    """A part of which nothing was read, with other content."""
    SAME = "same"
    """This content."""
    OTHER = "other"
    """Other content, of which something was read."""


class Twin(StrEnum):
    """Whether this content is known under another name: rows of it were read, or will be."""

    NONE = "none"
    LEFT = "left"
    """It is, and no other part has it now."""
    HELD = "held"
    """It is, and another part has it still, or somebody accepted that it has not."""
    UNSURE = "unsure"
    """It is, and nobody can tell where that part is now."""
    LOST = "lost"
    """It was gone, and somebody accepted the rest of it as lost."""


class PartDecision(StrEnum):
    """What a plan does with a part."""

    BEGIN = "begin"
    """Read it as a new partition."""
    GO_ON = "go on"
    """Read on in the partition of its name."""
    TAKE_UP = "take up"
    """Read on in the partition that has its content."""
    CHANGED = "changed"
    COPY = "copy"
    RETURNED = "returned"
    """The last three are refusals: a person decides."""


REFUSED = frozenset({PartDecision.CHANGED, PartDecision.COPY, PartDecision.RETURNED})


# Keeps P22.
def judge(own: NameMatch, twin: Twin, *, by_position: bool) -> PartDecision:
    """The decision table: all 40 cases.

    With a record id a copy is read: what it repeats is dropped.
    """
    if own is NameMatch.SAME:
        return PartDecision.GO_ON
    if twin is Twin.LEFT:
        return PartDecision.TAKE_UP
    if own is NameMatch.OTHER:
        return PartDecision.CHANGED
    if twin is Twin.LOST:
        return PartDecision.RETURNED
    if by_position and twin is not Twin.NONE:
        return PartDecision.COPY
    return PartDecision.GO_ON if own is NameMatch.UNREAD else PartDecision.BEGIN


@dataclass(kw_only=True)
class JudgedPart:
    """A part that was opened, and what a plan does with it.

    `held`: the partition of its name. `twin`: the partition of its content under another name, or
    the part of the same plan that has it; `twin_retired`: accept put that aside. `lost`: the first
    row of it that somebody accepted as lost.
    """

    looked: Looked
    held: Partition | None
    own: NameMatch
    twin: Partition | SealedPart | None = None
    state: Twin = Twin.NONE
    does: PartDecision = PartDecision.BEGIN
    twin_retired: bool = False
    lost: int = 0
    content: str | None = None

    @property
    def part(self) -> SealedPart:
        return self.looked.part

    @property
    def known(self) -> Partition | None:
        """The partition that it goes on in; None: a new one."""
        return {PartDecision.GO_ON: self.held, PartDecision.TAKE_UP: self.twin}.get(self.does)


@dataclass(kw_only=True)
class Sorting:
    """One pass over what a source shows and what the ledger knows of it."""

    source: Opens
    shown: PartListing
    known: LedgerView
    window: Window
    judged: list[JudgedPart] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)
    lost: dict[int, int] = field(default_factory=dict)
    """Where the rows begin that somebody accepted as lost, by partition."""

    def run(self) -> "Sorting":
        self._open = {k.source_partition_id: k for k in self.known.partitions}
        self._by_name = {k.name: k for k in self.known.partitions}
        self._names = {part.name for part in self.shown.items}
        self._hidden = {refusal.name for refusal in self.shown.refusals}
        self._look()
        self._match()
        for one in self.judged:
            by_position = self.source.context.by_position
            one.does = judge(one.own, one.state, by_position=by_position)
        return self

    def _look(self) -> None:
        """Open the parts, and hold each against the partition of its name."""
        linked, others = dict(self._linked()), []
        for part in self.known.unsettled:
            if part.name in linked:
                self.refused.append(linked[part.name])
            elif part.name in self._by_name or in_window(part.when, self.window):
                self._open_one(part)
            else:
                others.append(part)
        self.taken = {j.held.source_partition_id for j in self.judged if j.own is NameMatch.SAME}
        if self.taken != self._open.keys():  # One of the others may have the content of the rest.
            for part in others:
                self._open_one(part)

    def _open_one(self, part: SealedPart) -> None:
        held = self._by_name.get(part.name)
        try:
            one = JudgedPart(looked=self.source.look(part), held=held, own=NameMatch.FREE)
            if held is not None:
                one.own = self._own(one, held)
            self.judged.append(one)
        except FileNotFoundError:
            pass  # It was moved meanwhile: the next plan sees where it is.
        except OSError as error:
            self.refused.append(unreadable(part, error))

    # Keeps P13.
    def _linked(self) -> Iterator[tuple[str, Refusal]]:
        """All names but one of what is shown under several: a settled one, else one that is known.
        """
        several = defaultdict(list)
        for part in self.shown.items:
            several[part.identity].append(part)
        unsettled = {part.name for part in self.known.unsettled}
        for parts in several.values():
            if len(parts) > 1:
                kept = min(
                    parts, key=lambda p: (p.name in unsettled, p.name not in self._by_name, p.name)
                )
                what = f"it is {kept.name!r} under another name; leave one in the source folder"
                for part in parts:
                    if part is not kept:
                        yield part.name, refusal(part, "hard link", what)

    def _own(self, one: JudgedPart, held: Partition) -> NameMatch:
        if held.fingerprint == one.part.fingerprint:
            one.content = held.evidence.get("content")
            return NameMatch.SAME
        if self._has(one, held):
            return NameMatch.SAME
        return NameMatch.OTHER if held.reached else NameMatch.UNREAD

    def _has(self, one: JudgedPart, partition: Partition) -> bool:
        """Whether a part has the content that a partition had. It is read for that once."""
        if not one.looked.key or one.looked.key != partition.evidence.get("head_hash"):
            return False
        if one.content is None:
            one.content = self.source.digest(one.part)
        return one.content == partition.evidence.get("content")

    def _match(self) -> None:
        """Hold parts against partitions of their content, and give away those that no part holds;
        then hold those that would be read against each other.
        """
        asked = [
            j for j in self.judged if j.own is not NameMatch.SAME and j.looked.key and j.looked.rows
        ]
        alike, unread = self._alike(asked)
        self.judged = [one for one in self.judged if one.part.name not in unread]
        asked = [one for one in asked if one.part.name not in unread]
        self._looked = {one.part.name for one in self.judged}
        self._at = {one.part.identity: one.part.name for one in self.judged}
        for one in asked:
            found = alike[one.content] if one.content else ()
            states = [(self._twin(k), k) for k in found if k != one.held]
            for wanted in (Twin.LEFT, Twin.HELD, Twin.UNSURE, Twin.LOST):
                one.twin = next((k for state, k in states if state is wanted), None)
                if one.twin is not None:
                    one.state = wanted
                    break
            if one.twin is not None:
                one.twin_retired = one.twin.source_partition_id in self.retired
                one.lost = self.lost.get(one.twin.source_partition_id, 0)
            if one.state is Twin.LEFT:
                self.taken.add(one.twin.source_partition_id)
        for one in self.judged:
            held = one.own is not NameMatch.SAME and one.held
            if held and (held.source_partition_id in self.taken or self._is_away(held)):
                one.own = NameMatch.FREE
        if self.source.context.by_position:
            self._compare(asked)

    # Keeps P22.
    def _compare(self, asked: list[JudgedPart]) -> None:
        """Of the parts of one content that would be read, keep one: that of a known name first."""
        first: dict[str, SealedPart] = {}
        for one in sorted(asked, key=lambda one: one.own is not NameMatch.UNREAD):
            read = one.own is NameMatch.UNREAD or (
                one.own is NameMatch.FREE and in_window(one.part.when, self.window)
            )
            if read and one.state is Twin.NONE and one.content and not one.looked.refused:
                kept = first.setdefault(one.content, one.part)
                if kept is not one.part:
                    one.state, one.twin = Twin.HELD, kept

    # Keeps P22.
    def _alike(self, asked: list[JudgedPart]) -> tuple[dict[str, list[Partition]], set[str]]:
        """By content, the partitions that some parts may be; and the names of parts that cannot be
        read to their end.

        A part is hashed where its key is known, or by position where two parts have it; and where
        its partition gets this content before anything of it is read.
        """
        unread = set()
        counts = Counter(one.looked.key for one in asked)
        waiting = [k for k in self.known.partitions if not k.reached]
        found = self.known.query("sealed", "keys", keys=sorted(counts)) if counts else []
        keys = {r["key"] for r in found}
        several = {key for key, count in counts.items() if count > 1}
        hashed = keys | {k.evidence.get("head_hash") for k in waiting}
        hashed |= several if self.source.context.by_position else set()
        for one in asked:
            wanted = one.looked.key in hashed or one.own is NameMatch.UNREAD
            if one.content is not None or not wanted:
                continue
            try:
                one.content = self.source.digest(one.part)
            except FileNotFoundError:
                unread.add(one.part.name)  # As in `_open_one`.
            except OSError as error:
                unread.add(one.part.name)
                self.refused.append(unreadable(one.part, error))
        alike = defaultdict(list)
        contents = sorted({one.content for one in asked if one.content is not None})
        if keys and contents:
            for r in self.known.query("sealed", "like", keys=[*keys], contents=contents):
                known = Partition(**{k: v for k, v in r.items() if k not in ("retired", "lost")})
                if r["retired"]:
                    self.retired.add(known.source_partition_id)
                if r["lost"] is not None:
                    self.lost[known.source_partition_id] = r["lost"]
                alike[r["evidence"]["content"]].append(known)
        for known in waiting:
            alike[known.evidence.get("content")].append(known)
        return alike, unread

    def _twin(self, known: Partition) -> Twin:
        """Where the part is whose partition has the content of another one."""
        number = known.source_partition_id
        if number in self.taken or number in self.retired:
            return Twin.HELD
        if known.closed:
            return Twin.LOST if number in self.lost else Twin.LEFT
        if number not in self._open:  # It is settled: its part is as it was.
            return Twin.HELD
        if known.name in self._looked or self._is_away(known):
            return Twin.LEFT
        return Twin.UNSURE

    # Keeps P18, P27.
    def _is_away(self, known: Partition) -> bool:
        """Whether it is certain that a partition's part is not under its name: it is seen under
        another one, collect has moved it, or there is nothing.
        """
        return self._at.get(known.identity, known.name) != known.name or (
            self.shown.complete and known.name not in self._names and known.name not in self._hidden
        ) or self.source.is_put_away(known)

    def gone(self) -> list[LostRange]:
        """The partitions that no part holds any more."""
        moved = (j for j in self.judged if j.held and j.does is PartDecision.TAKE_UP)
        over = {j.held.source_partition_id for j in moved}
        return [
            LostRange(partition=k, seen=max(k.seen, k.reached))
            for k in self.known.partitions
            if k.source_partition_id not in self.taken
            and (k.source_partition_id in over or self._is_away(k))
        ]

    def kept(self) -> list[Refusal]:
        """Refusals of parts of other intervals, which nobody opened now."""
        asked = {j.part.name for j in self.judged} | {r.name for r in self.refused}
        stored = {r.name: r for r in self.known.refusals}
        return [
            replace(stored[part.name], when=part.when)
            for part in self.known.unsettled
            if part.name not in asked and part.name in stored
            and not in_window(part.when, self.window)
        ]  # fmt: skip


# Keeps P31.
def match(source: Opens, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
    """As `Source.match`."""
    found = Sorting(source=source, shown=shown, known=known, window=window).run()
    offers, refused, renamed, begun = [], [*found.refused, *found.kept()], [], []
    doubtful = {refusal.name for refusal in known.refusals}
    for one in found.judged:
        part, wanted = one.part, in_window(one.part.when, window)
        offer = offer_of(one.looked, one.known, one.content)
        if one.does in REFUSED:
            refused.append(_refused(source, one))
        elif one.looked.unfinished:
            offers.append(replace(offer, partition=None, ahead=1))
        elif (wanted or part.name in doubtful) and one.looked.refused and _is_to_be_read(one):
            refused.append(one.looked.refused)
            if one.known and (one.known.name, one.known.identity) != (part.name, part.identity):
                renamed.append(replace(one.known, name=part.name, identity=part.identity))
        elif wanted or one.known:
            offers.append(replace(offer, end=offer.seen if wanted else 0))
            if one.known is None and not offer.seen:
                begun.append(offer)
    return MatchResult(
        offers=offers,
        refusals=refused,
        lost_ranges=found.gone(),
        renamed_partitions=renamed,
        new_partition_offers=begun,
        resumed_names=tuple(
            (j.part.name, j.twin.name)
            for j in found.judged
            if j.does is PartDecision.TAKE_UP and j.twin.reached
        ),
    )


def _is_to_be_read(one: JudgedPart) -> bool:
    reached = one.known.reached if one.known else 0
    return one.looked.rows > reached or not one.looked.key


def offer_of(
    looked: Looked, known: Partition | None, content: str | None, *, end: int = 0
) -> PartOffer:
    """A part of `content`, of which rows up to `end` may be read in `known` or a new partition."""
    part, found = looked.part, {"head_hash": looked.key, "bytes": looked.length, "content": content}
    return PartOffer(
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        partition=known,
        end=end,
        seen=looked.rows,
        ahead=looked.rows,
        evidence=looked.evidence | found,
        part=part,
        length=looked.length,
        content=content,
        refused=looked.refused,
    )


def by_name(known: LedgerView, parts: Iterable[SealedPart]) -> dict[str, Partition]:
    """The partition of each name: the open one, else the newest that was closed."""
    held = {k.name: k for k in known.partitions}
    new = [part.name for part in parts if part.name not in held]
    closed = known.query("sealed", "closed", names=new) if new else []
    return held | {r["name"]: Partition(**r) for r in closed}


# Keeps P22.
def content_of(source: Opens, part: SealedPart) -> str:
    """The digest of all bytes of a part. RefusedError: it cannot be read. FileNotFoundError: it is
    not as it was listed.
    """
    try:
        return source.digest(part)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(unreadable(part, error)) from error


def word(
    source: Opens, shown: PartListing, known: LedgerView, name: str,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    found = Sorting(source=source, shown=shown, known=known, window=None).run()
    one = next((one for one in found.judged if one.part.name == name), None)
    pipeline, noun = source.context.name, source.context.declared.part
    if one is None or one.does not in REFUSED:
        as_what = f"a {noun} that changed or is a copy"
        return unrefused(pipeline, name, as_what, may_be=is_open and not same)
    if same:
        raise SourceError(
            f"{name!r} cannot go on where another one stood: a {noun} of this format is never "
            "read on, as each is whole; accept it as a new generation instead",
            next=bare_accept_command(pipeline, name),
        )
    if not one.looked.key:
        why = one.looked.refused.detail if one.looked.refused else "it has no end yet"
        raise SourceError(f"{name!r}: {why}; replace it, then run the pipeline")
    if start > one.looked.rows:
        unit = source.context.declared.unit
        raise SourceError(f"{name!r} has {one.looked.rows} {unit}, and none begins at {start}")
    before = [k for k in known.partitions if k.identity == one.part.identity and k != one.held]
    if one.held and one.own is NameMatch.FREE:
        before.append(one.held)
    if before:
        raise SourceError(
            f"{show(source, before[0])} was moved or replaced since the last plan; run the "
            f"pipeline, then accept {name!r} if it is still refused",
            next=f"semel run {pipeline}",
        )
    content = one.content or content_of(source, one.part)
    offer = offer_of(one.looked, None, content)
    return Acceptance(
        offer=replace(offer, start=start, reason="repeated"),
        replaced_partitions=[one.held] if one.held else [],
    )


def unrefused(pipeline: str, name: str, as_what: str, *, may_be: bool) -> None:
    """The word for a name that is not refused: None if it `may_be`, else SourceError."""
    if not may_be:
        raise SourceError(
            f"{name!r} is not refused as {as_what}, so there is nothing to accept",
            next=f"semel gaps {pipeline}",
        )


def new_word(
    pipeline: str, name: str, as_what: str, old: Partition, offer: Callable[[], PartOffer],
    *, same: bool, start: int,
) -> Acceptance:  # fmt: skip
    """The word for other content, which is read whole. SourceError for a part of it."""
    if same or start:
        raise SourceError(
            f"{name!r} is {as_what}: all of it is accepted, or nothing",
            next=bare_accept_command(pipeline, name),
        )
    return Acceptance(offer=offer(), replaced_partitions=[] if old.closed else [old])


def refusal(part: SealedPart, reason: str, detail: str) -> Refusal:
    """A refused part."""
    text = detail.removeprefix(f"{part.name!r}: ")  # The refusal itself has the name.
    text = "".join(char if char.isprintable() else "?" for char in text)
    return Refusal(name=part.name, reason=reason, detail=text, when=part.when)


def unreadable(part: SealedPart, error: OSError) -> Refusal:
    """The refusal of a part that cannot be read."""
    return refusal(part, "unreadable", f"{error.strerror}; give the reader access")


def show(source: Opens, known: Partition) -> str:
    """A partition as a person knows it."""
    return (
        f"{known.name!r} (partition {known.source_partition_id}, generation {known.generation}, "
        f"{known.reached} {source.context.declared.unit} read)"
    )


def _refused(source: Opens, one: JudgedPart) -> Refusal:
    accept = accept_command(source.context, one.part.name)
    if one.does is PartDecision.CHANGED:
        now = f"{one.looked.rows} {source.context.declared.unit}"
        if not one.looked.key:
            now = "no whole content"
        detail = (
            f"its content is not what was read as {show(source, one.held)}; it has {now} now. "
            f"Put back what was there, or {accept} reads it from its start as a new generation"
        )
        if source.context.by_position:
            detail += "; without a record_id, what it repeats is written again"
        return refusal(one.part, one.does, detail)
    if one.does is PartDecision.RETURNED:
        unit = source.context.declared.unit
        on = accept_command(source.context, one.part.name, f"--from {one.lost}")
        detail = (
            f"it was accepted as lost from {unit[:-1]} {one.lost} on, and is back. {on} reads it "
            "from there; or move it out of the source"
        )
        return refusal(one.part, one.does, detail)
    where = "is there as well"
    if one.twin_retired:
        where = "was read, and another content accepted in its place"
    elif one.state is Twin.UNSURE:
        where = "cannot be looked for now, as something is refused: settle that first"
    twin = show(source, one.twin) if isinstance(one.twin, Partition) else repr(one.twin.name)
    detail = (
        f"it has the content of {twin}, which {where}. Remove it if it is a copy; {accept} reads "
        "all of it as new records"
    )
    return refusal(one.part, one.does, detail)
