"""Files as a source: a source partition is a generation of a file, and a position a byte of it.

What parses records is imported by who reads them: plan and finalize do not.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from semel.declare.context import Context
from semel.formats import declared as formats
from semel.formats.table import source_format
from semel.model.batch import Claim
from semel.sources import (
    Evidence,
    SourceItem,
    LostRange,
    LedgerView,
    ExecutorCheck,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    Source,
    Window,
    Acceptance,
)
from semel.sources.files import accepted, away, claimed, matching, offers, places, probe, refusals
from semel.sources.files.claimed import ClaimedFile
from semel.sources.files.content import is_gzip
from semel.sources.files.evidence import FilePartition, read_up_to, written_since
from semel.sources.files.facts import Knowledge
from semel.sources.files.listing import FileListing, list_files, listed
from semel.sources.files.offers import FileOffer

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split


SPLIT_BYTES = 64 << 20
"""Bytes of source one task reads: half a second's work or more, beside some 20 ms that Spark needs
for a task. Fixed in the plan, so that every attempt cuts alike."""


def opened(context: Context) -> Source:
    """The files below the folder."""
    if source_format(context.declared.format).sealed:
        from semel.sources.files.parquet import ParquetFiles

        return ParquetFiles(context=context)
    return FilesSource(context=context, root=Path(os.path.realpath(context.declared.folder())))


@dataclass(frozen=True, kw_only=True)
class FilesSource(Source):
    """`source: {path: ...}`. `root` is the real path of its folder."""

    context: Context
    root: Path

    split_size: ClassVar[int] = SPLIT_BYTES

    def discover(self) -> FileListing:
        return list_files(self.context)

    def match(self, shown: FileListing, known: LedgerView, window: Window) -> MatchResult:
        return matching.match(self.context, shown, Knowledge.of(shown, known), window)

    def unread_since(self, found: SourceItem, known: Partition | None) -> datetime | None:
        return written_since(self.context, found.name, known and FilePartition.of(known))

    def refuse_lost(self, gone: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        partition = FilePartition.of(gone.partition)
        return refusals.gone(self.context, partition, spans, gone.content_holder)

    def last_record_end(
        self, offer: FileOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:
        return offers.stop(self.context, offer, start, end, room, first=first)

    def capacity(self, offers: Sequence[Offer]) -> int:
        return self.context.limits.bytes_per_batch_max

    def evidence(self, offer: FileOffer, end: int) -> Evidence:
        return read_up_to(self.context, offer.content, end)

    def accept(
        self,
        shown: FileListing,
        known: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        recognised = accepted.look(self.context, shown, known)
        if is_open and accepted.is_settled(recognised, name):
            return None
        return accepted.word(self.context, recognised, name, same=same, start=start)

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return places.locate(self.context, self.discover(), partitions)

    def find(self, claims: Collection[Claim], batch_id: int) -> list[Claim]:
        return claimed.find_claims(claims, self.root, batch_id)

    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        claimed.check_claims(claims, self.root, batch_id)

    def check_columns(self, claims: Collection[Claim], batch_id: int) -> None:
        for claim in map(ClaimedFile.of, claims) if formats.has_header(self.context) else ():
            with claimed.open_claim(claim, self.root, batch_id) as file:
                formats.header_of(self.context, file.name)

    def archive_part(self, known: Partition) -> bool:
        def now(path: str) -> str:
            return listed(path, None, os.stat(path)).fingerprint

        return away.put_away(self.context, known, now)

    def is_whole(self, claim: Claim) -> bool:
        return formats.is_whole(self.context) or is_gzip(claim.name)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats.records import read_split

        claim = ClaimedFile.of(split.claim)
        with claimed.claimed_bytes(claim, self.root, batch_id) as file:
            yield from read_split(
                file,
                start=split.start,
                end=split.end,
                range_start=claim.start,
                range_end=claim.end,
                schema=self.context.arrow_schema(),
                format=formats.format_of(self.context),
                columns=formats.header_of(self.context, file.name),
                digest=digest,
                exact=self.context.record_id,
                selection=selection,
            )
        self._still_there(claim, batch_id)

    # Keeps S6.
    def _still_there(self, claim: ClaimedFile, batch_id: int) -> None:
        """SourceError when the file that was read is another one by now."""
        with claimed.open_claim(claim, self.root, batch_id):
            return

    def can_join(self, claim: Claim) -> bool:
        """A format whose lines stand alone, in a file of which each byte is on disk."""
        alone = not formats.has_header(self.context) and not formats.is_whole(self.context)
        return alone and not is_gzip(claim.name)

    def read_text(self, split: "Split", batch_id: int) -> bytes:
        claim = ClaimedFile.of(split.claim)
        with claimed.open_claim(claim, self.root, batch_id) as file:
            file.seek(split.start)
            text = file.read(split.end - split.start)
        self._still_there(claim, batch_id)
        return text

    def line_numbers(
        self, claim: Claim, positions: Sequence[int], batch_id: int
    ) -> list[int | None]:
        return claimed.lines_of(ClaimedFile.of(claim), positions, self.root, batch_id)

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """Its line ends, and one more where a claim ends without."""
        claim = ClaimedFile.of(split.claim)
        ends = claimed.line_ends(claim, split.start, split.end, self.root, batch_id)
        return ends if ends is None else ends + (split.end == claim.end)

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context)
