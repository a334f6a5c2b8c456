"""Parquet files as a source: each is a sealed part, and positions are row numbers.

Writers add the footer last, so a file without a footer is unfinished.
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
from semel.sources import ExecutorCheck, Partition, Refusal, SourceItem
from semel.sources.files import moving, probe
from semel.sources.files.content import open_file
from semel.sources.files.evidence import unread_since
from semel.sources.files.listing import ListedFile, file_time, inodes_below, list_files, listed_file
from semel.sources.sealed import claims, parquet
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartInspection, PartListing, SealedPart
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
        files = list_files(self.context)
        return PartListing(
            items=[_part(file) for file in files.items],
            refusals=files.refusals,
            notes=files.notes,
            private=files.private,
            complete=files.complete,
        )

    def unread_since(
        self, item: SourceItem, known: Partition | None  # noqa: ARG002 - a part is read at once
    ) -> datetime | None:
        return unread_since(self.context, item.name)

    def inspect(self, part: SealedPart) -> PartInspection:
        with _open_part(part) as file:

            def at(start: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, start)

            try:
                looked = parquet.inspect_footer(self.context, part, file, at)
                return self._without_end(part, file) if looked is None else looked
            except parquet.UnreadablePartError as why:
                refused = refusal(part, *why.args)
                return PartInspection(part=part, length=part.length, refusal=refused)

    def _without_end(self, part: SealedPart, file: BinaryIO) -> PartInspection:
        closed_after = self.context.declared.closed_after
        age = time.time() - os.fstat(file.fileno()).st_mtime
        if closed_after is None or age < closed_after.total_seconds():
            return PartInspection(part=part, length=part.length, unfinished=True)
        what = "it lacks a Parquet footer, and has not changed for source.closed_after"
        raise parquet.UnreadablePartError("damaged", f"{what}; replace the file")

    def digest(self, part: SealedPart) -> str:
        with _open_part(part) as file:
            content = checksum_of(file)
            _check_same(part, file)
        return content

    def current_part(self, name: str) -> SealedPart:
        try:
            return _part_at(name)
        except FileNotFoundError:
            moved = moving.moved_path(self.context, name)
            if moved is None:
                raise
            return _part_at(str(moved))

    def find_candidates(self) -> list[SealedPart]:
        parts = []
        for _, path in inodes_below(self.context.declared.folder()):
            with suppress(OSError, UnicodeEncodeError):
                parts.append(_part_at(path))
        return parts

    def is_archived(self, known: Partition) -> bool:
        moved = moving.moved_path(self.context, known.name)
        with suppress(OSError):
            return moved is not None and _part_at(str(moved)).identity == known.identity
        return False

    def archive_part(self, known: Partition) -> bool:
        return moving.move_finalized(self.context, known, lambda path: _part_at(path).fingerprint)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats.parquet import blocks

        part = claims.prove_claim(self, split.claim, batch_id)
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
        """Raises ChangedError if the file that was read is not the planned one."""
        try:
            _check_same(part, file)
        except FileNotFoundError as error:
            raise claims.changed_error(self, claim, batch_id) from error

    def time_of(self, known: Partition) -> datetime | None:
        parts = known.identity.split(":")
        if len(parts) != _IDENTITY_PARTS:  # Another format or kind of source wrote it.
            return None
        when = file_time(self.context, known.name, int(parts[-1]))
        return None if isinstance(when, Refusal) else when

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context)


def _part(file: ListedFile) -> SealedPart:
    """A file as a part. Its identity changes with each write."""
    return SealedPart(
        name=file.path,
        identity=f"{file.device}:{file.inode}:{file.size}:{file.mtime_ns}",
        fingerprint=f"{file.inode}:{file.size}:{file.mtime_ns}:{file.ctime_ns}",
        length=file.size,
        when=file.when,
    )


def _part_at(path: str) -> SealedPart:
    """The file at a path now, without its time. Raises OSError if it does not exist."""
    return _part(listed_file(path, None, os.stat(path)))


@contextmanager
def _open_part(part: SealedPart) -> Iterator[BinaryIO]:
    """Open a part's file. Raises FileNotFoundError if it was replaced or written to."""
    with open_file(part.name) as file:
        _check_same(part, file)
        yield file


# Keeps P19.
def _check_same(part: SealedPart, file: BinaryIO) -> None:
    now = _part(listed_file(part.name, None, os.fstat(file.fileno())))
    if now.fingerprint != part.fingerprint:
        raise FileNotFoundError(part.name)
