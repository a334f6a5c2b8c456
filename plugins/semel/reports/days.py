"""days: a pipeline's progress in each interval of time, from its ledger and its source.

How it works:
1. cut the requested time into cells: the schedule's intervals, or days (UTC);
2. read only that time's batches from the ledger;
3. sort the source's items and unclaimed ranges into cells by time;
4. decide each cell's state from these facts (`progress.judge`).

Without intervals (`select: arrival`), a batch counts on the day of its commit.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, fields
from datetime import date, datetime
from itertools import pairwise

import sqlalchemy as sa

from semel import limits
from semel.declare.parts import Select
from semel.ledger import Ledger, Row, pipelines, row, rows
from semel.model.batch import BatchStatus, Counts, Pipeline
from semel.pipeline.spec import Spec
from semel.reports import completeness, intervals
from semel.reports.progress import CellFacts, CellState, Sight, SourceCell, judge

DAYS_BATCHES_MAX = 10_000
"""Maximum batches that one report counts."""

DAYS_BATCHES_NAMED = 3
"""Newest batches that one interval lists."""


@dataclass(frozen=True, kw_only=True)
class BatchOfDay:
    """A batch. `whole`: its interval lies within the cell, so that its counts are the cell's.

    `silent`: it is open and its heartbeat has stopped. `counts`: None before its commit.
    `generation`: the newest output's, which the batch `made_by` wrote, at `made_at` if that is a
    replay. `replaying`: the batch that will write the next generation. `replay_failed`: that batch
    has attempts, and all are lost or dead.
    """

    batch_id: int
    request_key: str
    status: BatchStatus
    start: datetime | None
    end: datetime | None
    silent: bool
    counts: Counts | None
    whole: bool
    generation: int
    made_by: int
    made_at: datetime | None
    replaying: int | None
    replay_failed: bool


@dataclass(frozen=True, kw_only=True)
class BatchGroup:
    """Batches with the same first and the same last cell: their number, sums, and the newest."""

    cells: range
    whole: bool
    count: int
    counted: int
    finalized: int
    open: int
    failed: int
    silent: int
    stuck: int
    counts: Counts
    newest: tuple[BatchOfDay, ...]


def groups_of(
    ledger: Ledger, spec: Spec, edges: list[datetime]
) -> tuple[list[BatchGroup], list[Row]]:
    """The batches that overlap the cells, in groups, and the ledger's rows about them."""
    values = {
        "select": spec.source.select.value, "since": edges[0], "until": edges[-1], "edges": edges,
        "orphan_seconds": spec.limits.orphan_after.total_seconds(),
        "silent_seconds": 2 * limits.HEARTBEAT_SECONDS,
        "count": DAYS_BATCHES_MAX + 1, "named": DAYS_BATCHES_NAMED,
        "commit_first": 0, "commit_end": 0,
    }  # fmt: skip
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        if pipeline is None:
            return [], []
        if spec.source.select is Select.ARRIVAL:
            values["commit_first"] = _commit_from(connection, pipeline, edges[0])
            values["commit_end"] = _commit_from(connection, pipeline, edges[-1])
        batches = rows(connection, "days", "batches", pipeline_id=pipeline.pipeline_id, **values)
    by_cells: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for r in batches:
        by_cells[r["cell_first"], r["cell_last"]].append(r)
    return [_group(members, len(edges) - 1) for members in by_cells.values()], batches


def _group(members: list[Row], count: int) -> BatchGroup:
    """The group of some rows. Cells are 1 to `count`; cell 0 is the time before the first."""
    sums = members[0]  # Each row has the sums of its group.
    first, last = sums["cell_first"], sums["cell_last"]
    within = first == last and 1 <= first <= count
    return BatchGroup(
        cells=range(max(first, 1) - 1, min(last, count)),
        whole=within,
        count=sums["batches"],
        counted=sums["counted"],
        finalized=sums["finalized"],
        open=sums["open"],
        failed=sums["failed_count"],
        silent=sums["silent_count"],
        stuck=sums["stuck"],
        counts=Counts(**{f.name: sums[f"sum_{f.name}"] or 0 for f in fields(Counts)}),
        newest=tuple(_batch_of_day(r, whole=within) for r in members),
    )


