"""Open the files that a batch has claimed, even if they were moved since the plan."""

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
from semel.sources.files.evidence import FileReference
from semel.sources.files.listing import identity, inodes_below, signed
from semel.sources.files.rotation import is_rotation

LINES_NUMBERED_BYTES_MAX = 256 << 20
"""Bytes before a record in which line ends are counted for its line number: 0.1 s of work, or a
second in a compressed file. Later records show only their byte."""

COUNTED_BYTES = 256 << 10
"""Buffer size for counting line ends: it fits in a core's cache."""

STREAM_COUNTED_BYTES_MAX = 2 << 30
"""Unpacked bytes in which line ends are counted: some six seconds of work."""

_LINE_END = 10
_EVIDENCE = {"head_length": int, "head_hash": str, "tail_hash": str}
_IDENTITY = re.compile(r"-?\d+:-?\d+")


class ClaimedFile(FileReference, Claim):
    """A claim of a file's content: its bytes, or those that a gzip file unpacks to."""

    @classmethod
    def of(cls, other: Claim) -> Self:
        """Convert a claim. Raises CorruptionError if its evidence does not describe a file."""
        types = {key: type(other.evidence.get(key)) for key in _EVIDENCE}
        if types != _EVIDENCE or not _IDENTITY.fullmatch(other.identity):
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
        """The hash of the last bytes before its end."""
        return self.evidence["tail_hash"]


# Keeps S6.
def check_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> None:
    """Prove that each claimed range still lies in the file that was planned.

    Called by the driver before and after the job. Raises SourceError with the file and the change.
    """
    for claim in map(ClaimedFile.of, claims):
        if trouble := _claim_error(claim, root, batch_id):
            raise trouble


# Keeps S6.
def find_claims(claims: Iterable[Claim], root: Path, batch_id: int) -> list[ClaimedFile]:
    """Prove the claims, and return them with their current files. Log rotation may have compressed
    a file since the plan, or copied and truncated it. Raises SourceError if a file is nowhere.

    semel compares files under the names of log rotation with the claim. Positions stay valid, as
    they count unpacked bytes.
    """
    proven, below = [], None
    for claim in map(ClaimedFile.of, claims):
        if trouble := _claim_error(claim, root, batch_id):
            below = below if below is not None else [path for _, path in inodes_below(root)]
            names = (path for path in below if is_rotation(claim.path, path))
            moved = next((c for path in names if (c := _claim_in(claim, path))), None)
            if moved is None:
                raise trouble
            claim = moved
        proven.append(claim)
    return proven


def _claim_error(claim: ClaimedFile, root: Path, batch_id: int) -> SourceError | None:
    """The error of a claimed range that is no longer in its file. None if it still is."""
    try:
        with open_claim(claim, root, batch_id) as handle:
            try:
                trouble = _difference(handle, claim)
            except OSError as error:
                trouble = f"it was moved or cannot be read ({error.strerror})"
    except SourceError as error:
        return error
    return changed_error(batch_id, claim, trouble) if trouble else None


def _difference(handle: BinaryIO, claim: ClaimedFile) -> str | None:
    """How an open file's content differs from the claim. Raises SourceError if it is damaged."""
    content = content_of(handle)
    if content.size < claim.end:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, claim.head_length) != claim.head_hash:
        return f"its first {claim.head_length} bytes changed"
    if content.tail_hash(claim.end) != claim.tail_hash:
        return f"its bytes before {claim.end} changed"
    return None


def _claim_in(claim: ClaimedFile, path: str) -> ClaimedFile | None:
    """The claim in another file. Returns None if that file does not hold the claimed content."""
    try:
        with open_file(path) as handle:
            if _difference(handle, claim):
                return None
            status = os.fstat(handle.fileno())
    except (OSError, SourceError):
        return None
    file_identity = identity(signed(status.st_dev), signed(status.st_ino))
    return replace(claim, name=path, identity=file_identity)


