"""Files of Parquet as the audit reads them again: the columns without parts by DuckDB's own reader.

How it works: the file with the claimed content is found by a digest of all its bytes. pyarrow goes
through its row groups in steps, and says which rows cannot be decoded: DuckDB looks at no
checksums, and tells no rows apart. Beside each step DuckDB reads the columns whose values are
compared with the output's, in one query of the claim; where it reads none, pyarrow's are taken.
What is no value of its column is found here, within nested values too.
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
from semel.clients.duck import duck_type
from semel.clients.sql import column, query
from semel.declare import ddl
from semel.declare.ddl import ColumnType
from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.reread import ClaimedRecords
from semel.sources.spec import SourceSpec
from semel.storage import checksum

_ROWS_PASSED = 50_000
"""Rows that DuckDB is not asked for after one that it does not read."""

_STEPS_MAX = 512
"""Steps, of as many row groups at most, that are judged at once."""

_BUFFER_BYTES = 1 << 20
_BYTES = pa.large_binary()
_FEWER = 16
_SECONDS = -62_135_596_800, 253_402_300_799
_DAYS = -719_162, 2_932_896
"""The first and the last of the years 1 to 9999, since 1970."""

_FIRST = _DAYS[0], _SECONDS[0]
_AGREED = -141_427, -25_567 * 86_400
"""The first day by the Gregorian calendar, and the first second of 1900, when clocks agree."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NOT_A_TIME = -(2**63)
"""The number that numpy has no time for."""

_MILLISECONDS_MAX = (2**63 - 1) // 1_000


