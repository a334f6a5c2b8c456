"""Every cell of the matrix, by the real verbs on a real ledger: a run for one day of files.

What Airflow does to a run (retry, clear, no more tasks) is played;
tests/acceptance/test_b_matrix.py has Airflow do it.
"""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.matrix import HOW, PLANNED, STATE, Plan, plan_of
from fixtures.spark.local import LocalEngine
from semel import failpoints, reader
from semel.archive import layout
from semel.collect import collect
from semel.commit import commit
from semel.errors import TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.batch import Batch
from semel.pipeline.spec import Spec
from semel.plan import Plan as Planned
from semel.plan import find_batch, plan
from semel.repair.accept import accept_file
from semel.reports import summary
from semel.stage import stage

pytestmark = pytest.mark.usefixtures("airflow")

DAY = datetime(2026, 1, 2, tzinfo=UTC)
ONE = timedelta(days=1)


def killed() -> None:
    raise failpoints.FaultError


class Run:
    """A DAG run of one pipeline, as its tasks see it."""

    def __init__(
        self, ledger: Ledger, spec: Spec, run_id: str, day: datetime | None = DAY
    ) -> None:
        self.ledger, self.spec, self.day = ledger, spec, day
        self.dag_run = SimpleNamespace(dag_id=spec.name, run_id=run_id, run_type="manual")

    def plan(self) -> Planned:
        """The task plan, with the operator's key and interval."""
        from semel.airflow.operators import run_interval, request_key

        context: dict[str, Any] = {"dag_run": self.dag_run, "params": {}}
        if self.day:
            ends = pendulum.instance(self.day), pendulum.instance(self.day + ONE)  # As Airflow's.
            context |= dict(zip(("data_interval_start", "data_interval_end"), ends, strict=True))
        key = request_key(context)
        answer = plan(self.ledger, self.spec, key, run_interval(context, self.spec))
        assert "batch" in summary.plan(answer)
        return answer

    def batch(self) -> Batch | None:
        """What it has planned last."""
        return find_batch(self.ledger, self.spec, f"airflow:{self.spec.name}:{self.dag_run.run_id}")

    def stage(self) -> None:
        stage(self.ledger, self.spec, self.batch().batch_id, LocalEngine(), quiet)

    def commit(self) -> None:
        commit(self.ledger, self.spec, self.batch().batch_id, lambda: None, quiet)

    def finalize(self) -> None:
        finalize(self.ledger, self.spec, self.batch().batch_id)

    def go(self) -> Plan:
        """All four tasks, or those that are not skipped. What plan answered."""
        try:
            answer = self.plan()
        except TerminalError:
            return Plan.FAILS
        if answer.batch is None and not answer.is_done:
            return Plan.NOTHING
        self.stage()
        self.commit()
        self.finalize()
        return Plan.AGAIN if answer.is_done else Plan.TAKES


