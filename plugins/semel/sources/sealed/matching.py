"""Decides which source partition each part continues, and which of its rows a plan may read.

How it works:
1. Inspect the parts that are not settled: those in the plan's window and those with the name of a
   partition. If a partition does not find its content under its name, inspect all others too.
2. Compare each part with the partition of its name, then with partitions of its content, open or
   closed. A partition that matches no part by name goes to the first part with its content.
3. Without a record id, compare the parts that would be read with each other.
4. Look up the decision of each part in a table.

No function here changes the ledger or the source.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from semel.errors import SourceError
from semel.sources import (
    Acceptance,
    LedgerView,
    LostRange,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Window,
    accept_command,
    bare_accept_command,
    in_window,
)
from semel.sources.sealed.parts import (
    PartAccess,
    PartInspection,
    PartListing,
    PartOffer,
    SealedPart,
)


class NameMatch(StrEnum):
    """How a part compares with the partition of its name."""

    FREE = "free"
    """There is no such partition, or another part continues it, or its part has moved."""
    UNREAD = "unread"
    """The partition has other content, and none of its rows was read."""
    SAME = "same"
    """The partition has this content."""
    OTHER = "other"
    """The partition has other content, and some of its rows were read."""


class Twin(StrEnum):
    """Whether another name has a partition with this content, with rows that were or will be read.
    """

    NONE = "none"
    MOVED = "left"
    """Yes, and no other part has the content now."""
    PRESENT = "held"
    """Yes, and another part still has it, or an operator accepted new content in its place."""
    UNSURE = "unsure"
    """Yes, and this plan cannot find out where that part is now."""
    LOST = "lost"
    """Yes; its part had disappeared, and an operator accepted its remaining rows as lost."""


class PartDecision(StrEnum):
    """The decision of a plan about a part."""

    BEGIN = "begin"
    """Read it as a new partition."""
    CONTINUE = "go on"
    """Continue the partition of its name."""
    RESUME = "take up"
    """Continue the partition that has its content."""
    CHANGED = "changed"
    COPY = "copy"
    RETURNED = "returned"
    """The last three are refusals: an operator decides."""


REFUSED = frozenset({PartDecision.CHANGED, PartDecision.COPY, PartDecision.RETURNED})


# Keeps P22.
def judge(name_match: NameMatch, twin: Twin, *, by_position: bool) -> PartDecision:
    """The decision table: all 40 cases.

    With a record id, plan reads a copy: semel drops the records that it repeats.
    """
    if name_match is NameMatch.SAME:
        return PartDecision.CONTINUE
    if twin is Twin.MOVED:
        return PartDecision.RESUME
    if name_match is NameMatch.OTHER:
        return PartDecision.CHANGED
    if twin is Twin.LOST:
        return PartDecision.RETURNED
    if by_position and twin is not Twin.NONE:
        return PartDecision.COPY
    return PartDecision.CONTINUE if name_match is NameMatch.UNREAD else PartDecision.BEGIN


@dataclass(kw_only=True)
class JudgedPart:
    """An inspected part, and the plan's decision about it.

    `namesake`: the partition of its name. `twin`: the partition of its content under another name,
    or the part of the same plan that has it. `twin_retired`: accept retired that partition.
    `lost_from`: its first row that an operator accepted as lost.
    """

    inspection: PartInspection
    namesake: Partition | None
    name_match: NameMatch
    twin: Partition | SealedPart | None = None
    twin_state: Twin = Twin.NONE
    decision: PartDecision = PartDecision.BEGIN
    twin_retired: bool = False
    lost_from: int = 0
    content: str | None = None

    @property
    def part(self) -> SealedPart:
        return self.inspection.part

    @property
    def partition(self) -> Partition | None:
        """The partition that the part continues. None if it begins a new one."""
        continued = {PartDecision.CONTINUE: self.namesake, PartDecision.RESUME: self.twin}
        return continued.get(self.decision)


@dataclass(kw_only=True)
class PartMatcher:
    """Matches the parts that a source lists with the partitions that the ledger has, in one pass.
    """

    source: PartAccess
    listing: PartListing
    ledger: LedgerView
    window: Window
    judged_parts: list[JudgedPart] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    matched_ids: set[int] = field(default_factory=set)
    retired_ids: set[int] = field(default_factory=set)
    lost_from: dict[int, int] = field(default_factory=dict)
    """By partition, the first row that an operator accepted as lost."""

    def run(self) -> "PartMatcher":
        self._open = {k.source_partition_id: k for k in self.ledger.partitions}
        self._by_name = {k.name: k for k in self.ledger.partitions}
        self._names = {part.name for part in self.listing.items}
        self._hidden = {refusal.name for refusal in self.listing.refusals}
        self._match_names()
        self._match_contents()
        for judged in self.judged_parts:
            by_position = self.source.context.by_position
            judged.decision = judge(judged.name_match, judged.twin_state, by_position=by_position)
        return self

    def _match_names(self) -> None:
        """Inspect the parts, and compare each with the partition of its name."""
        linked, unrelated = dict(self._hard_links()), []
        for part in self.ledger.unsettled:
            if part.name in linked:
                self.refusals.append(linked[part.name])
            elif part.name in self._by_name or in_window(part.when, self.window):
                self._inspect(part)
            else:
                unrelated.append(part)
        self.matched_ids = {
            j.namesake.source_partition_id
            for j in self.judged_parts if j.name_match is NameMatch.SAME
        }  # fmt: skip
        if self.matched_ids != self._open.keys():  # An unrelated part may have a missing content.
            for part in unrelated:
                self._inspect(part)

    def _inspect(self, part: SealedPart) -> None:
        namesake = self._by_name.get(part.name)
        try:
            judged = JudgedPart(
                inspection=self.source.inspect(part), namesake=namesake, name_match=NameMatch.FREE
            )
            if namesake is not None:
                judged.name_match = self._compare_with_namesake(judged, namesake)
            self.judged_parts.append(judged)
        except FileNotFoundError:
            pass  # It was moved meanwhile: the next plan finds it under its new name.
        except OSError as error:
            self.refusals.append(unreadable_refusal(part, error))

    # Keeps P13.
    def _hard_links(self) -> Iterator[tuple[str, Refusal]]:
        """Refuse all but one name of a part that is listed under several. A settled name stays,
        else the name of a partition.
        """
        parts_by_identity = defaultdict(list)
        for part in self.listing.items:
            parts_by_identity[part.identity].append(part)
        unsettled = {part.name for part in self.ledger.unsettled}
        for parts in parts_by_identity.values():
            if len(parts) > 1:
                first = min(
                    parts, key=lambda p: (p.name in unsettled, p.name not in self._by_name, p.name)
                )
                why = (
                    f"it is the same file as {first.name!r}, by a hard link. Leave one of the two "
                    "names in the source folder"
                )
                for part in parts:
                    if part is not first:
                        yield part.name, refusal(part, "hard link", why)

    def _compare_with_namesake(self, judged: JudgedPart, namesake: Partition) -> NameMatch:
        if namesake.fingerprint == judged.part.fingerprint:
            judged.content = namesake.evidence.get("content")
            return NameMatch.SAME
        if self._has_content(judged, namesake):
            return NameMatch.SAME
        return NameMatch.OTHER if namesake.reached else NameMatch.UNREAD

    def _has_content(self, judged: JudgedPart, partition: Partition) -> bool:
        """Whether a part has a partition's content. Hashes the part once, if their keys are equal.
        """
        key = judged.inspection.key
        if not key or key != partition.evidence.get("head_hash"):
            return False
        if judged.content is None:
            judged.content = self.source.digest(judged.part)
        return judged.content == partition.evidence.get("content")

    def _match_contents(self) -> None:
        """Compare parts with the partitions of their content, and let each part without a
        partition of its own continue one that no part has. Then compare parts with each other.
        """
        candidates = [
            j for j in self.judged_parts
            if j.name_match is not NameMatch.SAME and j.inspection.key and j.inspection.rows
        ]  # fmt: skip
        alike, unreadable = self._partitions_alike(candidates)
        self.judged_parts = [j for j in self.judged_parts if j.part.name not in unreadable]
        candidates = [j for j in candidates if j.part.name not in unreadable]
        self._inspected = {j.part.name for j in self.judged_parts}
        self._name_of = {j.part.identity: j.part.name for j in self.judged_parts}
        for judged in candidates:
            partitions = alike[judged.content] if judged.content else ()
            states = [(self._twin_state(k), k) for k in partitions if k != judged.namesake]
            for wanted in (Twin.MOVED, Twin.PRESENT, Twin.UNSURE, Twin.LOST):
                judged.twin = next((k for state, k in states if state is wanted), None)
                if judged.twin is not None:
                    judged.twin_state = wanted
                    break
            if judged.twin is not None:
                judged.twin_retired = judged.twin.source_partition_id in self.retired_ids
                judged.lost_from = self.lost_from.get(judged.twin.source_partition_id, 0)
            if judged.twin_state is Twin.MOVED:
                self.matched_ids.add(judged.twin.source_partition_id)
        for judged in self.judged_parts:
            namesake = judged.name_match is not NameMatch.SAME and judged.namesake
            if namesake and (
                namesake.source_partition_id in self.matched_ids or self._is_away(namesake)
            ):
                judged.name_match = NameMatch.FREE
        if self.source.context.by_position:
            self._mark_copies(candidates)

    # Keeps P22.
    def _mark_copies(self, candidates: list[JudgedPart]) -> None:
        """Let plan read one of several parts with the same content, first one that continues the
        partition of its name.
        """
        first: dict[str, SealedPart] = {}
        for judged in sorted(candidates, key=lambda j: j.name_match is not NameMatch.UNREAD):
            is_read = judged.name_match is NameMatch.UNREAD or (
                judged.name_match is NameMatch.FREE and in_window(judged.part.when, self.window)
            )
            is_readable = judged.content and not judged.inspection.refusal
            if is_read and judged.twin_state is Twin.NONE and is_readable:
                original = first.setdefault(judged.content, judged.part)
                if original is not judged.part:
                    judged.twin_state, judged.twin = Twin.PRESENT, original

    # Keeps P22.
    def _partitions_alike(
        self, candidates: list[JudgedPart]
    ) -> tuple[dict[str, list[Partition]], set[str]]:
        """By content, the partitions that these parts may continue; and the names of the parts
        that cannot be read to their end.

        Hashes a part if a partition has its key, if nothing was read in the partition of its name,
        or, without a record id, if two parts have its key.
        """
        unreadable = set()
        counts = Counter(j.inspection.key for j in candidates)
        unread = [k for k in self.ledger.partitions if not k.reached]
        rows = self.ledger.query("sealed", "keys", keys=sorted(counts)) if counts else []
        keys = {r["key"] for r in rows}
        repeated = {key for key, count in counts.items() if count > 1}
        hashed_keys = keys | {k.evidence.get("head_hash") for k in unread}
        hashed_keys |= repeated if self.source.context.by_position else set()
        for judged in candidates:
            is_hashed = judged.inspection.key in hashed_keys
            is_hashed = is_hashed or judged.name_match is NameMatch.UNREAD
            if judged.content is not None or not is_hashed:
                continue
            try:
                judged.content = self.source.digest(judged.part)
            except FileNotFoundError:
                unreadable.add(judged.part.name)  # As in `_inspect`.
            except OSError as error:
                unreadable.add(judged.part.name)
                self.refusals.append(unreadable_refusal(judged.part, error))
        alike = defaultdict(list)
        contents = sorted({j.content for j in candidates if j.content is not None})
        if keys and contents:
            for r in self.ledger.query("sealed", "like", keys=[*keys], contents=contents):
                values = {k: v for k, v in r.items() if k not in ("retired", "lost")}
                partition = Partition(**values)
                if r["retired"]:
                    self.retired_ids.add(partition.source_partition_id)
                if r["lost"] is not None:
                    self.lost_from[partition.source_partition_id] = r["lost"]
                alike[r["evidence"]["content"]].append(partition)
        for partition in unread:
            alike[partition.evidence.get("content")].append(partition)
        return alike, unreadable

    def _twin_state(self, partition: Partition) -> Twin:
        """The state of a partition that has the content of a part with another name."""
        number = partition.source_partition_id
        if number in self.matched_ids or number in self.retired_ids:
            return Twin.PRESENT
        if partition.closed:
            return Twin.LOST if number in self.lost_from else Twin.MOVED
        if number not in self._open:  # It is settled: its part has not changed.
            return Twin.PRESENT
        if partition.name in self._inspected or self._is_away(partition):
            return Twin.MOVED
        return Twin.UNSURE

    # Keeps P18, P27.
    def _is_away(self, partition: Partition) -> bool:
        """Whether a partition's part is certainly not under its name: it has another name now,
        collect has archived it, or a complete listing lacks it.
        """
        name = partition.name
        return self._name_of.get(partition.identity, name) != name or (
            self.listing.complete and name not in self._names and name not in self._hidden
        ) or self.source.is_archived(partition)

    def lost_ranges(self) -> list[LostRange]:
        """The partitions that no part continues any more."""
        moved = (j for j in self.judged_parts if j.namesake and j.decision is PartDecision.RESUME)
        replaced = {j.namesake.source_partition_id for j in moved}
        return [
            LostRange(partition=k, seen=max(k.seen, k.reached))
            for k in self.ledger.partitions
            if k.source_partition_id not in self.matched_ids
            and (k.source_partition_id in replaced or self._is_away(k))
        ]

    def earlier_refusals(self) -> list[Refusal]:
        """The last plan's refusals of parts outside this window, which this plan did not inspect.
        """
        decided = {j.part.name for j in self.judged_parts} | {r.name for r in self.refusals}
        stored = {r.name: r for r in self.ledger.refusals}
        return [
            replace(stored[part.name], when=part.when)
            for part in self.ledger.unsettled
            if part.name not in decided and part.name in stored
            and not in_window(part.when, self.window)
        ]  # fmt: skip


# Keeps P31.
def match(
    source: PartAccess, listing: PartListing, ledger: LedgerView, window: Window
) -> MatchResult:
    """As `Source.match`."""
    matcher = PartMatcher(source=source, listing=listing, ledger=ledger, window=window).run()
    offers, renamed, begun = [], [], []
    refused = [*matcher.refusals, *matcher.earlier_refusals()]
    doubtful = {refusal.name for refusal in ledger.refusals}
    for judged in matcher.judged_parts:
        part, wanted = judged.part, in_window(judged.part.when, window)
        inspection, partition = judged.inspection, judged.partition
        offer = make_offer(inspection, partition, judged.content)
        if judged.decision in REFUSED:
            refused.append(_decision_refusal(source, judged))
        elif inspection.unfinished:
            offers.append(replace(offer, partition=None, ahead=1))
        elif (wanted or part.name in doubtful) and inspection.refusal and _has_unread_rows(judged):
            refused.append(inspection.refusal)
            if partition and (partition.name, partition.identity) != (part.name, part.identity):
                renamed.append(replace(partition, name=part.name, identity=part.identity))
        elif wanted or partition:
            offers.append(replace(offer, end=offer.seen if wanted else 0))
            if partition is None and not offer.seen:
                begun.append(offer)
    return MatchResult(
        offers=offers,
        refusals=refused,
        lost_ranges=matcher.lost_ranges(),
        renamed_partitions=renamed,
        new_partition_offers=begun,
        resumed_names=tuple(
            (j.part.name, j.twin.name)
            for j in matcher.judged_parts
            if j.decision is PartDecision.RESUME and j.twin.reached
        ),
    )


def _has_unread_rows(judged: JudgedPart) -> bool:
    """Whether a plan has rows of a part to read. True if its rows cannot be counted."""
    reached = judged.partition.reached if judged.partition else 0
    return judged.inspection.rows > reached or not judged.inspection.key


def make_offer(
    inspection: PartInspection, partition: Partition | None, content: str | None, *, end: int = 0
) -> PartOffer:
    """Offer the rows of a part up to `end`, in `partition` or, if that is None, in a new one."""
    part = inspection.part
    evidence = {"head_hash": inspection.key, "bytes": inspection.length, "content": content}
    return PartOffer(
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        partition=partition,
        end=end,
        seen=inspection.rows,
        ahead=inspection.rows,
        evidence=inspection.evidence | evidence,
        part=part,
        length=inspection.length,
        content=content,
        refusal=inspection.refusal,
    )


def partitions_by_name(ledger: LedgerView, parts: Iterable[SealedPart]) -> dict[str, Partition]:
    """By name, the open partition, else the one that was closed last."""
    open_partitions = {k.name: k for k in ledger.partitions}
    names = [part.name for part in parts if part.name not in open_partitions]
    closed = ledger.query("sealed", "closed", names=names) if names else []
    return open_partitions | {r["name"]: Partition(**r) for r in closed}


# Keeps P22.
def part_digest(source: PartAccess, part: SealedPart) -> str:
    """The digest of all bytes of a part. Raises RefusedError if it cannot be read,
    FileNotFoundError if it changed since it was listed.
    """
    try:
        return source.digest(part)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(unreadable_refusal(part, error)) from error


def accept_part(
    source: PartAccess, listing: PartListing, ledger: LedgerView, name: str,
    *, same: bool, start: int, is_open: bool,
) -> Acceptance | None:
    """As `Source.accept`."""
    matcher = PartMatcher(source=source, listing=listing, ledger=ledger, window=None).run()
    judged = next((j for j in matcher.judged_parts if j.part.name == name), None)
    pipeline, noun = source.context.name, source.context.declared.part
    if judged is None or judged.decision not in REFUSED:
        as_what = f"a {noun} that changed or is a copy"
        return accept_unrefused(pipeline, name, as_what, may_be=is_open and not same)
    if same:
        raise SourceError(
            f"{name!r}: --same does not apply, because semel never resumes inside a {noun} of "
            "this format. Nothing was accepted. Accept it as a new generation",
            next=bare_accept_command(pipeline, name),
        )
    if not judged.inspection.key:
        refused = judged.inspection.refusal
        why = refused.detail if refused else f"the {noun} is not complete yet"
        raise SourceError(
            f"{name!r}: {why}. Nothing was accepted. Replace it, then run the pipeline"
        )
    if start > judged.inspection.rows:
        unit = source.context.declared.unit
        raise SourceError(
            f"{name!r} has {judged.inspection.rows} {unit}, so --from {start} is beyond its end. "
            "Nothing was accepted. Give a smaller number"
        )
    identity, namesake = judged.part.identity, judged.namesake
    moved = [k for k in ledger.partitions if k.identity == identity and k != namesake]
    if namesake and judged.name_match is NameMatch.FREE:
        moved.append(namesake)
    if moved:
        raise SourceError(
            f"{describe_partition(source, moved[0])} was moved or replaced since the last plan. "
            f"Nothing was accepted. Run the pipeline, then accept {name!r} if it is still refused",
            next=f"semel run {pipeline}",
        )
    content = judged.content or part_digest(source, judged.part)
    offer = make_offer(judged.inspection, None, content)
    return Acceptance(
        offer=replace(offer, start=start, reason="repeated"),
        replaced_partitions=[namesake] if namesake else [],
    )


def accept_unrefused(pipeline: str, name: str, as_what: str, *, may_be: bool) -> None:
    """Returns None for a name that is not refused. Raises SourceError unless it `may_be` so."""
    if not may_be:
        raise SourceError(
            f"{name!r} is not refused as {as_what}, so there is nothing to accept",
            next=f"semel gaps {pipeline}",
        )


def accept_new_content(
    pipeline: str, name: str, as_what: str, old: Partition, offer: Callable[[], PartOffer],
    *, same: bool, start: int,
) -> Acceptance:  # fmt: skip
    """Accept other content under a name, from its start. Raises SourceError for `same` or a later
    start.
    """
    if same or start:
        raise SourceError(
            f"{name!r} is {as_what}: --same and --from do not apply. Nothing was accepted. Accept "
            "it without them",
            next=bare_accept_command(pipeline, name),
        )
    return Acceptance(offer=offer(), replaced_partitions=[] if old.closed else [old])


def refusal(part: SealedPart, reason: str, detail: str) -> Refusal:
    """Refuse a part. Unprintable characters of `detail` become question marks."""
    text = detail.removeprefix(f"{part.name!r}: ")  # The refusal itself has the name.
    text = "".join(char if char.isprintable() else "?" for char in text)
    return Refusal(name=part.name, reason=reason, detail=text, when=part.when)


def unreadable_refusal(part: SealedPart, error: OSError) -> Refusal:
    """Refuse a part that cannot be read."""
    return refusal(part, "unreadable", f"{error.strerror}; give the reader access")


def describe_partition(source: PartAccess, partition: Partition) -> str:
    """A partition in words, for messages."""
    return (
        f"{partition.name!r} (partition {partition.source_partition_id}, generation "
        f"{partition.generation}, {partition.reached} {source.context.declared.unit} read)"
    )


def _decision_refusal(source: PartAccess, judged: JudgedPart) -> Refusal:
    accept, unit = accept_command(source.context, judged.part.name), source.context.declared.unit
    noun = source.context.declared.part
    if judged.decision is PartDecision.CHANGED:
        size = f"{judged.inspection.rows} {unit}"
        if not judged.inspection.key:
            size = "no complete content"
        detail = (
            f"its content changed since {describe_partition(source, judged.namesake)}; it has "
            f"{size} now. Restore the old {noun}, or read this one from its start as a new "
            f"generation: {accept}"
        )
        if source.context.by_position:
            detail += ". Without a record_id, semel writes the records that it repeats again"
        return refusal(judged.part, judged.decision, detail)
    if judged.decision is PartDecision.RETURNED:
        resume = accept_command(source.context, judged.part.name, f"--from {judged.lost_from}")
        detail = (
            f"it was accepted as lost from {unit[:-1]} {judged.lost_from} on, and is back. Read it "
            f"from there: {resume}; or move it out of the source"
        )
        return refusal(judged.part, judged.decision, detail)
    where = "still exists"
    if judged.twin_retired:
        where = "was read, and whose name has new content that was accepted"
    elif judged.twin_state is Twin.UNSURE:
        where = "plan cannot find while another name is refused. Settle that one first"
    twin = judged.twin
    original = describe_partition(source, twin) if isinstance(twin, Partition) else repr(twin.name)
    detail = (
        f"it has the content of {original}, which {where}. Remove it if it is a copy, or read all "
        f"of it as new records: {accept}"
    )
    return refusal(judged.part, judged.decision, detail)
