"""limits.keep_history: the markers of old batches go into packs, and nobody misses one."""

import json
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import committed, ids, quiet, run, settled, sql
from fixtures.batches.compares import compared
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import admitted, proven, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Upstream
from fixtures.files.markers import snippet
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.topics import Topic
from fixtures.objects.outlet import StoredPrefix
from fixtures.objects.s3 import S3
from fixtures.postgres.server import database, lose
from fixtures.spark.local import LocalEngine
from semel import failpoints, storage
from semel.archive import layout, ownership, provenance
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.collect import Collected, collect, pack
from semel.commit import commit
from semel.errors import CorruptionError, SpecError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reader import dataset
from semel.repair.adopt import adopt
from semel.repair.erasure import accept_erased
from semel.reports.dead_letters import letters
from semel.reports.find import find
from semel.stage import stage
from semel.storage import packs
from semel.storage.packs import unpack

NEWEST = 2
HISTORY = {"quarantine_ratio_max": 1.0, "keep_history": "0 s"}
POINTS = [point for point in failpoints.points() if point.startswith("pack.")]


@pytest.fixture(autouse=True)
def _small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of three batches, from one on, and two batches that stay."""
    monkeypatch.setattr(pack, "PACK_BATCHES_MIN", 1)
    monkeypatch.setattr(pack, "PACK_BATCHES_MAX", 3)
    monkeypatch.setattr(ownership, "NOTES_COMPARED", NEWEST)


def grown(bench: Workbench, ledger: Ledger, count: int = 6, **changes: Any) -> Spec:
    """A pipeline with as many batches, which read one file after the other, and then some of it
    that was appended: each with ten new records, a repeat of the first and one that is none.
    """
    spec = bench.spec(**{"limits": HISTORY, **changes})
    for number in range(1, count + 1):
        come(bench, ledger, spec, number)
    return spec


def come(bench: Workbench, ledger: Ledger, spec: Spec, number: int) -> None:
    new = [*events(10 * number, 10 * number + 10), *events(10, 11), b"{bad"]
    bench.write(f"in/{number % 2}.jsonl", new, "ab")
    run(ledger, spec, f"r{number}")


def packed(ledger: Ledger, spec: Spec) -> Collected:
    done = collect(ledger, spec, quiet)
    assert done is not None and done.damaged == (), done
    return done


def erase(ledger: Ledger, spec: Spec, batch_id: int) -> None:
    """A person removes the output of a batch, and says so."""
    [marker] = [marker for marker in markers_of(spec) if marker.batch_id == batch_id]
    [file] = marker.of_kind(Kind.DATA)
    marker.path_of(file).unlink()
    accept_erased(ledger, spec, (batch_id, batch_id), lacking=10, why="asked")


def names(spec: Spec) -> tuple[list[str], list[str]]:
    """The markers in their folder, and the packs."""
    archive = layout.archive_folder(spec)
    found = storage.names(layout.markers(archive)), storage.names(layout.packs(archive))
    return tuple([name for name in sorted(part) if name[0] != "."] for part in found)


def counted(ledger: Ledger, table: str) -> int:
    return sql(ledger, f"SELECT count(*) AS rows FROM semel.{table}")[0]["rows"]


# Attacks HI1, HI2, HI3.
def test_old_markers_go_into_packs(bench: Workbench, ledger: Ledger) -> None:
    """Six batches, of which the four oldest are packed, three in a pack: every row, decision and
    dead letter is accounted for as before, by the judge of the tests and by the audit, and further
    batches drop the ids of packed ones.
    """
    spec = grown(bench, ledger)
    before, rows = settled(spec), dataset(spec.sink_path()).to_table().num_rows
    manifest = counted(ledger, "manifest_file")
    assert packed(ledger, spec).batches_packed == 4
    markers, in_packs = names(spec)
    assert markers == ["b00000005.json", "b00000006.json"]
    assert [name.partition("-")[0] for name in in_packs] == ["b00000001", "b00000004"]
    assert settled(spec) == before
    assert dataset(spec.sink_path()).to_table().num_rows == rows == 60
    assert counted(ledger, "manifest_file") < manifest and counted(ledger, "claim") == 4
    assert packed(ledger, spec).batches_packed == 0
    for number in (7, 8):
        come(bench, ledger, spec, number)
    assert packed(ledger, spec).batches_packed == 2
    after = settled(spec)
    assert after.ids == ids(10, 90) and after.counts.duplicates_catalog == 7
    assert counted(ledger, "claim") == 4


# Attacks P5.
def test_a_packed_request_is_answered(bench: Workbench, ledger: Ledger) -> None:
    """The request of a packed batch, and each verb on it, find it finalized: no second batch."""
    spec = grown(bench, ledger)
    packed(ledger, spec)
    answered = run(ledger, spec, "r1")
    assert answered.plan.batch is None and answered.finalized is None
    assert (answered.plan.before.batch_id, answered.plan.before.status) == (1, "finalized")
    staged = stage(ledger, spec, 2, LocalEngine(), quiet)
    assert staged.found and commit(ledger, spec, 2, lambda: None, quiet).found
    assert finalize(ledger, spec, 2).found and counted(ledger, "batch") == 6
    assert settled(spec).ids == ids(10, 70)


# Attacks HI2.
def test_what_others_need_stays_whole(bench: Workbench, ledger: Ledger) -> None:
    """A batch that was replayed, one whose dead letters were judged again, and one of which rows
    were erased keep all of their rows; each can be replayed or judged again as before.
    """
    spec = grown(bench, ledger, 7)
    replayed(ledger, spec, 1, "again")
    admitted(ledger, spec, 2)
    erase(ledger, spec, 3)
    assert packed(ledger, spec).batches_packed == 4
    at = sql(ledger, "SELECT batch_id FROM semel.batch WHERE packed_in IS NOT NULL ORDER BY 1")
    assert [row["batch_id"] for row in at] == [4, 5, 6, 7]
    replayed(ledger, spec, 1, "once more")
    proven(spec)


# Attacks HI2.
def test_packed_batches_are_not_computed_again(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """A replay, an admission and a comparison of a packed batch are refused before any work."""
    spec = grown(bench, ledger)
    packed(ledger, spec)
    for line in (
        "semel replay events --batches 1",
        "semel replay events --batches 1 --requarantine",
        "semel compare events --batches 1",
    ):
        shell.runs(line, 1)
        assert "older than limits.keep_history" in shell.err, line
        assert "next: semel show 1" in shell.err
        shell.runs("semel show 1")
    assert counted(ledger, "batch") == 6 and compared(ledger, spec, 5, 6).equal
    replayed(ledger, spec, 5, "again")
    proven(spec)


# Attacks HI2.
@pytest.mark.parametrize("kind", ["replay", "admission"])
def test_a_plan_loses_to_a_pack(
    bench: Workbench, ledger: Ledger, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collect begins to pack a batch when its replay, or its admission, is about to be written."""
    spec = grown(bench, ledger)
    spec_with_code = provenance.spec_with_code

    def pack_first(spec: Spec) -> dict[str, Any]:
        packed(ledger, spec)
        return spec_with_code(spec)

    monkeypatch.setattr(provenance, "spec_with_code", pack_first)
    with pytest.raises(TerminalError, match="older than limits.keep_history"):
        replayed(ledger, spec, 1, "again") if kind == "replay" else admitted(ledger, spec, 1)
    assert counted(ledger, "batch") == 6
    settled(spec)


