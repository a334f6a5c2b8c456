"""compare: the live path and the batch path give the same, and each difference is told."""

import gzip
import itertools
import json
import os
import secrets
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from fixtures.batches.account import run
from fixtures.batches.compares import batch, compared, folders, forge
from fixtures.batches.replays import allow, as_float, replayed, two_batches
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.warehouse import Warehouse
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.compare import BatchRange, Cause
from semel.errors import (
    CorruptionError,
    RetryableError,
    SourceError,
    StateError,
    TerminalError,
)
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.accept import accept_columns
from semel.runs import replay, requarantine
from semel.spark.engine import SparkEngine
from semel.stage.job import Outcome, StageJob

POSITIONS = {"position_columns": True}
WINDOW = {"window": "1 hour", "of": "at", "name": "hour"}
BUCKET = {"scope": "bucket", "horizon": "30 days"}
LONG_AGO, FAR_AHEAD = (datetime(year, 1, 1, tzinfo=UTC) for year in (2000, 2100))


def land(bench: Workbench, ledger: Ledger, spec: Spec, batches: int = 4) -> None:
    """Batches of files that come and one that grows, with repeats of all kinds and bad records."""
    for n in range(batches):
        late = [*events(n * 10, n * 10 + 15), *events(n * 10, n * 10 + 3), b"bad"]
        bench.write(f"in/{n}.jsonl", late)
        bench.write("in/grows.jsonl", events(n * 100, n * 100 + 15), mode="ab")
        batch(ledger, spec)


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({}, "id"),
        pytest.param({"sink": {"format": "jsonl"}}, "id", marks=pytest.mark.proof),
        pytest.param({"sink": {"format": "csv", **POSITIONS}}, "id", marks=pytest.mark.proof),
        ({"sink": {"partition_by": ["n"]}}, "id"),
        ({"sink": {"partition_by": [WINDOW], "shards": 3}}, "id"),
        ({"record_id": None, "sink": {"partition_by": [WINDOW], "shards": 3}}, "row"),
        ({"record_id": ["id", "n"], "dedup": {"shards": 3}}, "id"),
        pytest.param({"record_id": ["at", "id"]}, "id", marks=pytest.mark.proof),
        ({"record_time": "at", "dedup": BUCKET}, "id"),
        ({"record_id": None}, "row"),
        ({"record_id": None, "sink": POSITIONS}, "position"),
        ({"record_id": None, "sink": {"format": "csv"}}, "row"),
    ],
)  # fmt: skip
def test_equal(bench: Workbench, ledger: Ledger, changes: dict, by: str) -> None:
    """Where there is no difference none is found: all batches, and a range whose ids are in part
    those of earlier batches, and of later ones that the range leaves out.
    """
    spec = bench.spec(**changes)
    land(bench, ledger, spec)
    for first, last in ((1, 4), (2, 3)):
        found = compared(ledger, spec, first, last)
        assert found.equal and not found.differences and not found.apart, found
        assert found.by == by and found.batches == tuple(range(first, last + 1))
        assert found.rows_live == found.rows_other == found.counts.rows_written > 20
        assert (found.known > 0) == (first > 1 and by == "id")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl.gz"])
def test_equal_of_other_sources(bench: Workbench, ledger: Ledger, suffix: str) -> None:
    """CSV files that grow, and compressed files."""
    kind = suffix.partition(".")[0]
    spec = bench.spec(source={"format": kind, "path": f"in/*.{suffix}"})
    for n in range(3):
        records = events(n * 10, n * 10 + 15)
        if kind == "csv":
            lines = [f"{e['id']},{e['n']},{e['at']}" for e in records]
            lines = ["id,n,at", *lines] if n == 0 or suffix == "csv.gz" else lines
        else:
            lines = [json.dumps(e) for e in records]
        data = "".join(f"{line}\n" for line in lines).encode()
        packed = gzip.compress(data) if suffix.endswith("gz") else data
        name = f"{n}.{suffix}" if suffix.endswith("gz") else f"grows.{suffix}"
        with (bench.data / "in" / name).open("ab") as file:
            file.write(packed)
        batch(ledger, spec)
    assert compared(ledger, spec).rows_live == 35
    for first in (1, 2):
        found = compared(ledger, spec, first, 3)
        assert found.equal, found


