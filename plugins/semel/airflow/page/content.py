"""Reads the content of the pages from the ledger, for the pipelines that the user may see."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from semel import limits, pipeline
from semel.airflow.page.failures import FailedRun, Failure
from semel.declare.parts import ORPHAN_SECONDS, Select
from semel.declare.wording import FILES_NAMED_MAX
from semel.declare.yaml import declared_name
from semel.errors import SpecError
from semel.ledger import Ledger, rows
from semel.model.batch import BatchStatus, Counts
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.reports import intervals
from semel.reports.progress import CellState

PAGE_BATCHES = 30
"""Newest batches of each pipeline that the page of all pipelines sums up."""

PAGE_OPEN = 20
"""Newest open batches of each pipeline that this page reads."""

PAGE_LINES = 200
"""Claims or files of a batch that its page lists; `semel show` lists them all."""


@dataclass(frozen=True, kw_only=True)
class NewestBatch:
    """One of the newest batches of a pipeline. `counts`: None before its commit. `replays`: the
    batch that it computed again. Both have counts of the same records.
    """

    batch_id: int
    request_key: str
    status: BatchStatus
    interval_start: datetime | None
    interval_end: datetime | None
    planned_at: datetime
    finalized_at: datetime | None
    replays: int | None
    counts: Counts | None


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A batch that is not finalized. `since`: the time of its plan. `failed`: it has attempts,
    and all are lost or dead. `silent`: it has not sent a heartbeat for ORPHAN_SECONDS.
    """

    batch_id: int
    request_key: str
    status: BatchStatus
    since: datetime
    failed: bool
    silent: bool


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A pipeline's line. `newest`: its batches from the newest on, PAGE_BATCHES at most.

    `open`: the number of batches that are not finalized; `opened`: the newest ones. `refused`:
    the number of files that the last plan refused, or, if `looked`, that a plan would refuse now.
    `spec`: None if no file here declares the pipeline, or if the file is wrong; then `wrong` has
    the lines of `semel validate`. `due`: the number of recent intervals that are over; `complete`:
    the number that runs have covered. `covered`: the intervals that runs have finalized, or where
    they found nothing. `failures`: failed tasks of open batches. `failed_runs`: runs that failed
    before they had a batch.
    """

    name: str
    newest: tuple[NewestBatch, ...] = ()
    opened: tuple[OpenBatch, ...] = ()
    open: int = 0
    refused: int = 0
    looked: bool = False
    spec: Spec | None = None
    wrong: tuple[str, ...] = ()
    complete: int = 0
    due: int = 0
    covered: TimeSet = TimeSet()
    failures: Mapping[int, Failure] = field(default_factory=dict)
    failed_runs: tuple[FailedRun, ...] = ()
    paused: bool = False

    @property
    def counts(self) -> Counts:
        counts = (b.counts for b in self.newest if b.counts and b.replays is None)
        return sum(counts, start=Counts())

    @property
    def last(self) -> NewestBatch | None:
        return self.newest[0] if self.newest else None

    @property
    def failed(self) -> list[OpenBatch]:
        """The failed open batches, first those that Airflow does not try again."""
        failed = [b for b in self.opened if b.failed or b.batch_id in self.failures]
        return sorted(failed, key=lambda b: self.retry(b) is not None)

    def retry(self, batch: OpenBatch) -> datetime | None:
        """The time of a batch's next try. Returns None if Airflow does not try it again."""
        failure = self.failures.get(batch.batch_id)
        return failure and failure.again

    def lacks(self, run: FailedRun) -> bool:
        """True if no other run has read the records of a run that failed before it had a batch."""
        if run.failure.again:
            return True
        if self.spec is None or self.spec.source.select is not Select.INTERVAL:
            return not run.planned_since
        covered = run.interval is not None and not self.covered.holes(*run.interval)
        return not run.same_since and not (run.fresh and covered)

    @property
    def silent(self) -> int:
        return sum(batch.silent for batch in self.opened)

    @property
    def oldest(self) -> OpenBatch | None:
        """The open batch that was planned first."""
        return min(self.opened, key=lambda batch: batch.since, default=None)

    @property
    def words(self) -> str:
        """The text that a search compares with."""
        schedule = (self.spec and self.spec.schedule) or ""
        return f"{self.name} {self.state} {schedule}{' paused' * self.paused}".lower()

    @property
    def state(self) -> CellState:
        """The worst state of the pipeline's parts."""
        if self.wrong:
            return CellState.BROKEN
        if self.failed or self.failed_runs:
            return CellState.FAILED
        if self.refused:
            return CellState.REFUSED
        if self.open:
            return CellState.IN_WORK
        return CellState.BATCHES_FINALIZED if self.newest else CellState.NO_BATCH

    @property
    def order(self) -> tuple[int, bool, str]:
        """The sort key, the worst first: broken, failed for good, refused, silent, waiting for a
        retry; then pipelines with incomplete intervals.
        """
        rank = {CellState.BROKEN: 0, CellState.FAILED: 1, CellState.REFUSED: 2}.get(self.state, 5)
        retries = [self.retry(b) for b in self.failed]
        retries += [run.failure.again for run in self.failed_runs]
        if self.state is CellState.FAILED and all(retries):
            rank = 4
        elif self.silent:
            rank = min(rank, 3)
        return rank, self.complete == self.due, self.name

    @property
    def bars(self) -> list[tuple[int, int]]:
        """New records of each batch, the oldest first, with the height of its bar, 20 at most."""
        first = [b for b in reversed(self.newest) if b.replays is None]
        new = [b.counts.survivors if b.counts else 0 for b in first]
        most = max(new, default=0)
        return [(n, round(20 * n / most) if most else 0) for n in new]


