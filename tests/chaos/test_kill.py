"""A process dies at any fault point; the same requests, run again, make the output exact."""

import re
from pathlib import Path

import pytest
from fix_engine import LocalEngine
from fix_faults import Children, quiet
from fix_pipelines import Workbench, events
from fix_scene import Scene, live_runs, payload_tables, staged_folders, time_passes

from semel import faults
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.run import run_batch

VERBS = tuple(p for p in faults.POINTS if not p.startswith("collect."))
COLLECT = tuple(p for p in faults.POINTS if p.startswith("collect.")) + (
    "storage.before_rmtree",
    "storage.after_rmtree",
)
FLOOR = ("collect.before_floor", "collect.after_floor")
LEASE = ("commit.before_lease", "commit.after_lease")
TWIN_STANDS = "stage.after_sync"


def test_every_point_is_killed() -> None:
    """A fault point that nobody calls, nobody knows, or nobody kills at, is found here."""
    package = Path(faults.__file__).parent
    called = [
        name
        for path in package.rglob("*.py")
        if path.name != "faults.py"
        for name in re.findall(r'faults\.point\("([^"]+)"\)', path.read_text(encoding="utf-8"))
    ]
    assert sorted(called) == sorted(faults.POINTS)
    assert set(VERBS) | set(COLLECT) == set(faults.POINTS)


# Attacks P1, F1, F6.
@pytest.mark.parametrize("point", VERBS)
def test_killed_and_killed_again_beside_a_twin(
    scene: Scene, children: Children, point: str
) -> None:
    """Death at a point; a twin starts; death at the point's next pass; recovery: exact.

    The twin then goes on where it stood: its attempt is lost, and it changes nothing.
    """
    script = "leased" if point in LEASE else "contested"
    assert children.start(script, f"{point}:exit").ended()[0] == faults.EXIT_CODE
    twin = children.start("r1", f"{TWIN_STANDS}:pause")
    stands = twin.reached(TWIN_STANDS)
    # Not every point is passed again: then the recovery simply ends.
    assert children.start(script, f"{point}:exit").ended()[0] in (0, faults.EXIT_CODE)
    found = scene.finish("r1", "r2")
    if stands:
        (twin.folder / TWIN_STANDS).unlink()
        assert twin.ended() == (1, "AttemptLostError")
    else:
        assert twin.ended() == (0, None)
    assert scene.check() == found


# Attacks G1.
@pytest.mark.parametrize("point", COLLECT)
def test_collect_killed(
    bench: Workbench, ledger: Ledger, children: Children, point: str
) -> None:
    """Death of collect at a point, then collect again: only garbage is gone, all of it."""
    changes = {}
    if point in FLOOR:
        changes["record_time"] = "at"
        changes["dedup"] = {"shards": 2, "scope": "bucket", "horizon": "3650d"}
    scene = Scene(bench, ledger, **changes)
    time_passes(ledger, segments=True)
    scene.run("r1", "r2")
    scene.add("d.jsonl", events(110, 130))
    with pytest.raises(RetryableError):
        run_batch(ledger, scene.spec, "r3", LocalEngine(before_write=_fails), say=quiet)
    time_passes(ledger, runs=True)
    assert len(payload_tables(ledger)) == 2 and staged_folders(scene.spec)

    assert children.start("collecting", f"{point}:exit").ended()[0] == faults.EXIT_CODE
    assert children.start("collecting").ended() == (0, None)
    # In scope bucket the bucket is still open, so its runs stay, however old they are.
    assert len(payload_tables(ledger)) == (2 if point in FLOOR else 1)
    assert staged_folders(scene.spec) == []
    if point not in FLOOR:
        assert max(live_runs(ledger).values()) == 1
    scene.add("e.jsonl", events(60, 140))
    scene.finish("r3", "r4")


def _fails(_: object) -> None:
    raise RetryableError("the engine failed")
