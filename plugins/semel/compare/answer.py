"""The answer of compare: the differences between a live path's output and another output."""

from dataclasses import dataclass, field
from datetime import datetime

from semel.model.batch import Counts
from semel.model.reasons import ExplainedEnum


class Cause(ExplainedEnum):
    """Why two outputs differ, in the order in which compare tries the causes."""

    LATE = "late", "the live path set the record aside as late"
    QUARANTINED = "quarantined", "the live path quarantined the record"
    QUARANTINED_BY_OTHER = (
        "quarantined_in_batch_path", "the batch path quarantines records of this batch"
    )  # fmt: skip
    COPY = "copy_won", "another copy of the repeated id won"
    FORGOTTEN = "forgotten", "the live path accepted the id again: its horizon was over"
    FILE = "output_changed", "an output file differs from its marker"
    SOURCE = "source_changed", "the source changed after the live path read it"
    RANDOM = (
        "not_deterministic",
        "two runs of the batch path differ here: the transforms are not deterministic",
    )
    CODE = "code_changed", "the code has changed since the batch"
    SPEC = "declaration_changed", "the declaration has changed since the batch"
    TRANSFORM = "transform", "the transforms depend on which records share a batch"
    UNKNOWN = "unknown", "compare could not determine the cause"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a record begins in the source. `line` is None for a source without lines."""

    source: str
    line: int | None
    offset: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """One output's part of a difference: the number of rows, an example row, and its record.

    `row` is None if the limits forbid showing values.
    """

    rows: int
    batch_id: int | None = None
    file: str | None = None
    row: dict[str, str | None] | None = None
    position: Position | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One id, position or row that differs between the outputs. `kind`: only_live, only_other,
    more_live or more_other (that side has more rows), or values. `id` is None if it is unknown or
    the limits forbid showing it.
    """

    kind: str
    cause: Cause
    why: str
    id: str | None
    live: Side
    other: Side


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer. `other`: "batch path", or the other pipeline's name.

    `by`: how rows are matched: id, position, window or row. `differences` has the first of `total`;
    `causes` counts all. `apart` counts, by side and reason, decisions and dead letters that only
    that side has, even if the rows are equal. `known`: the number of ids that the batches knew from
    batches outside of the range.
    """

    pipeline: str
    other: str
    batches: tuple[int, ...]
    other_batches: tuple[int, ...] = ()
    by: str
    rows_live: int
    rows_other: int
    total: int
    causes: dict[str, int]
    differences: tuple[Difference, ...]
    apart: dict[str, dict[str, int]] = field(default_factory=dict)
    known: int = 0
    counts: Counts | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """True if the two outputs have the same rows."""
        return not self.total


@dataclass(frozen=True, kw_only=True)
class BatchRange:
    """The batches of [start, end), or those numbered `first` to `last`."""

    start: datetime | None = None
    end: datetime | None = None
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        if self.first is not None:
            return f"{self.first} to {self.last}"
        return f"{self.start.isoformat()} to {self.end.isoformat()}"
