"""Windows of time as folders of the output, and its shards: by the verbs, read by every reader."""

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import pyarrow.dataset as ds
import pytest

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.compares import compared
from fixtures.batches.replays import broken, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sources import Upstream
from fixtures.files.markers import snippet
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel import reader
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.errors import LimitError, RetryableError, StateError, TerminalError
from semel.formats.output import rows_of
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.spark.engine import Outcome, SparkEngine
from semel.stage import stage
from semel.stage.job import StageJob

BERLIN = ZoneInfo("Europe/Berlin")
BY_HOUR = {"window": "1 hour", "of": "at", "name": "hour", "zone": "Europe/Berlin"}
NOTHING = "__HIVE_DEFAULT_PARTITION__"


def day(year: int, month: int, number: int) -> list[dict]:
    """A record for each half hour of a day in Berlin, and two without a time."""
    midnight, half = datetime(year, month, number, tzinfo=BERLIN), timedelta(minutes=30)
    start, end = (at.astimezone(UTC) for at in (midnight, midnight + timedelta(days=1)))
    times = [start + n * half for n in range((end - start) // half)]
    found = [{"id": f"{t:%m%d%H%M}", "n": t.day, "at": t.isoformat()} for t in times]
    return [*found, *({"id": f"none{month}{n}", "n": 0, "at": None} for n in range(2))]


def hours(records: list[dict]) -> Counter[str | None]:
    """How many of them are in each hour of Berlin, by Python's own zones."""
    times = (record["at"] and datetime.fromisoformat(record["at"]) for record in records)
    return Counter(t and t.astimezone(BERLIN).strftime("%Y-%m-%dT%H%z") for t in times)


def files(spec: Spec) -> dict[str, list[Path]]:
    """The data files that markers list, by folder."""
    found = defaultdict(list)
    for marker in markers_of(spec):
        for file in marker.of_kind(Kind.DATA):
            path = marker.path_of(file)
            found[str(path.parent.relative_to(spec.sink_path()))].append(path)
    return dict(found)


def places(spec: Spec) -> dict[tuple[str, str], list[str]]:
    """The ids in each folder and shard, by the files' names: of `-sN`."""
    found = defaultdict(list)
    for marker in markers_of(spec):
        for file in marker.of_kind(Kind.DATA):
            shard = re.search(r"-s(\d+)\.", file.path)
            key = str(Path(file.path).parent), shard and shard[1]
            for table in rows_of(marker, file, ["id"]):
                found[key] += table.column("id").to_pylist()
    return dict(found)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_the_days_on_which_a_clock_changes(bench: Workbench, ledger: Ledger, form: str) -> None:
    """A day of 23 hours and one of 25, each in a folder of its own, for whoever reads them."""
    records = [*day(2013, 3, 31), *day(2013, 10, 27), *day(2013, 7, 1)]
    wanted = hours(records)
    assert wanted["2013-10-27T02+0200"] == wanted["2013-10-27T02+0100"] == wanted[None] / 3 == 2
    assert len(wanted) == 23 + 25 + 24 + 1 and "2013-03-31T02+0100" not in wanted
    spec = bench.spec(sink={"format": form, "partition_by": ["n", BY_HOUR]})
    bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    settled(spec)
    sink = spec.sink_path()
    names = {f"n={r['n']}/hour={hour or NOTHING}" for r in records for hour in hours([r])}
    assert set(files(spec)) == names
    by_semel = reader.dataset(sink).to_table(["id", "at", "hour"]).to_pylist()
    assert Counter(row["hour"] for row in by_semel) == wanted
    kind = "json" if form == "jsonl" else form
    if kind != "csv":  # Of CSV, pyarrow takes the types of all files from one.
        there = ds.dataset(sink, format=kind, partitioning="hive").to_table(["hour"])
        assert Counter(there.column("hour").to_pylist()) == wanted
    with duckdb.connect() as engine:
        read = f"read_{kind}('{sink}/*/*/*', hive_partitioning = true)"
        told = engine.execute(f"SELECT hour, count(*) FROM {read} GROUP BY hour").fetchall()
    assert dict(told) == wanted
    first = next(row for row in by_semel if row["id"] == "10270030")
    assert first["hour"] == "2013-10-27T02+0200" and first["at"].hour == 0


def test_weeks_of_days(bench: Workbench, ledger: Ledger) -> None:
    """A date is a day by any clock; beside its own folder, too, and where it is text in files."""
    schema = {"id": "string", "day": "date"}
    days = ["2024-02-28", "2024-03-03", "2024-03-04", None, "0001-01-01", "9999-12-31"]
    bench.write("in/a.jsonl", ({"id": str(n), "day": d} for n, d in enumerate(days)))
    week = {"window": "7 days", "of": "day", "name": "week"}
    wanted = [("2024-02-26", 2), ("2024-03-04", 1), (None, 1), ("0001-01-01", 1), ("9999-12-27", 1)]
    for form, by in (("parquet", [week]), ("jsonl", [week]), ("csv", [week, "day"])):
        spec = bench.spec(
            f"p_{form}", source={"schema": schema}, sink={"format": form, "partition_by": by}
        )
        run(ledger, spec, "r1")
        settled(spec)
        found = reader.dataset(spec.sink_path()).to_table(["week"]).column("week").to_pylist()
        assert Counter(found) == dict(wanted)


HOSTILE = [
    "null", "NULL", "Null", "__HIVE_DEFAULT_PARTITION__", "2024-01-01", "2024-1-1", "01234", "1234",
    "1234.0", "1e3", "true", "TRUE", "nan", "a/place=b", "%41", "A", "a", "a b", "a+b", "=", "..",
    "\u00e9", "e\u0301", "\u0436", "\u6f22\U0001f600", None, "",
]  # fmt: skip


# Attacks L9.
@pytest.mark.parametrize("how", ["python", "duckdb", "spark"])
def test_the_readers_of_the_readme_keep_keys_apart(
    bench: Workbench,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    how: str,
) -> None:
    """As printed, each gives the values of partition columns as they were; of an empty text null,
    as Hive has it.
    """
    schema = {"id": "string", "place": "string", "n": "bigint"}
    spec = bench.spec(
        "flights", source={"schema": schema}, sink={"path": "out/flights", "partition_by": ["place"]}
    )
    records = [{"id": f"{n}", "place": place, "n": n} for n, place in enumerate(HOSTILE)]
    bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    assert audit(spec).ok and compared(ledger, spec).equal
    monkeypatch.chdir(bench.data.parent)
    if how == "python":
        scope: dict[str, object] = {}
        exec(snippet("Python:").replace("data/out", str(bench.data / "out")), scope)
        rows = scope["table"].to_pylist()
    elif how == "duckdb":
        text = snippet("DuckDB:").replace("data/out", str(bench.data / "out"))
        with duckdb.connect() as connection:
            rows = connection.sql(text.replace("count(*)", "*")).to_arrow_table().to_pylist()
    else:
        spark = request.getfixturevalue("spark")
        name = "spark.sql.sources.partitionColumnTypeInference.enabled"
        before = spark.conf.get(name)
        try:
            scope = {"spark": spark}
            exec(snippet("Spark:").replace("data/out", str(bench.data / "out")), scope)
            rows = [row.asDict() for row in scope["flights"].collect()]
        finally:
            spark.conf.set(name, before)
    assert {row["id"]: row["place"] for row in rows} == {
        record["id"]: record["place"] or None for record in records
    }
    assert len(rows) == len(records)


# Attacks S27.
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("columns", [["place"], [f"c{n}" for n in range(12)]])
def test_a_value_that_no_folder_holds_is_a_dead_letter(
    bench: Workbench, ledger: Ledger, columns: list[str], counted: bool
) -> None:
    """Its id stays free; letters of any alphabet have room. Names end where file systems say."""
    whole = len(columns) == 1
    good = ["\u0436" * 33, "\u6f22" * 22, "x" * 200, "\U0001f600" * 62, "/" * 60, "", None, "a b"]
    bad = ["\u0436" * 126, "\u6f22" * 84, "x" * 250, "/" * 84] if whole else ["x" * 180]
    good = good if whole else ["\u0436" * 33, None]
    schema = {"id": "string", "at": "timestamp", **dict.fromkeys(columns, "string")}
    at = {"at": "2024-01-01T00:00:00Z"}
    records = [
        {"id": f"{n}", **at, **dict.fromkeys(columns, value)} for n, value in enumerate(good + bad)
    ]
    counting = {
        "record_time": "at", "window": {"size": "1 day"},
        "aggregate": {"by": [*columns], "columns": {"n": "count()"}},
    }  # fmt: skip
    spec = bench.spec(
        source={"schema": schema}, sink={"partition_by": columns},
        limits={"quarantine_ratio_max": 1}, **(counting if counted else {}),
    )  # fmt: skip
    bench.write("in/a.jsonl", records)
    bench.write("in/b.jsonl", [{**records[-1], "id": "alone"}])
    run(ledger, spec, "r1")
    assert audit(spec).ok
    found = reader.dataset(spec.sink_path()).to_table([columns[0]]).column(0).to_pylist()
    wanted = good if counted else [value or None for value in good]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert settled(spec).reasons == {"sink_refuses": len(bad) + 1}
    bench.write("in/c.jsonl", [{**record, **dict.fromkeys(columns, "x")} for record in records])
    run(ledger, spec, "r2")
    shown = reader.dataset(spec.sink_path()).to_table(filter=ds.field(columns[0]) == "x")
    assert (sum(shown.column("n").to_pylist()) if counted else len(shown)) == len(bad)
    assert audit(spec).ok


# Attacks S27.
def test_a_time_out_of_order_is_a_dead_letter(bench: Workbench, ledger: Ledger) -> None:
    """Behind the year 9999 of the clock. By UTC the same records are written."""
    late = {"id": "late", "n": 1, "at": "9999-12-31T23:30:00Z"}
    bench.write("in/a.jsonl", [late, {"id": "old", "n": 2, "at": "1969-12-31T23:59:59Z"}])
    spec = bench.spec(sink={"partition_by": [BY_HOUR]}, limits={"quarantine_ratio_max": 1})
    run(ledger, spec, "r1")
    done = settled(spec)
    assert done.ids == ["old"] and done.reasons == {"sink_refuses": 1}
    spec = bench.spec("utc", sink={"partition_by": [{**BY_HOUR, "zone": "UTC"}]})
    run(ledger, spec, "r1")
    settled(spec)
    assert set(files(spec)) == {"hour=9999-12-31T23", "hour=1969-12-31T23"}


def test_windows_of_a_second(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many folders are a wrong declaration, as with columns."""
    monkeypatch.setattr("semel.stage.part_files.PARTITION_FILES_PER_SPLIT_MAX", 20)
    spec = bench.spec(sink={"partition_by": [{**BY_HOUR, "window": "1 s"}]})
    bench.write("in/a.jsonl", day(2013, 7, 1))
    with pytest.raises(LimitError, match=r"\['hour'\] has more than 20 values"):
        run(ledger, spec, "r1")


# Attacks L7.
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_file_in_another_windows_folder_is_found(
    bench: Workbench, ledger: Ledger, form: str
) -> None:
    """Moved alone it is gone and a stray. With its marker it is what it was, at a wrong place."""
    spec = bench.spec(sink={"format": form, "partition_by": [BY_HOUR]})
    bench.write("in/a.jsonl", day(2013, 10, 27))
    run(ledger, spec, "r1")
    settled(spec)
    sink = spec.sink_path()
    [path] = files(spec)["hour=2013-10-27T02+0200"]
    for other in ("hour=2013-10-27T02+0100", f"hour={NOTHING}"):
        moved = sink / other / path.name
        path.rename(moved)
        assert {"files", "strays"} <= broken(spec)
        marker = layout.marker(layout.archive_folder(spec), 1)
        text = marker.read_text()
        named = str(path.relative_to(sink))
        assert named in text
        marker.write_text(text.replace(named, str(moved.relative_to(sink))))
        [check] = [check for check in audit(spec).checks if not check.ok]
        assert check.name == "files"
        [offender] = check.offenders
        assert offender.file == str(moved.relative_to(sink))
        assert "2 rows of this file have times outside of its folder 'hour'" in offender.what
        marker.write_text(text)
        moved.rename(path)
    settled(spec)
    content = json.loads(text)
    content["sink_schema"] = [pair for pair in content["sink_schema"] if pair[0] != "at"]
    marker.write_text(json.dumps(content))
    assert "files" in broken(spec)


SHARDS = {
    "partition_by": [{"window": "6 hours", "of": "at", "name": "quarter"}],
    "shards": 3,
    "file_name": "{window}_{pipeline}-b{batch:08d}-{part:05d}-s{shard}",
}


@pytest.mark.parametrize("changes", [{}, {"record_id": None}, {"sink": {"position_columns": True}}])
def test_shards(bench: Workbench, ledger: Ledger, changes: dict) -> None:
    """Each folder has as many files a batch as there are shards; a replay gives the same ones."""
    sink = {**SHARDS, **changes.get("sink", {})}
    spec = bench.spec(**{**changes, "sink": sink})
    bench.write("in/a.jsonl", day(2013, 7, 1))
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", day(2013, 7, 2))
    run(ledger, spec, "r2")
    settled(spec)
    found, there = files(spec), places(spec)
    assert len(found) == 9 + 1 and len(there) > 2 * len(found)
    assert all(len(paths) <= 2 * 3 for paths in found.values())
    for folder, paths in found.items():
        value = folder.partition("=")[2]
        start = "null" if value == NOTHING else value
        assert {path.name.partition("_")[0] for path in paths} == {start}
    columns = reader.dataset(spec.sink_path()).schema.names
    positions = ["_semel_source", "_semel_offset"] if sink.get("position_columns") else []
    assert columns == ["id", "n", "at", *positions, "quarter"]
    replayed(ledger, spec, 1, "again")
    assert places(spec) == there
    settled(spec)


class Fails(LocalEngine):
    """Its first job is done, and lost."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[dict[tuple[str, int], list[str]]] = []

    def run(self, job: StageJob) -> Outcome:
        done = super().run(job)
        found = defaultdict(list)
        for file in (f for r in done.reports for f in r.files if f.kind is Kind.DATA):
            rows = ds.dataset(file.path, format="parquet").to_table(["id"])
            found[file.folder, file.shard] += rows.column("id").to_pylist()
        self.made.append(dict(found))
        if len(self.made) == 1:
            raise RetryableError("lost")
        return done


def test_two_attempts_write_the_same(bench: Workbench, ledger: Ledger) -> None:
    """Rows, folders and shards, each in its order."""
    spec = bench.spec(sink={**SHARDS, "partition_by": [BY_HOUR]})
    bench.write("in/a.jsonl", [*day(2013, 10, 27), *events(0, 100), *day(2013, 10, 27)])
    batch = plan(ledger, spec, "r1").batch.batch_id
    engine = Fails()
    with pytest.raises(RetryableError, match="lost"):
        stage(ledger, spec, batch, engine, log=quiet)
    assert stage(ledger, spec, batch, engine, log=quiet).counts.rows_written == 152
    first, second = engine.made
    assert first == second and len(first) > 26 + 10
    run(ledger, spec, "r1")
    settled(spec)


def test_folders_that_changed(bench: Workbench, ledger: Ledger) -> None:
    """As with columns: the next plan takes them, a replay moves an old batch's rows; nobody is
    asked, and what the rows are is the same for a compare.
    """
    plain = bench.spec()
    bench.write("in/a.jsonl", day(2013, 7, 1))
    run(ledger, plain, "r1")
    number = 0

    def landed(spec: Spec) -> Spec:
        nonlocal number
        number += 1
        bench.write(f"in/b{number}.jsonl", events(10 * number, 10 * number + 10))
        planned = plan(ledger, plain, f"old{number}").batch
        with pytest.raises(TerminalError, match="another version of the declaration"):
            stage(ledger, spec, planned.batch_id, LocalEngine(), log=quiet)
        run(ledger, plain, f"old{number}")
        return spec

    spec = landed(bench.spec(sink={"partition_by": [BY_HOUR]}))
    bench.write("in/c.jsonl", day(2013, 7, 2))
    run(ledger, spec, "r3")
    settled(spec)
    table = reader.dataset(spec.sink_path()).to_table().to_pylist()
    assert Counter(row["hour"] is None for row in table) == {True: 48 + 2 + 10, False: 48}
    found = compared(ledger, spec)
    assert found.equal and found.rows_live == 108, found
    replayed(ledger, spec, 1, "again")
    settled(spec)
    table = reader.dataset(spec.sink_path()).to_table().to_pylist()
    assert Counter(row["hour"] is None for row in table) == {True: 2 + 10, False: 96}
    assert compared(ledger, spec).equal


def test_a_lost_ledger(bench: Workbench, ledger: Ledger) -> None:
    """Output that only its names tell of is not written beside; adopt takes all of it over."""
    spec = bench.spec(sink=SHARDS)
    bench.write("in/a.jsonl", [*day(2013, 7, 1), *events(0, 20)])
    run(ledger, spec, "r1")
    lose(ledger)
    archive = layout.archive_folder(spec)
    away = bench.folder / "away"
    archive.rename(away)
    bench.write("in/b.jsonl", [*day(2013, 7, 2), *events(0, 20)])
    with pytest.raises((StateError, TerminalError), match=r"an output file of semel \(.*quarter="):
        run(ledger, spec, "r2")
    shutil.rmtree(archive, ignore_errors=True)
    away.rename(archive)
    adopt(ledger, spec, log=quiet)
    done = run(ledger, spec, "r2").finalized
    assert done.batch.batch_id == 2 and done.counts.duplicates_catalog == 22
    settled(spec)


@pytest.fixture
def up(bench: Workbench, ledger: Ledger) -> Iterator[Upstream]:
    yield Upstream(bench, ledger)


def test_a_chain_reads_windows(up: Upstream) -> None:
    """As a column of text, which it may take or leave, by names that it may write as windows."""
    declared = up.files.spec(name="up", sink={"partition_by": ["n", BY_HOUR]})
    records = day(2013, 10, 27)
    up.bench.write("in/a.jsonl", records)
    run(up.ledger, declared, "up1")
    columns = {"id": "string", "hour": "string", "at": "timestamp", "n": "bigint"}
    for name, sink in (
        ("plain", {"format": "jsonl"}), ("hours", {"partition_by": [{**BY_HOUR, "name": "h"}]}),
    ):  # fmt: skip
        spec = up.spec(name=name, source={"schema": columns}, sink=sink)
        run(up.ledger, spec, "r1")
        settled(spec)
        found = reader.dataset(spec.sink_path()).to_table().to_pylist()
        assert Counter(row["hour"] for row in found) == hours(records)
        assert all(row.get("h", row["hour"]) == row["hour"] for row in found)
    schema = {name: kind for name, kind in columns.items() if name != "hour"}
    spec = up.spec(name="without", source={"schema": schema})
    run(up.ledger, spec, "r1")
    assert len(settled(spec).rows) == len(records)


TRANSFORMS = """
from pyspark.sql import functions as F

def alike(frame):
    return frame

def plain_time(frame):
    return frame.withColumn("at", F.col("at").cast("timestamp_ntz"))

def named(frame):
    return frame.withColumn("HOUR", F.lit("x"))

def few(frame):
    return frame.select("id", "at")
"""


def test_behind_transforms(bench: Workbench, ledger: Ledger, spark_engine: SparkEngine) -> None:
    """What they give decides: a column that is no moment, one of the folder's name, positions that
    are gone. Spark reads what was written. Some seconds: Spark.
    """
    (bench.transforms / "windows.py").write_text(TRANSFORMS)
    bench.write("in/a.jsonl", records := day(2013, 10, 27))
    sink = {"partition_by": [BY_HOUR], "shards": 2, "position_columns": True}
    wrong = {
        "plain_time": r"partition_by\[0\]\.of: 'at' is timestamp\[us\], not a timestamp",
        "named": r"partition_by\[0\]\.name: 'hour' is a column",
        "few": "sink.shards needs a record's position",
    }
    for name, why in wrong.items():
        spec = bench.spec(sink=sink, transforms=[f"windows:{name}"])
        with pytest.raises(TerminalError, match=why):
            run(ledger, spec, "r1", engine=spark_engine)
    spec = bench.spec(sink=sink, transforms=["windows:alike"])
    run(ledger, spec, "r1", engine=spark_engine)
    settled(spec)
    assert {len(paths) for paths in files(spec).values()} == {1, 2}
    told = spark_engine.session.read.parquet(str(spec.sink_path())).groupBy("hour").count()
    assert {row["hour"]: row["count"] for row in told.collect()} == hours(records)


def test_a_marker_says_what_its_folders_are(bench: Workbench, ledger: Ledger) -> None:
    """Its declaration has them as they were declared; its columns are those of the rows."""
    spec = bench.spec(sink={"partition_by": [BY_HOUR]})
    bench.write("in/a.jsonl", events(0, 3))
    run(ledger, spec, "r1")
    told = json.loads(layout.marker(layout.archive_folder(spec), 1).read_text())
    assert told["spec"]["sink"]["partition_by"] == [BY_HOUR]
    assert [name for name, _ in told["sink_schema"]] == ["id", "n", "at"]
    [marker] = markers_of(spec)
    assert marker.spec == spec and marker.spec.digest() == spec.digest()
