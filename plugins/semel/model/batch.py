"""The values that the verbs exchange: pipeline row, batch, claim, attempt, and their states.

The state machine stands here as data. sql/schema.sql and docs/protocol.md state it again, and a
test compares the three.
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
"""Ignored keys that a batch counts, the most frequent ones: a map may have keys without end."""

Row = Mapping[str, Any]
"""A row of the ledger, by column name."""

Log = Callable[[str], None]
"""Takes progress messages for a waiting person, one line at a time."""

RANGE = r"(\d{1,18})(?:\.\.(\d{1,18}))?"
"""How a person names batches: `17` or `17..23`."""


HOLDERS_SHOWN = 5
"""Batches that one message names, from the newest on."""


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
        """The value from a row with a column for each field. Other columns are ignored."""
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
        """What to know about repeats in its output, if there may be any."""
        return repeats_of(self.exact_from)

    @property
    def ledger(self) -> str:
        """Identifies a pipeline across ledgers: the time it was made, which adopt takes over."""
        return self.created_at.astimezone(UTC).isoformat()


def repeats_of(exact_from: int | None) -> str | None:
    """Where repeats may be: before the commit from which a pipeline is exactly once (None: it is
    not). None: nowhere.
    """
    if exact_from is None:
        return "repeats may be there: at_least_once"
    return f"repeats may be there before commit {exact_from}" if exact_from > 1 else None


@dataclass(frozen=True, kw_only=True)
class Batch(_FromRow):
    """A batch: what was planned, and how far it got. `spec` is the spec at that time.

    A replay has the interval of the batch that it `replays` and, once committed, its place in the
    commit order; `generation` counts that batch's outputs, from 1. An admission takes dead letters
    from the batch that it `admits`; `admission` counts these, from 1. `judged_by`: the batch whose
    verdicts it takes, or itself.
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
        """Whether it was planned at least once: its records are not compared by id."""
        return self.spec.get("guarantee") == "at_least_once"

    @property
    def by_position(self) -> bool:
        """Whether it was planned without ids, whatever its pipeline declares now."""
        return self.at_least_once or not self.spec.get("record_id")

    @property
    def open(self) -> bool:
        """Whether it is planned or committed, so still to be finished."""
        return self.status in (BatchStatus.PLANNED, BatchStatus.COMMITTED)

    @property
    def judges(self) -> bool:
        """Whether it judges all records of what it reads."""
        return self.judged_by == self.batch_id and self.admits is None

    @property
    def root(self) -> int:
        """The batch whose output it makes: itself, or the one that it replays."""
        return self.replays or self.batch_id

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The run's interval. The ledger holds both ends or neither."""
        start, end = self.interval_start, self.interval_end
        return (start, end) if start and end else None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        values = {**row, "status": BatchStatus(row["status"])}
        return super().from_row(values)  # type: ignore[arg-type]


def dag_run_of(request_key: str) -> tuple[str, str] | None:
    """The DAG and run of an Airflow request. None for other requests."""
    kind, _, rest = request_key.partition(":")
    dag, _, run = rest.partition(":")
    return (dag, run) if kind == "airflow" and run else None


def run_of(request_key: str) -> str:
    """The run of a request, by the name on Airflow's pages."""
    found = dag_run_of(request_key)
    return found[1] if found else request_key


def numbers(text: str) -> tuple[int, int]:
    """The first and last batch that a text names. TerminalError: it names none."""
    given = re.fullmatch(RANGE, text)
    if not given:
        raise TerminalError(
            f"{text!r} names no batches: give one number, or two as in 17..23", next=NO_STEP
        )
    first, last = int(given[1]), int(given[2] or given[1])
    if first > last:
        raise TerminalError(f"{text}: the first number is the larger one", next=NO_STEP)
    return first, last


def runs(some: Collection[int], all_of_them: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Group some of a pipeline's batches into runs [first, last] with no other batch between."""
    some = set(some)
    groups = (list(g) for there, g in groupby(sorted(all_of_them), some.__contains__) if there)
    return tuple((group[0], group[-1]) for group in groups)


@dataclass(frozen=True, kw_only=True)
class Claim(_FromRow):
    """One planned range: positions [start, end) of a source partition, under its current name.

    `evidence` recognises what was read up to `end`. Only the source can interpret it.
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
        """Convert to this class, the source's own."""
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
        """The account of an attempt. All counts are 0 until it is staged."""
        return cls(**{field.name: row[field.name] or 0 for field in fields(cls)})

    @property
    def accounted(self) -> bool:
        """Whether they add up."""
        outcomes = self.survivors, self.duplicates_batch, self.duplicates_catalog
        return self.records_read == sum(outcomes) + self.quarantined + self.late

    @property
    def short(self) -> str:
        """One line: `1,000 new, 20 repeats, 3 quarantined, 0 late`."""
        repeats = self.duplicates_batch + self.duplicates_catalog
        return (
            f"{self.survivors:,} new, {repeats:,} repeats, {self.quarantined:,} quarantined, "
            f"{self.late:,} late"
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
"""Counts that a summary lists on lines of their own, with their labels."""

OF_THE_OUTPUT = frozenset({"rows_written"})
"""Counts of the output. The others are of the input, which a replay leaves as it was."""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Keys that the schema does not name, each with the number of records that have it.

    `sampled`: the numbers are estimates, from some records of each block. `tombstones`: messages
    without a value, which do not count as records.
    """

    keys: dict[str, int] = field(default_factory=dict)
    sampled: bool = False
    tombstones: int = 0

    def __add__(self, other: "Ignored") -> "Ignored":
        both = Counter(self.keys) + Counter(other.keys)
        kept = sorted(both.items(), key=lambda item: (-item[1], item[0]))
        return Ignored(
            keys=dict(kept[:KEYS_COUNTED_MAX]),
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
