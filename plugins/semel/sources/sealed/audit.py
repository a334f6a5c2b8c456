"""The audit's reader of Parquet files: DuckDB's own reader reads the columns that are not nested.

How it works: a digest of all bytes finds the file with the claimed content. pyarrow decodes its row
groups in steps, to find the rows that cannot be decoded: DuckDB does not verify checksums, and
reports no row numbers. Next to each step DuckDB reads the columns that the audit compares with the
output, in one query per claim. If DuckDB fails, the audit uses pyarrow's columns. This module finds
values that do not fit their column, also within nested values.
"""

import base64
import json
import os
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel import limits
from semel.clients.duck import connect, duck_type
from semel.clients.sql import column, query
from semel.declare import ddl
from semel.declare.ddl import ColumnType
from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.reread import ClaimedRecords
from semel.sources.spec import SourceSpec
from semel.storage import checksum

_ROWS_SKIPPED = 50_000
"""Rows that pyarrow alone reads after a row that DuckDB cannot read."""

_STEPS_MAX = 512
"""Steps, and row groups at most, that are judged at once."""

_BUFFER_BYTES = 1 << 20
_BYTES = pa.large_binary()
_STEP_DIVISOR = 16
_SECONDS = -62_135_596_800, 253_402_300_799
_DAYS = -719_162, 2_932_896
"""The first and the last of the years 1 to 9999, since 1970."""

_FIRST = _DAYS[0], _SECONDS[0]
_AGREED = -141_427, -25_567 * 86_400
"""The first day of the Gregorian calendar, and the first second of 1900: since then all writers
agree about days and times."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NOT_A_TIME = -(2**63)
"""numpy's number for a missing time (NaT)."""

_MILLISECONDS_MAX = (2**63 - 1) // 1_000


