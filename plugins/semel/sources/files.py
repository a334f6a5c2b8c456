"""Files as a source: listing, recognising a file again, and the end of its last whole record.

A file is known by (device, inode), by a hash of its head *with its length*, and by a hash of the
last bytes before the claimed end. Head alone never suffices: CSV files of one kind begin alike.
Edits in the middle are not seen here; the input digest of an attempt sees them between attempts.
"""

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import xxhash

from semel import limits
from semel.batch import Claim
from semel.errors import SourceError
from semel.pipeline import Spec

_SCAN_BYTES = 1 << 16
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang the planner


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A file as the source shows it now. `when` is its place in time for `select: interval`."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    head_length: int
    head_hash: str
    when: datetime | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A file that plan leaves alone, and why. Its records stay unclaimed until that is settled."""

    path: str
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Known:
    """An open source partition of the ledger."""

    source_partition_id: int
    path: str
    generation: int
    device: int
    inode: int
    head_length: int
    head_hash: str
    tail_end: int
    tail_hash: str


def list_files(
    spec: Spec, window: tuple[datetime, datetime] | None = None
) -> tuple[list[ListedFile], list[Refusal]]:
    """Regular files of the source, oldest first (then by path), and what was refused.

    `window` [start, end) keeps only files whose own time (`source.interval_from`) lies in it.
    """
    root = Path(os.path.realpath(spec.source_root()))
    found: list[ListedFile] = []
    refused = _closed_folders(root, spec.source_pattern().split("/"))
    names = set(glob.iglob(spec.source_pattern(), root_dir=root, recursive=True))
    for name in sorted(names):
        path = os.path.join(root, name)
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            shown = path.encode("utf-8", "backslashreplace").decode()
            refused.append(_refusal(shown, "name", "its name is not UTF-8; rename it"))
            continue
        if os.path.isdir(path):
            continue
        item = _look(spec, root, path, window)
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            found.append(item)
    found.sort(key=lambda file: (file.mtime_ns, file.path))
    return found, refused


def _closed_folders(root: Path, parts: list[str]) -> list[Refusal]:
    """Folders that a pattern leads into and that cannot be read: glob passes over them silently."""
    refused: list[Refusal] = []

    def note(error: OSError) -> None:
        path = os.fsencode(error.filename).decode("utf-8", "backslashreplace")
        if not isinstance(error, FileNotFoundError):
            why = f"{error.strerror}; give the reader access to this folder"
            refused.append(_refusal(path, "unreadable", why))
        elif path == str(root):
            why = "the source's folder is not there; make it, or mount what holds it"
            refused.append(_refusal(path, "missing", why))

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
    spec: Spec, root: Path, path: str, window: tuple[datetime, datetime] | None
) -> ListedFile | Refusal | None:
    if not Path(os.path.realpath(path)).is_relative_to(root):
        return _refusal(path, "symlink", f"it leads out of {root}; move the file itself there")
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError:
        if os.path.islink(path):
            return _refusal(path, "symlink", "it leads nowhere; remove it")
        return None  # It went away between listing and looking.
    except OSError as error:
        return _refusal(path, "unreadable", f"{error.strerror}; give the reader access")
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return _refusal(path, "kind", "it is not a regular file")
        when = file_time(spec, path, status.st_mtime_ns)
        if isinstance(when, Refusal):
            return when
        if window is not None and not (when and window[0] <= when < window[1]):
            return None
        length = min(status.st_size, limits.HEAD_BYTES)
        return ListedFile(
            path=path,
            device=_signed(status.st_dev),
            inode=_signed(status.st_ino),
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            head_length=length,
            head_hash=_hash(handle, 0, length),
            when=when,
        )
    finally:
        os.close(handle)


def file_time(spec: Spec, path: str, mtime_ns: int) -> datetime | Refusal | None:
    """A file's place in time, by `source.interval_from`. None for `select: arrival`."""
    rule = spec.source.interval_from
    if rule is None:
        return None
    if rule == "mtime":
        return datetime.fromtimestamp(mtime_ns / 1e9, tz=UTC)
    try:
        return datetime.strptime(os.path.basename(path), rule).replace(tzinfo=UTC)
    except ValueError:
        why = f"its name does not follow {rule!r}, so it has no interval"
        return _refusal(path, "interval", why)


