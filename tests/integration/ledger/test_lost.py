"""What a task says whose attempt was lost: which one won, of which run, and what it came to."""

import re

import pytest

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel.airflow.task_failure import WIDTH, wrap_lines
from semel.commit import commit
from semel.errors import AttemptLostError, Doing
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reports import summary
from semel.stage import stage

KEY = "airflow:events:manual__1"
WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


def planned(bench: Workbench, ledger: Ledger) -> tuple[Spec, int]:
    """A batch of ten records, two of them twice."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 2)])
    return spec, plan(ledger, spec, KEY).batch.batch_id


def lost(ledger: Ledger, spec: Spec, batch: int, meanwhile) -> AttemptLostError:
    """The error of an attempt that goes on while something happens."""
    with pytest.raises(AttemptLostError) as raised:
        stage(ledger, spec, batch, LocalEngine(before_write=lambda _: meanwhile()), quiet)
    return raised.value


def test_a_worker_that_goes_on_after_its_task_was_marked_failed(
    bench: Workbench, ledger: Ledger
) -> None:
    """Its run was cleared, and the new attempt has committed: the late one names it."""
    spec, batch = planned(bench, ledger)
    error = lost(ledger, spec, batch, lambda: run(ledger, spec, KEY))
    assert re.fullmatch(
        r"batch 1: attempt 1 is lost, and semel does not use its output: attempt 2 of batch 1 "
        rf"\(run manual__1\) committed at {WHEN}, with 10 new, 2 repeats, 0 quarantined, 0 late",
        str(error),
    )
    assert all(len(line) <= WIDTH for line in wrap_lines(str(error)))
    again = "clear the run's stage task"
    doing = Doing(again=again, anew="clear the whole run", pipeline="events", batch_id=batch)
    assert error.next_step(doing) == "semel show 1"
    assert settled(spec).ids == ids(0, 10)


def test_an_attempt_whose_batch_was_abandoned(bench: Workbench, ledger: Ledger) -> None:
    """It says so, with the reason that was given."""
    spec, batch = planned(bench, ledger)
    error = lost(ledger, spec, batch, lambda: abandon(ledger, batch, "wrong files"))
    said = "batch 1: attempt 1 is lost (wrong files), and semel does not use its output"
    assert str(error) == said
    run(ledger, spec, KEY)
    assert settled(spec).ids == ids(0, 10)


def test_twins(bench: Workbench, ledger: Ledger) -> None:
    """Two stages of one batch: the newer one commits; stage and commit of the other name it, its
    run and time, and print what it came to."""
    spec, batch = planned(bench, ledger)
    twin = LocalEngine(before_write=lambda _: stage(ledger, spec, batch, LocalEngine(), quiet))
    stage(ledger, spec, batch, twin, quiet)
    won = commit(ledger, spec, batch, lambda: None, quiet)
    assert won.fence == 2
    account = summary.counts(won.counts)
    late = summary.commit(commit(ledger, spec, batch, lambda: None, quiet)).splitlines()
    assert re.fullmatch(
        "nothing to do: attempt 2 of batch 1 of events had committed before, at "
        rf"{WHEN} \(run manual__1\)",
        late[0],
    )
    assert late[1:] == [*account, "next: finalize"]
    staged = summary.stage(stage(ledger, spec, batch, LocalEngine(), quiet)).splitlines()
    assert re.fullmatch(
        rf"nothing to do: batch 1 of events is committed already; it committed at {WHEN} "
        r"\(run manual__1\)",
        staged[0],
    )
    assert staged[1:] == account
    finalize(ledger, spec, batch)
    assert settled(spec).ids == ids(0, 10)


def test_a_batch_that_is_staged_again_names_who_was_first(
    bench: Workbench, ledger: Ledger
) -> None:
    """The log says which batch had the same records, and the summary what is left."""
    spec, batch = planned(bench, ledger)
    stage(ledger, spec, batch, LocalEngine(), quiet)
    bench.write("in/b.jsonl", events(5, 15))
    run(ledger, spec, "airflow:events:manual__2")
    log: list[str] = []
    again = commit(
        ledger, spec, batch, lambda: stage(ledger, spec, batch, LocalEngine(), quiet), log.append
    )
    first = "batch 1: attempt 1 is lost: 5 of its records were committed first by batch 2 "
    assert log[0] == f"{first}(run manual__2); staging it again"
    said = summary.commit(again).splitlines()
    assert said[0] == "committed: attempt 2 of batch 1 of events, as commit 2 of its pipeline"
    assert said[2:-1] == summary.counts(again.counts) and again.counts.survivors == 5
    finalize(ledger, spec, batch)
    assert settled(spec).ids == ids(0, 15)
