"""The DAGs: parsed and serialized as Airflow's DAG processor does it, without a database."""

import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fix_dags import BY_INTERVAL, parsed, write
from semel.errors import RetryableError, TerminalError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two pipelines that are right, and four files that are not."""
    folder = tmp_path_factory.mktemp("pipelines")
    write(folder, "clicks")
    write(folder, "days", '"0 0 * * *"', BY_INTERVAL)
    write(folder, "typo").write_text("name: typo\nsurce: {}\n")
    (folder / "no_yaml.yaml").write_text("name: [\n")
    again = write(folder, "zz_clicks_again")
    again.write_text(again.read_text().replace("zz_clicks_again", "clicks"))
    inside = write(folder, "zz_inside")
    inside.write_text(inside.read_text().replace("out/zz_inside", "out/clicks/zz_inside"))
    return parsed(folder)


def tasks(dag: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["__var"]["task_id"]: task["__var"] for task in dag["tasks"]}


def test_a_dag_for_each_pipeline(found: dict[str, Any]) -> None:
    """Each right file gives one DAG of its name with plan >> stage >> commit >> finalize."""
    assert set(found["dags"]) == {"clicks", "days", "semel_collect"}
    for name in ("clicks", "days"):
        dag = found["dags"][name]
        order = {task: rest.get("downstream_task_ids", []) for task, rest in tasks(dag).items()}
        assert order == {
            "plan": ["stage"], "stage": ["commit"], "commit": ["finalize"], "finalize": []
        }  # fmt: skip
        assert dag["max_active_runs"] == 3
        assert dag["catchup"] is False
        assert all(task["retries"] == 3 for task in tasks(dag).values())
        # When slots are short, what has begun is ended first.
        assert all(task["weight_rule"] == "upstream" for task in tasks(dag).values())
        assert "| digest | `" in dag["doc_md"] and "Clicks of the shop." in dag["doc_md"]


def test_each_pipeline_has_an_asset(found: dict[str, Any]) -> None:
    """finalize tells `semel://<pipeline>` of a batch; collect those that nobody has told of."""
    for name in ("clicks", "days"):
        dag = tasks(found["dags"][name])
        outlets = {task: rest["outlets"] for task, rest in dag.items() if "outlets" in rest}
        [asset] = outlets.pop("finalize")
        assert asset["__var"]["name"] == f"semel://{name}"
        assert not outlets
    [alias] = tasks(found["dags"]["semel_collect"])["collect"]["partial_kwargs"]["outlets"]
    assert alias["__var"]["name"] == "semel_collect"


def test_the_schedule_has_intervals(found: dict[str, Any]) -> None:
    """A schedule gives data intervals [t-1, t) in UTC; without one a DAG is not paused at first."""
    timetable = found["dags"]["days"]["timetable"]
    assert timetable["__type"].endswith("CronDataIntervalTimetable")
    assert timetable["__var"] == {"expression": "0 0 * * *", "timezone": "UTC"}
    assert "is_paused_upon_creation" not in found["dags"]["days"]
    assert found["dags"]["clicks"]["timetable"]["__type"].endswith("NullTimetable")
    assert found["dags"]["clicks"]["is_paused_upon_creation"] is False


def test_the_form_asks_for_an_interval(found: dict[str, Any]) -> None:
    """Only a pipeline that selects by interval has parameters, two optional date-times."""
    assert found["dags"]["clicks"]["params"] == []
    params = dict(found["dags"]["days"]["params"])
    assert set(params) == {"interval_start", "interval_end"}
    for param in params.values():
        assert param["default"] is None
        assert param["schema"]["__var"]["format"] == "date-time"


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
    assert names == ["clicks", "days", "no_yaml", "typo", "zz_inside"]


def test_parsing_is_light(found: dict[str, Any]) -> None:
    """Neither Spark nor Arrow is imported every few seconds by Airflow's DAG processor."""
    assert found["heavy"] == []