def recognise(
    file: ListedFile,
    by_inode: Known | None,
    by_path: Known | None,
    copies: Iterable[Known],
    inodes: Collection[int],
) -> Known | Refusal | None:
    """The open source partition that a file continues; None: a new one; or why it is refused.

    A total decision over what the ledger knows under the file's inode and under its path. `copies`
    are partitions whose own file was truncated or is gone; `inodes` are those of all listed files.
    """
    if by_inode is not None:
        # Keeps P8.
        trouble = differs(file, by_inode)
        if trouble and _inode_of(by_inode.path) not in (None, (file.device, file.inode)):
            return _refusal(
                file.path,
                "inode",
                f"its inode was that of {by_inode.path!r} (partition "
                f"{by_inode.source_partition_id}), where another file is now; settle that one with "
                "`semel accept`, and this one is read as the new file that it seems to be",
            )
        if trouble:
            return _refusal(
                file.path,
                "changed",
                f"{trouble} since it was planned as {by_inode.path!r} generation "
                f"{by_inode.generation} (partition {by_inode.source_partition_id}: "
                f"{show(by_inode)}; now {show(file)}); `semel accept` reads it as a new generation",
            )
        if by_inode.path != file.path and os.path.lexists(by_inode.path):
            if _inode_of(by_inode.path) == (file.device, file.inode):
                return _refusal(
                    file.path, "hard link", f"the same file is read as {by_inode.path!r} already"
                )
        return by_inode
    # Keeps P16.
    if by_path is not None and by_path.inode not in inodes:
        return replaced(file, by_path)
    # Keeps P17.
    for copy in copies:
        if 0 < copy.tail_end <= file.size and not differs(file, copy):
            return _refusal(
                file.path,
                "copy",
                f"it begins with all that was read of {copy.path!r} (partition "
                f"{copy.source_partition_id}), whose own file was cut or is gone; `semel accept` "
                "reads it as new, `semel accept --same` goes on in it",
            )
    return None


def replaced(file: ListedFile, known: Known) -> Refusal:
    """A file stands under the path of a known one that was not found again elsewhere."""
    return _refusal(
        file.path,
        "replaced",
        f"another file took the place of partition {known.source_partition_id} (was "
        f"{show(known)}; now {show(file)}), which the source's pattern finds nowhere else as it "
        "was, so what was unread of it may be lost; `semel accept` reads this one as a new "
        "generation, `semel accept --same` goes on in the old one",
    )


def is_stale(file: ListedFile, known: Known) -> bool:
    """Whether a known file is gone, and its inode number was given to another one.

    The same head with another tail is no other file: it was renamed and edited, and is refused.
    """
    gone = known.path != file.path and not os.path.lexists(known.path)
    return gone and not same_head(file, known)


def same_head(file: ListedFile, known: Known) -> bool:
    """Whether a file begins as a known one did when its head was hashed."""
    if file.size < known.head_length:
        return False
    with open(file.path, "rb", opener=_opener) as handle:
        return _hash(handle.fileno(), 0, known.head_length) == known.head_hash


def differs(file: ListedFile, known: Known) -> str | None:
    """What tells a file from a known one: it shrank, or its head or tail is another."""
    if file.size < max(known.tail_end, known.head_length):
        return f"it shrank to {file.size} bytes"
    if not same_head(file, known):
        return f"its first {known.head_length} bytes changed"
    with open(file.path, "rb", opener=_opener) as handle:
        if known.tail_end and tail_hash(handle.fileno(), known.tail_end) != known.tail_hash:
            return f"its bytes before {known.tail_end} changed"
    return None


