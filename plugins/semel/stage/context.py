"""The context of one attempt: the values that its steps in the driver share."""

from dataclasses import dataclass

from semel import storage
from semel.ledger import Ledger
from semel.model.batch import Batch, Claim, Log, Pipeline
from semel.pipeline.spec import Spec
from semel.sinks.note_comparison import KnownBatch
from semel.sources import Source
from semel.stage.job import JobEngine
from semel.storage import ArchivePath


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """The batch of an attempt and its collaborators. Stage creates it before the attempt begins.

    `claims` have the current names of the source's parts. `known`: the newest batches that the
    ledger expects in the target.
    """

    ledger: Ledger
    spec: Spec
    pipeline: Pipeline
    batch: Batch
    source: Source
    claims: list[Claim]
    known: list[KnownBatch]
    engine: JobEngine
    log: Log

    @property
    def archive(self) -> ArchivePath:
        """The pipeline's archive."""
        return storage.at(self.pipeline.archive_path)
