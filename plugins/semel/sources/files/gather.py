"""Gather what `recognise` decides over: what the ledger knows, and what the files hold now.

How it works:
1. a file whose stat is still the one that the ledger has, and that was read to its end, is not
   looked at; of the others, those of which an inode, a name or a lost partition may depend are;
2. find where the file of each open partition is now: under a listed name, elsewhere in the folder,
   or nowhere;
3. hold each file that is not known against what was read of partitions that no file holds any
   more, and give each such partition to the one file that fits it best;
4. put the facts of each file together, and ask the table.

Nothing here changes anything: `plan` and `accept` write what follows from the answers.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from semel.declare.context import Context
from semel.sources import Window, in_window
from semel.sources.files.evidence import (
    FilePartition,
    OpenedFile,
    is_part,
    last_record,
    likeness,
    look,
    same_time,
    still,
)
from semel.sources.files.facts import FileFacts, Knowledge, Lost, Recognised, Where
from semel.sources.files.listing import ListedFile, FileListing, inodes_below
from semel.sources.files.recognise import FileDecision, Match, InodeMatch, PathMatch, recognise
from semel.sources.files.rotation import is_rotation


def gather(
    context: Context, listing: FileListing, knowledge: Knowledge, window: Window
) -> Recognised:
    """The facts and the answer of each file that is not settled. OSError but for files that went
    away meanwhile, which are left out.
    """
    return _Gathering(context, listing, knowledge, window).run()


class _Gathering:
    """One pass over what a source shows."""

    def __init__(
        self, context: Context, listing: FileListing, knowledge: Knowledge, window: Window
    ) -> None:
        self.context, self.listing = context, listing
        self.knowledge, self.window = knowledge, window
        self.facts: dict[str, FileFacts] = {}
        self.moving: set[int] = set()  # Inodes of files that could not be looked at.
        self.closed: dict[ListedFile, str] = {}
        self.open = {k.source_partition_id: k for k in knowledge.partitions}
        self.held: dict[int, FileFacts] = {}  # Which file has the inode of a partition.
        self.lost: dict[int, Lost] = {}
        self.taken: dict[int, FileFacts] = {}  # Which file takes a partition up.
        self.hidden: set[str] = set()  # Names of files that are refused unseen.
        self.before = {k.path: k for k in self.open.values()}
        self.linked, self.several = _linked(listing, knowledge)

    def run(self) -> Recognised:
        files = [f for f in self.knowledge.unsettled if f.path not in self.linked]
        by_inode = {(k.device, k.inode): k for k in self.open.values()}
        # The number of a device may change with a reboot.
        by_number = {k.inode: k for k in self.open.values()}
        strange = []
        for file in files:
            known = by_inode.get((file.device, file.inode)) or by_number.get(file.inode)
            if known is None:
                strange.append(file)
            elif (seen := self._look(file)) is not None:
                self._own(seen, known)
        self._find_the_lost()
        free = [k for k in self.open.values() if self._is_free(k)]
        for file in strange:
            if (self._wanted(file) or free) and (seen := self._look(file)) is not None:
                self.facts[file.path] = FileFacts(seen=seen)
        self._match(free)
        self._decide()
        return Recognised(
            facts=self.facts,
            lost=list(self.lost.values()),
            linked=self.linked,
            closed=self.closed,
        )

    def _wanted(self, file: ListedFile) -> bool:
        return in_window(file.when, self.window)

    @contextmanager
    def _looking(self, file: ListedFile) -> Iterator[None]:
        """Leave a file out that was deleted meanwhile, or that cannot be read."""
        try:
            yield
        except OSError as error:
            self.moving.add(file.inode)
            self.facts.pop(file.path, None)
            if not isinstance(error, FileNotFoundError):
                self.closed[file] = f"{error.strerror}; give the reader access"

    def _look(self, file: ListedFile) -> OpenedFile | None:
        with self._looking(file):
            return look(self.context, file)
        return None

    def _own(self, seen: OpenedFile, known: FilePartition) -> None:
        """Hold a file against the partition that had its inode."""
        with self._looking(seen.file):
            own = _own(seen, known)
            path = seen.file.path
            if own is None and path in self.several:
                self.linked[path] = self.several[path]
                return
            facts = (
                FileFacts(seen=seen) if own is None else FileFacts(seen=seen, own=own, known=known)
            )
            self.facts[path] = facts
            if own is not None:
                self.held[known.source_partition_id] = facts

    # Keeps P18.
    def _find_the_lost(self) -> None:
        """Where the files of open partitions are that no listed file is."""
        missing = [k for k in self.open.values() if k.source_partition_id not in self.held]
        inodes = {k.inode for k in missing}
        if not missing:
            return
        elsewhere: dict[int, list[str]] = defaultdict(list)
        for inode, path in inodes_below(self.listing.root):
            if inode in inodes:
                elsewhere[inode].append(path)
        named = {file.path for file in self.listing.items} | {r.name for r in self.listing.refusals}
        for known in missing:
            names = elsewhere[known.inode]
            found = [item for path in names if (item := self._at(path, known, named))]
            unsure = any(item.where is Where.UNSURE for item in found)
            lost = next(iter(found), Lost(partition=known, where=Where.GONE))
            if unsure or known.inode in self.moving or not (names or self.listing.complete):
                lost = Lost(partition=known, where=Where.UNSURE)
            self.lost[known.source_partition_id] = lost

    def _at(self, path: str, known: FilePartition, named: set[str]) -> Lost | None:
        """What a file with the inode of a missing partition says of it; None: it is another one."""
        try:
            size = None if path in self.facts else still(path, known)
        except OSError:
            return Lost(partition=known, where=Where.UNSURE)
        if size is None:
            return None
        if path in named:  # It is refused, so it is not for us to go on with it.
            return Lost(partition=known, where=Where.UNSURE)
        return Lost(partition=known, where=Where.ELSEWHERE, path=path, size=size)

    def _is_free(self, known: FilePartition) -> bool:
        """Whether another file may take a partition up: its own does not hold what was read."""
        lost = self.lost.get(known.source_partition_id)
        if lost is not None:
            return lost.where is not Where.UNSURE
        facts = self.held.get(known.source_partition_id)
        return facts is not None and facts.own in (
            InodeMatch.EMPTY,
            InodeMatch.CUT,
            InodeMatch.CHANGED,
        )

    def _match(self, free: list[FilePartition]) -> None:
        """Hold the files that are not known against what was read of partitions that are free."""
        asked = [f for f in self.facts.values() if f.own in (InodeMatch.UNKNOWN, InodeMatch.CUT)]
        copies = self.knowledge.copies
        for facts in asked:
            facts.told = copies.get((facts.seen.file.inode, facts.seen.file.size))
        begins = self._beginnings(asked, free)
        heads = sorted({p for f in asked for p in begins[f.seen.file.path] if self._asks(f)})
        files = [f.seen.file for f in asked if self._asks(f)]
        inodes, paths = sorted({file.inode for file in files}), [file.path for file in files]
        known = self.knowledge.like(heads, inodes, paths) if files else []
        self.before |= {k.path: k for k in known if k.closed and k.path not in self.before}
        own_free = {k.source_partition_id for k in free}
        candidates = free + [k for k in known if k.source_partition_id not in own_free]
        self.hidden = {r.name for r in self.listing.refusals} | self.linked.keys()
        self.hidden |= {file.path for file in self.closed}
        by_head: dict[tuple[int, str], list[FilePartition]] = defaultdict(list)
        for k in candidates:
            by_head[k.head_length, k.head_hash].append(k)
        unread = {k.path: [k] for k in free if not k.reached}
        pairs = []
        for facts in asked:
            with self._looking(facts.seen.file):
                for k in (
                    *(k for head in begins[facts.seen.file.path] for k in by_head[head]),
                    *unread.get(facts.seen.file.path, []),
                ):
                    pairs += self._pair(facts, k, k.closed or k.source_partition_id in own_free)
        self._assign([pair for pair in pairs if pair[1].seen.file.path in self.facts])
        for facts in asked:
            if facts.told is not None and facts.match is Match.NONE:
                facts.match = Match.UNSURE

    def _asks(self, facts: FileFacts) -> bool:
        """Whether a file is to be read now, so that also what was closed before may be its own."""
        return facts.own is InodeMatch.UNKNOWN and self._wanted(facts.seen.file)

    def _beginnings(
        self, asked: list[FileFacts], free: list[FilePartition]
    ) -> dict[str, list[tuple[int, str]]]:
        """By path: (length, hash) of each beginning that a partition with its first record has."""
        firsts: dict[str, set[str]] = defaultdict(set)
        for facts in asked:
            with self._looking(facts.seen.file):
                firsts[facts.seen.file.path] = facts.seen.firsts()
        wanted = {first for f in asked if self._asks(f) for first in firsts[f.seen.file.path]}
        lengths: dict[str, set[int]] = defaultdict(set)
        for first, length in self.knowledge.lengths(sorted(wanted)) if wanted else ():
            lengths[first].add(length)
        for k in free:
            lengths[k.first_hash].add(k.head_length)
        return {
            f.seen.file.path: f.seen.beginnings(
                {length for first in firsts[f.seen.file.path] for length in lengths.get(first, ())}
            )
            for f in asked
        }

    def _pair(
        self, facts: FileFacts, known: FilePartition, free: bool
    ) -> list[tuple[Match, FileFacts, FilePartition]]:
        own = facts.known
        if own is not None and own.source_partition_id == known.source_partition_id:
            return []
        unsure = not free and known.source_partition_id in self.lost
        if unsure or known.path in self.hidden:  # Nobody can tell where it is, or what is there.
            begins = likeness(facts.seen, known, free=True) is not Match.NONE
            return [(Match.UNSURE, facts, known)] if begins else []
        match = likeness(facts.seen, known, free=free, told=facts.told is not None)
        if match is Match.NONE and self.context.by_position and not free:
            holder = self.held.get(known.source_partition_id)
            if is_part(facts.seen, known, holder.seen if holder else None):
                match = Match.LIVING
        return [] if match is Match.NONE else [(match, facts, known)]

    def _assign(self, pairs: list[tuple[Match, FileFacts, FilePartition]]) -> None:
        """One file takes up a partition: the best one of those that do, the longest of those. None
        of a file of which another one holds more.
        """
        taken, covered = self.taken, self._covered(pairs)
        strong = [p for p in pairs if p[0] is Match.STRONG]
        for _, facts, known in sorted(strong, key=_preference):
            path, partition = facts.seen.file.path, known.source_partition_id
            if known.reached < covered[path]:
                continue
            if partition not in taken and facts.match is Match.NONE:
                facts.match, facts.matched = Match.STRONG, known
                taken[partition] = facts
            elif taken.get(partition, facts) is not facts and self.context.by_position:
                covered[path] = known.reached
        for match, facts, known in pairs:
            if known.reached < covered[facts.seen.file.path]:
                continue
            if taken.get(known.source_partition_id, facts) is not facts:
                match = Match.LIVING
            if match in (Match.STRONG, Match.WEAK):
                facts.alike.append(known)
            if facts.match is Match.NONE or (facts.match is Match.WEAK and match is not Match.WEAK):
                facts.match, facts.matched = match, known
        gone_on = {
            k.source_partition_id
            for match, facts, k in pairs
            if taken.get(k.source_partition_id) is facts or not self.context.by_position
        }
        for partition, facts in self.held.items():
            if facts.own in (InodeMatch.EMPTY, InodeMatch.CHANGED) and partition in gone_on:
                facts.own = InodeMatch.CUT

    def _covered(self, pairs: list[tuple[Match, FileFacts, FilePartition]]) -> dict[str, int]:
        """By path: how much of a file another one holds, by position."""
        covered: dict[str, int] = defaultdict(int)
        if self.context.by_position:
            for match, facts, known in pairs:
                path = facts.seen.file.path
                if match in (Match.LIVING, Match.UNSURE):
                    covered[path] = max(covered[path], known.reached)
            for path, facts in self.facts.items():
                if facts.told is not None and facts.seen.content is not None:
                    held = facts.told.behind or facts.seen.content.size
                    covered[path] = max(covered[path], held)
        return covered

    def _stuck(self) -> set[int]:
        """Partitions that keep their path: nobody can tell where their file is, or their file has
        the path of one that does.
        """
        stuck = {k for k, lost in self.lost.items() if lost.where is Where.UNSURE}
        while True:
            more = {
                facts.known.source_partition_id
                for path, facts in self.facts.items()
                if facts.known is not None
                and (before := self.before.get(path)) not in (None, facts.known)
                and before.source_partition_id in stuck
            }
            if more <= stuck:
                return stuck
            stuck |= more

    def _decide(self) -> None:
        """The place of each file, and the table's answer."""
        stuck = self._stuck()
        for path, facts in list(self.facts.items()):
            before = self.before.get(path)
            if before is not None and before is not facts.known:
                facts.before = before
                if facts.match is not Match.STRONG or facts.matched is not before:
                    with self._looking(facts.seen.file):
                        facts.place = self._place(facts, before, stuck)
            facts.answer = recognise(
                facts.own, facts.place, facts.match, by_position=self.context.by_position
            )
        for partition, facts in self.taken.items():
            if facts.answer is FileDecision.TAKE_UP:
                self.lost.pop(partition, None)

    def _place(self, facts: FileFacts, before: FilePartition, stuck: set[int]) -> PathMatch:
        if before.source_partition_id in stuck:
            return PathMatch.UNSURE
        lost = self.lost.get(before.source_partition_id)
        # Its file is listed elsewhere, or another file takes it up.
        if before.source_partition_id in self.taken or (lost is None and not before.closed):
            return PathMatch.FREE
        moved = lost is not None and lost.path and is_rotation(before.path, lost.path)
        seen = facts.seen
        if moved or seen.content is None or not before.reached:
            return PathMatch.GONE
        first = seen.content.first_record(seen.header_end, before.reached)
        edited = before.first_hash in ("", first) or last_record(seen, before) is not None
        return PathMatch.EDITED if edited else PathMatch.GONE


