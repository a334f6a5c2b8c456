"""Gather the facts that `recognise` decides over: the ledger's knowledge, and the files now.

How it works:
1. skip each file that was read to its end and whose stat still matches the ledger; open the others
   if an inode, a name or an unlisted partition may depend on them;
2. find the file of each open partition: under a listed name, elsewhere in the folder, or nowhere;
3. compare each unknown file with the content of partitions that no file holds, and give each such
   partition to the file that fits best;
4. collect the facts of each file, and look up the table's decision.

Nothing here changes the ledger: `plan` and `accept` act on the decisions.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from semel.declare.context import Context
from semel.sources import Window, in_window
from semel.sources.files.evidence import (
    FilePartition,
    OpenedFile,
    has_same_time,
    is_part,
    last_record,
    likeness,
    open_listed,
    size_if_same,
)
from semel.sources.files.facts import (
    FileFacts, Knowledge, PartitionPlace, RecognisedFiles, UnlistedPartition,
)  # fmt: skip
from semel.sources.files.listing import FileListing, ListedFile, inodes_below
from semel.sources.files.recognise import FileDecision, InodeMatch, Match, PathMatch, recognise
from semel.sources.files.rotation import is_rotation


def gather(
    context: Context, listing: FileListing, knowledge: Knowledge, window: Window
) -> RecognisedFiles:
    """The facts and the decision of each file that is not settled. Files that were deleted
    meanwhile are left out. Raises OSError for other trouble.
    """
    return _Gathering(context, listing, knowledge, window).run()


class _Gathering:
    """One pass over a listing."""

    def __init__(
        self, context: Context, listing: FileListing, knowledge: Knowledge, window: Window
    ) -> None:
        self.context, self.listing = context, listing
        self.knowledge, self.window = knowledge, window
        self.facts: dict[str, FileFacts] = {}
        self.unopened_inodes: set[int] = set()
        self.unreadable: dict[ListedFile, str] = {}
        self.open_partitions = {k.source_partition_id: k for k in knowledge.partitions}
        self.holders: dict[int, FileFacts] = {}  # The file with the inode of a partition.
        self.unlisted: dict[int, UnlistedPartition] = {}
        self.takers: dict[int, FileFacts] = {}  # The file that takes up a partition.
        self.refused_names: set[str] = set()  # Names of files that are refused unopened.
        self.by_path = {k.path: k for k in self.open_partitions.values()}
        self.hard_links, self.renamed_links = _find_hard_links(listing, knowledge)

    def run(self) -> RecognisedFiles:
        files = [f for f in self.knowledge.unsettled if f.path not in self.hard_links]
        by_device = {(k.device, k.inode): k for k in self.open_partitions.values()}
        # The number of a device may change with a reboot.
        by_inode = {k.inode: k for k in self.open_partitions.values()}
        unknown = []
        for file in files:
            partition = by_device.get((file.device, file.inode)) or by_inode.get(file.inode)
            if partition is None:
                unknown.append(file)
            elif (opened := self._open(file)) is not None:
                self._compare_with_inode(opened, partition)
        self._find_unlisted()
        free = [k for k in self.open_partitions.values() if self._is_free(k)]
        for file in unknown:
            if (in_window(file.when, self.window) or free) and (opened := self._open(file)):
                self.facts[file.path] = FileFacts(opened_file=opened)
        self._match(free)
        self._decide()
        return RecognisedFiles(
            facts=self.facts,
            unlisted=list(self.unlisted.values()),
            hard_links=self.hard_links,
            unreadable=self.unreadable,
        )

    @contextmanager
    def _skipping_unreadable(self, file: ListedFile) -> Iterator[None]:
        """Leave out a file that was deleted meanwhile or cannot be read."""
        try:
            yield
        except OSError as error:
            self.unopened_inodes.add(file.inode)
            self.facts.pop(file.path, None)
            if not isinstance(error, FileNotFoundError):
                self.unreadable[file] = f"{error.strerror}; give the reader access"

    def _open(self, file: ListedFile) -> OpenedFile | None:
        with self._skipping_unreadable(file):
            return open_listed(self.context, file)
        return None

    def _compare_with_inode(self, opened: OpenedFile, partition: FilePartition) -> None:
        """Compare a file with the partition that last used its inode."""
        with self._skipping_unreadable(opened.file):
            inode_match = _inode_match(opened, partition)
            path = opened.file.path
            if inode_match is not None:
                facts = FileFacts(
                    opened_file=opened, inode_match=inode_match, inode_partition=partition
                )
                self.holders[partition.source_partition_id] = self.facts[path] = facts
            elif path in self.renamed_links:
                self.hard_links[path] = self.renamed_links[path]
            else:
                self.facts[path] = FileFacts(opened_file=opened)

    # Keeps P18.
    def _find_unlisted(self) -> None:
        """Find the files of the open partitions that no listed file holds."""
        missing = [k for p, k in self.open_partitions.items() if p not in self.holders]
        inodes = {k.inode for k in missing}
        if not missing:
            return
        elsewhere: dict[int, list[str]] = defaultdict(list)
        for inode, path in inodes_below(self.listing.root):
            if inode in inodes:
                elsewhere[inode].append(path)
        listed = {file.path for file in self.listing.items}
        listed |= {refusal.name for refusal in self.listing.refusals}
        for partition in missing:
            paths = elsewhere[partition.inode]
            hits = [hit for path in paths if (hit := self._locate_at(path, partition, listed))]
            unsure = any(hit.place is PartitionPlace.UNSURE for hit in hits)
            absent = UnlistedPartition(partition=partition, place=PartitionPlace.MISSING)
            unlisted = next(iter(hits), absent)
            unopened = partition.inode in self.unopened_inodes
            if unsure or unopened or not (paths or self.listing.complete):
                unlisted = UnlistedPartition(partition=partition, place=PartitionPlace.UNSURE)
            self.unlisted[partition.source_partition_id] = unlisted

    def _locate_at(
        self, path: str, partition: FilePartition, listed: set[str]
    ) -> UnlistedPartition | None:
        """The place of a missing partition, by a file with its inode. None if that is another file."""
        try:
            size = None if path in self.facts else size_if_same(path, partition)
        except OSError:
            return UnlistedPartition(partition=partition, place=PartitionPlace.UNSURE)
        if size is None:
            return None
        if path in listed:  # The file is refused, so semel cannot go on with it.
            return UnlistedPartition(partition=partition, place=PartitionPlace.UNSURE)
        return UnlistedPartition(
            partition=partition, place=PartitionPlace.ELSEWHERE, path=path, size=size
        )

    def _is_free(self, partition: FilePartition) -> bool:
        """Whether another file may take up a partition: its own lacks the content that was read."""
        unlisted = self.unlisted.get(partition.source_partition_id)
        if unlisted is not None:
            return unlisted.place is not PartitionPlace.UNSURE
        holder = self.holders.get(partition.source_partition_id)
        return holder is not None and holder.inode_match in (
            InodeMatch.EMPTY,
            InodeMatch.CUT,
            InodeMatch.CHANGED,
        )

    def _match(self, free: list[FilePartition]) -> None:
        """Compare the unknown files with the content that was read of free partitions."""
        unmatched = (InodeMatch.UNKNOWN, InodeMatch.CUT)
        files = [facts for facts in self.facts.values() if facts.inode_match in unmatched]
        copies = self.knowledge.copies
        for facts in files:
            file = facts.opened_file.file
            facts.earlier_refusal = copies.get((file.inode, file.size))
        beginnings = self._beginnings(files, free)
        resumable = [facts for facts in files if self._may_resume_closed(facts)]
        heads = sorted({head for facts in resumable for head in beginnings[facts.path]})
        inodes = sorted({facts.opened_file.file.inode for facts in resumable})
        paths = [facts.path for facts in resumable]
        similar = self.knowledge.find_partitions(heads, inodes, paths) if resumable else []
        self.by_path |= {k.path: k for k in similar if k.closed and k.path not in self.by_path}
        free_ids = {k.source_partition_id for k in free}
        candidates = free + [k for k in similar if k.source_partition_id not in free_ids]
        self.refused_names = {r.name for r in self.listing.refusals} | self.hard_links.keys()
        self.refused_names |= {file.path for file in self.unreadable}
        by_head: dict[tuple[int, str], list[FilePartition]] = defaultdict(list)
        for k in candidates:
            by_head[k.head_length, k.head_hash].append(k)
        unread = {k.path: [k] for k in free if not k.reached}
        pairs = []
        for facts in files:
            with self._skipping_unreadable(facts.opened_file.file):
                for k in (
                    *(k for head in beginnings[facts.path] for k in by_head[head]),
                    *unread.get(facts.path, []),
                ):
                    is_free = k.closed or k.source_partition_id in free_ids
                    pairs += self._match_pair(facts, k, is_free)
        self._assign([pair for pair in pairs if pair[1].path in self.facts])
        for facts in files:
            if facts.earlier_refusal is not None and facts.content_match is Match.NONE:
                facts.content_match = Match.UNSURE

    def _may_resume_closed(self, facts: FileFacts) -> bool:
        """Whether a file is read now, so that it may also continue a closed partition."""
        is_wanted = in_window(facts.opened_file.file.when, self.window)
        return facts.inode_match is InodeMatch.UNKNOWN and is_wanted

    def _beginnings(
        self, files: list[FileFacts], free: list[FilePartition]
    ) -> dict[str, list[tuple[int, str]]]:
        """By path: (length, hash) of each beginning that a partition with its first record has."""
        firsts: dict[str, set[str]] = defaultdict(set)
        for facts in files:
            with self._skipping_unreadable(facts.opened_file.file):
                firsts[facts.path] = facts.opened_file.first_hashes()
        wanted = {h for f in files if self._may_resume_closed(f) for h in firsts[f.path]}
        lengths: dict[str, set[int]] = defaultdict(set)
        for first, length in self.knowledge.find_lengths(sorted(wanted)) if wanted else ():
            lengths[first].add(length)
        for k in free:
            lengths[k.first_hash].add(k.head_length)
        return {
            f.path: f.opened_file.beginnings(
                {length for first in firsts[f.path] for length in lengths.get(first, ())}
            )
            for f in files
        }

    def _match_pair(
        self, facts: FileFacts, partition: FilePartition, free: bool
    ) -> list[tuple[Match, FileFacts, FilePartition]]:
        opened, holder = facts.opened_file, self.holders.get(partition.source_partition_id)
        own = facts.inode_partition
        if own is not None and own.source_partition_id == partition.source_partition_id:
            return []
        unsure = not free and partition.source_partition_id in self.unlisted
        if unsure or partition.path in self.refused_names:  # Its file cannot be found or opened.
            begins = likeness(opened, partition, free=True) is not Match.NONE
            return [(Match.UNSURE, facts, partition)] if begins else []
        refused = facts.earlier_refusal is not None
        match = likeness(opened, partition, free=free, is_refused_copy=refused)
        if match is Match.NONE and self.context.by_position and not free:
            if is_part(opened, partition, holder.opened_file if holder else None):
                match = Match.LIVING
        return [] if match is Match.NONE else [(match, facts, partition)]

    def _assign(self, pairs: list[tuple[Match, FileFacts, FilePartition]]) -> None:
        """Give each partition to the file that fits best, and each file its longest partition. A
        file gets no partition that is shorter than the part that another file covers.
        """
        takers, covered = self.takers, self._covered_lengths(pairs)
        strong = [p for p in pairs if p[0] is Match.STRONG]
        for _, facts, partition in sorted(strong, key=_preference):
            partition_id = partition.source_partition_id
            if partition.reached < covered[facts.path]:
                continue
            if partition_id not in takers and facts.content_match is Match.NONE:
                facts.content_match, facts.content_partition = Match.STRONG, partition
                takers[partition_id] = facts
            elif takers.get(partition_id, facts) is not facts and self.context.by_position:
                covered[facts.path] = partition.reached
        for match, facts, partition in pairs:
            if partition.reached < covered[facts.path]:
                continue
            if takers.get(partition.source_partition_id, facts) is not facts:
                match = Match.LIVING
            if match in (Match.STRONG, Match.WEAK):
                facts.continuable.append(partition)
            replaces_weak = facts.content_match is Match.WEAK and match is not Match.WEAK
            if facts.content_match is Match.NONE or replaces_weak:
                facts.content_match, facts.content_partition = match, partition
        continued = {
            k.source_partition_id
            for match, facts, k in pairs
            if takers.get(k.source_partition_id) is facts or not self.context.by_position
        }
        for partition_id, facts in self.holders.items():
            is_changed = facts.inode_match in (InodeMatch.EMPTY, InodeMatch.CHANGED)
            if is_changed and partition_id in continued:
                facts.inode_match = InodeMatch.CUT

    def _covered_lengths(
        self, pairs: list[tuple[Match, FileFacts, FilePartition]]
    ) -> dict[str, int]:
        """By path: the bytes of a file that another file holds too. Empty with a record id."""
        covered: dict[str, int] = defaultdict(int)
        if self.context.by_position:
            for match, facts, partition in pairs:
                if match in (Match.LIVING, Match.UNSURE):
                    covered[facts.path] = max(covered[facts.path], partition.reached)
            for path, facts in self.facts.items():
                content = facts.opened_file.content
                if facts.earlier_refusal is not None and content is not None:
                    copied = facts.earlier_refusal.behind or content.size
                    covered[path] = max(covered[path], copied)
        return covered

    def _bound_to_path(self) -> set[int]:
        """Partitions that keep their path: semel cannot find their file, or that file now has the
        path of such a partition.
        """
        unsure = PartitionPlace.UNSURE
        bound = {p for p, unlisted in self.unlisted.items() if unlisted.place is unsure}
        while True:
            further = {
                facts.inode_partition.source_partition_id
                for path, facts in self.facts.items()
                if facts.inode_partition is not None
                and (at_path := self.by_path.get(path)) not in (None, facts.inode_partition)
                and at_path.source_partition_id in bound
            }
            if further <= bound:
                return bound
            bound |= further

    def _decide(self) -> None:
        """Find the path match of each file, and look up the table's decision."""
        bound = self._bound_to_path()
        for path, facts in list(self.facts.items()):
            at_path = self.by_path.get(path)
            if at_path is not None and at_path is not facts.inode_partition:
                facts.path_partition = at_path
                if facts.content_match is not Match.STRONG or (
                    facts.content_partition is not at_path
                ):
                    with self._skipping_unreadable(facts.opened_file.file):
                        facts.path_match = self._path_match(facts, at_path, bound)
            facts.decision = recognise(
                facts.inode_match,
                facts.path_match,
                facts.content_match,
                by_position=self.context.by_position,
            )
        for partition_id, facts in self.takers.items():
            if facts.decision is FileDecision.TAKE_UP:
                self.unlisted.pop(partition_id, None)

    def _path_match(self, facts: FileFacts, at_path: FilePartition, bound: set[int]) -> PathMatch:
        partition_id = at_path.source_partition_id
        if partition_id in bound:
            return PathMatch.UNSURE
        unlisted = self.unlisted.get(partition_id)
        # Its file is listed elsewhere, or another file takes it up.
        if partition_id in self.takers or (unlisted is None and not at_path.closed):
            return PathMatch.FREE
        moved = unlisted is not None and unlisted.path and is_rotation(at_path.path, unlisted.path)
        opened = facts.opened_file
        if moved or opened.content is None or not at_path.reached:
            return PathMatch.MISSING
        first = opened.content.first_record(opened.header_end, at_path.reached)
        edited = at_path.first_hash in ("", first) or last_record(opened, at_path) is not None
        return PathMatch.EDITED if edited else PathMatch.MISSING


