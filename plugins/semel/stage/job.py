"""The input of every task of a stage job: one immutable value, which the driver creates."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa

from semel.catalog.runs import IdRun
from semel.errors import ArchiveUnseenError
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
from semel.storage import ArchivePath, StorePath

if TYPE_CHECKING:
    from semel.stage.verdicts import Selected

SOURCE_COLUMN = "_semel_source"
OFFSET_COLUMN = OFFSET


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One attempt's work. `runs`: the pinned list, the only id runs that classify may consult.

    Contains no secret, because Spark displays it with every plan: an executor reads the ledger's
    address from its own environment. `began_at`: the ledger's time, by which a task checks that it
    has the right ledger. `refuses`: finds the output rows that the sink will reject.
    """

    spec: Spec
    pipeline_id: int
    batch_id: int
    attempt_id: int
    began_at: datetime
    fence: int
    folder: ArchivePath
    source: Source
    splits: Splits
    shards: int
    bucket_seconds: int
    forgotten: Buckets
    now_seconds: int
    times_until: datetime = datetime.max.replace(tzinfo=UTC)
    """Later record times are ahead of the plan, and do not advance the watermark."""
    segment_id: int | None
    runs: tuple[IdRun, ...]
    code: dict[str, bytes] = field(default_factory=dict, repr=False)
    """The text of each transform's file, by name: the code that runs."""
    refuses: RowChecker | None = None
    selected: "Selected | None" = None
    """In a replay or an admission: the selected records."""
    known: ArchivePath | None = None
    """In a compare: the folder with the known ids, instead of the catalog."""
    writes_early: bool = False
    """Whether read tasks write the output, before classify, and only tasks with duplicates write
    theirs again. Otherwise valid records wait in a spill for classify."""

    @classmethod
    def apart(
        cls,
        spec: Spec,
        source: Source,
        claims: Sequence[Claim],
        split_bytes: int | None = None,
        **more: Any,
    ) -> Self:
        """A job without an attempt, which does not use the catalog. `more`: `batch_id`, `shards`,
        `bucket_seconds`, `now_seconds`, and other fields.
        """
        nothing = {
            "pipeline_id": 0, "attempt_id": 0, "began_at": datetime.min, "fence": 0,
            "folder": Path(), "forgotten": Buckets(), "segment_id": None, "runs": (),
        }  # fmt: skip
        splits = splits_for(source, claims, split_bytes or source.split_size)
        return cls(spec=spec, source=source, splits=splits, **nothing | more)

    @property
    def judges(self) -> bool:
        """Whether the job looks up ids. Replays and identity by position do not."""
        judged = self.selected is None or self.selected.judged
        return judged and not self.spec.by_position

    @property
    def may_refuse(self) -> bool:
        """Whether the sink may reject rows."""
        return self.refuses is not None or bool(self.spec.sink.partition_by)

    def refused(self, rows: pa.Table) -> list[RefusedRows]:
        """The rows that the sink will reject; with `aggregate`, by each record's partial row."""
        if not self.may_refuse or not rows.num_rows:
            return []
        rows = lifted(self.spec, rows) if self.spec.aggregate else rows
        refusals = self.refuses(rows) if self.refuses is not None else []
        if self.spec.sink.partition_by:
            refusals = refusals + folders.refused(self.spec.sink, self.spec.name, rows)
        return refusals

    def bytes_of(self, split: Split, record_bytes: int = 0) -> int:
        """The bytes of a split that count as read. They count only for the batch that claims them.

        `record_bytes`: the bytes of its records, used if positions do not count bytes.
        """
        if self.selected is not None and self.selected.only:
            return 0
        return split.end - split.start if self.spec.source.counts_bytes else record_bytes

    @property
    def tasks(self) -> int:
        """The number of read tasks; there are as many write tasks."""
        return len(self.splits.tasks)

    @property
    def is_small(self) -> bool:
        """Whether one task reads, classifies and writes the batch: for so few records, a stage of
        Spark and a task for each shard take longer than the work in them.
        """
        if self.tasks != 1:
            return False
        size = sum(split.end - split.start for split in self.splits)
        return size <= self.source.split_size * SMALL_MAX

    def splits_of_task(self, task: int) -> tuple[Split, ...]:
        """The splits of a task, in source order."""
        return self.splits.of_task(task)

    # Keeps S5, AR4.
    def check_folder(self) -> None:
        """Raises ArchiveUnseenError if this process does not see the folder of the attempt. A store
        has no folders: nothing seals or lists what a task of a deleted attempt puts there.
        """
        if not isinstance(self.folder, StorePath) and not self.folder.is_dir():
            raise ArchiveUnseenError(
                f"an executor on {socket.gethostname()} does not see the archive: the driver made "
                f"the folder {self.folder}, and it does not exist there. Nothing was committed. "
                "Mount the data folder there under the driver's path, then run stage again"
            )

    @property
    def spill_dir(self) -> ArchivePath:
        return self.folder / "spill"

    @property
    def data_dir(self) -> ArchivePath:
        return self.folder / "data"

    def output_schema(self) -> pa.Schema:
        """The columns of survivors, which transforms receive."""
        return survivors_of(self.spec)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An engine's result: a report per split, the files from transforms, and the columns in the
    ledger's form.
    """

    reports: list[SplitReport]
    files: tuple[StagedFile, ...]
    sink_schema: list[list[str]]


class JobEngine(Protocol):
    """Runs the job of an attempt.

    The driver calls it once per attempt. Tasks may run several times, even at the same time. Raises
    RetryableError if the engine failed. An error of a task keeps its class.
    """

    def run(self, job: StageJob) -> Outcome: ...


def splits_for(source: Source, claims: Sequence[Claim], split_bytes: int) -> Splits:
    """The splits of a batch's claims. A claim that the source reads as a whole is one split."""
    whole = {claim.ordinal for claim in claims if source.is_whole(claim)}
    return splits_of(list(claims), split_bytes, whole=whole)


SMALL_MAX = 1 / 8
"""The share of a split, by the size that the source counts, up to which a batch is small."""

EARLY_SPREAD_MAX = 1 / 8
"""A task with duplicates takes twice as long if it has written early; any other one saves an eighth
or more."""


def writes_early(last_spread: float | None) -> bool:
    """Whether the tasks of a batch write their output before classify.

    `last_spread`: the share of the last batch's tasks that dropped duplicates, or None if unknown.
    """
    return last_spread is not None and last_spread <= EARLY_SPREAD_MAX


def columns_of(spec: Spec) -> pa.Schema:
    """The columns of a pipeline's output without transforms."""
    return written_of(spec, survivors_of(spec))


def written_of(spec: Spec, rows: pa.Schema) -> pa.Schema:
    """The columns to write for some rows: their own, or with `aggregate` those of partial rows."""
    return partial_schema(spec, rows) if spec.aggregate else rows


def survivors_of(spec: Spec) -> pa.Schema:
    """The columns of a pipeline's survivors."""
    schema = spec.arrow_schema()
    if spec.sink.position_columns:
        schema = schema.append(pa.field(SOURCE_COLUMN, pa.int64(), nullable=False))
        schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
    return schema


def output_columns(job: StageJob, split: Split, table: pa.Table) -> pa.Table:
    """Convert a spilled table to the columns for the sink or the transforms."""
    if not job.spec.sink.takes_positions:
        return table.drop_columns([OFFSET])
    source = pa.array(np.full(table.num_rows, split.claim.source_partition_id, np.int64))
    at = table.column_names.index(OFFSET)
    return table.add_column(at, pa.field(SOURCE_COLUMN, pa.int64(), nullable=False), source)
