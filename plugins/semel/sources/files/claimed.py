"""Opening what a batch has claimed of files: the file that was planned, wherever it is now."""

import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from semel.errors import AGAIN, ChangedError, CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources import GIVE_UP
from semel.sources.files.content import content_of, is_gzip, open_file
from semel.sources.files.evidence import OfFile
from semel.sources.files.listing import identity, inodes_below, signed
from semel.sources.files.rotation import is_rotation

LINES_NUMBERED_BYTES_MAX = 256 << 20
"""Bytes before a record in which line ends are counted to tell its line's number: 0.1 s, of a
compressed file a second. Behind that, its byte alone is told."""

COUNTED_BYTES = 256 << 10
"""Bytes in which line ends are counted at once: they fit in a core's cache."""

STREAM_COUNTED_BYTES_MAX = 2 << 30
"""Bytes of a compressed file's content in which line ends are counted: some six seconds' work."""

_LINE_END = 10
_EVIDENCE = {"head_length": int, "head_hash": str, "tail_hash": str}
_IDENTITY = re.compile(r"-?\d+:-?\d+")


class ClaimedFile(OfFile, Claim):
    """A claim of a file's content: its bytes, or what a gzip file unpacks to."""

    @classmethod
    def of(cls, other: Claim) -> Self:
        """The same. CorruptionError: its evidence is not that of a file."""
        found = {key: type(other.evidence.get(key)) for key in _EVIDENCE}
        if found != _EVIDENCE or not _IDENTITY.fullmatch(other.identity):
            raise CorruptionError(
                f"the claim of {other.name!r}, bytes {other.start} to {other.end}, has no evidence "
                f"of a file ({other.identity!r}, {other.evidence}); restore its marker"
            )
        return super().of(other)

    @property
    def head_length(self) -> int:
        return self.evidence["head_length"]

    @property
    def head_hash(self) -> str:
        return self.evidence["head_hash"]

    @property
    def tail_hash(self) -> str:
        """Of the bytes before its end."""
        return self.evidence["tail_hash"]


# Keeps S6.
def check_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> None:
    """Prove that each claimed range still lies in the file that was planned.

    Called by the driver before and after the job. SourceError names the file and what changed.
    """
    for claim in map(ClaimedFile.of, claims):
        if trouble := _trouble(claim, root, batch_id):
            raise trouble


# Keeps S6.
def find_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> list[ClaimedFile]:
    """The same claims, proven; one whose file was packed, or copied and cut, since it was planned,
    in the file that has its content now. SourceError names a file that is nowhere.

    A rotation has names of its own: these are looked at, and what is in them is held against the
    claim. The positions are the same, for they count what is packed.
    """
    found, below = [], None
    for claim in map(ClaimedFile.of, claims):
        if trouble := _trouble(claim, root, batch_id):
            below = below if below is not None else [path for _, path in inodes_below(root)]
            names = (path for path in below if is_rotation(claim.path, path))
            other = next((c for path in names if (c := _in(claim, path))), None)
            if other is None:
                raise trouble
            claim = other
        found.append(claim)
    return found


def _trouble(claim: ClaimedFile, root: Path, batch_id: int) -> SourceError | None:
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


def _differs(handle: BinaryIO, claim: ClaimedFile) -> str | None:
    """What tells the content of an open file from the claimed one. SourceError: it is damaged."""
    content = content_of(handle)
    if content.size < claim.end:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, claim.head_length) != claim.head_hash:
        return f"its first {claim.head_length} bytes changed"
    if content.tail_hash(claim.end) != claim.tail_hash:
        return f"its bytes before {claim.end} changed"
    return None


def _in(claim: ClaimedFile, path: str) -> ClaimedFile | None:
    """A claim in another file, if that holds its content."""
    try:
        with open_file(path) as handle:
            if _differs(handle, claim):
                return None
            status = os.fstat(handle.fileno())
    except (OSError, SourceError):
        return None
    here = identity(signed(status.st_dev), signed(status.st_ino))
    return replace(claim, name=path, identity=here)


