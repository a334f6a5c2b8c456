"""What a file shows of itself, and how surely that is a file which is known.

A file is known by device, inode and time of birth; by hashes of what was read of it, its beginning,
its first and last record and its end; and, for a copy, by its time and by names that tools give.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import xxhash

from semel.declare.context import Context
from semel.errors import SourceError
from semel.formats.declared import has_header
from semel.sources import Evidence, Partition
from semel.sources.files.content import (
    HEAD_BYTES, Content, UnfinishedError, content_of, open_file,
)  # fmt: skip
from semel.sources.files.listing import ListedFile, seen_now, signed
from semel.sources.files.recognise import Match
from semel.sources.files.rotation import is_rotation

EVIDENCE_BYTES = 4_096
"""Bytes that must agree, behind a CSV's header, for a file to be another one's by them alone."""


def _number(text: str) -> int:
    """A part of an identity; 0, which no file has, where it was read as another kind or format."""
    return int(text) if text.removeprefix("-").isdecimal() else 0


class OfFile:
    """What a partition and a claim of a file have in common."""

    name: str
    identity: str
    evidence: Evidence

    @property
    def path(self) -> str:
        return self.name

    @property
    def inode(self) -> int:
        return _number(self.identity.partition(":")[2])


class FilePartition(OfFile, Partition):
    """A source partition that is a generation of a file: what was read of it, and how the file
    looked when a plan last saw it.
    """

    @property
    def device(self) -> int:
        return _number(self.identity.partition(":")[0])

    @property
    def mtime_ns(self) -> int:
        """0 where nobody knows."""
        return int(self.fingerprint.split(":")[1]) if self.fingerprint else 0

    @property
    def birth_ns(self) -> int | None:
        return self.evidence.get("birth_ns")

    @property
    def rest_ns(self) -> int | None:
        """The last write before which nothing is unread. Returns None if nothing was read, or if
        claims were released since.
        """
        if self.reached == self.seen > 0:  # The last plan saw nothing unread, and this time.
            return self.mtime_ns
        end, mtime_ns = self.evidence.get("rest", (0, None))
        return mtime_ns if end == self.reached else None

    @property
    def head_length(self) -> int:
        return self._read("head_length", 0)

    @property
    def head_hash(self) -> str:
        return self._read("head_hash", "")

    @property
    def first_hash(self) -> str:
        return self._read("first_hash", "")

    @property
    def tail_hash(self) -> str:
        return self._read("tail_hash", "")

    @property
    def last_length(self) -> int:
        return self._read("last_length", 0)

    @property
    def last_hash(self) -> str:
        return self._read("last_hash", "")

    def _read(self, key: str, nothing: Any) -> Any:
        """What was noted of what is read; claims that were released may have left more."""
        return self.evidence.get(key, nothing) if self.reached else nothing


@dataclass(frozen=True, kw_only=True)
class OpenedFile:
    """A file that was opened. `trouble`: why its content cannot be had; `unfinished`: not yet."""

    file: ListedFile
    birth_ns: int | None
    content: Content | None
    trouble: str = ""
    unfinished: bool = False
    header_end: int = 0

    def begins_with(self, known: FilePartition) -> bool:
        """Whether it begins with all that was read of a partition."""
        content = self.content
        if content is None or not known.reached:
            return content is not None
        return (
            content.size >= max(known.reached, known.head_length)
            and content.hash(0, known.head_length) == known.head_hash
            and content.tail_hash(known.reached) == known.tail_hash
        )

    def firsts(self) -> set[str]:
        """What `first_hash` may be of a partition with whose records the file begins.

        Its first line, also without its end, for another file may have ended there. "": only a
        header was read.
        """
        if self.content is None:
            return set()
        line = self.content.first_line(self.header_end, self.content.size)
        lines = {line, line.removesuffix(b"\n")} - {b""}
        return {"", *map(xxhash.xxh3_128_hexdigest, lines)}

    def beginnings(self, lengths: Iterable[int]) -> list[tuple[int, str]]:
        """(length, xxh3_128) of the beginnings of its content with these lengths."""
        return [] if self.content is None else prefixes(self.content.head, sorted(lengths))

    def same_birth(self, known: FilePartition) -> bool | None:
        """Whether file and partition are one life of one inode; None: the file system is silent."""
        if None in (self.birth_ns, known.birth_ns):
            return None
        return self.birth_ns == known.birth_ns


# Keeps P19.
def look(context: Context, file: ListedFile) -> OpenedFile:
    """Open a file and see what it is now. FileNotFoundError: another one is there, or none."""
    with open_file(file.path) as handle:
        status = os.fstat(handle.fileno())
        if (signed(status.st_dev), signed(status.st_ino)) != (file.device, file.inode):
            raise FileNotFoundError(file.path)
        content: Content | None = None
        trouble, unfinished = "", False
        try:
            content = content_of(handle)
        except UnfinishedError as error:
            trouble, unfinished = str(error), True
        except SourceError as error:
            trouble = str(error)
        header_end = content.head.find(b"\n") + 1 if content and has_header(context) else 0
        return OpenedFile(
            file=seen_now(file, status),
            birth_ns=birth_ns(handle.fileno()),
            content=content,
            trouble=trouble,
            unfinished=unfinished,
            header_end=header_end,
        )


def likeness(seen: OpenedFile, known: FilePartition, *, free: bool, told: bool = False) -> Match:
    """How surely a file is another name, or a copy, of the file that a partition was.

    What is read of a CSV's header says nothing. `free`: no file holds the partition. One of which
    nothing was read is what has its path. `told`: a plan saw that it is a copy, so its time says no
    more than that.
    """
    if not known.reached:
        return Match.STRONG if free and known.path == seen.file.path else Match.NONE
    beyond = known.reached - seen.header_end
    if beyond <= 0 or not seen.begins_with(known):
        return Match.NONE
    sure = (
        beyond >= EVIDENCE_BYTES
        or (same_time(seen, known) and not told)
        or is_rotation(known.path, seen.file.path)
        or (free and known.inode == seen.file.inode and bool(seen.same_birth(known)))
    )
    if free:
        return Match.STRONG if sure else Match.WEAK
    return Match.LIVING if sure or known.path == seen.file.path else Match.NONE


# Keeps P17.
def is_part(seen: OpenedFile, known: FilePartition, holder: OpenedFile | None) -> bool:
    """Whether a file has the beginning of what was read of a known one, 4 KiB or more, and nothing
    else: a copy that is still being made.

    `holder`: the known file, if it was looked at. FileNotFoundError: it was moved or cut meanwhile,
    so that nobody can tell.
    """
    part = seen.content
    if part is None or not seen.header_end < part.size < known.reached:
        return False
    if part.hash(0, known.head_length) != known.head_hash:
        return False
    whole = holder.content if holder else _content_at(known)
    if whole is None or whole.size < known.reached:
        raise FileNotFoundError(known.path)
    return part.tail_hash(part.size) == whole.tail_hash(part.size)


def _content_at(known: FilePartition) -> Content:
    with open_file(known.path) as file:
        if signed(os.fstat(file.fileno()).st_ino) != known.inode:
            raise FileNotFoundError(known.path)
        return content_of(file)


def last_record(seen: OpenedFile, known: FilePartition) -> int | None:
    """Where the last record that was read of a partition ends in another file; None: nowhere."""
    content = seen.content
    if not known.last_length or content is None:
        return None
    return content.find_line(known.last_length, known.last_hash)


def same_time(seen: OpenedFile, known: FilePartition) -> bool:
    """Whether a file has the length and the time of change of a known one: a copy that kept them.

    Archivers keep whole seconds only. Where a file system has no finer clock, it tells nothing.
    """
    if seen.content is None or seen.content.size != known.seen or not known.mtime_ns % 10**9:
        return False
    seconds = known.mtime_ns - known.mtime_ns % 10**9
    return seen.file.mtime_ns in (known.mtime_ns, seconds)


def read_up_to(context: Context, content: Content, end: int) -> Evidence:
    """What recognises a file of which the bytes before `end` are read."""
    length = min(end, HEAD_BYTES)
    header_end = content.head.find(b"\n") + 1 if has_header(context) else 0
    last_length, last_hash = content.last_record(end)
    return {
        "head_length": length,
        "head_hash": xxhash.xxh3_128_hexdigest(content.head[:length]),
        "first_hash": content.first_record(header_end, end),
        "last_length": last_length,
        "last_hash": last_hash,
        "tail_hash": content.tail_hash(end),
    }


def prefixes(head: bytes, lengths: list[int]) -> list[tuple[int, str]]:
    """(length, xxh3_128) of the beginnings of `head` with these lengths, which are ascending."""
    state, at, found = xxhash.xxh3_128(), 0, []
    for length in lengths:
        if length > len(head):
            break
        state.update(head[at:length])
        at = length
        found.append((length, state.hexdigest()))
    return found


def written_since(
    context: Context, path: str, known: FilePartition | None = None
) -> datetime | None:
    """As `Source.written_since`."""
    if context.declared.interval_from != "mtime":
        return None
    began = (known and known.rest_ns) or birth_ns(path)
    return began and datetime.fromtimestamp(began / 1e9, UTC)


def still(path: str, known: FilePartition) -> int | None:
    """The size of the file of a partition at a path; None when another file is there.

    OSError: nobody can tell.
    """
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        birth = birth_ns(file.fileno())
    other_life = None not in (birth, known.birth_ns) and birth != known.birth_ns
    return None if signed(status.st_ino) != known.inode or other_life else status.st_size


_AT_FDCWD, _AT_EMPTY_PATH, _STATX_BTIME, _STATX_BYTES = -100, 0x1000, 0x800, 256
_MASK = struct.Struct("=I")  # struct statx begins with it
_BTIME, _BTIME_AT = struct.Struct("=qI"), 80  # stx_btime: seconds and nanoseconds
_libc = ctypes.CDLL(None, use_errno=True)


def birth_ns(file: int | str) -> int | None:
    """When an open file, or the one at a path, was made, in nanoseconds since 1970. Returns None if
    the file system does not say so, or if there is no file.

    Python's os.stat has no birth time on Linux, so this asks statx(2).
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    place = (file, b"", _AT_EMPTY_PATH)
    if isinstance(file, str):
        place = (_AT_FDCWD, os.fsencode(file), 0)
    if not hasattr(_libc, "statx") or _libc.statx(*place, _STATX_BTIME, buffer):
        return None
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_AT)
    return seconds * 10**9 + nanoseconds
