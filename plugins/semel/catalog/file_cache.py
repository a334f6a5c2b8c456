"""Bounds the size of a folder of cached files, for many processes, mostly without listing it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NAME = ".room"
_DIGITS_MAX = 19
_CLEARED_SHARE = 7 / 8  # Clearing a full cache to this share makes the next listing rare.


class CacheSpace:
    """A limit for the total size of the files of a folder.

    How it works: a locked file in the folder counts the bytes reserved since the last listing. Only
    when the count reaches the limit or is unreadable, it lists the files, removes the least
    recently used ones, and corrects the count. Bytes reserved but never written, and files removed
    by hand, only make the next listing come sooner.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max

    def take(self, count: int) -> None:
        """Reserve space for a file of `count` bytes, before it is written."""
        handle = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            used = _number(os.pread(handle, _DIGITS_MAX + 1, 0))
            if used is None or used + count > self._bytes_max:
                used = self._clear(count)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(used + count).encode(), 0)
        finally:
            os.close(handle)

    def _clear(self, count: int) -> int:
        """Remove files until `count` bytes fit easily. Returns the bytes of the other files."""
        files = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # Another process has renamed it after fetching.
                    if entry.name != _NAME and entry.is_file():
                        status = entry.stat()
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total + count <= self._bytes_max:
            return total
        for _, size, path in sorted(files):
            if total + count <= _CLEARED_SHARE * self._bytes_max:
                break
            # Processes that have mapped the file can still read it.
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None
