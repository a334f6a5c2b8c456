"""A run that failed, and whose file or declaration was corrected: clearing it is enough."""

import pytest

from fix_account import ids, quiet, settled
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from semel import summary
from semel.errors import LimitError
from semel.ledger import Ledger
from semel.plan import plan
from semel.stage import stage
from test_bad_records import run


# Attacks P21.
@pytest.mark.parametrize("what", ["declaration", "file"])
def test_a_run_that_was_corrected_is_planned_anew(
    bench: Workbench, ledger: Ledger, what: str
) -> None:
    """Too many bad records; the file or its declaration is corrected; clearing the run is enough.

    Another run's plan leaves the batch alone.
    """
    text = {"schema": {"id": "string", "n": "boolean"}}
    spec = bench.spec(limits={"quarantine_ratio_max": 0.1}, source=text)
    bench.write("in/a.jsonl", events(0, 8))
    with pytest.raises(LimitError):
        run(ledger, spec, "r1")
    if what == "declaration":
        spec = bench.spec(limits={"quarantine_ratio_max": 0.1})
    else:
        bench.write("in/a.jsonl", [{"id": event["id"], "n": True} for event in events(0, 8)])
    assert plan(ledger, spec, "r2").batch is None
    done = run(ledger, spec, "r1")
    assert done.plan.anew[0] == 1 and done.plan.batch.ordinal == 2
    assert "planned anew: batch 1 never committed, and its " in summary.plan(done.plan)
    assert settled(spec).ids == ids(0, 8)


# Attacks P21.
def test_a_run_that_is_at_work_is_not_planned_anew(bench: Workbench, ledger: Ledger) -> None:
    """While an attempt shows life, the same request finds its batch as it was planned."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    batch = plan(ledger, spec, "r1").batch.batch_id
    changed = bench.spec(sink={"position_columns": True})
    found = []
    engine = LocalEngine(before_write=lambda _: found.append(plan(ledger, changed, "r1")))
    stage(ledger, spec, batch, engine, quiet)
    assert [(answer.batch.batch_id, answer.anew) for answer in found] == [(batch, None)]
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.attempt SET status = 'running', staged_at = NULL")
        connection.exec_driver_sql("UPDATE semel.batch SET seen_at = now() - interval '1 minute'")
    assert plan(ledger, changed, "r1").anew[0] == batch