def open_claim(claim: ClaimedFile, root: Path, batch_id: int) -> BinaryIO:
    """Open a claimed file for reading; SourceError when it is not the file that was planned.

    It is the file with the planned inode: under its path, or where a rotation moved it since, below
    `root`. The number of its device may change with a reboot.
    """
    others = (path for inode, path in inodes_below(root) if inode == claim.inode)
    trouble, away = "", ""
    for path in itertools.chain([claim.path], others):
        try:
            handle = open_file(path)
        except OSError as error:
            away = away or f"it cannot be read ({error.strerror})"
            continue
        status = os.fstat(handle.fileno())
        if signed(status.st_ino) == claim.inode:
            if is_gzip(path) or status.st_size >= claim.end:
                return handle
            trouble = f"it shrank to {status.st_size} bytes"
        handle.close()
        trouble = trouble or "another file took its place"
    if away and not trouble:
        raise SourceError(_no_longer(batch_id, claim, away), next=AGAIN)
    raise changed(batch_id, claim, trouble)


def changed(batch_id: int, claim: ClaimedFile, what: str) -> ChangedError:
    return ChangedError(_no_longer(batch_id, claim, what))


def _no_longer(batch_id: int, claim: ClaimedFile, what: str) -> str:
    return (
        f"{claim.path!r} (partition {claim.source_partition_id}) is no longer what batch "
        f"{batch_id} planned: {what}; bytes {claim.start} to {claim.end} of it are claimed. "
        f"Put the file back. {GIVE_UP} instead (`semel abandon {batch_id}`): the next run reads "
        "what is there then"
    )


@contextmanager
def claimed_bytes(claim: ClaimedFile, root: Path, batch_id: int) -> Iterator[BinaryIO]:
    """The bytes that a claim's positions count: those of the file, or what it unpacks to."""
    with open_claim(claim, root, batch_id) as raw:
        if not is_gzip(raw.name):
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:  # type: ignore[arg-type]
            yield unpacked  # type: ignore[misc]


def line_ends(claim: ClaimedFile, start: int, end: int, root: Path, batch_id: int) -> int | None:
    """How many line ends are in the bytes [start, end). None: too long a stream, or it was cut."""
    left = end - start
    if is_gzip(claim.path) and left > STREAM_COUNTED_BYTES_MAX:
        return None
    buffer = memoryview(bytearray(COUNTED_BYTES))
    found = 0
    try:
        with claimed_bytes(claim, root, batch_id) as file:
            file.seek(start)
            while left and (size := file.readinto(buffer[: min(left, len(buffer))])):
                found += int(np.count_nonzero(np.frombuffer(buffer, np.uint8, size) == _LINE_END))
                left -= size
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None  # The job says what is wrong with it.
    return None if left else found


def lines_of(
    claim: ClaimedFile, positions: Sequence[int], root: Path, batch_id: int
) -> list[int | None]:
    """The numbers, from 1 on, of the lines that ascending positions are in. None: the claim's
    content is not there any more, or too much lies before.
    """
    known: list[int | None] = []
    with suppress(OSError, SourceError, EOFError, zlib.error):
        # A packed file is not unpacked twice for this.
        if is_gzip(claim.path) or not _trouble(claim, root, batch_id):
            with claimed_bytes(claim, root, batch_id) as file:
                known.extend(_line_numbers(file, positions))
    return [*known, *[None] * (len(positions) - len(known))]


def _line_numbers(file: BinaryIO, positions: Sequence[int]) -> Iterator[int]:
    """For each position, one more than the line ends before it; ends where that takes too long."""
    buffer = memoryview(bytearray(COUNTED_BYTES))
    at = ends = 0
    for position in positions:
        if position > LINES_NUMBERED_BYTES_MAX:
            return
        while left := position - at:
            size = file.readinto(buffer[: min(left, len(buffer))])
            if not size:
                return
            ends += int(np.count_nonzero(np.frombuffer(buffer, np.uint8, size) == _LINE_END))
            at += size
        yield ends + 1
