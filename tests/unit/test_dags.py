"""The DAGs: parsed and serialized as Airflow's DAG processor does it, without a database."""

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest

from fixtures.airflow.dags import BEHIND_DAYS, BY_INTERVAL, OF_TOPICS, parsed, write
from fixtures.airflow.tasks import task_ends
from semel import pipeline
from semel.declare import yaml
from semel.errors import RetryableError, TerminalError
from semel.pipeline.spec import Spec

pytestmark = pytest.mark.server("dags")
"""Airflow parses the files once for all tests, which takes seconds."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Five pipelines that are right, and four files that are not."""
    folder = tmp_path_factory.mktemp("pipelines")
    write(folder, "clicks")
    write(folder, "days", '"0 0 * * *"', BY_INTERVAL)
    write(folder, "at_will", select=BY_INTERVAL)
    (folder / "orders.yaml").write_text(OF_TOPICS)
    (folder / "behind.yaml").write_text(BEHIND_DAYS)
    write(folder, "typo").write_text("name: typo\nsurce: {}\n")
    (folder / "no_yaml.yaml").write_text("name: [\n")
    again = write(folder, "zz_clicks_again")
    again.write_text(again.read_text().replace("zz_clicks_again", "clicks"))
    inside = write(folder, "zz_inside")
    inside.write_text(inside.read_text().replace("out/zz_inside", "out/clicks/zz_inside"))
    return parsed(folder)


def tasks(dag: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["__var"]["task_id"]: task["__var"] for task in dag["tasks"]}


def test_a_pipeline_with_windows(tmp_path: Path) -> None:
    """Plan and finalize have the asset of complete windows; of a pipeline without, none has."""
    write(tmp_path, "plain")
    path = write(tmp_path, "hours")
    text = path.read_text().replace("page: string", "page: string, at: timestamp")
    path.write_text(f"{text}record_time: at\nwindow: {{size: 1 hour}}\n")
    dags = parsed(tmp_path)["dags"]
    with_it = {
        name: [task for task, of in tasks(dags[name]).items() if "/windows" in json.dumps(of)]
        for name in ("plain", "hours")
    }
    assert with_it == {"plain": [], "hours": ["plan", "finalize"]}


QUEUE = """name: {name}
source:
  type: nats
  servers: nats://127.0.0.1:4222
  stream: s
  consumer: {name}
  spool: spool
  receivers: {receivers}
  value: json
  message_id: mid
  schema: {{id: string, mid: string}}
record_id: [mid]
sink: {{type: files, path: out/{name}, format: parquet}}
"""


def test_receivers_of_a_queue(tmp_path: Path) -> None:
    """As many tasks as are declared, before plan, which waits for all of them."""
    for name, receivers in (("one", 1), ("four", 4)):
        declared = QUEUE.format(name=name, receivers=receivers)
        (tmp_path / f"{name}.yaml").write_text(declared)
    dags = parsed(tmp_path)["dags"]
    for name in ("one", "four"):
        first = tasks(dags[name])["receive"]
        assert first["downstream_task_ids"] == ["plan"]
        mapped = first.get("expand_input", {"value": {"__var": {}}})["value"]["__var"]
        assert mapped == ({} if name == "one" else {"number": [1, 2, 3, 4]})


def test_a_dag_for_each_pipeline(found: dict[str, Any]) -> None:
    """Each right file gives one DAG of its name with plan >> stage >> commit >> finalize."""
    names = {"at_will", "behind", "clicks", "days", "orders", "semel_collect"}
    assert set(found["dags"]) == names
    for name in ("clicks", "days"):
        dag = found["dags"][name]
        order = {task: rest.get("downstream_task_ids", []) for task, rest in tasks(dag).items()}
        assert order == {
            "plan": ["stage"], "stage": ["commit"], "commit": ["finalize"], "finalize": []
        }  # fmt: skip
        assert dag["max_active_runs"] == 3
        assert dag.get("catchup", False) is False  # Airflow 3.1 leaves out what is its default.
        assert all(task["retries"] == 3 for task in tasks(dag).values())
        # When slots are short, what has begun is ended first.
        assert all(task["weight_rule"] == "upstream" for task in tasks(dag).values())
        assert "| digest | `" in dag["doc_md"] and "Clicks of the shop." in dag["doc_md"]


def test_a_dag_behind_another_one(found: dict[str, Any]) -> None:
    """Each finalized batch of the pipeline that it reads makes a run, by that one's asset."""
    timetable = json.dumps(found["dags"]["behind"]["timetable"])
    assert "AssetTriggered" in timetable and "semel://days" in timetable


