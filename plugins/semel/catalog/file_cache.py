"""Room for the files of a cache: a bound that many processes keep, without a look at each file."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NAME = ".room"
_DIGITS_MAX = 19
_KEPT = 7 / 8  # Of a full cache: what goes at once pays for the look at all the rest.


class CacheSpace:
    """How many bytes the files of a folder may have together.

    How it works: a file in the folder holds what was taken since all files were last looked at, and
    is locked while it is changed. Only when that fills the room, or says nothing, are the files
    looked at; those that were unused for longest go, and the true number is written down. What is
    counted and then not written, or removed by hand, only makes the next look come sooner.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max

    def take(self, count: int) -> None:
        """Make room for a file of `count` bytes, before it is written."""
        handle = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            taken = _number(os.pread(handle, _DIGITS_MAX + 1, 0))
            if taken is None or taken + count > self._bytes_max:
                taken = self._clear(count)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(taken + count).encode(), 0)
        finally:
            os.close(handle)

    def _clear(self, count: int) -> int:
        """Remove files until `count` bytes fit well. Returns the bytes of those that stay."""
        files = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # Who fetched it has renamed it meanwhile.
                    if entry.name != _NAME and entry.is_file():
                        found = entry.stat()
                        files.append((found.st_mtime_ns, found.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total + count <= self._bytes_max:
            return total
        for _, size, path in sorted(files):
            if total + count <= _KEPT * self._bytes_max:
                break
            # Who has it mapped keeps its bytes.
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None
