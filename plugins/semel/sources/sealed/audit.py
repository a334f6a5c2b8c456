"""Files of Parquet as the audit reads them again: by DuckDB's own reader, row group by row group.

How it works: the file with the claimed content is found by a digest of all its bytes; DuckDB reads
the declared columns of a row group, and a query says of each row whether its values are good. A row
group that DuckDB does not read is read by pyarrow, which also says from where on a row group cannot
be decoded: DuckDB looks at no checksums, and tells no rows apart.
"""

import base64
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
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
import xxhash

from semel import limits
from semel.clients.duck import column, duck_type, quoted
from semel.clients.sql import query
from semel.declare import ddl
from semel.declare.ddl import ColumnType
from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.reread import Lines
from semel.sources.spec import Records

_ROWS = 50_000
"""Rows that are judged at once."""

_HASHED_BYTES = 1 << 20
_FEWER = 16
_NS = "BIGINT"
"""What times in nanoseconds are to DuckDB: of its own it takes the longest for infinity."""

_SECONDS = -62_135_596_800, 253_402_300_799
_DAYS = -719_162, 2_932_896
"""The first and the last of the years 1 to 9999, since 1970."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NOT_A_TIME = -(2**63)
"""The number that numpy has no time for."""

_MILLISECONDS_MAX = (2**63 - 1) // 1_000
_MOMENTS = "-62135596800000000 AND 253402300799999999"
_ODD = r"nan|inf|\\u0000|\d{5,}-|\(BC\)"
"""What the JSON of a nested value may hold where something in it is no value of its column."""


@dataclass(frozen=True, kw_only=True)
class RowLines(Lines):
    """Rows of one claim. `rows`: their columns as they were read; None: they cannot be read."""

    rows: pa.Table | None = field(repr=False)
    size: int

    def raw(self, index: int) -> bytes:
        if self.rows is None:
            return b""
        row = {name: _plain(self.rows.column(name)[index]) for name in self.rows.column_names}
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")

    @property
    def bytes_read(self) -> int:
        return self.size


class Parts:
    """Finds claimed files by their content, and reads their rows."""

    def __init__(self, others: Callable[[], list[str]]) -> None:
        """`others`: all files that a renamed one may be among."""
        self._others = others
        self._found: dict[str, str] = {}
        self._links = count()
        self._folder = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self._duck = duckdb.connect()
        self._duck.execute("SET TimeZone = 'UTC'")
        # Both take the statistics of a file for true, and change values that are beyond them.
        off = "compressed_materialization,statistics_propagation"
        self._duck.execute(f"SET disabled_optimizers = '{off}'")

    def close(self) -> None:
        """End what was opened to read."""
        self._duck.close()
        self._folder.cleanup()

    def read(
        self, claim: Claim, batch: int, source: Records, record_id: Collection[str]
    ) -> Iterator[Lines]:
        """The rows of a claim. SourceError: no file has its content."""
        content, size = claim.evidence.get("content"), claim.evidence.get("bytes")
        if content is None or size is None:
            raise CorruptionError(f"the claim of {claim.name!r} has no evidence of a whole file")
        path = self._found.get(content)
        if path is None:  # Each content is looked for once, by all claims of it.
            path = next((p for p in self._places(claim, size) if _has(p, size, content)), None)
            if path is None:
                raise SourceError("neither it nor a renamed file has the claimed content")
            self._found[content] = path
        return self.rows(path, claim, batch, source, record_id, size=size)

    def rows(
        self,
        path: str | os.PathLike,
        claim: Claim,
        batch: int,
        source: Records,
        record_id: Collection[str],
        *,
        size: int,
        first: int = 0,
        fixed: Mapping[str, pa.Scalar] = MappingProxyType({}),
    ) -> Iterator[Lines]:
        """The rows of a claim that are in one file, of `size` bytes, whose first row has the
        position `first`. `fixed`: columns that it does not hold, each with its one value.
        """
        # DuckDB takes signs of a name for a pattern.
        link = os.path.join(self._folder.name, f"{next(self._links)}.parquet")
        os.symlink(Path(path).resolve(), link)
        kinds = {name: ddl.parse(text) for name, text in source.columns.items()}
        reading = _Reading(self._duck, claim, batch, kinds, record_id, link, size, first, fixed)
        return reading.run()

    def _places(self, claim: Claim, size: int) -> Iterator[str]:
        yield claim.name
        for path in self._others():
            with suppress(OSError):
                if path != claim.name and os.stat(path).st_size == size:
                    yield path


def _has(path: str, size: int, content: str) -> bool:
    state, seen = xxhash.xxh3_128(), 0
    with suppress(OSError), open(path, "rb") as file:
        while data := file.read(_HASHED_BYTES):
            state.update(data)
            seen += len(data)
    return seen == size and state.hexdigest() == content


class _Reading:
    """One pass over the rows of a claim."""

    def __init__(
        self,
        duck: duckdb.DuckDBPyConnection,
        claim: Claim,
        batch: int,
        kinds: dict[str, ColumnType],
        record_id: Collection[str],
        path: str,
        size: int,
        first: int,
        fixed: Mapping[str, pa.Scalar],
    ) -> None:
        self._duck, self._judge = duck, duck.cursor()
        self._claim, self._batch, self._path = claim, batch, path
        self._size, self._first, self._fixed = size, first, fixed
        self._stored = [name for name in kinds if name not in fixed]
        self._kinds, self._record_id = kinds, record_id
        plain = [(n, kind.arrow()) for n, kind in kinds.items() if not kind.nested]
        times = {pa.timestamp("us", "UTC"): pa.timestamp("us")}
        fields = [(name, times.get(kind, kind)) for name, kind in plain]
        self._beside = pa.struct(fields) if fields else pa.null()

    def run(self) -> Iterator[Lines]:
        claim = self._claim
        with self._judge, pq.ParquetFile(
            self._path, page_checksum_verification=True, pre_buffer=False,
            buffer_size=_HASHED_BYTES, coerce_int96_timestamp_unit="us",
        ) as file:  # fmt: skip
            self._file, self._total = file, file.metadata.num_rows
            # Where two names differ by case alone, DuckDB has names of its own.
            own = self._duck.read_parquet(self._path).columns
            self._called = dict(zip(file.schema_arrow.names, own, strict=True))
            first = self._first
            for group in range(file.metadata.num_row_groups):
                behind = first + file.metadata.row_group(group).num_rows
                low, high = max(first, claim.start), min(behind, claim.end)
                if low < high:
                    yield from self._group(group, first, low, high)
                first = behind

    def _group(self, group: int, first: int, low: int, high: int) -> Iterator[Lines]:
        readable, overflows = self._readable(group, first)
        at, end = low, max(low, min(high, readable))
        for rows in self._read(group, first, low, end, overflows) if low < end else ():
            yield self._lines(rows, at)
            at += rows.num_rows
        if at < high:
            yield self._unread(at, high)

    def _read(
        self, group: int, first: int, low: int, high: int, overflows: bool
    ) -> Iterator[pa.Table]:
        at = low
        if not overflows:
            with suppress(duckdb.Error):
                for rows in self._by_duck(low - self._first, high - self._first):
                    yield rows
                    at += rows.num_rows
                return
        yield from self._by_arrow(group, first, at, high)

    def _readable(self, group: int, first: int) -> tuple[int, bool]:
        """The first row of a row group that cannot be decoded, in steps from its start on, with its
        checksums; or the first behind the row group. And whether a time is none in DuckDB.
        """
        at, overflows = first, False
        try:
            for rows in self._steps(group):
                at += rows.num_rows
                overflows = overflows or any(map(_overflows, rows.columns))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise  # Of this machine, not of the file.
        return at, overflows

    def _steps(self, group: int) -> Iterator[pa.RecordBatch]:
        known, names = self._file.metadata.row_group(group), self._stored
        fit = limits.BLOCK_BYTES * known.num_rows // max(known.total_byte_size, 1)
        some, given = max(1, min(limits.PIECE_ROWS_MAX, fit)), 0
        while True:
            seen = 0
            try:
                for rows in self._file.iter_batches(some, [group], names, use_threads=False):
                    for found in rows.columns:
                        _check_index(found)
                    new = rows.slice(max(given - seen, 0))
                    seen += rows.num_rows
                    if new.num_rows:
                        given += new.num_rows
                        yield new
                return
            except pa.ArrowNotImplementedError:  # Too many bytes for one array.
                if some == 1:
                    raise
                some = max(1, some // _FEWER)

    def _by_duck(self, low: int, high: int) -> Iterator[pa.Table]:
        """The rows [low, high), of one row group. duckdb.Error: it cannot be read."""
        columns = ", ".join(f"{column(self._called[n])} AS {column(n)}" for n in self._stored)
        text = query("audit", "read_rows").text.format_map({"columns": columns})
        found = self._duck.sql(text, params={"path": self._path, "low": low, "high": high})
        for rows in found.to_arrow_reader(_ROWS):
            yield pa.Table.from_batches([rows])

    def _by_arrow(self, group: int, first: int, low: int, high: int) -> Iterator[pa.Table]:
        """The same by pyarrow: what it decodes, DuckDB may refuse, as text that is not UTF-8."""
        at = first
        for rows in self._steps(group):
            start, stop = max(low - at, 0), min(high - at, rows.num_rows)
            at += rows.num_rows
            if start < stop:
                some = pa.Table.from_batches([rows]).slice(start, stop - start)
                yield some.select(self._stored)
            if at >= high:
                return

    def _lines(self, rows: pa.Table, at: int) -> Lines:
        bad: dict[int, str] = {}
        for name, value in self._fixed.items():
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        rows = rows.select(list(self._kinds))
        if rows.nbytes > limits.RECORD_BYTES_MAX:
            sizes = sum(_text_bytes(c.combine_chunks()) for c in rows.columns)
            long = np.flatnonzero(sizes > limits.RECORD_BYTES_MAX).tolist()
            bad |= dict.fromkeys(long, "it is too long")
        judged = {n: _judgeable(rows.column(n), n, bad) for n in rows.column_names}
        self._judge.register("rows", pa.table(judged))
        found = map(str, self._judge.table("rows").types)
        kinds = dict(zip(self._kinds, found, strict=True))
        values = ", ".join(
            f"{column(name)} := {_cast(name, kind, kinds[name])}"
            for name, kind in self._kinds.items()
            if not kind.nested
        )  # fmt: skip
        wrong = [
            test for name, kind in self._kinds.items()
            for test in _wrong(name, kind, kinds[name], self._record_id)
        ]  # fmt: skip
        odd = [
            f"regexp_matches(CAST(to_json({column(name)}) AS VARCHAR), '(?i){_ODD}')"
            for name, kind in self._kinds.items() if kind.nested
        ]  # fmt: skip
        braces = {
            "values": f"struct_pack({values})" if values else "NULL",
            "wrong": f"CASE {' '.join(wrong)} END" if wrong else "NULL",
            "odd": " OR ".join(odd) or "false",
        }
        judge = query("audit", "judge_rows").text.format_map(braces)
        judged = self._judge.sql(judge).to_arrow_table()
        for place, why in enumerate(judged.column("wrong").to_pylist()):
            if why is not None:
                bad.setdefault(place, why)
        odd_rows = np.flatnonzero(judged.column("odd").to_numpy(zero_copy_only=False))
        doubts = dict.fromkeys(odd_rows.tolist(), "a nested value may be none of its column")
        beside = judged.column("beside").combine_chunks().cast(self._beside)
        return self._made(at, rows.num_rows, bad=bad, doubts=doubts, beside=beside, rows=rows)

    def _unread(self, low: int, high: int) -> Lines:
        bad = dict.fromkeys(range(high - low), "its row group cannot be read")
        beside = pa.nulls(high - low, self._beside)
        return self._made(low, high - low, bad=bad, beside=beside, rows=None)

    def _made(self, at: int, count: int, **more: Any) -> RowLines:
        ends = (at - self._first, at - self._first + count)
        share = [self._size * row // self._total for row in ends]
        return RowLines(
            batch=self._batch,
            claim=self._claim,
            data=b"",
            bounds=np.zeros(count + 1, np.int64),
            positions=np.arange(at, at + count),
            kept=np.ones(count, bool),
            size=share[1] - share[0],
            **more,
        )


def _overflows(column: pa.Array) -> bool:
    """Whether a column has a time that does not fit into microseconds, as DuckDB keeps it."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "ms":
        return False
    found = pc.min_max(column.view(pa.int64()))
    low, high = found["min"].as_py() or 0, found["max"].as_py() or 0
    return max(-low, high) > _MILLISECONDS_MAX


