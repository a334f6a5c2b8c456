"""The values that the verbs exchange: pipeline row, batch, claim, attempt, and their states.

The state machine is here as data. sql/schema.sql and docs/protocol.md have it too, and a test
compares the three.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import Any, Self

from semel.errors import NO_STEP, TerminalError

KEYS_COUNTED_MAX = 100
"""The most frequent ignored keys that a batch counts. A map may have any number of keys."""

Row = Mapping[str, Any]
"""A row of the ledger, by column name."""

Log = Callable[[str], None]
"""Takes progress messages for a waiting user, one line at a time."""

RANGE = r"(\d{1,18})(?:\.\.(\d{1,18}))?"
"""Batches as a user writes them: `17` or `17..23`."""


HOLDERS_SHOWN = 5
"""The newest batches that a message names."""


class BatchStatus(StrEnum):
    PLANNED = "planned"
    COMMITTED = "committed"
    FINALIZED = "finalized"
    ABANDONED = "abandoned"


class AttemptStatus(StrEnum):
    RUNNING = "running"
    STAGED = "staged"
    WON = "won"
    LOST = "lost"


BATCH_TRANSITIONS = {
    (BatchStatus.PLANNED, BatchStatus.COMMITTED): "commit",
    (BatchStatus.PLANNED, BatchStatus.ABANDONED): "abandon",
    (BatchStatus.COMMITTED, BatchStatus.FINALIZED): "finalize",
}

ATTEMPT_TRANSITIONS = {
    (AttemptStatus.RUNNING, AttemptStatus.STAGED): "stage",
    (AttemptStatus.RUNNING, AttemptStatus.LOST): "stage, commit or abandon",
    (AttemptStatus.STAGED, AttemptStatus.WON): "commit",
    (AttemptStatus.STAGED, AttemptStatus.LOST): "commit or abandon",
}


class _FromRow:
    @classmethod
    def from_row(cls, row: Row) -> Self:
        """The value from a row with a column for each field. It ignores other columns."""
        values = {field.name: row[field.name] for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Pipeline(_FromRow):
    """A pipeline's row in the ledger."""

    pipeline_id: int
    name: str
    sink_address: str
    archive_path: str
    identity: str
    shards: int
    bucket_seconds: int
    commit_seq: int
    sink_schema: str | None
    created_at: datetime
    exact_from: int | None

    @property
    def repeats(self) -> str | None:
        """A note about repeats in the pipeline's output. None if there are no repeats."""
        return repeats_of(self.exact_from)

    @property
    def ledger(self) -> str:
        """Identifies a pipeline across ledgers: the time of its creation, which adopt copies."""
        return self.created_at.astimezone(UTC).isoformat()


def repeats_of(exact_from: int | None) -> str | None:
    """A note about repeats: they may exist before the commit from which a pipeline is exactly once
    (None: it is not). Returns None if there cannot be repeats.
    """
    if exact_from is None:
        return "repeats may be there: at_least_once"
    return f"repeats may be there before commit {exact_from}" if exact_from > 1 else None


@dataclass(frozen=True, kw_only=True)
class Batch(_FromRow):
    """A batch with its plan and its status. `spec`: the declaration at the time of the plan.

    A replay has the interval of the batch that it `replays` and, after its commit, that batch's
    place in the order of commits. `generation` counts that batch's outputs, from 1. An admission
    takes dead letters from the batch that it `admits`; `admission` counts them, from 1.
    `judged_by`: the batch whose verdicts it uses, or itself.
    """

    batch_id: int
    pipeline_id: int
    request_key: str
    ordinal: int
    status: BatchStatus
    spec: dict[str, Any]
    spec_digest: str
    split_bytes: int
    interval_start: datetime | None
    interval_end: datetime | None
    commit_seq: int | None
    batch_time: datetime | None
    replays: int | None
    generation: int
    admits: int | None
    admission: int | None
    judged_by: int

    @property
    def at_least_once(self) -> bool:
        """True if the plan was at least once, so that the batch does not compare ids."""
        return self.spec.get("guarantee") == "at_least_once"

    @property
    def by_position(self) -> bool:
        """True if the plan was without ids. The pipeline's declaration may have changed since."""
        return self.at_least_once or not self.spec.get("record_id")

    @property
    def open(self) -> bool:
        """True if the batch is planned or committed, and not finished."""
        return self.status in (BatchStatus.PLANNED, BatchStatus.COMMITTED)

    @property
    def judges(self) -> bool:
        """True if the batch judges all records that it reads."""
        return self.judged_by == self.batch_id and self.admits is None

    @property
    def root(self) -> int:
        """The batch whose output it computes: the batch that it replays, or itself."""
        return self.replays or self.batch_id

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The run's interval. The ledger has both ends or neither."""
        start, end = self.interval_start, self.interval_end
        return (start, end) if start and end else None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        values = {**row, "status": BatchStatus(row["status"])}
        return super().from_row(values)  # type: ignore[arg-type]


