"""Publish staged files under a second name: the output of a folder, and the files of an archive.

A file is right if its size and checksum equal the manifest's: existence alone proves nothing. semel
never replaces an existing file.
"""

from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from semel import storage
from semel.model.manifest import ManifestFile
from semel.sinks import CommittedBatch, Presence
from semel.storage import ArchivePath


class LinkedFiles:
    """Compares files with a manifest by size and checksum. Reads a file with two names once."""

    def __init__(self) -> None:
        self._checksums: dict[Hashable, str] = {}

    def presence_of(self, names: Iterable[tuple[ManifestFile, str]]) -> list[Presence]:
        """The state of each file under the name next to it."""
        items = [(file, storage.at(name)) for file, name in names]
        if not items:
            return []
        with ThreadPoolExecutor(storage.reads_at_once(items[0][1])) as pool:
            return list(pool.map(lambda item: self._presence(*item), items))

    # Keeps F2.
    def _presence(self, file: ManifestFile, path: ArchivePath) -> Presence:
        try:
            facts = storage.stat(path)
            if facts.size != file.bytes:
                return Presence.WRONG
            if facts.checksum is not None:
                checksum = facts.checksum
            elif facts.version in self._checksums:
                checksum = self._checksums[facts.version]
            else:
                checksum = self._checksums[facts.version] = storage.checksum(path)
            return Presence.RIGHT if checksum == file.checksum else Presence.WRONG
        except (FileNotFoundError, NotADirectoryError):
            return Presence.ABSENT


class Publisher:
    """The `query_presence` and `publish` of a sink whose files are below one place, `root`."""

    def __init__(self, root: ArchivePath, files: LinkedFiles) -> None:
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
        names = [(storage.at(file.staged_path), storage.at(file.final_path)) for file in missing]
        if missing:
            for folder in sorted({final.parent for _, final in names}):
                storage.make_folder(folder)
            storage.each(self.root, _link, names, max(file.bytes for file in missing))
            return
        folders = {storage.at(file.final_path).parent for file in won.files}
        below = {p for f in folders for p in (f, *f.parents) if p.is_relative_to(self.root)}
        for folder in sorted(below, reverse=True):
            storage.sync_folder(folder)


def _link(names: tuple[ArchivePath, ArchivePath]) -> None:
    # A twin may have been faster: the next query checks its work. Keeps F9.
    with suppress(FileNotFoundError, FileExistsError):
        storage.link_new(*names)
