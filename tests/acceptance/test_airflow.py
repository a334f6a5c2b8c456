"""Pipelines through Airflow, as users run them: triggered, killed, cleared, deleted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest
from airflow_rest import wait_for
from fix_pipelines import events
from fix_stack import Stack

from semel import stack as semel_stack
from semel.pipeline import Spec

KILLED_RECORDS = 400_000
"""34 MB, two splits: staging them takes seconds, so that there is a middle to be killed in."""

SUBMIT_SECONDS_MAX = 300


@pytest.fixture
def declare(stack: Stack) -> Callable[..., Spec]:
    """Declare a pipeline that reads its own folder, and wait until Airflow has its DAG."""

    def declare(name: str, **changes: object) -> Spec:
        changes["source"] = {"path": f"{name}/*.jsonl", **changes.get("source", {})}
        spec = stack.spec(name, **changes)
        stack.wait_for_dags(name)
        return spec

    return declare


def output(spec: Spec) -> list[int]:
    """The column n of all files that markers list, sorted."""
    sink = spec.sink_path()
    files = [
        str(sink / file["path"])
        for marker in (sink / "_semel" / "markers").glob("*.json")
        for file in json.loads(marker.read_text())["files"]
        if file["kind"] == "data"
    ]
    return sorted(ds.dataset(files, format="parquet").to_table(["n"])["n"].to_pylist())


def states(stack: Stack, dag: str, run: str) -> dict[str, str | None]:
    return {task: found.state for task, found in stack.airflow.tasks(dag, run).items()}


def said_last(stack: Stack, dag: str, run: str, task: str) -> list[str]:
    """The summary that ends a task's own part of its log."""
    end = "::group::Post Execute"

    def ended() -> list[str] | None:
        log = stack.airflow.log(dag, run, task)  # It may lag behind the task's state.
        return log[: log.index(end)] if end in log else None

    said = wait_for(ended, f"the log of {dag} {run} {task}", 30)
    return said[max(n for n, line in enumerate(said) if ": batch" in line) :]


def test_a_run_is_exact_and_says_so(stack: Stack, declare: Callable[..., Spec]) -> None:
    """Through Airflow over Connect each record is in the output once; the log says what happened.

    A run that finds nothing new succeeds, and its other tasks are visibly skipped.
    """
    spec = declare("shop")
    stack.write("shop/a.jsonl", [*events(0, 3000), *events(0, 100), b"{broken"])
    first = stack.airflow.run("shop")
    assert output(spec) == list(range(3000))
    said = said_last(stack, "shop", first, "stage")
    assert said[0].startswith("staged, not committed: batch")
    assert "read 3,101 records" in said[1]
    assert "malformed 1" in said[-3]
    assert said[-1] == "next: commit"
    assert said_last(stack, "shop", first, "finalize")[0].startswith("finalized: batch")
    stack.write("shop/b.jsonl", events(2500, 3500))
    stack.airflow.run("shop")
    assert output(spec) == list(range(3500))
    empty = stack.airflow.run("shop")
    assert states(stack, "shop", empty) == {
        "plan": "success", "stage": "skipped", "commit": "skipped", "finalize": "skipped"
    }  # fmt: skip


def attempts(stack: Stack, dag: str, run: str) -> list[tuple[int, str]]:
    """Fence and status of each attempt of a run's batch."""
    return stack.query(
        "SELECT fence, attempt.status FROM semel.attempt JOIN semel.batch USING (batch_id)"
        " WHERE request_key = %s ORDER BY fence",
        f"airflow:{dag}:{run}",
    )


def staged_to_the_middle(stack: Stack, spec: Spec) -> str:
    """Start a run of KILLED_RECORDS records, and wait until stage has begun to write."""
    stack.write(f"{spec.name}/a.jsonl", events(0, KILLED_RECORDS))
    run = stack.airflow.trigger(spec.name)
    staging = spec.sink_path() / "_semel" / "staging"
    wait_for(lambda: any(staging.glob("b*/f0001/spill/*")), "the first spill")
    assert attempts(stack, spec.name, run) == [(1, "running")]
    return run


def test_a_killed_stage_is_retried(stack: Stack, declare: Callable[..., Spec]) -> None:
    """SIGKILL of the stage task in its middle: Airflow retries it, and the output is exact."""
    spec = declare("killed")
    run = staged_to_the_middle(stack, spec)
    ((driver,),) = stack.query(
        "SELECT driver FROM semel.attempt JOIN semel.batch USING (batch_id) WHERE request_key = %s",
        f"airflow:killed:{run}",
    )
    os.kill(int(driver.rpartition(":")[2]), signal.SIGKILL)
    stack.airflow.succeeded("killed", run)
    assert stack.airflow.tasks("killed", run)["stage"].tries == 2
    assert attempts(stack, "killed", run) == [(1, "lost"), (2, "won")]
    assert output(spec) == list(range(KILLED_RECORDS))


