"""Staged files that get their final names by hard links: the output of a folder, and each archive.

A file is right when its size and checksum are what the manifest says: existence is never taken for
correctness, and what is there is never replaced.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from semel.model.manifest import ManifestFile
from semel.sinks import CommittedBatch, Presence
from semel.storage import checksum, link_new, make_folder, sync_folder

CHECKSUMS_AT_ONCE = 4
"""Files that finalize reads at once: one core alone waits for the disk, or the disk for it."""

Inode = tuple[int, int, int]
"""Device, number and time of the last change (ns) of a file, under whichever name."""


class LinkedFiles:
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


class Linked:
    """Files below one folder: a sink's `look` and `publish`."""

    def __init__(self, root: Path, looks: LinkedFiles) -> None:
        self.root = root
        self._looks = looks

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        """By the final names."""
        return self._looks.of((file, file.final_path) for file in won.files)

    # Keeps F5.
    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
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
