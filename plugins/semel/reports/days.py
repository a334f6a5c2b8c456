"""days: a pipeline's progress in each interval of time, by its ledger and its source.

How it works:
1. cut the time asked for into cells: those of the schedule, or days (UTC);
2. read from the ledger only the batches of that time;
3. sort what the source shows, and the part that no batch has, into cells by time;
4. decide each cell's state from these facts (`progress.judge`).

A pipeline with `select: arrival` has no intervals: its batches count on the day of their commit.
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
"""Batches that are counted up for one answer at most."""

DAYS_BATCHES_NAMED = 3
"""Batches that one interval names, from the newest on."""


@dataclass(frozen=True, kw_only=True)
class BatchOfDay:
    """A batch. `whole`: all of its interval lies in the cell, so that its counts are the cell's.

    `silent`: it is open and gives no sign of life. `counts`: None until it has committed.
    `generation`: of its newest output, which the batch `made_by` made; at `made_at`, where that is
    a replay. `replaying`: the batch that is to make the next one; `replay_failed`: no attempt of it
    is at work.
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
    """Batches that begin in one cell and end in one cell: their number, sums, and the newest."""

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
    """The batches with a part in the cells; and the rows that they were made of."""
    asked = {
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
            asked["commit_first"] = _commit_from(connection, pipeline, edges[0])
            asked["commit_end"] = _commit_from(connection, pipeline, edges[-1])
        found = rows(
            connection, "days", "batches", pipeline_id=pipeline.pipeline_id, **asked
        )
    by_cells: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for r in found:
        by_cells[r["cell_first"], r["cell_last"]].append(r)
    return [_group(of, len(edges) - 1) for of in by_cells.values()], found


def _group(found: list[Row], count: int) -> BatchGroup:
    """The group of some rows. Cell 1 is the first of `count`, and 0 is what lies before it."""
    one = found[0]
    first, last = one["cell_first"], one["cell_last"]
    whole = first == last and 1 <= first <= count
    sums = {f.name: one[f"sum_{f.name}"] or 0 for f in fields(Counts)}
    return BatchGroup(
        cells=range(max(first, 1) - 1, min(last, count)),
        whole=whole,
        count=one["batches"],
        counted=one["counted"],
        finalized=one["finalized"],
        open=one["open"],
        failed=one["failed_count"],
        silent=one["silent_count"],
        stuck=one["stuck"],
        counts=Counts(**sums),
        newest=tuple(_of(r, whole=whole) for r in found),
    )


def _commit_from(connection: sa.Connection, pipeline: Pipeline, moment: datetime) -> int:
    """The first commit sequence of a moment or later: batch times grow with it (C6).

    Found by halving, for no index leads from a time to a batch.
    """

    def reached(sequence: int) -> bool:
        values = {"pipeline_id": pipeline.pipeline_id, "commit_seq": sequence}
        found = row(connection, "days", "commit", **values)
        return found is None or found["batch_time"] >= moment

    commits = range(1, pipeline.commit_seq + 1)
    return 1 + bisect_left(commits, True, key=reached)


def _of(r: Row, *, whole: bool) -> BatchOfDay:
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
    """One cell [start, end). `seen` is None if the source was not surveyed, or has no times.

    `batches` are the newest of `batch_count`. `counts` sums up the `counted` ones: committed, and
    whole in the cell. `silent`: the open ones that give no sign of life. `command` reads what is
    unclaimed, if anything is.
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
    """The answer of days, oldest cell first. `by_commit`: a cell is the day of a commit.

    `looked`: the source was surveyed, could be read, and has times. `undated`: what it shows
    without a time, or outside the cells; None if it was not surveyed. `newest`: the end of the
    newest known interval, if the time asked for was moved to it. `cut`: before the first cell there
    are more batches than one answer holds. `newest_complete`: the newest complete window, where
    windows are declared. `ahead`: the last time that the source shows, if it is yet to come.
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

    By default: the last DAYS_SHOWN cells up to now; or, if they are empty, up to the newest known
    interval. LimitError: the time holds more than DAYS_MAX cells.
    """
    by_commit = spec.source.select is Select.ARRIVAL
    edges, newest = intervals.between(_schedule(spec), since, until, now), None
    groups, found = groups_of(ledger, spec, edges)
    if not found and since is until is None and not (sight and sight.shows(edges[0], edges[-1])):
        newest = _newest(ledger, spec, sight, now)
        if newest is not None:
            edges = intervals.ending(_schedule(spec), newest)
            groups, found = groups_of(ledger, spec, edges)
    cut = bool(found) and found[0]["found"] > DAYS_BATCHES_MAX
    if cut:
        kept = [edge for edge in edges if edge > found[0]["oldest"]]
        edges = kept if len(kept) > 1 else edges[-2:]
        groups, _ = groups_of(ledger, spec, edges)
    seen = None if sight is None else sight.seen(edges)
    blind = by_commit or seen is None or not spec.source.dated or sight.blind
    dated = None if blind else seen
    now = max(now, edges[-1])
    times = [item.when for item in (sight.found if sight else ()) if item.when]
    known = [time for time in times if time < now]
    known += [edges[n] for group in groups for n in group.cells]
    oldest, newest_known = min(known, default=now), max(known, default=now)
    return Days(
        pipeline=spec.name,
        by_commit=by_commit,
        looked=dated is not None,
        days=tuple(
            _day(
                spec,
                cell,
                [group for group in groups if n in group.cells],
                None if dated is None else dated[n],
                between=oldest < cell[0] and cell[1] <= newest_known,
            )
            for n, cell in enumerate(pairwise(edges))
        ),
        undated=None if seen is None else seen[-1],
        newest=newest,
        cut=cut,
        ahead=max((time for time in times if time >= now), default=None),
        newest_complete=None
        if spec.window is None
        else completeness.newest(completeness.of(ledger, spec), spec.window.windows),
    )


def command(spec: Spec, start: datetime, end: datetime) -> str:
    """The shell command that reads the unclaimed records of [start, end)."""
    return f"semel run {spec.name} --interval {intervals.moment(start)} {intervals.moment(end)}"


def _schedule(spec: Spec) -> str | None:
    """The schedule that cuts its time. None: days."""
    return None if spec.source.select is Select.ARRIVAL else spec.schedule


def _newest(ledger: Ledger, spec: Spec, sight: Sight | None, now: datetime) -> datetime | None:
    """The end of the newest batch interval, or just after the newest past time that is shown.

    For a pipeline without intervals, the time of the newest commit.
    """
    times: list[datetime | None] = []
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        if pipeline is not None:
            values = {"pipeline_id": pipeline.pipeline_id}
            if spec.source.select is Select.ARRIVAL:
                known = row(connection, "days", "newest_commit", **values)
            else:
                known = row(connection, "days", "newest_interval", **values)
            times = [known["at"]] if known else []
    shown = sight.found if sight else ()
    times += [f.when + intervals.TICK for f in shown if f.when and f.when <= now]
    return max(filter(None, times), default=None)


def _day(
    spec: Spec,
    cell: tuple[datetime, datetime],
    groups: list[BatchGroup],
    seen: SourceCell | None,
    *,
    between: bool,
) -> DayCell:
    start, end = cell
    there = seen or SourceCell()
    state = judge(
        CellFacts(
            looked=seen is not None,
            refused=there.refused > 0,
            failed=any(g.failed for g in groups),
            open=there.open > 0 or any(g.open for g in groups),
            unclaimed=there.unclaimed > 0,
            waiting=there.waiting > 0,
            # A batch of another interval may have it: by lookback, or because it was longer.
            done=there.settled > 0 or any(g.finalized for g in groups),
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
        seen=seen,
        command=command(spec, start, end) if there.unclaimed or stuck else None,
    )
