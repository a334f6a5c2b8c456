"""A source of sealed parts: a source partition is a part, and a position a row of it.

A kind of part says what there is and how it is opened. All the rest is here: which partition a part
is, what a batch takes of it, and how what is claimed is proven and found again.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from semel.declare.context import Context
from semel.errors import SourceError
from semel.model.batch import Claim
from semel.model.split import Split
from semel.sources import (
    Evidence,
    LostRange,
    LedgerView,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Source,
    Window,
    Acceptance,
    accept_command,
)
from semel.sources.sealed import claims, matching
from semel.sources.sealed.parts import PartListing, Looked, Opens, SealedPart, PartOffer

SPLIT_ROWS = 500_000
"""Rows that one task reads, or more where a row group has more: a third of a second's work by
record id. Fewer make more tasks, and each has a cost of its own in Spark."""


@dataclass(frozen=True, kw_only=True)
class SealedSource(Opens, Source):
    """Parts that are whole when they appear and never change."""

    context: Context

    split_size: ClassVar[int] = SPLIT_ROWS

    def match(self, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
        return matching.match(self, shown, known, window)

    def refuse_lost(self, gone: LostRange, spans: list[tuple[int, int]]) -> Refusal:
        known, unit = gone.partition, self.context.declared.unit
        shown = ", ".join(f"{start} to {end}" for start, end in spans)
        lost = accept_command(self.context, known.name, "--lost")
        return Refusal(
            name=known.name,
            reason="gone",
            detail=f"{unit} {shown} of it (partition {known.source_partition_id}) were seen and "
            f"never read, and the {self.context.declared.part} is gone; bring it back, or {lost} "
            "records them as lost",
            when=self.time_of(known),
        )

    # Keeps P6.
    def last_record_end(
        self, offer: PartOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:
        return min(end, start + max(room, 1 if first else 0))

    def capacity(self, offers: Sequence[PartOffer]) -> int:
        """By the share of its bytes that a row of a part has."""
        limits = self.context.limits
        left, rows = limits.bytes_per_batch_max, 0
        for offer in offers:
            ahead = offer.end - (offer.partition.reached if offer.partition else 0)
            if ahead <= 0:
                continue
            size = offer.length * ahead // offer.seen
            if size > left:
                rows += left * offer.seen // offer.length
                return min(rows, limits.records_per_batch_max)
            rows, left = rows + ahead, left - size
        return limits.records_per_batch_max

    # Keeps P22, P23.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:  # noqa: ARG002 - it is of the whole
        if offer.refused:
            raise RefusedError(offer.refused)
        content = offer.content or matching.content_of(self, offer.part)
        return {**offer.evidence, "content": content, "stamp": offer.fingerprint}

    def accept(
        self,
        shown: PartListing,
        known: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        return matching.word(
            self, shown, known, name, same=same, start=start, is_open=is_open
        )

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return claims.locate(self, self.discover().items, partitions)

    def find(self, found: Collection[Claim], batch_id: int) -> list[Claim]:
        return claims.find(self, found, batch_id)

    def check(self, found: Collection[Claim], batch_id: int) -> None:
        for _ in self.each(lambda claim: claims.proven(self, claim, batch_id), found):
            pass

    def check_columns(self, found: Collection[Claim], batch_id: int) -> None:
        for looked in self.look_again(found, batch_id):
            if why := looked.refused:
                raise SourceError(f"{why.name!r}: {why.detail}")

    def look_again(self, found: Collection[Claim], batch_id: int) -> Iterable[Looked]:
        """The parts of claims as they look to the declaration of now. SourceError as in `check`."""
        return self.each(lambda claim: self.look(claims.proven(self, claim, batch_id)), found)

    def each(self, look: Callable[[Any], Any], asked: Iterable[Any]) -> Iterable[Any]:
        """The answers of a function that looks at one part, in order."""
        return map(look, asked)

    def records_max(self, split: Split, batch_id: int) -> int | None:  # noqa: ARG002
        return split.end - split.start


class NamedSource(SealedSource):
    """Sealed parts whose name is theirs for ever: under another name, no part is the same one."""

    def below(self) -> Sequence[SealedPart]:
        return []

    def locate(self, partitions: list[Partition]) -> list[Partition | None]:
        return claims.locate_by_name(self, self.discover().items, partitions)
