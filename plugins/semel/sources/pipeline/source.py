"""Another pipeline's output as a source: a source partition is a batch of it, a position a row.

A batch is known by what its marker lists, so nothing of its rows is read before a task does. Rows
have the order of the marker's files. A replay gives a batch other content under its name.
"""

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.declare.context import Context
from semel.declare.wording import some_of
from semel.errors import AGAIN, CorruptionError, SourceError
from semel.formats.exact import misfit
from semel.model.batch import Claim
from semel.sources import (
    LedgerView,
    ExecutorCheck,
    MatchResult,
    Refusal,
    RefusedError,
    Window,
    Acceptance,
)
from semel.sources.files import probe
from semel.sources.pipeline import matching
from semel.sources.pipeline.published import Output, OutputFile, OutputFolders
from semel.sources.sealed import claims
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartListing, Looked, SealedPart, PartOffer
from semel.sources.sealed.source import NamedSource

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

_MARKER = re.compile(r"b(\d{8,})\.json", re.ASCII)


def opened(context: Context) -> "FinalizedBatches":
    """The batches of the declared pipeline."""
    return FinalizedBatches(context=context, place=OutputFolders.of(context.declared))


@dataclass(frozen=True, kw_only=True)
class FinalizedBatches(NamedSource):
    """`source: {type: pipeline}`. `place`: the folders of its output and of its markers."""

    context: Context
    place: OutputFolders

    # Keeps R1, R2.
    def discover(self) -> PartListing:
        try:
            with os.scandir(self.place.markers) as entries:
                known = [match for e in entries if (match := _MARKER.fullmatch(e.name))]
        except (FileNotFoundError, NotADirectoryError):
            return PartListing(items=[], refusals=[self._missing()], complete=False)
        known.sort(key=lambda match: int(match[1]))
        found, refused = [], []
        for match in known:
            name = f"{self.context.declared.pipeline}/b{match[1]}"
            try:
                found.append(self.now(name))
            except OSError as error:
                why = f"its marker cannot be looked at ({error.strerror}); restore it from a backup"
                refused.append(Refusal(name=name, reason="unreadable", detail=why))
        return PartListing(items=found, refusals=refused, complete=not refused)

    def _missing(self) -> Refusal:
        pipeline = self.context.declared.pipeline
        return Refusal(
            name=str(self.place.markers),
            reason="missing",
            detail=f"no batch of {pipeline} is there yet, or its folder is not mounted: `semel run "
            f"{pipeline}` makes one; else mount it, or correct source.path and source.archive",
        )

    def now(self, name: str) -> SealedPart:
        found = os.stat(self.place.marker(name))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        stamp = f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        return SealedPart(name=name, identity=name, fingerprint=stamp, when=None)

    # Keeps W7.
    def is_complete(self, shown: PartListing) -> bool:
        """Whether the upstream has finalized all that one look at its own source saw, as its newest
        marker says, and all of that is shown.
        """
        if not shown.items:
            return False
        frontier = self._frontier(shown)
        names = {part.name for part in shown.items}
        there = {part.name for part in self.discover().items}  # A listing may miss a new one.
        return frontier >= int(shown.items[-1].name.rpartition("/b")[2]) and there <= names

    def _frontier(self, shown: PartListing) -> int:
        """That of the marker that was written last. 0: not known."""
        try:
            newest = max(shown.items, key=lambda part: int(part.fingerprint.split(":")[2]))
            return self._output(newest).frontier
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
        return matching.word(self, known, name, same=same, start=start, is_open=is_open)

    # Keeps CH2.
    def find_replaced(
        self, found: Collection[Claim], batch_id: int
    ) -> list[tuple[Claim, PartOffer]]:
        other = []
        for claim in found:
            try:
                part = self.now(claim.name)
                if part.fingerprint == claim.evidence.get("stamp"):
                    continue
                looked = self.look(part)
            except OSError as error:
                raise claims.unreadable(self, claim, batch_id, error) from error
            if looked.refused:
                raise RefusedError(looked.refused)
            if looked.key != claim.evidence.get("content"):
                other.append((claim, matching.whole(looked, None)))
        return other

    def look(self, part: SealedPart) -> Looked:
        try:
            output = self._output(part)
        except CorruptionError as error:
            return Looked(part=part, length=0, refused=refusal(part, "damaged", str(error)))
        why = self._why_not(output)
        return Looked(
            part=part,
            length=output.bytes,
            key=output.content,
            rows=output.rows,
            refused=refusal(part, *why) if why else None,
        )

    def _why_not(self, output: Output) -> tuple[str, str] | None:
        """Reason and detail for a batch whose rows cannot be read."""
        declared = self.context.declared
        if output.pipeline != declared.pipeline:
            return "foreign", (
                f"its marker is of {output.pipeline!r}, and source.pipeline is "
                f"{declared.pipeline!r}; correct source.path and source.archive"
            )
        if output.format != declared.format:
            return "format", (
                f"its rows are {output.format}, and only {declared.format} is read; `semel replay "
                f"{declared.pipeline} --batches {output.batch_id}` writes them as that pipeline "
                "declares now"
            )
        misfits, advice = _misfits(output, self.context)
        if misfits:
            return "schema", (
                f"{some_of(misfits)}. {advice or 'Correct the schema'}; or `semel replay "
                f"{declared.pipeline} --batches {output.batch_id}` writes the batch as that "
                "pipeline declares now"
            )
        return None

    def digest(self, part: SealedPart) -> str:
        return self._output(part).content

    def last_record_end(
        self, offer: PartOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:  # noqa: ARG002
        """A batch is taken whole, whatever its size: the pipeline that wrote it has a limit too."""
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
                before = file.stamp()
                if not file.is_whole():
                    raise _damaged(claim, file, "its bytes are not those of its marker")
                with open(file.path, "rb") as rows:
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
                if file.stamp() != before:
                    raise _damaged(claim, file, "it was written to while it was read")
            except FileNotFoundError as error:
                self._claimed(claim, batch_id)  # A replay may have replaced it meanwhile.
                raise _damaged(claim, file, "it is gone") from error

    def _claimed(self, claim: Claim, batch_id: int) -> Output:
        """The output of a claim. Errors as of `check`."""
        try:
            return self._output(claims.proven(self, claim, batch_id))
        except FileNotFoundError as error:
            raise claims.changed(self, claim, batch_id) from error

    def probe(self) -> tuple[str, ExecutorCheck]:
        shown = self.discover()
        found, some, held = shown.items, [], ""
        if found:
            if not self._frontier(shown):
                held = "; its newest marker has no frontier, so windows of its records stay held"
            files = self._output(found[-1]).files
            some = [self.place.marker(found[-1].name), *(file.path for file in files[:1])]
        pipeline, sink = self.context.declared.pipeline, self.place.sink
        return probe.of_files(
            f"{len(found)} batches of {pipeline} in {sink}{held}", sink, list(map(str, some))
        )

    def _output(self, part: SealedPart) -> Output:
        """What a part's marker says. FileNotFoundError: it is another one by now.

        CorruptionError: it cannot be read.
        """
        path = self.place.marker(part.name)
        text = path.read_bytes()
        if self.now(part.name).fingerprint != part.fingerprint:
            raise FileNotFoundError(part.name)
        return self.place.parse(path, text)


def _damaged(claim: Claim, file: OutputFile, what: str) -> SourceError:
    return SourceError(
        f"{file.path}, a file of {claim.name!r}, cannot be read: {what}; restore it from a backup",
        next=AGAIN,
    )


# Keeps P23.
def _misfits(output: Output, context: Context) -> tuple[list[str], str]:
    """Why the columns of a batch's output are not the declared ones; and what to declare, if
    columns are missing and nothing else is wrong.
    """
    header = context.naming.match(context.columns, output.columns.names)
    found = [f"column {name!r} is not in the output" for name in header.lacking] + header.doubled
    for column, name in header.held.items():
        if why := misfit(output.columns.field(name).type, context.columns[column]):
            found.append(f"column {name!r}{why}")
    lacks_alone = len(found) == len(header.lacking)
    return found, context.naming.remedy(header, all_named=False) if lacks_alone else ""