def dag_run_of(request_key: str) -> tuple[str, str] | None:
    """The DAG and run of an Airflow request. Returns None for other requests."""
    kind, _, ids = request_key.partition(":")
    dag, _, run = ids.partition(":")
    return (dag, run) if kind == "airflow" and run else None


def run_of(request_key: str) -> str:
    """The run of a request, by its name on Airflow's pages."""
    dag_run = dag_run_of(request_key)
    return dag_run[1] if dag_run else request_key


def numbers(text: str) -> tuple[int, int]:
    """The first and last batch that a text names. Raises TerminalError if it is not a range."""
    match = re.fullmatch(RANGE, text)
    if not match:
        raise TerminalError(
            f"{text!r} is not a number of a batch, such as 17, or a range, such as 17..23",
            next=NO_STEP,
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise TerminalError(
            f"{text}: the first number is larger than the last one; write {last}..{first}",
            next=NO_STEP,
        )
    return first, last


def runs(batches: Collection[int], all_batches: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Group some of a pipeline's batches into runs [first, last] without other batches between."""
    batches = set(batches)
    groups = (list(g) for is_in, g in groupby(sorted(all_batches), batches.__contains__) if is_in)
    return tuple((group[0], group[-1]) for group in groups)


@dataclass(frozen=True, kw_only=True)
class Claim(_FromRow):
    """One planned range: positions [start, end) of a source partition, under its current name.

    `evidence` identifies the content up to `end`. Only the source can interpret it.
    """

    ordinal: int
    source_partition_id: int
    name: str
    identity: str
    start: int
    end: int
    evidence: dict[str, Any]

    @classmethod
    def of(cls, other: "Claim") -> Self:
        """Convert to this class, which belongs to a source."""
        return cls(**vars(other))


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The account of a batch. read = survivors + both duplicates + quarantined + late."""

    records_read: int = 0
    survivors: int = 0
    duplicates_batch: int = 0
    duplicates_catalog: int = 0
    quarantined: int = 0
    late: int = 0
    rows_written: int = 0
    bytes_read: int = 0

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """The account of an attempt. All counts are 0 before the end of stage."""
        return cls(**{field.name: row[field.name] or 0 for field in fields(cls)})

    @property
    def add_up(self) -> bool:
        """True if the counts add up."""
        outcomes = self.survivors, self.duplicates_batch, self.duplicates_catalog
        return self.records_read == sum(outcomes) + self.quarantined + self.late

    @property
    def duplicates(self) -> int:
        """The number of records dropped as duplicates."""
        return self.duplicates_batch + self.duplicates_catalog

    @property
    def short(self) -> str:
        """One line: `1,000 new, 20 repeats, 3 quarantined, 0 late`."""
        return (
            f"{self.survivors:,} new, {self.duplicates:,} repeats, "
            f"{self.quarantined:,} quarantined, {self.late:,} late"
        )

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)}
        )


LABELS = {
    "duplicates_batch": "repeats within the batch",
    "duplicates_catalog": "repeats of earlier ones",
    "quarantined": "quarantined",
    "late": "late",
}
"""Counts that a summary lists on separate lines, with their labels."""

OF_THE_OUTPUT = frozenset({"rows_written"})
"""Counts of the output. The others count the input, which is the same in a replay."""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Keys that are not in the schema, each with the number of its records.

    `sampled`: the numbers are estimates, from some records of each block. `tombstones`: messages
    without a value, which do not count as records.
    """

    keys: dict[str, int] = field(default_factory=dict)
    sampled: bool = False
    tombstones: int = 0

    def __add__(self, other: "Ignored") -> "Ignored":
        both = Counter(self.keys) + Counter(other.keys)
        by_count = sorted(both.items(), key=lambda item: (-item[1], item[0]))
        return Ignored(
            keys=dict(by_count[:KEYS_COUNTED_MAX]),
            sampled=self.sampled or other.sampled,
            tombstones=self.tombstones + other.tombstones,
        )


@dataclass(frozen=True, kw_only=True)
class Attempt(_FromRow):
    """One try at staging a batch."""

    attempt_id: int
    batch_id: int
    fence: int
    status: AttemptStatus
    snapshot_seq: int
    input_digest: str | None
    sink_schema: str | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        values = {**row, "status": AttemptStatus(row["status"])}
        return super().from_row(values)  # type: ignore[arg-type]
