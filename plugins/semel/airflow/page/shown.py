"""What the pages show: read from the ledger, for the pipelines that somebody may see."""

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
"""Batches of each pipeline that the page of all pipelines sums up."""

PAGE_OPEN = 20
"""Open batches of each pipeline that this page looks at, from the newest on."""

PAGE_LINES = 200
"""Claims or files of a batch that its page lists; `semel show` lists them all."""


@dataclass(frozen=True, kw_only=True)
class NewestBatch:
    """One of the newest batches of a pipeline. `counts`: None until it has committed. `replays`:
    the batch that it computed again, whose records it counts once more.
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
    """A batch that is not finalized. `since`: its plan. `failed`: no attempt of it is at work, and
    there was one. `silent`: it gives no sign of life for ORPHAN_SECONDS.
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

    `opened`: the newest of its `open` batches, which are not finalized. `refused`: the files that
    the last plan refused; if `looked`, that a plan would refuse now. `spec`: None if no file
    declares it here, or if it is `wrong`: then these are the lines of `semel validate`.
    `due`: the last intervals that are over; `complete`: those of which a run has finalized all, or
    found nothing. `covered`: the intervals that runs have finalized. `failures`: those of open
    batches that Airflow knows of. `failed_runs`: runs that failed before they had a batch.
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
        found = (b.counts for b in self.newest if b.counts and b.replays is None)
        return sum(found, start=Counts())

    @property
    def last(self) -> NewestBatch | None:
        return self.newest[0] if self.newest else None

    @property
    def failed(self) -> list[OpenBatch]:
        """Its open batches that have failed, those first that Airflow does not try again."""
        failed = [b for b in self.opened if b.failed or b.batch_id in self.failures]
        return sorted(failed, key=lambda b: self.retry(b) is not None)

    def retry(self, batch: OpenBatch) -> datetime | None:
        """When Airflow tries a batch again, if it does."""
        failure = self.failures.get(batch.batch_id)
        return failure and failure.again

    def lacks(self, run: FailedRun) -> bool:
        """Whether nothing has made up for a run that failed before it had a batch: no other run has
        read its interval, or what has arrived.
        """
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
        """The words that a search looks at."""
        schedule = (self.spec and self.spec.schedule) or ""
        return f"{self.name} {self.state} {schedule}{' paused' * self.paused}".lower()

    @property
    def state(self) -> CellState:
        """The worst of what is known of it."""
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
        """The worst first: broken, failed for good, refused, silent, to be tried again; then those
        with intervals that are not complete.
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
        """New records of each batch, the oldest first, with its height of 20 at most."""
        first = [b for b in reversed(self.newest) if b.replays is None]
        new = [b.counts.survivors if b.counts else 0 for b in first]
        most = max(new, default=0)
        return [(n, round(20 * n / most) if most else 0) for n in new]


@dataclass(frozen=True, kw_only=True)
class DeclaredPipelines:
    """The pipelines of the folder: those whose file is right, and what is wrong with the others, as
    `semel validate` prints it, by name.
    """

    names: frozenset[str] = frozenset()
    specs: Mapping[str, Spec] = field(default_factory=dict)
    wrong: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def declared(paths: Sequence[Path]) -> DeclaredPipelines:
    """Load all files of the folder."""
    loaded: dict[Path, Spec] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        try:
            loaded[path] = pipeline.load(path)
        except SpecError as error:
            wrong[declared_name(path)] += str(error).splitlines()
    for line in pipeline.clashes(loaded):
        of = next(path for path in loaded if line.startswith(f"{path}: "))
        wrong[loaded[of].name].append(line)
    return DeclaredPipelines(
        names=frozenset(map(declared_name, paths)),
        specs={spec.name: spec for spec in loaded.values()},
        wrong={name: tuple(lines) for name, lines in wrong.items()},
    )


def overviews(
    ledger: Ledger, permitted: Collection[str], declared: DeclaredPipelines, now: datetime
) -> list[Overview]:
    """The pipelines among some DAGs. Without what Airflow knows of their runs."""
    with ledger.transaction() as connection:
        known = [r["name"] for r in rows(connection, "page", "names")]
        names = sorted(permitted & {*known, *declared.names})
        newest = rows(
            connection, "page", "newest", names=names, count=PAGE_BATCHES
        )
        opened = rows(
            connection, "page", "open", names=names, count=PAGE_OPEN,
            orphan_seconds=ORPHAN_SECONDS, silent_seconds=2 * limits.HEARTBEAT_SECONDS,
        )  # fmt: skip
        refused = {r["name"]: r["files"] for r in rows(connection, "page", "refused", names=names)}
        covered = rows(connection, "page", "covered", names=names)
    batches: dict[str, list[NewestBatch]] = defaultdict(list)
    for r in newest:
        counts = None if r["records_read"] is None else Counts.from_row(r)
        own = {key: r[key] for key in NewestBatch.__dataclass_fields__ if key != "counts"}
        own["status"] = BatchStatus(r["status"])
        batches[r["name"]].append(NewestBatch(**own, counts=counts))
    of_open: dict[str, list[OpenBatch]] = defaultdict(list)
    for r in opened:
        own = {key: r[key] for key in OpenBatch.__dataclass_fields__ if key != "status"}
        of_open[r["name"]].append(OpenBatch(status=BatchStatus(r["status"]), **own))
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
            **_complete(declared.specs.get(name), of_time.get(name), now),
        )
        for name in names
    ]


def _complete(spec: Spec | None, covered: TimeSet | None, now: datetime) -> dict[str, int]:
    """How many of the last intervals are complete: those since the first that a run has covered."""
    if spec is None or covered is None or spec.source.select is not Select.INTERVAL:
        return {}
    cells = [cell for cell in _over(spec.schedule, now) if cell[1] > covered.ranges[0][0]]
    return {"due": len(cells), "complete": sum(not covered.holes(*cell) for cell in cells)}


@lru_cache(maxsize=256)
def _over(schedule: str | None, now: datetime) -> list[tuple[datetime, datetime]]:
    """The last intervals of a schedule that are over."""
    cells = pairwise(intervals.last_edges(schedule, now))
    return [(start, end) for start, end in cells if end <= now]


def spec_of(ledger: Ledger, name: str) -> tuple[Spec, bool] | None:
    """A pipeline as it is declared; else as its newest batch was planned. None: it is none.

    The second value says whether it is declared, as far as this server's folders tell.
    """
    with suppress(SpecError):
        return pipeline.find(name), True
    found = ledger.rows("page", "spec", name=name)
    return (Spec.from_json(found[0]["spec"]), False) if found else None


@dataclass(frozen=True, kw_only=True)
class BatchShown:
    """All of one batch. `claims` are the first of `claim_count`, of a replay those of the batch
    that it replays, of an admission those of the batch whose dead letters it judges. `id_runs`: the
    first of what it added to the catalog. `generations`: the outputs of that batch, its own among
    them.
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
        """The batch whose output it made: itself, or the one that it replayed."""
        return self.output["replays"] or self.output["batch_id"]

    @property
    def output(self) -> dict[str, Any]:
        """Its own one of the generations; an abandoned one is not among them."""
        mine = self.batch["batch_id"]
        found = (one for one in self.generations if one["batch_id"] == mine)
        none = dict.fromkeys(("replays", "replaced_by", "is_replaced", "admits"))
        return next(found, {"batch_id": mine, **none})

    @property
    def won(self) -> dict[str, Any] | None:
        """The attempt that landed."""
        return next((a for a in self.attempts if a["status"] == "won"), None)

    @property
    def set_aside(self) -> int:
        """Dead letters of a finalized batch that judged its records."""
        own = self.batch["status"] == "finalized"
        own &= self.batch["judged_by"] == self.batch["batch_id"]
        won = self.won if own else None
        return won["quarantined"] + won["late"] if won else 0

    @property
    def steps(self) -> list[tuple[str, str, datetime, datetime]]:
        """Each verb that is done, what its time counts, and from when to when."""
        b, won = self.batch, self.won
        if won is None:
            return []
        first = min(a["started_at"] for a in self.attempts)
        found = [
            ("waiting", "From the plan to the first attempt", b["planned_at"], first),
            ("stage", "The attempt that won: until its files were staged", won["started_at"],
             won["staged_at"]),
            ("commit", "From staged to committed", won["staged_at"], b["committed_at"]),
            ("finalize", "From committed to finalized", b["committed_at"], b["finalized_at"]),
        ]  # fmt: skip
        return [step for step in found if None not in step]


