"""Runs with `replay: true`, by Airflow's tasks on a real ledger: what they plan, do and tell."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.airflow.tasks import Tasks, airflow_error, task_ends
from fixtures.batches.account import run, sql
from fixtures.batches.replays import BY_DAY, DAY, ONE, three_days
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel.archive.marker import markers
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reader import dataset
from semel.runs import replay
from semel.stage import stage


class Stager:
    """In the place of the way to Spark: a local engine. `opened`: how often it was opened."""

    opened = 0

    def __init__(self, ledger: Ledger, spec: Spec, log: Any) -> None:
        self.ledger, self.spec, self.log = ledger, spec, log

    def __enter__(self) -> "Stager":
        Stager.opened += 1
        return self

    def __exit__(self, *failed: Any) -> None:
        pass

    def stage(self, batch_id: int) -> str:
        from semel.reports import summary

        return summary.stage(stage(self.ledger, self.spec, batch_id, LocalEngine(), self.log))


class Run:
    """A DAG run of the pipeline `events`, with its configuration and interval."""

    def __init__(
        self, tasks: Tasks, run_id: str, days: tuple[int, int] | None = None, **params: Any
    ) -> None:
        self.tasks, self.params = tasks, params
        self.skipped = False
        self.values: dict[str, Any] = {}
        self.run = SimpleNamespace(
            dag_id="events", run_id=run_id, run_type=run_id.partition("__")[0]
        )
        if days:
            ends = (DAY + n * ONE for n in days)
            self.values = dict(zip(("data_interval_start", "data_interval_end"), ends, strict=True))

    def task(self, name: str, *, ends: bool = True) -> dict[str, Any]:
        """Run a task as Airflow does: its XCom. `skipped` tells that plan skipped the others."""
        from airflow.sdk.execution_time.context import OutletEventAccessors

        from semel.airflow import operators

        task = getattr(operators, f"{name}Operator")(task_id=name.lower(), pipeline="events")
        task.skip = lambda *_: setattr(self, "skipped", True)
        told = OutletEventAccessors()
        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            try_number=1, max_tries=0, xcom_push=lambda key, value: pushed.update({key: value})
        )
        context = {
            "dag_run": self.run, "params": self.params, "outlet_events": told,
            "task": SimpleNamespace(task_id=name.lower(), get_flat_relatives=lambda **_: []),
            "ti": ti, **self.values,
        }  # fmt: skip
        answer = type(task).execute.__wrapped__(task, context)
        if ends:
            self.tasks.events += _events(task, told)
        self.last = task
        return pushed.get("return_value", answer)

    def go(self) -> dict[str, Any]:
        """All tasks. The last one's XCom."""
        answer = self.task("Plan")
        for name in () if self.skipped else ("Stage", "Commit", "Finalize"):
            answer = self.task(name)
        return answer


