"""Files as a source: listing a folder, and opening what a batch has claimed.

A listing opens nothing: it says which regular files there are and what stat tells of them. Which
of them is which known file is decided by `recognise`, over what `facts` gathers.
"""

import fnmatch
import glob
import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from semel.batch import Claim
from semel.errors import RetryableError, SourceError
from semel.sources.content import content_of, is_gzip, open_file
from semel.sources.rotation import is_rotation
from semel.spec.pipeline import Spec

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


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A file that plan leaves alone, and why. Its records stay unclaimed until that is settled.

    `when` is its place in time; None where that is not known, or has no meaning. Of a copy: its
    inode and size, the path of the file that it is a copy of, and where what it holds beyond that
    begins, if it does.
    """

    path: str
    reason: str
    detail: str
    when: datetime | None = None
    inode: int | None = None
    size: int | None = None
    copy_of: str | None = None
    behind: int | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What the source shows: regular files, oldest first (then by path), and what is refused.

    Not `complete`: a folder could not be read, so what is not listed may be there all the same.
    """

    root: Path
    files: list[ListedFile]
    refused: list[Refusal]

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


def list_files(spec: Spec) -> Listing:
    """All files that the source's pattern finds, whatever interval they belong to."""
    root = Path(os.path.realpath(spec.source_root()))
    files: list[ListedFile] = []
    refused = _closed_folders(root, spec.source_pattern().split("/"))
    rule, inside = spec.source.interval_from, {}
    prefix = os.path.join(root, "")
    # A file costs a stat and little else: there may be very many.
    for name in set(glob.iglob(spec.source_pattern(), root_dir=root, recursive=True)):
        item = _look(rule, root, prefix + name, inside)
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            files.append(item)
    files.sort(key=attrgetter("mtime_ns", "path"))
    refused.sort(key=attrgetter("path"))
    return Listing(root=root, files=files, refused=refused)


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
        return None  # It went away between listing and looking.
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
    return _listed(path, when, status)


def _listed(path: str, when: datetime | None, status: os.stat_result) -> ListedFile:
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
    return _listed(file.path, file.when, status)


def _leads_out(root: Path, path: str) -> Refusal:
    return refusal(path, "symlink", f"it leads out of {root}; move the file itself there")


def file_time(spec: Spec, path: str, mtime_ns: int) -> datetime | Refusal | None:
    """A file's place in time, by `source.interval_from`. None for `select: arrival`."""
    return _time(spec.source.interval_from, path, mtime_ns)


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


# Keeps S6.
def check_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> None:
    """Prove that each claimed range still lies in the file that was planned.

    Called by the driver before and after the job. SourceError names the file and what changed.
    """
    for claim in claims:
        if trouble := _trouble(claim, root, batch_id):
            raise trouble


# Keeps S6.
def find_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> list[Claim]:
    """The same claims, proven; one whose file was packed, or copied and cut, since it was planned,
    in the file that has its content now. SourceError names a file that is nowhere.

    A rotation has names of its own: these are looked at, and what is in them is held against the
    claim. The positions are the same, for they count what is packed.
    """
    found, below = [], None
    for claim in claims:
        if trouble := _trouble(claim, root, batch_id):
            below = below if below is not None else [path for _, path in inodes_below(root)]
            names = (path for path in below if is_rotation(claim.path, path))
            other = next((c for path in names if (c := _in(claim, path))), None)
            if other is None:
                raise trouble
            claim = other
        found.append(claim)
    return found


def retry_elsewhere(
    claims: list[Claim], root: Path, batch_id: int, error: SourceError
) -> None:
    """RetryableError when all that was planned is in the source, though not where it was."""
    try:
        rotated = find_claims(claims, root, batch_id) != claims
    except SourceError:
        return
    if rotated:
        raise RetryableError(
            f"batch {batch_id}: a log was copied or packed while it was read ({error}); what was "
            "planned is there, so run stage again"
        ) from error


def _trouble(claim: Claim, root: Path, batch_id: int) -> SourceError | None:
    """Why a claimed range is not in its file any more; None: it is."""
    try:
        with open_claim(claim, root, batch_id) as handle:
            try:
                trouble = _differs(handle, claim)
            except OSError as error:
                trouble = f"it was moved or cannot be read ({error.strerror})"
    except SourceError as error:
        return error
    return changed(batch_id, claim, trouble) if trouble else None


def _differs(handle: BinaryIO, claim: Claim) -> str | None:
    """What tells the content of an open file from the claimed one. SourceError: it is damaged."""
    content = content_of(handle, packed=claim.packed)
    if content.size < claim.end:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, claim.head_length) != claim.head_hash:
        return f"its first {claim.head_length} bytes changed"
    if content.tail_hash(claim.end) != claim.tail_hash:
        return f"its bytes before {claim.end} changed"
    return None


def _in(claim: Claim, path: str) -> Claim | None:
    """A claim in another file, if that holds its content."""
    try:
        with open_file(path) as handle:
            if claim.packed or _differs(handle, claim):
                return None
            status = os.fstat(handle.fileno())
    except (OSError, SourceError):
        return None
    return replace(claim, path=path, device=signed(status.st_dev), inode=signed(status.st_ino))


def open_claim(claim: Claim, root: Path, batch_id: int) -> BinaryIO:
    """Open a claimed file for reading; SourceError when it is not the file that was planned.

    It is the file with the planned inode: under its path, or where a rotation moved it since, below
    `root`. The number of its device may change with a reboot.
    """
    others = (path for inode, path in inodes_below(root) if inode == claim.inode)
    trouble = ""
    for path in itertools.chain([claim.path], others):
        try:
            handle = open_file(path)
        except OSError as error:
            trouble = trouble or f"it cannot be read ({error.strerror})"
            continue
        status = os.fstat(handle.fileno())
        if signed(status.st_ino) == claim.inode:
            if is_gzip(path) and not claim.packed or status.st_size >= claim.end:
                return handle
            trouble = f"it shrank to {status.st_size} bytes"
        handle.close()
        trouble = trouble or "another file took its place"
    raise changed(batch_id, claim, trouble)


class FirstBytes:
    """The first `end` bytes of a binary file, for a gzip reader."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end = file, end
        self.name = file.name

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))


def changed(batch_id: int, claim: Claim, what: str) -> SourceError:
    return SourceError(
        f"{claim.path!r} (partition {claim.source_partition_id}) is no longer what batch "
        f"{batch_id} planned: {what}; bytes {claim.start} to {claim.end} of it are claimed. "
        f"Put the file back, or `semel abandon {batch_id}`: the next run reads what is there "
        "then"
    )


def signed(number: int) -> int:
    """An unsigned 64-bit number as Postgres' bigint holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def shown(path: str | bytes) -> str:
    """A path as the ledger and a terminal can hold it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def quoted(path: str) -> str:
    """A path as one word of a shell's command."""
    if path.isprintable():
        return shlex.quote(path)
    text = path.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + re.sub(r"[\x00-\x1f\x7f]", lambda c: f"\\x{ord(c[0]):02x}", text) + "'"


def refusal(path: str, reason: str, detail: str, when: datetime | None = None) -> Refusal:
    return Refusal(
        path=path, reason=reason, detail=re.sub(r"[\x00-\x1f\x7f]", "?", detail), when=when
    )
