"""The facts that `recognise` decides over: what was found of each file, and what is known of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from semel.sources import LedgerView, Refusal
from semel.sources.files.evidence import FilePartition, OpenedFile
from semel.sources.files.listing import ListedFile, FileListing
from semel.sources.files.recognise import FileDecision, Match, InodeMatch, PathMatch

ALIKE_MAX = 32
"""Known files of one beginning that a new file is held against: files of one constant record."""


class Where(StrEnum):
    """Where the file of an open partition is now."""

    LISTED = "listed"
    ELSEWHERE = "elsewhere"
    """In the source's folder, under a name that the pattern does not find."""
    GONE = "gone"
    UNSURE = "unsure"
    """A folder is closed to us, or the file was refused or moved while we looked."""


@dataclass(kw_only=True)
class FileFacts:
    """What is known of one file, and the table's answer.

    `known` is the partition of its inode, `before` that of its path, `matched` the one that it
    takes up, or that the refusal is about. `alike` are all whose content it begins with, and which
    no other file holds. `told`: what a plan said of it, when it was a copy and as it is now.
    """

    seen: OpenedFile
    own: InodeMatch = InodeMatch.UNKNOWN
    known: FilePartition | None = None
    place: PathMatch = PathMatch.FREE
    before: FilePartition | None = None
    match: Match = Match.NONE
    matched: FilePartition | None = None
    alike: list[FilePartition] = field(default_factory=list)
    told: Refusal | None = None
    answer: FileDecision = FileDecision.WAIT

    @property
    def goes_on(self) -> FilePartition | None:
        """The partition that the file is read on in; None: it is new, or not read."""
        return {FileDecision.GO_ON: self.known, FileDecision.TAKE_UP: self.matched}.get(self.answer)

    @property
    def was_cut(self) -> bool:
        """Whether the partition of its inode is not its own any more: it has a new life."""
        goes = self.answer in (FileDecision.NEW, FileDecision.TAKE_UP)
        return self.known is not None and self.own is InodeMatch.CUT and goes

    @property
    def superseded(self) -> list[FilePartition]:
        """Partitions whose content a file holds that is read as new: nothing of them is lost."""
        content = self.seen.content
        return [k for k in self.alike if content is not None and content.size >= k.seen]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """An open partition that no listed file holds any more. `path` and `size`: its file, when it is
    elsewhere in the folder.
    """

    partition: FilePartition
    where: Where
    path: str | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the ledger knows of the listed files.

    `partitions` are open and not settled: their file is another than it was, or holds more than was
    read. `unsettled` are the listed files that none of the others is; `names` the settled paths of
    those of them that are hard links. `refused` is what the last plan refused. `lengths` asks
    which beginnings are known of files with some first records, as pairs (first_hash, length), and
    `like` for partitions, open or closed, by (length, hash) of a beginning, by inode, or by path.
    """

    partitions: list[FilePartition]
    unsettled: list[ListedFile]
    names: dict[str, int]
    refused: list[Refusal]
    lengths: Callable[[list[str]], list[tuple[str, int]]]
    like: Callable[[list[tuple[int, str]], list[int], list[str]], list[FilePartition]]

    @classmethod
    def of(cls, listing: FileListing, known: LedgerView) -> Self:
        """What the ledger told, as files."""
        inodes = {file.inode for file in known.unsettled}
        paths = {file.path for file in known.unsettled} if inodes else set()

        def lengths(firsts: list[str]) -> list[tuple[str, int]]:
            found = known.query("files", "lengths", firsts=firsts)
            return [(r["first_hash"], r["head_length"]) for r in found]

        def like(
            heads: list[tuple[int, str]], inodes: list[int], paths: list[str]
        ) -> list[FilePartition]:
            found = known.query(
                "files",
                "like",
                heads=json.dumps([{"head_length": n, "head_hash": head} for n, head in heads]),
                inodes=list(map(str, inodes)),
                names=paths,
                count=ALIKE_MAX,
            )
            return [FilePartition(**r) for r in found]

        return cls(
            partitions=list(map(FilePartition.of, known.partitions)),
            unsettled=known.unsettled,
            names={
                file.path: file.inode
                for file in (listing.items if inodes else ())
                if file.inode in inodes and file.path not in paths
            },
            refused=known.refusals,
            lengths=lengths,
            like=like,
        )

    @property
    def copies(self) -> dict[tuple[int, int], Refusal]:
        """The refused copies, by the inode and size of their file."""
        return {(r.inode, r.size): r for r in self.refused if r.copy_of}


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """The files that were looked at, by path; the partitions that no file holds; names in doubt."""

    facts: dict[str, FileFacts]
    lost: list[Lost]
    linked: dict[str, list[str]]
    """All names of each file that has several, by name; the name that is read is not in it."""
    closed: dict[ListedFile, str]
    """Files that cannot be read, and why."""

