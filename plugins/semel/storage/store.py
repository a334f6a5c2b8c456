"""The verbs of folder.py for the objects of a store.

A put creates an object whole or not at all, and is durable once it is answered. No put replaces an
object, except `swap`, which names the version that it replaces. The metadata of each object has the
checksum of its bytes, so that one HEAD identifies it.
"""

import errno
import io
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, TypeVar

import xxhash

from semel import failpoints
from semel.errors import CorruptionError, ReplacedError, UnavailableError
from semel.storage import folder
from semel.storage.facts import CHECKSUM, FileStat
from semel.storage.store_path import StorePath

if TYPE_CHECKING:
    from semel.clients.objects import Object

CALLS_AT_ONCE = 16
"""Requests to a store that one process sends at the same time."""

BYTES_AT_ONCE = 512 << 20
"""Bytes of objects in the memory of one process."""

_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


@folder.new.register(StorePath)
class Upload(io.BytesIO):
    """A new object. Closing it puts its bytes, unless its `with` block has failed."""

    def __init__(self, key: StorePath) -> None:
        super().__init__()
        self._key = key
        self.size, self.checksum = 0, ""

    def close(self) -> None:
        if self.closed:
            return
        try:
            with self.getbuffer() as data:
                self.size, self.checksum = len(data), xxhash.xxh3_128_hexdigest(data)
                _create(self._key, data, self.checksum)
        finally:
            super().close()

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def __del__(self) -> None:
        super().close()  # The garbage collector puts nothing.


# Keeps AR1.
def _create(key: StorePath, data: bytes | memoryview, checksum: str) -> None:
    """Put a new object. Raises FileExistsError if the key has other bytes already."""
    failpoints.point("store.before_put")
    if not key.store.create(key.key, data, {CHECKSUM: checksum}):
        # It may be this very put, if its first answer was lost.
        found = _stat(key)
        if (found.size, found.checksum) != (len(data), checksum):
            raise FileExistsError(errno.EEXIST, "another object has this key", str(key))
    failpoints.point("store.after_put")


@folder.write_new.register(StorePath)
def _write_new(key: StorePath, data: bytes) -> None:
    """Put a new object. An object with the same bytes counts as this one."""
    _create(key, data, xxhash.xxh3_128_hexdigest(data))


@folder.read_range.register(StorePath)
def _read_range(key: StorePath, start: int, size: int) -> bytes:
    return key.store.read_constant(key.key, start, start + size)


@folder.stat.register(StorePath)
def _stat(key: StorePath) -> FileStat:
    head, about = key.store.head(key.key)
    return FileStat(size=head.size, version=head.etag, checksum=about.get(CHECKSUM))


@folder.checksum.register(StorePath)
def _checksum(key: StorePath) -> str:
    return xxhash.xxh3_128_hexdigest(key.read_bytes())


@folder.readable.register(StorePath)
def _readable(key: StorePath) -> IO[bytes]:
    # One request: pyarrow would send one for each column of a row group.
    return io.BytesIO(key.read_bytes())


@contextmanager
def local_file(key: StorePath, etag: str) -> Iterator[Path]:
    """A block with a copy of one version of an object. Raises FileNotFoundError if the object has
    another etag, and UnavailableError if the copy cannot be written.
    """
    data, item, _ = key.store.get(key.key)
    if item.etag != etag:
        raise FileNotFoundError(errno.ESTALE, "it was replaced by another version", str(key))
    with temporary_file(str(key), data) as path:
        yield path


@contextmanager
def temporary_file(of: str, data: bytes) -> Iterator[Path]:
    """A block with a file that has the bytes of an object, `of`. Raises UnavailableError if it
    cannot be written.
    """
    with NamedTemporaryFile(prefix="semel-", suffix=PurePosixPath(of).suffix) as copy:
        try:
            copy.write(data)
            copy.flush()
        except OSError as error:
            raise UnavailableError(
                f"{of}: its copy {copy.name} cannot be written ({error.strerror}). Free some space"
            ) from error
        yield Path(copy.name)


@folder.move_to_disk.register(StorePath)
def _move_to_disk(source: StorePath, target: Path) -> None:
    target.write_bytes(source.read_bytes())


@folder.reads_at_once.register(StorePath)
def _reads_at_once(key: StorePath) -> int:  # noqa: ARG001
    return CALLS_AT_ONCE


