"""Parquet as a source format: row groups become blocks of records, straight in Arrow.

A file has one type for each column, so whether a type can be taken is asked once, of its footer
(`misfits`, `semel.formats.exact`). What is left to judge of a row are its values: NaN, times out of
range, text that is none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel import limits
from semel.declare.ddl import ColumnType
from semel.declare.naming import AS_DECLARED, Naming
from semel.declare.wording import some_of
from semel.errors import SourceError, first_line
from semel.formats import words
from semel.formats.columns import convert
from semel.formats.exact import cast_exactly, misfit, plain_values
from semel.formats.lines import Fault
from semel.formats.records import Block, with_offset
from semel.formats.rows import Rows
from semel.formats.selection import NONE, Selection
from semel.model.batch import Ignored
from semel.model.reasons import Reason

_BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at once; without a buffer a row group is read as a whole."""

_INT96 = "INT96"
_FEWER = 16
_SPARK = b"org.apache.spark."
_SINCE = {"D": -141_427, "us": -25_567 * 86_400_000_000}
"""1582-10-15 in days, and 1900-01-01 in microseconds, since 1970. Some writers number days before
the first by the Julian calendar, and moments before the second by that or by other clocks."""

_YEARS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 to 9999 in milliseconds since 1970, the end apart."""


class _Damaged(Exception):
    """Rows that cannot be decoded."""


@contextmanager
def open_parquet(file: BinaryIO, *, int96: str = "us", **more: Any) -> Iterator[pq.ParquetFile]:
    """A Parquet file, its INT96 in a unit. OSError, pa.ArrowException: its footer cannot be read.

    In microseconds Arrow gives another time for an INT96 beyond 292,000 years from 1970;
    milliseconds hold each.
    """
    with pq.ParquetFile(
        file,
        **more,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        coerce_int96_timestamp_unit=int96,
        page_checksum_verification=True,
    ) as found:
        yield found


def rows_in(file: pq.ParquetFile) -> int:
    """How many rows a file has. ValueError: its footer contradicts itself."""
    footer = file.metadata
    groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != footer.num_rows:
        raise ValueError(f"its row groups have {sum(groups)} rows, and it {footer.num_rows}")
    return footer.num_rows


def check_counts(file: pq.ParquetFile, columns: Collection[str]) -> None:
    """ValueError: a column has another number of values than its row group has rows.

    Columns of lists and maps may have. What metadata of a column end the process (encrypted or
    damaged ones) fail as well when a row is read, so a row group that has none is passed over.
    """
    names, schema = {name.partition(".")[0] for name in columns}, file.schema
    flat = [
        at for at in range(len(schema))
        if not schema.column(at).max_repetition_level
        and schema.column(at).path.partition(".")[0] in names
    ]  # fmt: skip
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        try:
            next(file.iter_batches(1, [number], list(columns), use_threads=False), None)
        except (OSError, pa.ArrowException) as error:
            if is_passing(error):
                raise
            continue  # Whoever reads its rows finds it.
        for at in flat:
            if (values := group.column(at).num_values) != group.num_rows:
                raise ValueError(
                    f"row group {number} has {group.num_rows} rows, and its column "
                    f"{schema.column(at).path!r} has {values}"
                )


def step_rows(group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group are decoded at once: some BLOCK_BYTES."""
    fit = limits.BLOCK_BYTES * group.num_rows // max(group.total_byte_size, 1)
    return max(1, min(limits.PIECE_ROWS_MAX, fit))


