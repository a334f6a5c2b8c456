"""Files as the audit reads them again: find the claimed file, and split it into lines.

It shares the form of a file's claim with stage, but no code that finds or reads files.
"""

import gzip
import os
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from semel import limits
from semel.errors import SourceError, TerminalError
from semel.formats.table import source_format
from semel.model.batch import Claim
from semel.sources.files.claims import ClaimedFile
from semel.sources.files.spec import FilesSourceSpec
from semel.sources.reread import (
    Auditor,
    ClaimedRecords,
    csv_options,
    record_end,
    split_fields,
    text_columns,
)
from semel.sources.sealed.audit import ClaimedParts
from semel.sources.spec import CsvOptions, SourceSpec

_BOM = b"\xef\xbb\xbf"


def opened(source: FilesSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:
    """An auditor that searches for renamed files in the claimed folders and in the source's."""
    roots = {Path(claim.name).parent for claim in claims}
    with suppress(TerminalError):  # The source may be outside the data roots: claims suffice.
        roots.add(source.folder())
    return closing(Finder(roots))


class Finder(Auditor):
    """Finds claimed files by their content, even under another name."""

    def __init__(self, roots: set[Path]) -> None:
        """`roots`: the folders to search for renamed files, including all folders below."""
        self._roots = roots

    def close(self) -> None:
        """Close the open parts."""
        if "_parts" in vars(self):
            self._parts.close()

    @cached_property
    def _parts(self) -> ClaimedParts:
        return ClaimedParts(lambda: [path for _, path in self._files_below])

    @cached_property
    def _files_below(self) -> list[tuple[int, str]]:
        folders = {root for root in self._roots if not self._roots & set(root.parents)}
        files = []
        for folder in sorted(folders):
            for parent, _, names in os.walk(folder):
                for name in sorted(names):
                    path = os.path.join(parent, name)
                    if os.path.isfile(path):
                        files.append((os.stat(path).st_ino, path))
        return files

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        if source_format(source.format).sealed:
            return (), self._parts.read(claim, batch, source, record_id)
        claimed = ClaimedFile.of(claim)
        path = self.find(claimed)
        if path is None:
            raise SourceError("neither the file nor a renamed one has the claimed bytes")
        csv = csv_options(source)
        header = header_of(path, csv) if csv else text_columns(source)
        return header, lines(batch, claimed, path, csv)

    def find(self, claim: ClaimedFile) -> str | None:
        """The path of a claimed file. Returns None if no file has the claimed bytes.

        Files with the claimed inode come first, but a restored copy is as good as the original.
        """
        if _has_claimed_bytes(claim.path, claim):
            return claim.path
        inode = claim.inode % (1 << 64)
        others = sorted(self._files_below, key=lambda file: file[0] != inode)
        return next((path for _, path in others if _has_claimed_bytes(path, claim)), None)


def _has_claimed_bytes(path: str, claim: ClaimedFile) -> bool:
    """Whether a file has the head of the claimed one, and its bytes before the claimed end.

    A plain file may have been compressed since the claim, or the other way round.
    """
    try:
        with _content(path) as file:
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
def _content(path: str) -> Iterator[BinaryIO]:
    """A file's content: its bytes, or those that a gzip file unpacks to."""
    with open(path, "rb") as file:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as content:  # type: ignore
                yield content  # type: ignore
        else:
            yield file


def header_of(path: str, csv: CsvOptions) -> tuple[str, ...]:
    """The column names in a CSV file's header, in order."""
    with _content(path) as file:
        head = file.read(limits.CSV_HEADER_BYTES_MAX)
    line = head[: _header_end(head, csv)].removeprefix(_BOM).rstrip(b"\r\n")
    try:
        fields = split_fields(line.decode(), csv)
    except ValueError as error:  # Text that is not UTF-8 raises one too.
        raise SourceError(f"{path!r}: its CSV header cannot be read ({error})") from error
    return tuple(name for name, _ in fields)


def lines(
    batch: int, claim: Claim, path: str, csv: CsvOptions | None, *, to_end: bool = False
) -> Iterator[ClaimedRecords]:
    """The records of a claimed range, or of the whole file if `to_end`, in pieces of about
    AUDIT_CHUNK_BYTES.

    Raises SourceError if a gzip stream is damaged.
    """
    start, end = (0, None) if to_end else (claim.start, claim.end)
    blank = b" \t\r".replace(csv.delimiter.encode(), b"") if csv else b" \t\r"
    with _content(path) as file:
        file.seek(start)
        multiline = csv is not None and csv.multiline
        try:
            for at, data in _pieces(file, start, end, at_once=multiline):
                skipped = 0
                if at == 0 and csv is not None:
                    skipped = _header_end(data, csv)
                elif at == 0 and data.startswith(_BOM):
                    skipped = len(_BOM)
                bounds = _bounds(data, skipped, csv if multiline else None)
                non_blank = _non_blank(data, bounds, blank)
                yield ClaimedRecords(
                    batch=batch, claim=claim, data=data, bounds=bounds, positions=bounds[:-1] + at,
                    is_record=non_blank,
                )  # fmt: skip
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise SourceError(f"{path!r}: its gzip stream is damaged ({error})") from error


def _header_end(data: bytes, csv: CsvOptions) -> int:
    if csv.multiline:
        return record_end(data, 0, csv)
    return data.find(b"\n") + 1 or len(data)


def _pieces(
    file: BinaryIO, start: int, end: int | None, *, at_once: bool
) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of pieces that end at line ends, except the last; `at_once`: one piece."""
    pending: list[bytes] = []
    at = position = start
    while True:
        size = limits.AUDIT_CHUNK_BYTES
        data = file.read(size if end is None else min(size, end - position))
        position += len(data)
        cut = 0 if at_once else data.rfind(b"\n") + 1
        if data and not cut:
            pending.append(data)
            continue
        piece = b"".join((*pending, data[:cut]))
        if piece:
            yield at, piece
            at += len(piece)
        pending = [data[cut:]]
        if not data:
            return


def _bounds(data: bytes, skipped: int, multiline: CsvOptions | None) -> np.ndarray:
    if multiline is None:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
        ends = ends[ends > skipped]
        if len(data) > skipped and (not len(ends) or ends[-1] != len(data)):
            ends = np.append(ends, len(data))
        return np.concatenate((np.array([skipped], np.int64), ends.astype(np.int64)))
    bounds = [skipped]
    while bounds[-1] < len(data):
        bounds.append(record_end(data, bounds[-1], multiline))
    return np.array(bounds, np.int64)


def _non_blank(data: bytes, bounds: np.ndarray, blank: bytes) -> np.ndarray:
    """A mask of the records that are not blank lines."""
    mask = np.ones(len(bounds) - 1, bool)
    if len(mask):
        first = np.frombuffer(data, np.uint8)[bounds[:-1]]
        for index in np.flatnonzero(np.isin(first, np.frombuffer(blank + b"\n\r", np.uint8))):
            mask[index] = bool(data[bounds[index] : bounds[index + 1]].strip(blank + b"\n"))
    return mask
