"""The input of every task of a stage job: one value, made by the driver and never changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa

from semel.catalog.runs import IdRun
from semel.formats.records import OFFSET
from semel.model.batch import Claim
from semel.model.buckets import Buckets
from semel.model.manifest import SplitReport, StagedFile
from semel.model.split import Split, Splits, splits_of
from semel.pipeline.spec import Spec
from semel.sinks import RefusedRows, RowChecker
from semel.sources import Source
from semel.stage import folders
from semel.stage.combine import lifted, partial_schema

if TYPE_CHECKING:
    from semel.stage.verdicts import Selected

SOURCE_COLUMN = "_semel_source"
OFFSET_COLUMN = OFFSET


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One attempt's work. `runs` is the pinned list: all that classification may consult.

    Spark shows it with every plan, so it holds no secret: an executor takes the ledger's address
    from its own environment. `began_at` is the ledger's time; a task checks by it that it has the
    right ledger. `refuses` finds the output rows that the sink will not take.
    """

    spec: Spec
    pipeline_id: int
    batch_id: int
    attempt_id: int
    began_at: datetime
    fence: int
    folder: Path
    source: Source
    splits: Splits
    shards: int
    bucket_seconds: int
    forgotten: Buckets
    now_seconds: int
    times_until: datetime = datetime.max.replace(tzinfo=UTC)
    """Record times after this are ahead of the plan: by them nothing is complete."""
    segment_id: int | None
    runs: tuple[IdRun, ...]
    code: dict[str, bytes] = field(default_factory=dict, repr=False)
    """The texts of the transforms' files, by name: the code that runs."""
    refuses: RowChecker | None = None
    selected: "Selected | None" = None
    """For a replay or an admission: the records of the ranges that it takes."""
    known: Path | None = None
    """A compare's: the folder with the ids that count as known, in place of the catalog."""

    @classmethod
    def apart(
        cls,
        spec: Spec,
        source: Source,
        claims: Sequence[Claim],
        split_bytes: int | None = None,
        **more: Any,
    ) -> Self:
        """A job of no attempt: it has no part in the catalog. `more`: `batch_id`, `shards`,
        `bucket_seconds`, `now_seconds`, and what else it needs.
        """
        nothing = {
            "pipeline_id": 0, "attempt_id": 0, "began_at": datetime.min, "fence": 0,
            "folder": Path(), "forgotten": Buckets(), "segment_id": None, "runs": (),
        }  # fmt: skip
        splits = splits_for(source, claims, split_bytes or source.split_size)
        return cls(spec=spec, source=source, splits=splits, **nothing | more)

    @property
    def judges(self) -> bool:
        """Whether ids are looked up. A replay has its verdicts, and positions need none."""
        judged = self.selected is None or self.selected.judged
        return judged and not self.spec.by_position

    @property
    def may_refuse(self) -> bool:
        """Whether there may be rows that the sink will not take."""
        return self.refuses is not None or bool(self.spec.sink.partition_by)

    def refused(self, rows: pa.Table) -> list[RefusedRows]:
        """Which rows the sink will not take: of partial rows, each record's own."""
        if not self.may_refuse or not rows.num_rows:
            return []
        rows = lifted(self.spec, rows) if self.spec.aggregate else rows
        found = self.refuses(rows) if self.refuses is not None else []
        if self.spec.sink.partition_by:
            found = found + folders.refused(self.spec.sink, self.spec.name, rows)
        return found

    def bytes_of(self, split: Split, seen: int = 0) -> int:
        """The bytes of a split that count as read. They count once, for the batch that claims them.

        `seen`: the bytes of its records, for positions that do not count bytes.
        """
        if self.selected is not None and self.selected.only:
            return 0
        return split.end - split.start if self.spec.source.counts_bytes else seen

    @property
    def tasks(self) -> int:
        """The number of tasks that read, and of those that write."""
        return len(self.splits.tasks)

    def splits_of_task(self, task: int) -> tuple[Split, ...]:
        """The splits of a task, in source order."""
        return self.splits.of_task(task)

    @property
    def spill_dir(self) -> Path:
        return self.folder / "spill"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def output_schema(self) -> pa.Schema:
        """The columns of survivors, as transforms get them."""
        return survivors_of(self.spec)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An engine's result: a report per split, the files that transforms wrote, the columns as the
    ledger keeps them.
    """

    reports: list[SplitReport]
    files: tuple[StagedFile, ...]
    sink_schema: list[list[str]]


class JobEngine(Protocol):
    """Runs the job of an attempt.

    Called once per attempt, in the driver. Its tasks may run several times, even at the same time.
    RetryableError: the engine failed. An error raised by a task keeps its class.
    """

    def run(self, job: StageJob) -> Outcome: ...


def splits_for(source: Source, claims: Sequence[Claim], split_bytes: int) -> Splits:
    """The claims of a batch, cut for its tasks where the source can be."""
    whole = {claim.ordinal for claim in claims if source.is_whole(claim)}
    return splits_of(list(claims), split_bytes, whole=whole)


def columns_of(spec: Spec) -> pa.Schema:
    """The columns of a pipeline's output without transforms."""
    return written_of(spec, survivors_of(spec))


def written_of(spec: Spec, rows: pa.Schema) -> pa.Schema:
    """The columns of what is written of some rows: their own, or those of partial rows."""
    return partial_schema(spec, rows) if spec.aggregate else rows


def survivors_of(spec: Spec) -> pa.Schema:
    """The columns of a pipeline's survivors."""
    schema = spec.arrow_schema()
    if spec.sink.position_columns:
        schema = schema.append(pa.field(SOURCE_COLUMN, pa.int64(), nullable=False))
        schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
    return schema


def output_columns(job: StageJob, split: Split, table: pa.Table) -> pa.Table:
    """A spilled table as the sink or the transforms see it."""
    if not job.spec.sink.takes_positions:
        return table.drop_columns([OFFSET])
    source = pa.array(np.full(table.num_rows, split.claim.source_partition_id, np.int64))
    at = table.column_names.index(OFFSET)
    return table.add_column(at, pa.field(SOURCE_COLUMN, pa.int64(), nullable=False), source)