def test_a_task_marked_failed_lets_go(stack: Stack, declare: Callable[..., Spec]) -> None:
    """Marking stage failed cancels its Spark operation; the run cleared, the output is exact."""
    spec = declare("failed")
    run = staged_to_the_middle(stack, spec)
    stack.airflow.fail("failed", run, "stage")
    wait_for(lambda: attempts(stack, "failed", run) == [(1, "lost")], "the attempt to be given up")
    assert stack.airflow.ended("failed", run) == "failed"
    stack.airflow.clear("failed", run)
    stack.airflow.succeeded("failed", run)
    assert attempts(stack, "failed", run) == [(1, "lost"), (2, "won")]
    assert output(spec) == list(range(KILLED_RECORDS))


def test_a_cleared_run_takes_what_has_arrived_since(
    stack: Stack, declare: Callable[..., Spec]
) -> None:
    """A finalized run that is cleared plans only what is new, as the next batch of its request."""
    spec = declare("cleared")
    stack.write("cleared/a.jsonl", events(0, 500))
    run = stack.airflow.run("cleared")
    stack.write("cleared/a.jsonl", events(400, 800), mode="ab")
    stack.airflow.clear("cleared", run)
    stack.airflow.succeeded("cleared", run)
    assert output(spec) == list(range(800))
    batches = stack.query(
        "SELECT ordinal, status FROM semel.batch WHERE request_key = %s ORDER BY ordinal",
        f"airflow:cleared:{run}",
    )
    assert batches == [(1, "finalized"), (2, "finalized")]


# Attacks P11, S16.
def test_a_deleted_runs_records_arrive(stack: Stack, declare: Callable[..., Spec]) -> None:
    """A run that planned and was then deleted loses nothing: a later run takes its records.

    It fails at stage, without a retry, because more is quarantined than its limit allows.
    """
    short = {"orphan_after": "1 s"}
    declare("orphan", limits={"quarantine_ratio_max": 0.0, **short})
    stack.write("orphan/a.jsonl", [*events(0, 500), b"{broken"])
    gone = stack.airflow.trigger("orphan")
    assert stack.airflow.ended("orphan", gone) == "failed"
    assert stack.airflow.tasks("orphan", gone)["stage"].tries == 1
    stack.airflow.delete("orphan", gone)
    spec = stack.spec(
        "orphan", source={"path": "orphan/*.jsonl"}, limits={"quarantine_ratio_max": 1.0, **short}
    )
    # The age of an orphan is the ledger's to tell.
    wait_for(
        lambda: stack.query(
            "SELECT 1 FROM semel.batch WHERE request_key = %s"
            " AND seen_at < clock_timestamp() - interval '1 second'",
            f"airflow:orphan:{gone}",
        ),
        "the batch to be an orphan",
    )
    stack.airflow.run("orphan")
    assert output(spec) == list(range(500))


def test_spark_submit_gives_the_same_rows(stack: Stack, declare: Callable[..., Spec]) -> None:
    """A connection of type `spark` stages under spark-submit: the same rows, the same account."""
    records = [*events(0, 2000), *events(0, 50), b"{broken"]
    over = {name: declare(name) for name in ("connected", "submitted")}
    for name in over:
        stack.write(f"{name}/a.jsonl", records)
    stack.airflow.run("connected")
    done = _test_dag(stack, "submitted", "local[2]")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "Spark-Submit cmd: spark-submit --master local[2]" in done.stdout
    assert semel_stack.ledger_dsn() not in done.stdout
    assert done.stdout.count("staged, not committed: batch") == 1
    assert output(over["submitted"]) == output(over["connected"]) == list(range(2000))
    accounts = stack.query(
        "SELECT records_read, survivors, duplicates_batch, quarantined FROM semel.attempt"
        " JOIN semel.batch USING (batch_id) JOIN semel.pipeline USING (pipeline_id)"
        " WHERE attempt.status = 'won' AND name IN ('connected', 'submitted')"
    )
    assert accounts == [(2051, 2000, 50, 1)] * 2


def _test_dag(stack: Stack, dag: str, master: str) -> subprocess.CompletedProcess[str]:
    """Run a DAG in a process of its own, with another `spark_default` than the stack has."""
    stack.airflow.pause(dag)  # Otherwise the scheduler would take the run's tasks, over Connect.
    scheduler = next(part for part in semel_stack.status().parts if part.name == "scheduler")
    environment = psutil.Process(scheduler.pid).environ()
    environment["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": master})
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "test", dag],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SUBMIT_SECONDS_MAX,
        cwd=stack.folder,
    )


def test_a_broken_file_is_an_import_error(stack: Stack, declare: Callable[..., Spec]) -> None:
    """A wrong YAML shows up in Airflow's list with file and line, and other pipelines still run."""
    spec = declare("sound")
    stack.write("sound/a.jsonl", events(0, 10))
    wrong: Path = stack.pipelines / "wrong.yaml"
    wrong.write_text("name: wrong\nsurce: {}\n")
    try:
        found = wait_for(stack.airflow.import_errors, "the import error")
        assert list(found) == ["broken_pipelines.py"]
        assert f"{wrong}:2: surce: is an unknown key" in found["broken_pipelines.py"]
        stack.airflow.run("sound")
        assert output(spec) == list(range(10))
    finally:
        wrong.unlink()
