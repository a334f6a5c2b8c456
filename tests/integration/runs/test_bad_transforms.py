"""Transforms that fail, that change the columns, that are not deterministic; hostile partitions."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from semel.errors import LimitError, TerminalError
from semel.ledger import Ledger
from semel.plan.abandon import abandon
from semel.sinks.spec import archive_of
from semel.spark.engine import SparkEngine

TRANSFORMS = """
from pyspark.sql import functions as F, types as T

def same(frame):
    return frame.select("id", "n", "at")

def alike(frame):
    return frame

def raises(frame):
    raise ValueError("no such region")

def absent(frame):
    return frame.select("absent")

def no_frame(frame):
    return [1]

@F.udf(T.LongType())
def inverse(n):
    return 100 // n

def raises_in_udf(frame):
    return frame.withColumn("n", inverse("n"))

def without_id(frame):
    return frame.select("n", "_semel_source", "_semel_offset")

def renamed(frame):
    return frame.withColumnRenamed("id", "key").select("key", "n", "_semel_source", "_semel_offset")

def nothing(frame):
    return frame.where("n < 0")

def some(frame):
    return frame.where(F.rand() < 0.5)

def dice(frame):
    return frame.withColumn("n", (F.rand() * 1000000).cast("bigint"))

def nan(frame):
    return frame.withColumn("x", F.when(F.col("n") == 3, F.lit(float("nan"))).otherwise(F.lit(1.0)))
"""


def spec_with(bench: Workbench, *functions: str, **changes: object):
    """A pipeline with these functions of TRANSFORMS, in order."""
    (bench.transforms / "bad_transforms.py").write_text(TRANSFORMS)
    return bench.spec(transforms=[f"bad_transforms:{name}" for name in functions], **changes)


def rows_of(sink: Path) -> list[dict]:
    """The output as a reader of Hive folders sees it, with the partition's values as text."""
    markers = (archive_of(sink) / "markers").glob("*.json")
    files = [f for m in markers for f in json.loads(m.read_text())["files"] if f["kind"] == "data"]
    found = []
    for file in files:
        rows = ds.dataset(sink / file["path"], format="parquet").to_table().to_pylist()
        found += [(str(Path(file["path"]).parent), row) for row in rows]
    return found


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "ValueError: no such region"),
        ("absent", "absent"),
        ("no_frame", "not a DataFrame|AttributeError"),
        ("raises_in_udf", "ZeroDivisionError"),
        ("missing", "does not define a function 'missing'"),
    ],
)
def test_a_transform_that_fails_stops_the_batch(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, function: str, said: str
) -> None:
    """The error names the transform and what it raised, and is terminal: a retry cannot help. What
    Spark refuses of a frame, whoever made it, is shown with SQL.

    Nothing is committed or seen; without the transform, abandoned and planned anew, all is there.
    """
    spec = spec_with(bench, "same", function)
    bench.write("in/a.jsonl", events(0, 10))
    with pytest.raises(TerminalError, match=said) as raised:
        run(ledger, spec, "r1", engine=spark_engine)
    assert f"bad_transforms:{function}" in str(raised.value)
    assert settled(spec).ids == []
    abandon(ledger, 1, "its transform is wrong")
    mended = bench.spec()
    run(ledger, mended, "r1")
    assert settled(mended).ids == ids(0, 10)


@pytest.mark.rest
def test_times_pass_through_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A timestamp is the same moment behind a transform, in UTC, whatever Spark's own zone is."""
    spec = spec_with(bench, "same")
    bench.write("in/a.jsonl", events(0, 3))
    spark_engine.session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        run(ledger, spec, "r1", engine=spark_engine)
    finally:
        spark_engine.session.conf.set("spark.sql.session.timeZone", "UTC")
    bench.write("in/a.jsonl", events(3, 5), mode="ab")
    run(ledger, spec, "r2", engine=spark_engine)
    found = settled(spec)
    assert {row["at"] for row in found.rows} == {datetime(2026, 1, 1, tzinfo=UTC)}
    assert found.ids == ids(0, 5)


