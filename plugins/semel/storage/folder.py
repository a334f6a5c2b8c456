"""The verbs for the files of an archive, and how they work in a folder: write once, fsync, link.

store.py has each verb for the objects of a store. Checksums are xxh3_128: they detect damage and
edits at memory speed. They are not signatures.
"""

import errno
import io
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import singledispatch
from glob import glob
from pathlib import Path
from typing import IO, Self, TypeVar

import xxhash

from semel import failpoints
from semel.errors import RetryableError, TerminalError, UnavailableError
from semel.storage.facts import FileStat

_Item, _Result = TypeVar("_Item"), TypeVar("_Result")
_READ_BYTES = 256 << 10  # Fits into the cache of a core.
_ROUNDS_MAX = 8  # A paused process writes one file into the folder, and then fails.


@singledispatch
def new(path: Path) -> "Sealed":
    """A new file, open for writing. Closing it makes its bytes durable, and it has their `size` and
    `checksum`. Raises FileExistsError if the name exists.

    A task creates it in a folder that the driver has created. It never creates the attempt's
    folders, so a zombie task of a deleted attempt fails here.
    """
    return Sealed(path)


class Sealed(io.RawIOBase):
    """A new file that hashes its bytes on writing and calls fsync on closing."""

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


@singledispatch
def stat(path: Path) -> FileStat:
    """The size and version of a file. Raises OSError if it does not exist."""
    status = os.lstat(path)
    version = status.st_dev, status.st_ino, status.st_mtime_ns
    return FileStat(size=status.st_size, version=version)


@singledispatch
def checksum(path: Path) -> str:
    """The xxh3_128 of a file's bytes, as `new` computes it. Reads the file."""
    with open(path, "rb", buffering=0) as file:
        return checksum_of(file)


def checksum_of(file: io.RawIOBase | io.BufferedReader) -> str:
    """The checksum of an open local file, from its current position."""
    digest = xxhash.xxh3_128()
    view = memoryview(bytearray(_READ_BYTES))
    while count := file.readinto(view):
        digest.update(view[:count])
    return digest.hexdigest()


@singledispatch
def readable(path: Path, **_: object) -> Path | IO[bytes]:
    """The file as pyarrow reads it: a path, or one version of an object, open for reading."""
    return path


@singledispatch
def read_range(path: Path, start: int, size: int) -> bytes:
    """The `size` bytes from `start`, fewer if the file ends before."""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(size)


@singledispatch
def folder_for_copies(path: Path) -> Path | None:
    """A folder for temporary copies of a file: its own, which has room for it. None: the system's.
    """
    return path.parent


@singledispatch
def reads_at_once(path: Path) -> int:  # noqa: ARG001
    """How many files of a place to read at once, so that neither cores nor disk or network wait."""
    return 4


@singledispatch
def each(
    place: Path,  # noqa: ARG001
    do: Callable[[_Item], _Result],
    items: Iterable[_Item],
    bytes_max: int = 0,  # noqa: ARG001
) -> list[_Result]:
    """The results of `do`, which is quick, for all items: one after the other in a folder, many at
    once in a store. `bytes_max`: the most bytes that one call holds.
    """
    return [do(item) for item in items]


@singledispatch
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


@singledispatch
def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each durably."""
    missing = [path, *path.parents]
    missing = missing[: next(i for i, p in enumerate(missing) if p.is_dir())]
    for folder in reversed(missing):
        failpoints.point("storage.before_mkdir")
        folder.mkdir(exist_ok=True)
        failpoints.point("storage.after_mkdir")
        sync_folder(folder.parent)


@singledispatch
def link_new(source: Path, target: Path) -> None:
    """Give a file a second name. Raises FileExistsError if that exists; it never replaces one, and
    FileNotFoundError if the file does not exist.
    """
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


@singledispatch
def move_to_disk(source: Path, target: Path) -> None:
    """Give a file another name in a folder of this machine. An object of a store stays, too."""
    os.rename(source, target)


@singledispatch
def remedy(path: Path) -> str:
    """The operator's next action after an OSError at a place."""
    return f"Fix the file system at {path}"


@singledispatch
def check_guarantees(archive: Path) -> None:  # noqa: ARG001
    """Raise TerminalError if a store lacks a guarantee that an archive needs. `check_links_of`
    checks a folder, with files of tasks.
    """


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
@singledispatch
def check_links_of(target: Path, files: Iterable[str | os.PathLike]) -> None:
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
@singledispatch
def write_new(path: Path, data: bytes) -> None:
    """Write a file durably, whole or not at all. Raises FileExistsError if the name exists."""
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


@singledispatch
def read_version(path: Path) -> tuple[bytes, object]:
    """The bytes of a file, and their version for `swap`. Raises FileNotFoundError without one."""
    return path.read_bytes(), None


# Keeps RP5.
@singledispatch
def swap(path: Path, data: bytes, version: object, *, through: Path) -> None:  # noqa: ARG001
    """Replace a file in one step. `version`: of the bytes that were read and judged, or None if
    they were in no file of this name. The caller makes its folder durable.

    In a folder the new file has its first name in the folder `through`: after `fence_off` of that
    folder, this raises FileNotFoundError. A store compares versions instead, and raises
    ReplacedError if another process has replaced the file since.
    """
    temporary = through / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    with Sealed(temporary) as file:
        file.write(data)
    failpoints.point("storage.before_swap")
    os.rename(temporary, path)
    failpoints.point("storage.after_swap")


# Keeps RP6.
@singledispatch
def fence_off(folder: Path) -> None:
    """End each `swap` through a folder, by removing it. Raises RetryableError while another process
    writes into it.
    """
    for _ in range(_ROUNDS_MAX):
        remove_folder(folder)
        if not os.path.lexists(folder):
            return
    raise RetryableError(
        f"{folder}: another process still writes into this folder. Run this again"
    )


@singledispatch
def names(folder: Path, after: str = "") -> list[str]:
    """The names in a folder greater than `after`, in any order. Empty if it does not exist."""
    try:
        return [name for name in os.listdir(folder) if name > after]
    except (FileNotFoundError, NotADirectoryError):
        return []


@singledispatch
def nested_names(folder: Path) -> list[str]:
    """The names in the folders of a folder, each after the name of its folder: `b00000001/f0001`.
    Without hidden ones.
    """
    # Path.glob would fail if a finalize removes a batch's folder meanwhile.
    return glob("*/*", root_dir=folder)


@singledispatch
def files_below(root: Path, skipped: Collection[Path] = ()) -> Iterator[Path]:
    """All files in a folder and in the folders below it, except in those that are `skipped`."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name not in skipped]
        yield from (here / name for name in names)


@singledispatch
def remove_empty(folder: Path) -> None:
    """Remove a folder unless another process uses it or has removed it."""
    with suppress(OSError):
        folder.rmdir()


@singledispatch
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
