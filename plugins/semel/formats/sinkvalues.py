"""Values that a text format of a sink writes as text, and values that it cannot hold."""

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import TerminalError

BLOCK_BYTES_MAX = (1 << 31) - 1
"""The largest block that pyarrow's readers accept."""

_YEARS = (1, 9999)
"""The years that ISO 8601 writes with four digits; readers do not accept others."""


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_plain(kind: pa.DataType) -> bool:
    """Whether values are atomic, and have a text form that readers know."""
    kinds = (
        pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal128,
        pa.types.is_string, pa.types.is_large_string, pa.types.is_date32, pa.types.is_timestamp,
        pa.types.is_null, is_binary,
    )  # fmt: skip
    return any(of_kind(kind) for of_kind in kinds)


def as_base64(array: pa.Array) -> pa.Array:
    """Bytes as text, with padding."""
    return pl.from_arrow(array).bin.encode("base64").to_arrow().cast(pa.string())


# Keeps S22.
def check_years(name: str, array: pa.Array) -> None:
    """Raises TerminalError for a date or time outside of the years 1 to 9999."""
    ends = pc.min_max(array)
    first, last = (pc.year(ends[end]).as_py() for end in ("min", "max"))
    if first is not None and not _YEARS[0] <= first <= last <= _YEARS[1]:
        raise TerminalError(
            f"the output's column {name!r} holds dates of years {first} to {last}, "
            f"but as text, readers accept only {_YEARS[0]} to {_YEARS[1]}; make the others null in "
            "the last transform's select, or write Parquet"
        )