def read_head(file: ListedFile) -> bytes:
    """The bytes that `head_hash` is of."""
    with open(file.path, "rb", opener=_opener) as handle:
        return os.pread(handle.fileno(), file.head_length, 0)


def record_end(file: ListedFile, floor: int, ceiling: int, *, whole: bool) -> int:
    """The last end of a record in [floor, ceiling) of a file; `floor` when there is none.

    `whole`: the file is closed, so what follows its last newline is a record too.
    """
    if whole and ceiling == file.size:
        return ceiling
    with open(file.path, "rb", opener=_opener) as handle:
        position = ceiling
        while position > floor:
            start = max(floor, position - _SCAN_BYTES)
            found = os.pread(handle.fileno(), position - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return floor


def next_record_end(file: ListedFile, start: int, ceiling: int) -> int:
    """The first end of a record after `start`, at most `ceiling`."""
    with open(file.path, "rb", opener=_opener) as handle:
        for position in range(start, ceiling, _SCAN_BYTES):
            data = os.pread(handle.fileno(), min(_SCAN_BYTES, ceiling - position), position)
            found = data.find(b"\n")
            if found >= 0:
                return position + found + 1
    return ceiling


def tail_of(path: str, end: int) -> str:
    """Hash of the bytes before `end`, at most TAIL_BYTES."""
    with open(path, "rb", opener=_opener) as handle:
        return tail_hash(handle.fileno(), end)


def tail_hash(handle: int, end: int) -> str:
    start = max(0, end - limits.TAIL_BYTES)
    return _hash(handle, start, end - start)


# Keeps S6.
def check_claims(claims: Iterable[Claim]) -> None:
    """Prove that each claimed range still lies in the file that was planned.

    Called by the driver before and after the job. SourceError names the file and what changed.
    """
    for claim in claims:
        with open_claim(claim) as handle:
            if _hash(handle.fileno(), 0, claim.head_length) != claim.head_hash:
                raise changed(claim, f"its first {claim.head_length} bytes changed")
            if tail_hash(handle.fileno(), claim.end) != claim.tail_hash:
                raise changed(claim, f"its bytes before {claim.end} changed")


def open_claim(claim: Claim):  # noqa: ANN201 - a binary file object
    """Open a claimed file for reading; SourceError when it is not the file that was planned."""
    try:
        handle = open(claim.path, "rb", opener=_opener)  # noqa: SIM115 - handed to the caller
    except OSError as error:
        raise changed(claim, f"it cannot be read ({error.strerror})") from error
    status = os.fstat(handle.fileno())
    same = _signed(status.st_ino) == claim.inode  # The device's number may change with a reboot.
    if not same or status.st_size < claim.end:
        handle.close()
        what = f"it shrank to {status.st_size} bytes" if same else "another file took its place"
        raise changed(claim, what)
    return handle


class FirstBytes:
    """The first `end` bytes of a binary file, for a gzip reader: what was appended since a plan is
    none of the claim's.
    """

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end = file, end
        self.name = file.name

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))


def changed(claim: Claim, what: str) -> SourceError:
    return SourceError(
        f"{claim.path!r} (partition {claim.source_partition_id}) is no longer what was planned: "
        f"{what}; bytes {claim.start} to {claim.end} of it are claimed. Put the file back, or give "
        "the batch up with `semel abandon` and settle the file with `semel accept`"
    )


def show(what: ListedFile | Known) -> str:
    return f"inode {what.inode}, head {what.head_hash[:12]} of {what.head_length} bytes"


def _inode_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _signed(status.st_dev), _signed(status.st_ino)


def _hash(handle: int, start: int, length: int) -> str:
    return xxhash.xxh3_128_hexdigest(os.pread(handle, length, start))


def _signed(number: int) -> int:
    """An unsigned 64-bit number as Postgres' bigint holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | _OPEN)


def _refusal(path: str, reason: str, detail: str) -> Refusal:
    return Refusal(path=path, reason=reason, detail=re.sub(r"[\x00-\x1f\x7f]", "?", detail))
