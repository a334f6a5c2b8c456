"""Read a sink by whole batches: only what success markers list, never what a folder shows.

A listing may show part of a batch while it is being finalized; a marker is written last. Any other
reader may do the same: each marker is one JSON file that names the batch's files.

pyarrow.dataset brings pandas along, so it is imported by who asks for a dataset: most want markers.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.archive import layout
from semel.archive.marker import Marker, markers
from semel.errors import TerminalError
from semel.formats.output import columns_in_files, dataset_of
from semel.model.manifest import Kind
from semel.sinks.spec import archive_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def dataset(sink_path: str | Path, archive_path: str | Path | None = None) -> "ds.Dataset":
    """The output of all finalized batches, partition columns included.

    `archive_path`: where their markers lie, if `sink.archive` is declared.

    The columns are those of all batches together; a batch that lacks one gives nulls. In a JSON
    Lines sink a date column is text, and one of maps is left out, because pyarrow reads none from
    JSON (polars, DuckDB and Spark do); there and in CSV bytes are base64. A CSV file is parsed
    whole, in some four times its size of memory. TerminalError: no batch has been
    finalized there, or two batches have a column of one name and types that do not go together.
    """
    import pyarrow.dataset as ds

    sink = Path(sink_path)
    kept = Path(archive_path) if archive_path else archive_of(sink)
    found = markers(sink, kept)
    if not found:
        raise TerminalError(
            f"{sink} holds no finalized batch (no marker in {layout.markers(kept)}); check the "
            "path, or run the pipeline first"
        )
    try:
        schema = pa.unify_schemas(
            [columns_in_files(marker) for marker in found], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise TerminalError(
            f"{sink}: its batches have columns that are not compatible ({error}); read them apart, "
            "by the files of `semel.archive.marker.markers`"
        ) from error
    groups: dict[tuple[str, tuple[str, ...]], list[Marker]] = {}
    for marker in found:
        declared = marker.spec.sink
        groups.setdefault((declared.format, declared.partition_by), []).append(marker)
    parts = []
    for group in groups.values():
        files = [file for marker in group for file in marker.of_kind(Kind.DATA)]
        parts.append(dataset_of(sink, group[0].spec.sink, files, schema))
    return parts[0] if len(parts) == 1 else ds.dataset(parts)
