"""Find the files of source partitions after the ledger was lost.

A marker has a file's path and inode of the time when it was written. Later the file may have been
renamed, or restored on another disk. So semel searches the source for each partition by its inode,
then its path, then its head, and always compares the head and the tail that were read.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from semel.declare.context import Context
from semel.sources import Partition
from semel.sources.files.content import HEAD_BYTES
from semel.sources.files.evidence import (
    FilePartition, OpenedFile, evidence_at, open_listed, prefixes,
)  # fmt: skip
from semel.sources.files.listing import FileListing, ListedFile


def locate(
    context: Context, listing: FileListing, partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`. If a file fits two partitions, the newer one gets it."""
    return _FileViews(context, listing.items).find(list(map(FilePartition.of, partitions)))


class _FileViews:
    """The listed files, each opened at most once."""

    def __init__(self, context: Context, files: list[ListedFile]) -> None:
        self._context = context
        self._opened_files: dict[str, OpenedFile | None] = {}
        self._by_path = {file.path: file for file in files}
        self._by_inode: dict[int, list[ListedFile]] = defaultdict(list)
        for file in files:
            self._by_inode[file.inode].append(file)
        self._by_head: dict[str, list[ListedFile]] | None = None

    def find(self, partitions: list[FilePartition]) -> list[Partition | None]:
        """The partitions as their files are now."""
        used_paths: set[str] = set()
        placed: list[Partition | None] = []
        for partition in reversed(partitions):
            file = next((f for f in self._candidates(partition) if f.path not in used_paths), None)
            if file is not None:
                used_paths.add(file.path)
                placed.append(self._partition_in(partition, self._open(file)))
            else:
                placed.append(None)
        return placed[::-1]

    def _candidates(self, partition: FilePartition) -> Iterable[ListedFile]:
        named = [self._by_path[partition.path]] if partition.path in self._by_path else []
        for file in (*self._by_inode[partition.inode], *named):
            if self._holds(file, partition):
                yield file
        if partition.head_length == HEAD_BYTES:  # A shorter head alone is not evidence.
            for file in self._files_by_head()[partition.head_hash]:
                if self._holds(file, partition):
                    yield file

    def _files_by_head(self) -> dict[str, list[ListedFile]]:
        """All listed files by the hash of their first HEAD_BYTES, read only if a file moved."""
        if self._by_head is None:
            self._by_head = defaultdict(list)
            for file in self._by_path.values():
                opened = self._open(file)
                if opened is not None and opened.content is not None:
                    for _, digest in prefixes(opened.content.head, [HEAD_BYTES]):
                        self._by_head[digest].append(file)
        return self._by_head

    def _holds(self, file: ListedFile, partition: FilePartition) -> bool:
        opened = self._open(file)
        try:
            return opened is not None and opened.begins_with(partition)
        except OSError:  # It was deleted, or cannot be read: the next plan refuses it.
            return False

    def _open(self, file: ListedFile) -> OpenedFile | None:
        if file.path not in self._opened_files:
            try:
                self._opened_files[file.path] = open_listed(self._context, file)
            except OSError:
                self._opened_files[file.path] = None
        return self._opened_files[file.path]

    def _partition_in(self, partition: FilePartition, opened: OpenedFile) -> FilePartition:
        """A partition in the file that holds it, not settled, so that the next plan opens it."""
        file, content = opened.file, opened.content
        evidence = evidence_at(self._context, content, partition.reached)
        return replace(
            partition,
            name=file.path,
            identity=file.identity,
            seen=content.size,
            evidence=partition.evidence | {"birth_ns": opened.birth_ns} | evidence,
        )
