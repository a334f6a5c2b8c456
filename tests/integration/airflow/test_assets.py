"""The asset of a pipeline: which tasks tell Airflow of a batch, by a real ledger.

What Airflow knows already is a list here; tests/acceptance/test_b_airflow.py asks a real one.
"""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.airflow.tasks import airflow_error
from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import failpoints, reader
from semel.commit import commit
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs import replay
from semel.stage import stage

BY_DAY = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
DAY = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))


def killed() -> None:
    raise failpoints.FaultError


class Told:
    """Airflow's own: the events that it has stored, and how a task hands it new ones."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.asked = 0

    def events(self, pipeline: str, since: datetime) -> list[Any]:
        """Those of one asset."""
        self.asked += 1
        assert since < datetime.now(UTC)
        return [event for event in self.stored if event.pipeline == pipeline]

    def run(
        self, task: Any, ledger: Ledger, spec: Spec, *, ends: bool = True, run_id: str = "r1",
        day: tuple[datetime, datetime] = DAY,
    ) -> list[int]:  # fmt: skip
        """Run a task, and store its events unless it is killed before its end. Their batches."""
        from airflow.sdk import Asset
        from airflow.sdk.execution_time.context import OutletEventAccessors

        between = dict(zip(("data_interval_start", "data_interval_end"), day, strict=True))
        kind = run_id.partition("__")[0]
        run = SimpleNamespace(dag_id=spec.name, run_id=run_id, run_type=kind)
        outlet_events = OutletEventAccessors()
        context = {"dag_run": run, "params": {}, "outlet_events": outlet_events, **between}
        task.act(ledger, spec, context)
        # As airflow.sdk.execution_time.task_runner and the api-server do with a success.
        made = [
            SimpleNamespace(
                pipeline=outlet.name.removeprefix("semel://"), extra=outlet_events[outlet].extra
            )
            for outlet in task.outlets
            if isinstance(outlet, Asset)
        ]
        for accessor in outlet_events._dict.values():
            for told in accessor.asset_alias_events:
                name = told.dest_asset_key.name.removeprefix("semel://")
                assert name in (spec.name, f"{spec.name}/windows")
                made.append(SimpleNamespace(pipeline=name, extra=told.extra))
        self.stored += made if ends else []
        return [event.extra.get("batch_id") for event in made]


@pytest.fixture
def told(airflow: None, monkeypatch: pytest.MonkeyPatch) -> Told:
    """An Airflow that has stored nothing yet."""
    from semel.airflow import assets

    made = Told()
    monkeypatch.setattr(assets, "_events", made.events)
    return made


def finalizing(spec: Spec) -> Any:
    """A finalize task, as Airflow makes a new one for each try."""
    from semel.airflow.operators import FinalizeOperator

    return FinalizeOperator(task_id="finalize", pipeline=spec.name)


def collecting(spec: Spec) -> Any:
    from semel.airflow.operators import CollectOperator

    return CollectOperator(task_id="collect", pipeline=spec.name)


def committed(ledger: Ledger, spec: Spec) -> int:
    """The batch of the run r1."""
    batch = plan(ledger, spec, f"airflow:{spec.name}:r1", DAY).batch
    stage(ledger, spec, batch.batch_id, LocalEngine(), quiet)
    commit(ledger, spec, batch.batch_id, lambda: None, quiet)
    return batch.batch_id


def later(ledger: Ledger, column: str, days: int) -> None:
    with ledger.transaction() as connection:
        change = f"UPDATE semel.batch SET {column} = {column} - interval '{days} days'"
        connection.exec_driver_sql(change)


def test_an_event_says_what_a_dag_needs(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Batch, days, interval, counts and the marker that is there; what repeats tells nothing."""
    spec = bench.spec(source=BY_DAY | {"path": "in/*.jsonl"})
    bench.write("in/2026-01-01.jsonl", [*events(0, 10), *events(0, 3)])
    batch = committed(ledger, spec)
    assert told.run(finalizing(spec), ledger, spec) == [batch]
    extra = told.stored[0].extra
    assert extra["days"] == ["2026-01-01"]
    assert extra["interval"] == ["2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]
    assert extra["counts"]["survivors"] == 10 and extra["counts"]["records_read"] == 13
    assert Path(extra["marker"]).is_file()
    assert told.asked == 0, "the good path asks Airflow nothing"
    for _ in range(2):
        assert told.run(finalizing(spec), ledger, spec) == []
    later(ledger, "committed_at", 1)
    assert told.run(collecting(spec), ledger, spec) == []


@pytest.mark.parametrize("by", [finalizing, collecting])
def test_a_finalize_that_was_killed_is_told_of(
    by: Any, bench: Workbench, ledger: Ledger, told: Told
) -> None:
    """It wrote `finalized` and died: its next try tells, or collect, and then nobody any more."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec)
    with failpoints.armed("finalize.after_finalized", killed), pytest.raises(failpoints.FaultError):
        told.run(finalizing(spec), ledger, spec)
    assert told.run(finalizing(spec), ledger, spec, ends=False) == [batch]
    later(ledger, "committed_at", 1)
    assert told.run(by(spec), ledger, spec) == [batch]
    for again in (finalizing, collecting, finalizing):
        assert told.run(again(spec), ledger, spec) == []


def test_collect_tells_of_what_it_finalizes(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Of a batch whose run is gone, and not of one that its run will tell of."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec)
    assert told.run(collecting(spec), ledger, spec) == []
    later(ledger, "committed_at", 1)
    assert told.run(collecting(spec), ledger, spec) == [batch]
    assert told.run(collecting(spec), ledger, spec) == []
    assert told.run(finalizing(spec), ledger, spec) == []


def test_what_airflow_may_have_forgotten_is_not_told_again(
    bench: Workbench, ledger: Ledger, told: Told
) -> None:
    """`airflow db clean` removes old events: a cleared run of last month starts nothing anew."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec)
    told.run(finalizing(spec), ledger, spec)
    told.stored.clear()
    later(ledger, "finalized_at", 8)
    later(ledger, "committed_at", 8)
    assert told.run(finalizing(spec), ledger, spec) == []
    assert told.run(collecting(spec), ledger, spec) == []


def test_a_replay_is_told_apart(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """By collect too, where no run of Airflow's made it: with the batch whose output it is, its
    generation, days and counts. The event of the first output is not sent again; and one of a
    version that knew no replay is the first output's.
    """
    spec = bench.spec(source=BY_DAY | {"path": "in/*.jsonl"})
    bench.write("in/2026-01-01.jsonl", [*events(0, 10), *events(0, 3)])
    batch = committed(ledger, spec)
    told.run(finalizing(spec), ledger, spec)
    for key in ("generation", "replay"):
        del told.stored[0].extra[key]
    replayed = replay.run(ledger, spec, "cli:replay", batch, LocalEngine(), quiet).batch
    assert told.run(finalizing(spec), ledger, spec) == []
    later(ledger, "committed_at", 1)
    assert told.run(collecting(spec), ledger, spec) == [batch]
    extra = told.stored[-1].extra
    assert (extra["generation"], extra["replay"]) == (2, replayed.batch_id)
    assert extra["commit_seq"] == 1 and extra["days"] == ["2026-01-01"]
    assert extra["counts"]["survivors"] == 10
    assert extra["marker"] == told.stored[0].extra["marker"]
    for again in (collecting, finalizing):
        assert told.run(again(spec), ledger, spec) == []


@pytest.mark.usefixtures("told")
def test_days_of_an_interval() -> None:
    """Its end belongs to the next day; a life-time of days is not written out."""
    from semel.airflow import assets

    start, end = DAY
    assert assets.days(start, end) == ["2026-01-01"]
    assert assets.days(start, end.replace(hour=1)) == ["2026-01-01", "2026-01-02"]
    assert assets.days(datetime(1, 1, 1, tzinfo=UTC), end) is None


def test_what_comes_late_is_told_once(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Files of earlier days that no run of the schedule takes: a line in plan's log, and one event
    with the days and the command that takes them. What is the same is told once. A run of days that
    somebody chose says nothing.
    """
    spec = bench.spec(source=BY_DAY | {"path": "in/*.jsonl"}, schedule="@daily")
    bench.write("in/2025-12-30.jsonl", events(10, 20))

    def planned(number: int, kind: str = "scheduled") -> tuple[list[dict], str]:
        from semel.airflow.assets import late_asset
        from semel.airflow.operators import PlanOperator

        bench.write(f"in/2026-01-0{number}.jsonl", events(100 * number, 100 * number + 5))
        day = tuple(datetime(2026, 1, number + n, tzinfo=UTC) for n in (0, 1))
        before, lines = len(told.stored), []
        task = PlanOperator(task_id="plan", pipeline=spec.name, outlets=[late_asset(spec.name)])
        act = task.act
        task.act = lambda *given: lines.append(act(*given))  # What it would print.
        told.run(task, ledger, spec, run_id=f"{kind}__{number}", day=day)
        assert {event.pipeline for event in told.stored[before:]} <= {"events/late"}
        return [event.extra for event in told.stored[before:]], lines[0].splitlines()[0]

    assert planned(1, "manual")[0] == []
    [extra], line = planned(2)
    assert line == (
        "late: 1 file of earlier days, 2025-12-30, is new or changed; `semel gaps events` prints "
        "the command to read them"
    )
    assert extra["days"] == {"2025-12-30": 1} and extra["pipeline"] == "events"
    assert planned(3) == ([], line)
    bench.write("in/2025-12-31.jsonl", events(30, 40))
    [extra], line = planned(4)
    assert extra["days"] == {"2025-12-30": 1, "2025-12-31": 1}
    *_, start, end = extra["command"].split()
    assert (start, end) == ("2025-12-30", "2026-01-01")
    assert "--from-date 2025-12-30T00:00:00+00:00 --to-date 2025-12-31T2" in extra["backfill"]
    times = tuple(datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (start, end))
    assert len(plan(ledger, spec, "by hand", times).names) == 2
    assert planned(5)[0] == []


def windowed(bench: Workbench, **changes: Any) -> Spec:
    source = BY_DAY | {"path": "in/*.jsonl"}
    return bench.spec(source=source, record_time="at", window={"size": "1 day"}, **changes)


def of_windows(told: Told) -> list[list[list[str]]]:
    """The windows of each event that the asset of complete windows has had."""
    found = [event for event in told.stored if event.pipeline == "events/windows"]
    assert all(event.extra["pipeline"] == "events" for event in found)
    return [event.extra["windows"] for event in found]


FIRST = ["2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]


def test_complete_windows_are_told(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """By the batch's event, and by that of an asset of their own; what repeats tells nothing."""
    from semel.airflow.assets import windows_asset
    from semel.airflow.operators import FinalizeOperator

    spec = windowed(bench)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    committed(ledger, spec)

    def task() -> Any:
        return FinalizeOperator(
            task_id="finalize", pipeline=spec.name, outlets=[windows_asset(spec.name)]
        )

    with failpoints.armed("finalize.after_finalized", killed), pytest.raises(failpoints.FaultError):
        told.run(task(), ledger, spec)
    assert of_windows(told) == []
    told.run(task(), ledger, spec)
    assert of_windows(told) == [[FIRST]]
    [own] = [event for event in told.stored if event.pipeline == "events"]
    assert own.extra["windows"] == [FIRST]
    for _ in range(2):
        told.run(task(), ledger, spec)
    assert len(told.stored) == 2


def test_the_folders_of_a_window_are_told(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Where the output is laid out by the windows, an event names the folders of complete ones: a
    reader of these gets their rows.
    """
    import pyarrow.compute as pc

    from semel.airflow.assets import windows_asset
    from semel.airflow.operators import FinalizeOperator

    hourly = {"window": "1 hour", "of": "at", "name": "hour"}
    daily = {"window": "1 day", "of": "at", "name": "day", "zone": "Asia/Tokyo"}
    spec = bench.spec(
        source=BY_DAY | {"path": "in/*.jsonl"}, record_time="at", window={"size": "1 hour"},
        sink={"partition_by": [daily, hourly]},
    )  # fmt: skip
    rows = [row | {"at": f"2026-01-01T{at:02}:30:00Z"} for at, row in enumerate(events(0, 24))]
    bench.write("in/2026-01-01.jsonl", rows)
    committed(ledger, spec)
    outlets = [windows_asset(spec.name)]
    told.run(FinalizeOperator(task_id="f", pipeline=spec.name, outlets=outlets), ledger, spec)
    [event] = [event for event in told.stored if event.pipeline == "events/windows"]
    hours = [f"2026-01-01T{hour:02}" for hour in range(24)]
    assert event.extra["folders"] == {"hour": hours}
    third = reader.dataset(spec.sink_path()).to_table(filter=pc.field("hour") == hours[3])
    assert third["id"].to_pylist() == [rows[3]["id"]]


def test_a_window_that_is_not_complete_is_not_told(
    bench: Workbench, ledger: Ledger, told: Told
) -> None:
    """It waits for the delay behind it, which a plan that finds nothing completes."""
    from semel.airflow.assets import windows_asset
    from semel.airflow.operators import FinalizeOperator, PlanOperator

    spec = bench.spec(
        source=BY_DAY | {"path": "in/*.jsonl"}, record_time="at",
        window={"size": "1 day", "delay": "1 day"},
    )  # fmt: skip
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    committed(ledger, spec)
    outlets = [windows_asset(spec.name)]
    told.run(FinalizeOperator(task_id="f", pipeline=spec.name, outlets=outlets), ledger, spec)
    assert of_windows(told) == [] and told.stored[0].extra["windows"] == []
    next_day = tuple(moment.replace(day=moment.day + 1) for moment in DAY)
    task = PlanOperator(task_id="plan", pipeline=spec.name, outlets=outlets)
    task._skip_others = lambda context, text: text
    told.run(task, ledger, spec, run_id="scheduled__2", day=next_day)
    assert of_windows(told) == [[FIRST]]


def test_collect_tells_of_windows(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Of a batch whose run is gone."""
    spec = windowed(bench)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    committed(ledger, spec)
    later(ledger, "committed_at", 1)
    told.run(collecting(spec), ledger, spec)
    assert of_windows(told) == [[FIRST]]


def test_windows_of_what_arrives_are_told(bench: Workbench, ledger: Ledger, told: Told) -> None:
    """Those that the batch has moved event time past, and not those before it."""
    spec = bench.spec(record_time="at", window={"size": "1 day"})
    ends = []
    for number, hours in enumerate((30, 40, 80), 1):
        at = (DAY[0].timestamp() + 3_600 * hours) * 1_000
        when = datetime.fromtimestamp(at / 1_000, UTC).isoformat()
        bench.write(f"in/{number}.jsonl", [{"id": f"e{number}", "n": 1, "at": when}])
        batch = plan(ledger, spec, f"airflow:events:r{number}").batch.batch_id
        stage(ledger, spec, batch, LocalEngine(), quiet)
        commit(ledger, spec, batch, lambda: None, quiet)
        told.run(finalizing(spec), ledger, spec, run_id=f"r{number}")
        ends.append([end[:10] for _, end in told.stored[-1].extra["windows"]])
    assert ends == [[], [], ["2026-01-03", "2026-01-04"]]


def test_a_sensor_waits_for_a_window(
    bench: Workbench, ledger: Ledger, airflow: None
) -> None:
    """It defers while the window is not complete, and fails after so long, with what it waits for.
    """
    from datetime import timedelta

    from semel.airflow.windows import SemelWindowSensor
    from semel.errors import TerminalError

    spec = windowed(bench)
    run = SimpleNamespace(dag_id="other", run_id="r", run_type="scheduled")
    days = dict(zip(("data_interval_start", "data_interval_end"), DAY, strict=True))
    context = {"dag_run": run, "params": {}, **days}
    sensor = SemelWindowSensor(task_id="whole", pipeline=spec.name)
    with pytest.raises(airflow_error("TaskDeferred")) as deferred:
        sensor.act(ledger, spec, context)
    assert deferred.value.method_name == "resume"
    since = datetime.fromisoformat(deferred.value.kwargs["since"])
    sensor.waiting_since = since - timedelta(days=8)
    with pytest.raises(TerminalError, match="waits for 2026-01-01, after 1 week"):
        sensor.act(ledger, spec, context)
    plan(ledger, spec, "r", DAY)
    assert sensor.act(ledger, spec, context) == "complete: events, 2026-01-01"
    named = SemelWindowSensor(task_id="w", pipeline=spec.name, start="2026-01-01", end=FIRST[1])
    assert named.act(ledger, spec, {}) == "complete: events, 2026-01-01"
    for start, end in ("2026-01-02", "2026-01-01"), ("today", "2026-01-01"):
        wrong = SemelWindowSensor(task_id="w", pipeline=spec.name, start=start, end=end)
        with pytest.raises(TerminalError):
            wrong.act(ledger, spec, {})
    with pytest.raises(TerminalError, match="has no window to wait for"):
        SemelWindowSensor(task_id="w", pipeline=spec.name).act(ledger, spec, {})
    with pytest.raises(ValueError, match="both start and end"):
        SemelWindowSensor(task_id="w", pipeline=spec.name, start="2026-01-01")
