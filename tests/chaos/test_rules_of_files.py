"""Rules of files and of collect that no kill, twin or lost reply would show broken."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from fix_disk import Disk
from fix_scene import (
    Scene,
    committed,
    finalized,
    manifest,
    staged,
    staged_folders,
    statements,
    status,
)
from fixtures.batches.account import quiet, run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from fixtures.spark import local
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel import ledger as ledger_module
from semel.archive import layout
from semel.catalog.payload import FilterCache
from semel.catalog.runs import snapshot
from semel.cli import main
from semel.collect import collect
from semel.collect.merge import merge, merge_candidates
from semel.commit import commit
from semel.errors import RetryableError, TerminalError, UnavailableError
from semel.failpoints import FaultError
from semel.ledger import Ledger, pipelines
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.losses import accept_loss
from semel.stage import stage


# Attacks G6.
def test_a_folder_that_goes_while_collect_looks(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalize removes a batch's folder between two looks of collect: both end well."""
    scene = Scene(bench, ledger)
    staging = layout.staging(layout.archive_folder(scene.spec))
    going = staging / "b00000099"
    going.mkdir(parents=True)
    scandir = os.scandir

    def removed_first(path: str = ".") -> object:
        if os.fspath(path).rstrip("/").endswith(going.name):
            with suppress(FileNotFoundError):
                going.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_first)
    collect(ledger, scene.spec, quiet)
    assert not going.exists()


