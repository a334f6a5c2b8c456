"""What a compare answers: the differences between a live path's output and another's."""

from dataclasses import dataclass, field
from datetime import datetime

from semel.model.batch import Counts
from semel.model.reasons import ExplainedEnum


class Cause(ExplainedEnum):
    """Why two outputs differ, in the order in which causes are tried."""

    LATE = "late", "the live path set the record aside as late"
    QUARANTINED = "quarantined", "the live path quarantined the record"
    QUARANTINED_BY_OTHER = (
        "quarantined_in_batch_path", "the batch path quarantines records of this batch"
    )  # fmt: skip
    COPY = "copy_won", "another copy of the repeated id won"
    FORGOTTEN = "forgotten", "the live path took the id again: its horizon was over"
    FILE = "output_changed", "an output file is not what its marker lists"
    SOURCE = "source_changed", "the source was edited after it was read"
    RANDOM = (
        "not_deterministic",
        "two runs of the batch path differ here: the transforms are not deterministic",
    )
    CODE = "code_changed", "other code made the batch"
    SPEC = "declaration_changed", "the pipeline was declared otherwise when the batch was made"
    TRANSFORM = "transform", "the transforms make other rows when a batch holds other records"
    UNKNOWN = "unknown", "the cause cannot be told"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a record begins in the source; `line` where it can be told."""

    source: str
    line: int | None
    offset: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one of the two outputs has: rows, an example of them, and the record that it came from.

    `row` is None where no values may be shown.
    """

    rows: int
    batch_id: int | None = None
    file: str | None = None
    row: dict[str, str | None] | None = None
    position: Position | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One id, position or row that is not the same in both. `kind`: only_live, only_other,
    more_live, more_other (as many rows of it more), or values. `id` is None where none is known or
    may be shown.
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

    `by`: what rows are matched by: id, position, window or row. `differences` are some of `total`;
    `causes` counts all. `apart` counts, by reason, records that one side alone kept out:
    decisions and dead letters, even where the rows are equal. `known`: how many ids were known
    from batches outside of the range.
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
        """Whether the two outputs hold the same."""
        return not self.total


@dataclass(frozen=True, kw_only=True)
class BatchRange:
    """Which batches: those of [start, end), or those numbered `first` to `last`."""

    start: datetime | None = None
    end: datetime | None = None
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        if self.first is not None:
            return f"{self.first} to {self.last}"
        return f"{self.start.isoformat()} to {self.end.isoformat()}"