def _commit_from(connection: sa.Connection, pipeline: Pipeline, moment: datetime) -> int:
    """The first commit sequence at or after a moment: batch times grow with it (C6).

    A binary search, because the ledger does not index batch times.
    """

    def reached(sequence: int) -> bool:
        values = {"pipeline_id": pipeline.pipeline_id, "commit_seq": sequence}
        commit = row(connection, "days", "commit", **values)
        return commit is None or commit["batch_time"] >= moment

    commits = range(1, pipeline.commit_seq + 1)
    return 1 + bisect_left(commits, True, key=reached)


def _batch_of_day(r: Row, *, whole: bool) -> BatchOfDay:
    return BatchOfDay(
        batch_id=r["batch_id"],
        request_key=r["request_key"],
        status=BatchStatus(r["status"]),
        start=r["interval_start"],
        end=r["interval_end"],
        silent=r["silent"],
        counts=None if r["records_read"] is None else Counts.from_row(r),
        whole=whole,
        generation=r["generation"],
        made_by=r["newest"],
        made_at=r["made_at"],
        replaying=r["replaying"],
        replay_failed=bool(r["replay_failed"]),
    )


@dataclass(frozen=True, kw_only=True)
class DayCell:
    """One cell [start, end). `seen` is None if the source was not surveyed, or lacks times.

    `batches`: the newest of `batch_count`. `counts`: the sums of the `counted` batches, which have
    committed and lie within the cell. `silent`: open batches without a heartbeat. `command` reads
    the unclaimed records, or None without any.
    """

    start: datetime
    end: datetime
    state: CellState
    batches: tuple[BatchOfDay, ...]
    batch_count: int
    counted: int
    counts: Counts
    silent: int
    seen: SourceCell | None
    command: str | None


@dataclass(frozen=True, kw_only=True)
class Days:
    """Cells, oldest first. `by_commit`: a batch counts on the day of its commit.

    `looked`: semel surveyed the source, could read it, and its items have times. `undated`: its
    items without a time or outside the cells; None without a survey. `newest`: the end of the
    newest known interval, if the report moved back to it. `cut`: batches before the first cell did
    not fit. `newest_complete`: the newest complete window, if the pipeline declares windows.
    `ahead`: the source's last time, if it is in the future.
    """

    pipeline: str
    by_commit: bool
    looked: bool
    days: tuple[DayCell, ...]
    undated: SourceCell | None = None
    newest: datetime | None = None
    cut: bool = False
    newest_complete: completeness.Range | None = None
    ahead: datetime | None = None


