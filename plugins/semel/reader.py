"""Read a sink by whole batches: only what success markers list, never what a folder shows.

A listing may show part of a batch while it is being finalized; a marker is written last. Any other
reader may do the same: each marker is one JSON file that names the batch's files.

pyarrow.dataset brings pandas along, so it is imported by who asks for a dataset: most want markers.
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
from semel.model.complete import Completeness
from semel.model.manifest import Kind
from semel.model.times import TimeSet
from semel.model.windows import UTC_TIME
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

    `sink_path`: a folder; or a URL as `s3://bucket/prefix`, which is read by the copies of markers
    that lie there, with an Airflow `connection` or the machine's own credentials. `archive_path`:
    where the markers of a folder lie, if `sink.archive` is declared.

    The columns are those of all batches together; a batch that lacks one gives nulls. In a JSON
    Lines sink a date column is text, and one of maps is left out, because pyarrow reads none from
    JSON (polars, DuckDB and Spark do); there and in CSV bytes are base64. A CSV file is parsed
    whole, in some four times its size of memory. TerminalError: no batch has been
    finalized there, or two batches have a column of one name and types that do not go together.
    """
    return _dataset(_found(sink_path, archive_path, connection))


class _Found(NamedTuple):
    """An output: its markers, and the folder or the store where its files are."""

    where: str
    markers: list[Marker]
    sink: Path | None
    away: RemoteOutput | None


def _found(
    where: str | Path, archive_path: str | Path | None, connection: str | None
) -> _Found:
    """TerminalError: there are no markers."""
    if "://" in str(where):
        there = open_output_at(str(where), connection)
        # No archive is seen: what markers name there is not read.
        found = [parse_marker(text, Path(name), None) for name, text in there.markers()]
        found.sort(key=lambda marker: marker.commit_seq)
        output, lacks = _Found(str(where), found, None, there), "no copy of a marker"
    else:
        sink = Path(where)
        kept = Path(archive_path) if archive_path else archive_of(sink)
        output = _Found(str(sink), markers(sink, kept), sink, None)
        lacks = f"no marker in {layout.markers(kept)}"
    if not output.markers:
        raise TerminalError(
            f"{where} holds no finalized batch ({lacks}); check the path, or run the pipeline first"
        )
    return output


def _dataset(found: _Found) -> "ds.Dataset":
    """The output that markers list."""
    import pyarrow.dataset as ds

    try:
        schema = pa.unify_schemas(
            [columns_for_readers(marker) for marker in found.markers], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise TerminalError(
            f"{found.where}: its batches have columns that are not compatible ({error}); read them "
            "apart, by the files of `semel.archive.marker.markers`"
        ) from error
    groups: dict[tuple[str, tuple[str, ...]], list[Marker]] = {}
    for marker in found.markers:
        declared = marker.spec.sink
        groups.setdefault((declared.format, declared.folders), []).append(marker)
    parts = []
    for group in groups.values():
        files = [file for marker in group for file in marker.of_kind(Kind.DATA)]
        disk = found.away and found.away.file_system(files)
        parts.append(dataset_of(found.sink, group[0].spec.sink, files, schema, disk))
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
    """The rows of the windows that a pipeline with `aggregate` counts, merged: those that begin at
    `since` or later, and before `until`.

    window_start and window_end (UTC); the keys, null where a row is of a level without them; the
    columns; `final`: whether the window is complete (docs/windows.md), null where markers do not
    tell it, of a topic; `_semel_level`: the item of aggregate.by. LimitError: a sum has more than
    38 digits. TerminalError: as `dataset`; or the pipeline counts nothing.
    """
    import duckdb

    from semel.clients.duck import drop_time_zones

    found = _found(sink_path, archive_path, connection)
    parts, spec = _dataset(found), found.markers[-1].spec
    if spec.aggregate is None:
        raise TerminalError(
            f"{found.where} has rows of records, and counts no windows; read `dataset`"
        )
    declared = spec.window.windows
    begin = [] if since is None else [pc.field(START) >= since]
    end = [] if until is None else [pc.field(START) < until + declared.longest]
    rows = parts.to_table(filter=reduce(and_, begin + end) if begin + end else None)
    of = windows_of(declared, rows.column(START))
    for wanted, compare in ((since, pc.greater_equal), (until, pc.less)):
        if wanted is not None:
            of = of.filter(compare(of.column(START), pa.scalar(wanted, UTC_TIME)))
    known = _completeness(found.markers)
    if known is None:
        final = pa.nulls(of.num_rows, pa.bool_())
    else:
        final = pa.array(known.completes(of.column(START).to_numpy(), of.column(END).to_numpy()))
    with duckdb.connect() as connection:
        connection.register("parts", drop_time_zones(rows))
        connection.register("windows", drop_time_zones(of.append_column(FINAL, final)))
        query = merge_query(spec.aggregate, declared, parts="parts", windows="windows")
        try:
            merged = connection.sql(f"{query} ORDER BY ALL").to_arrow_table()
            merged.validate(full=True)  # DuckDB adds up to 128 bits, which are some of 39 digits.
            return merged
        except (duckdb.OutOfRangeException, pa.ArrowInvalid) as error:
            raise LimitError(
                f"{found.where}: a sum of a window has more than 38 digits ({first_line(error)}); "
                "read its partial rows by `dataset`, or other windows by `since` and `until`"
            ) from error


def _completeness(found: list[Marker]) -> Completeness | None:
    """What is complete of a pipeline, by its markers. None: they do not tell it."""
    spec = found[-1].spec
    if spec.source.select is Select.INTERVAL:
        covered = TimeSet.of(span for marker in found for span in marker.covers.ranges)
        return Completeness(covered=covered, delay=spec.window.delay)
    if spec.source.streams:
        return None
    last = max((m.complete_to for m in found if m.complete_to), default=None)
    return Completeness(event_time=last, delay=spec.window.delay)
