"""The evidence that a file is the one of a partition.

It is the device, inode and time of birth; hashes of the beginning, the first and last record and
the end of the bytes that were read; and, for a copy, its time and the names that tools give.
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
from semel.sources.files.listing import ListedFile, restat, signed
from semel.sources.files.recognise import Match
from semel.sources.files.rotation import is_rotation

EVIDENCE_BYTES = 4_096
"""Bytes after a CSV header that must agree, for content alone to prove that a file is a copy."""


def _number(text: str) -> int:
    """A part of an identity. Returns 0, which no file has, if another kind or format wrote it."""
    return int(text) if text.removeprefix("-").isdecimal() else 0


class FileReference:
    """The attributes that a partition and a claim of a file share."""

    name: str
    identity: str
    evidence: Evidence

    @property
    def path(self) -> str:
        return self.name

    @property
    def inode(self) -> int:
        return _number(self.identity.partition(":")[2])


class FilePartition(FileReference, Partition):
    """A generation of a file: the evidence of what was read, and the file's state in the last plan."""

    @property
    def device(self) -> int:
        return _number(self.identity.partition(":")[0])

    @property
    def mtime_ns(self) -> int:
        """0 if unknown."""
        return int(self.fingerprint.split(":")[1]) if self.fingerprint else 0

    @property
    def birth_ns(self) -> int | None:
        return self.evidence.get("birth_ns")

    @property
    def unread_since_ns(self) -> int | None:
        """The time of the last write that was read completely: unread bytes are later. Returns None
        if nothing was read, or if claims were released since.
        """
        if self.reached == self.seen > 0:  # The last plan saw this mtime, and nothing unread.
            return self.mtime_ns
        end, mtime_ns = self.evidence.get("rest", (0, None))
        return mtime_ns if end == self.reached else None

    @property
    def head_length(self) -> int:
        return self._evidence_of_read("head_length", 0)

    @property
    def head_hash(self) -> str:
        return self._evidence_of_read("head_hash", "")

    @property
    def first_hash(self) -> str:
        return self._evidence_of_read("first_hash", "")

    @property
    def tail_hash(self) -> str:
        return self._evidence_of_read("tail_hash", "")

    @property
    def last_length(self) -> int:
        return self._evidence_of_read("last_length", 0)

    @property
    def last_hash(self) -> str:
        return self._evidence_of_read("last_hash", "")

    def _evidence_of_read(self, key: str, nothing: Any) -> Any:
        """Evidence of the read bytes; `nothing` if none are read, as after claims are released."""
        return self.evidence.get(key, nothing) if self.reached else nothing


@dataclass(frozen=True, kw_only=True)
class OpenedFile:
    """A file that was opened. `trouble`: why its content cannot be read; `unfinished`: not yet."""

    file: ListedFile
    birth_ns: int | None
    content: Content | None
    trouble: str = ""
    unfinished: bool = False
    header_end: int = 0

    def begins_with(self, partition: FilePartition) -> bool:
        """Whether it begins with all that was read of a partition."""
        content = self.content
        if content is None or not partition.reached:
            return content is not None
        return (
            content.size >= max(partition.reached, partition.head_length)
            and content.hash(0, partition.head_length) == partition.head_hash
            and content.tail_hash(partition.reached) == partition.tail_hash
        )

    def first_hashes(self) -> set[str]:
        """Each `first_hash` of a partition that the file may continue.

        They are of its first line, with and without the newline: the partition's file may have
        ended before it. "" stands for a partition that read only a header.
        """
        if self.content is None:
            return set()
        line = self.content.first_line(self.header_end, self.content.size)
        lines = {line, line.removesuffix(b"\n")} - {b""}
        return {"", *map(xxhash.xxh3_128_hexdigest, lines)}

    def beginnings(self, lengths: Iterable[int]) -> list[tuple[int, str]]:
        """(length, xxh3_128) of the beginnings of its content with these lengths."""
        return [] if self.content is None else prefixes(self.content.head, sorted(lengths))

    def has_same_birth(self, partition: FilePartition) -> bool | None:
        """Whether both have one time of birth. Returns None if the file system lacks that time."""
        if None in (self.birth_ns, partition.birth_ns):
            return None
        return self.birth_ns == partition.birth_ns


# Keeps P19.
def open_listed(context: Context, file: ListedFile) -> OpenedFile:
    """Open a listed file. Raises FileNotFoundError if it was deleted or replaced."""
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
            file=restat(file, status),
            birth_ns=birth_ns(handle.fileno()),
            content=content,
            trouble=trouble,
            unfinished=unfinished,
            header_end=header_end,
        )