# Attacks HI1.
@pytest.mark.parametrize(
    ("point", "twin"),
    [(point, twin) for point in POINTS for twin in (False, True)
     if not twin or point != "pack.before_end"],  # There it has the pipeline's lock.
)  # fmt: skip
def test_a_collect_dies_while_it_packs(
    bench: Workbench, ledger: Ledger, point: str, twin: bool
) -> None:
    """Dead at any step, or overtaken by another collect there: the next one ends what was begun."""
    spec = grown(bench, ledger, 5)
    before = settled(spec)
    if twin:
        with failpoints.armed(point, lambda: packed(ledger, spec)):
            packed(ledger, spec)
    else:
        with dies_at(point):
            collect(ledger, spec, quiet)
        assert settled(spec) == before
    packed(ledger, spec)
    assert settled(spec) == before
    assert names(spec)[0] == ["b00000004.json", "b00000005.json"] and len(names(spec)[1]) == 1
    open_packs = "SELECT FROM semel.batch WHERE packed_in IS NOT NULL AND packed_at IS NULL"
    assert sql(ledger, open_packs) == [] and counted(ledger, "claim") == 4


# Attacks HI1.
def test_a_changed_marker_is_not_packed(bench: Workbench, ledger: Ledger) -> None:
    """Somebody changes a marker behind collect's choice: no pack is noted or written, the audit
    knows the marker, and when it is as it was collect packs it.
    """
    spec = grown(bench, ledger, 5)
    path = layout.marker(layout.archive_folder(spec), 1)
    text = path.read_bytes()
    with failpoints.armed("pack.after_begin", lambda: path.write_bytes(text + b" ")):
        done = collect(ledger, spec, quiet)
    assert done.batches_packed == 0 and "was changed while collect packed" in done.damaged[0]
    assert names(spec)[1] == [] and len(names(spec)[0]) == 5
    path.unlink()
    done = collect(ledger, spec, quiet)
    assert done.batches_packed == 2 and "this marker is missing" in done.damaged[0]
    path.write_bytes(text)
    assert packed(ledger, spec).batches_packed == 1
    proven(spec)


