"""The source partitions of batches whose ledger was lost: from their claims, and where their files
are now.

A marker shows a file's path and inode as they were when it was written. Meanwhile the file may have
been renamed, or restored on another disk. So each partition is looked for in the source: under its
inode, then its path, then its head; always with the head and the tail that were read of it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from semel import limits
from semel.batch import Claim
from semel.reader import Marker
from semel.sources import cut
from semel.sources.evidence import Partition, Seen, look, prefixes
from semel.sources.files import ListedFile
from semel.spec.pipeline import Spec


@dataclass(frozen=True, kw_only=True)
class Adoptee:
    """A source partition as it is taken over. `seen`: the file in which its bytes lie, if they do.

    It is closed when another partition has its path or its inode now.
    """

    known: Partition
    seen: Seen | None = None

    def here(self, claim: Claim) -> Claim:
        """A claim of this partition, in the file as it lies now."""
        if self.seen is None:
            return claim
        file = self.seen.file
        return replace(claim, path=file.path, device=file.device, inode=file.inode)


def partitions_of(
    spec: Spec, markers: Iterable[Marker], listed: list[ListedFile]
) -> list[Adoptee]:
    """The source partitions that markers name, in the order of their numbers."""
    claims: dict[int, list[Claim]] = defaultdict(list)
    for marker in sorted(markers, key=lambda marker: marker.batch_id):
        for claim in marker.claims:
            claims[claim.source_partition_id].append(claim)
    generations: dict[str, int] = defaultdict(int)
    found = []
    for number in sorted(claims):
        known = _known(number, claims[number])
        generations[known.path] += 1
        found.append(Adoptee(known=replace(known, generation=generations[known.path])))
    return _settled(_Places(spec, listed).find(found))


def _known(number: int, claims: list[Claim]) -> Partition:
    """What the claims of a partition say of it: the last one knows its path, the farthest its end,
    and the one with the longest head its head. How its file looked then, nobody knows any more.
    """
    last, head = claims[-1], max(claims, key=lambda claim: claim.head_length)
    tail = max(claims, key=lambda claim: claim.end)
    return Partition(
        source_partition_id=number,
        path=last.path,
        generation=1,
        device=last.device,
        inode=last.inode,
        head_length=head.head_length,
        head_hash=head.head_hash,
        first_hash="",
        reached=tail.end,
        tail_hash=tail.tail_hash,
        last_length=0,
        last_hash="",
        content=tail.end,
        size=-1,
        mtime_ns=0,
        ctime_ns=0,
        birth_ns=None,
        packed=tail.packed,
        closed=False,
    )


class _Places:
    """Finds the files of partitions. Of two that one file may be, the newer one gets it."""

    def __init__(self, spec: Spec, listed: list[ListedFile]) -> None:
        self._spec = spec
        self._seen: dict[str, Seen | None] = {}
        self._by_path = {file.path: file for file in listed}
        self._by_inode: dict[int, list[ListedFile]] = defaultdict(list)
        for file in listed:
            self._by_inode[file.inode].append(file)
        self._by_head: dict[str, list[ListedFile]] | None = None

    def find(self, found: list[Adoptee]) -> list[Adoptee]:
        """The same, with their files."""
        taken: set[str] = set()
        placed = []
        for part in reversed(found):
            file = next((f for f in self._may_be(part.known) if f.path not in taken), None)
            if file is not None:
                taken.add(file.path)
                part = self._at(part, self._look(file))
            placed.append(part)
        return placed[::-1]

    def _may_be(self, known: Partition) -> Iterable[ListedFile]:
        named = [self._by_path[known.path]] if known.path in self._by_path else []
        for file in (*self._by_inode[known.inode], *named):
            if self._holds(file, known):
                yield file
        if known.head_length == limits.HEAD_BYTES:  # A shorter one is no evidence by itself.
            for file in self._heads()[known.head_hash]:
                if self._holds(file, known):
                    yield file

    def _heads(self) -> dict[str, list[ListedFile]]:
        """All listed files by their first HEAD_BYTES: read when a file is not where it was."""
        if self._by_head is None:
            self._by_head = defaultdict(list)
            for file in self._by_path.values():
                seen = self._look(file)
                if seen is not None and seen.content is not None:
                    for _, digest in prefixes(seen.content.head, [limits.HEAD_BYTES]):
                        self._by_head[digest].append(file)
        return self._by_head

    def _holds(self, file: ListedFile, known: Partition) -> bool:
        seen = self._look(file)
        try:
            return seen is not None and seen.begins_with(known)
        except OSError:  # It went away, or may not be read: plan will say so.
            return False

    def _look(self, file: ListedFile) -> Seen | None:
        if file.path not in self._seen:
            try:
                self._seen[file.path] = look(self._spec, file)
            except OSError:
                self._seen[file.path] = None
        return self._seen[file.path]

    def _at(self, part: Adoptee, seen: Seen) -> Adoptee:
        """A partition in the file that holds it. A plan looks at it again: it is not settled."""
        file, content = seen.file, seen.of(part.known)
        evidence = cut.evidence(self._spec, content, part.known.reached)
        known = replace(
            part.known, path=file.path, device=file.device, inode=file.inode,
            birth_ns=seen.birth_ns, content=content.size, **vars(evidence),
        )  # fmt: skip
        return Adoptee(known=known, seen=seen)


def _settled(placed: list[Adoptee]) -> list[Adoptee]:
    """Close what stands in the way of another one: a path and an inode are one partition's."""
    paths: set[str] = set()
    inodes: set[tuple[int, int]] = set()
    closed: set[int] = set()
    # Those whose files are there go first, then the newer ones.
    for part in sorted(placed, key=lambda p: (p.seen is None, -p.known.source_partition_id)):
        inode = (part.known.device, part.known.inode)
        if part.known.path in paths or inode in inodes:
            closed.add(part.known.source_partition_id)
        else:
            paths.add(part.known.path)
            inodes.add(inode)
    return [
        replace(p, known=replace(p.known, closed=p.known.source_partition_id in closed))
        for p in placed
    ]
