"""Durable operations on local files: write once, fsync, rename without ever replacing.

Checksums are xxh3_128: they detect damage and edits at memory speed. They are not signatures.
"""

import errno
import io
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import xxhash

from semel import failpoints
from semel.errors import TerminalError, UnavailableError

_READ_BYTES = 256 << 10  # Fits into the cache of a core.


class Sealed(io.RawIOBase):
    """A new file that hashes its bytes on writing and calls fsync on closing.

    A task creates it in a folder that the driver has created. It never creates the attempt's
    folders, so a zombie task of a deleted attempt fails here. Raises FileExistsError if the name
    exists.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        failpoints.point("storage.before_create")
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        failpoints.point("storage.after_create")
        self._hash = xxhash.xxh3_128()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # noqa: ANN001 - any buffer
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += self._file.write(view[written:])
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        if not self.closed:
            failpoints.point("storage.before_fsync")
            # Keeps S10.
            os.fsync(self._file.fileno())
            failpoints.point("storage.after_fsync")
            self._file.close()
            super().close()

    def __enter__(self) -> Self:
        return self


def checksum(path: str | os.PathLike) -> str:
    """The xxh3_128 of a file's bytes, as Sealed computes it."""
    with open(path, "rb", buffering=0) as file:
        return checksum_of(file)


def checksum_of(file: io.RawIOBase | io.BufferedReader) -> str:
    """The checksum of an open file, from its current position."""
    digest = xxhash.xxh3_128()
    view = memoryview(bytearray(_READ_BYTES))
    while count := file.readinto(view):
        digest.update(view[:count])
    return digest.hexdigest()


def sync_folder(path: str | os.PathLike) -> None:
    """Make the names in a folder durable."""
    failpoints.point("storage.before_sync_folder")
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    failpoints.point("storage.after_sync_folder")


def sync_file(path: str | os.PathLike) -> None:
    """Make durable what another process has written into a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each durably."""
    missing = [path, *path.parents]
    missing = missing[: next(i for i, p in enumerate(missing) if p.is_dir())]
    for folder in reversed(missing):
        failpoints.point("storage.before_mkdir")
        folder.mkdir(exist_ok=True)
        failpoints.point("storage.after_mkdir")
        sync_folder(folder.parent)


def link_new(source: Path, target: Path) -> None:
    """Give a file a second name. Raises FileExistsError if that exists; it never replaces one."""
    failpoints.point("storage.before_link")
    try:
        # Keeps F3, L3.
        os.link(source, target)
    except PermissionError as error:
        if error.errno != errno.EPERM:  # EACCES: the folder is not writable now.
            raise
        raise UnavailableError(
            f"{target.parent} does not take hard links ({error}). Put the sink on one local file "
            "system"
        ) from error
    failpoints.point("storage.after_link")


# Keeps L3.
def check_links(source: Path, target: Path) -> None:
    """Raise TerminalError if semel cannot link files of one folder into another."""
    probe = source / f".link-{os.urandom(4).hex()}"
    try:
        with Sealed(probe):
            pass
        _try_link(probe, target)
    finally:
        probe.unlink(missing_ok=True)


# Keeps S24.
def check_links_of(files: Iterable[str | os.PathLike], target: Path) -> None:
    """Check the same for files of tasks, which may run as other users: one per owner and mode.

    Raises TerminalError, which names the owner whose files cannot have a name in `target`.
    """
    tried = set()
    for path in map(Path, files):
        stats = path.stat()
        kind = (stats.st_dev, stats.st_uid, stats.st_gid, stats.st_mode)
        if kind not in tried:
            tried.add(kind)
            _try_link(path, target)


def _try_link(path: Path, target: Path) -> None:
    """Give a file a second name in a folder, and remove that name again."""
    other = target / f".link-{os.urandom(4).hex()}"
    try:
        os.link(path, other)
        other.unlink()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise  # No write to the folder works, with or without links.
        owner, user = path.stat().st_uid, os.geteuid()
        if error.errno == errno.EPERM and owner != user:
            # With fs.protected_hardlinks a user can link only files that it owns or can write.
            raise TerminalError(
                f"user {user} cannot link files of user {owner} ({error}), because "
                "fs.protected_hardlinks is on. Nothing was committed. Run executors and driver as "
                "one user, or give both a common group and the executors umask 002"
            ) from error
        raise TerminalError(
            f"{target} does not take hard links of files in {path.parent} ({error}). Put the sink "
            "and its archive on one local file system that supports them"
        ) from error


# Keeps F6.
def write_new(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: temporary, fsync, link, fsync of the folder.

    Raises FileExistsError if the name exists.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with Sealed(temporary) as file:
            file.write(data)
        failpoints.point("storage.before_publish")
        os.link(temporary, path)
        failpoints.point("storage.after_publish")
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_folder(path: Path) -> int:
    """Remove a folder and its contents; another process may do the same. Returns bytes freed."""
    freed = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                freed += os.lstat(os.path.join(folder, name)).st_size

    def ignore(function: object, name: str, error: tuple) -> None:  # noqa: ARG001 - rmtree's form
        # A zombie task may still add a file. Then the folder stays for the next time.
        if error[1].errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise error[1]

    failpoints.point("storage.before_rmtree")
    shutil.rmtree(path, onerror=ignore)
    failpoints.point("storage.after_rmtree")
    return freed