@folder.each.register(StorePath)
def _each(
    place: StorePath,  # noqa: ARG001
    do: Callable[[_Item], _Result],
    items: Iterable[_Item],
    bytes_max: int = 0,
) -> list[_Result]:
    from concurrent.futures import ThreadPoolExecutor  # Most commands start without threads.

    at_once = max(1, min(CALLS_AT_ONCE, BYTES_AT_ONCE // max(1, bytes_max)))
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(do, items))


@folder.folder_for_copies.register(StorePath)
@folder.sync_folder.register(StorePath)
@folder.remove_empty.register(StorePath)
@folder.make_folder.register(StorePath)
@folder.fence_off.register(StorePath)
def _nothing(key: StorePath) -> None:
    """A store has no folders, and a put is durable. `swap` compares versions instead of a fence."""


@folder.check_links_of.register(StorePath)
def _check_links_of(key: StorePath, files: Iterable[str]) -> None:
    """Nothing: a process that may read an object may copy it."""


@folder.remedy.register(StorePath)
def _remedy(place: StorePath) -> str:
    whose = f"the connection {place.connection}" if place.connection else "this machine's role"
    return f"Let {whose} list, read, put and delete objects below {place}"


# Keeps AR3.
@folder.check_guarantees.register(StorePath)
def _check_guarantees(archive: StorePath) -> None:
    from semel.clients.objects import Store
    from semel.clients.objects.probe import check_conditional_puts

    # In the folder of staged files, because the audit lists all others.
    staging = Store(f"{archive}/staging", archive.connection)
    check_conditional_puts(staging, replaces=True)


# Keeps AR1.
@folder.link_new.register(StorePath)
def _link_new(source: StorePath, target: StorePath) -> None:
    """Put the bytes of an object under another key."""
    data, _, about = source.store.get(source.key)
    if about.get(CHECKSUM) not in (None, xxhash.xxh3_128_hexdigest(data)):
        raise CorruptionError(
            f"{source}: its bytes do not match its checksum. It was not put under another name. "
            "Restore it from a backup"
        )
    _write_new(target, data)


@folder.read_version.register(StorePath)
def _read_version(key: StorePath) -> "tuple[bytes, Object]":
    data, version, _ = key.store.get(key.key)
    return data, version


# Keeps AR2.
@folder.swap.register(StorePath)
def _swap(
    key: StorePath, data: bytes, version: "Object | None", *, through: object  # noqa: ARG001
) -> None:
    if version is None:
        try:
            _write_new(key, data)
        except FileExistsError as error:
            raise _replaced(key) from error
        return
    failpoints.point("store.before_overwrite")
    about = {CHECKSUM: xxhash.xxh3_128_hexdigest(data)}
    try:
        key.store.replace(key.key, data, about, version.etag, version.version)
    except FileNotFoundError as error:
        with suppress(FileNotFoundError):
            if _stat(key).checksum == about[CHECKSUM]:
                return  # The first answer to this very put was lost, or a twin has put the same.
        raise _replaced(key) from error
    failpoints.point("store.after_overwrite")


def _replaced(key: StorePath) -> ReplacedError:
    return ReplacedError(f"{key}: another process replaced it meanwhile. Run this again")


@folder.names.register(StorePath)
def _names(place: StorePath, after: str = "") -> list[str]:
    return place.names(after)


@folder.nested_names.register(StorePath)
def _nested_names(place: StorePath) -> list[str]:
    parts = (key.split("/") for key in place.keys())
    return list(dict.fromkeys("/".join(two[:2]) for two in parts if len(two) > 1))


@folder.files_below.register(StorePath)
def _files_below(root: StorePath, skipped: Collection[StorePath] = ()) -> Iterator[StorePath]:
    prefixes = tuple(f"{place.relative_to(root)}/" for place in skipped)
    return (root / key for key in root.keys() if not key.startswith(prefixes))


@folder.remove_folder.register(StorePath)
def _remove_folder(place: StorePath) -> int:
    freed, store = 0, place.store
    failpoints.point("store.before_delete")
    for page in store.list(place.key):
        store.remove_all([item.key for item in page])
        freed += sum(item.size for item in page)
    failpoints.point("store.after_delete")
    return freed
