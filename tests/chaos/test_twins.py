"""The same work at the same time: plan, stage, commit, finalize and collect meet themselves."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_scene import Scene, attempts, committed, finalized, staged
from fixtures.batches.account import quiet, sql
from fixtures.batches.faults import collecting
from fixtures.batches.workbench import Workbench
from fixtures.kinds import SINKS
from fixtures.spark.local import LocalEngine
from semel import collect as collect_module
from semel import failpoints
from semel.errors import AttemptLostError, StateError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.sources.files import source as files
from semel.sources.files.listing import FileListing
from semel.stage import stage
from semel.storage import remove_folder

FINALIZE = [
    ("finalize.before_publish", 1),
    ("finalize.after_look", 1),
    ("finalize.after_look", 2),
    ("storage.before_link", 1),
    ("storage.before_link", 2),
    ("storage.after_link", 1),
    ("storage.after_link", 2),
    *(("storage.before_sync_folder", nth) for nth in range(3, 6)),
    ("finalize.after_publish", 1),
    ("storage.before_publish", 1),
    ("storage.after_publish", 1),
    ("finalize.after_mark", 1),
    ("finalize.after_finalized", 1),
]
FINALIZE_INTO = (
    "finalize.before_publish", "finalize.after_look", "sink.before_publish", "sink.after_publish",
    "finalize.after_publish", "finalize.after_mark",
)  # fmt: skip
"""Passed with each sink that is no folder, beside the fault points of its own."""

NO_TWIN = (
    "sink.before_accepted", "sink.before_commit", "store.before_overwrite", "store.after_overwrite",
)  # fmt: skip
"""A run passes the first only where a person accepts refused rows. At the second it holds the lock
of the table, so that its twin waits: the contract suite has both in threads. Replays alone pass the
others: test_stored_races.py has these."""


def finalized_twice() -> list:
    """Each sink that is no folder, at each point that a finalize passes with it."""
    return [
        pytest.param(name, point, id=f"{name}-{point}", marks=kind.marks)
        for name, kind in SINKS.items()
        if kind.landed
        for point in (*FINALIZE_INTO, *kind.fault_points())
        if point not in NO_TWIN
    ]


pytestmark = pytest.mark.usefixtures("merge_always")

STAGE = ("stage.after_begin", "stage.after_folders", "stage.after_job", "stage.after_sync")


# Attacks P2, P3, P5.
@pytest.mark.parametrize("point", ["plan.after_register", "plan.before_lock", "plan.after_write"])
@pytest.mark.parametrize("other", ["r1", "r2"])
def test_plan_twice_at_once(scene: Scene, point: str, other: str) -> None:
    """One request gets one batch; two requests get two, and no byte of the source is in both."""
    answers = []
    with failpoints.armed(point, lambda: answers.append(plan(scene.ledger, scene.spec, other))):
        answers.append(plan(scene.ledger, scene.spec, "r1"))
    batches = {answer.batch.batch_id for answer in answers}
    assert len(batches) == (1 if other == "r1" else 2)
    scene.finish("r1", "r2")


# Attacks P2, P5.
def test_a_twin_plans_before_the_source_is_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that found no batch of its request, and then sees the claims of its twin's, takes that
    one, though the source holds more.
    """
    answers = []
    list_files = files.list_files

    def listed(spec: Spec) -> FileListing:
        monkeypatch.setattr(files, "list_files", list_files)
        answers.append(plan(scene.ledger, scene.spec, "r1"))
        return list_files(spec)

    monkeypatch.setattr(files, "list_files", listed)
    answers.append(plan(scene.ledger, scene.spec, "r1"))
    twin, own = answers
    assert twin.bytes_left and (own.batch, own.created) == (twin.batch, False)
    scene.finish("r1", "r2")


# Attacks F3, F9.
@pytest.mark.parametrize(("point", "nth"), FINALIZE)
def test_finalize_twice_at_once(scene: Scene, point: str, nth: int) -> None:
    """A second finalize runs whole while the first stands at a point: both succeed, exact."""
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    with failpoints.armed(point, lambda: finalized(scene, batch_id), nth) as fault:
        finalized(scene, batch_id)
    assert fault.hit
    scene.finish("r1", "r2")