def test_a_dag_of_topics(found: dict[str, Any]) -> None:
    """Its page says which topics of which connection, and how an interval is found; no broker and
    no client of Kafka is needed for it."""
    dag = found["dags"]["orders"]
    assert set(dag["tags"]) == {"semel", "pipeline", "kafka"}
    lines = dag["doc_md"].splitlines()
    assert (
        "| source | the topics that match `orders\\.(eu\\|us)` of connection `shop`, json, "
        "what belongs to the run's interval by the messages' timestamps, lookback 0 seconds |"
    ) in lines
    assert "| sink | topic `paid` of connection `shop`, as JSON |" in lines
    assert any("50,000,000 offsets or about" in line for line in lines)


def test_each_pipeline_has_an_asset(found: dict[str, Any]) -> None:
    """finalize tells `semel://<pipeline>` of a batch, collect those that nobody has told of; plan
    tells of what comes late, where a schedule takes one interval after the other.
    """
    for name in ("clicks", "days"):
        dag = tasks(found["dags"][name])
        outlets = {task: rest["outlets"] for task, rest in dag.items() if "outlets" in rest}
        asset, replays = outlets.pop("finalize")
        assert replays["__var"]["name"] == "semel_replays"
        assert asset["__var"]["name"] == f"semel://{name}"
        late = [asset["__var"]["name"] for asset in outlets.pop("plan", [])]
        assert late == (["semel://days/late"] if name == "days" else [])
        assert not outlets
    [alias] = tasks(found["dags"]["semel_collect"])["collect"]["partial_kwargs"]["outlets"]
    assert alias["__var"]["name"] == "semel_collect"


def test_each_task_has_its_links(found: dict[str, Any]) -> None:
    """Airflow's API server knows the buttons from the serialized DAG alone."""
    names = ["Batch", "Output", "Dead letters", "Operations"]
    for rest in tasks(found["dags"]["clicks"]).values():
        assert list(rest["_operator_extra_links"]) == names
    collect = tasks(found["dags"]["semel_collect"])["collect"]
    assert list(collect["_operator_extra_links"]) == ["Operations"]


def test_the_schedule_has_intervals(found: dict[str, Any]) -> None:
    """A schedule gives data intervals [t-1, t) in UTC; without one a DAG is not paused at first."""
    timetable = found["dags"]["days"]["timetable"]
    assert timetable["__type"].endswith("CronDataIntervalTimetable")
    assert timetable["__var"] == {"expression": "0 0 * * *", "timezone": "UTC"}
    assert "is_paused_upon_creation" not in found["dags"]["days"]
    assert found["dags"]["clicks"]["timetable"]["__type"].endswith("NullTimetable")
    assert found["dags"]["clicks"]["is_paused_upon_creation"] is False


@pytest.mark.rest
def test_a_deadline_is_airflows(found: dict[str, Any], tmp_path: Path) -> None:
    """`deadline` becomes an alert of Airflow's, from when a run is queued on; without, there is
    none.
    """
    assert not found["dags"]["clicks"].get("deadline")
    with write(tmp_path, "clicks").open("a") as file:
        file.write("notify: [ops]\ndeadline: 2 hours\n")
    parsed_ = parsed(tmp_path)
    assert parsed_["errors"] == {}
    [alert] = parsed_["dags"]["clicks"]["deadline"]
    told = json.dumps(alert)
    assert "DagRunQueuedAtDeadline" in told and "7200" in told
    assert "semel.airflow.notify.tell_of_late_run" in told and '"connections": ["ops"]' in told


def test_the_form_asks_for_an_interval_where_airflow_does_not(found: dict[str, Any]) -> None:
    """Where there is a schedule Airflow's own field does it. Without one, it has no such field."""
    for name in ("clicks", "days"):
        assert set(dict(found["dags"][name]["params"])) == {"replay", "batches"}
    params = dict(found["dags"]["at_will"]["params"])
    assert set(params) == {"interval_start", "interval_end", "replay", "batches"}
    for param in (params["interval_start"], params["interval_end"]):
        assert param["default"] is None
        assert param["schema"]["__var"]["format"] == "date-time"
        assert "only if the DAG has a schedule" in param["description"]


@pytest.mark.rest
def test_the_form_asks_for_a_replay(found: dict[str, Any]) -> None:
    """Each pipeline's, off by default, so that a run of the schedule is what it was; whether it can
    do without `batches`, the form says.
    """
    needs = {"clicks": "Required with Replay.", "days": "Empty: those of the interval."}
    for name, text in needs.items():
        params = dict(found["dags"][name]["params"])
        assert params["replay"]["default"] is False
        assert params["replay"]["schema"]["__var"]["type"] == "boolean"
        assert params["batches"]["default"] is None
        assert text in params["batches"]["description"]


