"""How the demo follows its runs, against an Airflow that says what a test lets it say."""

from collections.abc import Iterator

import pytest

from semel.demo import follow
from semel.demo.airflow_api import TaskState
from semel.errors import TerminalError, UnavailableError


class Airflow:
    """Each run is as its list says, one word a look; the last word stays."""

    def __init__(self, **states: list[str]) -> None:
        self.states = {name: iter(words) for name, words in states.items()}
        self.now: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []

    def wait_for_dag(self, name: str) -> None:
        self.calls.append(("wait", name))

    def start_run(self, name: str, run_id: str) -> None:
        self.calls.append((run_id, name))

    def run_url(self, name: str, run_id: str) -> str:
        return f"http://airflow/{name}/{run_id}"

    def run_state(self, name: str, run_id: str) -> str:  # noqa: ARG002
        self.now[name] = next(self.states[name], self.now.get(name, ""))
        return self.now[name]

    def tasks(self, name: str, run_id: str) -> dict[str, TaskState]:  # noqa: ARG002
        state = self.now[name]
        task = TaskState(task_id="stage", state=state, try_number=1, started=None, ended=None)
        return {"stage": task}

    def log(self, name: str, run_id: str, task: TaskState) -> list[str]:  # noqa: ARG002
        return [f"why {name} is {task.state}"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0)
    yield


def test_all_are_started_before_one_is_waited_for() -> None:
    """They run beside each other; the slower one is waited for."""
    airflow = Airflow(a=["success"], b=["running", "running", "success"])
    tasks = follow.run_all(airflow, ("a", "b"), "week")
    assert airflow.calls == [("wait", "a"), ("week", "a"), ("wait", "b"), ("week", "b")]
    assert {name: found["stage"].state for name, found in tasks.items()} == {
        "a": "success", "b": "success",
    }  # fmt: skip


def test_each_failure_is_named_when_all_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """With where to look, once, and the end of its log; what still runs is not left behind."""
    airflow = Airflow(a=["failed"], b=["running", "failed"], c=["running", "running", "success"])
    with pytest.raises(TerminalError) as raised:
        follow.run_all(airflow, ("a", "b", "c"), "week")
    assert str(raised.value) == (
        "run week of a failed, see http://airflow/a/week; run week of b failed, see "
        "http://airflow/b/week; run this again: it goes on where the run failed"
    )
    assert airflow.now["c"] == "success"
    said = capsys.readouterr().err
    assert said.count("end of the log of a stage, try 1:") == 1
    assert "| why b is failed" in said and "why c" not in said


def test_a_run_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that is bounded the message says which run, and that nothing is lost."""
    monkeypatch.setattr(follow, "RUN_SECONDS_MAX", -1)
    airflow = Airflow(a=["success"], b=["running"])
    with pytest.raises(UnavailableError, match=r"run week of b has not ended.*goes on with this"):
        follow.run_all(airflow, ("a", "b"), "week")