# Attacks HI1.
def test_a_pack_that_is_noted_no_more_ends_nothing(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another collect has found a changed marker, and released the pack, when this one has written
    it: the ledger keeps all rows, and the next collect packs these batches.
    """
    monkeypatch.setattr(pack, "PACKS_PER_COLLECT_MAX", 1)
    spec = grown(bench, ledger, 5)
    files = counted(ledger, "manifest_file")
    release = "UPDATE semel.batch SET packed_in = NULL WHERE packed_at IS NULL"
    with failpoints.armed("pack.after_remove", lambda: sql(ledger, f"{release} RETURNING 1")):
        packed(ledger, spec)
    assert counted(ledger, "manifest_file") == files and counted(ledger, "claim") == 5
    replayed(ledger, spec, 1, "again")
    proven(spec)
    assert packed(ledger, spec).batches_packed == 3  # All but the replayed one.
    proven(spec)


# Attacks HI1, ER1.
def test_an_erasure_beside_two_collects(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collect has read a marker, and is about to remove it; another one wants to end the pack,
    and then a person erases rows of that batch. The person's marker stays.
    """
    spec = grown(bench, ledger, 5)
    unlink, others = Path.unlink, ThreadPoolExecutor(1)
    done: list[Future[None]] = []

    def overtake() -> None:
        packed(ledger, spec)
        erase(ledger, spec, 1)

    def slowly(path: Path, **options: bool) -> None:
        if not done and path.name == "b00000001.json":
            done.append(others.submit(overtake))
            time.sleep(2)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", slowly)
    collect(ledger, spec, quiet)
    done[0].result(60)
    others.shutdown()
    assert markers_of(spec)[0].erased_rows == 10 and audit(spec).ok


# Attacks HI1, RP5.
def test_a_finalizer_that_slept(bench: Workbench, ledger: Ledger) -> None:
    """A finalizer stops before it writes the marker. Another one finalizes the batch, and collect
    packs it. When the first one goes on, it writes no marker beside the packed one.
    """
    spec = grown(bench, ledger, 1)
    bench.write("in/0.jsonl", events(20, 30), "ab")
    batch_id = committed(ledger, spec, "r2")

    def overtake() -> None:
        finalize(ledger, spec, batch_id)
        for number in range(3, 6):
            come(bench, ledger, spec, number)
        packed(ledger, spec)

    with failpoints.armed("finalize.after_publish", overtake):
        finalize(ledger, spec, batch_id)
    assert names(spec)[0] == ["b00000004.json", "b00000005.json"]
    assert settled(spec).ids == ids(10, 60)


# Attacks H2.
@pytest.mark.parametrize("state", ["planned", "abandoned"])
def test_batches_without_output_do_not_count(
    bench: Workbench, ledger: Ledger, state: str
) -> None:
    """Batches that never committed are none of the newest ones, which stay: stage and finalize find
    the marker of each batch that they ask for.
    """
    spec = grown(bench, ledger, 4)
    bench.write("in/0.jsonl", events(50, 60), "ab")
    batch_id = plan(ledger, spec, "r5").batch.batch_id
    if state == "abandoned":
        abandon(ledger, batch_id, "test")
    assert packed(ledger, spec).batches_packed == 2
    run(ledger, spec, "r5")
    assert settled(spec).ids == ids(10, 60)


# Attacks H2.
def test_collect_packs_between_two_looks(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collect packs markers after stage has asked the ledger for the newest batches: none counts as
    missing.
    """
    spec = grown(bench, ledger, 5)
    bench.write("in/0.jsonl", events(60, 70), "ab")
    known_batches = ownership.known_batches

    def ask(*args: Any, **options: Any) -> list[Any]:
        known = known_batches(*args, **options)
        with monkeypatch.context() as patch:
            patch.setattr(ownership, "NOTES_COMPARED", 1)
            patch.setattr(ownership, "known_batches", known_batches)
            packed(ledger, spec)
        return known

    monkeypatch.setattr(ownership, "known_batches", ask)
    run(ledger, spec, "r6")
    assert settled(spec).ids == ids(10, 70)


# Attacks HI1.
def test_a_marker_that_differs_stays(bench: Workbench, ledger: Ledger) -> None:
    """A marker that differs from the packed one when collect removes it stays, and counts."""
    spec = grown(bench, ledger, 5)
    path = layout.marker(layout.archive_folder(spec), 1)
    other = path.read_bytes().replace(b'"r1"', b'"rx"')
    with failpoints.armed("pack.before_remove", lambda: path.write_bytes(other)):
        packed(ledger, spec)
    assert path.read_bytes() == other and markers_of(spec)[0].request_key == "rx"


# Attacks HI5.
@pytest.mark.parametrize("harm", ["cut", "altered", "null", "swapped", "gone", "foreign"])
def test_a_damaged_pack_is_noticed(bench: Workbench, ledger: Ledger, harm: str) -> None:
    """Readers and the audit name a pack whose markers do not match its name, and a missing one."""
    spec = grown(bench, ledger, 8)
    packed(ledger, spec)
    first, second = sorted(layout.packs(layout.archive_folder(spec)).iterdir())
    if harm == "cut":
        first.write_bytes(first.read_bytes()[:-9])
    elif harm == "altered":
        rows = pq.read_table(first)
        texts = [text.replace('"r1"', '"rx"') for text in rows["marker"].to_pylist()]
        pq.write_table(rows.set_column(1, rows.schema.field(1), pa.array(texts)), first)
    elif harm == "null":
        table = pa.table({"batch_id": [1, None, 3], "marker": ["{}", "{}", "{}"]})
        pq.write_table(table, first)
    elif harm == "swapped":
        shutil.copyfile(second, first)
    elif harm == "gone":
        first.unlink()
    else:
        (first.parent / "notes.txt").write_text("mine")
    verdict = audit(spec)
    blamed = [o for check in verdict.checks for o in check.offenders]
    assert not verdict.ok
    if harm in ("cut", "altered", "null", "swapped"):
        assert any("cannot read this pack of markers" in o.what for o in blamed)
        with pytest.raises(CorruptionError, match="Restore it from a backup"):
            dataset(spec.sink_path())
    elif harm == "gone":
        assert any("commits 1 to 3 have no marker" in o.what for o in blamed)
    else:
        assert [o.file for o in blamed] == [str(first.parent / "notes.txt")]


# Attacks HI5, D2.
def test_a_lost_ledger_is_adopted_from_packs(bench: Workbench, ledger: Ledger) -> None:
    """Adopt takes over packed batches like all others, and leaves the packs to their readers. They
    can be replayed then, and collect packs the others again, into the same packs.
    """
    spec = grown(bench, ledger, 6)
    packed(ledger, spec)
    before, packs_before = settled(spec), names(spec)[1]
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).batches == 6
    assert settled(spec) == before and names(spec)[1] == packs_before
    bench.write("in/again.jsonl", events(10, 20))
    run(ledger, spec, "again")
    assert settled(spec).ids == ids(10, 70)
    replayed(ledger, spec, 4, "once more")
    assert names(spec)[0][0] == "b00000004.json"
    assert packed(ledger, spec).batches_packed == 5
    assert names(spec)[1][0] == packs_before[0]
    assert names(spec)[0] == ["b00000004.json", "b00000007.json"]
    proven(spec)


def test_a_marker_is_taken_out_of_a_pack(bench: Workbench, ledger: Ledger) -> None:
    """docs/operations.md: `unpack` writes all packed markers to their folder, also if it dies half
    way, so that a person can move one away; an erased batch keeps its own.
    """
    spec = grown(bench, ledger)
    packed(ledger, spec)
    erase(ledger, spec, 1)
    before = markers_of(spec)
    archive = layout.archive_folder(spec)
    with dies_at("packs.before_unpacked"):
        unpack(archive)
    assert markers_of(spec) == before and len(names(spec)[1]) == 2
    assert unpack(archive) == 2 and unpack(archive) == 0
    assert markers_of(spec) == before and len(names(spec)[0]) == 6 and audit(spec).ok


# Attacks ER1, ER2.
def test_a_packed_batch_is_erased(bench: Workbench, ledger: Ledger) -> None:
    """A person erases rows of a packed batch: its marker has the word, counts before the packed
    one, stays with the next collect, and comes through a lost ledger.
    """
    spec = grown(bench, ledger)
    packed(ledger, spec)
    erase(ledger, spec, 1)
    assert audit(spec).ok and names(spec)[0][0] == "b00000001.json"
    packed(ledger, spec)
    assert audit(spec).ok and markers_of(spec)[0].erased_rows == 10
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).batches == 6
    assert counted(ledger, "erasure") == 1 and audit(spec).ok


def test_reports_read_packs(
    bench: Workbench, ledger: Ledger, shell: Shell, pages: Pages
) -> None:
    """show, letters, find and the lists say of a packed batch what they said before; its page in
    Airflow has its account, and says where its input and output are listed.
    """
    spec = grown(bench, ledger)
    before = json.loads(shell.runs("semel show 1 --json"))["answer"]
    listed = json.loads(shell.runs("semel batches events --json"))
    found = find(spec, ["e000012"])
    told = letters(spec, batch_id=1, count=20)
    packed(ledger, spec)
    after = json.loads(shell.runs("semel show 1 --json"))["answer"]
    for key in ("claims", "code", "replays"):
        assert after[key] == before[key], key
    assert after["files"] == before["files"]
    assert after["batch"]["packed_in"].startswith("b00000001-")
    assert json.loads(shell.runs("semel batches events --json")) == listed
    assert find(spec, ["e000012"]) == found
    assert letters(spec, batch_id=1, count=20) == told
    page = pages.get("/semel/dags/events/batches/1").text
    assert "<dt>packed</dt>" in page and page.count("listed in its packed marker") == 2
    assert "<dt>packed</dt>" not in pages.get("/semel/dags/events/batches/6").text
    shutil.rmtree(layout.packs(layout.archive_folder(spec)))
    packs._load.cache_clear()
    shown = json.loads(shell.runs("semel show 1 --json"))["answer"]["batch"]
    assert "it does not exist" in shown["unreadable"]


# Attacks CH1.
def test_a_chain_reads_packed_markers(
    bench: Workbench, ledger: Ledger, postgres: str, template: str
) -> None:
    """A pipeline that reads this one takes each batch once, whether its marker was packed before
    or after: nothing is read twice, missed, or refused as gone.
    """
    with database(postgres, template) as dsn, Ledger(dsn) as above:
        up = Upstream(bench, above)
        up.declared = up.declared.model_copy(
            update={"limits": up.declared.limits.model_copy(update={"keep_history": timedelta(0)})}
        )
        for start in range(0, 40, 10):
            up.append(start, start + 10)
        spec = up.spec(limits={"bytes_per_batch_max": 1})
        assert run(ledger, spec, "r1").plan.names == ("up/b00000001",)
        assert packed(above, up.declared).batches_packed == 2
        for number in range(2, 5):
            assert run(ledger, spec, f"r{number}").plan.names == (f"up/b0000000{number}",)
        up.append(40, 50)
        assert packed(above, up.declared).batches_packed == 1
        run(ledger, spec, "r5")
        assert run(ledger, spec, "r6").plan.batch is None
        assert settled(spec).ids == ids(0, 50)


def test_an_archive_in_a_store_is_packed(
    bench: Workbench, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in a store, through a death between pack and ledger, and a lost ledger."""
    place = StoredPrefix(bench, s3, monkeypatch)
    spec = bench.spec(sink=place.declared, limits=HISTORY)
    for number in range(1, 6):
        come(bench, ledger, spec, number)
    with dies_at("pack.after_remove"):
        collect(ledger, spec, quiet)
    assert packed(ledger, spec).batches_packed == 3
    assert names(spec)[0] == ["b00000004.json", "b00000005.json"] and len(names(spec)[1]) == 1
    proven(spec)
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).batches == 5
    assert packed(ledger, spec).batches_packed == 3
    proven(spec)


# Attacks HI3.
@pytest.mark.parametrize("hole", [False, True])
def test_claims_of_packed_batches_become_one(
    bench: Workbench, ledger: Ledger, hole: bool
) -> None:
    """Claims that touch become one per source partition, and no position in them can be claimed
    again; where another batch has claimed something between them they stay apart.
    """
    spec = bench.spec(limits={**HISTORY, "bytes_per_batch_max": 600}, record_id=None)
    bench.write("in/a.jsonl", events(0, 90))
    for number in range(1, 9):
        run(ledger, spec, f"r{number}")
    if hole:
        replayed(ledger, spec, 3, "again")
    covered = "SELECT range_agg(span) AS spans FROM semel.claim"
    before = sql(ledger, covered)
    packed(ledger, spec)
    assert sql(ledger, covered) == before
    spans = sql(ledger, "SELECT batch_id, span FROM semel.claim ORDER BY span")
    assert len(spans) == (4 if hole else 3), spans
    for number in range(9, 13):
        run(ledger, spec, f"r{number}")
    packed(ledger, spec)
    assert settled(spec, audited=not hole).counts.survivors == 90


# Attacks HI2, HI3, W1, W4.
@pytest.mark.parametrize("select", ["arrival", "interval"])
@pytest.mark.parametrize("kind", ["files", "kafka"])
def test_packing_moves_no_time(
    bench: Workbench, ledger: Ledger, kafka: Kafka, select: str, kind: str
) -> None:
    """Two pipelines read the same days, one of which comes late. One packs its history after each
    batch: both know the same of time, batch after batch, and have the same rows.
    """
    topic = Topic(bench, kafka, partitions=2)
    declared = {"record_time": "at", "window": {"size": "1 day"}, "record_id": None}
    source: dict[str, Any] = {"select": select}
    if kind == "files" and select == "interval":
        source["interval_from"] = "%Y-%m-%d.jsonl"
    declare = topic.spec if kind == "kafka" else bench.spec
    keeps = declare(name="keeps", source=source, **declared)
    packing = declare(name="packs", source=source, limits=HISTORY, **declared)
    for place, day in enumerate((1, 2, 4, 5, 6, 3, 7)):
        at = datetime(2026, 1, day, 12, tzinfo=UTC)
        records = [{"id": f"{day}-{n}", "n": n, "at": at.isoformat()} for n in range(10)]
        if kind == "files":
            bench.write(f"in/2026-01-{day:02d}.jsonl", records)
        else:
            stamp = int(1000 * at.timestamp())
            topic.put(
                Record(value=json.dumps(r).encode(), timestamp_ms=stamp, partition=place % 2)
                for r in records
            )
        midnight = at.replace(hour=0)
        window = (midnight, midnight + timedelta(days=1)) if select == "interval" else None
        known = {}
        for spec in (keeps, packing):
            run(ledger, spec, f"day{day}", window)
            [known[spec.name]] = sql(
                ledger,
                "SELECT covered, event_time, arrived_to FROM semel.pipeline WHERE name = :name",
                name=spec.name,
            )
        assert known["packs"] == known["keeps"]
        packed(ledger, packing)
    assert len(names(packing)[0]) < 5 < len(names(keeps)[0])
    assert settled(packing).counts == settled(keeps).counts


# Attacks HI4.
def test_headers_of_dropped_segments_go(bench: Workbench, ledger: Ledger) -> None:
    """Segments that were dropped before keep_history go with the headers of their id runs; ids
    within their horizon stay, and drop repeats.
    """
    spec = grown(bench, ledger)
    sql(ledger, "UPDATE semel.segment SET span_start = now() - interval '2 hours', "
                "span_end = now() - interval '1 hour'")  # fmt: skip
    sql(ledger, "UPDATE semel.id_run SET expires_at = now()")
    runs = counted(ledger, "id_run")
    assert collect(ledger, spec, quiet).segments_dropped == 1
    come(bench, ledger, spec, 7)
    packed(ledger, spec)
    left = sql(ledger, "SELECT segment_id FROM semel.segment WHERE dropped_at IS NOT NULL")
    assert left == [] and 0 < counted(ledger, "id_run") < runs
    come(bench, ledger, spec, 8)
    assert settled(spec, audited=False).counts.duplicates_catalog == 5 + 1


def test_duckdb_reads_packs(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of docs/reading.md counts the rows of packed batches too, each once: also while a
    marker is there twice, and of a batch whose packed marker lists an erased file.
    """
    spec = grown(bench, ledger, 11, name="flights")
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(pack, "PACKS_PER_COLLECT_MAX", 1)
    with dies_at("pack.before_remove"):
        collect(ledger, spec, quiet)
    files = snippet("DuckDB:")
    of_packs = snippet("markers first, as above, and then those of the packs. DuckDB:")
    with duckdb.connect() as connection:
        assert connection.execute(files + of_packs).fetchone() == (110,)
        packed(ledger, spec)
        assert connection.execute(files + of_packs).fetchone() == (110,)
        connection.execute(files)
        assert packed(ledger, spec).batches_packed == 3
        assert connection.execute(of_packs).fetchone() == (110,)
        erase(ledger, spec, 1)
        assert connection.execute(files + of_packs).fetchone() == (100,)


# Attacks HI4.
def test_headers_of_merged_runs_go_in_order(bench: Workbench, ledger: Ledger) -> None:
    """Runs that were merged, and merged again, in segments of which the oldest is there still, or
    was dropped after the others: a header goes only with all that name it.
    """
    spec = grown(bench, ledger, 3, dedup={"shards": 1})
    sql(ledger, """
        INSERT INTO semel.segment (pipeline_id, span_start, span_end, dropped_at)
        SELECT pipeline_id, span_start + n * interval '1 day', span_end + n * interval '1 day',
               now()
        FROM semel.segment, generate_series(1, 3) AS n RETURNING 1""")
    runs = [r["id_run_id"] for r in sql(ledger, "SELECT id_run_id FROM semel.id_run ORDER BY 1")]
    move = "UPDATE semel.id_run SET segment_id = :segment WHERE id_run_id = :run RETURNING 1"
    merge = "UPDATE semel.id_run SET retired_by = :run, retired_at = now() "
    merge += "WHERE id_run_id = :part RETURNING 1"
    for part, run_id, segment in zip(runs, runs[1:], (2, 3), strict=False):
        sql(ledger, move, segment=segment, run=run_id)
        sql(ledger, merge, run=run_id, part=part)
    assert packed(ledger, spec).batches_packed == 1 and counted(ledger, "id_run") == 3
    sql(ledger, "UPDATE semel.segment SET dropped_at = now() RETURNING 1")
    packed(ledger, spec)
    assert counted(ledger, "id_run") == 0 and counted(ledger, "segment") == 0


def test_history_is_kept_by_default(bench: Workbench, ledger: Ledger) -> None:
    """Without keep_history nothing is packed; a pack that was begun under it is ended all the
    same, because its batches could not be replayed.
    """
    spec = grown(bench, ledger)
    plain = bench.spec()
    assert packed(ledger, plain).batches_packed == 0 and names(spec)[1] == []
    with dies_at("pack.after_begin"):
        collect(ledger, spec, quiet)
    assert packed(ledger, plain).batches_packed == 3


def test_windows_of_files_refuse_keep_history(bench: Workbench) -> None:
    """The SQL that semel prints for windows in a folder reads markers, and cannot see packs."""
    with pytest.raises(SpecError, match="keep_history.*does not work with aggregate into a folder"):
        bench.spec(
            record_time="at", window={"size": "1 hour"}, limits={"keep_history": "30 days"},
            aggregate={"columns": {"records": "count()"}},
        )  # fmt: skip

