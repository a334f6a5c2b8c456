"""A compare that is killed: what it leaves, and who cleans that up."""

import pytest

from fixtures.batches.compares import batch, compared, folders
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench, events
from semel.audit import audit
from semel.ledger import Ledger


@pytest.mark.parametrize(
    ("point", "nth"),
    [("storage.after_create", 1), ("storage.after_mkdir", 5)],
    ids=["in its job", "behind it"],
)
def test_killed(bench: Workbench, ledger: Ledger, children: Children, point: str, nth: int) -> None:
    """What a killed compare leaves is nothing to others, and goes with the next one; what one at
    work has stays.
    """
    spec = bench.spec()
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 10, n * 10 + 15))
        batch(ledger, spec)
    assert children.start("comparing", f"{point}:exit:{nth}").ended()[0] not in (0, 1)
    left = folders(spec)
    assert len(left) == 1 and audit(spec).ok
    working = children.start("comparing", f"{point}:pause:{nth}")
    held = working.paused(point)
    there = folders(spec)
    assert len(there) == 1 and there != left
    children.start("comparing", f"{point}:exit:{nth}").ended()
    assert len(folders(spec)) == 2
    assert compared(ledger, spec).equal
    assert folders(spec) == there
    held.unlink()
    assert working.ended() == (0, None)
    assert not folders(spec)
