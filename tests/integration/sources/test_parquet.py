"""Files of Parquet as a source: what is taken, what is refused, and what becomes of bad rows."""

import base64
import errno
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from fixtures.batches.account import advised, ids, quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sources import Parquet
from fixtures.kafka.topics import claimed
from fixtures.postgres.server import lose
from semel import limits
from semel.audit import audit
from semel.declare import ddl
from semel.errors import SourceError, TerminalError
from semel.formats.parquet import blocks
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_file
from semel.repair.adopt import adopt
from semel.sources.files.parquet import ParquetFiles
from semel.sources.sealed.audit import ClaimedParts
from semel.sources.sealed.parts import SealedPart


@pytest.fixture
def place(bench: Workbench) -> Parquet:
    return Parquet(bench)


def of(place: Parquet, schema: dict[str, str], **changes: object) -> Spec:
    """A pipeline over the folder with other columns."""
    return place.bench.spec(
        source={"path": "in/*.parquet", "format": "parquet", "schema": schema},
        **{"record_id": None, **changes},
    )


def by_id(place: Parquet) -> Spec:
    return place.bench.spec(source={"path": "in/*.parquet", "format": "parquet"})


def put(place: Parquet, name: str = "a.parquet", **columns: object) -> Path:
    """A file with these columns, in row groups of four."""
    path = place.folder / name
    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def moments(unit: str, *values: int, zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.timestamp(unit, zone))


TAKEN = {
    "smallint": ("bigint", pa.array([1, None], pa.int16()), [1, None]),
    "unsigned": ("bigint", pa.array([1, 4294967295], pa.uint32()), [1, 4294967295]),
    "int as double": ("double", pa.array([1, -1], pa.int32()), [1.0, -1.0]),
    "float": ("double", pa.array([1.5, None], pa.float32()), [1.5, None]),
    "unsigned as decimal": (
        "decimal(20,0)", pa.array([2**64 - 1, 0], pa.uint64()), [Decimal(2**64 - 1), Decimal(0)]
    ),
    "decimal": (
        "decimal(8,3)", pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
        [Decimal("1.500"), None],
    ),
    "large text": ("string", pa.array(["a", ""], pa.large_string()), ["a", ""]),
    "view": ("string", pa.array(["a", ""], pa.string_view()), ["a", ""]),
    "dictionary": ("string", pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "bytes": ("binary", pa.array([b"\xff", b""], pa.large_binary()), [b"\xff", b""]),
    "fixed bytes": ("binary", pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    "nothing": ("bigint", pa.nulls(2), [None, None]),
    "date": ("date", pa.array([0, 1], pa.date32()), [date(1970, 1, 1), date(1970, 1, 2)]),
    "milliseconds": (
        "timestamp", moments("ms", 0, -1),
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)],
    ),
    "zone": (
        "timestamp", moments("us", 0, 1, zone="Europe/Berlin"),
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 1, UTC)],
    ),
    "nanoseconds": (
        "timestamp", moments("ns", 1_999, -1),
        [datetime(1970, 1, 1, 0, 0, 0, 1, UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)],
    ),
    "fixed list": (
        "array<int>", pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), [[1, 2], None]
    ),
    "list": (
        "array<double>", pa.array([[1, 2], None], pa.large_list(pa.int8())), [[1.0, 2.0], None]
    ),
    "struct": (
        "struct<b: bigint>", pa.array([{"a": "x", "b": 1}, None]), [{"b": 1}, None]
    ),
    "map": (
        "map<string, bigint>", pa.array([[("a", 1)], []], pa.map_(pa.large_string(), pa.int32())),
        [[("a", 1)], []],
    ),
}  # fmt: skip


# Attacks P23.
@pytest.mark.parametrize("case", TAKEN)
def test_a_type_that_holds_each_value_is_taken(
    place: Parquet, ledger: Ledger, case: str
) -> None:
    """Wider, dictionary-encoded, without or with a zone: the values are those of the file."""
    kind, column, values = TAKEN[case]
    put(place, v=column)
    spec = of(place, {"v": kind})
    run(ledger, spec, "r1")
    assert [row["v"] for row in settled(spec).rows] == values