# Attacks S10, F5, F6, F8.
def test_what_is_said_to_be_there_outlasts_a_loss_of_power(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files last before their task reports them, their names before `staged`; final names before
    the marker, the marker before `finalized`, and the staged names until that has committed.
    """
    disk = Disk(bench.folder, monkeypatch)
    spec = bench.spec(sink={"partition_by": ["n"], "position_columns": True})
    bench.write("in/a.jsonl", [*events(0, 3), *events(0, 1), b"{bad"])
    seen: list[str] = []

    def reported(step: Callable) -> Callable:
        def call(*arguments: object, **options: object) -> object:
            done = step(*arguments, **options)
            for each in getattr(done, "reports", done):
                for file in each.files:
                    assert disk.holds(file.path) and not disk.is_open(file.path)
                    seen.append("reported")
            return done

        return call

    for step in ("read_task", "write_task"):
        monkeypatch.setattr(local, step, reported(getattr(local, step)))

    def sealing(_: object, text: str, values: dict) -> None:
        if "INSERT INTO semel.manifest_file" in text:
            seen.append("sealed")
            staged_paths = [file["staged_path"] for file in json.loads(values["files"])]
            assert len(staged_paths) == 5 and all(map(disk.keeps, staged_paths))

    with statements(sealing):
        batch_id = plan(ledger, spec, "r1").batch.batch_id
        stage(ledger, spec, batch_id, LocalEngine(), quiet)
    commit(ledger, spec, batch_id, lambda: None, quiet)
    names = manifest(ledger, batch_id)
    marker = layout.archive_folder(spec) / "markers" / f"b{batch_id:08d}.json"

    def marking() -> None:
        seen.append("marked")
        assert not marker.exists() and all(disk.keeps(final) for _, final in names)

    def finishing() -> None:
        seen.append("finished")
        assert disk.keeps(marker) and all(disk.keeps(a) for pair in names for a in pair)

    def removing() -> None:
        seen.append("removed")
        assert status(ledger, batch_id) == "finalized"
        assert all(path.exists() for path, _ in names)

    with (
        failpoints.armed("storage.before_publish", marking),
        failpoints.armed("finalize.before_finalized", finishing),
        failpoints.armed("storage.before_rmtree", removing),
    ):
        run(ledger, spec, "r1")
    assert [*dict.fromkeys(seen)] == ["reported", "sealed", "marked", "finished", "removed"]
    assert not staged_folders(spec)
    assert settled(spec).counts.survivors == 3


# Attacks F8.
@pytest.mark.parametrize(
    "point", ["storage.after_link", "finalize.after_publish", "finalize.before_finalized"]
)
def test_a_crash_may_forget_the_final_names(scene: Scene, point: str) -> None:
    """Until the batch is finalized a new finalize makes names that a crash lost."""
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    with failpoints.armed(point, lambda: _fault(point)), pytest.raises(FaultError):
        finalized(scene, batch_id)
    for _, final in manifest(scene.ledger, batch_id):
        final.unlink(missing_ok=True)
    finalized(scene, batch_id)
    scene.finish("r1", "r2")


def _fault(point: str) -> None:
    raise FaultError(point)


# Attacks G2.
@pytest.mark.parametrize("by", ["age", "merge"])
def test_id_runs_are_retired_under_the_pipelines_lock(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    """While another holds the lock, neither age nor a merge retires a run."""
    scene.run("r1", "r2")
    monkeypatch.setitem(ledger_module._SETTINGS, "lock_timeout", "100ms")
    if by == "age":
        sql(scene.ledger, "UPDATE semel.id_run SET expires_at = now()")
    with scene.ledger.transaction() as connection:
        live = snapshot(connection, 1).runs
    [group, *_] = merge_candidates(live, horizon_seconds=30 * 86_400, live_max=1)
    with Ledger(scene.ledger.dsn) as other, other.transaction() as connection:
        connection.exec_driver_sql("SELECT FROM semel.pipeline FOR NO KEY UPDATE")
        with pytest.raises(RetryableError, match="did not give a lock"):
            if by == "age":
                collect(scene.ledger, scene.spec, quiet)
            else:
                merge(scene.ledger, FilterCache(tmp_path / "filters"), group)
        assert snapshot(connection, 1).runs == live


# Attacks P15.
@pytest.mark.parametrize(
    "verb", ["plan", "accept", "stage", "commit", "abandon", "collect", "merge"]
)
def test_whoever_takes_the_pipelines_lock_sees_that_its_sink_was_moved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    """Moved between the look at the pipeline and its lock: nothing is done, and it can be repeated.

    The row is changed by hand, so that no other guard than this one is asked.
    """
    ledger, spec = scene.ledger, scene.spec
    batch = plan(ledger, spec, "r1").batch.batch_id
    if verb == "commit":
        stage(ledger, spec, batch, LocalEngine(), quiet)
    with ledger.transaction() as connection:
        live = snapshot(connection, 1).runs
    act = {
        "plan": lambda: plan(ledger, spec, "r2"),
        "accept": lambda: accept_loss(ledger, spec, "a.jsonl"),
        "stage": lambda: stage(ledger, spec, batch, LocalEngine(), quiet),
        "commit": lambda: commit(ledger, spec, batch, quiet, quiet),
        "abandon": lambda: abandon(ledger, batch, "by the test"),
        "collect": lambda: collect(ledger, spec, quiet),
        "merge": lambda: merge(ledger, FilterCache(tmp_path), live[:1]),
    }[verb]
    counts = "SELECT count(*), sum(commit_seq) AS seq, count(retired_at) AS retired FROM "
    counts += "semel.batch FULL JOIN semel.attempt USING (batch_id) FULL JOIN semel.id_run ON false"
    before = sql(ledger, counts)

    def move() -> None:
        sql(ledger, "UPDATE semel.pipeline SET sink_address = '/elsewhere'")

    get, lock = pipelines.get, pipelines.lock
    if verb == "merge":  # What it has written keeps others from moving the sink after that.
        monkeypatch.setattr(pipelines, "get", lambda *values: (get(*values), move())[0])
    else:
        monkeypatch.setattr(pipelines, "lock", lambda *values: (move(), lock(*values)))
    with pytest.raises(RetryableError, match=r"was moved from .* to /elsewhere .*Run this again"):
        act()
    assert sql(ledger, counts) == before


# Attacks G8.
def test_what_committed_and_was_left_is_finalized_by_collect(scene: Scene) -> None:
    """Not before `orphan_after`, and then without anybody else; the records are there once."""
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    assert collect(scene.ledger, scene.spec, quiet).batches_finalized == 0
    assert status(scene.ledger, batch_id) == "committed"
    sql(scene.ledger, "UPDATE semel.batch SET committed_at = now() - interval '61 minutes'")
    assert collect(scene.ledger, scene.spec, quiet).batches_finalized == 1
    assert status(scene.ledger, batch_id) == "finalized"
    scene.finish("r2")


# Attacks G8.
def test_a_damaged_batch_does_not_keep_collect_from_the_others(
    scene: Scene, bench: Workbench, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Batches behind it are finalized, and so are those of other pipelines; collect says it loudly.

    The command ends with exit code 1 and names batch and file; what was damaged stays committed.
    """
    monkeypatch.setenv("SEMEL_LEDGER_DSN", scene.ledger.dsn)
    other = bench.spec("visits")
    damaged, behind = staged(scene, "r1"), staged(scene, "r2")
    committed(scene, damaged)
    committed(scene, behind)
    theirs = plan(scene.ledger, other, "v1").batch.batch_id
    stage(scene.ledger, other, theirs, LocalEngine(), quiet)
    commit(scene.ledger, other, theirs, quiet, quiet)
    (folder,) = layout.staging(layout.archive_folder(scene.spec)).glob(f"b{damaged:08d}/f*/data")
    for path in folder.iterdir():
        path.write_bytes(b"damaged")
    sql(scene.ledger, "UPDATE semel.batch SET committed_at = now() - interval '61 minutes'")
    (bench.pipelines / "broken.yaml").write_text("name: broken\n")

    assert main(["collect"]) == 1
    said = capsys.readouterr()
    assert status(scene.ledger, damaged) == "committed"
    assert status(scene.ledger, behind) == status(scene.ledger, theirs) == "finalized"
    assert f"NOT DONE: batch {damaged}: " in said.out and "staged file wrong" in said.out
    assert "collected visits: 1 open commit finalized" in said.out
    assert "broken.yaml:1: source: is missing" in said.err

    assert main(["collect", "--json"]) == 1
    told = answer_in(capsys.readouterr().out)
    assert [f"batch {damaged}: " in line for line in told["collected"][0]["damaged"]] == [True]
    assert [(one["pipeline"], one["error"]) for one in told["failed"]] == [("broken", "SpecError")]
    assert main(["collect", "events"]) == 1
    assert main(["collect", "visits"]) == 0


# Attacks L2.
def test_only_output_lies_beside_semels_own_folder(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment of a batch's life a reader of Hive-style folders sees committed output alone.

    In the end it sees the rows that the markers list, and no others.
    """
    spec = bench.spec(sink={"partition_by": ["n"]})
    sink = spec.sink_path()
    text = (
        "SELECT final_path FROM semel.manifest_file JOIN semel.attempt USING (attempt_id) "
        "WHERE kind = 'data' AND status = 'won'"
    )
    passed = []

    def look(point: str) -> None:
        passed.append(point)
        there = {*sink.rglob("*")}
        if there:
            output = {Path(r["final_path"]) for r in sql(ledger, text)}
            assert there <= output | {path.parent for path in output}, point

    monkeypatch.setattr(failpoints, "point", look)
    bench.write("in/a.jsonl", [*events(0, 4), *events(0, 2), b"{bad"])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(2, 6))
    with suppress(RetryableError):
        run(ledger, spec, "r2", engine=LocalEngine(before_write=_fails))
    collect(ledger, spec, quiet)
    run(ledger, spec, "r2")
    assert {"stage.after_seal", "finalize.after_publish", "collect.after_remove"} <= {*passed}
    rows = ds.dataset(sink, format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted(r["id"] for r in rows) == settled(spec).ids == [e["id"] for e in events(0, 6)]


def _fails(_: object) -> None:
    raise RetryableError("the engine failed")


# Attacks L3.
@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EPERM, UnavailableError),
        (errno.EXDEV, RetryableError),
        (errno.EMLINK, RetryableError),
    ],
)
def test_a_sink_without_hard_links_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int, told: type[Exception]
) -> None:
    """Staged names lie below the sink; where none can be linked, finalize fails and copies nothing.

    Stage finds out before any work, and with links all goes on.
    """
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    names = manifest(scene.ledger, batch_id)
    own = layout.staging(layout.archive_folder(scene.spec))
    assert names and all(path.is_relative_to(own) for path, _ in names)

    def no_links(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        with pytest.raises(told, match=os.strerror(number)):
            finalized(scene, batch_id)
        with pytest.raises(TerminalError, match="does not take hard links"):
            staged(scene, "r2")
    assert status(scene.ledger, batch_id) == "committed"
    assert all(path.exists() and not final.exists() for path, final in names)
    scene.finish("r1", "r2")