# Attacks A9.
def test_a_configuration_that_airflow_keeps_back_is_refused(
    bench: Workbench, ledger: Ledger, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With [core] dag_run_conf_overrides_params = False Airflow merges nothing into the params: a run
    that asks for a replay, or an interval, takes nothing new, and the next one without does."""
    from airflow.sdk.definitions.param import process_params

    from semel.airflow.factory import pipeline_dag

    bench.write("in/a.jsonl", events(0, 10))
    spec = bench.spec()
    dag = pipeline_dag(spec, None)
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    day = {"interval_start": "2013-01-01T00:00:00Z", "interval_end": "2013-01-02T00:00:00Z"}
    for at, conf in enumerate(({"replay": True, "batches": "1"}, day, {"note": "mine"}, None)):
        params = process_params(dag, dag.get_task("plan"), conf, suppress_exception=False)
        one = Run(tasks, f"manual__{at}", **params)
        one.run.conf = conf
        if at > 1:
            one.task("Plan")
            continue
        for name in ("Plan", "Stage", "Commit", "Finalize"):
            with task_ends(match="dag_run_conf_overrides_params is False"):
                one.task(name)
        assert sql(ledger, "SELECT * FROM semel.batch") == []
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "True")
    conf = {"replay": True, "batches": "1"}
    params = process_params(dag, dag.get_task("plan"), conf, suppress_exception=False)
    one = Run(tasks, "manual__9", **params)
    one.run.conf = conf
    with task_ends(match="batch 1"):  # It is not finalized.
        one.task("Plan")


def _events(task: Any, told: Any) -> list[Any]:
    """What Airflow stores with a task's success: an event of each asset among its outlets, and
    those that were added under an alias.
    """
    from airflow.sdk import Asset

    made = [
        SimpleNamespace(extra=told[outlet].extra, alias=None)
        for outlet in task.outlets
        if isinstance(outlet, Asset)
    ]
    for accessor in told._dict.values():
        made += [
            SimpleNamespace(extra=one.extra, alias=one.source_alias_name)
            for one in accessor.asset_alias_events
        ]
    return made


@pytest.fixture
def tasks(
    bench: Workbench, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tasks:
    made = Tasks.of(bench, ledger, tmp_path, monkeypatch)
    from semel.airflow import spark

    monkeypatch.setattr(spark, "Stager", Stager)
    return made


def changed(bench: Workbench) -> Spec:
    """Another declaration, which gives the same output."""
    return bench.spec(source=BY_DAY | {"lookback": "1 day"}, schedule="@daily")


def generations(spec: Spec) -> list[int]:
    return [marker.generation for marker in markers(spec.sink_path())]


def extras(tasks: Tasks, since: int = 0) -> list[tuple]:
    return [
        (e.extra["batch_id"], e.extra["generation"], e.extra["replay"])
        for e in tasks.events[since:]
    ]


def test_a_run_replays_its_interval(
    bench: Workbench, ledger: Ledger, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finalized batch of the data interval, and no other; nothing new is taken. One way to
    Spark serves all; the logs say which it is at; the XCom has the list and the sums.
    """
    spec = three_days(bench, ledger)
    rows = dataset(spec.sink_path()).to_table().num_rows
    bench.write("in/2026-01-02.late.jsonl", events(500, 510))
    Stager.opened = 0
    from semel.airflow.operators import VerbOperator

    logged: list[str] = []
    monkeypatch.setattr(VerbOperator, "log_lines", lambda _, text: logged.append(text))
    answer = Run(tasks, "manual__1", (0, 2), replay=True).go()
    assert generations(spec) == [2, 2, 1]
    assert dataset(spec.sink_path()).to_table().num_rows == rows
    keys = ("batch_id", "generation", "replay", "status")
    found = [tuple(one[key] for key in keys) for one in answer["replays"]]
    assert found == [(1, 2, 4, "finalized"), (2, 2, 5, "finalized")]
    assert answer["counts"]["survivors"] == 20
    assert answer["replays"][0]["interval"][0] == "2026-01-01T00:00:00+00:00"
    assert Stager.opened == 2, "one for stage, one for commit"
    for line in (
        "1 of 2: batch 1 of 2026-01-01: generation 2, by batch 4",
        "2 of 2: batch 2 of 2026-01-02: generation 2, by batch 5",
    ):
        assert logged.count(line) == 3, "in stage, commit and finalize"


def test_a_run_that_is_cleared(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """It finds its replays finalized: no further generation, no further event. When the declaration
    was changed since, it replays once more.
    """
    spec = three_days(bench, ledger)
    run = Run(tasks, "manual__1", (0, 3), replay=True)
    first = run.go()
    told = len(tasks.events)
    again = run.go()
    assert again["replays"] == first["replays"] and not run.skipped
    assert generations(spec) == [2, 2, 2] and len(tasks.events) == told
    Run(tasks, "manual__2", (1, 2), replay=True).go()
    assert run.go()["replays"] == first["replays"] and generations(spec) == [2, 3, 2]
    changed(bench)
    run.go()
    assert generations(spec) == [3, 4, 3]


def test_a_run_that_died_goes_on(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """Whatever task is tried again, each batch is replayed once, and told once."""
    spec = three_days(bench, ledger)
    run = Run(tasks, "manual__1", (0, 3), replay=True)
    for name in ("Plan", "Stage", "Commit", "Finalize"):
        run.task(name, ends=False)
    since = len(tasks.events)
    for name in ("Plan", "Stage", "Commit", "Finalize", "Finalize"):
        run.task(name)
    assert generations(spec) == [2, 2, 2]
    assert extras(tasks, since) == [(1, 2, 4), (2, 2, 5), (3, 2, 6)]


def test_the_log_has_the_account_of_each_replay(
    bench: Workbench, ledger: Ledger, tasks: Tasks,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each task logs the summary of each replay; only the last line of all says what is next."""
    three_days(bench, ledger)
    one = Run(tasks, "manual__1", (0, 2), replay=True)
    logs = {}
    for name in ("Plan", "Stage", "Commit", "Finalize"):
        caplog.clear()
        capsys.readouterr()
        one.task(name)
        logs[name] = caplog.text + capsys.readouterr().out
    for name, begins, step in (
        ("Stage", "staged, not committed: ", "next: commit"),
        ("Commit", "committed: ", "next: finalize"),
        ("Finalize", "finalized: ", "readers see these outputs, whole"),
    ):
        assert logs[name].count(begins) == 2, logs[name]
        assert logs[name].count("next: ") + logs[name].count("these outputs") == 1, logs[name]
        assert step in logs[name]
    assert logs["Finalize"].count("marker: ") == 2


def test_an_alias_is_for_a_second_event(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """A run's first event is the asset's own. Airflow fails the second of two tasks that bring an
    asset under one alias for the first time at once; so no run of a backfill needs the alias.
    """
    three_days(bench, ledger)
    for run_id, days, aliases in (
        ("backfill__1", (0, 1), [None]),
        ("manual__1", (0, 3), [None, "semel_replays", "semel_replays"]),
    ):
        since = len(tasks.events)
        Run(tasks, run_id, days, replay=True).go()
        assert [event.alias for event in tasks.events[since:]] == aliases


def test_a_backfill_of_days_with_and_without_a_batch(
    bench: Workbench, ledger: Ledger, tasks: Tasks
) -> None:
    """Reprocessed runs are the schedule's own, under the same key: each replays its day. A day
    without a batch is skipped, so that the backfill ends well; who names one by hand is told. A
    later run under that key takes what came late, as before.
    """
    spec = three_days(bench, ledger)
    for n in range(3):
        run = Run(tasks, f"scheduled__{n}", (n, n + 1), replay=True)
        run.run.run_type = "backfill"
        assert run.go()["replays"][0]["replay"] == n + 4
    run = Run(tasks, "backfill__9", (9, 10), replay=True)
    assert "nothing to do" in run.go()["summary"] and run.skipped
    told = "(?s)has nothing to replay in 2026-01-10.*next: semel batches"
    with task_ends(match=told):
        Run(tasks, "manual__9", (9, 10), replay=True).go()
    bench.write("in/2026-01-02.jsonl", events(10, 30))
    late = Run(tasks, "scheduled__1", (1, 2))
    late.run.run_type = "backfill"
    assert late.go()["batch_id"] == 7
    assert generations(spec) == [2, 2, 2, 1]


def test_the_schedule_never_replays(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """Not even where its configuration says so: what has come is taken."""
    spec = three_days(bench, ledger)
    bench.write("in/2026-01-04.jsonl", events(30, 40))
    assert Run(tasks, "scheduled__3", (3, 4), replay=True).go()["batch_id"] == 4
    assert generations(spec) == [1, 1, 1, 1]


@pytest.mark.rest
def test_batches_by_number(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """For a pipeline without intervals, which cannot do without; others may name them too."""
    spec = bench.spec()
    for n in range(3):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(ledger, spec, f"r{n}")
    Run(tasks, "manual__1", replay=True, batches="2..3").go()
    assert generations(spec) == [1, 2, 2]
    Run(tasks, "manual__2", replay=True, batches="1").go()
    assert generations(spec) == [2, 2, 2]
    refused = {
        "has to name its batches": {"replay": True},
        "would replay the same batches": {"replay": True, "batches": "1", "kind": "backfill"},
        "without replay: true": {"batches": "1"},
        "neither true nor false": {"replay": "true"},
        "the first number is larger than the last one": {"replay": True, "batches": "3..1"},
        "is not a number of a batch": {"replay": True, "batches": "1,2"},
        "batches 90 to 99": {"replay": True, "batches": "90..99"},
    }
    for text, params in refused.items():
        kind = params.pop("kind", "manual")
        with task_ends(match=text):
            Run(tasks, f"{kind}__3", **params).go()
    assert generations(spec) == [2, 2, 2]


@pytest.mark.rest
def test_all_or_none(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """Where some cannot be replayed none is, and each reason is told. One that is not finalized is
    at work, and its own run makes it by today's code anyway.
    """
    spec = three_days(bench, ledger)
    bench.write("in/2026-01-04.jsonl", events(30, 40))
    plan(ledger, spec, "airflow:events:scheduled__3", (DAY + 3 * ONE, DAY + 4 * ONE))
    with task_ends(match="is planned, and only a finalized batch"):
        Run(tasks, "manual__1", (3, 4), replay=True).go()
    from semel.airflow.task_failure import is_terminal

    for day in (1, 3):
        (bench.data / f"in/2026-01-0{day}.jsonl").rename(bench.folder / f"away{day}")
    with task_ends() as raised:
        Run(tasks, "manual__1", (0, 3), replay=True).go()
    said = str(raised.value)
    assert is_terminal(raised.value) and "2 of 3 cannot be replayed. Nothing was done" in said
    assert "batch 1: " in said and "batch 3: " in said and "batch 2: " not in said
    assert generations(spec) == [1, 1, 1] and len(replay.replays_of_request(ledger, spec, "x")) == 0


def test_two_runs_over_the_same_day(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """The second one is tried again by Airflow while the first one shows life, and then goes on."""
    spec = three_days(bench, ledger)
    first = Run(tasks, "manual__1", (0, 1), replay=True)
    first.task("Plan")
    second = Run(tasks, "manual__2", (0, 2), replay=True)
    from semel.airflow.task_failure import is_terminal

    busy = "batch 4 .run manual__1. is at work on batch 1"
    with task_ends(match=busy) as raised:
        second.go()
    assert not is_terminal(raised.value)
    for name in ("Stage", "Commit", "Finalize"):
        first.task(name)
    second.go()
    assert generations(spec) == [3, 2, 1]


def test_the_form(bench: Workbench) -> None:
    """What Airflow refuses at once is what the verb would refuse."""
    from semel.airflow import replays

    form = replays.form_params(bench.spec())
    assert form["replay"].resolve() is False and form["batches"].resolve() is None
    for good in ("17", "17..23"):
        assert form["batches"].resolve(good) == good
    for bad in ("", "a", "1,2", "17..", "1..2..3", " 1", "1" * 19):
        with pytest.raises(airflow_error("ParamValidationError")):
            form["batches"].resolve(bad)


def test_its_lineage(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """OpenLineage gets one event of the run: the sums, and a facet that names each replay."""
    from openlineage.client.serde import Serde

    three_days(bench, ledger)
    run = Run(tasks, "manual__1", (0, 2), replay=True)
    run.go()
    told = run.last.get_openlineage_facets_on_complete(None)
    assert told.inputs[0].inputFacets["inputStatistics"].rowCount == 20
    written = told.outputs[0].outputFacets["outputStatistics"]
    assert (written.rowCount, written.fileCount) == (20, 2)
    facet = json.loads(Serde.to_json(told.run_facets["semel_replays"]))
    found = [(one["batchId"], one["generation"], one["replay"]) for one in facet["replays"]]
    assert found == [(1, 2, 4), (2, 2, 5)] and "semel_batch" not in told.run_facets
    assert facet["replays"][1]["url"].endswith("/semel/dags/events/batches/5")
    run.task("Finalize")
    told = run.last.get_openlineage_facets_on_complete(None)
    assert told.inputs[0].inputFacets == told.outputs[0].outputFacets == {}
