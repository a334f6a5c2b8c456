"""Read output files back: one by one in bounded pieces, or together as a dataset.

pyarrow.dataset imports pandas, so only functions that need it import it: most callers want markers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from semel import limits
from semel.declare.parts import escaped
from semel.formats.pieces import PIECE_BYTES_MAX, cut, read_pieces
from semel.formats.table import sink_format
from semel.model.manifest import MarkedFile, Published
from semel.storage import ArchivePath, readable

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as fs


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows without a value, as Hive names it. semel escapes a text that equals it."""

BOUNDED = {"batch_size": limits.PIECE_ROWS_MAX, "batch_readahead": 1, "fragment_readahead": 1}
"""Options that make a dataset read a few row groups or blocks at once, without reading ahead."""


# Keeps R1.
def dataset_of(
    sink: Path | None,
    declared: Any,
    files: Sequence[MarkedFile],
    schema: pa.Schema,
    disk: "fs.FileSystem | None" = None,
) -> "ds.Dataset":
    """Output files of batches that share the format and partition columns of `declared`.

    Paths are relative to `sink` if it is given. `disk`: their file system, None for the local one.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    if not files:
        return ds.dataset(schema.empty_table())
    code, disk = sink_format(declared.format).code(), disk or fs.LocalFileSystem()

    def folder_condition(path: str) -> "ds.Expression":
        """The values of a path's folders as a condition on its rows.

        The folder of nulls also has empty texts: if files have the column, as those of partial rows
        do, the files decide.
        """
        condition = ds.scalar(True)
        for name, value in folder_values(schema, declared.folders, path).items():
            column = ds.field(name)
            if value.is_valid or not pa.types.is_string(value.type):
                condition &= column == value if value.is_valid else column.is_null()
        return condition

    fragments = [
        code.dataset_format(sink and sink / file.path, file.bytes).make_fragment(
            str(sink / file.path) if sink else file.path,
            disk,
            partition_expression=folder_condition(file.path),
        )
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, fragments[0].format, disk)


def fragment_of(path: ArchivePath) -> "ds.Fragment":
    """A Parquet file of an archive, for a query with a filter."""
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    file, form = readable(path), ds.ParquetFileFormat()
    if isinstance(file, Path):
        return form.make_fragment(str(file), fs.LocalFileSystem())
    return form.make_fragment(file)


# Keeps R5.
def rows_of(
    marker: Published, file: MarkedFile, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of an output file of a batch, partition columns included, in bounded pieces.

    `columns`: the default is those of the rows; windows in its folders are allowed too. Raises
    OSError or pa.ArrowException if the file is unreadable.
    """
    schema, declared = columns_for_readers(marker), marker.spec.sink
    names = columns_in_files(marker).names if columns is None else columns
    wanted = pa.schema([schema.field(name) for name in names])
    if declared.format != "parquet":
        dataset = dataset_of(marker.sink, marker.spec.sink, [file], schema)
        for rows in dataset.to_batches(columns=wanted.names, **BOUNDED):
            yield from cut(pa.Table.from_batches([rows]), PIECE_BYTES_MAX)
        return
    folder_scalars = folder_values(schema, declared.folders, file.path)
    values = {name: value for name, value in folder_scalars.items() if value.is_valid}
    for rows in read_pieces(marker.path_of(file), [n for n in wanted.names if n not in values]):
        parts = [_column(rows, field, values) for field in wanted]
        # Without columns, too, the table keeps its number of rows.
        yield pa.table(parts, schema=wanted) if parts else pa.Table.from_batches([rows]).select([])


def folder_values(
    columns: pa.Schema, folders: Sequence[str], path: str
) -> dict[str, pa.Scalar]:
    """The values of `columns` in the folders of a file's path. If one is null and the file has the
    column, the file decides."""
    texts = folder_texts(path.rpartition("/")[0])
    return {
        name: pa.scalar(texts.get(name), pa.string()).cast(columns.field(name).type)
        for name in folders
        if name in columns.names
    }


# Keeps L9.
def folder_value(text: str) -> str:
    """A text as the value in a folder's name. An empty text gets null's folder, because Spark does
    not read a folder without a value. Texts that readers treat as null are escaped; DuckDB does so
    with NULL."""
    if not text:
        return NULL_FOLDER
    if text == NULL_FOLDER or text.lower() == "null":
        return f"%{ord(text[0]):02X}{text[1:]}"
    return escaped(text)


def folder_texts(folder: str) -> dict[str, str | None]:
    """The values in the folders of a path, as text: `origin=JFK/hour=2013-10-27T02`."""
    parts = (part.split("=", 1) for part in folder.split("/") if "=" in part)
    return {unquote(k): None if text == NULL_FOLDER else unquote(text) for k, text in parts}


def _column(rows: pa.RecordBatch, field: pa.Field, values: dict[str, pa.Scalar]) -> pa.Array:
    """A column of rows as `field`. `values`: constants for all rows."""
    at = rows.schema.get_field_index(field.name)
    if field.name in values or at < 0:
        return pa.repeat(values.get(field.name, pa.scalar(None, field.type)), rows.num_rows)
    column = rows.column(at)
    return column if column.type == field.type else column.cast(field.type)


def columns_in_files(marker: Published) -> pa.Schema:
    """The columns of a batch's output, with the types as which pyarrow reads them from its files.

    Columns that pyarrow cannot read are left out. Folders keep their columns' types.
    """
    declared = marker.spec.sink
    type_of = sink_format(declared.format).code().read_back_type
    columns = [
        (f, f.type if f.name in declared.folders else type_of(f.type)) for f in marker.sink_schema
    ]
    return pa.schema(f.with_type(kind) for f, kind in columns if kind is not None)


def columns_for_readers(marker: Published) -> pa.Schema:
    """The columns in files, followed by the windows of time that are folders, as text.

    A window follows from its column's value, so two rows never differ in it alone.
    """
    windows = (pa.field(one.name, pa.string()) for one in marker.spec.sink.windows)
    return pa.schema([*columns_in_files(marker), *windows])
