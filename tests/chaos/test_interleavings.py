"""Two verbs, in every order in which they can pass their fault points: the output is exact.

Each test plays all orders that there are (tests/chaos/schedule.py), from the same ledger and files.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from fix_scene import (
    Scene,
    attempts,
    committed,
    finalized,
    payload_tables,
    staged,
    staged_folders,
    time_passes,
)
from fixtures.batches.account import quiet, sql
from fixtures.batches.faults import collecting
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from schedule import Act, After, Played, every_order
from semel.commit import Committed
from semel.errors import StateError
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.stage import stage

pytestmark = pytest.mark.usefixtures("merge_always")

COMMIT = ("commit.before_compare", "commit.after_compare", "commit.before_win")


def commit(batch_id: int) -> Act:
    return lambda scene: committed(scene, batch_id)


def collect(scene: Scene) -> None:
    collecting(scene.ledger, scene.spec)


def one_took_them(batches: list[int]) -> After:
    """Of the batches' common records exactly one batch took each, and the other dropped it."""

    def after(scene: Scene, played: Played) -> None:
        first, second = sorted(played.values(), key=lambda done: done.batch.commit_seq)
        assert [first.losses, second.losses] == [0, 1]
        assert attempts(scene.ledger, first.batch.batch_id) == ["won"]
        assert attempts(scene.ledger, second.batch.batch_id) == ["lost", "won"]
        for batch_id in batches:
            finalized(scene, batch_id)
        scene.check()

    return after


def arrivals(bench: Workbench, ledger: Ledger) -> tuple[Scene, list[int]]:
    """Two requests of a pipeline that takes what has arrived."""
    scene = Scene(bench, ledger)
    return scene, [staged(scene, "r1"), staged(scene, "r2")]


def intervals(bench: Workbench, ledger: Ledger) -> tuple[Scene, list[int]]:
    """A live run and a backfill of a pipeline that takes intervals."""
    daily = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
    scene = Scene.empty(bench, ledger, source=daily)
    batches = []
    for day, (first, last) in ((3, (60, 110)), (1, (30, 80))):
        scene.add(f"2026-01-{day:02}.jsonl", [*events(first, last), *events(first, first + 5)])
        interval = datetime(2026, 1, day, tzinfo=UTC), datetime(2026, 1, day + 1, tzinfo=UTC)
        batches.append(plan(ledger, scene.spec, f"day{day}", interval).batch.batch_id)
        stage(ledger, scene.spec, batches[-1], LocalEngine(), quiet)
    return scene, batches


# Attacks C2, C4, C6, C12.
@pytest.mark.parametrize(
    ("made", "points"),
    [
        (arrivals, COMMIT),
        (intervals, COMMIT[1:]),
        pytest.param(intervals, COMMIT, marks=pytest.mark.proof),
    ],
)
def test_two_commits(
    bench: Workbench, ledger: Ledger, made: Callable, points: tuple[str, ...]
) -> None:
    """Of two batches with a common id one takes the record and the other drops it."""
    scene, batches = made(bench, ledger)
    acts = {"A": commit(batches[0]), "B": commit(batches[1])}
    found = every_order(scene, points, one_took_them(batches), **acts)
    assert any(turn.blocked for played in found for turn in played.turns), "nobody met a lock"


# Attacks C7, C12.
def test_two_commits_of_one_batch(scene: Scene) -> None:
    """A commit and its twin are one commit: one place, one winner, no attempt lost."""
    scene.run("r2")
    batch_id = staged(scene, "r1")

    def after(there: Scene, played: Played) -> None:
        answers: list[Committed] = played.values()
        assert [(a.batch.commit_seq, a.fence, a.losses) for a in answers] == [(3, 1, 0)] * 2
        assert sorted(a.found for a in answers) == [False, True]
        finalized(there, batch_id)
        there.check()

    every_order(scene, COMMIT[1:], after, A=commit(batch_id), B=commit(batch_id))


