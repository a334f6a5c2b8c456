"""Listing a folder of files. It opens nothing: it says which regular files there are, and what stat
tells of them. Which of them is which known file is decided by `recognise`.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from semel.declare.context import Context
from semel.formats.table import source_format
from semel.sources import PRIVATE, TABLE_LOG, Refusal, SourceListing, delta_table_error

_UNSEEN = ("unreadable", "missing")


class ListedFile(NamedTuple):
    """A file as the source shows it now. `when` is its place in time for `select: interval`.

    There may be very many: a tuple is made in half the time of a frozen object.
    """

    path: str
    when: datetime | None
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def name(self) -> str:
        return self.path

    @property
    def identity(self) -> str:
        """Device and inode: one file, whatever it is called."""
        return identity(self.device, self.inode)

    @property
    def fingerprint(self) -> str:
        """Its size and its times of change."""
        return f"{self.size}:{self.mtime_ns}:{self.ctime_ns}"


@dataclass(frozen=True, kw_only=True)
class FileListing(SourceListing):
    """Regular files, oldest first (then by path), and what is refused.

    Not `complete`: a folder could not be read, so what is not listed may be there all the same.
    """

    root: Path
    items: list[ListedFile]

    def signatures(self) -> Iterator[str]:
        """By the fields themselves: calls would take as long again."""
        for path, _, device, inode, size, mtime_ns, ctime_ns in self.items:
            yield f"{path}//{device}:{inode}//{size}:{mtime_ns}:{ctime_ns}"

    @property
    def complete(self) -> bool:
        return not any(item.reason in _UNSEEN for item in self.refusals)


def inodes_below(root: Path) -> Iterator[tuple[int, str]]:
    """(inode, path) of all files that lie below a folder, whatever they are called."""
    folders = [str(root)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif not entry.is_symlink():
                        yield signed(entry.inode()), entry.path
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # The listing says so, where the pattern leads into it.


def list_files(context: Context) -> FileListing:
    """All files that the source's pattern finds, whatever interval they belong to."""
    root = Path(os.path.realpath(context.declared.folder()))
    pattern = context.declared.below()
    files: list[ListedFile] = []
    refused = _closed_folders(root, pattern)
    inside = {}
    prefix = os.path.join(root, "")
    # A file costs a stat and little else: there may be very many.
    names = set(glob.iglob(pattern, root_dir=root, recursive=True))
    private = [] if PRIVATE.search(pattern) else filter(PRIVATE.search, names)
    private = frozenset(prefix + name for name in private)
    if source_format(context.declared.format).sealed:
        read = (name for name in names if prefix + name not in private)
        _check_tables(context, root, {name.rpartition("/")[0] for name in read})
    for name in sorted(names):
        item = _look(context.declared, root, prefix + name, inside)
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            files.append(item)
    files.sort(key=attrgetter("mtime_ns"))  # Stable: then by path.
    refused.sort(key=attrgetter("name"))
    note = f"{len(private)} names have a part that begins with _: no new one of them is read"
    notes = (note,) if private else ()
    return FileListing(root=root, items=files, refusals=refused, notes=notes, private=private)


# Keeps P32.
def _check_tables(context: Context, root: Path, folders: set[str]) -> None:
    """TerminalError: one of the folders lies in a Delta table."""
    above = {str(root / parent) for folder in folders for parent in PurePosixPath(folder).parents}
    below = {str(root / folder) for folder in folders}
    for folder in sorted({*below, *above, *map(str, root.parents if folders else ())}):
        if os.path.isdir(os.path.join(folder, TABLE_LOG)):
            raise delta_table_error(folder)


def _closed_folders(root: Path, pattern: str) -> list[Refusal]:
    """Folders that a pattern leads into and that cannot be read: glob passes over them silently."""
    refused = []
    for folder in {"", *_folders(root, pattern)}:
        path = str(root / folder)
        try:
            os.scandir(path).close()
        except FileNotFoundError:
            if not folder:
                why = "the source's folder is not there; make it, or mount what holds it"
                refused.append(refusal(shown(path), "missing", why))
        except OSError as error:
            why = f"{error.strerror}; give the reader access to this folder"
            refused.append(refusal(shown(path), "unreadable", why))
    return refused


