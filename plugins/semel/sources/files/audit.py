"""Files as the audit reads them again: finding what was claimed, and cutting it into lines.

It shares with stage what a claim of a file says, and nothing of how files are found and read.
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
from semel.sources.files.claimed import ClaimedFile
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
    """Renamed files are looked for where files were claimed, and in the folder."""
    roots = {Path(claim.name).parent for claim in claims}
    with suppress(TerminalError):  # A source that left the data roots is found by its claims.
        roots.add(source.folder())
    return closing(Finder(roots))


class Finder(Auditor):
    """Finds claimed files, also under another name: by what is in them, never by name alone."""

    def __init__(self, roots: set[Path]) -> None:
        """`roots` are the folders in which renamed files are looked for, with all below them."""
        self._roots = roots

    def close(self) -> None:
        """End what was opened to read."""
        if "_parts" in vars(self):
            self._parts.close()

    @cached_property
    def _parts(self) -> ClaimedParts:
        return ClaimedParts(lambda: [path for _, path in self._known])

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

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        if source_format(source.format).sealed:
            return (), self._parts.read(claim, batch, source, record_id)
        found = ClaimedFile.of(claim)
        path = self.find(found)
        if path is None:
            raise SourceError("neither it nor a renamed file has the claimed bytes")
        csv = csv_options(source)
        header = header_of(path, csv) if csv else text_columns(source)
        return header, lines(batch, found, path, csv)

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
    """A file's content: its bytes, or what a gzip file unpacks to."""
    with open(path, "rb") as file:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as content:  # type: ignore
                yield content  # type: ignore
        else:
            yield file


def header_of(path: str, csv: CsvOptions) -> tuple[str, ...]:
    """The names in a CSV file's header, in its order."""
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
    """The records of a claimed range, or of the file from its begin `to_end`, in pieces of some
    AUDIT_CHUNK_BYTES.

    SourceError: a gzip stream is damaged.
    """
    start, end = (0, None) if to_end else (claim.start, claim.end)
    blank = b" \t\r".replace(csv.delimiter.encode(), b"") if csv else b" \t\r"
    with _content(path) as file:
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
                yield ClaimedRecords(
                    batch=batch, claim=claim, data=data, bounds=bounds, positions=bounds[:-1] + at,
                    is_record=kept,
                )  # fmt: skip
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise SourceError(f"{path!r}: its gzip stream is damaged ({error})") from error


def _header_end(data: bytes, csv: CsvOptions) -> int:
    if csv.multiline:
        return record_end(data, 0, csv)
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


def _bounds(data: bytes, skipped: int, multiline: CsvOptions | None) -> np.ndarray:
    if multiline is None:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
        ends = ends[ends > skipped]
        if len(data) > skipped and (not len(ends) or ends[-1] != len(data)):
            ends = np.append(ends, len(data))
        return np.concatenate((np.array([skipped], np.int64), ends.astype(np.int64)))
    found = [skipped]
    while found[-1] < len(data):
        found.append(record_end(data, found[-1], multiline))
    return np.array(found, np.int64)


def _kept(data: bytes, bounds: np.ndarray, blank: bytes) -> np.ndarray:
    """Which records are no blank lines."""
    kept = np.ones(len(bounds) - 1, bool)
    if len(kept):
        first = np.frombuffer(data, np.uint8)[bounds[:-1]]
        for index in np.flatnonzero(np.isin(first, np.frombuffer(blank + b"\n\r", np.uint8))):
            kept[index] = bool(data[bounds[index] : bounds[index + 1]].strip(blank + b"\n"))
    return kept
