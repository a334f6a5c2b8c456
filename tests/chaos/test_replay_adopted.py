"""A ledger that is lost while a replay is being finalized: adopt goes by the marker there is."""

import pytest
from replays import dies_at, replayed, shown, waiting

from fix_account import quiet
from fix_postgres import lose
from fix_scene import Scene
from semel.adopt import adopt
from semel.audit import audit
from steps import finalized


def broken(scene: Scene) -> set[str]:
    """The promises that an audit finds broken."""
    return {check.name for check in audit(scene.spec).checks if check.broken}


# Attacks D4, RP5.
@pytest.mark.parametrize("generation", [2, 3])
@pytest.mark.parametrize("point", ["finalize.before_rename", "finalize.after_rename"])
def test_the_ledger_is_lost_while_a_marker_is_replaced(
    scene: Scene, point: str, generation: int
) -> None:
    """The output is the one that the marker lists, and the batch can be replayed again. Files of a
    replay that had no marker yet are strays, like those of any batch.
    """
    strays = {"strays"} if point == "finalize.before_rename" else set()
    if generation == 3:
        replayed(scene, "w")
    number = waiting(scene, "x")
    with dies_at(point):
        finalized(scene, number)
    there = shown(scene).get("generation", 1)
    assert there == (generation if point == "finalize.after_rename" else generation - 1)
    lose(scene.ledger)
    adopt(scene.ledger, scene.spec, log=quiet)
    scene.run("r1", "r2", "r3")
    assert broken(scene) == strays
    assert replayed(scene, "y").generation == there + 1
    assert broken(scene) == strays
