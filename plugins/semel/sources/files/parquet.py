"""Files of Parquet as a source: each is a sealed part, and a position the number of a row.

How a file ends tells what it is: its footer is written last, so one without is still being written.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import xxhash

from semel.declare.context import Context
from semel.declare.wording import some_of
from semel.errors import first_line
from semel.model.batch import Claim
from semel.sources import Look, Partition, Refusal
from semel.sources.files import away, probe
from semel.sources.files.content import open_file
from semel.sources.files.listing import ListedFile, file_time, list_files, listed
from semel.sources.sealed import claims
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import Listing, Looked, Part
from semel.sources.sealed.source import SealedSource

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_TAIL_BYTES = 8
"""The length of the footer, and the magic number: what a file ends with."""

_IDENTITY_PARTS = 4

_HASHED_BYTES = 1 << 20


class _Unusable(Exception):
    """A file can never be read as it is. Arguments: reason and detail of its refusal."""


@dataclass(frozen=True, kw_only=True)
class ParquetFiles(SealedSource):
    """`source: {type: files, format: parquet}`."""

    @classmethod
    def of(cls, context: Context) -> Self:
        return cls(context=context)

    def discover(self) -> Listing:
        found = list_files(self.context)
        parts = [_part(file) for file in found.found]
        return Listing(found=parts, refused=found.refused, complete=found.complete)

    def look(self, part: Part) -> Looked:
        with _opened(part) as file:
            try:
                footer = _footer(file, part.length)
                if footer is None:
                    return self._without_end(part, file)
                return self._read(part, file, footer)
            except _Unusable as why:
                return Looked(part=part, length=part.length, refused=refusal(part, *why.args))

    def _without_end(self, part: Part, file: BinaryIO) -> Looked:
        after = self.context.declared.closed_after
        age = time.time() - os.fstat(file.fileno()).st_mtime
        if after is None or age < after.total_seconds():
            return Looked(part=part, length=part.length, unfinished=True)
        what = "it has no footer, and nobody has written to it for source.closed_after"
        raise _Unusable("damaged", f"{what}; replace the file")

    def _read(self, part: Part, file: BinaryIO, footer: bytes) -> Looked:
        """What a footer says. Nobody but its key looks at it as bytes."""
        import pyarrow as pa

        from semel.formats import parquet

        try:
            with parquet.opened(file) as found:
                columns, rows = self.context.columns, parquet.rows_in(found)
                signed = len(footer) - _TAIL_BYTES > found.metadata.serialized_size
                misfits = parquet.misfits(found, columns, self.context.record_id, signed=signed)
                if not misfits and not signed:
                    parquet.check_counts(found, columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            if parquet.is_passing(error):
                raise
            why = f"its footer cannot be read ({first_line(error)}); replace the file"
            raise _Unusable("damaged", why) from error
        refused = None
        if misfits:
            advice = "Replace the file, or correct the pipeline's schema"
            refused = refusal(part, "schema", f"{some_of(misfits)}. {advice}")
        key = xxhash.xxh3_128_hexdigest(footer)
        return Looked(part=part, length=part.length, key=key, rows=rows, refused=refused)

    def digest(self, part: Part) -> str:
        state = xxhash.xxh3_128()
        buffer = memoryview(bytearray(_HASHED_BYTES))
        with _opened(part) as file:
            while size := file.readinto(buffer):
                state.update(buffer[:size])
            _check_same(part, file)
        return state.hexdigest()

    def now(self, name: str) -> Part:
        try:
            return _at(name)
        except FileNotFoundError:
            moved = away.place_of(self.context, name)
            if moved is None:
                raise
            return _at(str(moved))

    def put_away(self, known: Partition) -> bool:
        return away.put_away(self.context, known, lambda path: _at(path).fingerprint)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats import parquet

        part = claims.proven(self, split.claim, batch_id)
        digest.update(split.claim.evidence["content"].encode())
        with open_file(part.name) as file:
            yield from parquet.blocks(
                file,
                length=part.length,
                claimed=(split.claim.start, split.claim.end),
                owned=(split.start, split.end),
                columns=self.context.columns,
                exact=self.context.record_id,
                selection=selection,
            )
            self._check_read(part, file, split.claim, batch_id)

    # Keeps S6.
    def _check_read(self, part: Part, file: BinaryIO, claim: Claim, batch_id: int) -> None:
        """ChangedError when what was read is not the file that was planned."""
        try:
            _check_same(part, file)
        except FileNotFoundError as error:
            raise claims.changed(self, claim, batch_id) from error

    def time_of(self, known: Partition) -> datetime | None:
        parts = known.identity.split(":")
        if len(parts) != _IDENTITY_PARTS:  # It was read as another format, or from elsewhere.
            return None
        when = file_time(self.context, known.name, int(parts[-1]))
        return None if isinstance(when, Refusal) else when

    def probe(self) -> tuple[str, Look]:
        return probe.probe(self.context)


def _part(file: ListedFile) -> Part:
    """A file as a part. What it is known by holds all that changes when it is written again."""
    return Part(
        name=file.path,
        identity=f"{file.device}:{file.inode}:{file.size}:{file.mtime_ns}",
        fingerprint=f"{file.inode}:{file.size}:{file.mtime_ns}:{file.ctime_ns}",
        length=file.size,
        when=file.when,
    )


def _at(path: str) -> Part:
    """The file under a path now, without its time. OSError: there is none."""
    return _part(listed(path, None, os.stat(path)))


@contextmanager
def _opened(part: Part) -> Iterator[BinaryIO]:
    """A part's file. FileNotFoundError: another one is there, or it was written to."""
    with open_file(part.name) as file:
        _check_same(part, file)
        yield file


# Keeps P19.
def _check_same(part: Part, file: BinaryIO) -> None:
    now = _part(listed(part.name, None, os.fstat(file.fileno())))
    if now.fingerprint != part.fingerprint:
        raise FileNotFoundError(part.name)


def _footer(file: BinaryIO, size: int) -> bytes | None:
    """The footer of a file, None where it has none yet. _Unusable: it never gets one."""
    head = os.pread(file.fileno(), len(_MAGIC), 0)
    tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    if _ENCRYPTED in (head, tail[-len(_ENCRYPTED) :]):
        why = "its footer is encrypted, and semel has no keys; take it out of the source"
        raise _Unusable("encrypted", why)
    if not _MAGIC.startswith(head):
        why = "it does not begin as a Parquet file does; take it out of the source"
        raise _Unusable("damaged", why)
    if size < len(_MAGIC) + _TAIL_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
        return None
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    if length > size - len(_MAGIC):
        raise _Unusable("damaged", "its footer is longer than the file; replace the file")
    return os.pread(file.fileno(), length, size - length)
