"""A batch that is beaten again and again: its losses are counted, and the lease ends them."""

from collections.abc import Callable

import pytest

from fix_scene import Scene, committed, staged
from fixtures.batches.account import quiet, sql
from fixtures.batches.faults import Children
from fixtures.batches.workbench import events
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.commit import ATTEMPTS_LOST_BEFORE_LEASE, Committed, commit
from semel.errors import StateError
from semel.ledger import heartbeat
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.stage import stage


def holder(scene: Scene) -> int | None:
    """The batch that took the commit lease last."""
    return sql(scene.ledger, "SELECT lease_batch_id FROM semel.pipeline")[0]["lease_batch_id"]


def rivals(scene: Scene, count: int) -> None:
    """Files for one rival batch each, each with other ids of r1's (the first rival takes c)."""
    for number in range(count):
        scene.add(f"d{number}.jsonl", events(40 + 6 * number, 46 + 6 * number) * 10)


def beaten(scene: Scene, batch_id: int, losses: int, last: Callable[[], None]) -> Committed:
    """Commit a batch that loses so many attempts to rivals; `last` is called in the last one."""
    rounds = iter([*(f"rival{n}" for n in range(losses)), None])

    def restage() -> None:
        def meanwhile(_: object) -> None:
            request = next(rounds)
            scene.run(request) if request else last()

        stage(scene.ledger, scene.spec, batch_id, LocalEngine(before_write=meanwhile), quiet)

    return commit(scene.ledger, scene.spec, batch_id, restage, quiet)


# Attacks C9.
def test_lease_after_three_losses(
    scene: Scene, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lost three attempts takes the commit lease, and a rival waits until it has committed."""
    monkeypatch.setattr(heartbeat, "LEASE_SECONDS", 8)
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    rivals(scene, ATTEMPTS_LOST_BEFORE_LEASE)
    leases: list[int | None] = []
    started = []

    def last() -> None:
        leases.append(holder(scene))
        child = children.start("r2", "commit.before_compare:raise")
        started.append(child)
        # It plans and stages, and then waits for the lease: it cannot come to the comparison.
        while not sql(
            scene.ledger,
            "SELECT FROM semel.attempt AS a JOIN semel.batch AS b USING (batch_id) "
            "WHERE b.request_key = 'r2' AND a.status = 'staged'",
        ):
            assert child.process.is_alive()
        child.process.join(1)
        assert child.process.is_alive(), "it did not wait for the lease"

    done = beaten(scene, batch_id, ATTEMPTS_LOST_BEFORE_LEASE, last)
    assert leases == [batch_id]
    assert done.losses == ATTEMPTS_LOST_BEFORE_LEASE
    assert started[0].ended() == (1, "FaultError")
    scene.finish("r1", "r2")


def test_no_lease_before_three_losses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two losses are not enough for a lease: others need not wait."""
    monkeypatch.setattr(heartbeat, "LEASE_SECONDS", 2)
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    rivals(scene, 2)
    leases: list[int | None] = []

    def last() -> None:
        leases.append(holder(scene))

    beaten(scene, batch_id, 2, last)
    assert leases == [None]
    scene.finish("r1", "r2")


# Attacks C9.
@pytest.mark.parametrize("point", ["commit.before_lease", "commit.after_lease"])
def test_abandoned_batch_leaves_no_lease(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Others do not wait for the lease of a batch that is given up as it takes it."""
    batch_id = staged(scene, "r1")

    def give_up() -> None:
        abandon(scene.ledger, batch_id, "given up by the test")

    with monkeypatch.context() as patch, failpoints.armed(point, give_up):
        patch.setattr("semel.commit.ATTEMPTS_LOST_BEFORE_LEASE", 0)
        with pytest.raises(StateError, match="abandoned"):
            committed(scene, batch_id)
    assert holder(scene) == batch_id
    monkeypatch.setattr(heartbeat, "LEASE_SECONDS", 1)  # Who waits fails after a second.
    scene.finish("r1", "r2")
