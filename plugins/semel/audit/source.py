"""The source as files: finding a claimed file again, and cutting its claimed bytes into lines.

What a claim holds is given as Lines, whatever its source is.
"""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from semel import limits
from semel.audit.fields import record_end, split_fields
from semel.errors import SourceError, TerminalError
from semel.model.batch import Claim
from semel.pipeline import Spec
from semel.sources.files.claimed import ClaimedFile
from semel.sources.spec import Csv

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Records of one claim, one after the other: data[bounds[i]:bounds[i + 1]], line ends included.

    `positions` (int64) are their places in the source; `kept` leaves out what is no record, such as
    blank lines. Of what is no line of a file: `bad` names records, by their index, that are no good
    whatever their text says, and why; `doubts` those of which readers may differ, and why;
    `nothing` marks those without any value; `beside` holds the columns that are not of the text, as
    a struct.
    """

    batch: int
    claim: Claim
    data: bytes
    bounds: np.ndarray
    positions: np.ndarray
    kept: np.ndarray
    bad: Mapping[int, str] = field(default_factory=dict)
    doubts: Mapping[int, str] = field(default_factory=dict)
    nothing: np.ndarray | None = None
    beside: pa.StructArray | None = None

    def raw(self, index: int) -> bytes:
        """One record without its line end."""
        record = self.data[self.bounds[index] : self.bounds[index + 1]].removesuffix(b"\n")
        # A CR before the CR makes it no line end.
        return record if record.endswith(b"\r\r") else record.removesuffix(b"\r")

    def text(self, index: int) -> bytes:
        """What is judged of it."""
        return self.raw(index)

    @property
    def bytes_read(self) -> int:
        """What the source holds of them."""
        return len(self.data)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A file that has what was claimed, and the claim."""

    claim: ClaimedFile
    path: str

    def header(self, spec: Spec) -> tuple[str, ...]:
        """The order of the fields of CSV; () for others. SourceError: no header can be read."""
        csv = csv_of(spec)
        return header_of(self.path, csv) if csv else ()

    def lines(self, batch: int, spec: Spec) -> Iterator[Lines]:
        """Its records, in pieces. SourceError: a gzip stream is damaged."""
        return lines(batch, self.claim, self.path, csv_of(spec))


class Finder:
    """Finds claimed files, also under another name: by what is in them, never by name alone."""

    def __init__(self, roots: set[Path]) -> None:
        """`roots` are the folders in which renamed files are looked for, with all below them."""
        self._roots = roots

    @cached_property
    def _known(self) -> list[tuple[int, str]]:
        folders = {root for root in self._roots if not self._roots & set(root.parents)}
        found = []
        for folder in sorted(folders):
            for parent, _, names in os.walk(folder):
                for name in sorted(names):
                    path = os.path.join(parent, name)
                    if os.path.isfile(path):
                        found.append((os.stat(path).st_ino, path))
        return found

    def open(self, claim: Claim) -> Opened:
        """The file of a claim. SourceError: it is nowhere. CorruptionError: it is no file's."""
        found = ClaimedFile.of(claim)
        path = self.find(found)
        if path is None:
            raise SourceError("neither it nor a renamed file has the claimed bytes")
        return Opened(claim=found, path=path)

    def find(self, claim: ClaimedFile) -> str | None:
        """The path of the file that a claim was made on, or None.

        Inodes only say where to look first: a restored copy is as good as the file itself.
        """
        if _holds(claim.path, claim):
            return claim.path
        inode = claim.inode % (1 << 64)
        others = sorted(self._known, key=lambda known: known[0] != inode)
        return next((path for _, path in others if _holds(path, claim)), None)


def _holds(path: str, claim: ClaimedFile) -> bool:
    """Whether a file has the head of the claimed one, and its bytes before the claimed end.

    What was claimed of a plain file may be in a packed one since, and the other way round.
    """
    try:
        with _content(path, claim) as file:
            head = file.read(claim.head_length)
            if xxhash.xxh3_128_hexdigest(head) != claim.head_hash:
                return False
            start = max(0, claim.end - limits.TAIL_BYTES)
            file.seek(start)
            tail = file.read(claim.end - start)
            return (
                len(tail) == claim.end - start
                and xxhash.xxh3_128_hexdigest(tail) == claim.tail_hash
            )
    except (OSError, EOFError, zlib.error):
        return False


@contextmanager
def _content(path: str, claim: ClaimedFile) -> Iterator[BinaryIO]:
    """The bytes that a claim's positions count."""
    with open(path, "rb") as file:
        if path.endswith(".gz") and not claim.packed:
            with gzip.GzipFile(fileobj=file) as content:
                yield content  # type: ignore
        else:
            yield file


