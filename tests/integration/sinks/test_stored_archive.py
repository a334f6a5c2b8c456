"""An archive in a store: nothing of a batch is on the driver's disk, and nothing is lost there."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fixtures.batches.account import committed, ids, lines, quiet, run
from fixtures.batches.compares import compared
from fixtures.batches.replays import hours_pass, proven, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.objects.azure import Azure
from fixtures.objects.outlet import StoredPrefix, through
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.objects.wire import HttpWire
from fixtures.postgres.server import lose
from fixtures.spark.cluster import apart
from fixtures.spark.local import LocalEngine
from semel import storage
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.collect import collect
from semel.compare.path import scratch_folders
from semel.errors import CorruptionError, RetryableError, SpecError, TerminalError
from semel.finalize import finalize
from semel.formats.records import with_offset
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.reports.dead_letters import letters
from semel.reports.find import find
from semel.stage import spill as spill_module
from semel.stage import stage
from semel.stage.spill import Spill, Spilled
from semel.storage import StorePath


@pytest.fixture
def prefix(bench: Workbench, s3: S3, monkeypatch: pytest.MonkeyPatch) -> StoredPrefix:
    return StoredPrefix(bench, s3, monkeypatch)


def archive(spec: Spec) -> StorePath:
    found = layout.archive_folder(spec)
    assert isinstance(found, StorePath)
    return found


def stored(place: StorePath) -> list[str]:
    """The keys below a place of an archive, as somebody else's client sees them too."""
    return sorted(str(key.relative_to(place)) for key in storage.files_below(place))


def local_files(bench: Workbench) -> list[Path]:
    return [path for path in bench.data.rglob("*") if path.is_file() and path.parent.name != "in"]


# Attacks AR1, AR2.
def test_nothing_of_a_batch_is_on_the_drivers_disk(prefix: StoredPrefix, ledger: Ledger) -> None:
    """Batches, repeats, dead letters, a replay, and what the reports and a lost ledger need: all of
    it is in the store, and the audit proves it from there.
    """
    bench, spec = prefix.bench, prefix.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(3, 6), b"{not json"])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(5, 20))
    run(ledger, spec, "r2")
    replayed(ledger, spec, 1, "again")
    hours_pass(ledger)
    assert collect(ledger, spec, log=quiet).replaced_removed == 1
    assert prefix.read() == ids(0, 20) and local_files(bench) == []
    proven(spec)
    kinds = {name.partition("/")[0] for name in stored(archive(spec))}
    assert kinds == {"markers", "replaced", "decisions", "dead_letters", "ids"}
    [letter] = letters(spec, count=9).letters
    assert letter.line == 14 and str(letter.file).startswith(f"{archive(spec)}/dead_letters/")
    assert len(find(spec, ["e000004"]).places) == 2
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    bench.write("in/c.jsonl", events(15, 25))
    run(ledger, spec, "r3")
    assert prefix.read() == ids(0, 25)
    proven(spec)


SCHEMA = pa.schema([("n", pa.int64())])
VERB = """
import sys
from pathlib import Path
from fixtures.batches.account import quiet
from fixtures.spark.local import LocalEngine
from semel import pipeline
from semel.commit import commit
from semel.finalize import finalize
from semel.formats.records import with_offset
from semel.ledger import Ledger
from semel.plan import plan
from semel.stage import stage

verb, file, data = sys.argv[1:]
spec = pipeline.load(Path(file))
with Ledger() as ledger:
    batch = plan(ledger, spec, "r1").batch.batch_id
    if verb == "stage":
        stage(ledger, spec, batch, LocalEngine(), quiet)
    if verb == "commit":
        commit(ledger, spec, batch, lambda: None, quiet)
    if verb == "finalize":
        finalize(ledger, spec, batch)
assert not any(Path(data).iterdir()), "something lies on this machine"
"""