# Attacks A1, A2, C3.
def test_commit_and_abandon(scene: Scene) -> None:
    """A batch is committed or given up, never both; its records are in the output once."""
    scene.run("r2")
    batch_id = staged(scene, "r1")

    def after(there: Scene, played: Played) -> None:
        errors = [actor.error for actor in played.actors.values() if actor.error]
        assert [type(error) for error in errors] == [StateError], errors
        lost = played.actors["A"].error is not None
        assert attempts(there.ledger, batch_id) == (["lost"] if lost else ["won"])
        there.run("r1")
        there.check()

    def give_up(there: Scene) -> None:
        abandon(there.ledger, batch_id, "given up by the test")

    every_order(scene, (*COMMIT, "abandon.before_release"), after, A=commit(batch_id), B=give_up)


@pytest.fixture
def one_shard(bench: Workbench, ledger: Ledger) -> Scene:
    return Scene(bench, ledger, dedup={"shards": 1})


def merged_meanwhile(there: Scene, played: Played, batch_id: int) -> None:
    """The commit lost once, to the batch that the merge took in; nothing pinned went away."""
    done, _ = played.values()
    assert done.losses == 1
    finalized(there, batch_id)
    there.check()


# Attacks C2, G2, G3, G4, S3.
@pytest.mark.parametrize(
    "points",
    [
        ("commit.before_compare", "commit.before_win", "collect.before_merged"),
        ("stage.after_begin", "collect.before_merged", "collect.before_delete"),
        pytest.param(
            (*COMMIT, "stage.after_begin", "collect.before_merge", "collect.before_merged")
            + ("collect.before_delete",),
            marks=pytest.mark.proof,
        ),
    ],
    ids=["win", "restage", "all"],
)
def test_commit_and_merge(one_shard: Scene, points: tuple[str, ...]) -> None:
    """A merge hides no newer commit from a commit, and takes nothing that an attempt pinned."""
    batch_id, other = staged(one_shard, "r1"), staged(one_shard, "r2")
    committed(one_shard, other)
    finalized(one_shard, other)
    after = partial(merged_meanwhile, batch_id=batch_id)
    every_order(one_shard, points, after, A=commit(batch_id), B=collect)


# Attacks C2, C4, G3.
@pytest.mark.proof
def test_two_commits_and_a_merge(one_shard: Scene) -> None:
    """Also when a merge takes in what the first of two commits made visible."""
    one_shard.add("d.jsonl", [*events(200, 255), b"{"])
    one_shard.spec = one_shard.declare(
        dedup={"shards": 1}, limits={"bytes_per_batch_max": 4000, "orphan_after": "30d"}
    )
    batches = [staged(one_shard, "r1"), staged(one_shard, "r2")]
    one_shard.run("r3")
    after = one_took_them(batches)

    def both(there: Scene, played: Played) -> None:
        played.values()
        commits = {name: played.actors[name] for name in "AB"}
        after(there, replace(played, actors=commits))

    points = ("commit.after_compare", "commit.before_win", "collect.before_merged")
    every_order(one_shard, points, both, A=commit(batches[0]), B=commit(batches[1]), C=collect)


def expired(scene: Scene) -> tuple[int, int]:
    """Ids whose horizon is over in a segment of their own, and two batches r3, r4 of a later one.

    Returns the batches; r4 has committed, and r3, which shares ids with it, is staged.
    """
    scene.run("r1", "r2")
    time_passes(scene.ledger, segments=True)
    bad = [b"{not json", b'{"id": null, "n": 1}']
    scene.add("d.jsonl", [*events(200, 250), *events(210, 215), *bad])
    scene.add("e.jsonl", [*events(230, 280), *events(240, 245), *bad])
    batch_id, other = staged(scene, "r3"), staged(scene, "r4")
    committed(scene, other)
    finalized(scene, other)
    time_passes(scene.ledger, runs=True)
    return batch_id, other


