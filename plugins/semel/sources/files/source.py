"""Files as a source: a source partition is a generation of a file, and a position one of its bytes.

Only methods that read records import the parsers: plan and finalize do without them.
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
    Acceptance,
    Evidence,
    ExecutorCheck,
    LedgerView,
    LostRange,
    MatchResult,
    Offer,
    Partition,
    Refusal,
    Source,
    SourceItem,
    Window,
)
from semel.sources.files import (
    acceptance, claims as file_claims, matching, moving, offers, places, probe, refusals,
)  # fmt: skip
from semel.sources.files.claims import ClaimedFile
from semel.sources.files.content import is_gzip
from semel.sources.files.evidence import FilePartition, evidence_at, unread_since
from semel.sources.files.facts import Knowledge
from semel.sources.files.listing import FileListing, list_files, listed_file
from semel.sources.files.offers import FileOffer

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split


SPLIT_BYTES = 64 << 20
"""Source bytes for one task: at least half a second of work, while Spark needs some 20 ms a task.
The plan fixes it, so that every attempt has the same splits."""


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

    def match(self, listing: FileListing, ledger: LedgerView, window: Window) -> MatchResult:
        knowledge = Knowledge.from_ledger(listing, ledger)
        return matching.match(self.context, listing, knowledge, window)

    def unread_since(self, item: SourceItem, known: Partition | None) -> datetime | None:
        return unread_since(self.context, item.name, known and FilePartition.of(known))

    def refuse_lost(self, lost: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        return refusals.refuse_lost(
            self.context, FilePartition.of(lost.partition), spans, lost.content_holder
        )

    def last_record_end(
        self, offer: FileOffer, start: int, end: int, capacity: int, *, first: bool
    ) -> int:
        return offers.last_record_end(self.context, offer, start, end, capacity, first=first)

    def capacity(self, offers: Sequence[Offer]) -> int:
        return self.context.limits.bytes_per_batch_max

    def evidence(self, offer: FileOffer, end: int) -> Evidence:
        return evidence_at(self.context, offer.content, end)

    def accept(
        self,
        listing: FileListing,
        ledger: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        recognised = acceptance.gather_all(self.context, listing, ledger)
        if is_open and acceptance.is_settled(recognised, name):
            return None
        return acceptance.decide_acceptance(self.context, recognised, name, same=same, start=start)

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return places.locate(self.context, self.discover(), partitions)

    def find(self, claims: Collection[Claim], batch_id: int) -> list[Claim]:
        return file_claims.find_claims(claims, self.root, batch_id)

    def check(self, claims: Collection[Claim], batch_id: int) -> None:
        file_claims.check_claims(claims, self.root, batch_id)

    def check_columns(self, claims: Collection[Claim], batch_id: int) -> None:
        for claim in map(ClaimedFile.of, claims) if formats.has_header(self.context) else ():
            with file_claims.open_claim(claim, self.root, batch_id) as file:
                formats.header_of(self.context, file.name)

    def archive_part(self, known: Partition) -> bool:
        def fingerprint(path: str) -> str:
            return listed_file(path, None, os.stat(path)).fingerprint

        return moving.move_finalized(self.context, known, fingerprint)

    def is_whole(self, claim: Claim) -> bool:
        return formats.is_whole(self.context) or is_gzip(claim.name)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats.records import read_split

        claim = ClaimedFile.of(split.claim)
        with file_claims.claimed_bytes(claim, self.root, batch_id) as file:
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
        self._check_unmoved(claim, batch_id)

    # Keeps S6.
    def _check_unmoved(self, claim: ClaimedFile, batch_id: int) -> None:
        """Raises SourceError if another file has replaced the one that was read."""
        with file_claims.open_claim(claim, self.root, batch_id):
            return

    def can_join(self, claim: Claim) -> bool:
        """True for uncompressed files whose lines can be parsed one by one."""
        separate = not formats.has_header(self.context) and not formats.is_whole(self.context)
        return separate and not is_gzip(claim.name)

    def read_text(self, split: "Split", batch_id: int) -> bytes:
        claim = ClaimedFile.of(split.claim)
        with file_claims.open_claim(claim, self.root, batch_id) as file:
            file.seek(split.start)
            text = file.read(split.end - split.start)
        self._check_unmoved(claim, batch_id)
        return text

    def line_numbers(
        self, claim: Claim, positions: Sequence[int], batch_id: int
    ) -> list[int | None]:
        return file_claims.lines_of(ClaimedFile.of(claim), positions, self.root, batch_id)

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """Its line ends, and one more for a last line without a newline."""
        claim = ClaimedFile.of(split.claim)
        ends = file_claims.line_ends(claim, split.start, split.end, self.root, batch_id)
        return ends if ends is None else ends + (split.end == claim.end)

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context)
