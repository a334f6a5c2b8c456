"""The record times of the input, by split and by claim."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from semel.model import times as model_times
from semel.model.manifest import SplitReport
from semel.stage.job import StageJob

Times = tuple[int, int] | None
"""The first and the last of some times, in microseconds since 1970, or None without times."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CALENDAR = tuple(
    (end.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    for end in (datetime(1, 1, 2), datetime(9999, 12, 30))
)
"""The times that a calendar can show in any zone. Times outside count as the nearer end."""


# Keeps W4.
def times_of(job: StageJob, records: pa.Table) -> Times:
    """The first and the last record time, except times after the batch's plan. Returns None if no
    window is declared.
    """
    spec = job.spec
    if spec.window is None or not records.num_rows:
        return None
    times = spec.window.windows.slices.moments(records.column(spec.record_time))
    until = pa.scalar(job.times_until, times.type)
    ends = pc.min_max(times.filter(pc.less_equal(times, until)))
    if not ends["min"].is_valid:
        return None
    low, high = _CALENDAR
    first, last = (max(low, min(high, ends[end].value)) for end in ("min", "max"))
    return first, last


def together(ranges: Iterable[Times]) -> Times:
    """The first and the last time of several ranges."""
    pairs = [times for times in ranges if times is not None]
    if not pairs:
        return None
    return min(first for first, _ in pairs), max(last for _, last in pairs)


def of_claims(job: StageJob, reports: list[SplitReport]) -> list[dict[str, object]]:
    """The times of each claim that has times, as parameters of a statement."""
    by_claim: dict[int, list[Times]] = {}
    for split, report in zip(job.splits, reports, strict=True):
        by_claim.setdefault(split.claim.ordinal, []).append(report.times)
    return [
        {"ordinal": ordinal, "time_min": _moment(times[0]), "time_max": _moment(times[1])}
        for ordinal, found in by_claim.items()
        if (times := together(found)) is not None
    ]


# Keeps W9.
def of_attempt(reports: Iterable[SplitReport]) -> model_times.TimeSet:
    """The times of an attempt's input, from the first to the last time of each split."""
    ranges = (report.times for report in reports if report.times is not None)
    return model_times.TimeSet.of((_at(first), _at(last + 1)) for first, last in ranges)


def _moment(microseconds: int) -> str:
    return _at(microseconds).isoformat()


def _at(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
