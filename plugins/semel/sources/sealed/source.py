"""A source of sealed parts: each part is a source partition, and a position is the number of a row.

A kind of part implements `PartAccess`, which lists and opens parts. This room does everything else:
it matches parts with partitions, limits what a batch takes, and proves and finds claims.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from semel.declare.context import Context
from semel.errors import SourceError
from semel.model.batch import Claim
from semel.model.split import Split
from semel.sources import (
    Acceptance,
    Evidence,
    LedgerView,
    LostRange,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Source,
    Window,
    accept_command,
)
from semel.sources.sealed import claims, matching
from semel.sources.sealed.parts import (
    PartAccess,
    PartInspection,
    PartListing,
    PartOffer,
    SealedPart,
)

SPLIT_ROWS = 500_000
"""Rows that one task reads, or more if a row group has more: a third of a second's work with a
record id. Fewer rows make more tasks, and each task costs Spark some time."""


@dataclass(frozen=True, kw_only=True)
class SealedSource(PartAccess, Source):
    """Parts that are complete when they appear, and never change."""

    context: Context

    split_size: ClassVar[int] = SPLIT_ROWS

    def match(self, listing: PartListing, ledger: LedgerView, window: Window) -> MatchResult:
        return matching.match(self, listing, ledger, window)

    def refuse_lost(self, lost: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        partition, declared = lost.partition, self.context.declared
        ranges = ", ".join(f"{start} to {end}" for start, end in spans)
        command = accept_command(self.context, partition.name, "--lost")
        return Refusal(
            name=partition.name,
            reason="gone",
            detail=f"the {declared.part} (partition {partition.source_partition_id}) has "
            f"disappeared, and its {declared.unit} {ranges} were never read. Bring it back, or "
            f"record them as lost: {command}",
            when=self.time_of(partition),
        )

    # Keeps P6.
    def last_record_end(
        self, offer: PartOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:
        return min(end, start + max(room, 1 if first else 0))

    def capacity(self, offers: Sequence[PartOffer]) -> int:
        """Counts each row of a part as an equal share of its bytes."""
        limits = self.context.limits
        bytes_left, rows = limits.bytes_per_batch_max, 0
        for offer in offers:
            ahead = offer.end - (offer.partition.reached if offer.partition else 0)
            if ahead <= 0:
                continue
            size = offer.length * ahead // offer.seen
            if size > bytes_left:
                rows += bytes_left * offer.seen // offer.length
                return min(rows, limits.records_per_batch_max)
            rows, bytes_left = rows + ahead, bytes_left - size
        return limits.records_per_batch_max

    # Keeps P22, P23.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:  # noqa: ARG002 - it is of the whole
        if offer.refusal:
            raise RefusedError(offer.refusal)
        content = offer.content or matching.part_digest(self, offer.part)
        return {**offer.evidence, "content": content, "stamp": offer.fingerprint}

    def accept(
        self,
        listing: PartListing,
        ledger: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        return matching.accept_part(
            self, listing, ledger, name, same=same, start=start, is_open=is_open
        )

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return claims.locate_by_content(self, self.discover().items, partitions)

    def find(self, claimed: Collection[Claim], batch_id: int) -> list[Claim]:
        return claims.find_claims(self, claimed, batch_id)

    def check(self, claimed: Collection[Claim], batch_id: int) -> None:
        for _ in self.map_parts(lambda claim: claims.prove_claim(self, claim, batch_id), claimed):
            pass

    def check_columns(self, claimed: Collection[Claim], batch_id: int) -> None:
        for inspection in self.inspect_claimed(claimed, batch_id):
            if why := inspection.refusal:
                raise SourceError(f"{why.name!r}: {why.detail}")

    def inspect_claimed(
        self, claimed: Collection[Claim], batch_id: int
    ) -> Iterable[PartInspection]:
        """Inspect the parts of claims by the current declaration. Errors as in `check`."""
        return self.map_parts(
            lambda claim: self.inspect(claims.prove_claim(self, claim, batch_id)), claimed
        )

    def map_parts(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        """The results of a function that takes one part, in the order of the parts."""
        return map(function, parts)

    def records_max(self, split: Split, batch_id: int) -> int | None:  # noqa: ARG002
        return split.end - split.start


class NamedSource(SealedSource):
    """Sealed parts that never change their name: a part with another name is another part."""

    def find_candidates(self) -> Sequence[SealedPart]:
        return []

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return claims.locate_by_name(self, self.discover().items, partitions)
