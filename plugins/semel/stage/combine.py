"""combine: aggregate records into partial rows, the output of a pipeline with `aggregate`.

A partial row belongs to a slice of time and a key, and stands for some records. Readers merge
partial rows in any order: each function is associative and commutative over exact values. So each
task combines its own records, without a shuffle (combiner lifting: Chambers et al., FlumeJava, PLDI
2010; Akidau et al., The Dataflow Model, VLDB 2015).

How it works: lift each record to a partial row, then merge partial rows, also merged ones.
distinct(c) keeps its values as an additional column of the key.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.declare.aggregate import RECORDS, START, Aggregate, Function
from semel.errors import LimitError
from semel.model.arrow import UTC_TIME
from semel.model.reasons import Reason
from semel.model.times import YEARS
from semel.pipeline.spec import Spec

HELD_ROWS_MAX = 1 << 20
"""Rows that a task collects before it merges them, or writes them if merging does not help."""

_DIGITS = 38
_SUMS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def partial_schema(spec: Spec, records: pa.Schema) -> pa.Schema:
    """The columns of partial rows for records with the given columns."""
    declared = spec.aggregate
    fields = [pa.field(START, UTC_TIME, nullable=False)]
    fields += [records.field(name).with_nullable(True) for name in declared.keys]
    fields += [pa.field(name, _kind(f, records)) for name, f in declared.columns.items()]
    return pa.schema([*fields, pa.field(RECORDS, pa.int64(), nullable=False)])


def timeless(times: pa.ChunkedArray) -> tuple[np.ndarray, list[Reason]]:
    """The rows (int64, ascending) whose times belong to no window, each with the reason."""
    if not times.null_count:
        ends = pc.min_max(times)
        if not len(times) or YEARS[0] <= _year(ends["min"]) and _year(ends["max"]) < YEARS[1]:
            return np.zeros(0, np.int64), []
    year = pc.year(times)
    missing = times.is_null().to_numpy()
    outside = pc.or_(pc.less(year, YEARS[0]), pc.greater_equal(year, YEARS[1]))
    bad = np.flatnonzero(missing | outside.fill_null(False).to_numpy())
    reasons = Reason.record_time_missing, Reason.record_time_outside
    return bad, [reasons[not is_missing] for is_missing in missing[bad].tolist()]


def _year(time: pa.Scalar) -> int:
    return pc.year(time).as_py()


def lifted(spec: Spec, records: pa.Table) -> pa.Table:
    """Convert each record to a partial row. Each record must have a time."""
    declared, schema = spec.aggregate, partial_schema(spec, records.schema)
    slices, times = spec.window.windows.slices, records.column(spec.record_time)
    starts = [slices.starts(chunk) for chunk in slices.moments(times).chunks]
    columns = [pa.chunked_array(starts, UTC_TIME)]
    columns += [records.column(name) for name in declared.keys]
    ones = pa.repeat(pa.scalar(1, pa.int64()), records.num_rows)
    for name, function in declared.columns.items():
        if function.column is None:
            columns.append(ones)
            continue
        column = records.column(function.column)
        if function.word == "count":
            column = column.is_valid()
        columns.append(column.cast(schema.field(name).type))
    return pa.table([*columns, ones], schema=schema)


# Keeps AG3.
def merged(declared: Aggregate, rows: pa.Table) -> pa.Table:
    """Merge the partial rows of each slice and key. Raises LimitError if a sum is too large."""
    keys = declared.key_of_parts
    sums = {n: _SUMS[f.word] for n, f in declared.columns.items() if f.word in _SUMS}
    wide = rows
    for name, word in sums.items():
        column = rows.column(name)
        if word == "sum" and pa.types.is_decimal(column.type) and not _is_safe(column):
            at = rows.schema.get_field_index(name)
            wide = wide.set_column(at, name, column.cast(pa.decimal256(76, column.type.scale)))
    functions = [*sums.items(), (RECORDS, "sum")]
    result = wide.group_by(keys, use_threads=False).aggregate(functions)
    result = result.rename_columns([*keys, *sums, RECORDS]).select(rows.schema.names)
    try:
        return result.cast(rows.schema)
    except pa.ArrowInvalid as error:
        raise LimitError(
            f"a sum of aggregate.columns has more than {_DIGITS} digits ({error}). Nothing was "
            "committed. Count in larger units, or filter such records in a transform"
        ) from error


class Combiner:
    """Combines the records of a task, and passes partial rows to `write`."""

    def __init__(self, spec: Spec, write: Callable[[pa.Table], None]) -> None:
        self._spec, self._write = spec, write
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, records: pa.Table) -> None:
        """Add records."""
        if not records.num_rows:
            return
        table = merged(self._spec.aggregate, lifted(self._spec, records))
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows > HELD_ROWS_MAX:
            table = self._merge()
            self._tables, self._rows = [table], table.num_rows
            if self._rows > HELD_ROWS_MAX // 2:  # Merging hardly makes them fewer.
                self.end()

    def end(self) -> None:
        """Write all collected rows."""
        if self._tables:
            self._write(self._merge())
        self._tables, self._rows = [], 0

    def _merge(self) -> pa.Table:
        if len(self._tables) == 1:
            return self._tables[0]
        return merged(self._spec.aggregate, pa.concat_tables(self._tables))


def _kind(function: Function, records: pa.Schema) -> pa.DataType:
    """The type of a function's column in partial rows."""
    if function.word == "count":
        return pa.int64()
    kind = records.field(function.column).type
    if function.word != "sum":
        return kind
    return pa.decimal128(_DIGITS, kind.scale if pa.types.is_decimal(kind) else 0)


def _is_safe(column: pa.ChunkedArray) -> bool:
    """Whether every sum of the decimals fits their type."""
    ends = pc.min_max(column)
    sizes = [abs(ends[end].as_py()) for end in ("min", "max") if ends[end].is_valid]
    return max(sizes, default=0) * max(1, len(column)) < 10 ** (_DIGITS - column.type.scale)


def records_of(rows: pa.Table) -> int:
    """The number of records that partial rows stand for."""
    return pc.sum(rows.column(RECORDS)).as_py() or 0


