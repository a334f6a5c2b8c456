"""A pipeline's asset, `semel://<pipeline>`: one event for each finalized batch and each replay.

How it works: Airflow stores a task's events and its success in one transaction. The task that
finalizes a batch sends the event. A task that meets a finalized batch (a retry, a cleared run,
collect) sends it only if Airflow lacks it. So if a task dies in between, the next one sends
it.
Known limitation: two tasks that query at the same moment may both send an event. A DAG that runs on
the asset skips the second by its key, the batch's number and generation. Airflow fails a task whose
events it cannot store, although the task's log ends well. If two tasks add an asset to the same
alias for the first time at once, Airflow fails the second. So semel uses an alias for second events
only.
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
"""How long after its end a batch may still get its event: a week-end and more. Older batches get
none, because Airflow's `db clean` may have removed the event that they had."""

EVENT_BATCHES_MAX = 1_000
"""How many of the newest batches of that window collect checks: one every ten minutes."""

EVENTS_READ_MAX = 2_000
"""Events that one query reads, some 1 KB each. A batch's event is among the first after its end."""

EVENT_CLOCKS_SECONDS = 60
"""How far Airflow's clock may lag the ledger's before a batch gets a second event."""

EVENT_DAYS_MAX = 1_000
"""Days that an event lists: 13 KB. For a longer interval it has only the two ends."""

COLLECT_ALIAS = AssetAlias("semel_collect")
"""collect sends its events under this alias: an outlet that is an asset takes one event a task."""

REPLAYS_ALIAS = AssetAlias("semel_replays")
"""finalize sends the second and later replays of a run under this alias, for the same reason."""


def asset(pipeline: str) -> Asset:
    """A pipeline's asset. Another DAG schedules on it by Asset("semel://<pipeline>")."""
    return Asset(f"semel://{pipeline}")


def late_asset(pipeline: str) -> Asset:
    """The asset whose events report files that arrived for days whose runs are over."""
    return asset(f"{pipeline}/late")


def windows_asset(pipeline: str) -> Asset:
    """The asset whose events report complete windows."""
    return asset(f"{pipeline}/windows")


def extra_of_windows(spec: "Spec", completed: "Iterable[Range]") -> dict[str, Any]:
    """The extra of a windows event: complete windows [start, end) in UTC, sorted, without repeats.

    `folders`: if the output has a folder for each window, the windows' names by folder column.
    """
    import pyarrow as pa  # Airflow imports this module every few seconds.

    from semel.model.arrow import UTC_TIME

    windows, folders = sorted(set(completed)), {}
    for column in spec.sink.windows if spec.window.windows.count == 1 else ():
        if column.of == spec.record_time and column.slices == spec.window.windows.slices:
            starts = pa.array([start for start, _ in windows], UTC_TIME)
            folders[column.name] = column.slices.names(starts).to_pylist()
    return {"pipeline": spec.name, "windows": windows_as_json(windows), "folders": folders}


def windows_as_json(windows: "Iterable[Range]") -> list[list[str]]:
    """Start and end of each window, as ISO 8601 in UTC."""
    return [[moment.astimezone(UTC).isoformat() for moment in window] for window in windows]


def extra_of_late(pipeline: str, days: dict[date, int]) -> dict[str, Any]:
    """The extra of a late event. `days`: new or changed files by day (UTC)."""
    return {
        "pipeline": pipeline,
        "days": {str(day): files for day, files in days.items()},
        "backfill": summary.backfill_of_days(pipeline, days),
        "command": summary.run_of_days(pipeline, days),
    }


def is_late_announced(pipeline: str, extra: dict[str, Any]) -> bool:
    """True if the newest late event of the last week has this extra."""
    since = datetime.now(UTC) - timedelta(days=EVENT_WINDOW_DAYS)
    events = list(_events(f"{pipeline}/late", since))
    return bool(events) and events[-1].extra == extra


def extra(result: "Finalized", completed: "Iterable[Range]" = ()) -> dict[str, Any]:
    """The extra of a batch's event: everything that a DAG scheduled on the asset needs.

    For a replay, `batch_id` is the replayed batch, as in the marker. `completed`: the complete
    windows that have records of the batch.
    """
    batch = result.batch
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
        "counts": asdict(result.counts),
        "marker": str(result.marker),
        "windows": windows_as_json(completed),
    }


def days(start: datetime, end: datetime) -> list[str] | None:
    """The UTC days that [start, end) touches. Returns None if they are more than EVENT_DAYS_MAX."""
    first = start.astimezone(UTC).date()
    last = (end.astimezone(UTC) - timedelta.resolution).date()
    count = (last - first).days + 1
    if count > EVENT_DAYS_MAX:
        return None
    return [(first + timedelta(days=n)).isoformat() for n in range(count)]


def is_announced(ledger: "Ledger", pipeline: str, batch_id: int) -> bool:
    """True if Airflow has the event of a finalized batch, or the batch is too old for one."""
    window = timedelta(days=EVENT_WINDOW_DAYS).total_seconds()
    batches = ledger.rows("assets", "finalized", batch_id=batch_id, window_seconds=window)
    return not without_event(batches, pipeline)


def unannounced_batches(ledger: "Ledger", spec: Spec) -> list[int]:
    """Finalized batches, in order, that lack an event and whose run will not send it."""
    batches = ledger.rows(
        "assets", "lately",
        pipeline=spec.name,
        orphan_seconds=spec.limits.orphan_after.total_seconds(),
        window_seconds=timedelta(days=EVENT_WINDOW_DAYS).total_seconds(),
        batches_max=EVENT_BATCHES_MAX,
    )  # fmt: skip
    return without_event(batches, spec.name)


def without_event(batches: "list[Row]", pipeline: str) -> list[int]:
    """The batches whose event Airflow lacks, in order."""
    if not batches:
        return []
    since = min(row["finalized_at"] for row in batches)
    events = _events(pipeline, since - timedelta(seconds=EVENT_CLOCKS_SECONDS))
    # Versions without replays sent no generation.
    sent = {(e.extra.get("batch_id"), e.extra.get("generation", 1)) for e in events}
    return sorted(r["batch_id"] for r in batches if (r["root"], r["generation"]) not in sent)


def _events(pipeline: str, since: datetime) -> Iterable[Any]:
    """The first events of an asset since a time, by the API that Airflow gives to tasks."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    queried = asset(pipeline)
    events = InletEventsAccessors([queried])[queried]
    return events.after(since.isoformat()).limit(EVENTS_READ_MAX)
