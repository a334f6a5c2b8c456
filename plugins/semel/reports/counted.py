"""The rows of the windows that a pipeline counts, with what is complete of them."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel import reader
from semel.archive import layout
from semel.archive.marker import Marker, markers_of
from semel.declare.aggregate import END, LEVEL, START
from semel.errors import TerminalError
from semel.formats.windowsql import files_query
from semel.ledger import Ledger
from semel.model.complete import WindowState
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.reports import completeness
from semel.stage.job import columns_of

COUNTED_MAX = 5_000
"""Rows of windows in one answer."""


Row = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The values of a row's keys, and of its columns, as they are declared."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The rows of one window [start, end), by their keys; none where nothing was counted."""

    start: datetime
    end: datetime
    state: WindowState
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CountedWindows:
    """The answer, newest first. `cut`: there are more than COUNTED_MAX rows, and the oldest windows
    of those asked for are left out.
    """

    windows: tuple[Counted, ...]
    cut: bool


def counted(
    ledger: Ledger,
    spec: Spec,
    known: completeness.WindowReport,
    *,
    level: int,
    since: date | None = None,
    until: date | None = None,
    now: datetime,
) -> CountedWindows:
    """The rows of one level of `aggregate.by`, of all windows of some days: those of `known`, which
    was asked the same, and of newer ones those of which there are rows.

    UnavailableError: the sink does not answer.
    """
    windows = known.windows
    first = min((each.start for each in windows), default=now)
    end = datetime.combine(until, time(), UTC) + timedelta(days=1) if until else None
    found = _rows(spec, level, first, end)
    cut = len(found) > COUNTED_MAX
    if cut:  # The rows of the oldest window may be some of it.
        oldest = _utc(found[-1][START])
        found = [row for row in found if _utc(row[START]) > oldest]
        windows = tuple(each for each in windows if each.start > oldest)
    by, names = spec.aggregate.by[level], tuple(spec.aggregate.columns)
    rows: dict[completeness.Range, list[Row]] = {(each.start, each.end): [] for each in windows}
    for row in found:
        keys, values = (tuple(row[name] for name in some) for some in (by, names))
        rows.setdefault((_utc(row[START]), _utc(row[END])), []).append((keys, values))
    is_complete = completeness.of(ledger, spec)
    states = {(each.start, each.end): each.state for each in known.windows}
    found = [
        Counted(
            start=start,
            end=end,
            state=states.get((start, end)) or is_complete.state(start, end),
            rows=tuple(sorted(some, key=lambda row: [*map(str, row[0])])),
        )
        for (start, end), some in sorted(rows.items(), reverse=True)
    ]
    while (
        since is None and found and not found[-1].rows and found[-1].state is not WindowState.HOLE
    ):
        found.pop()  # Before there were records.
    return CountedWindows(windows=tuple(found), cut=cut)


def query(spec: Spec) -> str:
    """A statement by which a person reads the windows: for DuckDB of files, else for the sink.

    TerminalError: there is none; the message says what reads them.
    """
    if spec.aggregate is None:
        raise TerminalError(
            f"{spec.name} counts no windows: its rows are records. Declare aggregate",
            next=f"semel validate {spec.name}",
        )
    if not spec.sink.in_files:
        return open_sink(spec).merged_query()
    windows = spec.window.windows
    if not spec.sink.in_folder:
        url, connection = spec.sink.url, spec.sink.connection
        raise TerminalError(
            f"no statement reads the windows of {spec.name}: it would need the store's key; "
            f"semel.reader.windows({url!r}, connection={connection!r}) reads them, in Python",
            next=f"semel windows {spec.name}",
        )
    if spec.sink.format != "parquet" or windows.count > 1 and windows.slices.zone != "UTC":
        raise TerminalError(
            f"no statement reads the windows of {spec.name}: it would have to know "
            + ("the types of columns" if spec.sink.format != "parquet" else "the zone's clock")
            + "; semel.reader.windows(folder) reads them, in Python",
            next=f"semel windows {spec.name}",
        )
    markers = layout.markers(layout.archive_folder(spec))
    counting = spec.of_sink().counting
    by = pa.schema([])
    if names := [name for name in spec.sink.partition_by if isinstance(name, str)]:
        columns = columns_of(spec) if not spec.transforms else _newest(spec).sink_schema
        by = pa.schema([columns.field(name) for name in names])
    return files_query(counting, spec.sink_path(), markers, by)


def _newest(spec: Spec) -> Marker:
    """The newest batch, whose columns transforms gave. TerminalError: there is none."""
    if not (found := markers_of(spec)):
        raise TerminalError(f"{spec.name} has no finalized batch", next=f"semel run {spec.name}")
    return found[-1]


def _rows(
    spec: Spec, level: int, since: datetime, until: datetime | None
) -> list[dict[str, Any]]:
    """One more than COUNTED_MAX at most, the newest first."""
    count = COUNTED_MAX + 1
    if not spec.sink.in_files:
        return open_sink(spec).merged_windows(level, since, until, count)
    if spec.sink.in_folder:
        archive = layout.archive_folder(spec)
        table = reader.windows(spec.sink_path(), archive, since=since, until=until)
    else:
        url, connection = spec.sink.url, spec.sink.connection
        table = reader.windows(url, since=since, until=until, connection=connection)
    table = table.filter(pc.field(LEVEL) == level).sort_by([(START, "descending")])
    return table.slice(0, count).to_pylist()


def _utc(at: datetime) -> datetime:
    """The time of a view has the zone of its connection, that of files is UTC without a zone."""
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