def _check_index(array: pa.Array) -> None:
    """pa.ArrowIndexError: an index leads out of its dictionary, somewhere in a column."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array.dictionary.take(array.indices)
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            _check_index(inner)
    elif pa.types.is_map(kind):
        _check_index(array.keys)
        _check_index(array.items)
    elif hasattr(array, "values") and pa.types.is_nested(kind):
        _check_index(array.values)


def _cast(name: str, kind: ColumnType, found: str) -> str:
    """A column as its declared type; times are in UTC, cut to microseconds (a cast rounds)."""
    if kind.word == "timestamp" and found == _NS:
        ns = column(name)
        return f"make_timestamp({ns} // 1000 - CAST({ns} % 1000 < 0 AS BIGINT))"
    return f"{'' if kind.word == 'decimal' else 'TRY_'}CAST({column(name)} AS {duck_type(kind)})"


def _wrong(
    name: str, kind: ColumnType, found: str, record_id: Collection[str]
) -> Iterator[str]:
    """The tests that name what is wrong with a row's value."""
    value, plain = "" if kind.nested else _cast(name, kind, found), column(name)
    test = {
        "double": f"NOT isfinite({value})", "float": f"NOT isfinite({value})",
        "string": f"contains({value}, chr(0))",
        "date": f"year({value}) NOT BETWEEN 1 AND 9999",
        "timestamp": f"{plain} IS NOT NULL AND "
        f"COALESCE(epoch_us({value}) NOT BETWEEN {_MOMENTS}, true)",
        # A key twice.
        "map": f"len(list_distinct([pair.key FOR pair IN {plain}])) < len({plain})",
    }.get(kind.word)  # fmt: skip
    if test:
        yield f"WHEN {test} THEN {quoted(f'{name} is no value of its column')}"
    if name in record_id and kind.word == "timestamp" and found == _NS:
        lost = f"{name} loses digits, and is part of record_id"
        yield f"WHEN {plain} % 1000 <> 0 THEN {quoted(lost)}"


