"""The files of a folder, read back: one by one in bounded pieces, or together as a dataset.

pyarrow.dataset brings pandas along, so it is imported by who asks for rows: most want markers.
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

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as fs


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows without a value, as Hive names it. A text that is equal to it is escaped."""

BOUNDED = {"batch_size": limits.PIECE_ROWS_MAX, "batch_readahead": 1, "fragment_readahead": 1}
"""How a dataset is read whose rows need not be read ahead: some row groups or blocks at once."""


# Keeps R1.
def dataset_of(
    sink: Path | None,
    declared: Any,
    files: Sequence[MarkedFile],
    schema: pa.Schema,
    disk: "fs.FileSystem | None" = None,
) -> "ds.Dataset":
    """Output files of batches that share the format and partition columns that `declared` has.

    `disk`: where they are below `sink`, or at their own paths; None: here.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    if not files:
        return ds.dataset(schema.empty_table())
    code, disk = sink_format(declared.format).code(), disk or fs.LocalFileSystem()

    def named(path: str) -> "ds.Expression":
        """What the folders of a path say of each of its rows. Null's folder has empty texts, too:
        where files have the column, as those of partial rows do, they tell.
        """
        found = ds.scalar(True)
        for name, value in folder_values(schema, declared.folders, path).items():
            one = ds.field(name)
            if value.is_valid or not pa.types.is_string(value.type):
                found &= one == value if value.is_valid else one.is_null()
        return found

    fragments = [
        code.dataset_format(sink and sink / file.path, file.bytes).make_fragment(
            str(sink / file.path) if sink else file.path,
            disk,
            partition_expression=named(file.path),
        )
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, fragments[0].format, disk)


# Keeps R5.
def rows_of(
    marker: Published, file: MarkedFile, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of an output file of a batch, partition columns included, in bounded pieces.

    `columns`: those of the rows when left out; the windows of its folders may be asked for too.
    OSError, pa.ArrowException: it cannot be read.
    """
    schema, declared = columns_for_readers(marker), marker.spec.sink
    names = columns_in_files(marker).names if columns is None else columns
    wanted = pa.schema([schema.field(name) for name in names])
    if declared.format != "parquet":
        there = dataset_of(marker.sink, marker.spec.sink, [file], schema)
        for rows in there.to_batches(columns=wanted.names, **BOUNDED):
            yield from cut(pa.Table.from_batches([rows]), PIECE_BYTES_MAX)
        return
    named = folder_values(schema, declared.folders, file.path)
    values = {name: value for name, value in named.items() if value.is_valid}
    for rows in read_pieces(marker.path_of(file), [n for n in wanted.names if n not in values]):
        found = [_column(rows, field, values) for field in wanted]
        # Without a column, too, it is as many rows.
        yield pa.table(found, schema=wanted) if found else pa.Table.from_batches([rows]).select([])


def folder_values(
    columns: pa.Schema, folders: Sequence[str], path: str
) -> dict[str, pa.Scalar]:
    """The values of those of `columns` that the folders of a file's path name. Where one is null,
    and the file has the column, the file tells.
    """
    texts = folder_texts(path.rpartition("/")[0])
    return {
        name: pa.scalar(texts.get(name), pa.string()).cast(columns.field(name).type)
        for name in folders
        if name in columns.names
    }


# Keeps L9.
def folder_value(text: str) -> str:
    """A text as the value in a folder's name. An empty one has null's folder, because Spark reads
    no folder without a value. One that readers take for null is escaped: DuckDB reads NULL so.
    """
    if not text:
        return NULL_FOLDER
    if text == NULL_FOLDER or text.lower() == "null":
        return f"%{ord(text[0]):02X}{text[1:]}"
    return escaped(text)


def folder_texts(folder: str) -> dict[str, str | None]:
    """What the folders of a path name, as text: `origin=JFK/hour=2013-10-27T02`."""
    found = (part.split("=", 1) for part in folder.split("/") if "=" in part)
    return {unquote(k): None if text == NULL_FOLDER else unquote(text) for k, text in found}


def _column(rows: pa.RecordBatch, field: pa.Field, values: dict[str, pa.Scalar]) -> pa.Array:
    """A column of rows as `field`; `values` are the same in all of them."""
    at = rows.schema.get_field_index(field.name)
    if field.name in values or at < 0:
        return pa.repeat(values.get(field.name, pa.scalar(None, field.type)), rows.num_rows)
    return rows.column(at) if rows.column(at).type == field.type else rows.column(at).cast(field.type)


def columns_in_files(marker: Published) -> pa.Schema:
    """The columns of a batch's output as its format holds them, and as pyarrow reads them.

    A column that pyarrow cannot read is left out. Those that are folders have their own type.
    """
    declared = marker.spec.sink
    held_as = sink_format(declared.format).code().read_back_type
    columns = [
        (f, f.type if f.name in declared.folders else held_as(f.type)) for f in marker.sink_schema
    ]
    return pa.schema(f.with_type(kind) for f, kind in columns if kind is not None)


def columns_for_readers(marker: Published) -> pa.Schema:
    """The same, and behind them the windows of time that are folders, as text.

    A window says nothing that its column does not: rows are the same without it.
    """
    windows = (pa.field(one.name, pa.string()) for one in marker.spec.sink.windows)
    return pa.schema([*columns_in_files(marker), *windows])
