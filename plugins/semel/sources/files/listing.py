"""List a folder: its regular files, with the results of stat. Nothing is opened; `recognise`
matches the files with partitions.
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
    """A file as the source shows it now. `when` is its time for `select: interval`.

    There may be millions: Python creates a tuple in half the time of a frozen object.
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
        """Device and inode, which survive a rename."""
        return identity(self.device, self.inode)

    @property
    def fingerprint(self) -> str:
        """Its size and its times of change."""
        return f"{self.size}:{self.mtime_ns}:{self.ctime_ns}"


@dataclass(frozen=True, kw_only=True)
class FileListing(SourceListing):
    """Regular files, oldest first (then by path), and refusals.

    Not `complete` if a folder could not be read: files may exist that are not listed.
    """

    root: Path
    items: list[ListedFile]

    def signatures(self) -> Iterator[str]:
        """Built from the fields: calls of the properties would double the time."""
        for path, _, device, inode, size, mtime_ns, ctime_ns in self.items:
            yield f"{path}//{device}:{inode}//{size}:{mtime_ns}:{ctime_ns}"

    @property
    def complete(self) -> bool:
        return not any(item.reason in _UNSEEN for item in self.refusals)


def inodes_below(root: Path) -> Iterator[tuple[int, str]]:
    """(inode, path) of all files below a folder, with any name."""
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
            continue  # The listing refuses the folder, if the pattern leads into it.


def list_files(context: Context) -> FileListing:
    """All files that the source's pattern finds, in any interval."""
    root = Path(os.path.realpath(context.declared.folder()))
    pattern = context.declared.below()
    files: list[ListedFile] = []
    refused = _closed_folders(root, pattern)
    inside = {}
    prefix = os.path.join(root, "")
    # There may be millions of files: each costs one stat and little else.
    names = set(glob.iglob(pattern, root_dir=root, recursive=True))
    private = [] if PRIVATE.search(pattern) else filter(PRIVATE.search, names)
    private = frozenset(prefix + name for name in private)
    if source_format(context.declared.format).sealed:
        read = (name for name in names if prefix + name not in private)
        _check_tables(context, root, {name.rpartition("/")[0] for name in read})
    for name in sorted(names):
        item = _stat_file(context.declared, root, prefix + name, inside)
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            files.append(item)
    files.sort(key=attrgetter("mtime_ns"))  # Stable: then by path.
    refused.sort(key=attrgetter("name"))
    note = f"{len(private)} names have a part that begins with _: semel reads no new ones of these"
    notes = (note,) if private else ()
    return FileListing(root=root, items=files, refusals=refused, notes=notes, private=private)


# Keeps P32.
def _check_tables(context: Context, root: Path, folders: set[str]) -> None:
    """Raises TerminalError if one of the folders is in a Delta table."""
    above = {str(root / parent) for folder in folders for parent in PurePosixPath(folder).parents}
    below = {str(root / folder) for folder in folders}
    for folder in sorted({*below, *above, *map(str, root.parents if folders else ())}):
        if os.path.isdir(os.path.join(folder, TABLE_LOG)):
            raise delta_table_error(folder)


def _closed_folders(root: Path, pattern: str) -> list[Refusal]:
    """Refusals of unreadable folders that a pattern leads into: glob skips these silently."""
    refused = []
    for folder in {"", *_folders(root, pattern)}:
        path = str(root / folder)
        try:
            os.scandir(path).close()
        except FileNotFoundError:
            if not folder:
                why = "the source's folder does not exist; make it, or mount its disk"
                refused.append(make_refusal(printable_path(path), "missing", why))
        except OSError as error:
            why = f"{error.strerror}; give the reader access to this folder"
            refused.append(make_refusal(printable_path(path), "unreadable", why))
    return refused


def _folders(root: Path, pattern: str) -> Iterator[str]:
    """The folders that the parts of a pattern find, without its last part."""
    parts = pattern.split("/")
    for count in range(1, len(parts)):
        folder = "/".join(parts[:count]) + "/"
        yield from glob.iglob(folder, root_dir=root, recursive=True)


# Keeps P13.
def _stat_file(
    declared: Any, root: Path, path: str, inside: dict[str, bool]
) -> ListedFile | Refusal | None:
    """`inside` caches for each folder whether it is below the root."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return make_refusal(printable_path(path), "name", "its name is not UTF-8; rename it")
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
            return make_refusal(path, "symlink", "this link's target does not exist; remove it")
        return None  # It was deleted after it was listed.
    except OSError as error:
        return make_refusal(path, "unreadable", f"{error.strerror}; give the reader access")
    if stat.S_ISDIR(status.st_mode):
        return None
    if not inside[folder]:
        return _leads_out(root, path)
    if not stat.S_ISREG(status.st_mode):
        return make_refusal(path, "kind", "it is not a regular file")
    when = declared.interval_from and _time(declared, path, status.st_mtime_ns)
    return when if isinstance(when, Refusal) else listed_file(path, when, status)


def listed_file(path: str, when: datetime | None, status: os.stat_result) -> ListedFile:
    """A file from its stat."""
    device, inode = status.st_dev, status.st_ino
    if (device | inode) >> 63:  # Rare, so the common case skips two calls per file.
        device, inode = signed(device), signed(inode)
    size, mtime_ns, ctime_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return ListedFile(path, when, device, inode, size, mtime_ns, ctime_ns)


def restat(file: ListedFile, status: os.stat_result) -> ListedFile:
    """A listed file from a later stat."""
    return listed_file(file.path, file.when, status)


def _leads_out(root: Path, path: str) -> Refusal:
    detail = f"this link leads out of {root}; move the file itself there"
    return make_refusal(path, "symlink", detail)


def file_time(context: Context, path: str, mtime_ns: int) -> datetime | Refusal | None:
    """A file's time by `source.interval_from`. Returns None if that is not declared."""
    return _time(context.declared, path, mtime_ns)


def _time(declared: Any, path: str, mtime_ns: int) -> datetime | Refusal | None:
    rule, zone = declared.interval_from, ZoneInfo(declared.interval_zone)
    if rule is None:
        return None
    try:
        if rule == "mtime":
            return datetime.fromtimestamp(mtime_ns / 1e9, tz=UTC)
        local = datetime.strptime(os.path.basename(path), rule)
        return local.replace(tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        why = f"its name does not follow {rule!r}"
        if rule == "mtime":
            why = f"its mtime is {mtime_ns // 10**9} s after 1970, outside the years 1 to 9999"
        return make_refusal(path, "interval", f"{why}, so its interval is unknown")


def identity(device: int, inode: int) -> str:
    """The identity of a file under any name; `FileReference` parses it."""
    return f"{device}:{inode}"


def signed(number: int) -> int:
    """An unsigned 64-bit number, wrapped into Postgres' signed bigint."""
    return number - (1 << 64) if number >= 1 << 63 else number


def printable_path(path: str | bytes) -> str:
    """A path as valid UTF-8, for the ledger and a terminal."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def make_refusal(path: str, reason: str, detail: str, when: datetime | None = None) -> Refusal:
    text = detail.removeprefix(f"{path!r}: ")  # The refusal shows its name itself.
    text = re.sub(r"[\x00-\x1f\x7f]", "?", text)
    return Refusal(name=path, reason=reason, detail=text, when=when)
