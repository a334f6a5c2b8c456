"""How the audit reads another pipeline's output again, by the markers of its batches."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing

from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.pipeline.places import OutputPlace, marker_name
from semel.sources.pipeline.published import Output
from semel.sources.pipeline.spec import PipelineSourceSpec
from semel.sources.reread import Auditor, ClaimedRecords, RecordsLostError
from semel.sources.sealed.audit import ClaimedParts
from semel.sources.spec import SourceSpec


def opened(source: PipelineSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """Return an auditor that reads the batches of the declared pipeline."""
    return closing(_Batches(OutputPlace.of(source)))


class _Batches(Auditor):
    """Reads the files that the markers of claimed batches list."""

    def __init__(self, place: OutputPlace) -> None:
        self._place = place
        self._parts = ClaimedParts(list)

    def close(self) -> None:
        """Close the open files."""
        self._parts.close()

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        output, newest = self._claimed(claim)
        return (), self._rows(output, newest, claim, batch, source, record_id)

    def _claimed(self, claim: Claim) -> tuple[Output, int]:
        """The claimed output, even if a replay has replaced it, and the newest generation's number."""
        content, name = claim.evidence.get("content"), marker_name(claim.name)
        try:
            newest = self._place.output(name)
            if newest.content == content:
                return newest, newest.generation
            outputs = self._place.replaced_outputs(newest, name)
            output = next((each for each in outputs if each.content == content), None)
        except CorruptionError as error:
            raise SourceError(f"cannot read the marker of {claim.name!r} ({error})") from error
        if output is None and newest.generation > 1 and not self._place.keeps_replaced:
            raise _replaced(claim)
        if output is None:
            raise SourceError(f"no output of {claim.name!r} has the claimed content")
        return output, newest.generation

    def _rows(
        self,
        output: Output,
        newest: int,
        claim: Claim,
        batch: int,
        source: SourceSpec,
        record_id: Collection[str],
    ) -> Iterator[ClaimedRecords]:
        for file in output.between(claim.start, claim.end):
            address = self._place.address(file.path)
            try:
                with self._place.local_copy(file) as path:
                    with open(path, "rb") as opened:
                        whole = file.is_whole(opened)
                    if not whole:
                        raise SourceError(f"{address} of {claim.name!r} differs from its marker")
                    yield from self._parts.rows(
                        path, claim, batch, source, record_id,
                        size=file.bytes, first=file.first, fixed=file.fixed,
                    )  # fmt: skip
            except FileNotFoundError as error:
                if output.generation < newest:  # Collect may have removed it just now.
                    raise _replaced(claim) from error
                raise SourceError(f"{address} of {claim.name!r} does not exist") from error
            except OSError as error:
                raise SourceError(f"{address} cannot be read: {error}") from error


def _replaced(claim: Claim) -> RecordsLostError:
    return RecordsLostError(f"a replay of {claim.name!r} has replaced this output")
