"""The demo as a user meets it: `semel demo`, again and again, and `semel down`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from semel.cli.airflow_api import AirflowApi
from semel.errors import TerminalError

SECONDS_MAX = 300
SEMEL = [sys.executable, "-c", "import sys; from semel.cli import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """An empty folder that Postgres's user can enter; the stack in it is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder:
        os.chmod(folder, 0o755)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*SEMEL, "down"], env=_environment(folder), timeout=120, check=True)


@pytest.fixture(scope="module")
def start(state) -> Callable[..., subprocess.Popen]:
    """Starts a semel command on the stack in `state`."""

    def start(*words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*SEMEL, *words], env=_environment(state), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


@pytest.fixture(scope="module")
def semel(start) -> Callable[..., tuple[int, dict]]:
    """Runs a semel command; its exit code and its JSON."""

    def run(*words: str) -> tuple[int, dict]:
        with start(*words, "--json") as process:
            out, err = process.communicate(timeout=SECONDS_MAX)
        assert out.count("\n") == 1, err
        return process.returncode, json.loads(out)

    return run


def test_the_first_week_is_exact(semel, state):
    """From nothing: stack, week 1, run in Airflow; all numbers are the truth, the audit passes."""
    code, answer = semel("demo")
    assert (code, answer["ok"], answer["week"]) == (0, True, 1)
    assert answer["found"] == answer["truth"]
    assert answer["found"]["records_read"] == 6284
    assert answer["found"]["new"] == answer["found"]["rows_finalized"] == 6098
    assert answer["audit"]["ok"]
    assert answer["audit"]["totals"]["survivors"] == 6098
    assert set(answer["seconds"]) == {"plan", "stage", "commit", "finalize", "all"}
    assert len(list((state / "data" / "flights").iterdir())) == 7


def test_the_next_call_lands_the_next_week(semel, state):
    """Week 2 brings repeats of week 1, which the catalog knows."""
    code, answer = semel("demo")
    assert (code, answer["ok"], answer["week"]) == (0, True, 2)
    assert answer["found"] == answer["truth"]
    assert answer["found"]["duplicates_against_the_catalog"] == 8
    assert answer["audit"]["batches"] == 2
    assert len(list((state / "data" / "flights").iterdir())) == 14


def test_a_failed_run_is_shown_and_taken_up_again(semel, start):
    """Of a failed task the log's end is printed; the next call goes on with the same run."""
    _, status = semel("up")
    api = AirflowApi(status["airflow_url"], status["airflow_user"], status["airflow_password"])
    with start("demo") as process:
        _fail_stage(api, "demo-week-03")
        _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert "end of the log of stage, try 1:" in err
    assert "run demo-week-03 of flights failed" in err

    code, answer = semel("demo")
    assert (code, answer["ok"], answer["week"]) == (0, True, 3)
    assert answer["found"] == answer["truth"]


def test_a_lost_file_fails_the_demo(semel, state):
    """The verdict is part of the result: with one output file gone, the demo exits 1."""
    lost = next((state / "data" / "out" / "flights").glob("*.parquet"))
    lost.rename(state / "lost.parquet")
    code, answer = semel("demo")
    assert (code, answer["ok"], answer["week"]) == (1, False, 4)
    assert answer["found"] == answer["truth"]
    broken = [check for check in answer["audit"]["checks"] if not check["ok"]]
    assert any(lost.name in str(check["offenders"]) for check in broken)


def test_down_leaves_no_process(semel, state):
    """After `semel down` no process has this stack's folder in its environment or command line."""
    assert _processes(state)
    assert semel("down")[0] == 0
    assert _processes(state) == []


def _fail_stage(api: AirflowApi, run_id: str) -> None:
    """What somebody does who marks the running stage task as failed in the UI."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            tasks = api.tasks("flights", run_id)
        except TerminalError:  # There is no such run yet.
            continue
        if tasks["stage"].state == "running":
            path = f"/api/v2/dags/flights/dagRuns/{run_id}/taskInstances/stage"
            api._call("PATCH", path, {"new_state": "failed"})
            return
    pytest.fail(f"stage of {run_id} has not run in {SECONDS_MAX} s")


def _processes(state: Path) -> list[str]:
    """Command lines of the processes that belong to the stack in `state`."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        about = process.info
        words = [*(about["cmdline"] or ()), *(about["environ"] or {}).values()]
        ours = about["pid"] == os.getpid() or about["status"] == psutil.STATUS_ZOMBIE
        if not ours and any(str(state) in word for word in words):
            found.append(" ".join(about["cmdline"] or ()))
    return found


def _environment(state: Path | str) -> dict[str, str]:
    """The environment of a user who has set nothing, with state and data of these tests' own."""
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("SEMEL_", "AIRFLOW"))}
    return plain | {"SEMEL_STATE_DIR": f"{state}/state", "SEMEL_DATA_ROOTS": f"{state}/data"}