def play(run: Run, event: str) -> None:
    """What happens to a run whose plan takes something; none of it may reach readers too early."""
    ledger, spec, before = run.ledger, run.spec, output(run.spec)
    if event in ("succeeds", "cleared"):
        assert run.go() is Plan.TAKES
    if event == "cleared":
        assert run.go() is Plan.AGAIN
    if event == "marked failed":
        run.plan()
        with failpoints.armed("stage.after_begin", killed), pytest.raises(failpoints.FaultError):
            run.stage()
        assert run.batch().status == "planned" and output(spec) == before
        assert run.go() is Plan.TAKES
    if event == "killed":
        run.plan()
        run.stage()
        with failpoints.armed("commit.after_win", killed), pytest.raises(failpoints.FaultError):
            run.commit()
        run.commit()
        with failpoints.armed("finalize.after_mark", killed), pytest.raises(failpoints.FaultError):
            run.finalize()
        run.finalize()
    if event == "paused":
        run.plan()
        run.stage()
        assert run.batch().status == "planned" and output(spec) == before
        run.commit()
        run.finalize()
    if event == "cancelled":
        run.plan()
        assert Run(ledger, spec, "next").go() is Plan.NOTHING
        change(spec, ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '2 hours'")
        assert Run(ledger, spec, "next").go() is Plan.TAKES
        assert run.batch().status == "abandoned"
    else:
        assert run.batch().status == "finalized"


def change(spec: Spec, ledger: Ledger, statement: str) -> None:
    """A statement on a table of the ledger, for one pipeline."""
    whose = f"pipeline_id = (SELECT pipeline_id FROM semel.pipeline WHERE name = '{spec.name}')"
    with ledger.transaction() as connection:
        connection.exec_driver_sql(f"{statement} WHERE {whose}")


def output(spec: Spec) -> list[int]:
    """What readers see."""
    if not any(layout.markers(layout.archive_folder(spec)).glob("b*.json")):
        return []
    return sorted(reader.dataset(spec.sink_path()).to_table(["n"])["n"].to_pylist())


def batches(spec: Spec, ledger: Ledger) -> int:
    with ledger.transaction() as connection:
        found = connection.exec_driver_sql(
            "SELECT count(*) FROM semel.batch JOIN semel.pipeline USING (pipeline_id)"
            f" WHERE name = '{spec.name}'"
        )
        return found.scalar_one()


def arrange(bench: Workbench, ledger: Ledger, spec: Spec, state: str, earlier: str) -> list[int]:
    """Make what is there before the run. `earlier`: the run that did what is done. All of it."""
    file = f"{spec.name}/2026-01-02.jsonl"
    first = Run(ledger, spec, earlier)
    numbers = list(range(100, 110))
    if state == "beyond the horizon":
        bench.write(f"{spec.name}/2026-01-01.jsonl", events(100, 105))
        assert Run(ledger, spec, "long ago", DAY - ONE).go() is Plan.TAKES
        change(spec, ledger, "UPDATE semel.id_run SET expires_at = clock_timestamp()")
        assert collect(ledger, spec, quiet).runs_retired
        numbers += range(100, 105)
    bench.write(file, events(100, 110))
    if state == "in work elsewhere":
        Run(ledger, spec, "at work").plan()
    if state in ("partly done", "done", "refused file"):
        assert first.go() is Plan.TAKES
    if state == "partly done":
        bench.write(file, events(110, 115), mode="ab")
        numbers += range(110, 115)
    if state == "refused file":
        bench.write(file, events(300, 303))
        numbers += range(300, 303)
    return sorted(numbers)


def settle(run: Run, state: str) -> None:
    """What a person does in the end, or time."""
    if state == "in work elsewhere":
        assert Run(run.ledger, run.spec, "at work").go() is Plan.TAKES
    if state == "refused file":
        accept_file(run.ledger, run.spec, f"{run.spec.name}/2026-01-02.jsonl", same=False)
    if run.day is None:
        run.day = DAY  # Triggered again, with an interval.
    run.go()


SAME = ("scheduled", "manual")
"""For semel they are `manual with interval`: a new run with a data interval."""


CELLS = [(how, state) for how in HOW if how not in SAME for state in STATE]
TAKING = [cell for cell in CELLS if plan_of(*cell) is Plan.TAKES]


def arranged(how: str, state: str, bench: Workbench, ledger: Ledger) -> tuple[Run, list[int]]:
    """A run that has not begun, and all records that are there."""
    source = {"path": "days/*.jsonl", "select": "interval"}
    spec = bench.spec("days", source=source | {"interval_from": "%Y-%m-%d.jsonl"})
    mine = "r1" if how == "backfill reprocess" else "r2"
    run = Run(ledger, spec, mine, None if how == "REST without logical date" else DAY)
    whole = arrange(bench, ledger, spec, state, earlier="r1")
    beside = {"backfill up": DAY - ONE, "backfill down": DAY + ONE}.get(how)
    if beside and state != "beyond the horizon":
        bench.write(f"days/{beside:%F}.jsonl", events(0, 3))
        assert Run(ledger, spec, "beside", beside).go() is Plan.TAKES
        whole = [0, 1, 2, *whole]
    if how == "manual with interval":
        assert {plan_of(other, state) for other in SAME} == {plan_of(how, state)}
    return run, whole


def all_is_there(run: Run, whole: list[int]) -> None:
    """Each record once, and nothing is left to take."""
    assert output(run.spec) == whole
    assert Run(run.ledger, run.spec, "last").go() is Plan.NOTHING


@pytest.mark.pairs
@pytest.mark.parametrize("event", PLANNED)
@pytest.mark.parametrize(("how", "state"), TAKING)
def test_a_run_that_takes_records(
    how: str, state: str, event: str, bench: Workbench, ledger: Ledger
) -> None:
    """What becomes of the run, and in the end each record once."""
    run, whole = arranged(how, state, bench, ledger)
    play(run, event)
    all_is_there(run, whole)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("how", "state"), [cell for cell in CELLS if cell not in TAKING])
def test_a_run_that_takes_nothing(how: str, state: str, bench: Workbench, ledger: Ledger) -> None:
    """What plan answers, also when it is retried or cleared, whatever happens to the run: ledger
    and output stay as they are. Once that is settled, each record is there once.
    """
    run, whole = arranged(how, state, bench, ledger)
    before = batches(run.spec, ledger), output(run.spec)
    for _ in range(2):
        assert run.go() is plan_of(how, state)
    assert (batches(run.spec, ledger), output(run.spec)) == before
    settle(run, state)
    all_is_there(run, whole)