# Attacks AR1, S10.
def test_each_verb_runs_on_a_machine_of_its_own(
    prefix: StoredPrefix, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a namespace where the data folder is empty, and stays so. It takes 8 s: four
    processes start."""
    bench = prefix.bench
    prefix.s3.put(prefix.bucket, "in/a.jsonl", lines(0, 9))
    schema = {"id": "string", "n": "bigint", "at": "timestamp"}
    source = {"type": "objects", "url": f"s3://{prefix.bucket}/in", "connection": CONNECTION,
              "format": "jsonl", "schema": schema}  # fmt: skip
    spec = bench.spec(source=source, sink=prefix.declared)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for verb in ("plan", "stage", "commit", "finalize"):
        file = str(bench.pipelines / "events.yaml")
        command = [sys.executable, "-c", VERB, verb, file, str(bench.data)]
        done = subprocess.run(
            apart(bench.data, command), check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert prefix.read() == ids(0, 9)
    proven(spec)


# Attacks AR1.
@pytest.mark.parametrize("what", ["staging/b00000001/f0001/code", "staging/b00000001/f0001/data/",
                                  "staging/b00000001/f0001/spill/", "staging/_semel/probe-",
                                  "dead_letters/", "markers/"])  # fmt: skip
def test_a_lost_answer_is_no_loss(
    prefix: StoredPrefix, ledger: Ledger, http_wire: HttpWire, s3: S3,
    monkeypatch: pytest.MonkeyPatch, what: str,
) -> None:  # fmt: skip
    """The server has put an object, and its answer is cut: of staged files, of a spill, of dead
    letters, and of a marker, also where a replay replaces it."""
    through(http_wire, s3, monkeypatch)
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", [*events(0, 10), b"{not json"])
    http_wire.cut(f"PUT /{prefix.bucket}/lake/archives/events/{what}")
    run(ledger, spec, "r1")
    assert http_wire.cuts == 1 and prefix.read() == ids(0, 10)
    http_wire.cut(f"PUT /{prefix.bucket}/lake/archives/events/markers/")
    replayed(ledger, spec, 1, "again")
    assert http_wire.cuts == 2 and prefix.read() == ids(0, 10)
    proven(spec)


# Attacks AR3.
@pytest.mark.parametrize(
    ("header", "match"),
    [("if-none-match", "does not refuse a second put"), ("if-match", "does not refuse to replace")],
)
def test_a_store_without_conditions_is_refused(
    bench: Workbench, ledger: Ledger, deaf: tuple[S3, HttpWire], monkeypatch: pytest.MonkeyPatch,
    header: str, match: str,
) -> None:  # fmt: skip
    """Before any work, also for a sink that has no objects: the pipeline writes to a Delta table in
    a folder, and only its archive is in that store."""
    server, wire = deaf
    monkeypatch.setenv("SEMEL_ARCHIVES", f"s3://{server.bucket()}/semel")
    monkeypatch.setenv("SEMEL_ARCHIVES_CONNECTION", CONNECTION)
    spec = bench.spec(sink={"type": "delta", "table": "out/table"})
    bench.write("in/a.jsonl", events(0, 10))
    wire.deaf = [header]
    with pytest.raises(TerminalError, match=match):
        run(ledger, spec, "r1")
    assert stored(archive(spec)) == []
    wire.deaf = []
    run(ledger, spec, "r1")
    assert [marker.counts.survivors for marker in markers_of(spec)] == [10]
    assert str(archive(spec)).endswith("/semel/events")


# Attacks AR4, S5, G6.
def test_what_a_dead_task_puts_later_is_nobodys(prefix: StoredPrefix, ledger: Ledger) -> None:
    """A task of an attempt that is over has no folder to miss, and puts its file: no marker lists
    it, and the next collect removes it."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    late = layout.attempt(archive(spec), 1, 1) / "data" / "late"
    late.write_bytes(b"late")
    assert collect(ledger, spec, log=quiet).folders_removed == 1
    assert not late.exists() and prefix.read() == ids(0, 10)
    proven(spec)


# Attacks F2, F4.
@pytest.mark.parametrize("harm", ["removed", "changed"])
def test_a_staged_file_that_a_rule_removed_is_loud(
    prefix: StoredPrefix, ledger: Ledger, harm: str
) -> None:
    """A lifecycle rule deletes committed files that are not finalized, or somebody replaces one.
    Nothing is published, and the message says what to restore."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec, "r1")
    files = storage.files_below(layout.attempt(archive(spec), batch, 1) / "data")
    [key] = [key for key in files if key.name[0] != "_" and "-ids-" not in key.name]
    data = key.read_bytes()
    key.unlink()
    if harm == "changed":
        key.write_bytes(data[::-1])
    with pytest.raises(CorruptionError, match="Nothing was touched.*Restore"):
        finalize(ledger, spec, batch)
    assert prefix.rows() == []
    key.unlink(missing_ok=True)
    with storage.new(key) as file:
        file.write(data)
    finalize(ledger, spec, batch)
    assert prefix.read() == ids(0, 10)


# Attacks H2.
def test_markers_are_listed_from_the_newest_on(
    prefix: StoredPrefix, ledger: Ledger, http_wire: HttpWire, s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A batch lists no more of a long history than a short one. A marker of a batch that the ledger
    does not know is found all the same, and so is a lack of a known one."""
    monkeypatch.setattr("semel.archive.ownership.NOTES_COMPARED", 2)
    through(http_wire, s3, monkeypatch)
    spec = prefix.spec()
    for number in range(5):
        prefix.bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    replayed(ledger, spec, 1, "again")  # Its root is before the newest ones.
    http_wire.done.clear()
    prefix.bench.write("in/5.jsonl", events(50, 60))
    run(ledger, spec, "r5")
    asked = [one for one, _ in http_wire.done if "markers%2F" in one and "list-type" in one]
    assert asked and all("start-after=" in one for one in asked)
    markers = layout.markers(archive(spec))
    (markers / "b00000099.json").write_bytes((markers / "b00000001.json").read_bytes())
    prefix.bench.write("in/6.jsonl", events(60, 70))
    with pytest.raises(TerminalError, match="not of 'events' in this ledger"):
        run(ledger, spec, "r6")
    (markers / "b00000099.json").unlink()
    for number in (1, 7):
        key = layout.marker(archive(spec), number)
        gone = key.read_bytes()
        key.unlink()
        with pytest.raises(TerminalError, match=f"the markers of batch {number} are missing"):
            run(ledger, spec, "r6")
        key.write_bytes(gone)
    run(ledger, spec, "r6")
    assert prefix.read() == ids(0, 70)


@pytest.mark.parametrize(
    ("sink", "match"),
    [
        ({"type": "files", "path": "out/a", "format": "parquet", "archive": "s3://bucket/a"},
         "a folder of files needs its archive next to it"),
        ({"type": "objects", "url": "s3://bucket/lake", "format": "parquet",
          "archive": "s3://bucket/lake/a"},
         "and the sink overlap"),
        ({"type": "delta", "table": "out/t", "archive": "s3://bucket/a//c"}, "has //"),
        ({"type": "delta", "table": "out/t", "archive": "s3://user@bucket/a"}, "Put a login into"),
    ],
)  # fmt: skip
def test_an_archive_in_the_wrong_place_is_refused(
    bench: Workbench, sink: dict, match: str
) -> None:
    """At the key, and before any request."""
    with pytest.raises(SpecError, match=match):
        bench.spec(sink=sink)


@pytest.mark.parametrize(
    ("archives", "match"),
    [
        ("s3://bucket", "and the sink overlap"),  # The sink is the archive of `flights` there.
        ("s3a://bucket/semel", "SEMEL_ARCHIVES is not a URL such as s3://bucket/prefix"),
        ("s3://key:geheim@bucket/semel", "SEMEL_ARCHIVES is not a URL.*Put a login into"),
    ],
)
def test_archives_in_the_wrong_place_are_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, archives: str, match: str
) -> None:
    """The variable is checked as the key is, and its login is not quoted."""
    monkeypatch.setenv("SEMEL_ARCHIVES", archives)
    sink = {"type": "objects", "url": "s3://bucket/flights", "format": "parquet"}
    with pytest.raises((SpecError, TerminalError), match=match) as refused:
        bench.spec("flights", sink=sink)
    assert "geheim" not in str(refused.value)