REFUSED = {
    "missing": ("bigint", {"w": [1]}, "column 'v' is not in the file"),
    "case": (
        "bigint", {"V": [1]},
        "column 'v' is not in the file. Declare `columns: {v: {names: [V]}}` in source, if 'V' is",
    ),
    "case in a struct": (
        "struct<fee: bigint>", {"v": pa.array([{"Fee": 1}])},
        "'v'.fee is not in the file, which has 'Fee'",
    ),
    "wide": ("int", {"v": pa.array([1], pa.int64())}, "column 'v' is int64"),
    "unsigned": ("bigint", {"v": pa.array([1], pa.uint64())}, "column 'v' is uint64"),
    "rounded": ("float", {"v": pa.array([1], pa.int64())}, "column 'v' is int64"),
    "rounded in a list": (
        "array<double>", {"v": pa.array([[1]])}, "column 'v'[] is int64, which double cannot store"
    ),
    "narrow": ("float", {"v": pa.array([1.5])}, "column 'v' is double"),
    "scale": ("decimal(9,1)", {"v": pa.array([Decimal("1.25")])}, "is decimal128"),
    "text": ("bigint", {"v": ["1"]}, "column 'v' is string"),
    "bytes": ("string", {"v": [b"a"]}, "column 'v' is binary"),
    "time": ("date", {"v": moments("us", 0)}, "column 'v' is timestamp"),
    "own": (
        "string",
        {"v": pa.array([b"0" * 16], pa.binary(16)).cast(pa.uuid())},
        "which semel does not read; have its writer write fixed_size_binary",
    ),
    "half": (
        "float", {"v": pa.array(np.array([1.5], np.float16))},
        "is halffloat, which semel does not read; have its writer write float",
    ),
    "small decimal": (
        "decimal(10,2)", {"v": pa.array([Decimal("1.5")], pa.decimal32(5, 2))},
        "is decimal32(5, 2), which semel does not read; have its writer write decimal128(5, 2)",
    ),
    "large decimal": (
        "array<decimal(10,2)>", {"v": pa.array([[Decimal("1.5")]], pa.list_(pa.decimal256(9, 2)))},
        "column 'v'[] is decimal256(9, 2), which semel does not read",
    ),
    "in a list": ("array<int>", {"v": pa.array([[1]])}, "column 'v'[] is int64"),
    "in a struct": (
        "struct<a: bigint, b: bigint>", {"v": pa.array([{"a": 1}])}, "'v'.b is not in the file"
    ),
    "in a map": (
        "map<string, int>", {"v": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
        "column 'v'{} is int64, which int cannot store",
    ),
}  # fmt: skip


# Attacks P23.
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_whole_numbers_as_doubles(
    place: Parquet, ledger: Ledger, kind: pa.DataType
) -> None:
    """One column is of whole numbers in one file and of doubles in another. A number that a double
    does not hold is a dead letter.
    """
    high = 2**63 - 1 if kind == pa.int64() else 2**64 - 1
    numbers = [2**53, 2**53 + 1, 2**53 + 2, None, 2**62, high, high - 1023, high - 2047, 0]
    put(place, v=pa.array(numbers, kind))
    put(place, "b.parquet", v=[0.5])
    spec = of(place, {"v": "double"}, limits={"quarantine_ratio_max": 1.0})
    assert run(ledger, spec, "r1").plan.refusals == ()
    found = settled(spec)
    lost = [at for at, n in enumerate(numbers) if n is not None and int(float(n)) != n]
    assert [at for _, at, _, _ in found.letters] == lost and 1 in lost and 5 in lost
    taken = [n for at, n in enumerate(numbers) if at not in lost]
    assert [row["v"] for row in found.rows] == [*taken, 0.5]
    assert found.letters[0][3] == b'{"v":9007199254740993}'


# Attacks P23.
@pytest.mark.parametrize("case", REFUSED)
def test_a_type_that_does_not_refuses_the_file(
    place: Parquet, ledger: Ledger, case: str
) -> None:
    """The file alone, before anything of it is claimed; the others are read."""
    kind, columns, why = REFUSED[case]
    path = put(place, **columns)
    pq.write_table(pa.table({"v": pa.nulls(2)}), place.folder / "b.parquet")
    spec = of(place, {"v": kind})
    done = run(ledger, spec, "r1")
    (refused,) = done.plan.refusals
    assert (refused.name, refused.reason) == (str(path), "schema") and why in refused.detail
    assert len(settled(spec).rows) == 2


# Attacks P23.
@pytest.mark.parametrize("logical", ["Interval", "Enum"])
def test_bytes_of_a_logical_type(place: Parquet, ledger: Ledger, logical: str) -> None:
    """Readers differ in what they are, so they are no bytes."""
    path = place.folder / "a.parquet"
    if logical == "Interval":
        duckdb.execute(f"COPY (SELECT INTERVAL 1 DAY AS v) TO '{path}' (FORMAT parquet)")
    else:
        pq.write_table(pa.table({"v": ["x"]}), path, store_schema=False)
        data, text = path.read_bytes(), b"\x25\x00\x4c\x1c\x00\x00"
        assert data.count(text) == 1
        path.write_bytes(data.replace(text, b"\x25\x08\x4c\x4c\x00\x00"))
    (refused,) = run(ledger, of(place, {"v": "binary"}), "r1").plan.refusals
    assert refused.reason == "schema"
    assert f"column 'v' has the logical type {logical}" in refused.detail


# Attacks P23.
def test_a_schema_that_is_corrected_reads_the_file(place: Parquet, ledger: Ledger) -> None:
    """What the message says helps."""
    put(place, v=[1, 2])
    run(ledger, of(place, {"v": "int"}), "r1")
    spec = of(place, {"v": "bigint"})
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert [row["v"] for row in settled(spec).rows] == [1, 2]


def test_a_bad_value_costs_its_row_alone(place: Parquet, ledger: Ledger) -> None:
    """Each is a dead letter at its row's number, with the row as JSON."""
    text = pa.Array.from_buffers(
        pa.string(), 8, pa.array([b"a", b"\xff", b"c", b"d\0", b"e", b"f", b"g", b"h"]).buffers()
    )
    put(
        place,
        n=range(8),
        x=[1.5, 2.5, float("nan"), 1.5, float("-inf"), None, 2.5, 0.0],
        s=text,
        l=pa.array([[1.5]] * 6 + [[float("nan"), None], []]),
        m=pa.array([[("k", 1)]] * 7 + [[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())),
    )
    kinds = {"n": "bigint", "x": "double", "s": "string", "l": "array<double>"}
    spec = of(place, kinds | {"m": "map<string, bigint>"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["n"] for row in found.rows] == [0, 5]
    assert [(at, reason) for _, at, reason, _ in found.letters] == [
        (1, "encoding"), (2, "type_mismatch"), (3, "encoding"), (4, "type_mismatch"),
        (6, "type_mismatch"), (7, "duplicate_key"),
    ]  # fmt: skip
    raws = {at: raw for _, at, _, raw in found.letters}
    assert raws[4] == b'{"n":4,"x":-Infinity,"s":"e","l":[1.5],"m":{"k":1}}'
    assert json.loads(raws[1])["s"] == "\\xff"


def test_fields_that_nobody_declared_are_in_no_letter(place: Parquet, ledger: Ledger) -> None:
    """Whatever their types are, a bad row beside them is a dead letter of its declared parts."""
    keys = pa.array([{"k": 1}] * 3)
    part = pa.StructArray.from_arrays(
        [
            pa.array([time(1)] * 3), pa.array([1, 2, 3]), pa.array([b"0" * 16] * 3, pa.uuid()),
            pa.array([Decimal("1.5")] * 3, pa.decimal256(50, 2)),
            pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, keys),
            pa.array([1] * 3, pa.duration("s")), moments("ms", 2**62, 1, 2**62),
        ],
        ["t", "b", "u", "d", "m", "s", "far"],
    )  # fmt: skip
    put(place, v=part, l=pa.ListArray.from_arrays([0, 1, 2, 3], part), x=[1.0, math.nan, 2.0])
    spec = of(
        place, {"v": "struct<b: bigint>", "l": "array<struct<b: bigint>>", "x": "double"}
    )
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["v"] for row in found.rows] == [{"b": 1}, {"b": 3}]
    assert found.letters[0][3] == b'{"v":{"b":2},"l":[{"b":2}],"x":NaN}'


_TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
_NUL = pa.array(["a", "b\0", "c"])
_FAR = moments("ms", 1, 2**62, 2)
_NAN = pa.array([1.5, math.inf, 2.5])
_LONG = pa.Array.from_buffers(
    pa.decimal128(5, 2), 3,
    [None, pa.py_buffer(b"".join(n.to_bytes(16, "little") for n in (5, 8_388_606, 7)))],
)  # fmt: skip
_BOUNDS, _KEYS = pa.array([0, 1, 2, 3], pa.int32()), pa.array(["k"] * 3)
NESTED = {
    "text": ("string", _TEXT), "NUL": ("string", _NUL), "time": ("timestamp", _FAR),
    "number": ("double", _NAN), "decimal": ("decimal(5,2)", _LONG),
    "date": ("date", pa.array([1, 2**31 - 1, 2], pa.date32())),
}  # fmt: skip


@pytest.mark.parametrize("case", NESTED)
def test_bad_values_within_nested_ones(place: Parquet, ledger: Ledger, case: str) -> None:
    """Each costs its row alone, and the audit agrees: in lists, structs, maps, lists of lists."""
    kind, column = NESTED[case]
    good = column.take(pa.array([0, 0, 0]))
    lists = pa.ListArray.from_arrays(_BOUNDS, column)
    places = {
        "l": (f"array<{kind}>", lists),
        "s": (f"struct<a: {kind}>", pa.StructArray.from_arrays([column], ["a"])),
        "m": (f"map<string, {kind}>", pa.MapArray.from_arrays(_BOUNDS, _KEYS, column)),
        "ll": (f"array<array<{kind}>>", pa.ListArray.from_arrays(_BOUNDS, lists)),
    }  # fmt: skip
    if case == "text":
        places["k"] = "map<string, string>", pa.MapArray.from_arrays(_BOUNDS, column, good)
    for name, (_, bad) in places.items():
        put(place, f"{name}.parquet", n=[0, 1, 2], **{
            n: bad if n == name else all_good.take(pa.array([0, 0, 0]))
            for n, (_, all_good) in places.items()
        })  # fmt: skip
    spec = of(
        place, {"n": "bigint"} | {name: kind for name, (kind, _) in places.items()},
        limits={"quarantine_ratio_max": 1.0},
    )  # fmt: skip
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["n"] for row in found.rows] == [0, 2] * len(places)
    assert len(found.letters) == len(places)


