"""A note in the control topic that somebody has damaged: it is its own batch's trouble alone."""

from contextlib import nullcontext

import pytest

from fixtures.batches.account import ids, quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import Record
from fixtures.kafka.outlet import Outlet
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.compare import BatchRange, compare
from semel.errors import CorruptionError
from semel.ledger import Ledger
from semel.repair.adopt import adopt

KEY = b'["events",2]'


# Attacks KP10, KP13.
@pytest.mark.parametrize("value", [b"no note", None], ids=["bytes", "that of another batch"])
def test_a_damaged_note(
    bench: Workbench, ledger: Ledger, outlet: Outlet, shell: Shell, value: bytes | None
) -> None:
    """Three batches: the audit blames the one, find and compare give what the others have, and a
    run goes on. Once the note is as it was, all is proven again.
    """
    servers = outlet.make().kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    spec = bench.spec(sink={**sink, "position_columns": True})
    for n in range(3):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(ledger, spec, f"r{n}")
    notes = {read.key: read.value for read in outlet.kafka.drain(outlet.control)}
    outlet.kafka.produce(
        outlet.control, [Record(value=value or notes[b'["events",1]'], key=KEY)]
    )
    verdict = audit(spec)
    assert not verdict.ok
    offenders = [one for check in verdict.checks for one in check.offenders]
    assert {one.batch for one in offenders} == {2}
    at = max(read.offset for read in outlet.kafka.drain(outlet.control) if read.key == KEY)
    where = f"{outlet.control}, partition 0, offset {at} is not a valid note"
    assert any(where in one.what for one in offenders)
    found = shell.runs("semel find events e000025", code=1)
    assert "output: batch 3" in found and "semel could not search all of batch 2" in found
    assert found.splitlines()[-1] == "next: semel audit events"
    words = {"open_job": lambda: nullcontext(LocalEngine()), "difference_limit": 5, "log": quiet}
    compared = compare(ledger, spec, BatchRange(first=3, last=3), **words)
    assert (compared.rows_live, compared.total) == (10, 0)
    with pytest.raises(CorruptionError, match=r'the key of one, \["events",2\]'):
        compare(ledger, spec, BatchRange(first=1, last=3), **words)
    bench.write("in/3.jsonl", events(30, 40))
    run(ledger, spec, "r3")
    lose(ledger)
    with pytest.raises(CorruptionError, match="is not a valid note"):
        adopt(ledger, spec, log=quiet)
    outlet.kafka.produce(outlet.control, [Record(value=notes[KEY], key=KEY)])
    adopt(ledger, spec, log=quiet)
    assert audit(spec).ok and outlet.ids == ids(0, 40)
    assert "output: batch 2" in shell.runs("semel find events e000015")
