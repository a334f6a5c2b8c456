"""A replay beside itself and beside live runs, at each of its points; and into a table."""

import pytest
from replays import ROOT, replayed, shown, waiting

from fix_faults import collecting
from fix_pipelines import Workbench
from fix_scene import Scene, attempts, sql
from semel import faults, limits
from semel.errors import AttemptLostError
from semel.ledger import Ledger
from steps import committed, finalized, staged

OF_A_TABLE = [
    "finalize.before_publish",
    "finalize.after_look",
    "sink.before_publish",
    "finalize.after_publish",
    "finalize.after_mark",
]

BESIDE = [
    "replay.after_write",
    "stage.after_begin",
    "stage.after_folders",
    "stage.after_job",
    "stage.after_sync",
    "stage.after_seal",
    "commit.after_win",
    "finalize.before_publish",
    "finalize.before_replace",
    "finalize.before_rename",
    "finalize.after_rename",
    "finalize.after_finalized",
]
BESIDE_LIVE = [
    "plan.after_write",
    "stage.after_begin",
    "stage.after_folders",
    "stage.after_job",
    "stage.after_sync",
    "commit.before_compare",
    "commit.after_compare",
    "commit.after_win",
    "finalize.before_publish",
    "finalize.after_mark",
    "finalize.after_finalized",
]


# Attacks RP4, P5, C12.
@pytest.mark.parametrize("point", BESIDE)
def test_one_request_replays_twice_at_once(scene: Scene, point: str) -> None:
    """Its twin replays the batch while it stands still: there is one new generation, and who came
    late is told so, or finds it done.
    """
    with faults.armed(point, lambda: replayed(scene, "x")) as fault:
        try:
            assert replayed(scene, "x").generation == 2
        except AttemptLostError as error:
            assert "attempt 2 of batch" in str(error)
    assert fault.hit and replayed(scene, "x").generation == 2
    assert shown(scene)["generation"] == 2
    scene.finish("r1", "r2")


# Attacks RP2, RP4.
@pytest.mark.parametrize("point", BESIDE)
def test_a_replay_beside_live_runs(scene: Scene, point: str) -> None:
    """Others plan, commit, merge and are collected while a replay stands still: neither is made to
    begin again, and all is exact.
    """

    def meanwhile() -> None:
        scene.run("r1", "r2")
        collecting(scene.ledger, scene.spec)

    with faults.armed(point, meanwhile) as fault:
        number = replayed(scene, "x").batch_id
    assert fault.hit
    found = sql(scene.ledger, "SELECT batch_id FROM semel.batch ORDER BY batch_id")
    states = {row["batch_id"]: attempts(scene.ledger, row["batch_id"]) for row in found}
    assert set(map(tuple, states.values())) == {("won",)}, states
    places = "SELECT batch_id FROM semel.batch WHERE commit_seq IS NULL"
    assert [row["batch_id"] for row in sql(scene.ledger, places)] == [number]
    scene.finish("r1", "r2")


# Attacks RP2, RP4.
@pytest.mark.parametrize("point", BESIDE_LIVE)
def test_a_live_run_beside_a_replay(scene: Scene, point: str) -> None:
    """A batch is replayed while a live run stands still: that one goes on as if nothing was."""
    with faults.armed(point, lambda: replayed(scene, "x")) as fault:
        scene.run("r1")
    assert fault.hit and shown(scene)["generation"] == 2
    found = sql(scene.ledger, "SELECT batch_id FROM semel.batch ORDER BY batch_id")
    assert all(attempts(scene.ledger, row["batch_id"]) == ["won"] for row in found)
    scene.finish("r1", "r2")


# Attacks C9.
def test_a_replay_waits_for_no_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no place in the order of commits, so it makes nobody begin again."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 1)
    other = staged(scene, "r1")
    sql(
        scene.ledger,
        "UPDATE semel.pipeline SET lease_batch_id = :batch, "
        "lease_until = now() + interval '1 hour'",
        batch=other,
    )
    assert replayed(scene, "x").generation == 2
    committed(scene, other)
    finalized(scene, other)
    scene.finish("r1", "r2")


# Attacks RP5, RP6, PG9.
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("point", OF_A_TABLE)
def test_a_late_finalizer_of_a_table_changes_nothing(
    bench: Workbench, ledger: Ledger, generation: int, point: str
) -> None:
    """What its twin landed was replaced since: it lands nothing again, and is told that it is
    done.
    """
    scene = Scene(bench, ledger, "append")
    if generation == 1:
        root = number = staged(scene, "r1")
        committed(scene, number)
    else:
        root, number = ROOT, waiting(scene, "x")

    def meanwhile() -> None:
        finalized(scene, number)
        assert replayed(scene, "y", root).generation == generation + 1

    with faults.armed(point, meanwhile) as fault:
        assert finalized(scene, number).found
    assert fault.hit and shown(scene, root)["generation"] == generation + 1
    scene.finish("r1", "r2")
