"""The context of one attempt: the values that its steps in the driver share."""

from dataclasses import dataclass
from pathlib import Path

from semel.ledger import Ledger
from semel.model.batch import Batch, Claim, Log, Pipeline
from semel.pipeline.spec import Spec
from semel.sinks.held import KnownBatch
from semel.sources import Source
from semel.stage.job import JobEngine


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """An attempt's batch, and the parties to it. stage makes it once, before the attempt begins.

    `claims` name the parts where the source has them now. `known` are the newest batches that the
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
    def archive(self) -> Path:
        """The folder of the pipeline's archive."""
        return Path(self.pipeline.archive_path)
