"""A process dies at any fault point; the same requests, run again, make the output exact."""

import pytest
from fix_faults import Children
from fix_scene import Scene

from semel import faults

VERBS = tuple(p for p in faults.POINTS if not p.startswith("collect."))
LEASE = ("commit.before_lease", "commit.after_lease")


def script_for(point: str) -> str:
    return "leased" if point in LEASE else "contested"


@pytest.mark.parametrize("point", VERBS)
def test_killed_and_killed_again_in_recovery(
    scene: Scene, children: Children, point: str
) -> None:
    """Death at a point, then death at the same point's next pass in the recovery: exact."""
    assert children.start(script_for(point), f"{point}:exit").ended()[0] == faults.EXIT_CODE
    # Not every point is passed again: then the recovery simply ends.
    assert children.start(script_for(point), f"{point}:exit").ended()[0] in (0, faults.EXIT_CODE)
    scene.finish("r1", "r2")