@dataclass(frozen=True, kw_only=True)
class ClaimedRows(ClaimedRecords):
    """Rows of one claim. `rows`: their columns as they were read; None if they are unreadable.
    `far_times`: by row, the times that do not fit into microseconds, in milliseconds.
    """

    rows: pa.Table | None = field(repr=False)
    far_times: Mapping[int, dict[str, Any]] = field(repr=False, default_factory=dict)
    size: int

    def raw(self, index: int) -> bytes:
        if self.rows is None:
            return b""
        row = {name: _plain(self.rows.column(name)[index]) for name in self.rows.column_names}
        row |= self.far_times.get(index, {})
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")

    @property
    def bytes_read(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return super().nbytes + (self.rows.nbytes if self.rows is not None else 0)


class FilesByContent:
    """Finds claimed files by the digest of all their bytes. Finds each content only once."""

    def __init__(self) -> None:
        self._paths: dict[str, str | Path] = {}

    def path(self, claim: Claim, candidates: Iterable[str | Path]) -> str | Path | None:
        """The first file that has the claimed content. Returns None if no file has it. Raises
        CorruptionError if the claim lacks its digest.
        """
        content, size = claim.evidence.get("content"), claim.evidence.get("bytes")
        if content is None or size is None:
            raise CorruptionError(f"the claim of {claim.name!r} lacks the evidence of its content")
        path = self._paths.get(content)
        if path is None:
            path = next((p for p in candidates if _has_content(p, size, content)), None)
            if path is not None:
                self._paths[content] = path
        return path


class ClaimedParts:
    """Finds claimed files by their content, and reads their rows."""

    def __init__(self, list_candidates: Callable[[], list[str]]) -> None:
        """`list_candidates`: returns all files that a renamed one may be among."""
        self._list_candidates = list_candidates
        self._files = FilesByContent()
        self._links = count()
        self._folder = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self._judge = connect()
        self._duck: duckdb.DuckDBPyConnection | None = None

    def duck(self) -> duckdb.DuckDBPyConnection:
        """The connection that reads files, until `reset_duck`: a file may break it."""
        if self._duck is None:
            self._duck = connect()
            self._duck.execute("SET TimeZone = 'UTC'")
            # Both trust the statistics of a file, and change values that are beyond them.
            off = "compressed_materialization,statistics_propagation"
            self._duck.execute(f"SET disabled_optimizers = '{off}'")
        return self._duck

    def reset_duck(self) -> None:
        """Close the connection, so that the next file gets a new one."""
        if self._duck is not None:
            self._duck.close()
            self._duck = None

    def cast(self, text: str, rows: pa.Table) -> pa.Table:
        """The result of a query of the table `rows`."""
        self._judge.register("rows", rows)
        return self._judge.sql(text).to_arrow_table()

    def close(self) -> None:
        """Close both connections, and delete the links."""
        self.reset_duck()
        self._judge.close()
        self._folder.cleanup()

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> Iterator[ClaimedRecords]:
        """The rows of a claim. Raises SourceError if no file has its content."""
        path = self._files.path(claim, self._candidates(claim))
        if path is None:
            raise SourceError("no file in the source folder has the claimed content")
        return self.rows(path, claim, batch, source, record_id, size=claim.evidence["bytes"])

    def rows(
        self,
        path: str | os.PathLike,
        claim: Claim,
        batch: int,
        source: SourceSpec,
        record_id: Collection[str],
        *,
        size: int,
        first: int = 0,
        fixed: Mapping[str, pa.Scalar] = MappingProxyType({}),
    ) -> Iterator[ClaimedRecords]:
        """The rows of a claim in one file of `size` bytes, whose first row has the position
        `first`. `fixed`: columns that the file lacks, each with its one value.
        """
        # DuckDB treats * and ? in a name as a pattern.
        link = os.path.join(self._folder.name, f"{next(self._links)}.parquet")
        os.symlink(Path(path).resolve(), link)
        reader = _ClaimReader(self, claim, batch, source, record_id, link, size, first, fixed)
        return reader.run()

    def _candidates(self, claim: Claim) -> Iterator[str]:
        yield claim.name
        yield from (path for path in self._list_candidates() if path != claim.name)


def _has_content(path: str | Path, size: int, content: str) -> bool:
    with suppress(OSError):
        return os.stat(path).st_size == size and checksum(path) == content
    return False


class _ClaimReader:
    """Reads the rows of a claim in one pass."""

    def __init__(
        self,
        parts: ClaimedParts,
        claim: Claim,
        batch: int,
        source: SourceSpec,
        record_id: Collection[str],
        path: str,
        size: int,
        first: int,
        fixed: Mapping[str, pa.Scalar],
    ) -> None:
        self._parts, self._claim, self._batch, self._path = parts, claim, batch, path
        self._size, self._first, self._fixed = size, first, dict(fixed)
        # As row numbers of the file.
        self._low, self._high = max(0, claim.start - first), claim.end - first
        kinds = {name: ddl.parse(text) for name, text in source.columns.items()}
        self._kinds, self._record_id, self._rules = kinds, record_id, source.column_rules
        self._flat = {name: kind for name, kind in kinds.items() if not kind.nested}
        times = {pa.timestamp("us", "UTC"): pa.timestamp("us")}
        plain = [(name, kind.arrow()) for name, kind in self._flat.items()]
        fields = [(name, times.get(kind, kind)) for name, kind in plain]
        self._beside = pa.struct(fields) if fields else pa.null()
        self._duck_batches: Iterator[pa.RecordBatch] | None = None
        self._duck_rest: pa.Table | None = None
        self._duck_from = self._low

    def run(self) -> Iterator[ClaimedRecords]:
        with pq.ParquetFile(
            self._path, page_checksum_verification=True, pre_buffer=False,
            buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us",
        ) as file:  # fmt: skip
            self._file, self._total = file, file.metadata.num_rows
            for name in self._fixed.keys() & {*file.schema_arrow.names}:
                if not self._fixed[name].is_valid:  # The folder of NULL also holds empty text.
                    self._fixed.pop(name)
            self._stored_names = self._names_in(file.schema_arrow.names)
            self._duck_columns = [name for name in self._flat if name not in self._fixed]
            self._starts = _first_times(file)
            groups = range(file.metadata.num_row_groups)
            sizes = [file.metadata.row_group(group).num_rows for group in groups]
            self._bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            self._find_far()
            at, pending, size = self._low, [], 0
            for group in groups:
                for rows in self._decode(group):
                    if isinstance(rows, pa.Table):
                        pending.append(rows)
                        size += rows.nbytes
                        if len(pending) < _STEPS_MAX and size < limits.BLOCK_BYTES:
                            continue
                    at = yield from self._flush(pending, at)
                    pending, size = [], 0
                    if isinstance(rows, int):
                        self._read_by_duck(at, rows)
                        yield self._undecodable_rows(at, rows)
                        at += rows
            yield from self._flush(pending, at)

    def _names_in(self, stored: list[str]) -> dict[str, str]:
        """By column, its name in the file; all other columns become fixed. Raises SourceError if a
        column is missing, or the file has it under two names.
        """
        stored_names, values = {}, self._fixed
        available = [*values, *(name for name in stored if name not in values)]
        self._fixed = {}
        for declared, kind in self._kinds.items():
            rule = self._rules.get(declared)
            names = (declared, *rule.names) if rule else (declared,)
            matches = [name for name in available if name in names]
            if len(matches) > 1 or not matches and not (rule and rule.optional):
                raise SourceError(f"it has {matches or 'no column'} for {declared!r}")
            if not matches:
                self._fixed[declared] = pa.scalar(None, kind.arrow())
            elif matches[0] in values:
                self._fixed[declared] = values[matches[0]]
            else:
                stored_names[declared] = matches[0]
        return stored_names

    def _find_far(self) -> None:
        """Read INT96 times in milliseconds, and keep the claimed rows with a time outside the years
        1 to 9999: in microseconds, pyarrow and DuckDB may wrap it to another time.
        """
        leaves = map(self._file.schema.column, range(len(self._file.schema)))
        tops = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
        self._int96 = [name for name, stored in self._stored_names.items() if stored in tops]
        wanted = [self._stored_names[name] for name in self._int96]
        rows, tables = [np.empty(0, np.int64)], []
        first, end = np.searchsorted(self._bounds, [self._low, self._high], side="right")
        for group in range(int(first) - 1, min(int(end), len(self._bounds) - 1)):
            if not self._int96:
                break
            with suppress(pa.ArrowException, OSError), pq.ParquetFile(
                self._path, metadata=self._file.metadata, page_checksum_verification=True,
                pre_buffer=False, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="ms",
            ) as file:  # fmt: skip
                at = int(self._bounds[group])
                for step in file.iter_batches(
                    self._step_rows(group), [group], wanted, use_threads=False
                ):
                    columns = [
                        _as_declared(step.column(self._stored_names[name]), self._kinds[name])
                        for name in self._int96
                    ]
                    every = np.arange(step.num_rows)
                    bad = [_bad_rows(array, every, _FIRST) for array in columns]
                    if len(places := np.unique(np.concatenate(bad))):
                        rows.append(places + at)
                        tables.append(pa.table(columns, self._int96).take(places))
                    at += step.num_rows
        self._far_rows = np.concatenate(rows)
        self._far_times = pa.concat_tables(tables) if tables else None

    def _flush(self, pending: list[pa.Table], at: int) -> Generator[ClaimedRecords, None, int]:
        """Judge pending rows, from row `at` on. Returns the number of the next row."""
        if not pending:
            return at
        rows = pa.concat_tables(pending)
        yield self._judge_rows(rows, at)
        return at + rows.num_rows

    def _decode(self, group: int) -> Iterator[pa.Table | int]:
        """The claimed rows of a row group in steps; then, in pieces, the number of rows from the
        first step on that cannot be decoded.
        """
        first, end = self._bounds[group : group + 2].tolist()
        low, high, at = max(first, self._low), min(end, self._high), first
        if low >= high:
            return
        try:
            for rows in self._steps(group):
                start, stop = max(low - at, 0), min(high - at, rows.num_rows)
                at += rows.num_rows
                if start < stop:
                    yield rows.slice(start, stop - start)
                if at >= high:
                    return
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise  # An error of this machine, not of the file.
        for start in range(max(low, at), high, limits.PIECE_ROWS_MAX):
            yield min(limits.PIECE_ROWS_MAX, high - start)

    def _steps(self, group: int) -> Iterator[pa.Table]:
        names, step_rows, yielded = list(self._kinds), self._step_rows(group), 0
        stored = [*self._stored_names.values()]
        while True:
            decoded = 0
            try:
                for rows in self._file.iter_batches(step_rows, [group], stored, use_threads=False):
                    columns = [
                        pa.repeat(self._fixed[name], rows.num_rows)
                        if name in self._fixed
                        else _as_declared(rows.column(self._stored_names[name]), kind)
                        for name, kind in self._kinds.items()
                    ]
                    new = pa.table(columns, names).slice(max(yielded - decoded, 0))
                    decoded += rows.num_rows
                    if new.num_rows:
                        yielded += new.num_rows
                        yield new
                return
            except pa.ArrowNotImplementedError:  # An array cannot hold so many bytes.
                if step_rows == 1:
                    raise
                step_rows = max(1, step_rows // _STEP_DIVISOR)

    def _step_rows(self, group: int) -> int:
        metadata = self._file.metadata.row_group(group)
        fit = limits.BLOCK_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)
        return max(1, min(limits.PIECE_ROWS_MAX, fit))

    def _read_by_duck(self, at: int, count: int) -> pa.Table | None:
        """The columns that are not nested, as DuckDB reads them. Returns None if it cannot.

        It may reject values that pyarrow decodes, such as text that is not UTF-8, or break.
        """
        if at < self._duck_from or not self._duck_columns:
            return None
        try:
            if self._duck_batches is None:
                self._duck_batches = self._query_duck(at)
            tables = [] if self._duck_rest is None else [self._duck_rest]
            missing = count - sum(rows.num_rows for rows in tables)
            while missing > 0:
                tables.append(pa.Table.from_batches([next(self._duck_batches)]))
                missing -= tables[-1].num_rows
        except (duckdb.Error, pa.ArrowException, OSError, StopIteration):
            self._parts.reset_duck()
            self._skip_duck(at)
            return None
        rows = pa.concat_tables(tables)
        self._duck_rest = rows.slice(count)
        return rows.slice(0, count)

    def _query_duck(self, at: int) -> Iterator[pa.RecordBatch]:
        duck, names = self._parts.duck(), self._file.schema_arrow.names
        # If two names differ only by case, DuckDB renames one.
        duck_names = duck.read_parquet(self._path).columns
        if len(duck_names) != len(names):
            raise duckdb.InvalidInputException(
                f"it has {len(duck_names)} columns, not {len(names)}"
            )
        called = dict(zip(names, duck_names, strict=True))
        columns = ", ".join(
            f"{column(called[self._stored_names[name]])} AS {column(name)}"
            for name in self._duck_columns
        )
        text = query("audit", "read_rows").text.format_map({"columns": columns})
        values = {"path": self._path, "low": at, "high": self._high}
        group = max(0, int(np.searchsorted(self._bounds, at, side="right")) - 1)
        return duck.sql(text, params=values).to_arrow_reader(self._step_rows(group))

    def _skip_duck(self, at: int) -> None:
        """Read the next rows without DuckDB: each of its queries opens the file again."""
        next_group = np.searchsorted(self._bounds, at + _ROWS_SKIPPED)
        self._duck_from = int(self._bounds[min(next_group, len(self._bounds) - 1)])
        self._duck_batches = self._duck_rest = None

    def _judge_rows(self, rows: pa.Table, at: int) -> ClaimedRecords:
        count, bad, values = rows.num_rows, {}, {}
        columns = {name: rows.column(name).combine_chunks() for name in self._kinds}
        duck_rows = self._read_by_duck(at, count)
        if duck_rows is not None and not any(map(_overflows, columns.values())):
            for name in self._duck_columns:
                values_read = duck_rows.column(name).combine_chunks()
                duck_column = _as_declared(values_read, self._kinds[name])
                # DuckDB before 2 rounds nanoseconds with a time zone.
                if _is_ns(duck_column) or not _is_ns(columns[name]):
                    columns[name] = duck_column
        if sum(array.nbytes for array in columns.values()) > limits.RECORD_BYTES_MAX:
            sizes = sum(map(_text_bytes, columns.values()))
            long = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX).tolist()
            bad |= dict.fromkeys(long, "it is too long")
        low, high = np.searchsorted(self._far_rows, [at, at + count]).tolist()
        far_times = {}
        for k in range(low, high):
            far_times[row := int(self._far_rows[k]) - at] = {
                name: _plain(self._far_times.column(name)[k]) for name in self._int96
            }
            bad[row] = "a time is outside the years 1 to 9999"
        for name, array in columns.items():
            over = _bad_rows(array, np.arange(count), self._starts)
            bad |= dict.fromkeys(over.tolist(), f"{name} does not fit its column")
            if self._kinds[name].word == "double" and pa.types.is_integer(array.type):
                integers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
                wide = np.abs(integers) // np.maximum(integers & -integers, 1) >= 1 << 53
                bad |= dict.fromkeys(np.flatnonzero(wide).tolist(), f"{name} is not a double")
            if name in self._flat:
                values[name] = _for_duck(array, over)
            if name in self._record_id and _is_ns(array):
                lost = pc.fill_null(values[name], 0).to_numpy(zero_copy_only=False) % 1_000 != 0
                why = f"{name} would lose digits, but is part of record_id"
                bad |= dict.fromkeys(np.flatnonzero(lost).tolist(), why)
        beside = pa.nulls(count, self._beside)
        if values:
            casts = (
                f"{column(name)} := {_cast(name, kind, ns=_is_ns(columns[name]))}"
                for name, kind in self._flat.items()
            )
            text = query("audit", "cast_rows").text.format_map({"values": ", ".join(casts)})
            cast_rows = self._parts.cast(text, pa.table(values))
            beside = cast_rows.column("beside").combine_chunks().cast(self._beside)
        return self._claimed_rows(
            at, count, faults=bad, unparsed_columns=beside, rows=pa.table(columns), far_times=far_times
        )

    def _undecodable_rows(self, low: int, count: int) -> ClaimedRecords:
        bad = dict.fromkeys(range(count), "its row group cannot be read")
        beside = pa.nulls(count, self._beside)
        return self._claimed_rows(low, count, faults=bad, unparsed_columns=beside, rows=None)

    def _claimed_rows(self, at: int, count: int, **more: Any) -> ClaimedRows:
        share = [self._size * row // self._total for row in (at, at + count)]
        start = self._first + at
        return ClaimedRows(
            batch=self._batch,
            claim=self._claim,
            data=b"",
            bounds=np.zeros(count + 1, np.int64),
            positions=np.arange(start, start + count),
            is_record=np.ones(count, bool),
            size=share[1] - share[0],
            **more,
        )


def _as_declared(array: pa.Array, kind: ColumnType) -> pa.Array:
    """A column without dictionaries and views, and without undeclared fields.

    Raises pa.ArrowIndexError if an index is beyond its dictionary.
    """
    stored = array.type
    if pa.types.is_dictionary(stored):
        return _as_declared(array.dictionary.take(array.indices), kind)
    if pa.types.is_string_view(stored):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(stored):
        return array.cast(pa.large_binary())
    if not kind.nested or pa.types.is_null(stored):
        return array
    mask = array.is_null() if array.null_count else None
    if kind.word == "struct":
        inner = array.flatten()
        parts = [
            _as_declared(inner[stored.get_field_index(name)], declared)
            for name, declared in kind.fields
        ]
        return pa.StructArray.from_arrays(parts, [n for n, _ in kind.fields], mask=mask)
    if kind.word == "map":
        bounds = array.offsets.to_numpy()
        span = int(bounds[0]), int(bounds[-1] - bounds[0])
        keys = _as_declared(array.keys.slice(*span), ddl.parse("string"))
        items = _as_declared(array.items.slice(*span), kind.element)
        bounds = pa.array(bounds - bounds[0], pa.int32())
        return pa.MapArray.from_arrays(bounds, keys, items, mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    values = _as_declared(pc.list_flatten(array), kind.element)
    return pa.LargeListArray.from_arrays(bounds, values, mask=mask)


def _overflows(array: pa.Array) -> bool:
    """Whether a column has a time that does not fit into DuckDB's microseconds."""
    if not pa.types.is_timestamp(array.type) or array.type.unit != "ms":
        return False
    extremes = pc.min_max(array.view(pa.int64()))
    low, high = extremes["min"].as_py() or 0, extremes["max"].as_py() or 0
    return max(-low, high) > _MILLISECONDS_MAX


def _is_ns(array: pa.Array) -> bool:
    return pa.types.is_timestamp(array.type) and array.type.unit == "ns"


def _cast(name: str, kind: ColumnType, *, ns: bool) -> str:
    """SQL that casts a column to its type. Cuts times to microseconds: a cast would round them."""
    if ns:
        number = column(name)
        return f"make_timestamp({number} // 1000 - CAST({number} % 1000 < 0 AS BIGINT))"
    return f"{'' if kind.word == 'decimal' else 'TRY_'}CAST({column(name)} AS {duck_type(kind)})"


def _for_duck(array: pa.Array, over: np.ndarray) -> pa.Array:
    """A column for DuckDB, with NULL in the rows `over`.

    Nanoseconds become integers, because DuckDB treats the greatest times as infinity.
    """
    if len(over):
        mask = np.zeros(len(array), bool)
        mask[over] = True
        array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    return array.view(pa.int64()) if _is_ns(array) else array


def _parts_of(array: pa.Array) -> tuple[list[pa.Array], np.ndarray]:
    """The values of lists, or the keys and items of maps; and their number in each row."""
    bounds = array.offsets.to_numpy()
    span = int(bounds[0]), int(bounds[-1] - bounds[0])
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return [part.slice(*span) for part in parts], np.diff(bounds)


def _text_bytes(array: pa.Array) -> np.ndarray:
    """The bytes of text and binary values in each row, nested values included."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        return sum(map(_text_bytes, array.flatten()), np.zeros(len(array), np.int64))
    if types.is_large_list(kind) or types.is_map(kind):
        parts, counts = _parts_of(array)
        inner = np.concatenate([[0], np.cumsum(sum(map(_text_bytes, parts)))])
        return np.diff(inner[np.concatenate([[0], np.cumsum(counts)])])
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or (
        types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    ):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    return np.zeros(len(array), np.int64)


def _first_times(file: pq.ParquetFile) -> tuple[int, int]:
    """The first day and second that are certain by the file's footer: Spark and Hive note there if
    they wrote by the calendar of old Java.
    """
    footer, spark = file.metadata.metadata or {}, b"org.apache.spark."
    version = footer.get(spark + b"version", b"2")  # Spark writes it since 2.4.6.
    int96 = "INT96" in {file.schema.column(at).physical_type for at in range(len(file.schema))}

    def is_old(first: bytes, legacy: bytes, hive: bytes, word: bytes) -> bool:
        by_spark = version < first or spark + legacy in footer
        by_spark = by_spark and any(key.startswith(spark) for key in footer)
        return by_spark or footer.get(b"writer." + hive) == word

    days = is_old(b"3.0", b"legacyDateTime", b"date.proleptic", b"false")
    newest = (b"3.1", b"legacyINT96") if int96 else (b"3.0", b"legacyDateTime")
    times = is_old(*newest, b"zone.conversion.legacy", b"true")
    return (_AGREED if days else _FIRST)[0], (_AGREED if times else _FIRST)[1]


def _bad_rows(array: pa.Array, rows: np.ndarray, starts: tuple[int, int]) -> np.ndarray:
    """The rows with a value that does not fit its column. `rows`: the row of each value."""
    kind = array.type
    if pa.types.is_struct(kind):
        return np.concatenate([_bad_rows(inner, rows, starts) for inner in array.flatten()])
    if pa.types.is_large_list(kind) or pa.types.is_map(kind):
        parts, counts = _parts_of(array)
        inner = np.repeat(rows, counts)
        bad = [_bad_rows(part, inner, starts) for part in parts]
        if pa.types.is_map(kind):  # Find repeated keys.
            keys = pa.table({"row": inner, "key": parts[0].cast(pa.large_string()).view(_BYTES)})
            many = keys.group_by(["row", "key"]).aggregate([([], "count_all")])
            bad.append(many.filter(pc.greater(many["count_all"], 1))["row"].to_numpy())
        return np.concatenate(bad)
    return rows[_bad_values(array, starts)]


def _bad_values(array: pa.Array, starts: tuple[int, int]) -> np.ndarray:
    """A mask of the values that do not fit: not finite, not UTF-8, with a NUL, outside the years 1
    to 9999, or with more digits than their type.
    """
    kind = array.type
    if pa.types.is_floating(kind):
        return pc.fill_null(pc.invert(pc.is_finite(array)), False).to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _bad_text(array.cast(pa.large_string()).view(_BYTES))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _bad_moments(array, starts)
    if pa.types.is_decimal(kind):
        return _bad_decimals(array)
    return np.zeros(len(array), bool)


def _bad_text(raw: pa.LargeBinaryArray) -> np.ndarray:
    bad = pc.fill_null(pc.match_substring(raw, b"\0"), False).to_numpy(zero_copy_only=False)
    try:
        raw.cast(pa.large_string())
        return bad
    except pa.ArrowInvalid:
        bad = bad.copy()
    for at, value in enumerate(raw.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            bad[at] = True
    return bad


def _bad_moments(array: pa.Array, starts: tuple[int, int]) -> np.ndarray:
    low, high = starts[0], _DAYS[1]
    if pa.types.is_date(array.type):
        numbers = array.cast(pa.date32()).view(pa.int32())
    else:
        per, numbers = _PER_SECOND[array.type.unit], array.view(pa.int64())
        low, high = max(starts[1] * per, -(2**63)), min((_SECONDS[1] + 1) * per, 2**63) - 1
    moments = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return (moments < low) | (moments > high)


def _bad_decimals(array: pa.Array) -> np.ndarray:
    most = Decimal(10) ** (array.type.precision - array.type.scale)
    with localcontext(prec=100):
        if all(v is None or abs(v) < most for v in pc.min_max(array).as_py().values()):
            return np.zeros(len(array), bool)
        return np.array([v is not None and abs(v) >= most for v in array.to_pylist()], bool)


def _plain(value: pa.Scalar) -> Any:
    """A value for the JSON of a dead letter."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(kind):
        if value.value == _NOT_A_TIME:
            return f"{value.value}{kind.unit}"
        text = str(np.datetime64(value.value, kind.unit))
        seconds, _, fraction = text.partition(".")
        fraction = fraction.ljust(6, "0")
        return f"{seconds}.{fraction.removesuffix('000') if len(fraction) > 6 else fraction}Z"
    if pa.types.is_date(kind):
        return str(np.datetime64(value.cast(pa.date32()).value, "D"))
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_struct(kind):
        return {name: _plain(value[name]) for name in value}
    if pa.types.is_map(kind):
        pairs = [[_plain(pair["key"]), _plain(pair["value"])] for pair in value.values or ()]
        return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else pairs
    if hasattr(value, "values"):
        return [_plain(item) for item in value.values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bytes(value.as_buffer()).decode(errors="backslashreplace")
    plain = value.as_py()
    return base64.b64encode(plain).decode() if isinstance(plain, bytes) else plain