def _text_bytes(array: pa.Array) -> np.ndarray:
    """How many bytes of text and bytes each row has, within nested values as well."""
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return _text_bytes(array.dictionary_decode())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return _text_bytes(array.cast(pa.large_binary()))
    if types.is_struct(kind):
        return sum(map(_text_bytes, array.flatten()), np.zeros(len(array), np.int64))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        parts = [array.keys, array.items] if types.is_map(kind) else [array.values]
        inner = np.concatenate([[0], np.cumsum(sum(map(_text_bytes, parts)))])
        return np.diff(inner[array.offsets.to_numpy()])
    if types.is_fixed_size_list(kind):
        return _text_bytes(array.cast(pa.list_(kind.value_field)))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or (
        types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    ):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    return np.zeros(len(array), np.int64)


def _judgeable(column: pa.ChunkedArray, name: str, bad: dict[int, str]) -> pa.Array:
    """A column as DuckDB takes it. What is bad by itself is noted, and is nothing in it."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary.take(array.indices)
    if pa.types.is_map(array.type):
        pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, pairs, mask=mask)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return _moments(array, name, bad)
    if pa.types.is_decimal(array.type):
        return _decimals(array, name, bad)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if not pa.types.is_string(array.type):
        return array
    values = array.view(pa.binary())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        some = values.to_pylist()
    for at, value in enumerate(some):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            bad[at], some[at] = f"{name} is not UTF-8", None
    return pa.array(some, pa.binary()).cast(pa.string())


def _moments(array: pa.Array, name: str, bad: dict[int, str]) -> pa.Array:
    """Times and dates without those that are in no year of a column."""
    low, high = _DAYS
    if pa.types.is_date(array.type):
        array = array.cast(pa.date32())
        numbers = array.view(pa.int32())
    else:
        per, numbers = _PER_SECOND[array.type.unit], array.view(pa.int64())
        low, high = max(_SECONDS[0] * per, -(2**63)), min((_SECONDS[1] + 1) * per, 2**63) - 1
    found = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    over = (found < low) | (found > high)
    for at in np.flatnonzero(over).tolist():
        bad[at] = f"{name} is no value of its column"
    array = pc.if_else(pa.array(over), pa.scalar(None, array.type), array)
    is_ns = pa.types.is_timestamp(array.type) and array.type.unit == "ns"
    return array.view(pa.int64()) if is_ns else array


def _decimals(array: pa.Array, name: str, bad: dict[int, str]) -> pa.Array:
    """Decimals without those that have more digits than their type."""
    most = Decimal(10) ** (array.type.precision - array.type.scale)
    with localcontext(prec=100):
        if all(v is None or abs(v) < most for v in pc.min_max(array).as_py().values()):
            return array
        over = [v is not None and abs(v) >= most for v in array.to_pylist()]
    for at in np.flatnonzero(over).tolist():
        bad[at] = f"{name} has more digits than its type"
    return pc.if_else(pa.array(over), pa.scalar(None, array.type), array)


def _plain(value: pa.Scalar) -> Any:
    """A value as a dead letter's JSON has it."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return _plain(value.value)
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
    if pa.types.is_string(kind):
        return bytes(value.as_buffer()).decode(errors="backslashreplace")
    found = value.as_py()
    return base64.b64encode(found).decode() if isinstance(found, bytes) else found
