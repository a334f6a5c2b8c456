"""The last lines of a failed task's log, by Airflow's own task instances, retry decision and
callbacks.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.airflow.dags import write
from fixtures.airflow.tasks import task_ends
from semel.errors import TerminalError, UnavailableError

BACKOFF = {"retry_delay": timedelta(seconds=10), "max_retry_delay": timedelta(minutes=5)}
DELAYS = {
    "steady": {"retry_delay": timedelta(minutes=5)},
    "backoff": BACKOFF,  # As semel declares it, see fail().
    "true": BACKOFF | {"retry_exponential_backoff": True},
}
QUEUE = """name: clicks
source:
  type: nats
  servers: nats://127.0.0.1:1
  stream: s
  consumer: clicks
  spool: spool
  value: json
  message_id: mid
  schema: {id: string, mid: string}
record_id: [mid]
sink: {type: files, path: out/clicks, format: parquet}
"""
VERBS = ("receive", "plan", "stage", "commit", "finalize", "collect")


@pytest.fixture(autouse=True)
def project(airflow: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline of files, and a ledger that is away."""
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    return write(tmp_path, "clicks")


def fail(
    patch: pytest.MonkeyPatch, verb: str = "finalize", try_number: int = 1, *,
    raises: Exception | None = None, **given: Any,
) -> tuple[Any, list[str]]:  # fmt: skip
    """Run a task as Airflow's task runner does: execute, the decision about a retry, the callbacks.
    Returns its task instance and the lines of its log. `raises`: what the verb itself does.
    """
    from airflow.sdk.api.datamodels._generated import DagRun, TIRunContext
    from airflow.sdk.execution_time import task_runner

    from semel.airflow import operators
    from semel.airflow.compat import RETRY_BACKOFF, AirflowFailException
    from semel.airflow.task_failure import HAS_POLICIES

    lines: list[str] = []
    kind = getattr(operators, f"{verb.capitalize()}Operator")

    def say(text: str, *values: object) -> None:
        lines.append(text % values if values else text)

    def act(*_: object) -> str:
        assert raises is not None
        raise raises

    patch.setattr(kind, "log", SimpleNamespace(info=say, error=say, warning=say))
    if raises is not None:
        patch.setattr(kind, "run_verb", act)
    if "max_retry_delay" in given:
        given = {"retry_exponential_backoff": RETRY_BACKOFF} | given
    task = kind(task_id=verb, pipeline="clicks", **given)
    now = datetime(2026, 11, 1, 10, tzinfo=UTC)
    run = DagRun(
        dag_id="clicks", run_id="manual__1", logical_date=now, data_interval_start=None,
        data_interval_end=None, run_after=now, start_date=now, end_date=None, run_type="manual",
        state="running", consumed_asset_events=[],
        **({"partition_key": None} if "partition_key" in DagRun.model_fields else {}),
    )  # fmt: skip
    may = task.retries != 0 and try_number <= task.retries  # As Airflow's API server says.
    asked = TIRunContext(dag_run=run, max_tries=task.retries, should_retry=may)
    ti = task_runner.RuntimeTaskInstance.model_construct(
        dag_id="clicks", run_id="manual__1", task_id=verb, try_number=try_number, task=task,
        max_tries=task.retries, _ti_context_from_server=asked, start_date=now,
    )  # fmt: skip
    context = {"dag_run": run, "params": {}, "task": task, "ti": ti, "outlet_events": {}}
    with task_ends(RuntimeError) as ended:
        kind.execute.__wrapped__(task, context)
    context["exception"] = ended.value
    if HAS_POLICIES:
        _, state = task_runner._handle_current_task_failed(ti, ended.value, task.log, context)
    elif isinstance(ended.value, AirflowFailException):
        state = "failed"  # As the task runner of these versions does at once.
    else:
        _, state = task_runner._handle_current_task_failed(ti)
    again = state == "up_for_retry"
    name = "on_retry_callback" if again else "on_failure_callback"
    task_runner._run_task_state_change_callbacks(task, name, context, task.log)
    return ti, lines


@pytest.mark.parametrize(
    ("delay", "try_number", "seconds"),
    [
        ("steady", 1, (300, 300)),
        ("steady", 3, (300, 300)),
        ("backoff", 1, (10, 20)),
        ("backoff", 3, (40, 80)),
        ("backoff", 9, (300, 300)),
        ("true", 3, (40, 80)),
    ],
)
@pytest.mark.parametrize("raises", [UnavailableError("it is away"), RuntimeError("a bug")])
def test_a_log_ends_with_the_time_of_the_next_try(
    delay: str, try_number: int, seconds: tuple[int, int], raises: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where a retry is left: its number, and the time that Airflow's scheduler waits for."""
    ti, lines = fail(monkeypatch, "finalize", try_number, raises=raises, retries=9, **DELAYS[delay])
    said = re.fullmatch(
        r"Airflow tries this task again at (\S+ \S+) UTC \(try (\d+) of 10, retry_delay\)", lines[-1]
    )
    assert said is not None, lines
    assert int(said[2]) == try_number + 1
    at = datetime.fromisoformat(f"{said[1]}+00:00")
    waits = [ti.end_date.replace(microsecond=0) + timedelta(seconds=s) for s in seconds]
    assert waits[0] <= at <= waits[1] + timedelta(seconds=1)


@pytest.mark.parametrize(("retries", "try_number"), [(0, 1), (3, 4)])
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("raises", [UnavailableError("it is away"), RuntimeError("a bug")])
def test_a_log_ends_with_the_next_step_when_no_try_is_left(
    delay: str, retries: int, try_number: int, raises: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that, how many tries there were, and the step of the error again."""
    given = DELAYS[delay]
    _, lines = fail(
        monkeypatch, "finalize", try_number, raises=raises, retries=retries, **given
    )
    why = f"no try is left after {try_number} of {retries + 1}"
    known = isinstance(raises, UnavailableError)
    step = "semel check clicks" if known else "read the log, then clear the task"
    assert lines[-2:] == [f"Airflow does not try this task again: {why}", f"next: {step}"]


@pytest.mark.parametrize(("retries", "try_number"), [(0, 1), (3, 1), (3, 4)])
def test_a_log_says_that_a_retry_would_fail_too(
    retries: int, try_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a TerminalError Airflow tries no more, whatever number of retries is left."""
    raises = TerminalError("it is wrong")
    _, lines = fail(monkeypatch, "finalize", try_number, raises=raises, retries=retries)
    assert lines[-2:] == [
        "Airflow does not try this task again: the same call would fail again",
        "next: correct the cause above, then clear the run's finalize task",
    ]


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_says_it(
    verb: str, retries: int, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a part is away: the ledger, and for receive its queue."""
    if verb == "receive":
        project.write_text(QUEUE)
    _, lines = fail(monkeypatch, verb, retries=retries)
    if retries:
        assert re.search(r"^Airflow tries this task again at .*\(try 2 of 4, ", lines[-1]), lines
    else:
        no_try = "Airflow does not try this task again: no try is left after 1 of 1"
        assert no_try in lines and lines[lines.index(no_try) + 1].startswith("next:"), lines
