"""Parquet as a source format: row groups become blocks of records, directly in Arrow.

A file has one type for each column, so semel checks types once, in the footer (`misfits`,
`semel.formats.exact`). It judges each row only for its values: NaN, times out of range, invalid
text.
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
from semel.formats.selection import NO_OFFSETS, Selection
from semel.model.batch import Ignored
from semel.model.reasons import Reason

_BUFFER_BYTES = 1 << 20
"""Bytes of a column that pyarrow reads at once; without a buffer it reads a whole row group."""

_INT96 = "INT96"
_STEP_DIVISOR = 16
_SPARK = b"org.apache.spark."
_CALENDAR_LIMITS = {"D": -141_427, "us": -25_567 * 86_400_000_000}
"""1582-10-15 in days, and 1900-01-01 in microseconds, since 1970. Some writers count earlier days
in the Julian calendar, and earlier moments in that or by other clocks."""

_YEARS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 to 9999 in milliseconds since 1970; the end is exclusive."""


class _Damaged(Exception):
    """Rows that cannot be decoded."""


@contextmanager
def open_parquet(file: BinaryIO, *, int96: str = "us", **more: Any) -> Iterator[pq.ParquetFile]:
    """A Parquet file, with INT96 in the unit `int96`.

    Raises OSError or pa.ArrowException if its footer is unreadable. In microseconds, Arrow returns
    a wrong time for an INT96 beyond 292,000 years from 1970; milliseconds hold each.
    """
    with pq.ParquetFile(
        file,
        **more,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        coerce_int96_timestamp_unit=int96,
        page_checksum_verification=True,
    ) as parquet:
        yield parquet


def rows_in(file: pq.ParquetFile) -> int:
    """The number of rows of a file. Raises ValueError if its footer contradicts itself."""
    footer = file.metadata
    groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != footer.num_rows:
        raise ValueError(f"its row groups have {sum(groups)} rows, its footer {footer.num_rows}")
    return footer.num_rows


def check_counts(file: pq.ParquetFile, columns: Collection[str]) -> None:
    """Raises ValueError if a column has more or fewer values than its row group has rows.

    Columns of lists and maps may differ. Some metadata of a column (encrypted or damaged ones)
    crash the process. Reading a row of such a row group fails too, so this reads one first, and
    skips the row group if that fails.
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
            continue  # Reading its rows reports the damage.
        for at in flat:
            if (values := group.column(at).num_values) != group.num_rows:
                raise ValueError(
                    f"row group {number} has {group.num_rows} rows, but its column "
                    f"{schema.column(at).path!r} has {values} values"
                )


def step_rows(group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group to decode at once: some BLOCK_BYTES."""
    fit = limits.BLOCK_BYTES * group.num_rows // max(group.total_byte_size, 1)
    return max(1, min(limits.PIECE_ROWS_MAX, fit))


