"""From what pyarrow's readers give to the declared types: the same answer in JSON and in CSV."""

import pyarrow as pa
import pyarrow.compute as pc

# A zone stands behind the date (10 characters), where there is no other sign or Z.
_ZONE = r"^.{10}.*[Z+-]"


def as_read(declared: pa.DataType) -> pa.DataType:
    """The type to read a JSON value with: pyarrow.json takes numbers for dates, so text."""
    if pa.types.is_date(declared):
        return pa.string()
    if pa.types.is_struct(declared):
        return pa.struct([field.with_type(as_read(field.type)) for field in declared])
    if pa.types.is_list(declared):
        return pa.list_(declared.value_field.with_type(as_read(declared.value_type)))
    return declared


def convert(column: pa.ChunkedArray, declared: pa.DataType) -> pa.ChunkedArray:
    """The column with its declared type.

    Text becomes a date (YYYY-MM-DD) or a timestamp (ISO 8601, UTC where no zone is given). Raises
    ValueError for other text, and for a number that the type cannot hold.
    """
    if column.type != declared:
        if pa.types.is_timestamp(declared) and pa.types.is_string(column.type):
            column = _timestamps(column, declared)
        else:
            column = column.cast(declared)
    for chunk in column.chunks:
        _check_values(chunk)
    return column


def _timestamps(column: pa.ChunkedArray, declared: pa.TimestampType) -> pa.ChunkedArray:
    # pyarrow casts text either with zones or without them.
    zoned = pc.match_substring_regex(column, _ZONE)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, column, nothing).cast(pa.timestamp(declared.unit, "UTC"))
    without = pc.if_else(zoned, nothing, column).cast(pa.timestamp(declared.unit))
    return pc.coalesce(with_zone, without.cast(with_zone.type)).cast(declared)


def _check_values(array: pa.Array) -> None:
    """What pyarrow's readers let pass: NaN, overflow to infinity, more digits than declared."""
    if pa.types.is_floating(array.type):
        if pc.all(pc.is_finite(array)).as_py() is False:
            raise ValueError(f"a number that {array.type} cannot hold, or not a number")
    elif pa.types.is_decimal(array.type):
        array.validate(full=True)
    elif pa.types.is_struct(array.type):
        for inner in array.flatten():
            _check_values(inner)
    elif pa.types.is_list(array.type):
        _check_values(array.flatten())
