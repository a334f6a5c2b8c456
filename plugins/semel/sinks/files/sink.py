"""A folder of files as a sink: a staged file gets its final name by a hard link.

A file is right when its size and checksum are what the manifest says: it never takes existence for
correctness, and never replaces what is there.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.declare.context import Context
from semel.formats.output import columns_in_files, dataset_of
from semel.model.manifest import Kind, ManifestFile, StagedFile
from semel.sinks import Old, Presence, Sink, Won
from semel.storage import check_links, checksum, link_new, make_folder, sync_folder

if TYPE_CHECKING:
    from semel.model.manifest import Published

CHECKSUMS_AT_ONCE = 4
"""Files that finalize reads at once: one core alone waits for the disk, or the disk for it."""

Inode = tuple[int, int, int]
"""Device, number and time of the last change (ns) of a file, under whichever name."""


class Looks:
    """What is under names, by size and checksum. A file that has two names is read once."""

    def __init__(self) -> None:
        self._seen: dict[Inode, str] = {}

    def of(self, names: Iterable[tuple[ManifestFile, str]]) -> list[Presence]:
        """What is there of each file under that name."""
        with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
            return list(pool.map(lambda item: self._presence(*item), names))

    # Keeps F2.
    def _presence(self, file: ManifestFile, path: str) -> Presence:
        try:
            found = os.lstat(path)
            if found.st_size != file.bytes:
                return Presence.WRONG
            inode = (found.st_dev, found.st_ino, found.st_mtime_ns)
            if inode not in self._seen:
                self._seen[inode] = checksum(path)
            return Presence.RIGHT if self._seen[inode] == file.checksum else Presence.WRONG
        except (FileNotFoundError, NotADirectoryError):
            return Presence.ABSENT


class Folder(Sink):
    """Files below one folder, under the names that the manifest gives them."""

    def __init__(self, root: Path, context: Context, looks: Looks) -> None:
        self.root, self.address = root, str(root)
        self._context, self._looks = context, looks

    def check(self, schema: pa.Schema | None, staged: Path) -> None:  # noqa: ARG002 - the seam's
        """Prove that staged files can be given names here."""
        make_folder(self.root)
        check_links(staged, self.root)

    def check_replace(self, old: Old) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Files of a replay have names of their own: the marker tells which ones count."""
        return ()

    def target(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        """The file's final path."""
        name = self._context.name
        stem = self._context.declared.stem(name, batch=batch_id, part=part, fence=fence)
        return str(self.root / file.folder / f"{stem}{file.suffix}")

    def look(self, won: Won) -> Sequence[Presence]:
        """By the final names."""
        return self._looks.of((file, file.final_path) for file in won.files)

    # Keeps F5.
    def publish(self, won: Won, missing: Sequence[ManifestFile]) -> None:
        """Link what is missing; when nothing is, make the names of all durable.

        The staged names stay: a file is never under neither name, also on file systems that log
        each folder apart.
        """
        folders = {Path(file.final_path).parent for file in won.files}
        if missing:
            for folder in sorted(folders):
                make_folder(folder)
        for file in missing:
            # A twin may have been faster: the next look sees what it left. Keeps F9.
            with suppress(FileNotFoundError, FileExistsError):
                link_new(Path(file.staged_path), Path(file.final_path))
        if not missing:
            below = {p for f in folders for p in (f, *f.parents) if p.is_relative_to(self.root)}
            for folder in sorted(below, reverse=True):
                sync_folder(folder)

    def rows(self, marker: "Published", *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        """By the marker's data files."""
        found = marker.of_kind(Kind.DATA)
        there = dataset_of(self.root, marker.spec.sink, found, columns_in_files(marker))
        for batch in there.to_batches():
            yield pa.Table.from_batches([batch])