def csv_of(spec: Spec) -> Csv | None:
    """How a batch's CSV is written; None: it is JSON, or bytes as they are.

    TerminalError: the audit reads none of the format by itself, and proves nothing.
    """
    match spec.source.format:
        case "jsonl" | "bytes":
            return None
        case "csv":
            return spec.source.csv
        case other:
            raise TerminalError(
                f"source.format {other!r} has no reader in the audit, which shares none with "
                "semel's stage; audit with the semel that read it"
            )


def header_of(path: str, csv: Csv) -> tuple[str, ...]:
    """The names in a CSV file's header, in its order."""
    with _open(path, os.stat(path).st_size) as file:
        head = file.read(limits.CSV_HEADER_BYTES_MAX)
    line = head[: _header_end(head, csv)].removeprefix(_BOM).rstrip(b"\r\n")
    try:
        fields = split_fields(line.decode(), csv.delimiter, csv.quote)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path!r}: its CSV header is not UTF-8") from error
    if fields is None:
        raise SourceError(f"{path!r}: a quote in its CSV header does not end")
    return tuple(name for name, _ in fields)


def lines(batch: int, claim: ClaimedFile, path: str, csv: Csv | None) -> Iterator[Lines]:
    """The records of a claimed range, in pieces of some AUDIT_CHUNK_BYTES.

    SourceError: a gzip stream is damaged.
    """
    blank = b" \t\r".replace(csv.delimiter.encode(), b"") if csv else b" \t\r"
    opened = _open(path, claim.end) if claim.packed else _content(path, claim)
    with opened as file:
        start, end = (0, None) if claim.packed else (claim.start, claim.end)
        file.seek(start)
        whole = csv is not None and csv.multiline
        try:
            for at, data in _pieces(file, start, end, whole=whole):
                skipped = 0
                if at == 0 and csv is not None:
                    skipped = _header_end(data, csv)
                elif at == 0 and data.startswith(_BOM):
                    skipped = len(_BOM)
                bounds = _bounds(data, skipped, csv if whole else None)
                kept = _kept(data, bounds, blank)
                yield Lines(
                    batch=batch, claim=claim, data=data, bounds=bounds, positions=bounds[:-1] + at,
                    kept=kept,
                )  # fmt: skip
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise SourceError(f"{path!r}: its gzip stream is damaged ({error})") from error


@contextmanager
def _open(path: str, end: int) -> Iterator[BinaryIO]:
    """A file's content; of a gzip file that of its first `end` bytes, which are what is claimed."""
    with open(path, "rb") as file:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=_Claimed(file, end)) as content:  # type: ignore
                yield content  # type: ignore
        else:
            yield file


class _Claimed:
    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._left = file, end

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _header_end(data: bytes, csv: Csv) -> int:
    start = len(_BOM) if data.startswith(_BOM) else 0
    if csv.multiline:
        return record_end(data, start, csv.delimiter.encode(), csv.quote.encode())
    return data.find(b"\n") + 1 or len(data)


def _pieces(
    file: BinaryIO, start: int, end: int | None, *, whole: bool
) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of pieces that end at line ends, but for the last; all at once if `whole`."""
    held: list[bytes] = []
    at = position = start
    while True:
        size = limits.AUDIT_CHUNK_BYTES
        data = file.read(size if end is None else min(size, end - position))
        position += len(data)
        cut = 0 if whole else data.rfind(b"\n") + 1
        if data and not cut:
            held.append(data)
            continue
        piece = b"".join((*held, data[:cut]))
        if piece:
            yield at, piece
            at += len(piece)
        held = [data[cut:]]
        if not data:
            return


def _bounds(data: bytes, skipped: int, multiline: Csv | None) -> np.ndarray:
    if multiline is None:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
        ends = ends[ends > skipped]
        if len(data) > skipped and (not len(ends) or ends[-1] != len(data)):
            ends = np.append(ends, len(data))
        return np.concatenate((np.array([skipped], np.int64), ends.astype(np.int64)))
    delimiter, quote = multiline.delimiter.encode(), multiline.quote.encode()
    found = [skipped]
    while found[-1] < len(data):
        found.append(record_end(data, found[-1], delimiter, quote))
    return np.array(found, np.int64)


def _kept(data: bytes, bounds: np.ndarray, blank: bytes) -> np.ndarray:
    """Which records are no blank lines."""
    kept = np.ones(len(bounds) - 1, bool)
    if len(kept):
        first = np.frombuffer(data, np.uint8)[bounds[:-1]]
        for index in np.flatnonzero(np.isin(first, np.frombuffer(blank + b"\n\r", np.uint8))):
            kept[index] = bool(data[bounds[index] : bounds[index + 1]].strip(blank + b"\n"))
    return kept