def likeness(
    opened: OpenedFile, partition: FilePartition, *, free: bool, is_refused_copy: bool = False
) -> Match:
    """How surely a file is a partition's file under another name, or its copy.

    Bytes of a CSV header are no evidence. `free`: no file holds the partition. A partition without
    read bytes matches only by path. `is_refused_copy`: a plan has refused the file as a copy, so an
    equal time proves nothing more.
    """
    if not partition.reached:
        return Match.STRONG if free and partition.path == opened.file.path else Match.NONE
    beyond = partition.reached - opened.header_end
    if beyond <= 0 or not opened.begins_with(partition):
        return Match.NONE
    same_inode = partition.inode == opened.file.inode
    sure = (
        beyond >= EVIDENCE_BYTES
        or (has_same_time(opened, partition) and not is_refused_copy)
        or is_rotation(partition.path, opened.file.path)
        or (free and same_inode and bool(opened.has_same_birth(partition)))
    )
    if free:
        return Match.STRONG if sure else Match.WEAK
    return Match.LIVING if sure or partition.path == opened.file.path else Match.NONE


# Keeps P17.
def is_part(opened: OpenedFile, partition: FilePartition, holder: OpenedFile | None) -> bool:
    """Whether a file has only the beginning of what was read of a partition, 4 KiB or more: a copy
    in progress.

    `holder`: the partition's file, if it is open already. Raises FileNotFoundError if that file was
    moved or truncated meanwhile.
    """
    part = opened.content
    if part is None or not opened.header_end < part.size < partition.reached:
        return False
    if part.hash(0, partition.head_length) != partition.head_hash:
        return False
    original = holder.content if holder else _content_at(partition)
    if original is None or original.size < partition.reached:
        raise FileNotFoundError(partition.path)
    return part.tail_hash(part.size) == original.tail_hash(part.size)


def _content_at(partition: FilePartition) -> Content:
    with open_file(partition.path) as file:
        if signed(os.fstat(file.fileno()).st_ino) != partition.inode:
            raise FileNotFoundError(partition.path)
        return content_of(file)


def last_record(opened: OpenedFile, partition: FilePartition) -> int | None:
    """The end, in another file, of the last record read of a partition. None if it is not there."""
    content = opened.content
    if not partition.last_length or content is None:
        return None
    return content.find_line(partition.last_length, partition.last_hash)


def has_same_time(opened: OpenedFile, partition: FilePartition) -> bool:
    """Whether a file has the length and mtime of a partition's file, as some copies do.

    Archivers keep whole seconds only. An original mtime in whole seconds is no evidence.
    """
    if opened.content is None or opened.content.size != partition.seen:
        return False
    if not partition.mtime_ns % 10**9:
        return False
    seconds = partition.mtime_ns - partition.mtime_ns % 10**9
    return opened.file.mtime_ns in (partition.mtime_ns, seconds)


def evidence_at(context: Context, content: Content, end: int) -> Evidence:
    """The evidence that recognises a file once its bytes before `end` are read."""
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
    """(length, xxh3_128) of the beginnings of `head` with these ascending lengths."""
    state, at, hashes = xxhash.xxh3_128(), 0, []
    for length in lengths:
        if length > len(head):
            break
        state.update(head[at:length])
        at = length
        hashes.append((length, state.hexdigest()))
    return hashes


def unread_since(
    context: Context, path: str, partition: FilePartition | None = None
) -> datetime | None:
    """As `Source.unread_since`."""
    if context.declared.interval_from != "mtime":
        return None
    began = (partition and partition.unread_since_ns) or birth_ns(path)
    return began and datetime.fromtimestamp(began / 1e9, UTC)


def size_if_same(path: str, partition: FilePartition) -> int | None:
    """The size of the file at a path. Returns None if it is not the partition's file.

    Raises OSError if the file cannot be opened.
    """
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        birth = birth_ns(file.fileno())
    is_reused = None not in (birth, partition.birth_ns) and birth != partition.birth_ns
    return None if signed(status.st_ino) != partition.inode or is_reused else status.st_size


_AT_FDCWD, _AT_EMPTY_PATH, _STATX_BTIME, _STATX_BYTES = -100, 0x1000, 0x800, 256
_MASK = struct.Struct("=I")  # struct statx begins with it
_BTIME, _BTIME_AT = struct.Struct("=qI"), 80  # stx_btime: seconds and nanoseconds
_libc = ctypes.CDLL(None, use_errno=True)


def birth_ns(file: int | str) -> int | None:
    """The birth time of an open file, or of the one at a path, in nanoseconds since 1970. Returns
    None if the file system does not record it, or if there is no file.

    Python's os.stat lacks the birth time on Linux, so this calls statx(2).
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