def days(
    ledger: Ledger,
    spec: Spec,
    sight: Sight | None,
    *,
    since: date | None = None,
    until: date | None = None,
    now: datetime,
) -> Days:
    """The state of each cell. `since` and `until` are days (UTC), both included.

    The default is the last DAYS_SHOWN cells up to now or, if these are empty, up to the newest
    known interval. Raises LimitError for more than DAYS_MAX cells.
    """
    by_commit = spec.source.select is Select.ARRIVAL
    edges, newest = intervals.edges_between(_schedule(spec), since, until, now), None
    groups, batches = groups_of(ledger, spec, edges)
    if not batches and since is until is None and not (sight and sight.shows(edges[0], edges[-1])):
        newest = _newest_time(ledger, spec, sight, now)
        if newest is not None:
            edges = intervals.last_edges(_schedule(spec), newest)
            groups, batches = groups_of(ledger, spec, edges)
    cut = bool(batches) and batches[0]["found"] > DAYS_BATCHES_MAX
    if cut:
        newer = [edge for edge in edges if edge > batches[0]["oldest"]]
        edges = newer if len(newer) > 1 else edges[-2:]
        groups, _ = groups_of(ledger, spec, edges)
    cells = None if sight is None else sight.cells(edges)
    blind = by_commit or cells is None or not spec.source.dated or sight.blind
    dated = None if blind else cells
    now = max(now, edges[-1])
    times = [item.when for item in (sight.items if sight else ()) if item.when]
    past = [time for time in times if time < now]
    past += [edges[n] for group in groups for n in group.cells]
    oldest, newest_known = min(past, default=now), max(past, default=now)
    complete = None
    if spec.window is not None:
        is_complete = completeness.read_completeness(ledger, spec)
        complete = completeness.newest_complete(is_complete, spec.window.windows)
    return Days(
        pipeline=spec.name,
        by_commit=by_commit,
        looked=dated is not None,
        days=tuple(
            _day_cell(
                spec,
                cell,
                [group for group in groups if n in group.cells],
                None if dated is None else dated[n],
                between=oldest < cell[0] and cell[1] <= newest_known,
            )
            for n, cell in enumerate(pairwise(edges))
        ),
        undated=None if cells is None else cells[-1],
        newest=newest,
        cut=cut,
        ahead=max((time for time in times if time >= now), default=None),
        newest_complete=complete,
    )


def command(spec: Spec, start: datetime, end: datetime) -> str:
    """The shell command that reads the unclaimed records of [start, end)."""
    return f"semel run {spec.name} --interval {intervals.moment(start)} {intervals.moment(end)}"


def _schedule(spec: Spec) -> str | None:
    """The schedule whose intervals are the cells. Returns None if the cells are days."""
    return None if spec.source.select is Select.ARRIVAL else spec.schedule


def _newest_time(ledger: Ledger, spec: Spec, sight: Sight | None, now: datetime) -> datetime | None:
    """The end of the newest batch interval, or just after the source's newest past time.

    Without intervals, the newest commit's time counts instead. Returns None without any time.
    """
    times: list[datetime | None] = []
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        if pipeline is not None:
            values = {"pipeline_id": pipeline.pipeline_id}
            if spec.source.select is Select.ARRIVAL:
                batch = row(connection, "days", "newest_commit", **values)
            else:
                batch = row(connection, "days", "newest_interval", **values)
            times = [batch["at"]] if batch else []
    items = sight.items if sight else ()
    times += [item.when + intervals.TICK for item in items if item.when and item.when <= now]
    return max(filter(None, times), default=None)


def _day_cell(
    spec: Spec,
    cell: tuple[datetime, datetime],
    groups: list[BatchGroup],
    items: SourceCell | None,
    *,
    between: bool,
) -> DayCell:
    start, end = cell
    counts = items or SourceCell()
    state = judge(
        CellFacts(
            surveyed=items is not None,
            refused=counts.refused > 0,
            failed=any(g.failed for g in groups),
            open=counts.open > 0 or any(g.open for g in groups),
            unclaimed=counts.unclaimed > 0,
            waiting=counts.waiting > 0,
            # Lookback, or a longer interval, lets another interval's batch read it.
            finalized=counts.settled > 0 or any(g.finalized for g in groups),
            between=between,
        )
    )
    newest = sorted((b for g in groups for b in g.newest), key=lambda b: -b.batch_id)
    stuck = any(g.stuck for g in groups)
    return DayCell(
        start=start,
        end=end,
        state=state,
        batches=tuple(newest[:DAYS_BATCHES_NAMED]),
        batch_count=sum(g.count for g in groups),
        counted=sum(g.counted for g in groups if g.whole),
        counts=sum((g.counts for g in groups if g.whole), start=Counts()),
        silent=sum(g.silent for g in groups),
        seen=items,
        command=command(spec, start, end) if counts.unclaimed or stuck else None,
    )