def steps(
    file: pq.ParquetFile, group: int, columns: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """A row group, some rows at once. Steps get smaller if their values overflow a column."""
    step, yielded = step_rows(file.metadata.row_group(group)), 0
    while True:
        decoded = 0
        try:
            for rows in file.iter_batches(
                step, row_groups=[group], columns=list(columns), use_threads=False
            ):
                new = rows.slice(max(yielded - decoded, 0))
                decoded += rows.num_rows
                if new.num_rows:
                    yielded += new.num_rows
                    yield new
            return
        except pa.ArrowNotImplementedError:  # Nested text of more than 2 GiB.
            if step == 1:
                raise
            step = max(1, step // _STEP_DIVISOR)


def long_dictionary_columns(
    source: BinaryIO, file: pq.ParquetFile, group: int, columns: Collection[str]
) -> list[str]:
    """The columns of text or bytes whose dictionary has values so long that a step may not fit into
    memory. The footer does not show them, so this reads the first row."""
    metadata, names = file.metadata.row_group(group), list(columns)
    long = limits.RECORD_BYTES_MAX // step_rows(metadata)
    if not names or metadata.total_byte_size <= long:
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
        return []  # Reading the rows reports the damage, with its position.


def cut_dictionary_rows(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut rows into pieces of some BLOCK_BYTES each, with the values of dictionaries repeated.

    Raises pa.ArrowIndexError if an index is outside of its dictionary.
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
    """Whether memory or the file system failed, so that the error does not condemn the file."""
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
    """Why a file's columns do not match the declared ones, each reason with the column's name;
    empty if they match. The second value says what to declare, if the only reasons are missing
    columns.

    No value of the columns `exact` may lose digits: two records would become one. `signed`: the
    footer is signed, because columns are encrypted.
    """
    schema = file.schema_arrow
    header = naming.match(columns, schema.names)
    reasons = [*header.doubled, *(f"column {name!r} is not in the file" for name in header.lacking)]
    for column, name in header.held.items():
        if schema.get_field_index(name) < 0:  # The file has it twice.
            continue
        kind = columns[column]
        if why := misfit(schema.field(name).type, kind):
            reasons.append(f"column {name!r}{why}")
        elif signed and _is_encrypted(file, name):
            reasons.append(f"column {name!r} is encrypted, and semel does not have the key")
        elif kind.word == "binary" and (logical := _logical(file, name)):
            reasons.append(
                f"column {name!r} has the logical type {logical}, which binary cannot hold; "
                "have its writer write bytes without a logical type"
            )
        elif _has_hidden_values(file, name):
            reasons.append(f"column {name!r} has values, but its type makes readers return null")
        elif column in exact and name in int96_columns(file):
            reasons.append(
                f"column {name!r} is part of record_id and INT96, and semel cannot keep the last "
                "digits of INT96; have its writer write TIMESTAMP"
            )
    lacks_alone = len(reasons) == len(header.lacking)
    return reasons, naming.remedy(header, all_named=False) if lacks_alone else ""


def int96_columns(file: pq.ParquetFile) -> set[str]:
    """The columns that are INT96, or have INT96 parts."""
    leaves = (file.schema.column(at) for at in range(len(file.schema)))
    return {c.path.partition(".")[0] for c in leaves if c.physical_type == _INT96}


def _logical(file: pq.ParquetFile, name: str) -> str:
    """The logical type of a column, such as ENUM, or an empty text. Readers treat it differently.
    """
    columns = (file.schema.column(at) for at in range(len(file.schema)))
    kinds = ((str(c.logical_type), c.converted_type) for c in columns if c.path == name)
    return next((logical for logical, old in kinds if (logical, old) != ("None", "NONE")), "")


def _has_hidden_values(file: pq.ParquetFile, name: str) -> bool:
    """Whether a column's type makes readers return null where its statistics count values."""
    for at in range(len(file.schema)):
        leaf = file.schema.column(at)
        if leaf.path.partition(".")[0] == name and leaf.logical_type.type == "UNKNOWN":
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            if any((of := group.column(at).statistics) and of.num_values for group in groups):
                return True
    return False


def _is_encrypted(file: pq.ParquetFile, name: str) -> bool:
    """Whether a column needs a key. Its metadata would crash the process, so this reads a row."""
    if not file.metadata.num_row_groups:
        return False
    try:
        next(file.iter_batches(1, row_groups=[0], columns=[name], use_threads=False), None)
    except OSError:
        return True
    return False


# Keeps P28.
def calendar_limits(file: pq.ParquetFile) -> dict[str, int]:
    """The first day, and the first moment, that a file's writer counts as others do, by unit. A
    unit without a limit is absent. The rule is Spark's, which wrote no version before 2.4.6."""
    metadata = file.metadata.metadata or {}
    version = metadata.get(_SPARK + b"version")
    if version is None:
        dates = times = _SPARK + b"sql.parquet.row.metadata" in metadata
        dates |= metadata.get(b"writer.date.proleptic") == b"false"  # Hive.
        times |= metadata.get(b"writer.zone.conversion.legacy") == b"true"
    else:
        dates = times = version < b"3.0" or _SPARK + b"legacyDateTime" in metadata
        if int96_columns(file):
            times = version < b"3.1" or _SPARK + b"legacyINT96" in metadata
    return {unit: _CALENDAR_LIMITS[unit] for unit, old in (("D", dates), ("us", times)) if old}


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

    `length`: the file's bytes; each row has a share. `first`: the position of its first
    row. `fixed`: columns with one value for the whole file. If that value is null and the file has
    the column, semel reads the file's.

    Raises SourceError if the columns do not match: a replay may declare others than its batch did.
    """
    schema = pa.schema([(name, kind.arrow()) for name, kind in columns.items()])
    with open_parquet(file) as source:
        file_names = source.schema_arrow.names
        fixed = {n: value for n, value in fixed.items() if value.is_valid or n not in file_names}
        names = naming.match(columns, [*file_names, *fixed]).held
        fixed = {c: fixed[name] for c, name in names.items() if name in fixed}
        read = {name: kind for name, kind in columns.items() if name not in fixed}
        wrong, advice = misfits(source, read, exact, naming)
        if wrong:
            advice = advice or "Declare columns that the file has"
            why = f"{file.name!r} does not match this schema: {some_of(wrong)}"
            raise SourceError(f"{why}. {advice}")
        fixed |= {c: pa.scalar(None, schema.field(c).type) for c in read.keys() - names.keys()}
        reader = _RowGroupReader(
            file, source, length, schema, names, exact, selection, first, fixed
        )
        for group in range(source.metadata.num_row_groups):
            end = first + source.metadata.row_group(group).num_rows
            low, high = max(first, claimed[0]), min(end, claimed[1])
            if low < high and owned[0] <= low < owned[1]:
                yield from reader.read_group(group, first, low, high)
            first = end


class _RowGroupReader:
    """Reads the row groups of one file."""

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
        """`names`: the name in the file of each column that is not `fixed`."""
        self._source = source
        read_fields = [field for field in schema if field.name not in fixed]
        self._names = {field.name: names[field.name] for field in read_fields}
        self._texts = {names[field.name] for field in read_fields if _has_bytes(field.type)}
        self._file, self._length, self._rows = file, length, file.metadata.num_rows
        self._first, self._fixed, self._since = first, fixed, calendar_limits(file)
        self._schema, self._exact, self._selection = schema, exact, selection
        file_names = {*names.values()}
        self._undeclared = [n for n in file.schema_arrow.names if n not in file_names]
        int96 = int96_columns(file)
        self._int96 = [field for field in read_fields if names[field.name] in int96]
        self._far_rows, self._far = np.empty(0, np.int64), pa.table({})

    # Keeps S29.
    def read_group(self, group: int, first: int, low: int, high: int) -> Iterator[Block]:
        """The rows [low, high) of a row group that begins at `first`. Rejects each row from the
        first one on that cannot be decoded."""
        at, pending = low, []
        self._collect_far_rows(group, first)
        try:
            for rows in self._row_steps(group, first, low, high):
                pending.append(rows)
                at += rows.num_rows
                if sum(rows.nbytes for rows in pending) >= limits.BLOCK_BYTES:
                    yield self._block(pending, at)
                    pending = []
        except _Damaged as error:
            if pending:
                yield self._block(pending, at)
            why = f"row group {group} is damaged from row {at} on: {error}"
            for start in range(at, high, limits.PIECE_ROWS_MAX):
                yield self._damaged_block(start, min(start + limits.PIECE_ROWS_MAX, high), why)
            return
        if pending:
            yield self._block(pending, at)

    # Keeps P28.
    def _collect_far_rows(self, group: int, first: int) -> None:
        """Keep the INT96 columns, in milliseconds, of rows with a year that no column holds."""
        names = [field.name for field in self._int96]
        far, tables, at = [self._far_rows[:0]], [pa.table({name: [] for name in names})], first
        if names:
            with open_parquet(self._source, int96="ms", metadata=self._file.metadata) as file:
                try:
                    for rows in steps(file, group, [self._names[name] for name in names]):
                        coarse = pa.table([self._column(rows, f) for f in self._int96], names)
                        if places := sorted({place for place, _ in self._far_faults(coarse)}):
                            far.append(np.array(places) + at)
                            tables.append(coarse.take(places))
                        at += rows.num_rows
                except (OSError, pa.ArrowException) as error:
                    if is_passing(error):
                        raise
                    # Reading these rows reports the damage.
        self._far_rows = np.concatenate(far)
        self._far = pa.concat_tables(tables[1:] or tables)

    def _far_faults(self, rows: pa.Table) -> Iterator[tuple[int, Fault]]:
        for name in rows.column_names:
            yield from _leaf_faults(rows.column(name).combine_chunks(), name, _year_faults)

    def _row_steps(self, group: int, first: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Some rows at once. Raises _Damaged if the next ones cannot be decoded."""
        names, at = [*self._names.values()], first
        long = long_dictionary_columns(self._source, self._file, group, self._texts)
        with open_parquet(self._source, metadata=self._file.metadata, read_dictionary=long) as file:
            try:
                for rows in steps(file, group, names):
                    for piece in cut_dictionary_rows(rows):
                        start, stop = max(low - at, 0), min(high - at, piece.num_rows)
                        decoded = self._decode(piece)
                        at += piece.num_rows
                        if start < stop:
                            yield decoded.slice(start, stop - start)
                        if at >= high:
                            return
            except (OSError, pa.ArrowException) as error:
                if is_passing(error):
                    raise
                raise _Damaged(first_line(error)) from error
        raise _Damaged(f"it ends at row {at}")

    def _decode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pa.repeat(self._fixed[field.name], rows.num_rows)
            if field.name in self._fixed
            else self._column(rows, field)
            for field in self._schema
        ]
        return pa.record_batch(columns, self._schema.names)

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        return plain_values(rows.column(self._names[field.name]), field.type)

    def _byte_share(self, start: int, end: int) -> int:
        """The rows' share of the file's bytes. Shares of adjacent ranges add up."""
        start, end = start - self._first, end - self._first
        return self._length * end // self._rows - self._length * start // self._rows

    def _selection_mask(self, offsets: np.ndarray) -> np.ndarray:
        if self._selection is None:
            return np.ones(len(offsets), bool)
        return self._selection.takes(offsets)

    def _block(self, batches: list[pa.RecordBatch], end: int) -> Block:
        """A block of the rows that end before `end`."""
        rows = pa.concat_batches(batches)
        start = end - rows.num_rows
        offsets = np.arange(start, end)
        size, left_out = self._byte_share(start, end), NO_OFFSETS
        if self._selection is not None:
            wanted = self._selection_mask(offsets)
            left_out, offsets = offsets[~wanted], offsets[wanted]
            rows = rows.filter(pa.array(wanted))
        far = np.isin(self._far_rows, offsets)
        places, coarse = np.searchsorted(offsets, self._far_rows[far]), self._far.filter(far)
        lines = Rows(rows, offsets, (places, _with_columns(rows.take(places), coarse)))
        columns, faults = [], self._too_long(rows)
        for place, fault in self._far_faults(coarse):
            faults.setdefault(int(places[place]), fault)
        for field, column in zip(self._schema, rows.columns, strict=True):
            converted = cast_exactly(column, field.type)
            columns.append(converted)
            for place, fault in (
                *_rounding_faults(column, converted, field.name),
                *_leaf_faults(converted, field.name, self._text_and_calendar_faults),
                *_value_faults(converted, field),
                *self._digit_faults(column, field.name),
            ):
                faults.setdefault(place, fault)
        columns.append(pa.array(offsets, pa.int64()))
        table = pa.Table.from_arrays(columns, schema=with_offset(self._schema))
        if faults:
            good = np.ones(len(offsets), bool)
            good[list(faults)] = False
            table = table.filter(pa.array(good))
        return Block(
            table=table,
            faults=faults,
            lines=lines,
            bytes_read=size,
            ignored=Ignored(keys=dict.fromkeys(self._undeclared, table.num_rows)),
            left_out=left_out,
        )

    def _text_and_calendar_faults(self, array: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
        """The faults of invalid text, and of old times."""
        if pa.types.is_string(array.type):
            yield from _text_faults(array, name)
        unit = "D" if pa.types.is_date(array.type) else getattr(array.type, "unit", None)
        if (first := self._since.get(unit)) is None:
            return
        numbers = pc.fill_null(array.cast(pa.int32() if unit == "D" else pa.int64()), first)
        numbers = numbers.to_numpy(zero_copy_only=False)
        day = np.datetime64(first, unit).astype("M8[D]")
        expected = f"a time from {day} on, as the file's footer names an older calendar"
        for place in np.flatnonzero(numbers < first).tolist():
            why = words.misfit(name, expected, str(np.datetime64(int(numbers[place]), unit)))
            yield place, (Reason.type_mismatch, why)

    def _digit_faults(self, column: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
        """The faults of times in record_id with more digits than semel keeps."""
        kind = column.type
        if name not in self._exact or not pa.types.is_timestamp(kind) or kind.unit != "ns":
            return
        numbers = pc.fill_null(column.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
        expected = "at most six digits of a second, as it is part of record_id"
        for place in np.flatnonzero(numbers % 1_000).tolist():
            excerpt = f"{np.datetime64(int(numbers[place]), 'ns')}Z"
            yield place, (Reason.type_mismatch, words.misfit(name, expected, excerpt))

    def _too_long(self, rows: pa.RecordBatch) -> dict[int, Fault]:
        if rows.nbytes <= limits.RECORD_BYTES_MAX:
            return {}
        sizes = np.zeros(rows.num_rows, np.int64)
        for column, field in zip(rows.columns, self._schema, strict=True):
            sizes += _sizes(cast_exactly(column, field.type))
        long = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX).tolist()
        what = f"expected a record of at most {limits.RECORD_BYTES_MAX} bytes"
        return dict.fromkeys(long, (Reason.too_long, what))

    def _damaged_block(self, start: int, end: int, why: str) -> Block:
        offsets = np.arange(start, end)
        wanted = self._selection_mask(offsets)
        fault = Reason.malformed, why
        return Block(
            table=with_offset(self._schema).empty_table(),
            faults=dict.fromkeys(range(int(wanted.sum())), fault),
            lines=Rows(None, offsets[wanted]),
            bytes_read=self._byte_share(start, end),
            left_out=offsets[~wanted],
        )


def _with_columns(rows: pa.RecordBatch, columns: pa.Table) -> pa.RecordBatch:
    """Rows with some columns replaced."""
    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays |= {name: columns.column(name).combine_chunks() for name in columns.column_names}
    return pa.record_batch(arrays)


def _sizes(array: pa.Array) -> np.ndarray:
    """The bytes of text and binary values in each row, at any depth."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    sizes = np.zeros(len(array), np.int64)
    if pa.types.is_struct(kind):
        for inner in array.flatten():
            sizes += _sizes(inner)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        array = _as_list(array) if pa.types.is_map(kind) else array
        totals = np.concatenate([[0], np.cumsum(_sizes(array.values))])
        sizes = np.diff(totals[array.offsets.to_numpy()])
    return sizes


# The judges of values treat a map as a list of its pairs.
def _as_list(array: pa.MapArray) -> pa.ListArray:
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(array.offsets, pairs, mask=mask)


def _value_faults(array: pa.Array, field: pa.Field) -> Iterator[tuple[int, Fault]]:
    """The faults of values that a column cannot hold, such as NaN, and of maps that repeat a key.
    """
    if pa.types.is_map(array.type):
        for place in _repeated_keys(array):
            yield place, (Reason.duplicate_key, f"{field.name}: a key appears twice")
        array = _as_list(array)
        field = field.with_type(array.type)
    _, unfit = convert(pa.chunked_array([array]), field)
    for place, why in unfit:
        yield place, (Reason.type_mismatch, why)


def _repeated_keys(array: pa.MapArray) -> list[int]:
    bounds = array.offsets.to_numpy()
    first, end = int(bounds[0]), int(bounds[-1])
    codes = array.keys.slice(first, end - first).dictionary_encode().indices.to_numpy()
    rows = np.repeat(np.arange(len(array)), np.diff(bounds))
    order = np.lexsort((codes, rows))
    rows, codes = rows[order], codes[order]
    return np.unique(rows[1:][(np.diff(rows) == 0) & (np.diff(codes) == 0)]).tolist()


def _rounding_faults(column: pa.Array, cast: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
    """The faults of whole numbers that a double cannot hold."""
    kind = column.type
    if pa.types.is_integer(kind) and pa.types.is_floating(cast.type):
        beyond = pc.greater_equal(cast, 2.0 ** (kind.bit_width - pa.types.is_signed_integer(kind)))
        lost = pc.or_(beyond, pc.not_equal(cast.cast(kind, safe=False), column))
        for place in np.flatnonzero(pc.fill_null(lost, False)).tolist():
            why = words.misfit(name, "a number that a double holds", str(column[place]))
            yield place, (Reason.type_mismatch, why)


def _leaf_faults(
    array: pa.Array, name: str, leaf: Callable[[pa.Array, str], Iterator[tuple[int, Fault]]]
) -> Iterator[tuple[int, Fault]]:
    """The faults that `leaf` finds in values, at any depth, by row."""
    kind = array.type
    if pa.types.is_struct(kind):
        for inner, field in zip(array.flatten(), kind, strict=True):
            yield from _leaf_faults(inner, f"{name}.{field.name}", leaf)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        array = _as_list(array) if pa.types.is_map(kind) else array
        bounds = array.offsets.to_numpy()
        first, end = int(bounds[0]), int(bounds[-1])
        values = array.values.slice(first, end - first)
        for place, fault in _leaf_faults(values, f"{name}[]", leaf):
            yield int(np.searchsorted(bounds, first + place, side="right")) - 1, fault
    else:
        yield from leaf(array, name)


def _year_faults(array: pa.Array, name: str) -> Iterator[tuple[int, Fault]]:
    """The faults of times, in milliseconds, outside of the years that a column holds."""
    if not pa.types.is_timestamp(array.type):
        return
    numbers = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero((numbers < _YEARS[0]) | (numbers >= _YEARS[1])).tolist():
        excerpt = f"{np.datetime64(int(numbers[place]), 'ms')}Z"
        yield place, (Reason.type_mismatch, words.misfit(name, words.YEARS.format("time"), excerpt))


def _text_faults(array: pa.StringArray, name: str) -> Iterator[tuple[int, Fault]]:
    """The faults of text that is not UTF-8, or that has a NUL."""
    data = _bytes_of(array)
    if data.view(np.int8).min(initial=1) > 0:  # ASCII without NUL.
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
        has_nul = pc.fill_null(pc.match_substring(raw, b"\0"), False)
        for place in np.flatnonzero(has_nul.to_numpy(zero_copy_only=False)).tolist():
            yield place, (Reason.encoding, f"{name}: expected text, found a NUL byte")


def _bytes_of(array: pa.StringArray) -> np.ndarray:
    """The bytes of all values, concatenated."""
    data = array.buffers()[2]
    if data is None or not len(array):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
