"""Old times in Parquet, whose writers numbered them by another calendar; and INT96."""

import json
import shutil
import struct
import zipfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import refusals, run, settled
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Parquet
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel_local.stack import maven

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
POM = FIXTURES / "spark" / "testdata-pom.xml"
KEPT = Path(__file__).resolve().parents[3] / ".semel" / "spark"
SPARK = "org.apache.spark."
FOOTERS = {
    "nobody": ({}, "us", ""),
    "spark-2.4.5": ({f"{SPARK}sql.parquet.row.metadata": "{}"}, "us", "dt"),
    "spark-2.4.6": ({f"{SPARK}version": "2.4.6"}, "us", "dt"),
    "spark-2.4.8-int96": ({f"{SPARK}version": "2.4.8"}, "INT96", "dt"),
    "spark-3.0": ({f"{SPARK}version": "3.0.3"}, "us", ""),
    "spark-3.0-int96": ({f"{SPARK}version": "3.0.3"}, "INT96", "t"),
    "spark-3.2": ({f"{SPARK}version": "3.2.0", f"{SPARK}timeZone": "UTC"}, "us", ""),
    "spark-3.2-int96": ({f"{SPARK}version": "3.2.0"}, "INT96", ""),
    "legacy": ({f"{SPARK}version": "3.2.0", f"{SPARK}legacyDateTime": ""}, "ms", "dt"),
    "legacy-int96": ({f"{SPARK}version": "3.2.0", f"{SPARK}legacyINT96": ""}, "INT96", "t"),
    "legacy-unused": ({f"{SPARK}version": "3.2.0", f"{SPARK}legacyINT96": ""}, "us", ""),
    "hive": ({"writer.date.proleptic": "true", "writer.zone.conversion.legacy": "false"}, "us", ""),
    "hive-dates": ({"writer.date.proleptic": "false"}, "INT96", "d"),
    "hive-times": ({"writer.zone.conversion.legacy": "true"}, "INT96", "t"),
}  # fmt: skip
"""Metadata of a footer, the unit of its times, and which of dates and times are in doubt."""

DAY, TIME = date(1582, 10, 15), datetime(1900, 1, 1, tzinfo=UTC)
"""The first ones that nobody doubts."""


@pytest.fixture
def place(bench: Workbench) -> Parquet:
    return Parquet(bench)


def of(place: Parquet, schema: dict[str, str]) -> Spec:
    """A pipeline over the folder that no dead letter stops."""
    source = {"path": "in/*.parquet", "format": "parquet", "schema": schema}
    return place.bench.spec(
        record_id=None, source=source, limits={"quarantine_ratio_max": 1.0}
    )


# Attacks P28.
def test_times_that_a_footer_puts_in_doubt(place: Parquet, ledger: Ledger) -> None:
    """Each is a dead letter, within nested values too; all others are read, also of such files."""
    day, time = DAY - timedelta(days=1), TIME - timedelta(milliseconds=1)
    for name, (metadata, unit, _) in FOOTERS.items():
        kind = pa.timestamp("us" if unit == "INT96" else unit, "UTC")
        table = pa.table({
            "d": pa.array([DAY, day, DAY, DAY, DAY, None]),
            "t": pa.array([TIME, TIME, time, TIME, TIME, None], kind),
            "s": pa.array([{"d": d} for d in (DAY, DAY, DAY, day, DAY, None)]),
            "l": pa.array([[TIME, t] for t in [TIME] * 4 + [time, None]], pa.list_(kind)),
        })  # fmt: skip
        pq.write_table(
            table.replace_schema_metadata(metadata), place.folder / f"{name}.parquet",
            use_deprecated_int96_timestamps=unit == "INT96",
        )  # fmt: skip
    kinds = {"d": "date", "t": "timestamp", "s": "struct<d: date>", "l": "array<timestamp>"}
    spec = of(place, kinds)
    run(ledger, spec, "r1")
    doubts = {"d": [1, 3], "t": [2, 4]}
    found = settled(spec)
    assert [(name, at) for name, at, _, _ in found.letters] == sorted(
        (f"{name}.parquet", at)
        for name, (_, _, doubted) in FOOTERS.items()
        for kind in doubted
        for at in doubts[kind]
    )
    assert found.reasons.keys() == {"type_mismatch"}
    assert b'"d":"1582-10-14"' in dict((at, raw) for _, at, _, raw in found.letters)[1]


EPOCH = 2_440_588
"""The Julian day of 1970-01-01."""

FAR = {
    1: (EPOCH + 106_751_992, 5_000_000, "294247-01-11T00:00:00.005000Z"),
    4: (EPOCH + 213_503_982 + 20_000, 2_000, "586578-10-22T00:00:00.000000Z"),
    5: (2**31 - 1, 1_000, "5874898-06-03T00:00:00.000000Z"),
    8: (1, 0, "-4713-11-25T00:00:00.000000Z"),
}  # fmt: skip
"""Rows with a time that no column holds: its Julian day, nanoseconds, and how a letter has it. In
microseconds Arrow gives the first three as times of the years -290308, 2024 and 29358."""