@dataclass(frozen=True, kw_only=True)
class DeclaredPipelines:
    """The pipelines of the folder. `specs`: from valid files. `wrong`: the lines of
    `semel validate` about the other files.
    """

    names: frozenset[str] = frozenset()
    specs: Mapping[str, Spec] = field(default_factory=dict)
    wrong: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_declared(paths: Sequence[Path]) -> DeclaredPipelines:
    """Load all files of the folder."""
    loaded: dict[Path, Spec] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        try:
            loaded[path] = pipeline.load(path)
        except SpecError as error:
            wrong[declared_name(path)] += str(error).splitlines()
    for line in pipeline.clashes(loaded):
        clashing = next(path for path in loaded if line.startswith(f"{path}: "))
        wrong[loaded[clashing].name].append(line)
    return DeclaredPipelines(
        names=frozenset(map(declared_name, paths)),
        specs={spec.name: spec for spec in loaded.values()},
        wrong={name: tuple(lines) for name, lines in wrong.items()},
    )


def overviews(
    ledger: Ledger, permitted: Collection[str], declared: DeclaredPipelines, now: datetime
) -> list[Overview]:
    """The pipelines among the permitted DAGs, without the state of their runs in Airflow."""
    with ledger.transaction() as connection:
        in_ledger = [r["name"] for r in rows(connection, "page", "names")]
        names = sorted(permitted & {*in_ledger, *declared.names})
        newest = rows(connection, "page", "newest", names=names, count=PAGE_BATCHES)
        opened = rows(
            connection, "page", "open", names=names, count=PAGE_OPEN,
            orphan_seconds=ORPHAN_SECONDS, silent_seconds=2 * limits.HEARTBEAT_SECONDS,
        )  # fmt: skip
        refused = {r["name"]: r["files"] for r in rows(connection, "page", "refused", names=names)}
        covered = rows(connection, "page", "covered", names=names)
    batches: dict[str, list[NewestBatch]] = defaultdict(list)
    for r in newest:
        counts = None if r["records_read"] is None else Counts.from_row(r)
        fields = {key: r[key] for key in NewestBatch.__dataclass_fields__ if key != "counts"}
        fields["status"] = BatchStatus(r["status"])
        batches[r["name"]].append(NewestBatch(**fields, counts=counts))
    of_open: dict[str, list[OpenBatch]] = defaultdict(list)
    for r in opened:
        fields = {key: r[key] for key in OpenBatch.__dataclass_fields__ if key != "status"}
        of_open[r["name"]].append(OpenBatch(status=BatchStatus(r["status"]), **fields))
    open_count = {r["name"]: r["batches"] for r in opened}
    of_time = {r["name"]: TimeSet.from_ledger(r["covered"]) for r in covered}
    return [
        Overview(
            name=name,
            newest=tuple(batches[name]),
            opened=tuple(of_open[name]),
            open=open_count.get(name, 0),
            refused=refused.get(name, 0),
            spec=declared.specs.get(name),
            wrong=declared.wrong.get(name, ()),
            covered=of_time.get(name, TimeSet()),
            **_completeness(declared.specs.get(name), of_time.get(name), now),
        )
        for name in names
    ]


def _completeness(spec: Spec | None, covered: TimeSet | None, now: datetime) -> dict[str, int]:
    """The number of recent intervals since the first covered one, and how many are complete."""
    if spec is None or covered is None or spec.source.select is not Select.INTERVAL:
        return {}
    cells = [cell for cell in _past_intervals(spec.schedule, now) if cell[1] > covered.ranges[0][0]]
    return {"due": len(cells), "complete": sum(not covered.holes(*cell) for cell in cells)}


@lru_cache(maxsize=256)
def _past_intervals(schedule: str | None, now: datetime) -> list[tuple[datetime, datetime]]:
    """The recent intervals of a schedule that are over."""
    cells = pairwise(intervals.last_edges(schedule, now))
    return [(start, end) for start, end in cells if end <= now]


def spec_of(ledger: Ledger, name: str) -> tuple[Spec, bool] | None:
    """A pipeline as it is declared, or else as in the plan of its newest batch.

    The second value is True if a file on this server declares it. Returns None if there is neither.
    """
    with suppress(SpecError):
        return pipeline.find(name), True
    specs = ledger.rows("page", "spec", name=name)
    return (Spec.from_json(specs[0]["spec"]), False) if specs else None


