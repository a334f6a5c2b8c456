"""Replays beside replays, live runs, twins, finalizers that slept, loss of power, and collect."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_disk import Disk
from fix_scene import (
    ROOT,
    Scene,
    attempts,
    committed,
    finalized,
    kept,
    marker,
    outputs,
    replayed,
    shown,
    staged,
    tree,
    waiting,
)
from fixtures.batches.account import sql
from fixtures.batches.faults import collecting, dies_at
from fixtures.batches.replays import falls_silent, hours_pass
from fixtures.batches.workbench import events
from schedule import Played, every_order
from semel import failpoints
from semel.archive import layout
from semel.errors import AttemptLostError, CorruptionError, RetryableError, StateError
from semel.failpoints import FaultError
from semel.ledger import heartbeat
from semel.runs import replay

FINALIZE = [
    ("finalize.before_publish", 1),
    ("finalize.after_look", 1),
    ("finalize.after_look", 2),
    ("storage.before_link", 1),
    ("storage.after_link", 1),
    ("finalize.after_publish", 1),
    ("finalize.after_mark", 1),
]
OF_THE_FIRST = [("storage.before_publish", 1), ("storage.after_publish", 1)]
OF_A_REPLAY = [
    ("storage.before_rmtree", 1),
    ("storage.after_rmtree", 1),
    ("finalize.before_replace", 1),
    *OF_THE_FIRST,
    ("storage.before_create", 2),
    ("storage.before_swap", 1),
    ("storage.after_swap", 1),
]
"""What finalize of a replay passes: it keeps a marker, then writes one and renames it."""

OF_A_TABLE = (
    "finalize.before_publish", "finalize.after_look", "sink.before_publish", "sink.after_publish",
    "finalize.after_publish", "finalize.after_mark",
)  # fmt: skip
REPLACES = ("finalize.before_replace", "storage.before_swap")

BESIDE = {
    "stage": [
        "replay.after_write", "stage.after_begin", "stage.after_folders", "stage.after_job",
        "stage.after_sync", "stage.after_seal",
    ],
    "finalize": [
        "commit.after_win", "finalize.before_publish", "finalize.before_replace",
        "storage.before_swap", "storage.after_swap", "finalize.after_finalized",
    ],
}  # fmt: skip
"""Where a replay stands still, one after the other: each replay of a scene costs less than a scene.
"""

BESIDE_LIVE = {
    "stage": [
        "plan.after_write", "stage.after_begin", "stage.after_folders", "stage.after_job",
        "stage.after_sync",
    ],
    "finalize": [
        "commit.before_compare", "commit.after_compare", "commit.after_win",
        "finalize.before_publish", "finalize.after_mark", "finalize.after_finalized",
    ],
}  # fmt: skip
"""Where a live run does."""


# Attacks RP2.
def test_two_requests_plan_at_once(scene: Scene) -> None:
    """One of them replays the batch, the other is told so, and the database is never asked."""

    def planning(request: str) -> Callable[[Scene], object]:
        return lambda there: replay.plan(there.ledger, there.spec, request, ROOT)

    def after(there: Scene, played: Played) -> None:
        failed = [a.error for a in played.actors.values() if a.error is not None]
        assert len(failed) == 1 and isinstance(failed[0], (RetryableError, StateError)), failed
        found = "SELECT generation FROM semel.batch WHERE replays = 1 AND status = 'planned'"
        assert [row["generation"] for row in sql(there.ledger, found)] == [2]
        falls_silent(there.ledger)
        assert replayed(there, "z").generation == 2
        there.finish("r1", "r2")

    acts = {"A": planning("x"), "B": planning("y")}
    found = every_order(scene, ("replay.before_write",), after, **acts)
    assert any(turn.blocked for played in found for turn in played.turns), "nobody waited"


# Attacks RP2, C7, A2.
def test_a_silent_replay_is_given_up_while_its_driver_goes_on(scene: Scene) -> None:
    """Another request took its place: it is told so wherever it stood, and nothing forks."""
    points = ("replay.after_write", "stage.after_begin", "stage.after_job", "stage.after_sync",
              "stage.after_seal")  # fmt: skip
    for at, point in enumerate(points):

        def meanwhile(at: int = at) -> None:
            falls_silent(scene.ledger)
            assert replayed(scene, f"y{at}").generation == 2 * at + 2

        with (
            failpoints.armed(point, meanwhile) as fault,
            pytest.raises((AttemptLostError, StateError)),
        ):
            replayed(scene, f"x{at}")
        assert fault.hit and shown(scene)["replay"]["request_key"] == f"y{at}", point
        assert replayed(scene, f"x{at}").generation == 2 * at + 3
    scene.finish("r1", "r2")


# Attacks RP4, C11.
def test_a_commit_that_does_not_land_retires_nothing(scene: Scene) -> None:
    """The generation before is retired with the win, or not at all."""
    text = "SELECT batch_id, replaced_by FROM semel.batch ORDER BY batch_id"
    with dies_at("commit.before_win"):
        waiting(scene, "x")
    assert [row["replaced_by"] for row in sql(scene.ledger, text)] == [None, None]
    number = waiting(scene, "x")
    assert [row["replaced_by"] for row in sql(scene.ledger, text)] == [number, None]
    finalized(scene, number)
    scene.finish("r1", "r2")


# Attacks RP5, F9.
@pytest.mark.parametrize(
    "points", [FINALIZE, [*OF_A_REPLAY, ("finalize.after_finalized", 1)]], ids=["all", "replays"]
)
def test_finalize_of_a_replay_twice_at_once(scene: Scene, points: list[tuple[str, int]]) -> None:
    """A second finalize runs whole while the first stands at a point: both succeed, exact. What ran
    is told in the marker, also by a finalizer whose twin has cleaned up.
    """
    for generation, (point, nth) in enumerate(points, start=2):
        number = waiting(scene, f"x{generation}")
        with failpoints.armed(point, lambda number=number: finalized(scene, number), nth) as fault:
            finalized(scene, number)
        assert fault.hit and shown(scene)["generation"] == generation, point
        assert {"code", "code_digest"} <= shown(scene).keys()
    scene.finish("r1", "r2")


# Attacks RP5, RP6, RP7, F9.
@pytest.mark.parametrize(
    "cleaned",
    [pytest.param(True, id="cleaned"), pytest.param(False, id="left", marks=pytest.mark.proof)],
)
@pytest.mark.parametrize(
    ("generation", "point", "nth"),
    [(1, *at) for at in (*FINALIZE, *OF_THE_FIRST)]
    + [(2, *at) for at in (*FINALIZE, *OF_A_REPLAY)],
)
def test_a_late_finalizer_changes_nothing(
    scene: Scene, generation: int, point: str, nth: int, cleaned: bool
) -> None:
    """Its twin finished, a later generation replaced what it had, and collect took that away:
    whoever stood still all the while is told that it is done. `left`: the twin died before it
    removed the folder, and collect has yet to come.
    """
    if generation == 1:
        root = number = staged(scene, "r1")
        committed(scene, number)
    else:
        root, number = ROOT, waiting(scene, "x")
    seen = []

    def meanwhile() -> None:
        if cleaned:
            finalized(scene, number)
        else:
            with dies_at("finalize.after_finalized"):
                finalized(scene, number)
        assert replayed(scene, "y", root).generation == generation + 1
        if cleaned:
            hours_pass(scene.ledger)
            collecting(scene.ledger, scene.spec)
            assert not any(path.exists() for path in outputs(scene, generation, root))
        seen.append(tree(scene))

    with failpoints.armed(point, meanwhile, nth) as fault:
        assert finalized(scene, number).found
    assert fault.hit and tree(scene) == seen[0]
    scene.finish("r1", "r2")


# Attacks RP5.
def test_an_older_marker_is_not_replaced(scene: Scene) -> None:
    """Somebody restored the marker of generation 1 while generation 3 was to be finalized: it
    stays, with all else, until a person has put the right one back.
    """
    replayed(scene, "x")
    number, right = waiting(scene, "y"), marker(scene).read_bytes()
    marker(scene).write_bytes(kept(scene, 1).read_bytes())
    with pytest.raises(CorruptionError, match="is of generation 1 .* replaces generation 2"):
        finalized(scene, number)
    assert shown(scene).get("generation", 1) == 1 and not kept(scene, 2).exists()
    marker(scene).write_bytes(right)
    finalized(scene, number)
    assert shown(scene)["generation"] == 3
    scene.finish("r1", "r2")


# Attacks RP6.
def test_a_folder_that_is_written_to_is_removed_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer of generation 2 that writes its marker into the folder which generation 3 is
    removing finds nothing that it could rename.
    """
    number = waiting(scene, "x")
    folder = layout.attempt(layout.archive_folder(scene.spec), number, 1)
    late = folder / "marker-late.json"
    rmdir, written = os.rmdir, []

    def while_it_is_removed(path: object, *rest: object, **options: object) -> None:
        if str(path) == str(folder) and len(written) < 2:
            late.write_bytes(marker(scene).read_bytes())
            written.append(path)
        rmdir(path, *rest, **options)

    with dies_at("finalize.after_finalized"):
        finalized(scene, number)
    monkeypatch.setattr(os, "rmdir", while_it_is_removed)
    assert replayed(scene, "y").generation == 3
    assert len(written) == 2
    with pytest.raises(FileNotFoundError):
        os.rename(late, marker(scene))
    assert shown(scene)["generation"] == 3


