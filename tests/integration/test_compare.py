"""compare: the live path and the batch path give the same, and each difference is told."""

import gzip
import json
import os
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fix_compare import batch, compared, databases, folders, forge
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_replay import allow, as_float, replayed, two_batches
from semel import replay
from semel.compare import Cause, Range
from semel.compare.answer import ABOUT
from semel.errors import CorruptionError, SourceError, StateError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.sinks import archive
from semel.spec.pipeline import Spec

POSITIONS = {"position_columns": True}
CSV = {"format": "csv", "path": "in/*.csv"}
BUCKET = {"scope": "bucket", "horizon": "30 days"}


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
    for first, last in ((1, 4), (3, 4), (2, 3), (4, 4)):
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
        run_batch(ledger, spec, f"r{day}", LocalEngine(), span)
    wanted = Range(start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 4, tzinfo=UTC))
    found = compared(ledger, spec, wanted=wanted)
    assert found.equal and found.batches == (3, 4) and found.known == 10


def test_equal_by_time(bench: Workbench, ledger: Ledger) -> None:
    """With select: arrival a range is of the times at which batches committed."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)
    [time] = ledger.rows("look", "finalized", name="events")[1:]
    at = time["batch_time"]
    assert compared(ledger, spec, wanted=Range(start=at, end=datetime(2100, 1, 1, tzinfo=UTC))) \
        .batches == (2,)  # fmt: skip
    before = compared(ledger, spec, wanted=Range(start=datetime(2000, 1, 1, tzinfo=UTC), end=at))
    assert before.batches == (1,)


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
    step = refused(ledger, spec, f"replayed by batch {again}", kind=StateError, last=2)
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
    wanted = Range(start=datetime(2000, 1, 1, tzinfo=UTC), end=datetime(2100, 1, 1, tzinfo=UTC))
    found = compared(ledger, spec, wanted=wanted, other=other)
    assert found.total == 10 and {d.kind for d in found.differences} == {"only_live"}
    batch(ledger, other)
    assert compared(ledger, spec, wanted=wanted, other=other).equal
    third = bench.spec("third", source={"schema": {"id": "string", "n": "bigint"}})
    batch(ledger, third)
    with pytest.raises(TerminalError, match="only one of them has 'at'"):
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
    assert refused(ledger, spec, "number is in 7 to 9", first=7, last=9) == "semel batches events"
    bench.write("in/b.jsonl", events(10, 20))
    planned = plan(ledger, spec, "later").batch.batch_id
    step = refused(ledger, spec, "is planned and belongs to the range", kind=StateError)
    assert step == f"semel show {planned}"
    assert compared(ledger, spec, last=1).equal
    data = path.read_bytes()
    path.write_bytes(data.replace(b"e000009", b"e000008"))
    refused(ledger, spec, "changed", "compare a range without batch 1", kind=SourceError, last=1)
    path.unlink()
    with pytest.raises(SourceError) as caught:
        compared(ledger, spec, last=1)
    assert "abandon" not in str(caught.value) + caught.value.next


@pytest.mark.parametrize("damage", ["cut", "gone"])
@pytest.mark.parametrize("kind", ["decisions", "output", "markers"])
def test_damaged_files(bench: Workbench, ledger: Ledger, kind: str, damage: str) -> None:
    """Output, decisions or a marker that is damaged or gone is told as that: no difference."""
    spec = bench.spec()
    land(bench, ledger, spec, 2)
    root = spec.sink_path() if kind == "output" else archive.of(spec) / kind
    [path] = root.glob("*b00000002*")
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-20])
    step = refused(ledger, spec, "cannot be read", kind=CorruptionError)
    assert step in ("semel audit events", "")
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    assert compared(ledger, spec).equal and not databases(ledger) and not folders(spec)


def test_nothing_is_left(bench: Workbench, ledger: Ledger) -> None:
    """Neither files nor databases nor rows of the ledger differ after a compare, also one that
    fails.
    """
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
        return files, rows, databases(ledger), folders(spec)

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


def test_each_cause_is_told() -> None:
    """Each cause has its sentence."""
    assert ABOUT.keys() == set(Cause)
