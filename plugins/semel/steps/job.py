"""What every task of a stage job is given: one value, made by the driver, never changed after."""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from semel import limits
from semel.batch import Claim
from semel.catalog import Run
from semel.pipeline import Spec
from semel.sources.records import OFFSET

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


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One attempt's work. `runs` is the pinned list: all that classification may consult."""

    spec: Spec
    dsn: str = field(repr=False)
    pipeline_id: int
    batch_id: int
    attempt_id: int
    fence: int
    folder: Path
    source_root: Path
    splits: tuple[Split, ...]
    shards: int
    bucket_seconds: int
    gc_floor: int
    now_seconds: int
    segment_id: int | None
    runs: tuple[Run, ...]
    cache_dir: Path

    @property
    def tasks(self) -> int:
        """How many tasks read, and how many write."""
        return self.splits[-1].task + 1

    def splits_of_task(self, task: int) -> list[Split]:
        """The splits that a task has, in source order."""
        return [split for split in self.splits if split.task == task]

    @property
    def spill_dir(self) -> Path:
        return self.folder / "spill"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def output_schema(self) -> pa.Schema:
        """The columns that transforms are given, and that are written when there is none."""
        schema = self.spec.arrow_schema()
        if self.spec.sink.position_columns:
            schema = schema.append(pa.field(SOURCE_COLUMN, pa.int64(), nullable=False))
            schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
        return schema


def splits_of(claims: list[Claim], split_bytes: int, *, whole: set[int]) -> tuple[Split, ...]:
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
    return tuple(found)