def test_equal_of_intervals(bench: Workbench, ledger: Ledger) -> None:
    """The batches of a range of intervals, whichever was committed first; those that the range
    leaves out hold ids that are known.
    """
    interval = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl", "path": "in/*.jsonl"}
    spec = bench.spec(source=interval)
    for day in (1, 4, 2, 3):
        bench.write(f"in/2026-01-0{day}.jsonl", events(day * 10, day * 10 + 15))
        span = (datetime(2026, 1, day, tzinfo=UTC), datetime(2026, 1, day + 1, tzinfo=UTC))
        run(ledger, spec, f"r{day}", span)
    wanted = BatchRange(start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 4, tzinfo=UTC))
    found = compared(ledger, spec, wanted=wanted)
    assert found.equal and found.batches == (3, 4) and found.known == 10


def test_equal_by_time(bench: Workbench, ledger: Ledger) -> None:
    """With select: arrival a range is of the times at which batches committed."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)
    [time] = ledger.rows("look", "finalized", name="events")[1:]
    at = time["batch_time"]
    assert compared(ledger, spec, wanted=BatchRange(start=at, end=FAR_AHEAD)).batches == (2,)
    assert compared(ledger, spec, wanted=BatchRange(start=LONG_AGO, end=at)).batches == (1,)


def test_known_ids_that_a_task_does_not_see(bench: Workbench, ledger: Ledger) -> None:
    """It fails: without them each repeat would be a difference, and told as one."""

    class Blind(LocalEngine):
        def run(self, job: StageJob) -> Outcome:
            for path in job.known.glob("known-*"):
                path.unlink()
            return super().run(job)

    spec = bench.spec()
    land(bench, ledger, spec, 2)
    with pytest.raises(RetryableError, match=r"the batch path of events failed.*known-"):
        compared(ledger, spec, 2, 2, engine=Blind())
    assert not folders(spec)


def changed(table: pa.Table) -> pa.Table:
    """A table whose last row has another n."""
    values = table.column("n").to_pylist()
    return table.set_column(1, "n", pa.array([*values[:-1], 77], pa.int64()))


HARMS = {
    "changed": (changed, "values", 1, 1),
    "lost": (lambda table: table.slice(1), "only_other", 0, 1),
    "doubled": (lambda t: pa.concat_tables([t, t.slice(3, 1)]), "more_live", 2, 1),
    "foreign": (
        lambda t: pa.concat_tables([t, t.slice(0, 1).set_column(0, "id", pa.array(["new"]))]),
        "only_live", 1, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("identity", [{}, {"record_id": None}])
def test_a_forged_output(bench: Workbench, ledger: Ledger, harm: str, identity: dict) -> None:
    """A row that was changed, lost, doubled or added by hand is found, also where the marker was
    made to fit it: also of an id that later batches repeat.
    """
    spec = bench.spec(**identity)
    land(bench, ledger, spec, 3)
    change, kind, live, other = HARMS[harm]
    forge(spec, 1, change)
    found = compared(ledger, spec)
    if identity and harm == "changed":  # By position rows have no key: it is two differences.
        assert {d.kind for d in found.differences} == {"only_live", "more_other"}
        assert found.total == 2
        return
    if identity and harm == "lost":
        kind, live, other = "more_other", found.differences[0].other.rows - 1, None
    assert not found.equal and found.total == 1
    [one] = found.differences
    assert one.cause is Cause.UNKNOWN and found.causes == {"unknown": 1}
    if not identity:
        assert (one.kind, one.live.rows, one.other.rows) == (kind, live, other), one
        assert one.id is not None
        if live:
            assert one.live.batch_id == 1 and one.live.file.endswith(".parquet")
            assert one.live.row["id"] == one.id
        if harm == "changed":
            assert one.live.row["n"] == "77" != one.other.row["n"]


def test_a_changed_file(bench: Workbench, ledger: Ledger) -> None:
    """A file that is not what its marker lists is the cause of its differences."""
    spec = bench.spec(sink={"format": "jsonl"})
    land(bench, ledger, spec, 2)
    [path] = bench.data.glob("out/events/*b00000002*")
    path.write_bytes(path.read_bytes().replace(b'"n":17', b'"n":18'))
    [one] = compared(ledger, spec).differences
    assert (one.cause, one.id, one.kind) == (Cause.FILE, "e000017", "values")


def test_which_copy_won(bench: Workbench, ledger: Ledger) -> None:
    """The live path kept the copy that came first; the batch path the one in the older file. Both
    places are told. A copy of the same content is no difference, but is counted.
    """
    spec = bench.spec()
    other = [{**events(5, 6)[0], "n": 500}, *events(7, 8)]
    first = bench.write("in/z.jsonl", events(0, 10))
    batch(ledger, spec)
    second = bench.write("in/a.jsonl", [*events(20, 22), *other])
    batch(ledger, spec)
    assert compared(ledger, spec).equal
    os.utime(second, ns=(1, 1))
    found = compared(ledger, spec)
    [one] = found.differences
    assert (one.kind, one.cause, one.id) == ("values", Cause.COPY, "e000005")
    assert one.live.position.source == str(first) and one.live.position.line == 6
    assert one.other.position.source == str(second) and one.other.position.line == 3
    assert one.live.row["n"] == "5" and one.other.row["n"] == "500"
    assert found.apart == {
        "only_live": {"duplicate_in_catalog": 2}, "only_other": {"duplicate_in_batch": 2}
    }  # fmt: skip


def test_an_edit_of_the_source(bench: Workbench, ledger: Ledger) -> None:
    """An edit in the middle, that no look at head and tail shows, is told as the cause."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 1000))
    batch(ledger, spec)
    bench.write("in/b.jsonl", events(1000, 1010))
    batch(ledger, spec)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b'"n": 500,', b'"n": 555,'))
    [one] = compared(ledger, spec).differences
    assert (one.cause, one.id, one.live.row["n"]) == (Cause.SOURCE, "e000500", "500")


def test_an_id_that_was_forgotten(bench: Workbench, ledger: Ledger) -> None:
    """An id that the live path took twice, because it had forgotten it in between."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    batch(ledger, spec)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.id_run SET retired_at = now()")
    bench.write("in/b.jsonl", events(9, 12))
    batch(ledger, spec)
    found = compared(ledger, spec)
    [one] = found.differences
    assert (one.kind, one.cause, one.live.rows) == ("more_live", Cause.FORGOTTEN, 2)


def test_a_late_record(bench: Workbench, ledger: Ledger) -> None:
    """A record that was late for the live path is none that the batch path sets aside."""
    spec = bench.spec(record_time="at", dedup=BUCKET)
    bench.write("in/a.jsonl", events(0, 10))
    batch(ledger, spec)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.pipeline SET forgotten = '{[0,1000000)}'")
    bench.write("in/b.jsonl", [{"id": "late", "n": 1, "at": "2020-01-01T00:00:00Z"}])
    batch(ledger, spec)
    found = compared(ledger, spec)
    [one] = found.differences
    assert (one.kind, one.cause, one.id) == ("only_other", Cause.LATE, "late")
    assert one.live.position.line == 1 and found.apart == {"only_live": {"late": 1}}


def test_another_declaration(bench: Workbench, ledger: Ledger) -> None:
    """Columns of another type, and a record that is none any more, are told as what they are."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 3), {"id": "long", "n": 1 << 40, "at": None}])
    batch(ledger, spec)
    spec = bench.spec(source={"schema": {"id": "string", "n": "int", "at": "timestamp"}})
    found = compared(ledger, spec)
    [one] = found.differences
    assert one.cause is Cause.QUARANTINED_BY_OTHER and one.id == "long"
    assert "type_mismatch" in one.why and one.kind == "only_live"


def test_a_replay(bench: Workbench, ledger: Ledger) -> None:
    """Of a batch that was replayed its newest output is compared; the others are told as what the
    declaration of then made. While a replay is at work, there is nothing to compare yet.
    """
    spec = two_batches(bench, ledger)
    spec = as_float(bench)
    allow(ledger, spec)
    replayed(ledger, spec, 1, "again")
    assert compared(ledger, spec, 1, 1).equal
    found = compared(ledger, spec, 2, 2)
    assert found.causes == {str(Cause.SPEC): found.total} and found.total == found.rows_live
    again = replay.plan(ledger, spec, "second", 2)[0].batch_id
    step = refused(ledger, spec, f"batch {again} is replaying batch 2", kind=StateError, last=2)
    assert step == f"semel show {again}"
    assert compared(ledger, spec, 1, 1).equal


def test_with_another_pipeline(bench: Workbench, ledger: Ledger) -> None:
    """Two pipelines' outputs of one interval are compared, whatever their formats are."""
    spec = bench.spec()
    other = bench.spec("others", sink={"format": "jsonl"})
    bench.write("in/a.jsonl", events(0, 10))
    batch(ledger, spec)
    batch(ledger, other)
    bench.write("in/b.jsonl", events(10, 20))
    batch(ledger, spec)
    wanted = BatchRange(start=LONG_AGO, end=FAR_AHEAD)
    found = compared(ledger, spec, wanted=wanted, other=other)
    assert found.total == 10 and {d.kind for d in found.differences} == {"only_live"}
    batch(ledger, other)
    assert compared(ledger, spec, wanted=wanted, other=other).equal
    third = bench.spec("third", source={"schema": {"id": "string", "n": "bigint"}})
    batch(ledger, third)
    with pytest.raises(TerminalError, match="only one of the two has 'at'"):
        compared(ledger, spec, wanted=wanted, other=third)


def refused(ledger: Ledger, spec: Spec, *why: str, kind: type = TerminalError, **more) -> str:
    with pytest.raises(kind) as caught:
        compared(ledger, spec, **more)
    assert all(part in str(caught.value) for part in why), str(caught.value)
    return caught.value.next


def test_refusals(bench: Workbench, ledger: Ledger) -> None:
    """What cannot be compared is refused, with a reason and a command that goes on."""
    spec = bench.spec()
    assert refused(ledger, spec, "no finalized batch") == "semel batches events"
    path = bench.write("in/a.jsonl", events(0, 10))
    batch(ledger, spec)
    step = refused(ledger, spec, "id is in the range 7 to 9", first=7, last=9)
    assert step == "semel batches events"
    bench.write("in/b.jsonl", events(10, 20))
    planned = plan(ledger, spec, "later").batch.batch_id
    step = refused(ledger, spec, "is in the range, but its status is planned", kind=StateError)
    assert step == f"semel show {planned}"
    assert compared(ledger, spec, last=1).equal
    data = path.read_bytes()
    path.write_bytes(data.replace(b"e000009", b"e000008"))
    refused(ledger, spec, "changed", "compare a range without batch 1", kind=SourceError, last=1)
    path.unlink()
    with pytest.raises(SourceError) as caught:
        compared(ledger, spec, last=1)
    assert "abandon" not in str(caught.value) + caught.value.next


def test_damaged_files(bench: Workbench, ledger: Ledger) -> None:
    """Output, decisions or a marker that is damaged or gone is told as that: no difference."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)
    roots = [spec.sink_path(), *(layout.archive_folder(spec) / kind for kind in ("decisions", "markers"))]
    for root, gone in itertools.product(roots, (False, True)):
        [path] = root.glob("*b00000002*")
        data = path.read_bytes()
        path.unlink()
        if not gone:
            path.write_bytes(data[:-20])
        why = "cannot read this marker" if root.name == "markers" else "cannot be read"
        step = refused(ledger, spec, why, kind=CorruptionError)
        assert step in ("semel audit events", ""), (root, gone)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    assert compared(ledger, spec).equal and not folders(spec)


def test_nothing_is_left(bench: Workbench, ledger: Ledger) -> None:
    """Neither files nor rows of the ledger differ after a compare, also one that fails."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)

    def there() -> tuple:
        files = {p: p.stat().st_mtime_ns for p in bench.data.rglob("*") if p.is_file()}
        tables = ("pipeline", "batch", "attempt", "claim", "source_partition", "id_run", "segment")
        with ledger.engine.connect() as connection:
            rows = [
                connection.exec_driver_sql(f"SELECT * FROM semel.{t} ORDER BY 1").all()
                for t in tables
            ]
        return files, rows, folders(spec)

    before = there()
    assert compared(ledger, spec, 2, 2).known
    assert there() == before

    class Broken:
        def run(self, _: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(ledger, spec, engine=Broken())
    assert there() == before


def test_no_values_are_told(bench: Workbench, ledger: Ledger) -> None:
    """With log_samples: false a difference has its places and its cause, but no value and no id."""
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0, "log_samples": False})
    land(bench, ledger, spec, 1)
    forge(spec, 1, changed)
    [one] = compared(ledger, spec).differences
    assert one.id is None and one.live.row is None and one.other.row is None
    assert one.other.position.line and one.live.batch_id == 1


def test_hostile_names(bench: Workbench, ledger: Ledger) -> None:
    """Columns, files and ids may be called anything."""
    names = {"i'd": "string", '"; DROP TABLE output; --': "bigint", "{key} $contents": "string"}
    spec = bench.spec(
        source={"schema": names, "path": "in/*"}, record_id=["i'd", '"; DROP TABLE output; --']
    )
    for n in range(2):
        rows = [{name: k if kind == "bigint" else f"{k}'\"\\{{}}"
                 for name, kind in names.items()} for k in range(n * 3, 6)]  # fmt: skip
        bench.write(f"in/{n} 'x\" %s {{batch}}.jsonl", rows)
        batch(ledger, spec)
    assert compared(ledger, spec).equal
    forge(spec, 1, lambda table: table.slice(1))
    [one] = compared(ledger, spec).differences
    assert one.kind == "only_other" and json.loads(one.id) == ["0'\"\\{}", "0"]


TRANSFORMS = """
from pyspark.sql import functions as F

def doubled(frame):
    return frame.withColumn("n", F.col("n") * 2)

def dice(frame):
    return frame.withColumn("n", (F.rand() * 1000000).cast("bigint"))

def per_batch(frame):
    return frame.groupBy("at").agg(F.count("*").alias("n"))

def without_id(frame):
    return frame.select(F.col("n") + 1, "at")
"""


def with_transform(bench: Workbench, name: str, **changes: object):
    (bench.transforms / "shape.py").write_text(TRANSFORMS)
    return bench.spec(transforms=[f"shape:{name}"], **changes)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("name", "by", "causes"),
    [
        ("doubled", "id", {}),
        ("without_id", "row", {}),
        ("dice", "id", {"not_deterministic": 30}),
        ("per_batch", "row", {"transform": 3}),
    ],
)
def test_transforms(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, name: str, by: str, causes: dict
) -> None:
    """A transform that treats each record by itself gives the same rows; one with random values, or
    that puts a batch's records together, is told as such.
    """
    spec = with_transform(bench, name)
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 15, n * 15 + 15 + 5 * (1 - n)))
        batch(ledger, spec, spark_engine)
    found = compared(ledger, spec, engine=spark_engine)
    assert (found.by, found.causes) == (by, causes), found
    known = compared(ledger, spec, 2, engine=spark_engine)
    assert known.known == 5 and (known.equal or name == "dice")


@pytest.mark.rest
def test_changed_code(bench: Workbench, ledger: Ledger, spark_engine: SparkEngine) -> None:
    """Rows that other code made are told as that."""
    spec = with_transform(bench, "doubled")
    bench.write("in/a.jsonl", events(1, 4))
    batch(ledger, spec, spark_engine)
    (bench.transforms / "shape.py").write_text(TRANSFORMS.replace("* 2", "* 3"))
    found = compared(ledger, spec, engine=spark_engine)
    assert found.causes == {str(Cause.CODE): 3}
    assert [d.other.row["n"] for d in found.differences] == ["3", "6", "9"]


@pytest.mark.rest
def test_records_behind_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """Behind a transform that keeps the id, it is told too that another copy won, or that the live
    path set records aside.
    """
    bucket = {"scope": "bucket", "horizon": "30 days"}
    spec = with_transform(bench, "doubled", record_time="at", dedup=bucket)
    bench.write("in/z.jsonl", events(0, 10))
    batch(ledger, spec, spark_engine)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.pipeline SET forgotten = '{[0,20000)}'")
    late = {"id": "late", "n": 1, "at": "2001-01-01T00:00:00Z"}
    os.utime(bench.write("in/a.jsonl", [late, {**events(5, 6)[0], "n": 500}]), ns=(1, 1))
    batch(ledger, spec, spark_engine)
    found = compared(ledger, spec, engine=spark_engine)
    told = {d.id: (d.cause, d.live.row and d.live.row["n"], d.other.row["n"])
            for d in found.differences}  # fmt: skip
    assert told == {
        "e000005": (Cause.COPY, "10", "1000"), "late": (Cause.LATE, None, "2")
    }  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("scope", ["horizon", pytest.param("bucket", marks=pytest.mark.proof)])
def test_an_admission(bench: Workbench, ledger: Ledger, scope: str) -> None:
    """Dead letters that were admitted later are their root's: both paths have them. Ids that they
    brought, or that others outside had, are known as they were.
    """
    kinds = {"id": "string", "n": "int", "at": "timestamp"}
    dedup = {"record_time": "at", "dedup": {"scope": scope, "horizon": "30 days"}}
    spec = bench.spec(source={"schema": kinds}, **dedup)
    bench.write("in/0.jsonl", events(0, 3))
    batch(ledger, spec)
    big = [{**e, "n": 1 << 40} for e in events(1, 9)]
    bench.write("in/1.jsonl", [*events(7, 12), *big])
    batch(ledger, spec)
    assert compared(ledger, spec, 2).equal
    spec = bench.spec(source={"schema": {**kinds, "n": "bigint"}}, **dedup)
    accept_columns(ledger, spec)
    before = compared(ledger, spec, 2)
    assert before.causes == {"quarantined": 6}
    assert before.apart == {"only_live": {"type_mismatch": 6}}
    done = requarantine.run(ledger, spec, "again", 2, LocalEngine(), log=lambda _: None)
    assert done.finalized.counts.survivors == 4
    bench.write("in/2.jsonl", [*events(0, 2), *big, *events(30, 33)])
    batch(ledger, spec)
    for first, last, known in ((1, 4, 0), (2, 4, 3), (4, 4, 9), (2, 2, 2)):
        found = compared(ledger, spec, first, last)
        assert found.equal and found.known == known, found
    assert found.batches == (2, 3) and not found.apart


@pytest.fixture
def table(bench: Workbench, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A sink: a table of the warehouse."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}


def test_a_table(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, table: dict
) -> None:
    """Rows of a table are compared, of each type; one that somebody changed is found."""
    kinds = {"id": "string", "n": "bigint", "at": "timestamp", "day": "date", "x": "double",
             "d": "decimal(9,2)", "b": "boolean", "j": "json", "a": "array<int>"}  # fmt: skip
    spec = bench.spec(sink=table, source={"schema": kinds})
    for n in range(2):
        rows = [{**e, "day": "2026-01-02", "x": 0.1 * e["n"], "d": 1.5, "b": True,
                 "j": {"b": [1, 2], "a": None}, "a": [1, None]} for e in events(n * 5, n * 5 + 8)]
        bench.write(f"in/{n}.jsonl", [*rows, {"id": f"empty{n}"}])  # fmt: skip
        batch(ledger, spec)
    found = compared(ledger, spec)
    assert found.equal and found.rows_live == 15, found
    assert compared(ledger, spec, 2).equal
    warehouse.run("UPDATE events SET n = 99 WHERE id = 'e000003'")
    warehouse.run("DELETE FROM events WHERE id = 'e000004'")
    kinds = {d.id: d.kind for d in compared(ledger, spec).differences}
    assert kinds == {"e000003": "values", "e000004": "only_other"}


def test_a_table_that_refuses(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, table: dict
) -> None:
    """Records that the table refuses are set aside by both paths; and so is the first copy of an id
    of which it takes the second one.
    """
    warehouse.run("CREATE TABLE events (id text, n int CHECK (n < 100), at timestamptz, "
                  "_semel_batch bigint, _semel_seq bigint)")  # fmt: skip
    spec = bench.spec(sink={**table, "create": False})
    for n in range(2):
        bench.write(f"in/{n}.jsonl", [{**events(3, 4)[0], "n": 1 << 40}, *events(0, 103 + n)])
        batch(ledger, spec)
    found = compared(ledger, spec)
    assert found.equal and found.counts.quarantined == 9 and found.rows_live == 100, found


def test_upsert_is_refused(bench: Workbench, ledger: Ledger, table: dict) -> None:
    """In an upsert later batches have replaced rows of earlier ones."""
    spec = bench.spec(sink={**table, "mode": "upsert", "key": ["id"]})
    with pytest.raises(TerminalError, match="mode: upsert") as caught:
        compared(ledger, spec)
    assert caught.value.next == "semel audit events"


def test_the_command(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Exit code 0 and `equal`, or 1 and each difference, by --interval and by --batches."""
    spec = bench.spec()
    for n in range(3):
        bench.write(f"in/{n}.jsonl", events(n * 10, n * 10 + 15))
        batch(ledger, spec)
    out = shell.runs("semel compare events --interval 2000-01-01 2100-01-01")
    assert out.splitlines()[-1] == "equal"
    assert "batch path: reads 3 splits in 1 task" in shell.err
    forge(spec, 2, lambda rows: rows.slice(4))
    lines = shell.runs("semel compare events --batches 2..3 --limit 1", code=1).splitlines()
    assert lines[0].startswith("id e000015: only in the batch path: unknown: ")
    assert lines[1] == "    the live path: no row"
    assert "from '" in lines[2] and "1.jsonl' line 6 (byte " in lines[2]
    assert "and 3 more differences" in lines
    assert lines[-2:] == ["different: 4 (unknown 4)", "next: semel audit events"]
    plain = shell.answers("semel compare events --batches 2..3", code=1)
    assert not plain["equal"] and len(plain["differences"]) == 4
    assert plain["batches"] == [2, 3] and plain["known"] == 5
    assert plain["differences"][0]["other"]["row"]["n"] == "15"
    for wrong in ("", "--batches 3..2", "--batches x", "--interval 2026-01-02 2026-01-01",
                  "--batches 1 --with events", "--batches 1 --interval 2026-01-01 2026-01-02"):
        shell.runs(f"semel compare events {wrong}", code=2)
        assert "next: semel compare --help" in shell.err, wrong
    assert shell.fails("semel compare events --batches 8..9") == "semel batches events"


def test_a_user_who_may_only_read(bench: Workbench, ledger: Ledger) -> None:
    """Of the ledger, a compare needs no more than to read it: nothing is made or locked there."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)
    name, password = f"semel \"role {secrets.token_hex(4)}", secrets.token_hex(8)
    quoted = '"' + name.replace('"', '""') + '"'
    with psycopg.connect(ledger.dsn.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD '{password}'")
        admin.execute(f"GRANT USAGE ON SCHEMA semel TO {quoted}")
        admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA semel TO {quoted}")
        url = sa.make_url(ledger.dsn).set(username=name, password=password)
        try:
            with Ledger(url.render_as_string(hide_password=False)) as reader:
                found = compared(reader, spec, 2)
                assert found.equal and found.known
        finally:
            admin.execute(f"DROP OWNED BY {quoted}")
            admin.execute(f"DROP ROLE {quoted}")