# Attacks F9, PG2, OB5, OB7, BQ2, DL2, KP2.
@pytest.mark.sample(6)
@pytest.mark.parametrize(("sink", "point"), finalized_twice())
def test_finalize_twice_at_once_into(
    scene_of: Callable[..., Scene], sink: str, point: str
) -> None:
    """The same with each other sink: one of the two lands the rows, or both ask for one job."""
    test_finalize_twice_at_once(scene_of(sink), point, 1)


def test_remove_folder_meets_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another process removes while it is measured is gone, and no error."""
    folder = tmp_path / "f0001"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "part").write_bytes(b"x")
    lstat = os.lstat

    def gone_first(path: str, **options: object) -> os.stat_result:
        if str(path).endswith("part"):
            Path(path).unlink(missing_ok=True)
        return lstat(path, **options)

    monkeypatch.setattr("semel.storage.folder.os.lstat", gone_first)
    remove_folder(folder)
    assert not folder.exists()


# Attacks F5.
def test_finalize_never_marks_what_it_did_not_see_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renames that come to nothing, round after round, end in an error and not in a marker."""
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)

    def nothing(*_: object) -> None:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr("semel.storage.link_new", nothing)
        with pytest.raises(Exception, match=str(batch_id)):
            finalized(scene, batch_id)
    scene.finish("r1", "r2")


# Attacks C1, C7.
def test_two_attempts_of_one_batch(scene: Scene) -> None:
    """Both are staged; the newer one wins, the other is lost, and its files are in no output."""
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def twin(_: object) -> None:
        stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)

    stage(scene.ledger, scene.spec, batch_id, LocalEngine(before_write=twin), quiet)
    assert attempts(scene.ledger, batch_id) == ["staged", "staged"]
    assert committed(scene, batch_id).fence == 2
    assert attempts(scene.ledger, batch_id) == ["lost", "won"]
    scene.finish("r1", "r2")


# Attacks C12.
@pytest.mark.parametrize("by", ["id", "position"])
@pytest.mark.parametrize("point", ["commit.before_compare", "commit.after_compare"])
def test_commit_twice_at_once(bench: Workbench, ledger: Ledger, point: str, by: str) -> None:
    """Both calls answer with the one commit that there is; each record is there once."""
    changes = {"record_id": None, "dedup": None} if by == "position" else {}
    scene = Scene(bench, ledger, **changes)
    batch_id = staged(scene, "r1")
    answers = []
    with failpoints.armed(point, lambda: answers.append(committed(scene, batch_id))):
        answers.append(committed(scene, batch_id))
    assert [(a.batch.commit_seq, a.fence, a.losses) for a in answers] == [(2, 1, 0)] * 2
    assert [a.found for a in answers] == [False, True]
    assert attempts(ledger, batch_id) == ["won"]
    if by == "id":  # The checker goes by ids.
        scene.finish("r1", "r2")


# Attacks C2, C4, C6.
@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1")])
def test_common_ids_committed_in_both_orders(scene: Scene, order: tuple[str, str]) -> None:
    """Of two batches staged at once the second to commit stages again, and drops what is common."""
    batches = {request: staged(scene, request) for request in ("r1", "r2")}
    for request in order:
        committed(scene, batches[request])
    assert attempts(scene.ledger, batches[order[0]]) == ["won"]
    assert attempts(scene.ledger, batches[order[1]]) == ["lost", "won"]
    for request in reversed(order):
        finalized(scene, batches[request])
    found = scene.check()
    # Ten repeats are of r0; the others are what r1 and r2 have in common.
    assert sum(why == "duplicate_in_catalog" for _, _, why in found.decisions) > 10


# Attacks S11.
@pytest.mark.parametrize("act", ["abandon", "twin"])
@pytest.mark.parametrize("then", ["resume", "collect"])
@pytest.mark.parametrize("point", STAGE)
def test_zombie_attempt_is_told(scene: Scene, point: str, act: str, then: str) -> None:
    """An attempt that was given up while it stood still gets AttemptLostError.

    Whatever it still does, also after collect: the output is exact.
    """
    scene.run("r2")  # A second live run per shard, so that there is something to merge.
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def meanwhile() -> None:
        if act == "abandon":
            abandon(scene.ledger, batch_id, "given up by the test")
        else:
            scene.run("r1")
        if then == "collect":
            collecting(scene.ledger, scene.spec)

    with failpoints.armed(point, meanwhile), pytest.raises(AttemptLostError):
        stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)
    assert attempts(scene.ledger, batch_id)[0] == "lost"
    scene.finish("r1", "r2")


