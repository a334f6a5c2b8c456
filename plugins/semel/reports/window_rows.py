"""The rows of a pipeline's aggregated windows, and the state of each window."""

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
"""Maximum rows of one report."""

Row = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The values of a row's keys and of its columns, in declared order."""


@dataclass(frozen=True, kw_only=True)
class CountedWindow:
    """A window [start, end) and its rows, in the order of their keys; it may be empty."""

    start: datetime
    end: datetime
    state: WindowState
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CountedWindows:
    """Windows, newest first. `cut`: there were more than COUNTED_MAX rows, so that the oldest
    windows are missing.
    """

    windows: tuple[CountedWindow, ...]
    cut: bool


def read_windows(
    ledger: Ledger,
    spec: Spec,
    report: completeness.WindowReport,
    *,
    level: int,
    since: date | None = None,
    until: date | None = None,
    now: datetime,
) -> CountedWindows:
    """The windows of `report`, and newer windows with rows, with their rows of one level of
    `aggregate.by`. `report` has the same `since` and `until`.

    Raises UnavailableError if the sink does not answer.
    """
    windows = report.windows
    first = min((each.start for each in windows), default=now)
    end = datetime.combine(until, time(), UTC) + timedelta(days=1) if until else None
    merged = _rows(spec, level, first, end)
    cut = len(merged) > COUNTED_MAX
    if cut:  # The oldest window may have further rows.
        oldest = _utc(merged[-1][START])
        merged = [row for row in merged if _utc(row[START]) > oldest]
        windows = tuple(each for each in windows if each.start > oldest)
    by, names = spec.aggregate.by[level], tuple(spec.aggregate.columns)
    rows: dict[completeness.Range, list[Row]] = {(each.start, each.end): [] for each in windows}
    for row in merged:
        keys, values = (tuple(row[name] for name in columns) for columns in (by, names))
        rows.setdefault((_utc(row[START]), _utc(row[END])), []).append((keys, values))
    is_complete = completeness.read_completeness(ledger, spec)
    states = {(each.start, each.end): each.state for each in report.windows}
    counted = [
        CountedWindow(
            start=start,
            end=end,
            state=states.get((start, end)) or is_complete.state(start, end),
            rows=tuple(sorted(its_rows, key=lambda row: [*map(str, row[0])])),
        )
        for (start, end), its_rows in sorted(rows.items(), reverse=True)
    ]
    if since is None:  # Without the empty windows before the first record.
        while counted and not counted[-1].rows and counted[-1].state is not WindowState.HOLE:
            counted.pop()
    return CountedWindows(windows=tuple(counted), cut=cut)


def query(spec: Spec) -> str:
    """An SQL statement that reads the windows: for DuckDB if the sink writes files, else for the
    sink's own database.

    Raises TerminalError, with another way to read them, if SQL cannot.
    """
    if spec.aggregate is None:
        raise TerminalError(
            f"{spec.name} has no windows to query, because its rows are records. Declare aggregate",
            next=f"semel validate {spec.name}",
        )
    if not spec.sink.in_files:
        return open_sink(spec).merged_query()
    windows = spec.window.windows
    if not spec.sink.in_folder:
        url, connection = spec.sink.url, spec.sink.connection
        raise TerminalError(
            f"semel cannot print an SQL statement for the windows of {spec.name}: it would contain "
            f"the store's key. In Python, call "
            f"semel.reader.windows({url!r}, connection={connection!r})",
            next=f"semel windows {spec.name}",
        )
    if spec.sink.format != "parquet" or windows.count > 1 and windows.slices.zone != "UTC":
        raise TerminalError(
            f"semel cannot print an SQL statement for the windows of {spec.name}: SQL would need "
            + ("the types of columns" if spec.sink.format != "parquet" else "the zone's clock")
            + ". In Python, call semel.reader.windows(folder)",
            next=f"semel windows {spec.name}",
        )
    markers = layout.markers(layout.archive_folder(spec))
    counting = spec.of_sink().counting
    by = pa.schema([])
    if names := [name for name in spec.sink.partition_by if isinstance(name, str)]:
        columns = columns_of(spec) if not spec.transforms else _newest_marker(spec).sink_schema
        by = pa.schema([columns.field(name) for name in names])
    return files_query(counting, spec.sink_path(), markers, by)


def _newest_marker(spec: Spec) -> Marker:
    """The newest marker, which records the columns that transforms returned.

    Raises TerminalError if no batch is finalized.
    """
    if not (markers := markers_of(spec)):
        raise TerminalError(f"{spec.name} has not finalized a batch", next=f"semel run {spec.name}")
    return markers[-1]


def _rows(spec: Spec, level: int, since: datetime, until: datetime | None) -> list[dict[str, Any]]:
    """The newest rows first, at most COUNTED_MAX + 1."""
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
    """Views return times in their connection's zone; files have UTC times without a zone."""
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