@dataclass(frozen=True, kw_only=True)
class BatchDetails:
    """A batch with its details. `claims`: the first of `claim_count`. A replay has the claims of
    its root, and an admission those of the batch whose dead letters it judges. `id_runs`: the first
    that the batch added to the catalog. `generations`: all outputs of the root.
    """

    batch: dict[str, Any]
    attempts: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    claim_count: int
    files: list[dict[str, Any]]
    id_runs: list[dict[str, Any]]
    generations: list[dict[str, Any]]

    @property
    def root(self) -> int:
        """The batch whose output it computed: the batch that it replays, or itself."""
        return self.output["replays"] or self.output["batch_id"]

    @property
    def output(self) -> dict[str, Any]:
        """This batch's output among the generations. An abandoned batch has an empty one."""
        number = self.batch["batch_id"]
        outputs = (each for each in self.generations if each["batch_id"] == number)
        empty = dict.fromkeys(("replays", "replaced_by", "is_replaced", "admits"))
        return next(outputs, {"batch_id": number, **empty})

    @property
    def won(self) -> dict[str, Any] | None:
        """The attempt that won the commit."""
        return next((a for a in self.attempts if a["status"] == "won"), None)

    @property
    def set_aside(self) -> int:
        """The number of dead letters, if the batch is finalized and judged its records itself."""
        is_judge = self.batch["status"] == "finalized"
        is_judge &= self.batch["judged_by"] == self.batch["batch_id"]
        won = self.won if is_judge else None
        return won["quarantined"] + won["late"] if won else 0

    @property
    def steps(self) -> list[tuple[str, str, datetime, datetime]]:
        """Each finished step: its verb, what its time covers, its start and its end."""
        b, won = self.batch, self.won
        if won is None:
            return []
        first = min(a["started_at"] for a in self.attempts)
        steps = [
            ("waiting", "From the plan to the first attempt", b["planned_at"], first),
            ("stage", "The attempt that won: until its files were staged", won["started_at"],
             won["staged_at"]),
            ("commit", "From staged to committed", won["staged_at"], b["committed_at"]),
            ("finalize", "From committed to finalized", b["committed_at"], b["finalized_at"]),
        ]  # fmt: skip
        return [step for step in steps if None not in step]


def batch_of(ledger: Ledger, name: str, batch_id: int) -> BatchDetails | None:
    """Returns None if the pipeline does not have this batch."""
    with ledger.transaction() as connection:
        batches = rows(connection, "look", "batch", batch_id=batch_id)
        if not batches or batches[0]["pipeline"] != name:
            return None
        count = PAGE_LINES
        claims = []
        if not batches[0]["packed_in"]:  # Then the claims of others are among them.
            claims = rows(connection, "page", "claims", batch_id=batch_id, count=count)
        attempts = rows(connection, "look", "attempts", batch_id=batch_id)
        files = rows(connection, "look", "files", batch_id=batch_id)
        id_runs = rows(connection, "page", "id_runs", batch_id=batch_id, count=count)
        generations = rows(connection, "page", "generations", batch_id=batch_id)
    return BatchDetails(
        batch=dict(batches[0]),
        attempts=[dict(r) for r in attempts],
        claims=[dict(r) for r in claims],
        claim_count=claims[0]["claims"] if claims else 0,
        files=[dict(r) for r in files],
        id_runs=[dict(r) for r in id_runs],
        generations=[dict(r) for r in generations],
    )


def batch_of_run(ledger: Ledger, name: str, request_key: str) -> int | None:
    """The number of a request's newest batch. Returns None for a request without a batch."""
    batches = ledger.rows("page", "of_run", name=name, request_key=request_key)
    return batches[0]["batch_id"] if batches else None


@dataclass(frozen=True, kw_only=True)
class AbandonCandidate:
    """The facts about a batch that a user needs to abandon it: its claims and its attempts.

    `attempts`: fence and state of the last PAGE_LINES. `alive`: True if one has sent a heartbeat
    within two heartbeats' time. `records`: the number that its last staged attempt read.
    """

    batch_id: int
    status: str
    request_key: str
    interval_start: datetime | None
    interval_end: datetime | None
    replays: int | None
    admits: int | None
    files: int
    ranges: int
    bytes: int
    names: list[str]
    records: int | None
    seen_at: datetime
    alive: bool
    attempts: list[list[Any]]


def abandon_candidate(ledger: Ledger, name: str, batch_id: int) -> AbandonCandidate | None:
    """Returns None if the pipeline does not have this batch."""
    candidates = ledger.rows(
        "page",
        "planned",
        name=name,
        batch_id=batch_id,
        count=FILES_NAMED_MAX,
        attempts=PAGE_LINES,
        silent_seconds=2 * limits.HEARTBEAT_SECONDS,
    )
    return AbandonCandidate(**candidates[0]) if candidates else None


def refusals_of(ledger: Ledger, name: str) -> list[dict[str, Any]]:
    """The refusals of a pipeline's last plan: PAGE_LINES + 1 at most."""
    refusals = ledger.rows("page", "refusals", name=name, count=PAGE_LINES + 1)
    return [dict(r) for r in refusals]