def batch_of(ledger: Ledger, name: str, batch_id: int) -> BatchShown | None:
    """A batch of a pipeline; None when that has none of this number."""
    with ledger.transaction() as connection:
        found = rows(connection, "look", "batch", batch_id=batch_id)
        if not found or found[0]["pipeline"] != name:
            return None
        count = PAGE_LINES
        claims = rows(connection, "page", "claims", batch_id=batch_id, count=count)
        attempts = rows(connection, "look", "attempts", batch_id=batch_id)
        files = rows(connection, "look", "files", batch_id=batch_id)
        id_runs = rows(connection, "page", "id_runs", batch_id=batch_id, count=count)
        generations = rows(connection, "page", "generations", batch_id=batch_id)
    return BatchShown(
        batch=dict(found[0]),
        attempts=[dict(r) for r in attempts],
        claims=[dict(r) for r in claims],
        claim_count=claims[0]["claims"] if claims else 0,
        files=[dict(r) for r in files],
        id_runs=[dict(r) for r in id_runs],
        generations=[dict(r) for r in generations],
    )


def batch_of_run(ledger: Ledger, name: str, request_key: str) -> int | None:
    """The newest batch of a request; None: it has none."""
    found = ledger.rows("page", "of_run", name=name, request_key=request_key)
    return found[0]["batch_id"] if found else None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A batch, as far as who abandons it has to know: what it has claimed, and who is at work.

    `attempts`: fence and state of each, the last PAGE_LINES. `alive`: one gave a sign of life
    within the last two heartbeats. `records`: as many as its last staged attempt read.
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


def planned_of(ledger: Ledger, name: str, batch_id: int) -> Planned | None:
    """A batch of a pipeline; None when that has none of this number."""
    found = ledger.rows(
        "page",
        "planned",
        name=name,
        batch_id=batch_id,
        count=FILES_NAMED_MAX,
        attempts=PAGE_LINES,
        silent_seconds=2 * limits.HEARTBEAT_SECONDS,
    )
    return Planned(**found[0]) if found else None


def refusals_of(ledger: Ledger, name: str) -> list[dict[str, Any]]:
    """What the last plan of a pipeline refused; one more than a page lists at most."""
    found = ledger.rows("page", "refusals", name=name, count=PAGE_LINES + 1)
    return [dict(r) for r in found]