# Attacks RP5, RP7, F5, F6.
def test_what_a_replay_replaces_outlasts_a_loss_of_power(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files and the old marker last before the rename, the new marker before `finalized`, and
    that files went before it is written down; also where another process began, and was killed.
    """
    disk = Disk(scene.bench.folder, monkeypatch)
    seen: list[str] = []

    def renaming() -> None:
        (new,) = layout.staging(layout.archive_folder(scene.spec)).glob("b*/f*/.b*.json.*")
        files = [f for f in json.loads(new.read_bytes())["files"] if f["kind"] == "data"]
        assert files and all(disk.keeps(scene.spec.sink_path() / f["path"]) for f in files)
        assert disk.holds(new) and disk.keeps(kept(scene, 1))
        assert kept(scene, 1).read_bytes() == marker(scene).read_bytes()
        seen.append("renamed")

    def finishing() -> None:
        assert disk.keeps(marker(scene)) and shown(scene)["generation"] == 2
        seen.append("finished")

    def removed() -> None:
        assert all(disk.forgot(path) for path in outputs(scene, 1))
        seen.append("removed")

    number = waiting(scene, "x")
    with dies_at("storage.after_publish"):  # It is kept, and its folder not yet fsynced.
        finalized(scene, number)
    assert kept(scene, 1).exists() and not disk.keeps(kept(scene, 1))
    with failpoints.armed("storage.before_swap", renaming), dies_at("storage.after_swap"):
        finalized(scene, number)
    assert shown(scene)["generation"] == 2 and not disk.keeps(marker(scene))
    with failpoints.armed("finalize.before_finalized", finishing):
        finalized(scene, number)
    hours_pass(scene.ledger)
    gone = outputs(scene, 1)
    unlink = os.unlink

    def killed(path: object, *rest: object, **options: object) -> None:
        unlink(path, *rest, **options)
        if Path(str(path)) in gone:
            raise FaultError("killed behind the unlink")

    with monkeypatch.context() as patch, pytest.raises(FaultError):
        patch.setattr(os, "unlink", killed)
        collecting(scene.ledger, scene.spec)
    assert not any(disk.forgot(path) for path in gone)
    with failpoints.armed("collect.before_removed", removed):
        collecting(scene.ledger, scene.spec)
    assert seen == ["renamed", "finished", "removed"]
    scene.finish("r1", "r2")


# Attacks RP7.
def test_files_go_when_nobody_can_be_reading_them(scene: Scene) -> None:
    """They stay while the marker lists them, while the replay is not finalized, and for
    keep_replaced behind that; then they go, and the marker that listed them stays.
    """
    old = [scene.spec.sink_path() / f["path"] for f in shown(scene)["files"] if f["kind"] == "data"]

    def stay() -> None:
        hours_pass(scene.ledger)
        collecting(scene.ledger, scene.spec)
        assert all(path.exists() for path in old)

    number = waiting(scene, "x")
    for point in ("finalize.before_replace", "storage.before_swap", "storage.after_swap"):
        with failpoints.armed(point, stay) as fault, dies_at(point):
            finalized(scene, number)
        assert fault.hit
    finalized(scene, number)
    collecting(scene.ledger, scene.spec)
    assert old and all(path.exists() for path in old)
    hours_pass(scene.ledger)
    collecting(scene.ledger, scene.spec)
    assert not any(path.exists() for path in old) and kept(scene, 1).exists()
    scene.finish("r1", "r2")


# Attacks RP4, P5, C12.
@pytest.mark.parametrize("part", BESIDE)
def test_one_request_replays_twice_at_once(scene: Scene, part: str) -> None:
    """Its twin replays the batch while it stands still: there is one new generation, and who came
    late is told so, or finds it done.
    """
    for generation, point in enumerate(BESIDE[part], start=2):
        request = f"x{generation}"
        with failpoints.armed(point, lambda request=request: replayed(scene, request)) as fault:
            try:
                assert replayed(scene, request).generation == generation
            except AttemptLostError as error:
                assert "attempt 2 of batch" in str(error)
        assert fault.hit and replayed(scene, request).generation == generation, point
        assert shown(scene)["generation"] == generation
    scene.finish("r1", "r2")


# Attacks RP2, RP4.
@pytest.mark.parametrize("part", BESIDE)
def test_a_replay_beside_live_runs(scene: Scene, part: str) -> None:
    """Others plan, commit, merge and are collected while a replay stands still: neither is made to
    begin again, and all is exact.
    """
    numbers = []
    for at, point in enumerate(BESIDE[part]):

        def meanwhile(at: int = at) -> None:
            scene.run(f"r{at}")
            collecting(scene.ledger, scene.spec)

        scene.add(f"d{at}.jsonl", events(100 + 10 * at, 115 + 10 * at))
        with failpoints.armed(point, meanwhile) as fault:
            numbers.append(replayed(scene, f"x{at}").batch_id)
        assert fault.hit, point
    all_won(scene)
    places = "SELECT batch_id FROM semel.batch WHERE commit_seq IS NULL ORDER BY batch_id"
    assert [row["batch_id"] for row in sql(scene.ledger, places)] == numbers
    scene.finish("r1", "r2")


def all_won(scene: Scene) -> None:
    """No attempt was made to begin again."""
    found = sql(scene.ledger, "SELECT batch_id FROM semel.batch ORDER BY batch_id")
    states = {row["batch_id"]: attempts(scene.ledger, row["batch_id"]) for row in found}
    assert set(map(tuple, states.values())) == {("won",)}, states


# Attacks RP2, RP4.
@pytest.mark.parametrize("part", BESIDE_LIVE)
def test_a_live_run_beside_a_replay(scene: Scene, part: str) -> None:
    """A batch is replayed while a live run stands still: that one goes on as if nothing was."""
    for at, point in enumerate(BESIDE_LIVE[part]):
        scene.add(f"d{at}.jsonl", events(100 + 10 * at, 115 + 10 * at))
        with failpoints.armed(point, lambda at=at: replayed(scene, f"x{at}")) as fault:
            scene.run(f"l{at}")
        assert fault.hit and shown(scene)["generation"] == at + 2, point
    all_won(scene)
    scene.finish("r1", "r2")


# Attacks C9.
def test_a_replay_waits_for_no_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no place in the order of commits, so it makes nobody begin again."""
    monkeypatch.setattr(heartbeat, "LEASE_SECONDS", 1)
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
@pytest.mark.parametrize("generation", [1, 2])
def test_a_late_finalizer_of_a_table_changes_nothing(
    scene_of: Callable[..., Scene], generation: int
) -> None:
    """What its twin landed was replaced since, wherever it stood: it lands nothing again, and is
    told that it is done.
    """
    scene = scene_of("append")
    for at, point in enumerate(OF_A_TABLE if generation == 1 else (*OF_A_TABLE, *REPLACES)):
        if generation == 1:
            scene.add(f"d{at}.jsonl", events(100 + 10 * at, 115 + 10 * at))
            root = number = staged(scene, f"l{at}")
            committed(scene, number)
        else:
            root, number = ROOT, waiting(scene, f"x{at}")
        before = shown(scene, ROOT).get("generation", 1) if generation == 2 else 0

        def meanwhile(root: int = root, number: int = number, at: int = at) -> None:
            finalized(scene, number)
            replayed(scene, f"y{at}", root)

        with failpoints.armed(point, meanwhile) as fault:
            assert finalized(scene, number).found
        assert fault.hit and shown(scene, root)["generation"] == before + 2, point
    scene.finish("r1", "r2")