# Attacks S1, S19.
def test_stage_meets_a_commit_before_its_fence(scene: Scene) -> None:
    """A twin that commits before this call has its fence: it may be retried, or is answered."""
    batch_id = staged(scene, "r1")
    sql(scene.ledger, "UPDATE semel.attempt SET status = 'lost' WHERE status = 'staged'")

    original = stage.__globals__["_begin"]
    with pytest.MonkeyPatch.context() as patch:

        def begin(*arguments: object) -> object:
            patch.undo()
            scene.run("r1")
            return original(*arguments)

        patch.setitem(stage.__globals__, "_begin", begin)
        with pytest.raises(AttemptLostError):
            stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)
    assert stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet).found


# Attacks S2, G4, G6.
@pytest.mark.parametrize("point", [*STAGE, "commit.before_compare", "commit.after_compare"])
def test_collect_beside_an_open_attempt(scene: Scene, point: str) -> None:
    """What an open attempt pinned stays readable, and a merge hides no commit."""
    other = staged(scene, "r2")

    def meanwhile() -> None:
        committed(scene, other)
        collecting(scene.ledger, scene.spec)

    with failpoints.armed(point, meanwhile) as fault:
        batch_id = staged(scene, "r1")
        committed(scene, batch_id)
    assert fault.hit
    finalized(scene, batch_id)
    collecting(scene.ledger, scene.spec)
    scene.finish("r1", "r2")


# Attacks G2.
def test_shards_are_merged_at_the_same_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge of one shard does not wait for that of another; both retire their parts."""
    monkeypatch.setattr(collect_module, "MERGES_AT_ONCE", 2)
    scene.run("r1", "r2")
    meeting, merge = threading.Barrier(2, timeout=20), collect_module.merge.merge

    def meets(*arguments: object) -> object:
        meeting.wait()
        return merge(*arguments)

    monkeypatch.setattr(collect_module.merge, "merge", meets)
    collecting(scene.ledger, scene.spec)
    live = "SELECT shard FROM semel.id_run WHERE retired_at IS NULL ORDER BY shard"
    assert [row["shard"] for row in sql(scene.ledger, live)] == [0, 1]
    scene.finish("r1", "r2")


# Attacks P11.
def test_orphan_is_taken_over(scene: Scene) -> None:
    """A batch that nobody was heard of for long gives its records to the next plan, once."""
    orphan = staged(scene, "r1")
    sql(scene.ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '2 hours'")
    taken = plan(scene.ledger, scene.spec, "r2")
    assert taken.taken_over == (orphan,)
    with pytest.raises(StateError, match="abandoned"):
        committed(scene, orphan)
    with pytest.raises(StateError, match="abandoned"):
        stage(scene.ledger, scene.spec, orphan, LocalEngine(), quiet)
    scene.finish("r2", "r1")


# Attacks A2.
@pytest.mark.parametrize("point", [*STAGE, "commit.before_compare", "commit.after_compare"])
def test_orphan_comes_back_to_life(scene: Scene, point: str) -> None:
    """A batch that was taken over while its attempt stood still cannot stage or commit any more."""

    def meanwhile() -> None:
        sql(scene.ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '2 hours'")
        assert plan(scene.ledger, scene.spec, "r2").taken_over
        scene.run("r2")

    with failpoints.armed(point, meanwhile), pytest.raises((AttemptLostError, StateError)):
        committed(scene, staged(scene, "r1"))
    scene.finish("r1", "r2")


def test_a_stage_that_begins_late_is_no_orphan(scene: Scene) -> None:
    """A new attempt is a sign of life, from its first moment on."""
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    sql(scene.ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '2 hours'")
    taken = []

    def meanwhile() -> None:
        taken.append(plan(scene.ledger, scene.spec, "r2").taken_over)

    with failpoints.armed("stage.after_begin", meanwhile):
        stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)
    assert taken == [()]
    scene.finish("r1", "r2")


# Attacks C12.
def test_commit_meets_collect_after_a_twin_lost_its_attempt(scene: Scene) -> None:
    """A commit whose attempt a twin gave up goes on with the twin's, and raises no false alarm."""
    r1, r2 = staged(scene, "r1"), staged(scene, "r2")
    committed(scene, r2)

    def meanwhile() -> None:
        committed(scene, r1)
        collecting(scene.ledger, scene.spec)

    with failpoints.armed("commit.before_compare", meanwhile):
        assert committed(scene, r1).fence == 2
    finalized(scene, r1)
    scene.finish("r1", "r2")