def test_the_plugin_loader_leaves_the_library_alone(found: dict[str, Any]) -> None:
    """Airflow has the plugin, by its entry point, and runs no module of semel under a bare name."""
    assert "semel" in found["plugins"]
    assert found["bare"] == []


def test_a_task_parses_only_its_own_file(tmp_path: Path) -> None:
    """A task's process reads its own pipeline, whatever is wrong with the others."""
    write(tmp_path, "clicks")
    write(tmp_path, "days")
    write(tmp_path, "typo").write_text("name: typo\n")
    assert set(parsed(tmp_path, "days")["dags"]) == {"days"}
    assert set(parsed(tmp_path, "semel_collect")["dags"]) == {"semel_collect"}


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may be imported without writing to the user's home."""
    if "airflow" not in sys.modules:
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


def context(**given: Any) -> dict[str, Any]:
    run = SimpleNamespace(dag_id="clicks", run_id="manual__1")
    return {"dag_run": run, "params": {}, **given}


@pytest.mark.usefixtures("airflow")
def test_the_request_is_the_run() -> None:
    """A DAG run is one request, whatever task of it asks, however often."""
    from semel.airflow.operators import request_key

    assert request_key(context(task="stage")) == "airflow:clicks:manual__1"


@pytest.mark.usefixtures("airflow")
def test_the_interval() -> None:
    """Parameters win over the data interval; half an interval, or one without zone, is refused."""
    from semel.airflow.operators import interval

    day, next_day = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
    run = {"data_interval_start": next_day, "data_interval_end": next_day.replace(day=3)}
    both = {"interval_start": "2013-01-01T00:00:00Z", "interval_end": "2013-01-02T00:00:00+00:00"}
    assert interval(context()) is None
    assert interval(context(**run)) == (next_day, next_day.replace(day=3))
    assert interval(context(params=both, **run)) == (day, next_day)
    with pytest.raises(TerminalError, match="only one of interval_start and interval_end"):
        interval(context(params={**both, "interval_end": None}, **run))
    with pytest.raises(TerminalError, match="time zone"):
        interval(context(params={**both, "interval_end": "2013-01-02T00:00:00"}))


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize(("raised", "retried"), [(TerminalError, False), (RetryableError, True)])
def test_only_what_may_succeed_is_retried(
    raised: type[Exception], retried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TerminalError fails the task at once with its message; a RetryableError is retried. Airflow
    prints no traceback of either.
    """
    from airflow.sdk import RetryAction

    from semel.airflow.operators import FinalizeOperator

    write(tmp_path, "clicks")
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")

    def act(*_: object) -> str:
        raise raised("the fact, the ids, the next action")

    monkeypatch.setattr(FinalizeOperator, "act", act)
    task = FinalizeOperator(task_id="finalize", pipeline="clicks")
    with pytest.raises(SystemExit, match="the fact, the ids") as ended:
        FinalizeOperator.execute.__wrapped__(task, context())
    decided = task.retry_policy.evaluate(ended.value, 1, 3)
    assert decided.action is (RetryAction.DEFAULT if retried else RetryAction.FAIL)


# Attacks G8.
@pytest.mark.usefixtures("airflow")
def test_collect_fails_while_a_batch_cannot_be_finalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is red, with all that it did and the damaged batch in its message."""
    from semel import collect
    from semel.airflow.operators import CollectOperator

    none = dict.fromkeys([f.name for f in fields(collect.Collected)], 0)
    done = collect.Collected(**{**none, "pipeline": "clicks", "runs_merged": 3, "damaged": ("b7",)})
    monkeypatch.setattr(collect, "collect", lambda *_: done)
    task = CollectOperator(task_id="collect", pipeline="clicks")
    with pytest.raises(TerminalError, match="3 id runs merged\nNOT FINALIZED: b7"):
        task.act(None, None, context())