def test_broken_files_take_nothing_else_down(found: dict[str, Any]) -> None:
    """All errors, with file, line and key, are import errors of a Python file without any DAG."""
    assert list(found["errors"]) == ["broken_pipelines.py"]
    text = found["errors"]["broken_pipelines.py"]
    assert "typo.yaml:2: surce:" in text
    assert "no_yaml.yaml:2: (yaml):" in text
    assert "zz_clicks_again.yaml: name:" in text
    assert "zz_inside.yaml: sink.path:" in text


def test_every_declared_pipeline_is_collected(found: dict[str, Any]) -> None:
    """collect has a task for each declared pipeline, also while its file is wrong."""
    task = tasks(found["dags"]["semel_collect"])["collect"]
    names = task["expand_input"]["value"]["__var"]["pipeline"]
    assert names == [
        "at_will", "behind", "clicks", "days", "no_yaml", "orders", "typo", "zz_inside"
    ]  # fmt: skip


def test_parsing_is_light(found: dict[str, Any]) -> None:
    """Neither Spark nor Arrow is imported every few seconds by Airflow's DAG processor."""
    assert found["heavy"] == []


def test_the_plugin_loader_leaves_the_library_alone(found: dict[str, Any]) -> None:
    """Airflow has the plugin, by its entry point, and runs no module of semel under a bare name."""
    assert "semel" in found["plugins"]
    assert found["bare"] == []


def test_a_task_costs_no_more_because_the_folder_has_many_pipelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's process reads the YAML of its own pipeline, and of no other."""
    from semel.airflow import factory

    for name in ("clicks", "days", "weeks"):
        write(tmp_path, name)
    monkeypatch.setenv("SEMEL_HOME", str(tmp_path))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    parsed_texts, plain = [], yaml._document

    def parse(path: Path, text: str) -> yaml.Document:
        parsed_texts.append(path.name)
        return plain(path, text)

    monkeypatch.setattr(yaml, "_document", parse)
    task = SimpleNamespace(dag_id="days")
    monkeypatch.setattr(factory, "get_parsing_context", lambda: task)
    assert set(factory.dags(tmp_path, "semel_collect")) == {"days"}
    assert set(parsed_texts) == {"days.yaml"}
    task.dag_id = "elsewhere"
    assert factory.dags(tmp_path, "semel_collect") == {}


@pytest.mark.rest
def test_a_task_parses_only_its_own_file(tmp_path: Path) -> None:
    """A task's process reads its own pipeline, whatever is wrong with the others."""
    write(tmp_path, "clicks")
    write(tmp_path, "days")
    write(tmp_path, "typo").write_text("name: typo\n")
    assert set(parsed(tmp_path, "days")["dags"]) == {"days"}
    assert set(parsed(tmp_path, "semel_collect")["dags"]) == {"semel_collect"}


def context(
    run_type: str = "manual", logical_date: datetime | None = None, **given: Any
) -> dict[str, Any]:
    run = SimpleNamespace(
        dag_id="clicks", run_id="manual__1", run_type=run_type, logical_date=logical_date
    )
    return {"dag_run": run, "params": {}, **given}


def test_the_request_is_the_run() -> None:
    """A DAG run is one request, whatever task of it asks, however often."""
    from semel.airflow.operators import request_key

    assert request_key(context(task="stage")) == "airflow:clicks:manual__1"


def by_interval(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """The pipeline `days`, which reads the files of an interval."""
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(folder / "data"))
    return pipeline.load(write(folder, "days", select=BY_INTERVAL))


