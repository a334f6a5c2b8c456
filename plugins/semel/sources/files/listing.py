"""Listing a folder of files. It opens nothing: it says which regular files there are, and what stat
tells of them. Which of them is which known file is decided by `recognise`.
"""

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from semel.declare.context import Context
from semel.sources import Refusal, Shown

_UNSEEN = ("unreadable", "missing")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file as the source shows it now. `when` is its place in time for `select: interval`."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    when: datetime | None

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
class Listing(Shown):
    """Regular files, oldest first (then by path), and what is refused.

    Not `complete`: a folder could not be read, so what is not listed may be there all the same.
    """

    root: Path
    found: list[ListedFile]

    @property
    def complete(self) -> bool:
        return not any(item.reason in _UNSEEN for item in self.refused)


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


def list_files(context: Context) -> Listing:
    """All files that the source's pattern finds, whatever interval they belong to."""
    root = Path(os.path.realpath(context.declared.folder()))
    files: list[ListedFile] = []
    refused = _closed_folders(root, context.declared.below().split("/"))
    rule, inside = context.declared.interval_from, {}
    prefix = os.path.join(root, "")
    # A file costs a stat and little else: there may be very many.
    for name in set(glob.iglob(context.declared.below(), root_dir=root, recursive=True)):
        item = _look(rule, root, prefix + name, inside)
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            files.append(item)
    files.sort(key=attrgetter("mtime_ns", "path"))
    refused.sort(key=attrgetter("name"))
    return Listing(root=root, found=files, refused=refused)


def _closed_folders(root: Path, parts: list[str]) -> list[Refusal]:
    """Folders that a pattern leads into and that cannot be read: glob passes over them silently."""
    refused: list[Refusal] = []

    def note(error: OSError) -> None:
        path = shown(error.filename)
        if not isinstance(error, FileNotFoundError):
            why = f"{error.strerror}; give the reader access to this folder"
            refused.append(refusal(path, "unreadable", why))
        elif path == str(root):
            why = "the source's folder is not there; make it, or mount what holds it"
            refused.append(refusal(path, "missing", why))

    for folder, folders, _ in os.walk(root, onerror=note):
        level = len(Path(folder).parts) - len(root.parts)
        if "**" in parts[: level + 1]:
            folders[:] = [name for name in folders if not name.startswith(".")]
        else:
            inner = level < len(parts) - 1
            folders[:] = fnmatch.filter(folders, parts[level]) if inner else []
    return refused


# Keeps P13.
def _look(
    rule: str | None, root: Path, path: str, inside: dict[str, bool]
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
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        return None
    if not inside[folder]:
        return _leads_out(root, path)
    if kind != stat.S_IFREG:
        return refusal(path, "kind", "it is not a regular file")
    when = _time(rule, path, status.st_mtime_ns)
    if isinstance(when, Refusal):
        return when
    return listed(path, when, status)


def listed(path: str, when: datetime | None, status: os.stat_result) -> ListedFile:
    """A file by a stat of it."""
    return ListedFile(
        path=path,
        device=signed(status.st_dev),
        inode=signed(status.st_ino),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        when=when,
    )


def seen_now(file: ListedFile, status: os.stat_result) -> ListedFile:
    """A listed file by a stat that was made later."""
    return listed(file.path, file.when, status)


def _leads_out(root: Path, path: str) -> Refusal:
    return refusal(path, "symlink", f"it leads out of {root}; move the file itself there")


def file_time(context: Context, path: str, mtime_ns: int) -> datetime | Refusal | None:
    """A file's place in time, by `source.interval_from`. None for `select: arrival`."""
    return _time(context.declared.interval_from, path, mtime_ns)


def _time(rule: str | None, path: str, mtime_ns: int) -> datetime | Refusal | None:
    if rule is None:
        return None
    if rule == "mtime":
        return datetime.fromtimestamp(mtime_ns / 1e9, tz=UTC)
    try:
        return datetime.strptime(os.path.basename(path), rule).replace(tzinfo=UTC)
    except ValueError:
        why = f"its name does not follow {rule!r}, so it has no interval"
        return refusal(path, "interval", why)


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
    return Refusal(
        name=path, reason=reason, detail=re.sub(r"[\x00-\x1f\x7f]", "?", detail), when=when
    )
