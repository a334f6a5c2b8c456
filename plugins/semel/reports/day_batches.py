"""The batches of a time range, grouped by the cells in which they begin and end."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, fields
from datetime import datetime

import sqlalchemy as sa

from semel import limits
from semel.declare.parts import Select
from semel.ledger import Ledger, Row, pipelines, row, rows
from semel.model.batch import BatchStatus, Counts, Pipeline
from semel.pipeline import Spec

DAYS_BATCHES_NAMED = 3
"""Maximum batches named for one interval, newest first."""


@dataclass(frozen=True, kw_only=True)
class BatchOfDay:
    """A batch. `whole`: its whole interval is in the cell, so its counts are the cell's.

    `silent`: it is open and gives no sign of life. `counts`: None until it has committed.
    `generation`: that of its newest output, made by the batch `made_by`, at `made_at` if that is a
    replay. `replaying`: the batch that is making the next one.
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


@dataclass(frozen=True, kw_only=True)
class Group:
    """Batches that begin in one cell and end in one cell: their number, sums, and the newest."""

    cells: range
    whole: bool
    count: int
    counted: int
    finalized: int
    open: int
    silent: int
    stuck: int
    counts: Counts
    newest: tuple[BatchOfDay, ...]


def groups_of(ledger: Ledger, spec: Spec, edges: list[datetime]) -> tuple[list[Group], list[Row]]:
    """The groups of batches that overlap the cells, and the rows behind them."""
    asked = {
        "select": spec.source.select.value, "since": edges[0], "until": edges[-1], "edges": edges,
        "orphan_seconds": spec.limits.orphan_after.total_seconds(),
        "count": limits.DAYS_BATCHES_MAX + 1, "named": DAYS_BATCHES_NAMED,
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


def _group(found: list[Row], count: int) -> Group:
    """Make a group from its rows. Cell 1 is the first of `count`; 0 is before it."""
    one = found[0]
    first, last = one["cell_first"], one["cell_last"]
    whole = first == last and 1 <= first <= count
    sums = {f.name: one[f"sum_{f.name}"] or 0 for f in fields(Counts)}
    return Group(
        cells=range(max(first, 1) - 1, min(last, count)),
        whole=whole,
        count=one["batches"],
        counted=one["counted"],
        finalized=one["finalized"],
        open=one["open"],
        silent=one["silent_count"],
        stuck=one["stuck"],
        counts=Counts(**sums),
        newest=tuple(_of(r, whole=whole) for r in found),
    )


def _commit_from(connection: sa.Connection, pipeline: Pipeline, moment: datetime) -> int:
    """The first commit sequence at a moment or later: batch times grow with it (C6).

    Found by bisection, since no index leads from a time to a batch.
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
    )