def _linked(
    listing: FileListing, knowledge: Knowledge
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """All names of each file that has several: by each name that is not read; and by the one that
    is, if it is not the one that is known with the file's inode.
    """
    names: dict[tuple[int, int], list[str]] = defaultdict(list)
    inodes = {file.inode for file in knowledge.unsettled}  # Of several names one may be settled.
    for file in listing.items:
        if file.inode in inodes:
            names[file.device, file.inode].append(file.path)
    known = knowledge.names | {k.path: k.inode for k in knowledge.partitions}
    paths = {k.inode: k.path for k in knowledge.partitions}
    linked, several = {}, {}
    for (_, inode), found in names.items():
        if len(found) == 1:
            continue
        kept = next((path for path in found if known.get(path) == inode), None)
        if kept is None and inode in paths:  # It was renamed.
            kept = min(found, key=lambda path: (not is_rotation(paths[inode], path), path))
            several[kept] = found
        linked |= {path: found for path in found if path != kept}
    return linked, several


def _own(seen: OpenedFile, known: FilePartition) -> InodeMatch | None:
    """What a file is to the partition that had its inode; None: its number was given again."""
    named = seen.file.path == known.path
    birth = seen.same_birth(known)
    if birth is False or (seen.file.device != known.device and not birth and not named):
        return None
    content = seen.content
    if content is None:
        return InodeMatch.SAME if seen.unfinished else InodeMatch.CHANGED
    if seen.begins_with(known):
        sure = birth or named or likeness(seen, known, free=True) is Match.STRONG
        return InodeMatch.SAME if sure else None
    begins = content.hash(0, known.head_length) == known.head_hash
    if birth is None and not named and not begins:
        return None
    if not seen.file.size:
        return InodeMatch.EMPTY
    return InodeMatch.CUT if content.nuls() >= known.reached else InodeMatch.CHANGED


def _preference(pair: tuple[Match, FileFacts, FilePartition]) -> tuple:
    """Longest partition first; of its files the one that has its inode, its path or its time."""
    _, facts, known = pair
    seen, file = facts.seen, facts.seen.file
    return (
        -known.reached,
        known.source_partition_id,
        not (known.inode == file.inode and seen.same_birth(known)),
        known.path != file.path,
        not is_rotation(known.path, file.path),
        not same_time(seen, known),
        -(seen.content.size if seen.content else 0),
        file.path,
    )