def steps(
    file: pq.ParquetFile, group: int, columns: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """A row group, some rows at once; fewer from where on so many do not fit into a column."""
    some, given = step_rows(file.metadata.row_group(group)), 0
    while True:
        seen = 0
        try:
            for rows in file.iter_batches(
                some, row_groups=[group], columns=list(columns), use_threads=False
            ):
                new = rows.slice(max(given - seen, 0))
                seen += rows.num_rows
                if new.num_rows:
                    given += new.num_rows
                    yield new
            return
        except pa.ArrowNotImplementedError:  # Nested text of more than 2 GiB.
            if some == 1:
                raise
            some = max(1, some // _FEWER)


def long_dictionary_columns(
    source: BinaryIO, file: pq.ParquetFile, group: int, columns: Collection[str]
) -> list[str]:
    """Those columns of text or bytes whose rows may share values of a dictionary that are so long
    that a step of them would not fit into memory. The footer does not tell; the first row does.
    """
    known, names = file.metadata.row_group(group), list(columns)
    long = limits.RECORD_BYTES_MAX // step_rows(known)
    if not names or known.total_byte_size <= long:
        return []
    try:
        with open_parquet(source, metadata=file.metadata, read_dictionary=names) as coded:
            row = next(coded.iter_batches(1, [group], names, use_threads=False), None)
        return [
            name for name, column in zip(row.schema.names, row.columns, strict=True)
            if pa.types.is_dictionary(column.type)
            and (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > long
        ] if row else []  # fmt: skip
    except (OSError, pa.ArrowException) as error:
        if is_passing(error):
            raise
        return []  # Whoever reads it finds it, at its place.


def cut_dictionary_rows(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Rows in pieces that take some BLOCK_BYTES each when the values of dictionaries are repeated.

    pa.ArrowIndexError: an index leads out of its dictionary.
    """
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_dictionary(column.type) and _has_bytes(column.type.value_type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    if sizes.sum() <= limits.BLOCK_BYTES:
        return [rows]
    numbers = np.cumsum(sizes) // limits.BLOCK_BYTES
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    return [rows.slice(a, b - a) for a, b in pairwise([*starts, rows.num_rows])]


def _has_bytes(kind: pa.DataType) -> bool:
    of = pa.types
    return of.is_string(kind) or of.is_binary(kind) or of.is_large_string(kind) or (
        of.is_large_binary(kind)
    )


def is_passing(error: BaseException) -> bool:
    """Whether an error says nothing of a file: a shortage of memory, or one of the file system."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) is not None


# Keeps P23.
def misfits(
    file: pq.ParquetFile,
    columns: Mapping[str, ColumnType],
    exact: Collection[str],
    naming: Naming = AS_DECLARED,
    *,
    signed: bool = False,
) -> tuple[list[str], str]:
    """Why a file's columns are not the declared ones, each with its name; empty: they are. And what
    to declare, if columns are missing and nothing else is wrong.

    No value of the columns `exact` may lose digits: two records would become one. `signed`: the
    footer is, because columns are encrypted.
    """
    there = file.schema_arrow
    header = naming.match(columns, there.names)
    found = [*header.doubled, *(f"column {name!r} is not in the file" for name in header.lacking)]
    for column, name in header.held.items():
        if there.get_field_index(name) < 0:  # It is there twice.
            continue
        kind = columns[column]
        if why := misfit(there.field(name).type, kind):
            found.append(f"column {name!r}{why}")
        elif signed and _is_encrypted(file, name):
            found.append(f"column {name!r} is encrypted, and semel has no keys")
        elif kind.word == "binary" and (logical := _logical(file, name)):
            found.append(
                f"column {name!r} is of the logical type {logical}, which binary does not hold; "
                "let its writer write bytes without one"
            )
        elif _has_hidden_values(file, name):
            found.append(f"column {name!r} has values of a type that readers take for nothing")
        elif column in exact and name in int96_columns(file):
            found.append(
                f"column {name!r} is part of record_id and INT96, whose last digits cannot be "
                "kept: let its writer write TIMESTAMP"
            )
    lacks_alone = len(found) == len(header.lacking)
    return found, naming.remedy(header, all_named=False) if lacks_alone else ""


def int96_columns(file: pq.ParquetFile) -> set[str]:
    """The columns that are INT96, or have parts that are."""
    leaves = (file.schema.column(at) for at in range(len(file.schema)))
    return {c.path.partition(".")[0] for c in leaves if c.physical_type == _INT96}


def _logical(file: pq.ParquetFile, name: str) -> str:
    """The logical type of a column, such as ENUM; empty: it has none. Readers differ in these."""
    columns = (file.schema.column(at) for at in range(len(file.schema)))
    kinds = ((str(c.logical_type), c.converted_type) for c in columns if c.path == name)
    return next((logical for logical, old in kinds if (logical, old) != ("None", "NONE")), "")


def _has_hidden_values(file: pq.ParquetFile, name: str) -> bool:
    """Whether something of a column is read as null by its type, and is not by its statistics."""
    for at in range(len(file.schema)):
        leaf = file.schema.column(at)
        if leaf.path.partition(".")[0] == name and leaf.logical_type.type == "UNKNOWN":
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            if any((of := group.column(at).statistics) and of.num_values for group in groups):
                return True
    return False


def _is_encrypted(file: pq.ParquetFile, name: str) -> bool:
    """Whether a column cannot be read without a key. Its metadata end the process: only reading
    tells.
    """
    if not file.metadata.num_row_groups:
        return False
    try:
        next(file.iter_batches(1, row_groups=[0], columns=[name], use_threads=False), None)
    except OSError:
        return True
    return False


# Keeps P28.
def calendar_limits(file: pq.ParquetFile) -> dict[str, int]:
    """From which day, and which moment, on a footer's writer numbers as others do, by unit; a unit
    that is not there has no such limit. The rule is Spark's; before 2.4.6 it wrote no version.
    """
    known = file.metadata.metadata or {}
    version = known.get(_SPARK + b"version")
    if version is None:
        dates = times = _SPARK + b"sql.parquet.row.metadata" in known
        dates |= known.get(b"writer.date.proleptic") == b"false"  # Hive.
        times |= known.get(b"writer.zone.conversion.legacy") == b"true"
    else:
        dates = times = version < b"3.0" or _SPARK + b"legacyDateTime" in known
        if int96_columns(file):
            times = version < b"3.1" or _SPARK + b"legacyINT96" in known
    return {unit: _SINCE[unit] for unit, old in (("D", dates), ("us", times)) if old}


def blocks(
    file: BinaryIO,
    *,
    length: int,
    claimed: tuple[int, int],
    owned: tuple[int, int],
    columns: Mapping[str, ColumnType],
    exact: Collection[str],
    selection: Selection | None,
    naming: Naming = AS_DECLARED,
    first: int = 0,
    fixed: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> Iterator[Block]:
    """The rows of a claimed range, from the row groups whose first claimed row is in `owned`.

    `length`: the file's bytes; of these, a row has its share. `first`: the position of its first
    row. `fixed`: columns that the file does not hold, each with its one value; where that is null
    and the file holds the column, it counts. SourceError: the
    columns are not the declared ones, as a replay may declare others than its batch did.
    """
    schema = pa.schema([(name, kind.arrow()) for name, kind in columns.items()])
    with open_parquet(file) as found:
        there = found.schema_arrow.names
        fixed = {n: value for n, value in fixed.items() if value.is_valid or n not in there}
        names = naming.match(columns, [*there, *fixed]).held
        fixed = {c: fixed[name] for c, name in names.items() if name in fixed}
        held = {name: kind for name, kind in columns.items() if name not in fixed}
        wrong, advice = misfits(found, held, exact, naming)
        if wrong:
            advice = advice or "Declare columns that it has"
            why = f"{file.name!r} cannot be read by this schema: {some_of(wrong)}"
            raise SourceError(f"{why}. {advice}")
        fixed |= {c: pa.scalar(None, schema.field(c).type) for c in held.keys() - names.keys()}
        reader = _RowGroupReader(file, found, length, schema, names, exact, selection, first, fixed)
        for group in range(found.metadata.num_row_groups):
            behind = first + found.metadata.row_group(group).num_rows
            low, high = max(first, claimed[0]), min(behind, claimed[1])
            if low < high and owned[0] <= low < owned[1]:
                yield from reader.read_group(group, first, low, high)
            first = behind


class _RowGroupReader:
    """Reads row groups of one file."""

    def __init__(
        self,
        source: BinaryIO,
        file: pq.ParquetFile,
        length: int,
        schema: pa.Schema,
        names: Mapping[str, str],
        exact: Collection[str],
        selection: Selection | None,
        first: int,
        fixed: Mapping[str, pa.Scalar],
    ) -> None:
        """`names`: by column, its name in the file, if it is not `fixed`."""
        self._source = source
        held = [field for field in schema if field.name not in fixed]
        self._names = {field.name: names[field.name] for field in held}
        self._texts = {names[field.name] for field in held if _has_bytes(field.type)}
        self._file, self._length, self._rows = file, length, file.metadata.num_rows
        self._first, self._fixed, self._since = first, fixed, calendar_limits(file)
        self._schema, self._exact, self._selection = schema, exact, selection
        own = {*names.values()}
        self._undeclared = [n for n in file.schema_arrow.names if n not in own]
        int96 = int96_columns(file)
        self._int96 = [field for field in held if names[field.name] in int96]
        self._far_rows, self._far = np.empty(0, np.int64), pa.table({})

    # Keeps S29.
    def read_group(self, group: int, first: int, low: int, high: int) -> Iterator[Block]:
        """The rows [low, high) of a row group that begins at `first`. From where on it cannot be
        decoded, each row is rejected.
        """
        at, held = low, []
        self._look_far(group, first)
        try:
            for rows in self._steps(group, first, low, high):
                held.append(rows)
                at += rows.num_rows
                if sum(rows.nbytes for rows in held) >= limits.BLOCK_BYTES:
                    yield self._block(held, at)
                    held = []
        except _Damaged as error:
            if held:
                yield self._block(held, at)
            why = f"row group {group} is damaged from row {at} on: {error}"
            for start in range(at, high, limits.PIECE_ROWS_MAX):
                yield self._damaged(start, min(start + limits.PIECE_ROWS_MAX, high), why)
            return
        if held:
            yield self._block(held, at)

    # Keeps P28.
    def _look_far(self, group: int, first: int) -> None:
        """Keeps the INT96 columns, in milliseconds, of the rows with a value that is of no year
        that a column holds.
        """
        names = [field.name for field in self._int96]
        far, held, at = [self._far_rows[:0]], [pa.table({name: [] for name in names})], first
        if names:
            with open_parquet(self._source, int96="ms", metadata=self._file.metadata) as file:
                try:
                    for rows in steps(file, group, [self._names[name] for name in names]):
                        made = pa.table([self._column(rows, f) for f in self._int96], names)
                        if places := sorted({place for place, _ in self._far_faults(made)}):
                            far.append(np.array(places) + at)
                            held.append(made.take(places))
                        at += rows.num_rows
                except (OSError, pa.ArrowException) as error:
                    if is_passing(error):
                        raise
                    # Whoever reads these rows finds it.
        self._far_rows = np.concatenate(far)
        self._far = pa.concat_tables(held[1:] or held)

    def _far_faults(self, rows: pa.Table) -> Iterator[tuple[int, Fault]]:
        for name in rows.column_names:
            yield from _leaf_faults(rows.column(name).combine_chunks(), name, _year_faults)

    def _steps(self, group: int, first: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Some rows at once. _Damaged: the next ones cannot be decoded."""
        names, at = [*self._names.values()], first
        coded = long_dictionary_columns(self._source, self._file, group, self._texts)
        with open_parquet(self._source, metadata=self._file.metadata, read_dictionary=coded) as file:
            try:
                for rows in steps(file, group, names):
                    for some in cut_dictionary_rows(rows):
                        start, stop = max(low - at, 0), min(high - at, some.num_rows)
                        made = self._decoded(some)
                        at += some.num_rows
                        if start < stop:
                            yield made.slice(start, stop - start)
                        if at >= high:
                            return
            except (OSError, pa.ArrowException) as error:
                if is_passing(error):
                    raise
                raise _Damaged(first_line(error)) from error
        raise _Damaged(f"it ends at row {at}")

    def _decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pa.repeat(self._fixed[field.name], rows.num_rows)
            if field.name in self._fixed
            else self._column(rows, field)
            for field in self._schema
        ]
        return pa.record_batch(columns, self._schema.names)

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        return plain_values(rows.column(self._names[field.name]), field.type)

    def _bytes(self, start: int, end: int) -> int:
        """The share of some rows of the file's bytes. Shares of neighbours add up."""
        start, end = start - self._first, end - self._first
        return self._length * end // self._rows - self._length * start // self._rows

    def _selected(self, offsets: np.ndarray) -> np.ndarray:
        if self._selection is None:
            return np.ones(len(offsets), bool)
        return self._selection.takes(offsets)

    def _block(self, held: list[pa.RecordBatch], end: int) -> Block:
        """Rows that end before `end`."""
        rows = pa.concat_batches(held)
        start = end - rows.num_rows
        offsets = np.arange(start, end)
        size, left_out = self._bytes(start, end), NONE
        if self._selection is not None:
            wanted = self._selected(offsets)
            left_out, offsets = offsets[~wanted], offsets[wanted]
            rows = rows.filter(pa.array(wanted))
        far = np.isin(self._far_rows, offsets)
        places, coarse = np.searchsorted(offsets, self._far_rows[far]), self._far.filter(far)
        lines = Rows(rows, offsets, (places, _with(rows.take(places), coarse)))
        columns, faults = [], self._too_long(rows)
        for place, fault in self._far_faults(coarse):
            faults.setdefault(int(places[place]), fault)
        for field, column in zip(self._schema, rows.columns, strict=True):
            made = cast_exactly(column, field.type)
            columns.append(made)
            for place, fault in (
                *_rounded(column, made, field.name),
                *_leaf_faults(made, field.name, self._leaf),
                *_value_faults(made, field),
                *self._loses(column, field.name),
            ):
                faults.setdefault(place, fault)
        columns.append(pa.array(offsets, pa.int64()))
        table = pa.Table.from_arrays(columns, schema=with_offset(self._schema))
        if faults:
            kept = np.ones(len(offsets), bool)
            kept[list(faults)] = False
            table = table.filter(pa.array(kept))
        return Block(
            table=table,
            faults=faults,
            lines=lines,
            bytes_read=size,
            ignored=Ignored(keys=dict.fromkeys(self._undeclared, table.num_rows)),
            left_out=left_out,
        )

    def _leaf(self, array: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
        """The places of bad text, and of old times."""
        if pa.types.is_string(array.type):
            yield from _bad_text(array, name)
        unit = "D" if pa.types.is_date(array.type) else getattr(array.type, "unit", None)
        if (first := self._since.get(unit)) is None:
            return
        numbers = pc.fill_null(array.cast(pa.int32() if unit == "D" else pa.int64()), first)
        numbers = numbers.to_numpy(zero_copy_only=False)
        day = np.datetime64(first, unit).astype("M8[D]")
        expected = f"a time from {day} on, as the file's footer names an older calendar"
        for place in np.flatnonzero(numbers < first).tolist():
            found = words.misfit(name, expected, str(np.datetime64(int(numbers[place]), unit)))
            yield place, (Reason.type_mismatch, found)

    def _loses(self, column: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
        """The rows of an id's time that has more digits than are kept."""
        kind = column.type
        if name not in self._exact or not pa.types.is_timestamp(kind) or kind.unit != "ns":
            return
        numbers = pc.fill_null(column.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
        expected = "at most six digits of a second, as it is part of record_id"
        for place in np.flatnonzero(numbers % 1_000).tolist():
            found = f"{np.datetime64(int(numbers[place]), 'ns')}Z"
            yield place, (Reason.type_mismatch, words.misfit(name, expected, found))

    def _too_long(self, rows: pa.RecordBatch) -> dict[int, Fault]:
        if rows.nbytes <= limits.RECORD_BYTES_MAX:
            return {}
        sizes = np.zeros(rows.num_rows, np.int64)
        for column, field in zip(rows.columns, self._schema, strict=True):
            sizes += _sizes(cast_exactly(column, field.type))
        long = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX).tolist()
        what = f"expected a record of at most {limits.RECORD_BYTES_MAX} bytes"
        return dict.fromkeys(long, (Reason.too_long, what))

    def _damaged(self, start: int, end: int, why: str) -> Block:
        offsets = np.arange(start, end)
        wanted = self._selected(offsets)
        fault = Reason.malformed, why
        return Block(
            table=with_offset(self._schema).empty_table(),
            faults=dict.fromkeys(range(int(wanted.sum())), fault),
            lines=Rows(None, offsets[wanted]),
            bytes_read=self._bytes(start, end),
            left_out=offsets[~wanted],
        )


def _with(rows: pa.RecordBatch, columns: pa.Table) -> pa.RecordBatch:
    """Rows with some columns replaced."""
    made = dict(zip(rows.schema.names, rows.columns, strict=True))
    made |= {name: columns.column(name).combine_chunks() for name in columns.column_names}
    return pa.record_batch(made)


def _sizes(array: pa.Array) -> np.ndarray:
    """How many bytes of text and bytes each row has, also within its values."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    sizes = np.zeros(len(array), np.int64)
    if pa.types.is_struct(kind):
        for inner in array.flatten():
            sizes += _sizes(inner)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        array = _as_list(array) if pa.types.is_map(kind) else array
        before = np.concatenate([[0], np.cumsum(_sizes(array.values))])
        sizes = np.diff(before[array.offsets.to_numpy()])
    return sizes


# A map is a list of its pairs to who judges values.
def _as_list(array: pa.MapArray) -> pa.ListArray:
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(array.offsets, pairs, mask=mask)


def _value_faults(array: pa.Array, field: pa.Field) -> Iterator[tuple[int, Fault]]:
    """The rows whose value a column does not hold, such as NaN, or twice under one key."""
    if pa.types.is_map(array.type):
        for place in _repeated_keys(array):
            yield place, (Reason.duplicate_key, f"{field.name}: a key is there twice")
        array = _as_list(array)
        field = field.with_type(array.type)
    _, unfit = convert(pa.chunked_array([array]), field)
    for place, why in unfit:
        yield place, (Reason.type_mismatch, why)


def _repeated_keys(array: pa.MapArray) -> list[int]:
    bounds = array.offsets.to_numpy()
    first, behind = int(bounds[0]), int(bounds[-1])
    codes = array.keys.slice(first, behind - first).dictionary_encode().indices.to_numpy()
    rows = np.repeat(np.arange(len(array)), np.diff(bounds))
    order = np.lexsort((codes, rows))
    rows, codes = rows[order], codes[order]
    return np.unique(rows[1:][(np.diff(rows) == 0) & (np.diff(codes) == 0)]).tolist()


def _rounded(column: pa.Array, made: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
    """The rows with a whole number that a double does not hold."""
    kind = column.type
    if pa.types.is_integer(kind) and pa.types.is_floating(made.type):
        beyond = pc.greater_equal(made, 2.0 ** (kind.bit_width - pa.types.is_signed_integer(kind)))
        lost = pc.or_(beyond, pc.not_equal(made.cast(kind, safe=False), column))
        for place in np.flatnonzero(pc.fill_null(lost, False)).tolist():
            found = words.misfit(name, "a number that a double holds", str(column[place]))
            yield place, (Reason.type_mismatch, found)


def _leaf_faults(
    array: pa.Array, name: str, leaf: Callable[[pa.Array, str], Iterator[tuple[int, Fault]]]
) -> Iterator[tuple[int, Fault]]:
    """The rows with a value, or a part of one, that is faulty by `leaf`."""
    kind = array.type
    if pa.types.is_struct(kind):
        for inner, field in zip(array.flatten(), kind, strict=True):
            yield from _leaf_faults(inner, f"{name}.{field.name}", leaf)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        array = _as_list(array) if pa.types.is_map(kind) else array
        bounds = array.offsets.to_numpy()
        first, behind = int(bounds[0]), int(bounds[-1])
        values = array.values.slice(first, behind - first)
        for place, fault in _leaf_faults(values, f"{name}[]", leaf):
            yield int(np.searchsorted(bounds, first + place, side="right")) - 1, fault
    else:
        yield from leaf(array, name)


def _year_faults(array: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
    """The places of times, in milliseconds, that are of no year that a column holds."""
    if not pa.types.is_timestamp(array.type):
        return
    numbers = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero((numbers < _YEARS[0]) | (numbers >= _YEARS[1])).tolist():
        found = f"{np.datetime64(int(numbers[place]), 'ms')}Z"
        yield place, (Reason.type_mismatch, words.misfit(name, words.YEARS.format("time"), found))


def _bad_text(array: pa.StringArray, name: str) -> Iterator[tuple[int, Fault]]:
    """The places of text that is not UTF-8, or that holds a NUL."""
    data = _bytes_of(array)
    if data.view(np.int8).min(initial=1) > 0:  # ASCII, and no NUL.
        return
    raw = array.view(pa.binary())
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        for place, value in enumerate(raw.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                yield place, (Reason.encoding, f"{name}: expected text in UTF-8")
    if not data.min():
        found = pc.fill_null(pc.match_substring(raw, b"\0"), False)
        for place in np.flatnonzero(found.to_numpy(zero_copy_only=False)).tolist():
            yield place, (Reason.encoding, f"{name}: expected text, found a NUL byte")


def _bytes_of(array: pa.StringArray) -> np.ndarray:
    """The bytes of all values, one after the other."""
    data = array.buffers()[2]
    if data is None or not len(array):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