# Attacks P28.
@pytest.mark.parametrize("nested", [False, True])
def test_int96_of_far_years(place: Parquet, ledger: Ledger, nested: bool) -> None:
    """Each is a dead letter with its true time; its neighbours keep their microseconds."""
    path, per_day = place.folder / "a.parquet", 86_400_000_000
    marks = [day * per_day + day % 1_000_000 for day in range(1_000_000, 1_000_010)]
    at = pa.array([*marks, None], pa.timestamp("us"))
    held = pa.array([None if t is None else [t, t] for t in at.to_pylist()], pa.list_(at.type))
    pq.write_table(
        pa.table({"n": range(11), "at": held if nested else at}), path,
        use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none",
        row_group_size=4,
    )  # fmt: skip
    data = path.read_bytes()
    for row in range(10):
        day, nanos, _ = FAR.get(row, (EPOCH + 20_000, row * 1_000, ""))
        old = struct.pack("<qi", row * 1_000, EPOCH + 1_000_000 + row)
        assert data.count(old) == 1 + nested
        data = data.replace(old, struct.pack("<qi", nanos, day))
    path.write_bytes(data)
    spec = of(place, {"n": "bigint", "at": "array<timestamp>" if nested else "timestamp"})
    run(ledger, spec, "r1")
    found = settled(spec)
    known = [datetime(2024, 10, 4, microsecond=n, tzinfo=UTC) for n in range(10) if n not in FAR]
    expected = [*([t, t] if nested else t for t in known), None]
    assert [row["at"] for row in found.rows] == expected
    assert found.reasons == {"type_mismatch": len(FAR)}
    letters = {row: json.loads(raw)["at"] for _, row, _, raw in found.letters}
    assert letters == {row: [text] * 2 if nested else text for row, (*_, text) in FAR.items()}


# Attacks P23.
def test_values_that_readers_take_for_nothing(place: Parquet, ledger: Ledger) -> None:
    """A type without values is read as nulls; a file of it that has values is refused."""
    path = place.folder / "a.parquet"
    polars.DataFrame({"n": [1, 2], "v": [None, None]}).write_parquet(path)
    data = bytearray(path.read_bytes())
    assert pq.read_metadata(path).row_group(0).column(1).statistics.null_count == 2
    # The footer of the other one counts no null in the second column.
    data[data.rindex(b"<6\x04") + 2] = 0
    spec = of(place, {"n": "bigint", "v": "string"})
    run(ledger, spec, "r1")
    assert [row["v"] for row in settled(spec).rows] == [None, None]
    (place.folder / "b.parquet").write_bytes(data)
    other = pq.read_metadata(place.folder / "b.parquet")
    assert other.row_group(0).column(1).statistics.null_count == 0
    (refused,) = run(ledger, spec, "r2").plan.refusals
    assert "column 'v' has values, but its type makes readers return null" in refused.detail


SPARKS = (
    "date_v2_4_5", "date_v2_4_6", "date_v3_2_0",
    *(
        f"timestamp_{kind}_v{version}"
        for kind in ("int96_dict", "int96_plain", "micros", "millis")
        for version in ("2_4_5", "2_4_6", "3_2_0")
    ),
)  # fmt: skip
"""Files of old times, made by three versions of Spark, the last one in legacy mode."""

ONE, THREE = "struct<one: string, two: string, three: string>", {"type_mismatch": 8}
OTHERS = {
    "dec-in-fixed-len": ({"fixed_len_dec": "decimal(10,2)"}, 16),
    "dec-in-i32": ({"i32_dec": "decimal(5,2)"}, 16),
    "dec-in-i64": ({"i64_dec": "decimal(10,2)"}, 16),
    "decimal32-written-as-64-bit-dict.snappy": ({"_c0": "decimal(3,1)"}, 2048),
    "decimal32-written-as-64-bit.snappy": ({"_c0": "decimal(9,1)"}, 10),
    "delta_length_byte_array": ({"FRUIT": "string"}, {"malformed": 1000}),
    "group-field-with-enum-as-logical-annotation": ({"group": "string"}, "damaged"),
    "interval-using-fixed-len-byte-array": ({"my_list": "struct<duration: string>"}, "schema"),
    "malformed-file-offset": ({"Date": "timestamp", "Temp": "double"}, 3650),
    "nested-array-struct": (
        {"myComplex": "array<struct<id: int, repeatedMessage: array<struct<someId: int>>>>"}, 3
    ),
    "old-repeated-int": ({"repeatedInt": "array<int>"}, 1),
    "old-repeated-message": ({"inner": f"array<{ONE}>"}, 1),
    "parquet-1217": ({"col": "int"}, 5),
    "parquet-thrift-compat.snappy": (
        {"byteColumn": "int", "maybeStringColumn": "string", "intSetColumn": "array<int>"}, 10
    ),
    "proto-repeated-string": ({"myString": "array<string>"}, 3),
    "proto-repeated-struct": ({"inner": f"array<{ONE}>"}, 1),
    "proto-struct-with-array": ({"repeatedMessage": "array<struct<someId: int>>"}, 1),
    "proto-struct-with-array-many": ({"inner": f"array<{ONE}>"}, 3),
    "tagged_int": ({"_c0": "int"}, 4),
    "tagged_long": ({"_c0": "bigint"}, 4),
    "timemillis-in-i64": ({"time": "timestamp"}, 3),
    "timestamp-nanos": ({"name": "string", "birthday": "timestamp"}, 3),
}  # fmt: skip
"""Files of parquet-mr, with protobuf and Thrift, Impala, Arrow and parquet4s: a schema, and rows,
reasons of dead letters, or the reason of a refusal."""


