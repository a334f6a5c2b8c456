"""A compare that is killed: what it leaves, and who cleans that up."""

import pytest

from fixtures.batches.compares import batch, compared, databases, folders
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench, events
from semel.audit import audit
from semel.collect import collect
from semel.ledger import Ledger


@pytest.mark.parametrize("point", ["stage.after_store", "finalize.after_mark"])
@pytest.mark.parametrize("cleaned", ["compare", "collect"])
def test_killed(
    bench: Workbench, ledger: Ledger, children: Children, point: str, cleaned: str
) -> None:
    """What a killed compare leaves is nothing to others, and goes with the next one or collect;
    what one at work has stays.
    """
    spec = bench.spec()
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 10, n * 10 + 15))
        batch(ledger, spec)
    assert children.start("comparing", f"{point}:exit").ended()[0] not in (0, 1)
    left = databases(ledger)
    assert len(left) == len(folders(spec)) == 1 and audit(spec).ok
    working = children.start("comparing", f"{point}:pause")
    held = working.paused(point)
    there = databases(ledger)
    assert len(there) == 1 and not there & left and len(folders(spec)) == 1
    children.start("comparing", f"{point}:exit").ended()
    assert len(databases(ledger)) == len(folders(spec)) == 2
    if cleaned == "compare":
        assert compared(ledger, spec).equal
    else:
        collect(ledger, spec, log=lambda _: None)
    assert databases(ledger) == there and len(folders(spec)) == 1
    held.unlink()
    assert working.ended() == (0, None)
    assert not databases(ledger) and not folders(spec)