def _folders(root: Path, pattern: str) -> Iterator[str]:
    """The folders that the parts of a pattern but its last one find."""
    parts = pattern.split("/")
    for count in range(1, len(parts)):
        folder = "/".join(parts[:count]) + "/"
        yield from glob.iglob(folder, root_dir=root, recursive=True)


# Keeps P13.
def _look(
    declared: Any, root: Path, path: str, inside: dict[str, bool]
) -> ListedFile | Refusal | None:
    """`inside` remembers of each folder whether it lies below the root."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return refusal(shown(path), "name", "its name is not UTF-8; rename it")
    try:
        status = os.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        folder = path if is_link else path[: path.rindex("/")]
        if folder not in inside:
            inside[folder] = Path(os.path.realpath(folder)).is_relative_to(root)
        if is_link:
            status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            if not Path(os.path.realpath(path)).is_relative_to(root):
                return _leads_out(root, path)
            return refusal(path, "symlink", "it leads nowhere; remove it")
        return None  # It was deleted between listing and looking.
    except OSError as error:
        return refusal(path, "unreadable", f"{error.strerror}; give the reader access")
    if stat.S_ISDIR(status.st_mode):
        return None
    if not inside[folder]:
        return _leads_out(root, path)
    if not stat.S_ISREG(status.st_mode):
        return refusal(path, "kind", "it is not a regular file")
    when = declared.interval_from and _time(declared, path, status.st_mtime_ns)
    return when if isinstance(when, Refusal) else listed(path, when, status)


def listed(path: str, when: datetime | None, status: os.stat_result) -> ListedFile:
    """A file by a stat of it."""
    device, inode = status.st_dev, status.st_ino
    if (device | inode) >> 63:  # Rare, and there may be very many files.
        device, inode = signed(device), signed(inode)
    size, mtime_ns, ctime_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return ListedFile(path, when, device, inode, size, mtime_ns, ctime_ns)


def seen_now(file: ListedFile, status: os.stat_result) -> ListedFile:
    """A listed file by a stat that was made later."""
    return listed(file.path, file.when, status)


def _leads_out(root: Path, path: str) -> Refusal:
    return refusal(path, "symlink", f"it leads out of {root}; move the file itself there")


def file_time(context: Context, path: str, mtime_ns: int) -> datetime | Refusal | None:
    """A file's place in time, by `source.interval_from`. None for `select: arrival`."""
    return _time(context.declared, path, mtime_ns)


def _time(declared: Any, path: str, mtime_ns: int) -> datetime | Refusal | None:
    rule, zone = declared.interval_from, ZoneInfo(declared.interval_zone)
    if rule is None:
        return None
    try:
        if rule == "mtime":
            return datetime.fromtimestamp(mtime_ns / 1e9, tz=UTC)
        found = datetime.strptime(os.path.basename(path), rule)
        return found.replace(tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        why = f"its name does not follow {rule!r}"
        if rule == "mtime":
            why = f"its mtime is {mtime_ns // 10**9} s after 1970, in no year from 1 to 9999"
        return refusal(path, "interval", f"{why}, so it has no interval")


def identity(device: int, inode: int) -> str:
    """What a file is known by under any name; `OfFile` reads it."""
    return f"{device}:{inode}"


def signed(number: int) -> int:
    """An unsigned 64-bit number as Postgres' bigint holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def shown(path: str | bytes) -> str:
    """A path as the ledger and a terminal can hold it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def refusal(path: str, reason: str, detail: str, when: datetime | None = None) -> Refusal:
    text = detail.removeprefix(f"{path!r}: ")  # The refusal itself has the name.
    text = re.sub(r"[\x00-\x1f\x7f]", "?", text)
    return Refusal(name=path, reason=reason, detail=text, when=when)