def _find_hard_links(
    listing: FileListing, knowledge: Knowledge
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """All names of each file that has several. The first result has them by each name that semel
    does not read; the second by the name that semel reads, if the ledger has another name for it.
    """
    names: dict[tuple[int, int], list[str]] = defaultdict(list)
    inodes = {file.inode for file in knowledge.unsettled}  # One of several may be settled.
    for file in listing.items:
        if file.inode in inodes:
            names[file.device, file.inode].append(file.path)
    known = knowledge.hard_links | {k.path: k.inode for k in knowledge.partitions}
    paths = {k.inode: k.path for k in knowledge.partitions}
    hard_links, renamed_links = {}, {}
    for (_, inode), links in names.items():
        if len(links) == 1:
            continue
        main = next((path for path in links if known.get(path) == inode), None)
        if main is None and inode in paths:  # The file was renamed.
            main = min(links, key=lambda path: (not is_rotation(paths[inode], path), path))
            renamed_links[main] = links
        hard_links |= {path: links for path in links if path != main}
    return hard_links, renamed_links


def _inode_match(opened: OpenedFile, partition: FilePartition) -> InodeMatch | None:
    """How a file relates to the partition that last used its inode. None if the inode was reused."""
    same_path = opened.file.path == partition.path
    same_device = opened.file.device == partition.device
    birth = opened.has_same_birth(partition)
    if birth is False or not (same_device or birth or same_path):
        return None
    content = opened.content
    if content is None:
        return InodeMatch.SAME if opened.unfinished else InodeMatch.CHANGED
    if opened.begins_with(partition):
        sure = birth or same_path or likeness(opened, partition, free=True) is Match.STRONG
        return InodeMatch.SAME if sure else None
    begins = content.hash(0, partition.head_length) == partition.head_hash
    if birth is None and not same_path and not begins:
        return None
    if not opened.file.size:
        return InodeMatch.EMPTY
    is_cut = content.count_leading_nuls() >= partition.reached
    return InodeMatch.CUT if is_cut else InodeMatch.CHANGED


def _preference(pair: tuple[Match, FileFacts, FilePartition]) -> tuple:
    """The longest partition first; then the file with its inode, its path or its time."""
    _, facts, partition = pair
    opened, file = facts.opened_file, facts.opened_file.file
    return (
        -partition.reached,
        partition.source_partition_id,
        not (partition.inode == file.inode and opened.has_same_birth(partition)),
        partition.path != file.path,
        not is_rotation(partition.path, file.path),
        not has_same_time(opened, partition),
        -(opened.content.size if opened.content else 0),
        file.path,
    )