def test_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the data interval; a run's configuration goes before it. Who takes what has arrived
    has none."""
    from semel.airflow.intervals import run_interval

    spec = by_interval(tmp_path, monkeypatch)
    day, next_day = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
    run = {"data_interval_start": next_day, "data_interval_end": next_day.replace(day=3)}
    both = {"interval_start": "2013-01-01T00:00:00Z", "interval_end": "2013-01-02T00:00:00+00:00"}
    assert run_interval(context(**run), spec) == (next_day, next_day.replace(day=3))
    assert run_interval(context(params=both, **run), spec) == (day, next_day)
    airflows = {name: pendulum.instance(moment) for name, moment in run.items()}
    assert {type(moment) for moment in run_interval(context(**airflows), spec)} == {datetime}
    arrival = pipeline.load(write(tmp_path, "clicks"))
    assert run_interval(context(params=both, **run), arrival) is None


@pytest.mark.parametrize(
    ("start", "end", "run_type", "why"),
    [
        (None, None, "manual", r"this run has none\. Trigger it .* \{\"interval_start\": \"20"),
        ("2013-01-01T00:00:00Z", None, "manual", "interval_end, and it has only one of the two"),
        ("2013-01-01T00:00:00", "2013-01-02T00:00:00Z", "manual", "is not a time with a time zone"),
        (20130101, 20130102, "manual", "20130101 is not a time with a time zone"),
        (["x"], "soon", "manual", "is not a time with a time zone"),
        ("2013-01-02T00:00:00Z", "2013-01-01T00:00:00Z", "manual", "this run has .2013-01-02T00"),
        ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z", "backfill", "its runs an interval"),
    ],
)
def test_a_wrong_interval(
    start: object, end: object, run_type: str, why: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It fails at once, with what to give; no run reads other days than somebody meant."""
    from semel.airflow.intervals import run_interval

    spec = by_interval(tmp_path, monkeypatch)
    params = {"interval_start": start, "interval_end": end}
    with pytest.raises(TerminalError, match=why):
        run_interval(context(run_type=run_type, params=params), spec)


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("after_midnight", "zone", "run_type", "schedule", "left"),
    [
        (timedelta(), UTC, "manual", "@daily", True),
        (timedelta(), timezone(timedelta(hours=5)), "manual", "@daily", True),
        (DAY, UTC, "manual", "@daily", True),
        (timedelta(seconds=1), UTC, "manual", "@daily", False),
        (-DAY, UTC, "manual", "@daily", False),
        (timedelta(), UTC, "scheduled", "@daily", False),
        (timedelta(), UTC, "backfill", "@daily", False),
        (timedelta(), UTC, "manual", None, False),
        (None, UTC, "manual", "@daily", False),
    ],
)
def test_a_manual_run_in_the_place_of_a_scheduled_one(
    after_midnight: timedelta | None, zone: tzinfo, run_type: str, schedule: str | None, left: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Airflow gives a logical date to one run. A manual run at the start of an interval that is not
    over has that of the scheduled run to come: plan says so, and which command reads it.
    """
    from semel.airflow.intervals import skipped_interval
    from semel.reports import summary

    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    logical = None if after_midnight is None else (midnight + after_midnight).astimezone(zone)
    spec = by_interval(tmp_path, monkeypatch).model_copy(update={"schedule": schedule})
    interval = skipped_interval(context(run_type=run_type, logical_date=logical), spec)
    assert (interval is not None) == left
    if interval:
        day = logical.astimezone(UTC)
        assert interval == (day, day + DAY)
        told, command = summary.unscheduled_interval("clicks", *interval)
        assert "Airflow will not create the scheduled run" in told
        assert command == f"next: semel run clicks --interval {day:%F} {day + DAY:%F}"


@pytest.mark.parametrize(("raised", "retried"), [(TerminalError, False), (RetryableError, True)])
def test_only_what_may_succeed_is_retried(
    raised: type[Exception], retried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TerminalError fails the task at once with its message; a RetryableError is retried. Airflow
    prints no traceback of either.
    """
    from semel.airflow.operators import FinalizeOperator
    from semel.airflow.task_failure import HAS_POLICIES, failure_text, is_terminal

    write(tmp_path, "clicks")
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")

    def act(*_: object) -> str:
        raise raised("the fact, the ids, the next action")

    monkeypatch.setattr(FinalizeOperator, "act", act)
    task = FinalizeOperator(task_id="finalize", pipeline="clicks")
    said = []
    monkeypatch.setattr(type(task), "log", SimpleNamespace(error=said.append))
    instance = SimpleNamespace(try_number=1, max_tries=3)
    given = context(ti=instance, task=task)
    with task_ends(match="the fact, the ids") as ended:
        FinalizeOperator.execute.__wrapped__(task, given)
    again = "nothing, Airflow tries this task again by itself (try 2 of 4)"
    first = "correct the cause above, then clear the run's finalize task"
    assert said[-1] == "next: " + (again if retried else first)
    seen = failure_text({**given, "exception": ended.value}, "clicks")
    assert seen.splitlines()[-1] == said[-1], "callbacks see it too"
    assert is_terminal(ended.value) is not retried
    if HAS_POLICIES:
        decided = task.retry_policy.evaluate(ended.value, 1, 3)
        assert decided.action.name == ("DEFAULT" if retried else "FAIL")


# Attacks G8.
def test_collect_fails_while_a_batch_cannot_be_finalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is red, with all that it did and the damaged batch in its message."""
    from semel import collect
    from semel.airflow.operators import CollectOperator

    none = dict.fromkeys([f.name for f in fields(collect.Collected)], 0)
    done = collect.Collected(**{**none, "pipeline": "clicks", "runs_merged": 3, "damaged": ("b7",)})
    monkeypatch.setattr(collect, "collect", lambda *_: done)
    task = CollectOperator(task_id="collect", pipeline="clicks")
    with pytest.raises(TerminalError, match="3 id runs merged\nNOT DONE: b7"):
        task.act(None, None, context())