def test_a_time_of_an_id_keeps_its_digits(place: Parquet, ledger: Ledger) -> None:
    """In a column of record_id a time is not cut; elsewhere it is."""
    put(place, at=moments("ns", 1_000, 1_001), b=moments("ns", 5, 6))
    spec = of(place, {"at": "timestamp", "b": "timestamp"}, record_id=["at"])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert len(found.rows) == 1 and found.reasons == {"type_mismatch": 1}
    assert found.letters[0][3] == (
        b'{"at":"1970-01-01T00:00:00.000001001Z","b":"1970-01-01T00:00:00.000000006Z"}'
    )


def test_moments_that_no_column_holds(place: Parquet, ledger: Ledger) -> None:
    """Years before 1 and after 9999, in each unit; those at the edge are taken."""
    edge, most = 253_402_300_799, 2**63 - 1
    put(
        place,
        us=moments("us", 0, -most, edge * 10**6, 0, 0),
        ms=moments("ms", 0, 0, edge * 10**3, most, 0),
        d=pa.array([0, 0, 2_932_896, 0, 2_932_897], pa.date32()),
    )
    spec = of(place, {"us": "timestamp", "ms": "timestamp", "d": "date"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert len(found.rows) == 2 and found.rows[1]["ms"].year == 9999
    assert [at for _, at, _, _ in found.letters] == [1, 3, 4]
    assert found.reasons == {"type_mismatch": 3}


def test_int96_is_a_time_and_no_id(place: Parquet, ledger: Ledger) -> None:
    """What Spark writes by default: it is read in microseconds, so two of them may become one."""
    path = place.folder / "a.parquet"
    pq.write_table(
        pa.table({"at": moments("us", 0, -1, 10**15)}), path,
        use_deprecated_int96_timestamps=True,
    )  # fmt: skip
    spec = of(place, {"at": "timestamp"}, name="ids", record_id=["at"])
    (refused,) = run(ledger, spec, "r1").plan.refusals
    assert "INT96" in refused.detail
    spec = of(place, {"at": "timestamp"})
    run(ledger, spec, "r1")
    assert [row["at"].microsecond for row in settled(spec).rows] == [0, 999_999, 0]


def test_rows_of_megabytes(place: Parquet, ledger: Ledger) -> None:
    """Few of them are held at once; one that is too long is a dead letter."""
    text = ["a" * (4 << 20)] * 30 + ["b" * (65 << 20)]
    pq.write_table(
        pa.table({"n": range(31), "s": text}), place.folder / "a.parquet", use_dictionary=False,
    )  # fmt: skip
    spec = of(place, {"n": "bigint", "s": "string"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["n"] for row in found.rows] == list(range(30))
    assert found.reasons == {"too_long": 1} and len(found.letters[0][3]) == 4_096


def test_long_values_that_rows_share(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of some kilobytes is not hundreds of megabytes in memory."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(limits, "BLOCK_BYTES", 1 << 20)
    text = pa.array(["a" * 50_000, "b", "c" * 60_000])
    coded = pa.DictionaryArray.from_arrays(pa.array([*range(3)] * 500, pa.int32()), text)
    path = place.folder / "a.parquet"
    pq.write_table(pa.table({"n": range(1_500), "s": coded}), path, store_schema=False)
    assert path.stat().st_size < 30_000
    kinds = {"n": ddl.parse("bigint"), "s": ddl.parse("string")}
    with path.open("rb") as file:
        sizes = [
            block.table.nbytes
            for block in blocks(
                file, length=path.stat().st_size, claimed=(0, 1_500), owned=(0, 1_500),
                columns=kinds, exact=(), selection=None,
            )
        ]  # fmt: skip
    assert sum(sizes) > 50 << 20 and max(sizes) < 3 << 20
    spec = of(place, {"n": "bigint", "s": "string"})
    run(ledger, spec, "r1")
    found = settled(spec).rows
    assert [len(row["s"]) for row in found] == [50_000, 1, 60_000] * 500


def test_columns_that_nobody_declared_are_told(place: Parquet, ledger: Ledger) -> None:
    """They are not read; the log names them."""
    put(place, v=[1, 2], w=["a", "b"])
    done = run(ledger, of(place, {"v": "bigint"}), "r1")
    assert done.staged.ignored.keys == {"w": 2}


def test_repeats_are_dropped_by_record_id(place: Parquet, ledger: Ledger) -> None:
    """Within a file, and between files and batches; a copy is read, and all of it dropped."""
    put(place, v=["a", "b", "a"])
    spec = of(place, {"v": "string"}, record_id=["v"])
    run(ledger, spec, "r1")
    put(place, "b.parquet", v=["b", "c"])
    shutil.copy(place.folder / "a.parquet", place.folder / "c.parquet")
    assert run(ledger, spec, "r2").plan.refusals == ()
    found = settled(spec)
    assert sorted(row["v"] for row in found.rows) == ["a", "b", "c"]
    assert found.counts.records_read == 8 and len(found.decisions) == 5


# Attacks P22.
@pytest.mark.parametrize("how", ["in place", "by rename"])
def test_a_file_that_changed_waits_for_accept(
    place: Parquet, ledger: Ledger, how: str
) -> None:
    """Other content of the same size and time under a name that was read; the advice reads it."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    run(ledger, spec, "r1")
    status = path.stat()
    data = bytearray(path.read_bytes())
    at = data.index(b"e000003")
    data[at : at + 7] = b"e999999"
    target = path if how == "in place" else path.with_suffix(".new")
    target.write_bytes(data)
    target.rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    done = run(ledger, spec, "r2")
    assert done.plan.batch is None and refusals(ledger) == {path.name: "changed"}
    advised(ledger, done.plan.refusals[0].detail)
    run(ledger, spec, "r3")
    assert len(settled(spec, audited=False).rows) == 20


# Attacks P22.
def test_a_copy_by_position_waits_for_accept(place: Parquet, ledger: Ledger) -> None:
    """Of what is read and still there; once that is gone, the copy goes on as the same."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    run(ledger, spec, "r1")
    shutil.copy(path, path.with_name("copy.parquet"))
    done = run(ledger, spec, "r2")
    assert done.plan.batch is None and refusals(ledger) == {"copy.parquet": "copy"}
    path.unlink()
    done = run(ledger, spec, "r3")
    assert done.plan.batch is None and done.plan.refusals == ()
    assert settled(spec).ids == ids(0, 10)


# Attacks P22.
@pytest.mark.parametrize("limit", [10, 1_000])
def test_equal_files_in_one_plan(place: Parquet, ledger: Ledger, limit: int) -> None:
    """One is read, whatever a batch takes; the other one when somebody accepts it."""
    place.append(0, 10)
    shutil.copy(place.path, place.folder / "copy.parquet")
    spec = place.spec(limits={"records_per_batch_max": limit})
    (refused,) = run(ledger, spec, "r1").plan.refusals
    assert refusals(ledger) == {"copy.parquet": "copy"} and settled(spec).ids == ids(0, 10)
    advised(ledger, refused.detail)
    run(ledger, spec, "r2")
    assert run(ledger, spec, "r3").plan.batch is None
    assert settled(spec).ids == sorted(ids(0, 10) * 2)


# Attacks P9, P22.
@pytest.mark.parametrize("then", ["moved over its copy", "renamed", "edited and renamed"])
@pytest.mark.parametrize("by_position", [True, False])
def test_a_file_whose_inode_has_another_name(
    place: Parquet, ledger: Ledger, then: str, by_position: bool
) -> None:
    """Beside something that cannot be looked at: no two partitions are of one file."""
    place.append(0, 10)
    path, spec = place.path, place.spec() if by_position else by_id(place)
    other = path.with_name("other.parquet")
    if then == "moved over its copy":
        shutil.copy(path, other)
        if by_position:
            advised(ledger, run(ledger, spec, "r0").plan.refusals[0].detail)
    run(ledger, spec, "r1")
    os.symlink("loop.parquet", place.folder / "loop.parquet")
    taken, status = settled(spec).ids, path.stat()
    if then == "moved over its copy":
        other.rename(path)
        place.write(other, 50, 60)
    elif then == "edited and renamed":
        place.write(path, 50, 60)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
    if then != "moved over its copy":
        path.rename(other)
    run(ledger, spec, "r2")
    assert run(ledger, spec, "r3").plan.batch is None
    assert refusals(ledger) == {"loop.parquet": "unreadable"}
    new = [] if then == "renamed" else ids(50, 60)
    assert settled(spec, audited=not new).ids == [*taken, *new]


# Attacks P9, P22.
@pytest.mark.parametrize("then", ["moved", "moved over the other"])
def test_a_file_is_accepted_after_the_plan_that_sees_its_place(
    place: Parquet, ledger: Ledger, then: str
) -> None:
    """Before, nobody knows where the one is that had it; then the advice helps."""
    place.append(0, 10)
    place.append(10, 20)
    first, second = sorted(place.folder.iterdir())
    spec = place.spec()
    run(ledger, spec, "r1")
    if then == "moved":
        first.rename(place.folder / "z.parquet")
        shutil.copy(second, first)
        name, new = first, ids(10, 20)
    else:
        status = first.stat()
        place.write(first, 50, 60)
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
        first.rename(second)
        name, new = second, ids(50, 60)
    with pytest.raises(SourceError, match="was moved or replaced since the last plan") as error:
        accept_file(ledger, spec, str(name), same=False)
    assert error.value.next == f"semel run {spec.name}"
    run(ledger, spec, "r2")
    accept_file(ledger, spec, str(name), same=False)
    run(ledger, spec, "r3")
    assert run(ledger, spec, "r4").plan.batch is None and refusals(ledger) == {}
    assert settled(spec, audited=False).ids == sorted([*ids(0, 20), *new])


# Attacks P18, P22.
@pytest.mark.parametrize("first", ["planned", "accepted"])
@pytest.mark.parametrize("then", ["renamed", "put back"])
def test_a_file_of_which_nothing_was_read_yet(
    place: Parquet, ledger: Ledger, first: str, then: str
) -> None:
    """Where it is, it is read once, and none of it is gone."""
    place.append(0, 10)
    path, spec, taken = place.path, place.spec(), []
    if first == "accepted":
        run(ledger, spec, "r0")
        place.write(path, 50, 60)
        advised(ledger, run(ledger, spec, "r1").plan.refusals[0].detail)
        taken = ids(0, 10)
    else:
        place.write(path, 50, 60)
        abandon(ledger, plan(ledger, spec, "r1").batch.batch_id, "not now")
    away = path.with_name("z.parquet")
    if then == "put back":
        away = place.bench.folder / "away"
        path.rename(away)
        run(ledger, spec, "r2")
        assert refusals(ledger) == {path.name: "gone"}
        away.rename(path)
    else:
        path.rename(away)
    run(ledger, spec, "r3")
    assert refusals(ledger) == {}
    assert settled(spec, audited=not taken).ids == [*taken, *ids(50, 60)]


# Attacks P23.
def test_a_hole_of_a_file_that_misfits(place: Parquet, ledger: Ledger) -> None:
    """The batch that had it was abandoned after a later one was read: it is refused as a whole."""
    place.append(0, 20)
    limits = {"records_per_batch_max": 10}
    spec = place.spec(limits=limits)
    first = plan(ledger, spec, "r1").batch.batch_id
    run(ledger, spec, "r2")
    abandon(ledger, first, "not now")
    wrong = of(place, {"id": "string", "n": "int"}, limits=limits)
    assert plan(ledger, wrong, "r3").batch is None
    assert refusals(ledger) == {place.path.name: "schema"}
    spec = place.spec(limits=limits)
    run(ledger, spec, "r4")
    assert refusals(ledger) == {} and settled(spec).ids == ids(0, 20)


# Attacks P22.
def test_a_copy_that_is_accepted_is_read_again(place: Parquet, ledger: Ledger) -> None:
    """All of it is new records, once."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    run(ledger, spec, "r1")
    shutil.copy(path, path.with_name("copy.parquet"))
    advised(ledger, run(ledger, spec, "r2").plan.refusals[0].detail)
    run(ledger, spec, "r3")
    assert run(ledger, spec, "r4").plan.batch is None
    assert settled(spec).ids == sorted(ids(0, 10) * 2)


def alike(place: Parquet, count: int) -> None:
    """Files of other values with one footer: it has no statistics, and nothing is compressed."""
    for number in range(count):
        n = [*range(10 * number, 10 * number + 10)]
        made = pa.table({"id": [f"e{k:06d}" for k in n], "n": n, "at": moments("us", *n)})
        pq.write_table(
            made, place.folder / f"{number:03d}.parquet",
            compression="none", use_dictionary=False, write_statistics=False,
        )  # fmt: skip


# Attacks P22.
@pytest.mark.parametrize("change", [shutil.copy, shutil.move])
def test_many_files_of_one_footer(
    place: Parquet, ledger: Ledger, change: Callable[[Path, Path], object]
) -> None:
    """However many have it: a file of them that is moved goes on, and a copy of it is refused."""
    alike(place, 40)
    spec = place.spec()
    run(ledger, spec, "r1")
    for number in (0, 20, 39):
        name = place.folder / f"{number:03d}.parquet"
        change(name, name.with_name(f"z{number}.parquet"))
    assert run(ledger, spec, "r2").plan.batch is None
    copied = change is shutil.copy
    assert refusals(ledger) == {f"z{n}.parquet": "copy" for n in (0, 20, 39) if copied}
    if copied:
        advised(ledger, run(ledger, spec, "r3").plan.refusals[0].detail)
        run(ledger, spec, "r4")
        assert len(refusals(ledger)) == 2
    assert len(settled(spec).rows) == 400 + 10 * copied


# Attacks P22.
@pytest.mark.parametrize("lost", [False, True])
def test_content_that_was_accepted_away(place: Parquet, ledger: Ledger, lost: bool) -> None:
    """It is not read again under another name, also when the ledger was lost meanwhile."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    old = path.read_bytes()
    run(ledger, spec, "r1")
    place.write(path, 50, 60)
    advised(ledger, run(ledger, spec, "r2").plan.refusals[0].detail)
    run(ledger, spec, "r3")
    if lost:
        lose(ledger)
        adopt(ledger, spec, log=quiet)
        run(ledger, spec, "r4")
    path.with_name("old.parquet").write_bytes(old)
    done = run(ledger, spec, "r5")
    assert done.plan.batch is None
    assert refusals(ledger) == ({} if lost else {"old.parquet": "copy"})
    assert settled(spec).ids == [*ids(0, 10), *ids(50, 60)]
    if not lost:
        advised(ledger, done.plan.refusals[0].detail)
        run(ledger, spec, "r6")
        assert settled(spec).ids == sorted([*ids(0, 10) * 2, *ids(50, 60)])


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_to_its_end(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its footer can: it is refused alone, and read once the rest can be."""
    place.append(0, 10)
    place.append(10, 20)
    path, spec = place.path, place.spec()
    real = ParquetFiles.digest

    def digest(self: ParquetFiles, part: SealedPart) -> str:
        if part.name == str(path):
            raise OSError(code, os.strerror(code), part.name)
        return real(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(ParquetFiles, "digest", digest)
        run(ledger, spec, "r1")
        assert refusals(ledger) == {path.name: "unreadable"}
        failing = place.spec(source={"on_refused": "fail"})
        with pytest.raises(SourceError, match="unreadable"):
            plan(ledger, failing, "r2")
    place.spec()
    run(ledger, spec, "r3")
    assert refusals(ledger) == {} and settled(spec).ids == ids(0, 20)


# Attacks P22.
def test_names_that_change_places(place: Parquet, ledger: Ledger) -> None:
    """Each content goes on in its partition, and the name that is free is read as new."""
    place.append(0, 10)
    place.append(10, 20)
    first, second = sorted(place.folder.iterdir())
    spec = place.spec()
    run(ledger, spec, "r1")
    first.rename(place.folder / "x.parquet")
    second.rename(first)
    place.write(second, 20, 30)
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert settled(spec).ids == ids(0, 30)


# Attacks P13.
def test_one_file_under_two_names(place: Parquet, ledger: Ledger) -> None:
    """The name that is known is read; a hard link is refused."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    run(ledger, spec, "r1")
    os.link(path, path.with_name("0.parquet"))
    run(ledger, spec, "r2")
    assert refusals(ledger) == {"0.parquet": "hard link"}
    assert settled(spec).ids == ids(0, 10)


def test_files_that_are_touched_are_not_read_again(place: Parquet, ledger: Ledger) -> None:
    """Their content is what was read, whatever their times and owners are."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    run(ledger, spec, "r1")
    os.utime(path, (1, 1))
    shutil.copy(path, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)
    done = run(ledger, spec, "r2")
    assert done.plan.batch is None and done.plan.refusals == ()


@pytest.mark.parametrize("size", [0, 3, 600, -1])
def test_a_file_without_its_footer_waits(place: Parquet, ledger: Ledger, size: int) -> None:
    """It is being written. When nobody writes for closed_after, it is damaged."""
    place.append(0, 10)
    path, spec = place.path, place.spec()
    data = path.read_bytes()
    path.write_bytes(data[:size])
    done = run(ledger, spec, "r1")
    assert done.plan.batch is None and done.plan.refusals == ()
    assert done.plan.idle.waiting == (str(path),)
    os.utime(path, (1, 1))
    closed = place.spec(source={"closed_after": "1 hour"})
    run(ledger, closed, "r2")
    assert refusals(ledger) == {path.name: "damaged"}
    path.write_bytes(data)
    run(ledger, closed, "r3")
    assert settled(closed).ids == ids(0, 10)


def _longer(data: bytes) -> bytes:
    return data[:-8] + (1 << 30).to_bytes(4, "little") + data[-4:]


def _fewer(_: bytes) -> bytes:
    """Of 1,234 rows; the file and its row group say 1,000, and each column 1,234."""
    rows = {"id": ids(0, 1_234), "n": range(1_234), "at": moments("us", *range(1_234))}
    made = io.BytesIO()
    pq.write_table(pa.table(rows), made)
    data = made.getvalue()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    said, told = b"\xa4\x13", b"\xd0\x0f"
    parts = data[at:].split(said)
    return data[:at] + told.join((parts[0], said.join(parts[1:-1]), parts[-1]))


def _stating(rows: int) -> bytes:
    """1,234 rows in a file whose footer says another number, in each place that has one."""
    columns = {"id": ids(0, 1_234), "n": range(1_234), "at": moments("us", *range(1_234))}
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made)
    data = made.getvalue()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[:at] + data[at:].replace(_varint(1_234), _varint(rows))


def _varint(rows: int) -> bytes:
    """A number of two bytes as Thrift's compact protocol has it: zigzag, seven bits a byte."""
    return bytes([2 * rows & 0x7F | 0x80, 2 * rows >> 7])


def test_rows_behind_those_that_a_footer_states_are_not_seen(
    place: Parquet, ledger: Ledger
) -> None:
    """A footer of fewer rows, in each place: they are all that any reader sees."""
    spec = place.spec()
    path = place.folder / "a.parquet"
    path.write_bytes(_stating(1_000))
    assert pq.read_table(path).num_rows == 1_000
    run(ledger, spec, "r1")
    assert refusals(ledger) == {} and settled(spec).ids == ids(0, 1_000)


def test_rows_that_a_footer_states_and_the_pages_lack_are_dead_letters(
    place: Parquet, ledger: Ledger
) -> None:
    """A footer of more rows, in each place: `malformed` for each row that is not there, so that
    limits.quarantine_ratio_max stops the batch.
    """
    (place.folder / "a.parquet").write_bytes(_stating(1_300))
    with pytest.raises(TerminalError, match="quarantine_ratio_max"):
        run(ledger, place.spec(limits={"quarantine_ratio_max": 0.01}), "r1")
    spec = place.spec()
    run(ledger, spec, "r1")
    account = settled(spec)
    assert account.ids == ids(0, 1_234) and account.reasons == {"malformed": 66}


def _garbled(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size] + b"\xff" * size + data[-8:]


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "other format": ("damaged", lambda _: b'{"id": 1}\n' * 10),
    "footer longer than the file": ("damaged", _longer),
    "footer of garbage": ("damaged", _garbled),
    "footer of fewer rows": ("damaged", _fewer),
    "encrypted": ("encrypted", lambda data: b"PARE" + data[4:-4] + b"PARE"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_never_can_be_read_is_refused_alone(
    place: Parquet, ledger: Ledger, case: str
) -> None:
    """With its reason; the others are read."""
    place.append(0, 10)
    broken = place.path
    reason, change = BROKEN[case]
    broken.write_bytes(change(broken.read_bytes()))
    place.append(10, 20)
    spec = place.spec()
    run(ledger, spec, "r1")
    assert refusals(ledger) == {broken.name: reason}
    assert settled(spec).ids == ids(10, 20)


class Keys(encryption.KmsClient):
    """Keeps each key as it is."""

    def __init__(self, _: object) -> None:
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


def test_a_column_that_is_encrypted(place: Parquet, ledger: Ledger) -> None:
    """It refuses the file whose schema needs it, and no other."""
    rows = pa.table({"v": [1, 2], "secret": ["a", "b"]})
    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True
    )
    keys = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), how
    )
    path = place.folder / "a.parquet"
    with pq.ParquetWriter(path, rows.schema, encryption_properties=keys) as file:
        file.write_table(rows)
    (refused,) = run(
        ledger, of(place, {"secret": "string"}, name="secrets"), "r1"
    ).plan.refusals
    assert "column 'secret' is encrypted" in refused.detail
    spec = of(place, {"v": "bigint"})
    run(ledger, spec, "r1")
    assert [row["v"] for row in settled(spec).rows] == [1, 2]


@pytest.mark.parametrize("first", ["jsonl", "parquet"])
def test_a_source_of_another_format(
    place: Parquet, ledger: Ledger, first: str, bench: Workbench
) -> None:
    """Files that were read are gone to it; what is of its own format is read, and all is proven."""
    bench.write("in/a.jsonl", events(0, 10))
    place.append(10, 20)
    for name in sorted(("jsonl", "parquet"), reverse=first == "parquet"):
        spec = bench.spec(record_id=None) if name == "jsonl" else place.spec()
        run(ledger, spec, f"of {name}")
        run(ledger, spec, f"of {name} again")
    assert settled(spec).ids == ids(0, 20)


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [
        ("string", pa.array(["a", "b"], pa.string_view()), ["a"]),
        ("binary", pa.array([b"a", b"b"], pa.binary_view()), [b"a"]),
        ("array<string>", pa.array([["a"], ["b"]], pa.list_(pa.string_view())), [["a"]]),
    ],
)
def test_views_beside_a_bad_row(
    place: Parquet, ledger: Ledger, kind: str, column: pa.Array, values: list[object]
) -> None:
    put(place, v=column, x=[1.0, float("nan")])
    spec = of(place, {"v": kind, "x": "double"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["v"] for row in found.rows] == values and found.reasons == {"type_mismatch": 1}


@pytest.mark.parametrize("kind", ["decimal(5,2)", "decimal(6,3)", "decimal(8,3)"])
def test_a_decimal_beyond_its_precision(place: Parquet, ledger: Ledger, kind: str) -> None:
    """Its row is a dead letter, whatever the declared digits are."""
    raw = b"".join(n.to_bytes(16, "little") for n in (8_388_606, 5))
    put(place, v=pa.Array.from_buffers(pa.decimal128(5, 2), 2, [None, pa.py_buffer(raw)]))
    spec = of(place, {"v": kind})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert len(found.rows) == 1 and found.reasons == {"type_mismatch": 1}


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_are_audited(place: Parquet, ledger: Ledger, zone: str | None) -> None:
    """With a zone as without: DuckDB has another name for the type."""
    put(place, v=moments("ns", 1_700_000_000_123_456_789, -1, -1_000, zone=zone))
    spec = of(place, {"v": "timestamp"})
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == 3


FAR = {
    "days": ("date", pa.array([2**31 - 1, -(2**31), 2_932_897, 3], pa.date32()), 1),
    "ms": ("timestamp", moments("ms", 2**62, -(2**62), 253_402_300_800_000, 3, zone="UTC"), 1),
    "us": ("timestamp", moments("us", 2**63 - 1, -(2**63), -(2**63) + 1, 3, zone="UTC"), 1),
    "ns": ("timestamp", moments("ns", 2**63 - 1, -(2**63), -(2**63) + 1, -1), 4),
    "ns in a zone": ("timestamp", moments("ns", 2**63 - 1, -(2**63), -1_001, zone="UTC"), 3),
}


@pytest.mark.parametrize("case", FAR)
def test_the_farthest_times(place: Parquet, ledger: Ledger, case: str) -> None:
    """DuckDB takes some for infinity: the audit judges each by its number."""
    kind, column, count = FAR[case]
    put(place, v=column)
    spec = of(place, {"v": kind}, limits={"quarantine_ratio_max": 1.0})
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == count


def test_the_text_of_a_letter(place: Parquet, ledger: Ledger) -> None:
    """Decimals as digits, and each pair of a map."""
    pairs = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    put(place, m=pairs, d=pa.array([Decimal("0E-10")], pa.decimal128(20, 10)))
    spec = of(
        place, {"m": "map<string, bigint>", "d": "decimal(20,10)"},
        limits={"quarantine_ratio_max": 1.0},
    )  # fmt: skip
    run(ledger, spec, "r1")
    ((*_, raw),) = settled(spec).letters
    assert json.loads(raw) == {"m": [["a", 1], ["a", 2]], "d": "0.0000000000"}


def test_a_record_too_long_altogether(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All text counts, that of nested values too."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 1_000)
    long, short = "x" * 600, "y" * 300
    put(
        place, n=[0, 1, 2, 3, 4], a=[long, short, "", "", ""], b=[long, short, "", "", ""],
        v=pa.array([[], [short], [long, long], None, [short]]),
        s=pa.array([None, None, None, {"t": long * 2}, {"t": short}]),
    )  # fmt: skip
    kinds = {"n": "bigint", "a": "string", "b": "string", "v": "array<string>"}
    spec = of(
        place, kinds | {"s": "struct<t: string>"}, limits={"quarantine_ratio_max": 1.0}
    )
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["n"] for row in found.rows] == [1, 4] and found.reasons == {"too_long": 3}


def test_a_letter_longer_than_a_record(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is not too long is kept whole, though its bytes are more as base64."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 5_000)
    put(place, v=[b"x" * 4_900, b""], x=[float("nan"), 1.0])
    spec = of(place, {"v": "binary", "x": "double"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.reasons == {"type_mismatch": 1} and len(found.letters[0][3]) > 5_000


# Attacks S29.
def test_an_index_out_of_its_dictionary(place: Parquet, ledger: Ledger) -> None:
    """Its rows cannot be decoded; those of other row groups can."""
    path = put(place, n=[*range(8)], v=pa.array(["a", "b", "c", "a"] * 2).dictionary_encode())
    footer = pq.read_metadata(path).row_group(1).column(1)
    end = footer.dictionary_page_offset + footer.total_compressed_size
    data = bytearray(path.read_bytes())
    data[end - 2] = 0xFF
    path.write_bytes(data)
    spec = of(place, {"n": "bigint", "v": "string"}, limits={"quarantine_ratio_max": 1.0})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["n"] for row in found.rows] == [0, 1, 2, 3] and found.reasons == {"malformed": 4}


def test_bad_text_in_a_dictionary(place: Parquet, ledger: Ledger) -> None:
    """It costs the rows that point to it, and no others."""
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    put(place, v=pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 0], pa.int32()), text))
    spec = of(place, {"v": "string"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert len(found.rows) == 3 and found.reasons == {"encoding": 1}


# Attacks S29.
@pytest.mark.parametrize("by", ["the job", "the audit"])
def test_a_shortage_of_memory_is_no_damage(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Nothing is taken for damaged: the same again, with more memory, reads it."""
    put(place, v=[1, 2])
    spec = of(place, {"v": "bigint"})

    def short(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 4294967296 failed")

    if by == "the audit":
        run(ledger, spec, "r1")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(pq.ParquetFile, "iter_batches", short)
        audit(spec) if by == "the audit" else run(ledger, spec, "r1")
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == 2


# Attacks S29.
def test_a_step_of_more_bytes_than_an_array_has(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows are read at once; each row is read once."""
    path = place.folder / "a.parquet"
    pq.write_table(pa.table({"n": [*range(1_000)], "w": [0] * 1_000}), path)
    real, asked = pq.ParquetFile.iter_batches, []

    def large(self: pq.ParquetFile, size: int, *given: object, **more: object) -> Iterator:
        asked.append(size)
        for number, rows in enumerate(real(self, size, *given, **more)):
            if len(self.schema) == 2 and size > 100 and number == 1:
                what = "Nested data conversions not implemented for chunked array outputs"
                raise pa.ArrowNotImplementedError(what)
            yield rows

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", large)
    monkeypatch.setattr(limits, "PIECE_ROWS_MAX", 256)
    spec = of(place, {"n": "bigint"})
    run(ledger, spec, "r1")
    assert [row["n"] for row in settled(spec).rows] == [*range(1_000)]
    assert {256, 16} <= {*asked}


def test_statistics_that_lie(place: Parquet, ledger: Ledger) -> None:
    """The values count, also in the audit."""
    path = place.folder / "a.parquet"
    pq.write_table(pa.table({"v": [77_777, 5]}), path, compression="none", use_dictionary=False)
    known = pq.read_metadata(path).row_group(0).column(0)
    end = known.data_page_offset + known.total_compressed_size
    data = path.read_bytes()
    at = data.rindex((77_777).to_bytes(8, "little"), 0, end)
    path.write_bytes(data[:at] + (2**55 + 12_345).to_bytes(8, "little") + data[at + 8 :])
    spec = of(place, {"v": "bigint"})
    run(ledger, spec, "r1")
    assert {row["v"] for row in settled(spec).rows} == {2**55 + 12_345, 5}


# Attacks S29.
def test_metadata_that_end_the_process(place: Parquet, ledger: Ledger) -> None:
    """pyarrow aborts when some damaged metadata of a column are asked for, so nobody asks."""
    path = put(place, v=[1, 2, 3])
    data = bytearray(path.read_bytes())
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little") + 20
    assert data[at] == 2
    data[at] = 0
    path.write_bytes(data)
    spec = of(place, {"v": "bigint"}, limits={"quarantine_ratio_max": 1.0})
    run(ledger, spec, "r1")
    assert settled(spec).reasons == {"malformed": 3}


def test_a_footer_that_duckdb_does_not_read(place: Parquet, ledger: Ledger) -> None:
    """pyarrow opens it: so does the audit."""
    path = put(place, v=[1, 2, 3])
    data = bytearray(path.read_bytes())
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little") + 3
    assert data[at] == 44
    data[at] = 45
    path.write_bytes(data)
    with pytest.raises(duckdb.Error):
        duckdb.read_parquet(str(path))
    spec = of(place, {"v": "bigint"})
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == 3


def test_how_often_the_audit_opens_a_file(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads a claim at once, however many row groups it has; and after a file that ends
    DuckDB, another one reads the next file."""
    put(place, v=range(400))
    put(place, "b.parquet", v=range(400, 800))
    spec = of(place, {"v": "bigint"})
    run(ledger, spec, "r1")
    asked, ended, real = [], [], ClaimedParts.duck

    def duck(self: ClaimedParts) -> duckdb.DuckDBPyConnection:
        asked.append(found := real(self))
        if ended and len(asked) == 1:
            raise duckdb.FatalException("database has been invalidated")
        return found

    monkeypatch.setattr(ClaimedParts, "duck", duck)
    assert audit(spec).ok and len(asked) == 2 and asked[0] is asked[1]
    asked.clear()
    ended.append(True)
    assert audit(spec).ok and len(asked) == 2 and asked[0] is not asked[1]


# Attacks S29.
def test_a_damaged_row_group_costs_its_rows(place: Parquet, ledger: Ledger) -> None:
    """Each of its rows is a dead letter, the other row groups are read, and the audit agrees."""
    place.append(0, 20)
    path, spec = place.path, place.spec()
    damage(path, group=1)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == [*ids(0, 5), *ids(10, 20)]
    assert [(at, reason, raw) for _, at, reason, raw in found.letters] == [
        (at, "malformed", b"") for at in range(5, 10)
    ]


# Attacks S29.
def test_a_wrong_checksum_is_damage(place: Parquet, ledger: Ledger) -> None:
    """A page that can be decoded and is not what was written."""
    path = place.folder / "a.parquet"
    rows = pa.table({"v": range(100)})
    pq.write_table(
        rows, path, row_group_size=50, write_page_checksum=True, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 100] ^= 1
    path.write_bytes(data)
    spec = of(place, {"v": "bigint"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert [row["v"] for row in found.rows] == list(range(50, 100))
    assert found.reasons == {"malformed": 50}


def damage(path: Path, group: int) -> None:
    """Overwrite the pages of a row group."""
    column = pq.read_metadata(path).row_group(group).column(0)
    data = bytearray(path.read_bytes())
    at = column.dictionary_page_offset or column.data_page_offset
    data[at : at + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


def test_files_without_rows_are_read_once(place: Parquet, ledger: Ledger) -> None:
    """Many of them may be equal; nothing is refused, and no plan looks at them again."""
    for name in ("a", "b", "c"):
        put(place, f"{name}.parquet", v=pa.array([], pa.int64()))
    spec = of(place, {"v": "bigint"})
    done = run(ledger, spec, "r1")
    assert done.plan.batch is None and done.plan.refusals == ()
    known = ledger.rows("partitions", "by_id", partitions=list(range(1, 100)))
    assert [k["settled"] for k in known] == [True] * 3


def test_names_that_are_patterns(place: Parquet, ledger: Ledger) -> None:
    """No reader, and not the audit's, takes a file's name for a pattern."""
    for name in ("a*.parquet", "a[1].parquet", "{b}'\"?.parquet", " é\n.parquet"):
        place.write(place.folder / name, 0, 10) if name[0] == "a" and "*" in name else put(
            place, name, id=[name], n=[1], at=moments("us", 0)
        )
    spec = place.spec()
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == 13


def test_hostile_columns(place: Parquet, ledger: Ledger) -> None:
    """Names with dots and quotes, and columns of one name."""
    columns = {"a.b": [1], "a": pa.array([{"b": 2, "c": 3}]), 'q"': ["x"], "x y": [True]}
    pq.write_table(pa.table(columns), place.folder / "a.parquet")
    kinds = {"a.b": "bigint", 'q"': "string", "x y": "boolean"}
    spec = of(place, kinds)
    run(ledger, spec, "r1")
    assert settled(spec).rows == [{"a.b": 1, 'q"': "x", "x y": True}]
    twice = pa.Table.from_arrays([pa.array([1])] * 4, names=["a.b", 'q"', "x y", "x y"])
    pq.write_table(twice, place.folder / "b.parquet")
    (refused,) = run(ledger, spec, "r2").plan.refusals
    assert "column 'x y' is there twice" in refused.detail


def test_splits_take_whole_row_groups(place: Parquet, ledger: Ledger) -> None:
    """A batch that ends within a row group, and the next that begins there, have each row once."""
    place.append(0, 23)
    spec = place.spec(limits={"records_per_batch_max": 7})
    for number in range(5):
        run(ledger, spec, f"r{number}")
    found = settled(spec)
    assert found.ids == ids(0, 23)
    assert found.counts.bytes_read == place.path.stat().st_size


# Attacks P22.
def test_a_big_file_is_not_read_for_each_plan(
    place: Parquet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a file is taken once, whatever number of plans takes parts of it."""
    from semel.sources.files.parquet import ParquetFiles

    read = []
    original = ParquetFiles.digest
    monkeypatch.setattr(
        ParquetFiles, "digest", lambda self, part: read.append(part.name) or original(self, part)
    )
    place.append(0, 20)
    place.append(20, 40)
    spec = place.spec(limits={"records_per_batch_max": 10})
    for number in range(5):
        run(ledger, spec, f"r{number}")
    assert settled(spec).ids == ids(0, 40)
    assert len(read) == 2


# Attacks S6.
@pytest.mark.parametrize("then", ["moved", "touched", "copied"])
def test_a_file_that_is_elsewhere_after_the_plan(
    place: Parquet, ledger: Ledger, then: str
) -> None:
    """Renamed, touched, or copied and removed: the batch reads its content where it is."""
    place.append(0, 20)
    path, spec = place.path, place.spec()
    plan(ledger, spec, "r1")
    if then == "touched":
        path.touch()
    elif then == "moved":
        path.rename(path.with_name("z.parquet"))
    else:
        shutil.copy(path, path.with_name("z.parquet"))
        path.unlink()
    run(ledger, spec, "r1")
    assert run(ledger, spec, "r2").plan.batch is None
    assert settled(spec).ids == ids(0, 20)


# Attacks S6.
def test_a_file_that_changes_while_it_is_read(place: Parquet, ledger: Ledger) -> None:
    """The task that reads it fails, though each of its rows can be read."""
    from semel.model.split import Split
    from semel.pipeline.opening import open_source

    place.append(0, 20)
    spec = place.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    blocks = open_source(spec).read(
        Split(number=0, task=0, claim=claim, start=0, end=20), batch, _Nothing()
    )
    next(blocks)
    place.path.touch()
    with pytest.raises(SourceError, match="its content changed"):
        list(blocks)
    abandon(ledger, batch, "it changed")


class _Nothing:
    def update(self, _: bytes) -> None:
        """Takes what is hashed."""


def test_an_edited_file_is_found_by_the_audit(place: Parquet, ledger: Ledger) -> None:
    """A value that changed after it was read: the source is not what was claimed."""
    place.append(0, 20)
    spec = place.spec()
    run(ledger, spec, "r1")
    place.change()
    verdict = audit(spec)
    assert [check.name for check in verdict.checks if not check.ok] == ["source"]