def of_spark() -> dict[str, tuple[dict[str, str], object]]:
    """All files that Spark's tests read, each with what becomes of it."""
    kinds = {f"before_1582_{name}.snappy": name.partition("_")[0] for name in SPARKS}
    old = {name: ({"dict": kind, "plain": kind}, THREE) for name, kind in kinds.items()}
    return old | OTHERS


@pytest.fixture(scope="session")
def testdata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that Spark's tests read, which Maven fetches."""
    try:
        jars = maven.fetch(POM, KEPT, "the test data of Spark")
    except SemelError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("testdata")
    with zipfile.ZipFile(next(jars.glob("spark-sql*tests.jar"))) as jar:
        for name in jar.namelist():
            if name.startswith("test-data/") and name.endswith(".parquet"):
                (folder / Path(name).name).write_bytes(jar.read(name))
    return folder


@pytest.mark.proof
def test_the_files_of_sparks_tests_are_all_named(testdata: Path) -> None:
    """The table has each of them."""
    assert {path.name.removesuffix(".parquet") for path in testdata.iterdir()} == {*of_spark()}


# Attacks P23, P28.
@pytest.mark.proof
@pytest.mark.parametrize("name", of_spark())
def test_files_of_many_writers(
    place: Parquet, ledger: Ledger, testdata: Path, name: str
) -> None:
    """Each is taken whole, refused, or all dead letters, and the audit agrees."""
    kinds, becomes = of_spark()[name]
    shutil.copy(testdata / f"{name}.parquet", place.folder)
    spec = of(place, kinds)
    run(ledger, spec, "r1")
    if isinstance(becomes, str):
        assert refusals(ledger) == {f"{name}.parquet": becomes}
        return
    found = settled(spec)
    rows, reasons = (becomes, {}) if isinstance(becomes, int) else (0, becomes)
    assert (len(found.rows), found.reasons) == (rows, reasons)


WRITERS = {
    "arrow": lambda path, table: pq.write_table(table, path),
    "polars": lambda path, table: polars.from_arrow(table).write_parquet(path),
    "duckdb": lambda path, table: duckdb.from_arrow(table).write_parquet(str(path)),
}
OLD = [date(1, 1, 1), date(1001, 1, 1), date(1582, 10, 14), date(9999, 12, 31)]


# Attacks P28.
@pytest.mark.parametrize("writer", WRITERS)
def test_old_days_of_writers_without_a_past(
    place: Parquet, ledger: Ledger, writer: str
) -> None:
    """They are read as they are: no footer puts them in doubt."""
    times = [datetime(d.year, d.month, d.day, 12, tzinfo=UTC) for d in OLD]
    table = pa.table({"d": OLD, "t": pa.array(times, pa.timestamp("us", "UTC"))})
    WRITERS[writer](place.folder / "a.parquet", table)
    spec = of(place, {"d": "date", "t": "timestamp"})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert ([row["d"] for row in found.rows], [row["t"] for row in found.rows]) == (OLD, times)


# Attacks P28.
@pytest.mark.proof
@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_old_days_of_this_spark(
    place: Parquet, ledger: Ledger, spark: Any, mode: str, kind: str
) -> None:
    """In legacy mode all but the last are dead letters; else they are what Spark reads."""
    for key, value in {
        "spark.sql.parquet.datetimeRebaseModeInWrite": mode,
        "spark.sql.parquet.int96RebaseModeInWrite": mode,
        "spark.sql.parquet.outputTimestampType": kind,
    }.items():
        spark.conf.set(key, value)
    days = ", ".join(f"(DATE'{day}', TIMESTAMP'{day} 12:00:00Z')" for day in map(str, OLD))
    out = place.bench.folder / "spark"
    spark.sql(f"SELECT * FROM VALUES {days} AS (d, t)").coalesce(1).write.parquet(str(out))
    (file,) = out.glob("*.parquet")
    shutil.copy(file, place.folder)
    spec = of(place, {"d": "date", "t": "timestamp"})
    run(ledger, spec, "r1")
    found = settled(spec)
    taken = OLD if mode == "CORRECTED" else OLD[-1:]
    assert [row["d"] for row in found.rows] == taken
    assert [row["t"].date() for row in found.rows] == taken
    assert len(found.letters) == len(OLD) - len(taken)
