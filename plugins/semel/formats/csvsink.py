"""CSV as a sink's format: the code of the table's entry, see table.SinkCode.

RFC 4180 with LF as the line end: a header, then a record for each row, quoted if needed. An empty
field is null, a quoted empty field the empty text. Text is written unchanged, even with line ends,
NULs, or a `=` that a spreadsheet would read as a formula.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from semel.formats.sinkvalues import BLOCK_BYTES_MAX, as_base64, check_years, is_binary, is_plain

if TYPE_CHECKING:
    import pyarrow.dataset as ds

CSV_BLOCK_BYTES_MIN = 64 << 10
"""Minimum block size for reading CSV; pyarrow allocates a block for each file."""

_QUOTE, _LINE_END = b'"', b"\n"


def refusal(kind: pa.DataType) -> str | None:
    """See table.SinkCode."""
    return None if is_plain(kind) else f"{kind}, which a CSV field cannot hold"


def read_back_type(kind: pa.DataType) -> pa.DataType:
    """See table.SinkCode."""
    return pa.string() if is_binary(kind) else kind


def write(table: pa.Table, file: Any) -> None:
    """See table.SinkCode."""
    names = table.column_names
    # Always quoted, because readers would drop a byte order mark at the start of a name.
    header = (_QUOTE + name.encode().replace(_QUOTE, 2 * _QUOTE) + _QUOTE for name in names)
    file.write(b",".join(header) + _LINE_END)
    ready = [_in_csv(name, table.column(name).combine_chunks()) for name in names]
    # Temporary names, because polars ends a name at a NUL.
    pl.from_arrow(pa.table(ready, names=list(map(str, range(len(names)))))).write_csv(
        file, include_header=False, quote_style="necessary", line_terminator="\n"
    )


def _in_csv(name: str, array: pa.Array) -> pa.Array:
    """A column in the form of its CSV fields: bytes as base64, times with their zone."""
    kind = array.type
    if is_binary(kind):
        return as_base64(array)
    if pa.types.is_temporal(kind):
        check_years(name, array)
    if pa.types.is_timestamp(kind):
        form = "%Y-%m-%dT%H:%M:%S%.6f" + ("Z" if kind.tz else "")
        moments = array.cast(pa.timestamp("us", "UTC" if kind.tz else None))
        return pl.from_arrow(moments).dt.to_string(form).to_arrow().cast(pa.string())
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
        texts = array.cast(pa.string())
        for arrow_text, csv_text in (("nan", "NaN"), ("inf", "Inf"), ("-inf", "-Inf")):
            texts = pc.if_else(pc.equal(texts, arrow_text), csv_text, texts)
        return texts
    return array


def dataset_format(path: Path | None, size: int) -> "ds.FileFormat":
    """See table.SinkCode. The whole file is one block, because pyarrow 26 may cut blocks at a line
    end inside a field, and then loses or mixes fields."""
    block = max(CSV_BLOCK_BYTES_MIN, 1 << max(size, 1).bit_length())
    return _by_blocks(min(block, BLOCK_BYTES_MAX))


@cache
def _by_blocks(size: int) -> "ds.FileFormat":
    import pyarrow.dataset as ds

    return ds.CsvFileFormat(
        # With one column, a null is an empty line.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        default_fragment_scan_options=ds.CsvFragmentScanOptions(
            pa.csv.ConvertOptions(
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
            pa.csv.ReadOptions(block_size=size),
        ),
    )


def count_rows(path: Path) -> int:
    """See table.SinkCode. A line end outside of quotes ends a record."""
    records = quotes = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            codes = np.frombuffer(data, np.uint8)
            marks = np.flatnonzero(codes == _QUOTE[0])
            ends = np.flatnonzero(codes == _LINE_END[0])
            quotes_before = quotes + np.searchsorted(marks, ends)
            records += int(np.count_nonzero(quotes_before % 2 == 0))
            quotes += len(marks)
    return records - 1  # Without the header.