def test_a_pipeline_keeps_the_archive_that_it_has(
    prefix: StoredPrefix, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its first batches are in a folder, and the variable came later: all commands look into
    the folder, and the audit proves what is there."""
    bench = prefix.bench
    bench.write("in/a.jsonl", [*events(0, 10), b"{not json"])
    with monkeypatch.context() as before:
        before.delenv("SEMEL_ARCHIVES")
        run(ledger, prefix.spec(), "r1")
    spec = prefix.spec()
    bench.write("in/b.jsonl", events(10, 20))
    run(ledger, spec, "r2")
    assert isinstance(layout.archive_folder(spec), Path)
    assert letters(spec, count=9).total == 1 and len(markers_of(spec)) == 2
    proven(spec)


# Attacks AR1.
@pytest.mark.proof
def test_azure_keeps_an_archive(
    bench: Workbench, ledger: Ledger, azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on a server of Azure's blobs, which reports the deletion of an absent object: a
    batch, its replay, collect, and a batch after that."""
    url = f"az://{azure.bucket()}"
    monkeypatch.setenv("SEMEL_ARCHIVES", f"{url}/archives")
    monkeypatch.setenv("SEMEL_ARCHIVES_CONNECTION", CONNECTION)
    sink = {"type": "objects", "url": f"{url}/lake", "connection": CONNECTION, "format": "parquet"}
    spec = bench.spec(sink=sink)
    bench.write("in/a.jsonl", [*events(0, 10), b"{not json"])
    run(ledger, spec, "r1")
    replayed(ledger, spec, 1, "again")
    hours_pass(ledger)
    assert collect(ledger, spec, log=quiet).replaced_removed == 1
    bench.write("in/b.jsonl", events(5, 20))
    run(ledger, spec, "r2")
    assert stored(layout.staging(archive(spec))) == []
    proven(spec)


def test_an_archive_in_the_source_is_refused(bench: Workbench) -> None:
    """Where the source would read what semel keeps."""
    source = {"type": "objects", "url": "s3://bucket/in", "format": "jsonl",
              "schema": {"id": "string", "n": "bigint", "at": "timestamp"}}  # fmt: skip
    sink = {"type": "delta", "table": "out/t", "archive": "s3://bucket/in/a"}
    with pytest.raises(SpecError, match="and the source overlap"):
        bench.spec(source=source, sink=sink)


@pytest.mark.parametrize("held", [1, 100, 1 << 20])
def test_a_spill_of_objects_gives_each_split_its_rows(
    prefix: StoredPrefix, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Whatever rows an object has: pieces of any span are what was written, also none."""
    monkeypatch.setattr(spill_module._ObjectWriter, "bytes_at_once", held)
    job = _job(archive(prefix.spec()))
    with Spill(job, 3) as spill:
        for start in range(0, 60, 6):
            numbers = pa.array(np.arange(start, start + 6))
            spill.write(pa.table([numbers, numbers], schema=with_offset(SCHEMA)))
        spill.write(with_offset(SCHEMA).empty_table())  # All of its records were rejected.
        spill._flush()
        spill.write(with_offset(SCHEMA).empty_table())
    spilled, read = Spilled(spill.path), []
    read_bytes = StorePath.read_bytes
    monkeypatch.setattr(StorePath, "read_bytes", lambda key: read.append(key) or read_bytes(key))
    for start, count in ((0, 0), (0, 5), (5, 20), (25, 34), (59, 1), (60, 0)):
        found = [n for piece in spilled.rows(start, count) for n in piece.column("n").to_pylist()]
        assert found == list(range(start, start + count))
    assert len(read) == len({*read}) == len(storage.names(spill.path))
    with pytest.raises(CorruptionError, match="Run stage again"):
        list(Spilled(spill.path).rows(59, 2))


def _job(place: StorePath) -> object:
    class Job:
        spill_dir = place / "staging" / "spill"

        class spec:  # noqa: N801 - as a job has it
            arrow_schema: Callable = staticmethod(lambda: SCHEMA)

    return Job()


# Attacks AR1.
def test_a_name_is_created_once(prefix: StoredPrefix) -> None:
    """The same bytes again are no error, for they may be this very put; others are refused."""
    key = archive(prefix.spec()) / "markers" / "b00000001.json"
    storage.write_new(key, b"one")
    storage.write_new(key, b"one")
    with pytest.raises(FileExistsError):
        storage.write_new(key, b"two")
    text, version = storage.read_version(key)
    storage.swap(key, b"two", version, through=key.parent)
    with pytest.raises(RetryableError, match="another process replaced it"):
        storage.swap(key, b"three", version, through=key.parent)
    assert (text, key.read_bytes()) == (b"one", b"two")
    facts = storage.stat(key)
    assert (facts.size, facts.checksum) == (3, storage.checksum(key))


def test_a_file_that_failed_is_not_put(prefix: StoredPrefix) -> None:
    """A task that fails while it writes leaves no object."""
    key = archive(prefix.spec()) / "staging" / "half"
    with pytest.raises(ZeroDivisionError), storage.new(key) as file:
        file.write(b"half")
        _ = 1 / 0
    assert not key.exists()


# Attacks S10.
def test_a_store_that_is_away_is_no_loss(
    prefix: StoredPrefix, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage stages nothing, and a batch that has committed stays so until the store is back."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    batch = plan(ledger, spec, "r1").batch.batch_id
    variable = f"AIRFLOW_CONN_{CONNECTION.upper()}"
    with monkeypatch.context() as away, pytest.raises(RetryableError, match="does not answer"):
        away.setenv(variable, s3.connection("http://127.0.0.1:9"))
        stage(ledger, spec, batch, LocalEngine(), quiet)
    assert committed(ledger, spec, "r1") == batch
    with monkeypatch.context() as away, pytest.raises(RetryableError, match="does not answer"):
        away.setenv(variable, s3.connection("http://127.0.0.1:9"))
        finalize(ledger, spec, batch)
    finalize(ledger, spec, batch)
    assert prefix.read() == ids(0, 10)


# Attacks AR1.
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_the_batch_path_of_a_stored_archive(
    bench: Workbench, s3: S3, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Its tasks write into the store, with ids that earlier batches know; the driver reads their
    rows, and nothing of it stays anywhere. A compare that was killed leaves its objects to the next
    one, which spares those of a compare that still runs.
    """
    prefix = StoredPrefix(bench, s3, monkeypatch)
    prefix.format = format
    spec = prefix.spec()
    for number, (start, stop) in enumerate([(0, 10), (5, 20), (15, 30)]):
        bench.write(f"in/{number}.jsonl", [*events(start, stop), b"{not json"])
        run(ledger, spec, f"r{number}")
    before = stored(archive(spec))
    found = compared(ledger, spec, 2, 3)
    assert found.equal and found.known == 5 and found.rows_live == 20
    assert stored(archive(spec)) == before and local_files(bench) == []
    killed = layout.staging(archive(spec)) / "compare-killed" / "ids"
    storage.write_new(killed, b"left")
    with scratch_folders(ledger, layout.staging(archive(spec))) as alive:
        assert not killed.exists()
        storage.write_new(alive.shared / "ids", b"used")
        assert compared(ledger, spec).equal
        assert (alive.shared / "ids").exists()
    assert stored(archive(spec)) == before


NAMES = {
    "spill": r"/staging/.*\.arrow", "staged": r"/staging/.*/data/", "ids": "/ids/", "decisions": "/decisions/",
    "marker": "/markers/", "any": "/",
}  # fmt: skip


# Attacks AR1, S10, F6.
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(("status", "times"), [(503, 1), (503, 9), (409, 1), (409, 2)])
def test_a_busy_store_is_no_loss(
    prefix: StoredPrefix, ledger: Ledger, http_wire: HttpWire, s3: S3,
    monkeypatch: pytest.MonkeyPatch, kind: str, status: int, times: int,
) -> None:  # fmt: skip
    """A store asks for less, or answers that two requests collided (S3: 409), whatever it is that is
    put: the batch goes on, or its next attempt does, and each record is there once.
    """
    through(http_wire, s3, monkeypatch)
    prefix.bench.write("in/a.jsonl", [*events(0, 10), *events(3, 6)])
    spec = prefix.spec()
    http_wire.refuse(status, f"PUT [^ ]*{NAMES[kind]}", times)
    for _ in range(3):
        try:
            run(ledger, spec, "r1")
            break
        except RetryableError as error:
            assert times == 9, error
            http_wire.refuse(status, "PUT", 0)
    assert prefix.read() == ids(0, 10)
    proven(spec)
