"""Publish staged files by hard links: for the output of a folder, and for every archive.

A file is right if its size and checksum equal the manifest's: existence alone proves nothing. semel
never replaces an existing file.
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
"""Files that finalize reads at once, so that neither the cores nor the disk wait."""

Inode = tuple[int, int, int]
"""Device, inode number and modification time (ns) of a file; the same for all its names."""


class LinkedFiles:
    """Compares files with a manifest by size and checksum. Reads a file with two names once."""

    def __init__(self) -> None:
        self._checksums: dict[Inode, str] = {}

    def presence_of(self, names: Iterable[tuple[ManifestFile, str]]) -> list[Presence]:
        """The state of each file under the path next to it."""
        with ThreadPoolExecutor(CHECKSUMS_AT_ONCE) as pool:
            return list(pool.map(lambda item: self._presence(*item), names))

    # Keeps F2.
    def _presence(self, file: ManifestFile, path: str) -> Presence:
        try:
            stat = os.lstat(path)
            if stat.st_size != file.bytes:
                return Presence.WRONG
            inode = (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
            if inode not in self._checksums:
                self._checksums[inode] = checksum(path)
            return Presence.RIGHT if self._checksums[inode] == file.checksum else Presence.WRONG
        except (FileNotFoundError, NotADirectoryError):
            return Presence.ABSENT


class HardLinkPublisher:
    """The `query_presence` and `publish` of a sink whose files are below one folder."""

    def __init__(self, root: Path, files: LinkedFiles) -> None:
        self.root = root
        self._files = files

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        """See `Sink.query_presence`. Checks the final names."""
        return self._files.presence_of((file, file.final_path) for file in won.files)

    # Keeps F5.
    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        """Link the missing files. If none is missing, make the names of all files durable.

        The staged names stay, so that a crash cannot lose both names of a file, even on file
        systems that log each folder separately.
        """
        folders = {Path(file.final_path).parent for file in won.files}
        if missing:
            for folder in sorted(folders):
                make_folder(folder)
        for file in missing:
            # A twin may have been faster: the next query checks its work. Keeps F9.
            with suppress(FileNotFoundError, FileExistsError):
                link_new(Path(file.staged_path), Path(file.final_path))
        if not missing:
            below = {p for f in folders for p in (f, *f.parents) if p.is_relative_to(self.root)}
            for folder in sorted(below, reverse=True):
                sync_folder(folder)
