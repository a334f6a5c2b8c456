"""Where the files of source partitions are whose ledger was lost.

A marker shows a file's path and inode as they were when it was written. Meanwhile the file may have
been renamed, or restored on another disk. So each partition is looked for in the source: under its
inode, then its path, then its head; always with the head and the tail that were read of it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from semel.declare.context import Context
from semel.sources import Partition
from semel.sources.files.content import HEAD_BYTES
from semel.sources.files.evidence import FilePartition, OpenedFile, look, prefixes, read_up_to
from semel.sources.files.listing import FileListing, ListedFile


def locate(
    context: Context, listing: FileListing, partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`. Of two that one file may be, the newer one gets it."""
    return _FileViews(context, listing.items).find(list(map(FilePartition.of, partitions)))


class _FileViews:
    """Looks at files, each once."""

    def __init__(self, context: Context, listed: list[ListedFile]) -> None:
        self._context = context
        self._seen: dict[str, OpenedFile | None] = {}
        self._by_path = {file.path: file for file in listed}
        self._by_inode: dict[int, list[ListedFile]] = defaultdict(list)
        for file in listed:
            self._by_inode[file.inode].append(file)
        self._by_head: dict[str, list[ListedFile]] | None = None

    def find(self, partitions: list[FilePartition]) -> list[Partition | None]:
        """The partitions as their files are now."""
        taken: set[str] = set()
        placed: list[Partition | None] = []
        for known in reversed(partitions):
            file = next((f for f in self._may_be(known) if f.path not in taken), None)
            if file is not None:
                taken.add(file.path)
            placed.append(self._at(known, self._look(file)) if file is not None else None)
        return placed[::-1]

    def _may_be(self, known: FilePartition) -> Iterable[ListedFile]:
        named = [self._by_path[known.path]] if known.path in self._by_path else []
        for file in (*self._by_inode[known.inode], *named):
            if self._holds(file, known):
                yield file
        if known.head_length == HEAD_BYTES:  # A shorter one is no evidence by itself.
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
                    for _, digest in prefixes(seen.content.head, [HEAD_BYTES]):
                        self._by_head[digest].append(file)
        return self._by_head

    def _holds(self, file: ListedFile, known: FilePartition) -> bool:
        seen = self._look(file)
        try:
            return seen is not None and seen.begins_with(known)
        except OSError:  # It was deleted, or may not be read: plan will say so.
            return False

    def _look(self, file: ListedFile) -> OpenedFile | None:
        if file.path not in self._seen:
            try:
                self._seen[file.path] = look(self._context, file)
            except OSError:
                self._seen[file.path] = None
        return self._seen[file.path]

    def _at(self, known: FilePartition, seen: OpenedFile) -> FilePartition:
        """A partition in the file that holds it. A plan looks at it again: it is not settled."""
        file, content = seen.file, seen.content
        read = read_up_to(self._context, content, known.reached)
        return replace(
            known,
            name=file.path,
            identity=file.identity,
            seen=content.size,
            evidence=known.evidence | {"birth_ns": seen.birth_ns} | read,
        )
