"""What a power cut would leave of a folder: bytes and names as of their last sync."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Names = dict[str, int]
"""Of a folder: the inode of each name."""


@dataclass(frozen=True)
class Cut:
    """What lasted at one moment, and what somebody had been promised by then."""

    files: dict[int, bytes]
    unsynced: dict[int, bytes]
    folders: dict[int, Names]
    promised: list

    def leave(self, top: int, folder: Path, tail: str) -> None:
        """Write it into a folder. Bytes that were not synced: none, half of them, or as many
        zeros."""
        folder.mkdir()
        for name, inode in self.folders.get(top, {}).items():
            if inode in self.folders:
                self.leave(inode, folder / name, tail)
                continue
            more = self.unsynced.get(inode, b"")
            more = {"none": b"", "half": more[: len(more) // 2], "zeros": bytes(len(more))}[tail]
            (folder / name).write_bytes(self.files.get(inode, b"") + more)


@dataclass
class Power:
    """Sees each sync that this process makes below a folder. `cuts`: what would be left if the
    power were cut right after it.

    A folder that was never synced has no names; one whose name is not in its parent is not there.
    """

    top: Path
    promised: Callable[[], list]
    cuts: list[Cut] = field(default_factory=list)
    _files: dict[int, bytes] = field(default_factory=dict)
    _folders: dict[int, Names] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """From now on."""
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._around(getattr(os, name)))

    def _around(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            real(handle)
            path = os.readlink(f"/proc/self/fd/{handle}")
            if not Path(path).is_relative_to(self.top):
                return
            inode = os.fstat(handle).st_ino
            with self._lock:
                if os.path.isdir(path):
                    there = list(os.scandir(path))
                    self._folders[inode] = {entry.name: entry.inode() for entry in there}
                    for entry in filter(os.DirEntry.is_dir, there):
                        self._folders.setdefault(entry.inode(), {})
                else:
                    self._files[inode] = Path(path).read_bytes()
                self.cut()

        return sync

    def cut(self) -> None:
        """Note what a cut at this moment would leave."""
        with self._lock:
            unsynced = {}
            for path in self.top.rglob("*"):
                if path.is_file() and path.suffix in (".part", ".seg"):
                    inode, data = path.stat().st_ino, path.read_bytes()
                    unsynced[inode] = data[len(self._files.get(inode, b"")) :]
            self.cuts.append(
                Cut({**self._files}, unsynced, {**self._folders}, [*self.promised()])
            )
