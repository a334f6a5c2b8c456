"""The facts that `recognise` decides over: each file as it is now, and its partitions."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from semel.sources import LedgerView, Refusal
from semel.sources.files.evidence import FilePartition, OpenedFile
from semel.sources.files.listing import FileListing, ListedFile
from semel.sources.files.recognise import FileDecision, InodeMatch, Match, PathMatch

ALIKE_MAX = 32
"""Partitions with one beginning that a new file is compared with, such as files that all repeat one
constant record."""


class PartitionPlace(StrEnum):
    """The current place of an open partition's file."""

    LISTED = "listed"
    ELSEWHERE = "elsewhere"
    """In the source's folder, under a name that the pattern does not find."""
    MISSING = "gone"
    UNSURE = "unsure"
    """semel cannot read a folder, or the file was refused or moved meanwhile."""


@dataclass(kw_only=True)
class FileFacts:
    """One file, its partitions, and the table's decision.

    `content_partition` is the one that the file takes up, or that its refusal names. `continuable`
    are the partitions whose content it begins with and that no other file holds.
    `earlier_refusal` is a plan's refusal of the file as a copy, if it has not changed since.
    """

    opened_file: OpenedFile
    inode_match: InodeMatch = InodeMatch.UNKNOWN
    inode_partition: FilePartition | None = None
    path_match: PathMatch = PathMatch.FREE
    path_partition: FilePartition | None = None
    content_match: Match = Match.NONE
    content_partition: FilePartition | None = None
    continuable: list[FilePartition] = field(default_factory=list)
    earlier_refusal: Refusal | None = None
    decision: FileDecision = FileDecision.WAIT

    @property
    def path(self) -> str:
        return self.opened_file.file.path

    @property
    def resumed_partition(self) -> FilePartition | None:
        """The partition that the file continues. None if the file is new or not read."""
        resumed = {
            FileDecision.GO_ON: self.inode_partition,
            FileDecision.TAKE_UP: self.content_partition,
        }
        return resumed.get(self.decision)

    @property
    def was_cut(self) -> bool:
        """Whether the file was truncated, and so leaves the partition of its inode."""
        leaves = self.decision in (FileDecision.NEW, FileDecision.TAKE_UP)
        return self.inode_partition is not None and self.inode_match is InodeMatch.CUT and leaves

    @property
    def superseded(self) -> list[FilePartition]:
        """Partitions that the file contains entirely: if it is read as new, they lose nothing."""
        content = self.opened_file.content
        return [k for k in self.continuable if content is not None and content.size >= k.seen]


@dataclass(frozen=True, kw_only=True)
class UnlistedPartition:
    """An open partition without a listed file. `path` and `size`: its file, if that is elsewhere in
    the folder.
    """

    partition: FilePartition
    place: PartitionPlace
    path: str | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The ledger's knowledge about the listed files.

    `partitions` are open and not settled: their file changed, or holds more than was read.
    `unsettled` are the listed files without a settled partition. `hard_links` maps settled paths to
    inodes of unsettled files. `refused` are the last plan's refusals. `find_lengths` queries the
    known beginnings of files by hashes of first records, as pairs (first_hash, length).
    `find_partitions` queries open and closed partitions by (length, hash) of a beginning, by inode,
    or by path.
    """

    partitions: list[FilePartition]
    unsettled: list[ListedFile]
    hard_links: dict[str, int]
    refused: list[Refusal]
    find_lengths: Callable[[list[str]], list[tuple[str, int]]]
    find_partitions: Callable[[list[tuple[int, str]], list[int], list[str]], list[FilePartition]]

    @classmethod
    def from_ledger(cls, listing: FileListing, ledger: LedgerView) -> Self:
        """Convert the ledger's view to files and their partitions."""
        inodes = {file.inode for file in ledger.unsettled}
        paths = {file.path for file in ledger.unsettled} if inodes else set()

        def find_lengths(firsts: list[str]) -> list[tuple[str, int]]:
            rows = ledger.query("files", "lengths", firsts=firsts)
            return [(row["first_hash"], row["head_length"]) for row in rows]

        def find_partitions(
            heads: list[tuple[int, str]], inodes: list[int], paths: list[str]
        ) -> list[FilePartition]:
            rows = ledger.query(
                "files",
                "like",
                heads=json.dumps([{"head_length": n, "head_hash": head} for n, head in heads]),
                inodes=list(map(str, inodes)),
                names=paths,
                count=ALIKE_MAX,
            )
            return [FilePartition(**row) for row in rows]

        return cls(
            partitions=list(map(FilePartition.of, ledger.partitions)),
            unsettled=ledger.unsettled,
            hard_links={
                file.path: file.inode
                for file in (listing.items if inodes else ())
                if file.inode in inodes and file.path not in paths
            },
            refused=ledger.refusals,
            find_lengths=find_lengths,
            find_partitions=find_partitions,
        )

    @property
    def copies(self) -> dict[tuple[int, int], Refusal]:
        """The refused copies, by the inode and size of their file."""
        return {(r.inode, r.size): r for r in self.refused if r.copy_of}


@dataclass(frozen=True, kw_only=True)
class RecognisedFiles:
    """The files that were opened, by path; the partitions without a file; the refused names."""

    facts: dict[str, FileFacts]
    unlisted: list[UnlistedPartition]
    hard_links: dict[str, list[str]]
    """All names of each file that has several, by each name except the one that semel reads."""
    unreadable: dict[ListedFile, str]
    """Files that semel cannot read, each with the reason."""

