"""Files of Parquet as a source: each is a sealed part, and a position the number of a row.

How a file ends tells what it is: its footer is written last, so one without is still being written.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from semel.declare.context import Context
from semel.model.batch import Claim
from semel.sources import SourceItem, ExecutorCheck, Partition, Refusal
from semel.sources.files import away, probe
from semel.sources.files.content import open_file
from semel.sources.files.evidence import written_since
from semel.sources.files.listing import ListedFile, file_time, inodes_below, list_files, listed
from semel.sources.sealed import claims, parquet
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartListing, Looked, SealedPart
from semel.sources.sealed.source import SealedSource
from semel.storage import checksum_of

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

_IDENTITY_PARTS = 4


@dataclass(frozen=True, kw_only=True)
class ParquetFiles(SealedSource):
    """`source: {type: files, format: parquet}`."""

    @classmethod
    def of(cls, context: Context) -> Self:
        return cls(context=context)

    def discover(self) -> PartListing:
        found = list_files(self.context)
        parts = [_part(file) for file in found.items]
        told = {"notes": found.notes, "private": found.private, "complete": found.complete}
        return PartListing(items=parts, refusals=found.refusals, **told)

    def unread_since(
        self, found: SourceItem, known: Partition | None  # noqa: ARG002 - a part is read at once
    ) -> datetime | None:
        return written_since(self.context, found.name)

    def look(self, part: SealedPart) -> Looked:
        with _opened(part) as file:

            def at(start: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, start)

            try:
                looked = parquet.looked(self.context, part, file, at)
                return self._without_end(part, file) if looked is None else looked
            except parquet.UnreadablePartError as why:
                return Looked(part=part, length=part.length, refused=refusal(part, *why.args))

    def _without_end(self, part: SealedPart, file: BinaryIO) -> Looked:
        after = self.context.declared.closed_after
        age = time.time() - os.fstat(file.fileno()).st_mtime
        if after is None or age < after.total_seconds():
            return Looked(part=part, length=part.length, unfinished=True)
        what = "it has no footer, and nobody has written to it for source.closed_after"
        raise parquet.UnreadablePartError("damaged", f"{what}; replace the file")

    def digest(self, part: SealedPart) -> str:
        with _opened(part) as file:
            content = checksum_of(file)
            _check_same(part, file)
        return content

    def now(self, name: str) -> SealedPart:
        try:
            return _at(name)
        except FileNotFoundError:
            moved = away.place_of(self.context, name)
            if moved is None:
                raise
            return _at(str(moved))

    def below(self) -> list[SealedPart]:
        found = []
        for _, path in inodes_below(self.context.declared.folder()):
            with suppress(OSError, UnicodeEncodeError):
                found.append(_at(path))
        return found

    def is_put_away(self, known: Partition) -> bool:
        moved = away.place_of(self.context, known.name)
        with suppress(OSError):
            return moved is not None and _at(str(moved)).identity == known.identity
        return False

    def archive_part(self, known: Partition) -> bool:
        return away.put_away(self.context, known, lambda path: _at(path).fingerprint)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats.parquet import blocks

        part = claims.proven(self, split.claim, batch_id)
        digest.update(split.claim.evidence["content"].encode())
        with open_file(part.name) as file:
            yield from blocks(
                file,
                length=part.length,
                claimed=(split.claim.start, split.claim.end),
                owned=(split.start, split.end),
                columns=self.context.columns,
                exact=self.context.record_id,
                selection=selection,
                naming=self.context.naming,
            )
            self._check_read(part, file, split.claim, batch_id)

    # Keeps S6.
    def _check_read(self, part: SealedPart, file: BinaryIO, claim: Claim, batch_id: int) -> None:
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

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context)


def _part(file: ListedFile) -> SealedPart:
    """A file as a part. What it is known by holds all that changes when it is written again."""
    return SealedPart(
        name=file.path,
        identity=f"{file.device}:{file.inode}:{file.size}:{file.mtime_ns}",
        fingerprint=f"{file.inode}:{file.size}:{file.mtime_ns}:{file.ctime_ns}",
        length=file.size,
        when=file.when,
    )


def _at(path: str) -> SealedPart:
    """The file under a path now, without its time. OSError: there is none."""
    return _part(listed(path, None, os.stat(path)))


@contextmanager
def _opened(part: SealedPart) -> Iterator[BinaryIO]:
    """A part's file. FileNotFoundError: another one is there, or it was written to."""
    with open_file(part.name) as file:
        _check_same(part, file)
        yield file


# Keeps P19.
def _check_same(part: SealedPart, file: BinaryIO) -> None:
    now = _part(listed(part.name, None, os.fstat(file.fileno())))
    if now.fingerprint != part.fingerprint:
        raise FileNotFoundError(part.name)
