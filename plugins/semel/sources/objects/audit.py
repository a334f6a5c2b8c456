"""The audit's reader of objects: it fetches the claimed bytes of an object by its etag into a file,
and reads that as the audit reads files.

It shares only the client with stage: it splits bytes into records by its own code.
"""

import errno
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pyarrow as pa

from semel import limits
from semel.clients.objects import Store
from semel.errors import CorruptionError, SourceError
from semel.formats.table import source_format
from semel.model.batch import Claim
from semel.sources.files.audit import header_of, lines
from semel.sources.objects.spec import ObjectsSourceSpec
from semel.sources.reread import (
    Auditor,
    ClaimedRecords,
    RecordsLostError,
    csv_options,
    text_columns,
)
from semel.sources.sealed.audit import ClaimedParts

_CHUNK_BYTES = 8 << 20
_EVIDENCE = {"bytes": int, "etag": str, "content": str}


def opened(source: ObjectsSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """An auditor that fetches each object from the store that its batch declares."""
    return closing(_Objects())


class _Objects(Auditor):
    """Fetches one claim at a time."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self._parts = ClaimedParts(list)

    def close(self) -> None:
        """Close all readers, and delete the fetched files."""
        self._parts.close()
        self._folder.cleanup()

    def read(
        self, claim: Claim, batch: int, source: ObjectsSourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        if {key: type(claim.evidence.get(key)) for key in _EVIDENCE} != _EVIDENCE:
            raise CorruptionError(f"the claim of {claim.name!r} lacks the evidence of an object")
        size = claim.evidence["bytes"]
        if source_format(source.format).sealed:
            path = self._fetch(claim, source, (0, size))
            rows = self._parts.rows(path, claim, batch, source, record_id, size=size)
            return (), _remove_after(path, rows)
        csv, packed = csv_options(source), claim.name.endswith((".gz", ".zst"))
        spans = [(claim.start, claim.end)]
        if csv and claim.start:
            spans.append((0, min(claim.start, limits.CSV_HEADER_BYTES_MAX)))
        path = self._fetch(claim, source, *spans)
        header = header_of(str(path), csv) if csv else text_columns(source)
        return header, _remove_after(path, lines(batch, claim, str(path), csv, to_end=packed))

    def _fetch(self, claim: Claim, source: ObjectsSourceSpec, *spans: tuple[int, int]) -> Path:
        """Fetch ranges of an object into a sparse file, at their own offsets. Decompress zstd."""
        store = Store(source.url, source.connection)
        end = ".gz" if claim.name.endswith(".gz") else ""
        path = Path(self._folder.name, f"object{end}")
        try:
            with open(path, "wb") as file:
                for low, high in spans:
                    file.seek(low)
                    etag = claim.evidence["etag"]
                    for data in store.chunks(claim.name, etag, low, high, _CHUNK_BYTES):
                        file.write(data)
                    if file.tell() != high:
                        raise SourceError(f"{claim.name!r} ends at byte {file.tell()}, not {high}")
        except FileNotFoundError as error:
            if error.errno == errno.ENOENT:
                raise RecordsLostError(f"{claim.name!r} was deleted from {source.url}") from error
            raise SourceError(f"{claim.name!r} was replaced since its batch read it") from error
        return _unpack(path, claim) if claim.name.endswith(".zst") else path


def _unpack(path: Path, claim: Claim) -> Path:
    content = path.with_name("content")
    try:
        with pa.input_stream(str(path), compression="zstd") as packed, open(content, "wb") as file:
            while data := packed.read(_CHUNK_BYTES):
                file.write(data)
    except OSError as error:
        if error.errno is not None:
            raise
        raise SourceError(f"{claim.name!r}: its zstd stream is damaged ({error})") from error
    os.unlink(path)
    return content


def _remove_after(path: Path, pieces: Iterator[ClaimedRecords]) -> Iterator[ClaimedRecords]:
    """Yield the pieces, then delete the file, so that only one object is on disk at a time."""
    try:
        yield from pieces
    finally:
        path.unlink(missing_ok=True)
