"""Read the output of complete batches: the files that success markers list, never a folder's.

A folder may show part of a batch during finalize, which writes the marker last. Any other reader
can do the same: each marker is one JSON file that names the batch's files.

pyarrow.dataset imports pandas, so only the functions that need it import it.
"""

from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from semel.archive import layout
from semel.archive.marker import Marker, markers, parse_marker
from semel.declare.aggregate import END, FINAL, START
from semel.declare.parts import Select
from semel.errors import LimitError, TerminalError, first_line
from semel.formats.output import columns_for_readers, dataset_of
from semel.formats.windowsql import merge_query, windows_of
from semel.model.arrow import UTC_TIME
from semel.model.complete import Completeness
from semel.model.manifest import Kind
from semel.model.times import TimeSet
from semel.sinks.spec import RemoteOutput, archive_of, open_output_at

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def dataset(
    sink_path: str | Path,
    archive_path: str | Path | None = None,
    *,
    connection: str | None = None,
) -> "ds.Dataset":
    """The output of all finalized batches, partition columns and windows included.

    `sink_path`: a folder, or a URL such as `s3://bucket/prefix` with copies of the markers, read
    with an Airflow `connection` or the machine's own credentials. `archive_path`: the folder of the
    markers, if `sink.archive` is declared.

    The columns are those of all batches together; a batch that lacks one gives nulls. pyarrow reads
    neither dates nor maps from JSON: in a JSON Lines sink a date column is text, and map columns
    are missing (polars, DuckDB and Spark read both). There and in CSV bytes are base64. pyarrow
    parses a CSV file at once, in some four times its size of memory.

    Raises TerminalError if there is no finalized batch, or if two batches have a column of one name
    and incompatible types.
    """
    return _dataset(_marked_output(sink_path, archive_path, connection))


class _MarkedOutput(NamedTuple):
    """An output: its markers, and the folder or the store of its files."""

    address: str
    markers: list[Marker]
    folder: Path | None
    store: RemoteOutput | None


def _marked_output(
    address: str | Path, archive_path: str | Path | None, connection: str | None
) -> _MarkedOutput:
    """Raises TerminalError if there are no markers."""
    if "://" in str(address):
        store = open_output_at(str(address), connection)
        # The archive is out of reach, and no reader needs its files.
        copies = [parse_marker(text, Path(name), None) for name, text in store.markers()]
        copies.sort(key=lambda marker: marker.commit_seq)
        output, lacks = _MarkedOutput(str(address), copies, None, store), "no copy of a marker"
    else:
        folder = Path(address)
        archive = Path(archive_path) if archive_path else archive_of(folder)
        output = _MarkedOutput(str(folder), markers(folder, archive), folder, None)
        lacks = f"no marker in {layout.markers(archive)}"
    if not output.markers:
        raise TerminalError(
            f"{address} has no finalized batch ({lacks}). Check the path, or run the pipeline first"
        )
    return output


def _dataset(output: _MarkedOutput) -> "ds.Dataset":
    """The output files that markers list."""
    import pyarrow.dataset as ds

    try:
        schema = pa.unify_schemas(
            [columns_for_readers(marker) for marker in output.markers], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise TerminalError(
            f"{output.address}: the columns of its batches are not compatible ({error}). Read the "
            "files of each batch separately; `semel.archive.marker.markers` lists them"
        ) from error
    groups: dict[tuple[str, tuple[str, ...]], list[Marker]] = {}
    for marker in output.markers:
        declared = marker.spec.sink
        groups.setdefault((declared.format, declared.folders), []).append(marker)
    parts = []
    for group in groups.values():
        files = [file for marker in group for file in marker.of_kind(Kind.DATA)]
        disk = output.store and output.store.file_system(files)
        parts.append(dataset_of(output.folder, group[0].spec.sink, files, schema, disk))
    return parts[0] if len(parts) == 1 else ds.dataset(parts)


# Keeps AG3.
def windows(
    sink_path: str | Path,
    archive_path: str | Path | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    connection: str | None = None,
) -> pa.Table:
    """The merged rows of a pipeline with `aggregate`, for windows that begin in [since, until).

    The columns of the table:
    - window_start and window_end (UTC);
    - the keys, null if the row's level lacks them, and the columns of `aggregate`;
    - `final`: True if the window is complete (docs/windows.md), null for a topic;
    - `_semel_level`: the item of aggregate.by.

    Raises LimitError if a sum has more than 38 digits, and TerminalError as `dataset` or if the
    pipeline does not declare `aggregate`.
    """
    import duckdb

    from semel.clients.duck import connect, drop_time_zones

    output = _marked_output(sink_path, archive_path, connection)
    parts, spec = _dataset(output), output.markers[-1].spec
    if spec.aggregate is None:
        raise TerminalError(
            f"{output.address} has rows of records, not of windows. Use `dataset` instead"
        )
    declared = spec.window.windows
    begin = [] if since is None else [pc.field(START) >= since]
    end = [] if until is None else [pc.field(START) < until + declared.longest]
    rows = parts.to_table(filter=reduce(and_, begin + end) if begin + end else None)
    spans = windows_of(declared, rows.column(START))
    for bound, compare in ((since, pc.greater_equal), (until, pc.less)):
        if bound is not None:
            spans = spans.filter(compare(spans.column(START), pa.scalar(bound, UTC_TIME)))
    state = _completeness(output.markers)
    if state is None:
        final = pa.nulls(spans.num_rows, pa.bool_())
    else:
        ends = spans.column(START).to_numpy(), spans.column(END).to_numpy()
        final = pa.array(state.completes(*ends))
    with connect() as connection:
        connection.register("parts", drop_time_zones(rows))
        connection.register("windows", drop_time_zones(spans.append_column(FINAL, final)))
        query = merge_query(spec.aggregate, declared, parts="parts", windows="windows")
        try:
            merged = connection.sql(f"{query} ORDER BY ALL").to_arrow_table()
            merged.validate(full=True)  # DuckDB's sums have 128 bits, and so some have 39 digits.
            return merged
        except (duckdb.OutOfRangeException, pa.ArrowInvalid) as error:
            raise LimitError(
                f"{output.address}: a sum of a window has more than 38 digits "
                f"({first_line(error)}). Read its partial rows by `dataset`, or choose other "
                "windows by `since` and `until`"
            ) from error


def _completeness(history: list[Marker]) -> Completeness | None:
    """The completeness of a pipeline by its markers. Returns None for a topic."""
    spec = history[-1].spec
    if spec.source.select is Select.INTERVAL:
        covered = TimeSet.of(span for marker in history for span in marker.covers.ranges)
        return Completeness(covered=covered, delay=spec.window.delay)
    if spec.source.streams:
        return None
    last = max((m.complete_to for m in history if m.complete_to), default=None)
    return Completeness(event_time=last, delay=spec.window.delay)