# Attacks G2, G4, G5, S3.
@pytest.mark.rest
@pytest.mark.parametrize(
    "points",
    [
        ("commit.before_compare", "stage.after_begin", "collect.before_retire")
        + ("collect.before_drop",),
        ("stage.after_begin", "commit.before_win", "collect.before_retire")
        + ("collect.before_dropped",),
        pytest.param(
            (*COMMIT, "stage.after_begin", "collect.before_retire", "collect.after_retire")
            + ("collect.before_drop", "collect.before_dropped"),
            marks=pytest.mark.proof,
        ),
    ],
    ids=["before", "within", "all"],
)
def test_commit_and_drop(one_shard: Scene, points: tuple[str, ...]) -> None:
    """Ids are forgotten, and their table goes, without taking what an attempt still asks for."""
    batch_id, _ = expired(one_shard)

    def after(there: Scene, played: Played) -> None:
        merged_meanwhile(there, played, batch_id)
        collect(there)
        assert len(payload_tables(there.ledger)) == 1

    every_order(one_shard, points, after, A=commit(batch_id), B=collect)


# Attacks F1, F3, F6, F9, G6, G8.
@pytest.mark.parametrize(
    "points",
    [
        ("finalize.after_mark", "finalize.before_finalized"),
        pytest.param(
            ("finalize.before_publish", "finalize.after_mark", "finalize.before_finalized"),
            marks=pytest.mark.proof,
        ),
    ],
    ids=["some", "all"],
)
def test_replay_of_a_committed_run_and_collect(scene: Scene, points: tuple[str, ...]) -> None:
    """A cleared run and collect finish the same batch at once: it is finalized once, and exact."""
    scene.run("r2")
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    sql(scene.ledger, "UPDATE semel.batch SET committed_at = committed_at - interval '2 hours'")

    def after(there: Scene, played: Played) -> None:
        played.values()
        assert staged_folders(there.spec) == []
        there.check()

    every_order(scene, points, after, A=lambda there: there.run("r1"), B=collect)


# Attacks F3, F9.
@pytest.mark.proof
def test_two_finalizers(scene: Scene) -> None:
    """Both succeed whoever links, marks and cleans first."""
    scene.run("r2")
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)

    def after(there: Scene, played: Played) -> None:
        assert sorted(done.found for done in played.values()) == [False, True]
        there.check()

    points = ("finalize.after_look", "storage.before_publish", "finalize.before_finalized")

    def act(there: Scene) -> object:
        return finalized(there, batch_id)

    every_order(scene, points, after, A=act, B=act)


# Attacks P5, G4, G6.
@pytest.mark.rest
@pytest.mark.parametrize(
    "points",
    [
        ("stage.after_begin", "commit.before_win", "collect.before_merged")
        + ("collect.before_remove",),
        pytest.param(
            ("plan.before_lock", "stage.after_begin", "commit.before_win", "finalize.after_mark")
            + ("collect.before_merged", "collect.before_delete", "collect.before_remove"),
            marks=pytest.mark.proof,
        ),
    ],
    ids=["some", "all"],
)
def test_replay_of_a_finalized_run_and_collect(one_shard: Scene, points: tuple[str, ...]) -> None:
    """A cleared run takes what arrived since, once, while collect cleans up after the first."""
    staged_and_lost(one_shard)
    one_shard.run("r1", "r2")
    one_shard.add("d.jsonl", [*events(20, 130), b"{"])
    one_shard.spec = one_shard.declare(dedup={"shards": 1}, limits={})

    def after(there: Scene, played: Played) -> None:
        played.values()
        there.check()

    every_order(one_shard, points, after, A=lambda there: there.run("r1"), B=collect)


def staged_and_lost(scene: Scene) -> None:
    """An attempt of r1 that was given up, and left its folder to collect."""
    batch_id = staged(scene, "r1")
    sql(scene.ledger, "UPDATE semel.attempt SET status = 'lost' WHERE batch_id = :b", b=batch_id)