@pytest.mark.rest
def test_a_transform_module_that_cannot_be_imported(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A syntax error is told with its file; put right, the same batch goes on."""
    spec = spec_with(bench, "same")
    path = bench.transforms / "bad_transforms.py"
    path.write_text("def same(frame:\n")
    bench.write("in/a.jsonl", events(0, 10))
    with pytest.raises(TerminalError, match=r"bad_transforms\.py raised SyntaxError"):
        run(ledger, spec, "r1", engine=spark_engine)
    path.write_text(TRANSFORMS)
    run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == ids(0, 10)


@pytest.mark.parametrize("function", ["without_id", "renamed", "nothing"])
def test_a_transform_may_drop_the_id_or_the_record(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, function: str
) -> None:
    """Ids are registered before transforms: repeats are dropped, also when the output has no id, or
    no row at all. Each record is accounted for.
    """
    spec = spec_with(bench, function, sink={"position_columns": True})
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3), b"{bad"])
    run(ledger, spec, "r1", engine=spark_engine)
    bench.write("in/a.jsonl", events(5, 15), mode="ab")
    run(ledger, spec, "r2", engine=spark_engine)
    found = settled(spec)
    written = [] if function == "nothing" else list(range(15))
    assert sorted(row["n"] for row in found.rows) == written
    assert (found.counts.survivors, len(found.decisions)) == (15, 8)
    assert found.reasons == {"malformed": 1}


def test_chance_in_a_transform_gives_one_outcome(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """With rand() each record is there once at most, and what is counted is what is written."""
    spec = spec_with(bench, "dice", "some", sink={"position_columns": True})
    for part in range(3):
        bench.write(f"in/{part}.jsonl", [*events(100 * part, 100 * part + 100), *events(0, 5)])
    counts = run(ledger, spec, "r1", engine=spark_engine).finalized.counts
    found = settled(spec)
    assert counts.survivors == 300
    assert 0 < counts.rows_written == len(found.ids) == len(set(found.ids)) < 300


def test_partition_by_must_survive_the_transforms(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A transform that drops the folder's column is refused with the columns it gave."""
    spec = spec_with(bench, "same", sink={"partition_by": ["region"]})
    bench.write("in/a.jsonl", events(0, 5))
    with pytest.raises(TerminalError, match=r"partition_by \['region'\].*\['id', 'n', 'at'\]"):
        run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == []


HOSTILE = ["a/b", "../../up", "..", ".", "", "a=b", "a b", "ä\n", "%2F", None, "\0", "x" * 150]


@pytest.mark.rest
def test_hostile_values_stay_within_the_sink(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """Values are escaped in folder names: none leads out of the sink, no two fall together.

    Without transforms and behind one the folders are the same.
    """
    schema = {"id": "string", "n": "bigint", "place": "string"}
    sink = {"partition_by": ["place"]}
    records = [{"id": str(n), "n": n, "place": place} for n, place in enumerate(HOSTILE)]
    bench.write("in/a.jsonl", records)
    (bench.transforms / "bad_transforms.py").write_text(TRANSFORMS)
    plain = bench.spec("plain", source={"schema": schema}, sink={**sink, "path": "out/plain"})
    run(ledger, plain, "r1")
    behind = bench.spec(
        "behind",
        source={"schema": schema},
        sink={**sink, "path": "out/behind"},
        transforms=["bad_transforms:alike"],
    )
    run(ledger, behind, "r1", engine=spark_engine)
    found = rows_of(plain.sink_path())
    assert len({folder for folder, _ in found}) == len({place or None for place in HOSTILE})
    assert sorted(row["n"] for _, row in found) == list(range(len(HOSTILE)))
    key = lambda row: row[1]["n"]  # noqa: E731
    assert sorted(found, key=key) == sorted(rows_of(behind.sink_path()), key=key)
    assert {p.name for p in (bench.data / "out").iterdir()} == {"plain", "behind", "_semel"}
    for spec in (plain, behind):
        settled(spec)


def test_a_partition_value_too_long_for_a_folder(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """No file system takes it: an error of a task keeps its class, nothing is committed."""
    made = bench.transforms / "long.sql"
    made.write_text("SELECT id, n, repeat('ä', 200) AS place FROM records")
    spec = bench.spec(transforms=["long.sql"], sink={"partition_by": ["place"]})
    bench.write("in/a.jsonl", events(0, 1))
    with pytest.raises(TerminalError, match=r"the folder of 'place' would be longer than 255"):
        run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).rows == []


@pytest.mark.rest
def test_nan_is_not_made_null(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """In a JSON Lines sink the batch stops and says which column; Parquet holds what was made."""
    bench.write("in/a.jsonl", events(0, 5))
    spec = spec_with(bench, "nan", sink={"format": "jsonl"})
    with pytest.raises(TerminalError, match="column 'x' holds NaN"):
        run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == []
    spec = spec_with(bench, "nan", name="other", sink={"path": "out/other"})
    run(ledger, spec, "r1", engine=spark_engine)
    assert sum(row["x"] != row["x"] for _, row in rows_of(spec.sink_path())) == 1