def open_claim(claim: ClaimedFile, root: Path, batch_id: int) -> BinaryIO:
    """Open a claimed file for reading. Raises SourceError if it is not the planned file.

    The planned file has the planned inode, under its path or, after log rotation, elsewhere below
    `root`. Its device number may change with a reboot.
    """
    others = (path for inode, path in inodes_below(root) if inode == claim.inode)
    trouble, unreadable = "", ""
    for path in itertools.chain([claim.path], others):
        try:
            handle = open_file(path)
        except OSError as error:
            unreadable = unreadable or f"it cannot be read ({error.strerror})"
            continue
        status = os.fstat(handle.fileno())
        if signed(status.st_ino) == claim.inode:
            if is_gzip(path) or status.st_size >= claim.end:
                return handle
            trouble = f"it shrank to {status.st_size} bytes"
        handle.close()
        trouble = trouble or "another file took its place"
    if unreadable and not trouble:
        raise SourceError(_changed_text(batch_id, claim, unreadable), next=AGAIN)
    raise changed_error(batch_id, claim, trouble)


def changed_error(batch_id: int, claim: ClaimedFile, what: str) -> ChangedError:
    return ChangedError(_changed_text(batch_id, claim, what))


def _changed_text(batch_id: int, claim: ClaimedFile, what: str) -> str:
    return (
        f"{claim.path!r} (partition {claim.source_partition_id}) is no longer what batch "
        f"{batch_id} planned: {what}; bytes {claim.start} to {claim.end} of it are claimed. "
        f"Put the file back. {GIVE_UP} instead (`semel abandon {batch_id}`): the next run reads "
        "what is there then"
    )


@contextmanager
def claimed_bytes(claim: ClaimedFile, root: Path, batch_id: int) -> Iterator[BinaryIO]:
    """The bytes that a claim's positions count: those of the file, or the unpacked ones."""
    with open_claim(claim, root, batch_id) as raw:
        if not is_gzip(raw.name):
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:  # type: ignore[arg-type]
            yield unpacked  # type: ignore[misc]


def line_ends(claim: ClaimedFile, start: int, end: int, root: Path, batch_id: int) -> int | None:
    """The count of line ends in the bytes [start, end). Returns None if a compressed range is too
    long, or if the file is shorter or damaged.
    """
    remaining = end - start
    if is_gzip(claim.path) and remaining > STREAM_COUNTED_BYTES_MAX:
        return None
    buffer = memoryview(bytearray(COUNTED_BYTES))
    ends = 0
    try:
        with claimed_bytes(claim, root, batch_id) as file:
            file.seek(start)
            while remaining and (size := file.readinto(buffer[: min(remaining, len(buffer))])):
                ends += int(np.count_nonzero(np.frombuffer(buffer, np.uint8, size) == _LINE_END))
                remaining -= size
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None  # The job reports the damage.
    return None if remaining else ends


def lines_of(
    claim: ClaimedFile, positions: Sequence[int], root: Path, batch_id: int
) -> list[int | None]:
    """The line numbers, from 1, at ascending positions. None if the claim's content is gone, or if
    too many bytes precede the position.
    """
    numbers: list[int | None] = []
    with suppress(OSError, SourceError, EOFError, zlib.error):
        # A check of a compressed file would unpack it a second time.
        if is_gzip(claim.path) or not _claim_error(claim, root, batch_id):
            with claimed_bytes(claim, root, batch_id) as file:
                numbers.extend(_line_numbers(file, positions))
    return [*numbers, *[None] * (len(positions) - len(numbers))]


def _line_numbers(file: BinaryIO, positions: Sequence[int]) -> Iterator[int]:
    """The line number of each position, up to the first one with too many bytes before it."""
    buffer = memoryview(bytearray(COUNTED_BYTES))
    at = ends = 0
    for position in positions:
        if position > LINES_NUMBERED_BYTES_MAX:
            return
        while remaining := position - at:
            size = file.readinto(buffer[: min(remaining, len(buffer))])
            if not size:
                return
            ends += int(np.count_nonzero(np.frombuffer(buffer, np.uint8, size) == _LINE_END))
            at += size
        yield ends + 1
