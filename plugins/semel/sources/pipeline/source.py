"""Another pipeline's output as a source: a source partition is a batch, a position is a row.

The marker identifies a batch, so only tasks read its rows. Rows have the order of the marker's
files. A replay gives a batch new content under the same name.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.declare.context import Context
from semel.declare.wording import some_of
from semel.errors import AGAIN, CorruptionError, SourceError
from semel.formats.exact import misfit
from semel.model.batch import Claim
from semel.sources import (
    Acceptance,
    ExecutorCheck,
    LedgerView,
    MatchResult,
    Refusal,
    RefusedError,
    Window,
)
from semel.sources.pipeline import matching
from semel.sources.pipeline.places import (
    MarkerVersion,
    OutputPlace,
    WrittenMeanwhileError,
    marker_name,
)
from semel.sources.pipeline.published import Output, OutputFile, parse_output
from semel.sources.sealed import claims
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartInspection, PartListing, PartOffer, SealedPart
from semel.sources.sealed.source import NamedSource

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split


def opened(context: Context) -> "FinalizedBatches":
    """The batches of the declared pipeline."""
    return FinalizedBatches(context=context, output=OutputPlace.of(context.declared))


@dataclass(frozen=True, kw_only=True)
class FinalizedBatches(NamedSource):
    """`source: {type: pipeline}`. `output`: the upstream's output and markers."""

    context: Context
    output: OutputPlace

    # Keeps R1, R2.
    def discover(self) -> PartListing:
        pipeline = self.context.declared.pipeline
        try:
            markers = self.output.list_markers()
        except FileNotFoundError:
            name, why = self.output.missing(pipeline)
            refused = [Refusal(name=name, reason="missing", detail=why)]
            return PartListing(items=[], refusals=refused, complete=False)
        batches, refused = [], []
        for marker, version in markers.items():
            if isinstance(version, OSError):
                name = f"{pipeline}/{marker.removesuffix('.json')}"
                why = f"its marker cannot be read ({version.strerror}). Restore it from a backup"
                refused.append(Refusal(name=name, reason="unreadable", detail=why))
            else:
                batches.append(self._part(marker, version))
        return PartListing(items=batches, refusals=refused, complete=not refused)

    def current_part(self, name: str) -> SealedPart:
        marker = marker_name(name)
        return self._part(marker, self.output.version(marker))

    def _part(self, marker: str, version: MarkerVersion) -> SealedPart:
        name = f"{self.context.declared.pipeline}/{marker.removesuffix('.json')}"
        return SealedPart(
            name=name, identity=name, fingerprint=version.fingerprint, when=None
        )

    # Keeps W7.
    def is_complete(self, shown: PartListing) -> bool:
        """Whether the upstream had finalized everything in one listing of its own source, according
        to its newest marker, and all these batches are shown.
        """
        if not shown.items:
            return False
        seen = {marker_name(part.name): part.fingerprint for part in shown.items}
        try:
            current = self.output.list_markers()  # A listing may miss a new batch.
        except FileNotFoundError:
            return False
        same = all(
            isinstance(version, MarkerVersion) and seen.get(name) == version.fingerprint
            for name, version in current.items()
        )
        return same and self._frontier(current) >= int(shown.items[-1].name.rpartition("/b")[2])

    def _frontier(self, markers: dict[str, MarkerVersion | OSError]) -> int:
        """The frontier in the marker that was written last. 0: unknown."""
        written = {n: v.written for n, v in markers.items() if isinstance(v, MarkerVersion)}
        if not written:
            return 0
        # A store may show two as written at the same time: take the newer batch.
        newest = max(written, key=lambda name: (written[name], name))
        try:
            # It may be newer than the listing, and then it may count batches that this one lacks.
            return self._output(self._part(newest, markers[newest])).frontier
        except (OSError, CorruptionError):
            return 0

    def match(self, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
        return matching.match(self, shown, known, window)

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
        return matching.accept_output(self, known, name, same=same, start=start, is_open=is_open)

    # Keeps CH2.
    def find_replaced(
        self, found: Collection[Claim], batch_id: int
    ) -> list[tuple[Claim, PartOffer]]:
        replaced = []
        for claim in found:
            try:
                part = self.current_part(claim.name)
                if part.fingerprint == claim.evidence.get("stamp"):
                    continue
                looked = self.inspect(part)
            except OSError as error:
                raise claims.unreadable_error(self, claim, batch_id, error) from error
            if looked.refusal:
                raise RefusedError(looked.refusal)
            if looked.key != claim.evidence.get("content"):
                replaced.append((claim, matching.offer_whole(looked, None)))
        return replaced

    def inspect(self, part: SealedPart) -> PartInspection:
        try:
            output = self._output(part)
        except CorruptionError as error:
            return PartInspection(part=part, length=0, refusal=refusal(part, "damaged", str(error)))
        why = self._refusal_reason(output)
        return PartInspection(
            part=part,
            length=output.bytes,
            key=output.content,
            rows=output.rows,
            refusal=refusal(part, *why) if why else None,
        )

    def _refusal_reason(self, output: Output) -> tuple[str, str] | None:
        """The reason and detail of a refusal. Returns None if the rows can be read."""
        declared = self.context.declared
        if output.pipeline != declared.pipeline:
            return "foreign", (
                f"its marker is from pipeline {output.pipeline!r}, but source.pipeline is "
                f"{declared.pipeline!r}. Correct {self.output.keys}"
            )
        if output.format != declared.format:
            return "format", (
                f"its rows are {output.format}, but semel reads only {declared.format}; `semel "
                f"replay {declared.pipeline} --batches {output.batch_id}` writes them again, in "
                "the format that the pipeline declares now"
            )
        misfits, advice = _misfits(output, self.context)
        if misfits:
            return "schema", (
                f"{some_of(misfits)}. {advice or 'Correct the schema'}; or `semel replay "
                f"{declared.pipeline} --batches {output.batch_id}` writes the batch again, with "
                "the schema that the pipeline declares now"
            )
        return None

    def digest(self, part: SealedPart) -> str:
        return self._output(part).content

    def last_record_end(
        self, offer: PartOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:  # noqa: ARG002
        """Plan takes whole batches of any size: the pipeline that wrote them has a limit, too."""
        return end if first or end - start <= room else start

    # Keeps S6.
    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        from semel.formats import parquet

        claim = split.claim
        output = self._claimed(claim, batch_id)
        digest.update(claim.evidence["content"].encode())
        for file in output.between(split.start, split.end):
            try:
                with self.output.open(file) as rows:
                    if not file.is_whole(rows):
                        raise self._damaged(claim, file, "its bytes do not match its marker")
                    yield from parquet.blocks(
                        rows,
                        length=file.bytes,
                        claimed=(claim.start, claim.end),
                        owned=(split.start, split.end),
                        columns=self.context.columns,
                        exact=self.context.record_id,
                        selection=selection,
                        naming=self.context.naming,
                        first=file.first,
                        fixed=file.fixed,
                    )
            except FileNotFoundError as error:
                self._claimed(claim, batch_id)  # A replay may have replaced it meanwhile.
                raise self._damaged(claim, file, "it does not exist") from error
            except WrittenMeanwhileError as error:
                why = "it was written to while it was read"
                raise self._damaged(claim, file, why) from error

    def _claimed(self, claim: Claim, batch_id: int) -> Output:
        """The output of a claim. Raises as `check` does."""
        try:
            return self._output(claims.prove_claim(self, claim, batch_id))
        except FileNotFoundError as error:
            raise claims.changed_error(self, claim, batch_id) from error

    def probe(self) -> tuple[str, ExecutorCheck]:
        try:
            markers = self.output.list_markers()
        except FileNotFoundError:
            markers = {}
        readable = [n for n, version in markers.items() if isinstance(version, MarkerVersion)]
        newest, files, note = "", (), ""
        if readable:
            newest = readable[-1]
            files = self.output.output(newest).files
            if not self._frontier(markers):
                note = "; its newest marker lacks a frontier, so windows of its records are held"
        summary = (
            f"{len(readable)} batches of {self.context.declared.pipeline} in {self.output}{note}"
        )
        return self.output.probe(summary, newest, next(iter(files), None))

    def _output(self, part: SealedPart) -> Output:
        """Read the marker of a part. Raises FileNotFoundError if it was replaced meanwhile, and
        CorruptionError if it cannot be read.
        """
        name = marker_name(part.name)
        text, fingerprint = self.output.read_marker(name)
        if fingerprint != part.fingerprint:
            raise FileNotFoundError(part.name)
        return parse_output(self.output.marker_address(name), name, text)

    def _damaged(self, claim: Claim, file: OutputFile, why: str) -> SourceError:
        return SourceError(
            f"{self.output.address(file.path)}, a file of {claim.name!r}, cannot be read: {why}. "
            "Restore it from a backup",
            next=AGAIN,
        )



# Keeps P23.
def _misfits(output: Output, context: Context) -> tuple[list[str], str]:
    """The differences between a batch's columns and the declared ones. If the only difference is
    missing columns, also the advice what to declare, else "".
    """
    header = context.naming.match(context.columns, output.columns.names)
    misfits = [f"column {name!r} is not in the output" for name in header.lacking] + header.doubled
    for column, name in header.held.items():
        if why := misfit(output.columns.field(name).type, context.columns[column]):
            misfits.append(f"column {name!r}{why}")
    only_lacks = len(misfits) == len(header.lacking)
    return misfits, context.naming.remedy(header, all_named=False) if only_lacks else ""
