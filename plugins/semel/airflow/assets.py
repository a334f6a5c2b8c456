"""The asset of a pipeline, `semel://<pipeline>`: one event for each of its finalized batches, and
for each replay of one.

How it works: Airflow stores the events of a task with its success, in one transaction. So who has
finalized a batch tells it; and who finds it finalized (a retry, a cleared run, collect) tells it
only when Airflow knows no event of it. A task that was killed in between tells nothing, and the
next one does.
Known limitation: two that look at the same moment may both tell. The batch's number and generation
are the key by which a DAG that runs on the asset passes over the second. Airflow fails a task whose
events it cannot store, although its log ends well. It fails the second of two tasks that bring an
asset under one alias for the first time at once. So an alias is used for a second event alone.
"""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from semel.pipeline.spec import Spec
from semel.reports import summary

if TYPE_CHECKING:
    from semel.finalize import Finalized
    from semel.ledger import Ledger, Row
    from semel.reports.completeness import Range

EVENT_WINDOW_DAYS = 7
"""How long after its end a batch may still get its event: a week-end and more. What is older is
told to nobody, for Airflow's `db clean` may have removed its event."""

EVENT_BATCHES_MAX = 1_000
"""Batches of that window, the newest, whose events collect looks for: a batch each ten minutes."""

EVENTS_READ_MAX = 2_000
"""Events that one look reads, some 1 KB each: a batch's own is among the first after its end."""

EVENT_CLOCKS_SECONDS = 60
"""How far Airflow's clock may be behind the ledger's before a batch is told twice."""

EVENT_DAYS_MAX = 1_000
"""Days that an event names: 13 KB. A longer interval is told by its ends alone."""

OF_COLLECT = AssetAlias("semel_collect")
"""Under it collect tells of batches: an outlet that is an asset takes one event a task."""

OF_REPLAYS = AssetAlias("semel_replays")
"""Under it finalize tells of the replays of a run but the first, for the same reason."""


def asset(pipeline: str) -> Asset:
    """The asset. A DAG that runs on it names it in the same way: Asset("semel://<pipeline>")."""
    return Asset(f"semel://{pipeline}")


def late(pipeline: str) -> Asset:
    """The asset whose events say that something came for days whose runs are over."""
    return asset(f"{pipeline}/late")


def windows(pipeline: str) -> Asset:
    """The asset whose events say which windows are complete."""
    return asset(f"{pipeline}/windows")


def extra_of_windows(spec: "Spec", found: "Iterable[Range]") -> dict[str, Any]:
    """What such an event says: complete windows [start, end) in UTC, each once, first ones first;
    and by the folder column that has them, where the output is laid out by them, their names.
    """
    import pyarrow as pa  # Airflow imports this module every few seconds.

    from semel.model.windows import UTC_TIME

    windows, folders = sorted(set(found)), {}
    for one in spec.sink.windows if spec.window.windows.count == 1 else ():
        if one.of == spec.record_time and one.slices == spec.window.windows.slices:
            starts = pa.array([start for start, _ in windows], UTC_TIME)
            folders[one.name] = one.slices.names(starts).to_pylist()
    return {"pipeline": spec.name, "windows": plain(windows), "folders": folders}


def plain(found: "Iterable[Range]") -> list[list[str]]:
    """Windows as JSON."""
    return [[moment.astimezone(UTC).isoformat() for moment in window] for window in found]


def extra_of_late(pipeline: str, days: dict[date, int]) -> dict[str, Any]:
    """What such an event says. `days`: by day (UTC), how many files are new or changed."""
    return {
        "pipeline": pipeline,
        "days": {str(day): files for day, files in days.items()},
        "backfill": summary.backfill_of_days(pipeline, days),
        "command": summary.run_of_days(pipeline, days),
    }


def late_known(pipeline: str, extra: dict[str, Any]) -> bool:
    """Whether the newest event of these days, of a week, says the same."""
    since = datetime.now(UTC) - timedelta(days=EVENT_WINDOW_DAYS)
    events = list(_events(f"{pipeline}/late", since))
    return bool(events) and events[-1].extra == extra


def extra(done: "Finalized", found: "Iterable[Range]" = ()) -> dict[str, Any]:
    """What the event of a batch says: all that a DAG needs that runs on it. Of a replay it names
    the batch whose output it is, as the marker does. `found`: complete windows that it is of.
    """
    batch = done.batch
    between = batch.interval
    return {
        "pipeline": batch.spec["name"],
        "batch_id": batch.root,
        "generation": batch.generation,
        "replay": batch.batch_id if batch.replays is not None else None,
        "commit_seq": batch.commit_seq,
        "request_key": batch.request_key,
        "interval": [moment.isoformat() for moment in between] if between else None,
        "days": days(*between) if between else None,
        "counts": asdict(done.counts),
        "marker": str(done.marker),
        "windows": plain(found),
    }


def days(start: datetime, end: datetime) -> list[str] | None:
    """The days, in UTC, that [start, end) touches; None when there are too many to name."""
    first = start.astimezone(UTC).date()
    last = (end.astimezone(UTC) - timedelta.resolution).date()
    count = (last - first).days + 1
    if count > EVENT_DAYS_MAX:
        return None
    return [(first + timedelta(days=n)).isoformat() for n in range(count)]


def known(ledger: "Ledger", pipeline: str, batch_id: int) -> bool:
    """Whether Airflow has an event of a finalized batch, or nobody waits for one any more."""
    window = timedelta(days=EVENT_WINDOW_DAYS).total_seconds()
    found = ledger.rows("assets", "finalized", batch_id=batch_id, window_seconds=window)
    return not untold(found, pipeline)


def left(ledger: "Ledger", spec: Spec) -> list[int]:
    """Finalized batches, first ones first, of which no event is there and no run will make one."""
    found = ledger.rows(
        "assets", "lately",
        pipeline=spec.name,
        orphan_seconds=spec.limits.orphan_after.total_seconds(),
        window_seconds=timedelta(days=EVENT_WINDOW_DAYS).total_seconds(),
        batches_max=EVENT_BATCHES_MAX,
    )  # fmt: skip
    return untold(found, spec.name)


def untold(found: "list[Row]", pipeline: str) -> list[int]:
    """Of batches with their time, first ones first, those of which Airflow has no event."""
    if not found:
        return []
    since = min(row["finalized_at"] for row in found)
    events = _events(pipeline, since - timedelta(seconds=EVENT_CLOCKS_SECONDS))
    # Events of versions that knew no replay have no generation.
    told = {(e.extra.get("batch_id"), e.extra.get("generation", 1)) for e in events}
    return sorted(r["batch_id"] for r in found if (r["root"], r["generation"]) not in told)


def _events(pipeline: str, since: datetime) -> Iterable[Any]:
    """The first events of an asset since a time, as Airflow's API tells them to a task."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    known = asset(pipeline)
    events = InletEventsAccessors([known])[known]
    return events.after(since.isoformat()).limit(EVENTS_READ_MAX)