@dataclass(frozen=True, kw_only=True)
class RowLines(ClaimedRecords):
    """Rows of one claim. `rows`: their columns as they were read; None: they cannot be read. `far`:
    by row, the columns that microseconds do not hold, in milliseconds.
    """

    rows: pa.Table | None = field(repr=False)
    far: Mapping[int, dict[str, Any]] = field(repr=False, default_factory=dict)
    size: int

    def raw(self, index: int) -> bytes:
        if self.rows is None:
            return b""
        row = {name: _plain(self.rows.column(name)[index]) for name in self.rows.column_names}
        row |= self.far.get(index, {})
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")

    @property
    def bytes_read(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return super().nbytes + (self.rows.nbytes if self.rows is not None else 0)


class ByContent:
    """Finds claimed files by the digest of all their bytes, each content once for all its claims.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str | Path] = {}

    def path(self, claim: Claim, places: Iterable[str | Path]) -> str | Path | None:
        """The first of some files that has the claimed content. CorruptionError: the claim does
        not say what that is.
        """
        content, size = claim.evidence.get("content"), claim.evidence.get("bytes")
        if content is None or size is None:
            raise CorruptionError(f"the claim of {claim.name!r} has no evidence of a whole file")
        path = self._paths.get(content)
        if path is None:
            path = next((path for path in places if _has(path, size, content)), None)
            if path is not None:
                self._paths[content] = path
        return path


class ClaimedParts:
    """Finds claimed files by their content, and reads their rows."""

    def __init__(self, others: Callable[[], list[str]]) -> None:
        """`others`: all files that a renamed one may be among."""
        self._others = others
        self._files = ByContent()
        self._links = count()
        self._folder = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self._judge = duckdb.connect()
        self._duck: duckdb.DuckDBPyConnection | None = None

    def duck(self) -> duckdb.DuckDBPyConnection:
        """What reads files, until `forget`: a file may end it for all others."""
        if self._duck is None:
            self._duck = duckdb.connect()
            self._duck.execute("SET TimeZone = 'UTC'")
            # Both take the statistics of a file for true, and change values that are beyond them.
            off = "compressed_materialization,statistics_propagation"
            self._duck.execute(f"SET disabled_optimizers = '{off}'")
        return self._duck

    def forget(self) -> None:
        """Have the next file read by another."""
        if self._duck is not None:
            self._duck.close()
            self._duck = None

    def cast(self, text: str, rows: pa.Table) -> pa.Table:
        """What a query makes of `rows`."""
        self._judge.register("rows", rows)
        return self._judge.sql(text).to_arrow_table()

    def close(self) -> None:
        """End what was opened to read."""
        self.forget()
        self._judge.close()
        self._folder.cleanup()

    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> Iterator[ClaimedRecords]:
        """The rows of a claim. SourceError: no file has its content."""
        path = self._files.path(claim, self._places(claim))
        if path is None:
            raise SourceError("neither it nor a renamed file has the claimed content")
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
        """The rows of a claim that are in one file, of `size` bytes, whose first row has the
        position `first`. `fixed`: columns that it does not hold, each with its one value.
        """
        # DuckDB takes signs of a name for a pattern.
        link = os.path.join(self._folder.name, f"{next(self._links)}.parquet")
        os.symlink(Path(path).resolve(), link)
        reading = _Reading(self, claim, batch, source, record_id, link, size, first, fixed)
        return reading.run()

    def _places(self, claim: Claim) -> Iterator[str]:
        yield claim.name
        yield from (path for path in self._others() if path != claim.name)


def _has(path: str | Path, size: int, content: str) -> bool:
    with suppress(OSError):
        return os.stat(path).st_size == size and checksum(path) == content
    return False


class _Reading:
    """One pass over the rows of a claim."""

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
        # By numbers of rows of the file.
        self._low, self._high = max(0, claim.start - first), claim.end - first
        kinds = {name: ddl.parse(text) for name, text in source.columns.items()}
        self._kinds, self._record_id, self._rules = kinds, record_id, source.column_rules
        self._flat = {name: kind for name, kind in kinds.items() if not kind.nested}
        times = {pa.timestamp("us", "UTC"): pa.timestamp("us")}
        plain = [(name, kind.arrow()) for name, kind in self._flat.items()]
        fields = [(name, times.get(kind, kind)) for name, kind in plain]
        self._beside = pa.struct(fields) if fields else pa.null()
        self._found: Iterator[pa.RecordBatch] | None = None
        self._left: pa.Table | None = None
        self._asked_from = self._low

    def run(self) -> Iterator[ClaimedRecords]:
        with pq.ParquetFile(
            self._path, page_checksum_verification=True, pre_buffer=False,
            buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us",
        ) as file:  # fmt: skip
            self._file, self._total = file, file.metadata.num_rows
            for name in self._fixed.keys() & {*file.schema_arrow.names}:
                if not self._fixed[name].is_valid:  # Null's folder has the empty text, too.
                    self._fixed.pop(name)
            self._called = self._names_in(file.schema_arrow.names)
            self._asked_for = [name for name in self._flat if name not in self._fixed]
            self._starts = _first_times(file)
            groups = range(file.metadata.num_row_groups)
            sizes = [file.metadata.row_group(group).num_rows for group in groups]
            self._bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            self._find_far()
            at, held, size = self._low, [], 0
            for group in groups:
                for rows in self._decoded(group):
                    if isinstance(rows, pa.Table):
                        held.append(rows)
                        size += rows.nbytes
                        if len(held) < _STEPS_MAX and size < limits.BLOCK_BYTES:
                            continue
                    at = yield from self._given(held, at)
                    held, size = [], 0
                    if isinstance(rows, int):
                        self._by_duck(at, rows)
                        yield self._unread(at, rows)
                        at += rows
            yield from self._given(held, at)

    def _names_in(self, stored: list[str]) -> dict[str, str]:
        """By column, its name in the file; the others become fixed. SourceError: a column is
        missing, or there under two names.
        """
        called, values = {}, self._fixed
        there = [*values, *(name for name in stored if name not in values)]
        self._fixed = {}
        for own, kind in self._kinds.items():
            rule = self._rules.get(own)
            names = (own, *rule.names) if rule else (own,)
            given = [name for name in there if name in names]
            if len(given) > 1 or not given and not (rule and rule.optional):
                raise SourceError(f"it has {given or 'no column'} for {own!r}")
            if not given:
                self._fixed[own] = pa.scalar(None, kind.arrow())
            elif given[0] in values:
                self._fixed[own] = values[given[0]]
            else:
                called[own] = given[0]
        return called

    def _find_far(self) -> None:
        """Reads the times that are INT96 in milliseconds, and keeps the claimed rows with one of no
        year from 1 to 9999: in microseconds pyarrow and DuckDB may wrap it to another time.
        """
        leaves = map(self._file.schema.column, range(len(self._file.schema)))
        tops = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
        self._int96 = [name for name, stored in self._called.items() if stored in tops]
        wanted = [self._called[name] for name in self._int96]
        rows, held = [np.empty(0, np.int64)], []
        first, behind = np.searchsorted(self._bounds, [self._low, self._high], side="right")
        for group in range(int(first) - 1, min(int(behind), len(self._bounds) - 1)):
            if not self._int96:
                break
            with suppress(pa.ArrowException, OSError), pq.ParquetFile(
                self._path, metadata=self._file.metadata, page_checksum_verification=True,
                pre_buffer=False, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="ms",
            ) as file:  # fmt: skip
                at = int(self._bounds[group])
                for some in file.iter_batches(
                    self._step_rows(group), [group], wanted, use_threads=False
                ):
                    columns = [
                        _declared(some.column(self._called[n]), self._kinds[n]) for n in self._int96
                    ]
                    every = np.arange(some.num_rows)
                    bad = [_bad_rows(array, every, _FIRST) for array in columns]
                    if len(places := np.unique(np.concatenate(bad))):
                        rows.append(places + at)
                        held.append(pa.table(columns, self._int96).take(places))
                    at += some.num_rows
        self._far_rows, self._far = np.concatenate(rows), pa.concat_tables(held) if held else None

    def _given(self, held: list[pa.Table], at: int) -> Generator[ClaimedRecords, None, int]:
        """Rows from `at` on. Returns the row behind them."""
        if not held:
            return at
        rows = pa.concat_tables(held)
        yield self._lines(rows, at)
        return at + rows.num_rows

    def _decoded(self, group: int) -> Iterator[pa.Table | int]:
        """The claimed rows of a row group, in steps from its start on; and, in pieces, how many of
        them are behind the first step that cannot be decoded.
        """
        first, behind = self._bounds[group : group + 2].tolist()
        low, high, at = max(first, self._low), min(behind, self._high), first
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
                raise  # Of this machine, not of the file.
        for start in range(max(low, at), high, limits.PIECE_ROWS_MAX):
            yield min(limits.PIECE_ROWS_MAX, high - start)

    def _steps(self, group: int) -> Iterator[pa.Table]:
        names, some, given = list(self._kinds), self._step_rows(group), 0
        stored = [*self._called.values()]
        while True:
            seen = 0
            try:
                for rows in self._file.iter_batches(some, [group], stored, use_threads=False):
                    columns = [
                        pa.repeat(self._fixed[name], rows.num_rows)
                        if name in self._fixed
                        else _declared(rows.column(self._called[name]), kind)
                        for name, kind in self._kinds.items()
                    ]
                    new = pa.table(columns, names).slice(max(given - seen, 0))
                    seen += rows.num_rows
                    if new.num_rows:
                        given += new.num_rows
                        yield new
                return
            except pa.ArrowNotImplementedError:  # Too many bytes for one array.
                if some == 1:
                    raise
                some = max(1, some // _FEWER)

    def _step_rows(self, group: int) -> int:
        known = self._file.metadata.row_group(group)
        fit = limits.BLOCK_BYTES * known.num_rows // max(known.total_byte_size, 1)
        return max(1, min(limits.PIECE_ROWS_MAX, fit))

    def _by_duck(self, at: int, count: int) -> pa.Table | None:
        """The columns without parts of some rows, as DuckDB reads them. None: it does not.

        It may refuse what pyarrow decodes, such as text that is not UTF-8, or end by it.
        """
        if at < self._asked_from or not self._asked_for:
            return None
        try:
            if self._found is None:
                self._found = self._asked(at)
            some = [] if self._left is None else [self._left]
            missing = count - sum(rows.num_rows for rows in some)
            while missing > 0:
                some.append(pa.Table.from_batches([next(self._found)]))
                missing -= some[-1].num_rows
        except (duckdb.Error, pa.ArrowException, OSError, StopIteration):
            self._parts.forget()
            self._pass_over(at)
            return None
        rows = pa.concat_tables(some)
        self._left = rows.slice(count)
        return rows.slice(0, count)

    def _asked(self, at: int) -> Iterator[pa.RecordBatch]:
        duck, names = self._parts.duck(), self._file.schema_arrow.names
        # Where two names differ by case alone, DuckDB has names of its own.
        own = duck.read_parquet(self._path).columns
        if len(own) != len(names):
            raise duckdb.InvalidInputException(f"it has {len(own)} columns, not {len(names)}")
        called = dict(zip(names, own, strict=True))
        columns = ", ".join(
            f"{column(called[self._called[n]])} AS {column(n)}" for n in self._asked_for
        )
        text = query("audit", "read_rows").text.format_map({"columns": columns})
        values = {"path": self._path, "low": at, "high": self._high}
        group = max(0, int(np.searchsorted(self._bounds, at, side="right")) - 1)
        return duck.sql(text, params=values).to_arrow_reader(self._step_rows(group))

    def _pass_over(self, at: int) -> None:
        """DuckDB is asked for none of the next rows: each query of it opens the file."""
        next_one = np.searchsorted(self._bounds, at + _ROWS_PASSED)
        self._asked_from = int(self._bounds[min(next_one, len(self._bounds) - 1)])
        self._found = self._left = None

    def _lines(self, rows: pa.Table, at: int) -> ClaimedRecords:
        count, bad, values = rows.num_rows, {}, {}
        columns = {name: rows.column(name).combine_chunks() for name in self._kinds}
        found = self._by_duck(at, count)
        if found is not None and not any(map(_overflows, columns.values())):
            for name in self._asked_for:
                theirs = _declared(found.column(name).combine_chunks(), self._kinds[name])
                # Before its version 2 it has no nanoseconds in a zone, and rounds them.
                if _is_ns(theirs) or not _is_ns(columns[name]):
                    columns[name] = theirs
        if sum(array.nbytes for array in columns.values()) > limits.RECORD_BYTES_MAX:
            sizes = sum(map(_text_bytes, columns.values()))
            long = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX).tolist()
            bad |= dict.fromkeys(long, "it is too long")
        low, high = np.searchsorted(self._far_rows, [at, at + count]).tolist()
        far = {}
        for k in range(low, high):
            far[row := int(self._far_rows[k]) - at] = {
                name: _plain(self._far.column(name)[k]) for name in self._int96
            }
            bad[row] = "a time is of no year from 1 to 9999"
        for name, array in columns.items():
            over = _bad_rows(array, np.arange(count), self._starts)
            bad |= dict.fromkeys(over.tolist(), f"{name} is no value of its column")
            if self._kinds[name].word == "double" and pa.types.is_integer(array.type):
                whole = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
                wide = np.abs(whole) // np.maximum(whole & -whole, 1) >= 1 << 53
                bad |= dict.fromkeys(np.flatnonzero(wide).tolist(), f"{name} is no double")
            if name in self._flat:
                values[name] = _without(array, over)
            if name in self._record_id and _is_ns(array):
                lost = pc.fill_null(values[name], 0).to_numpy(zero_copy_only=False) % 1_000 != 0
                why = f"{name} loses digits, and is part of record_id"
                bad |= dict.fromkeys(np.flatnonzero(lost).tolist(), why)
        beside = pa.nulls(count, self._beside)
        if values:
            casts = (
                f"{column(name)} := {_cast(name, kind, ns=_is_ns(columns[name]))}"
                for name, kind in self._flat.items()
            )
            text = query("audit", "cast_rows").text.format_map({"values": ", ".join(casts)})
            made = self._parts.cast(text, pa.table(values))
            beside = made.column("beside").combine_chunks().cast(self._beside)
        rows = pa.table(columns)
        return self._made(at, count, faults=bad, unparsed_columns=beside, rows=rows, far=far)

    def _unread(self, low: int, count: int) -> ClaimedRecords:
        bad = dict.fromkeys(range(count), "its row group cannot be read")
        beside = pa.nulls(count, self._beside)
        return self._made(low, count, faults=bad, unparsed_columns=beside, rows=None)

    def _made(self, at: int, count: int, **more: Any) -> RowLines:
        share = [self._size * row // self._total for row in (at, at + count)]
        start = self._first + at
        return RowLines(
            batch=self._batch,
            claim=self._claim,
            data=b"",
            bounds=np.zeros(count + 1, np.int64),
            positions=np.arange(start, start + count),
            is_record=np.ones(count, bool),
            size=share[1] - share[0],
            **more,
        )


def _declared(array: pa.Array, kind: ColumnType) -> pa.Array:
    """A column without dictionaries and views, and without the fields that nobody declared.

    pa.ArrowIndexError: an index leads out of its dictionary.
    """
    found = array.type
    if pa.types.is_dictionary(found):
        return _declared(array.dictionary.take(array.indices), kind)
    if pa.types.is_string_view(found):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(found):
        return array.cast(pa.large_binary())
    if not kind.nested or pa.types.is_null(found):
        return array
    mask = array.is_null() if array.null_count else None
    if kind.word == "struct":
        inner = array.flatten()
        parts = [_declared(inner[found.get_field_index(n)], one) for n, one in kind.fields]
        return pa.StructArray.from_arrays(parts, [n for n, _ in kind.fields], mask=mask)
    if kind.word == "map":
        bounds = array.offsets.to_numpy()
        span = int(bounds[0]), int(bounds[-1] - bounds[0])
        keys = _declared(array.keys.slice(*span), ddl.parse("string"))
        items = _declared(array.items.slice(*span), kind.element)
        bounds = pa.array(bounds - bounds[0], pa.int32())
        return pa.MapArray.from_arrays(bounds, keys, items, mask=mask)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    values = _declared(pc.list_flatten(array), kind.element)
    return pa.LargeListArray.from_arrays(bounds, values, mask=mask)


def _overflows(array: pa.Array) -> bool:
    """Whether a column has a time that does not fit into microseconds, as DuckDB keeps it."""
    if not pa.types.is_timestamp(array.type) or array.type.unit != "ms":
        return False
    found = pc.min_max(array.view(pa.int64()))
    low, high = found["min"].as_py() or 0, found["max"].as_py() or 0
    return max(-low, high) > _MILLISECONDS_MAX


def _is_ns(array: pa.Array) -> bool:
    return pa.types.is_timestamp(array.type) and array.type.unit == "ns"


def _cast(name: str, kind: ColumnType, *, ns: bool) -> str:
    """A column as its declared type; times are in UTC, cut to microseconds (a cast rounds)."""
    if ns:
        number = column(name)
        return f"make_timestamp({number} // 1000 - CAST({number} % 1000 < 0 AS BIGINT))"
    return f"{'' if kind.word == 'decimal' else 'TRY_'}CAST({column(name)} AS {duck_type(kind)})"


def _without(array: pa.Array, over: np.ndarray) -> pa.Array:
    """A column without parts as DuckDB takes it, with nothing in some rows.

    Nanoseconds are numbers: of its own times DuckDB takes the longest for infinity.
    """
    if len(over):
        mask = np.zeros(len(array), bool)
        mask[over] = True
        array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    return array.view(pa.int64()) if _is_ns(array) else array


def _parts_of(array: pa.Array) -> tuple[list[pa.Array], np.ndarray]:
    """The values of lists, or keys and items of maps; and how many each row has."""
    bounds = array.offsets.to_numpy()
    span = int(bounds[0]), int(bounds[-1] - bounds[0])
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return [part.slice(*span) for part in parts], np.diff(bounds)


def _text_bytes(array: pa.Array) -> np.ndarray:
    """How many bytes of text and bytes each row has, within nested values as well."""
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
    """The first day and second that a file's footer leaves without doubt: Spark and Hive say there
    when they wrote by the calendar of old Java.
    """
    told, spark = file.metadata.metadata or {}, b"org.apache.spark."
    version = told.get(spark + b"version", b"2")  # It came with 2.4.6.
    int96 = "INT96" in {file.schema.column(at).physical_type for at in range(len(file.schema))}

    def is_old(first: bytes, legacy: bytes, hive: bytes, word: bytes) -> bool:
        by_spark = version < first or spark + legacy in told
        by_spark = by_spark and any(key.startswith(spark) for key in told)
        return by_spark or told.get(b"writer." + hive) == word

    days = is_old(b"3.0", b"legacyDateTime", b"date.proleptic", b"false")
    newest = (b"3.1", b"legacyINT96") if int96 else (b"3.0", b"legacyDateTime")
    times = is_old(*newest, b"zone.conversion.legacy", b"true")
    return (_AGREED if days else _FIRST)[0], (_AGREED if times else _FIRST)[1]


def _bad_rows(array: pa.Array, rows: np.ndarray, starts: tuple[int, int]) -> np.ndarray:
    """The rows with something that is no value of its column. `rows`: the row of each value."""
    kind = array.type
    if pa.types.is_struct(kind):
        return np.concatenate([_bad_rows(inner, rows, starts) for inner in array.flatten()])
    if pa.types.is_large_list(kind) or pa.types.is_map(kind):
        parts, counts = _parts_of(array)
        inner = np.repeat(rows, counts)
        found = [_bad_rows(part, inner, starts) for part in parts]
        if pa.types.is_map(kind):  # A key twice.
            keys = pa.table({"row": inner, "key": parts[0].cast(pa.large_string()).view(_BYTES)})
            many = keys.group_by(["row", "key"]).aggregate([([], "count_all")])
            found.append(many.filter(pc.greater(many["count_all"], 1))["row"].to_numpy())
        return np.concatenate(found)
    return rows[_bad(array, starts)]


def _bad(array: pa.Array, starts: tuple[int, int]) -> np.ndarray:
    """Which values are none: not finite, not UTF-8, with a NUL, of no year from 1 to 9999, or of
    more digits than their type."""
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
    found = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return (found < low) | (found > high)


def _bad_decimals(array: pa.Array) -> np.ndarray:
    most = Decimal(10) ** (array.type.precision - array.type.scale)
    with localcontext(prec=100):
        if all(v is None or abs(v) < most for v in pc.min_max(array).as_py().values()):
            return np.zeros(len(array), bool)
        return np.array([v is not None and abs(v) >= most for v in array.to_pylist()], bool)


def _plain(value: pa.Scalar) -> Any:
    """A value as a dead letter's JSON has it."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(kind):
        if value.value == _NOT_A_TIME:
            return f"{value.value}{kind.unit}"
        text = str(np.datetime64(value.value, kind.unit))
        whole, _, part = text.partition(".")
        part = part.ljust(6, "0")
        return f"{whole}.{part.removesuffix('000') if len(part) > 6 else part}Z"
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
        return [_plain(one) for one in value.values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bytes(value.as_buffer()).decode(errors="backslashreplace")
    found = value.as_py()
    return base64.b64encode(found).decode() if isinstance(found, bytes) else found
