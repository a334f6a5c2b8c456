"""What every task of a stage job is given: one value, made by the driver, never changed after."""

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semel import limits
from semel.catalog.buckets import Buckets
from semel.catalog.runs import Run
from semel.formats.records import OFFSET
from semel.model.batch import Claim
from semel.pipeline import Spec
from semel.sinks import Refuses
from semel.sources import Source

if TYPE_CHECKING:
    from semel.stage.verdicts import Selected

SOURCE_COLUMN = "_semel_source"
OFFSET_COLUMN = OFFSET


@dataclass(frozen=True, kw_only=True)
class Split:
    """A part of a claimed range: lines that start in [start, end). Its task has it as a whole."""

    number: int
    task: int
    claim: Claim
    start: int
    end: int


class Splits(Sequence[Split]):
    """The splits of a job, by number, and by task.

    How it works: on its way to a task it is one blob for each task, and a task opens its own: the
    splits of 10,000 files take 70 ms to unpickle, which each task would pay.
    """

    def __init__(self, splits: Iterable[Split]) -> None:
        groups = [tuple(group) for _, group in groupby(splits, attrgetter("task"))]
        self._ends = list(accumulate(map(len, groups)))
        self._open: dict[int, tuple[Split, ...]] = dict(enumerate(groups))
        self._packed: list[bytes] = []

    def __getstate__(self) -> tuple[list[int], list[bytes]]:
        return self._ends, self._packed or [pickle.dumps(self.of_task(t)) for t in self.tasks]

    def __setstate__(self, state: tuple[list[int], list[bytes]]) -> None:
        self._ends, self._packed = state
        self._open = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Split:  # type: ignore[override]
        number = range(len(self))[number]
        task = self.task_of(number)
        return self.of_task(task)[number - self._ends[task]]

    def __iter__(self) -> Iterator[Split]:
        return chain.from_iterable(map(self.of_task, self.tasks))

    @property
    def tasks(self) -> range:
        """The numbers of the tasks."""
        return range(len(self._ends))

    def task_of(self, number: int) -> int:
        """The task that has a split."""
        return bisect_right(self._ends, number)

    def of_task(self, task: int) -> tuple[Split, ...]:
        """The splits that a task has, in source order."""
        if task not in self._open:
            self._open[task] = pickle.loads(self._packed[task])
        return self._open[task]


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One attempt's work. `runs` is the pinned list: all that classification may consult.

    It is shown wherever Spark shows a plan, so it holds no secret: an executor has the ledger's
    address from its own environment. `began_at` is the ledger's time, by which a task knows the
    attempt, and so the ledger.
    `refuses` finds the rows of the output that the sink will not take.
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
    segment_id: int | None
    runs: tuple[Run, ...]
    code: dict[str, bytes] = field(default_factory=dict, repr=False)
    """The texts of the transforms' files, by name: what runs."""
    refuses: Refuses | None = None
    selected: "Selected | None" = None
    """Of a replay or an admission: which records of the ranges it takes."""
    scratch: str | None = None
    """The database, on the ledger's server, that a compare made for itself."""

    @property
    def judges(self) -> bool:
        """Whether ids are looked up. A replay has its verdicts, and positions need none."""
        judged = self.selected is None or self.selected.judged
        return judged and not self.spec.by_position

    def bytes_of(self, split: Split, seen: int = 0) -> int:
        """The bytes of a split that count as read: once, by the batch that claims them.

        `seen`: those of its records, for positions that do not count bytes.
        """
        if self.selected is not None and self.selected.only:
            return 0
        return split.end - split.start if self.spec.source.unit == "bytes" else seen

    @property
    def tasks(self) -> int:
        """How many tasks read, and how many write."""
        return len(self.splits.tasks)

    def splits_of_task(self, task: int) -> tuple[Split, ...]:
        """The splits that a task has, in source order."""
        return self.splits.of_task(task)

    @property
    def spill_dir(self) -> Path:
        return self.folder / "spill"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def output_schema(self) -> pa.Schema:
        """The columns that transforms are given, and that are written when there is none."""
        return columns_of(self.spec)


def columns_of(spec: Spec) -> pa.Schema:
    """The columns of a pipeline's output without transforms."""
    schema = spec.arrow_schema()
    if spec.sink.position_columns:
        schema = schema.append(pa.field(SOURCE_COLUMN, pa.int64(), nullable=False))
        schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
    return schema


def output_columns(job: StageJob, split: Split, table: pa.Table) -> pa.Table:
    """A spilled table as the sink or the transforms see it."""
    if not job.spec.sink.position_columns:
        return table.drop_columns([OFFSET])
    source = pa.array(np.full(table.num_rows, split.claim.source_partition_id, np.int64))
    at = table.column_names.index(OFFSET)
    return table.add_column(at, pa.field(SOURCE_COLUMN, pa.int64(), nullable=False), source)


def splits_of(claims: list[Claim], split_bytes: int, *, whole: set[int]) -> Splits:
    """Cut claims into splits in source order. The same claims and size give the same splits.

    Those of one claim are of equal size, and one, two or a multiple of four in number, as cores
    are: so tasks end together. A task has splits up to `split_bytes` together, and up to
    SPLITS_PER_TASK_MAX, so that small files are few tasks but not one. `whole` holds the ordinals
    of claims that cannot be cut (gzip, multiline CSV).
    """
    found: list[Split] = []
    task = held = count = 0
    for claim in claims:
        size = claim.end - claim.start
        parts = 1 if claim.ordinal in whole else -(-size // split_bytes)
        parts = parts if parts <= 2 else -(-parts // 4) * 4
        step = -(-size // parts)
        for start in range(claim.start, claim.end, step):
            end = min(start + step, claim.end)
            if held and (held + end - start > split_bytes or count == limits.SPLITS_PER_TASK_MAX):
                task, held, count = task + 1, 0, 0
            held, count = held + end - start, count + 1
            found.append(Split(number=len(found), task=task, claim=claim, start=start, end=end))
    return Splits(found)
