"""Another pipeline's output as the audit reads it again, by the markers of its batches."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing

from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.pipeline.published import Output, OutputFolders
from semel.sources.pipeline.spec import PipelineSourceSpec
from semel.sources.reread import Auditor, ClaimedRecords, RecordsLostError
from semel.sources.sealed.audit import ClaimedParts
from semel.sources.spec import SourceSpec


def opened(source: PipelineSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """What reads the batches of the declared pipeline."""
    return closing(_Batches(OutputFolders.of(source)))


class _Batches(Auditor):
    """Reads the files that the markers of claimed batches list."""

    def __init__(self, place: OutputFolders) -> None:
        self._place = place
        self._parts = ClaimedParts(list)

    def close(self) -> None:
        """End what was opened to read."""
        self._parts.close()

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        output, newest = self._claimed(claim)
        return (), self._rows(output, newest, claim, batch, source, record_id)

    def _claimed(self, claim: Claim) -> tuple[Output, int]:
        """The output that was claimed, also where a replay replaced it since; and the number of the
        newest generation.
        """
        content = claim.evidence.get("content")
        try:
            newest = self._place.read(self._place.marker(claim.name))
            if newest.content == content:
                return newest, newest.generation
            before = range(1, newest.generation)
            paths = [self._place.replaced(claim.name, number) for number in before]
            found = next((o for o in map(self._place.read, paths) if o.content == content), None)
        except CorruptionError as error:
            raise SourceError(f"the marker of {claim.name!r} cannot be read ({error})") from error
        if found is None:
            raise SourceError(f"no output of {claim.name!r} has the claimed content")
        return found, newest.generation

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
            try:
                if not file.is_whole():
                    raise SourceError(f"{file.path} of {claim.name!r} is not what its marker lists")
                yield from self._parts.rows(
                    file.path, claim, batch, source, record_id,
                    size=file.bytes, first=file.first, fixed=file.fixed,
                )  # fmt: skip
            except FileNotFoundError as error:
                if output.generation < newest:  # Collect removes it, also meanwhile.
                    raise RecordsLostError(
                        f"a replay of {claim.name!r} replaced what was read"
                    ) from error
                raise SourceError(f"{file.path} of {claim.name!r} is gone") from error
            except OSError as error:
                raise SourceError(f"{file.path} cannot be read: {error}") from error
