"""Pipelines through Airflow, as users run them: triggered, cleared, killed, deleted."""

import os
import signal

import psutil
import pytest

from fix_stack import SOURCES, Begun, Stack
from fixtures.batches.workbench import events
from fixtures.wait import wait_for
from semel import pipeline, reader
from semel.airflow import COLLECT_DAG_ID
from semel.archive import layout

KILLED_RECORDS = 1000


def output(name: str) -> list[int]:
    """The column n of a pipeline's output, sorted."""
    sink = pipeline.find(name).sink_path()
    return sorted(reader.dataset(sink).to_table(["n"])["n"].to_pylist())


def said_last(stack: Stack, dag: str, run: str, task: str) -> list[str]:
    """The summary that ends a task's own part of its log."""
    end = "::group::Post Execute"

    def ended() -> list[str] | None:
        log = stack.airflow.log(dag, run, task)  # It may lag behind the task's state.
        return log[: log.index(end)] if end in log else None

    said = wait_for(ended, f"the log of {dag} {run} {task}", 30)
    return said[max(n for n, line in enumerate(said) if ": batch" in line) :]


def test_a_broken_file_is_an_import_error(stack: Stack) -> None:
    """A wrong YAML shows up in Airflow's list with file and line; other pipelines have DAGs."""
    found = wait_for(stack.airflow.import_errors, "the import error")
    assert list(found) == ["broken_pipelines.py"]
    wrong = stack.pipelines / "wrong.yaml"
    assert f"{wrong}:2: surce: is an unknown key" in found["broken_pipelines.py"]
    assert stack.airflow.dags() >= {*SOURCES}


def test_a_run_is_exact_and_says_so(stack: Stack, begun: Begun) -> None:
    """Through Airflow over Connect each record is in the output once; the log says what happened.

    The finalized run, cleared, plans only what is new, as the next batch of its request.

    What Airflow does with a cleared run only Airflow tells.
    """
    run = begun.shop
    assert output("shop") == list(range(3000))
    said = said_last(stack, "shop", run, "stage")
    assert said[0].startswith("staged, not committed: batch")
    assert "read 3,101 records" in said[1]
    assert any("malformed 1: " in line for line in said)
    assert said[-1] == "next: commit"
    assert said_last(stack, "shop", run, "finalize")[0].startswith("finalized: batch")

    stack.write("shop/a.jsonl", events(2500, 3500), mode="ab")
    stack.airflow.clear("shop", run)
    stack.airflow.succeeded("shop", run)
    assert output("shop") == list(range(3500))
    batches = stack.query(
        "SELECT ordinal, status FROM semel.batch WHERE request_key = %s ORDER BY ordinal",
        f"airflow:shop:{run}",
    )
    assert batches == [(1, "finalized"), (2, "finalized")]


def told(stack: Stack) -> list[int]:
    """The batches of the events of semel://shop, in their order."""
    found = stack.airflow.call("GET", "/api/v2/assets/events?limit=1000")
    mine = [one for one in found["asset_events"] if one["name"] == "semel://shop"]
    mine.sort(key=lambda one: one["id"])
    return [one["extra"]["batch_id"] for one in mine]


def looked(stack: Stack) -> list[str]:
    """What the runs of the documents' DAG, which runs on the asset, have said, run by run."""
    runs = stack.airflow.runs("after_shop")
    for run in runs:
        stack.airflow.succeeded("after_shop", run)
    said = [line for run in runs for line in stack.airflow.log("after_shop", run, "look")]
    return [line for line in said if line.startswith("batch ")]


def finalized(stack: Stack, request: str) -> int:
    """The last batch of a request."""
    ((batch_id,),) = stack.query(
        "SELECT max(batch_id) FROM semel.batch WHERE request_key = %s AND status = 'finalized'",
        request,
    )
    return batch_id


def test_a_dag_runs_on_each_batch_once(stack: Stack) -> None:
    """The DAG of the documents runs on the asset's event, once for each batch: not again when the
    run is cleared; and by collect for a batch that Airflow did not finalize itself.

    Cleared when there is nothing new, a run stays four times green, and each task tells its batch
    once more.

    Whether an event starts a run is Airflow's doing; test_assets.py has each case of the events.
    """
    stack.write("shop/told.jsonl", events(700_000, 700_010))
    run = stack.airflow.run("shop")
    batch = finalized(stack, f"airflow:shop:{run}")
    said = wait_for(
        lambda: [line for line in looked(stack) if line.startswith(f"batch {batch}: ")],
        "the DAG that runs on it", 60,
    )  # fmt: skip
    marker = layout.marker(layout.archive_folder(pipeline.find("shop")), batch)
    assert said == [f"batch {batch}: 10 new, {marker}"]
    before = told(stack)
    assert len(before) == len(set(before)), "a batch was told twice"

    stack.airflow.clear("shop", run)
    stack.airflow.succeeded("shop", run)
    assert {task.state for task in stack.airflow.tasks("shop", run).values()} == {"success"}
    again = stack.airflow.log("shop", run, "stage", 2)
    assert any("is finalized already" in line for line in again)
    assert any("read 10 records" in line for line in again)
    value = stack.airflow.xcom("shop", run, "finalize")
    assert (value["status"], value["counts"]["survivors"]) == ("finalized", 10)
    stack.write("shop/told2.jsonl", events(700_010, 700_020))
    assert stack.call("run", "shop", "--request", "by hand")[0] == 0
    by_hand = finalized(stack, "by hand")
    stack.query(
        "UPDATE semel.batch SET committed_at = committed_at - interval '1 day' WHERE batch_id = %s"
        " RETURNING 1",
        by_hand,
    )
    stack.airflow.pause(COLLECT_DAG_ID, paused=False)
    # It fails, for the task of wrong.yaml does.
    stack.airflow.ended(COLLECT_DAG_ID, stack.airflow.trigger(COLLECT_DAG_ID))
    stack.airflow.pause(COLLECT_DAG_ID)
    assert told(stack) == [*before, by_hand]
    ours = f"batch {by_hand}: 10 new"
    wait_for(lambda: any(line.startswith(ours) for line in looked(stack)), "its run")
    assert len([line for line in looked(stack) if line.startswith(f"batch {batch}: ")]) == 1


def attempts(stack: Stack, dag: str, run: str) -> list[tuple[int, str]]:
    """Fence and status of each attempt of a run's batch."""
    return stack.query(
        "SELECT fence, attempt.status FROM semel.attempt JOIN semel.batch USING (batch_id)"
        " WHERE request_key = %s ORDER BY fence",
        f"airflow:{dag}:{run}",
    )


def staged_to_the_middle(stack: Stack, name: str) -> tuple[str, str]:
    """Start a run, and wait until stage has begun to write: there its transform holds it. Returns
    the run, and the driver of its attempt: host and process of the stage task.
    """
    run = stack.airflow.trigger(name)
    staging = layout.archive_folder(pipeline.find(name)) / "staging"
    wait_for(lambda: any(staging.glob("b*/f0001/spill/*")), "the first spill")
    assert attempts(stack, name, run) == [(1, "running")]
    ((driver,),) = stack.query(
        "SELECT driver FROM semel.attempt JOIN semel.batch USING (batch_id) WHERE request_key = %s",
        f"airflow:{name}:{run}",
    )
    return run, driver


def process_of(driver: str) -> int:
    return int(driver.rpartition(":")[2])


def test_a_stage_ended_in_its_middle_is_done_again(stack: Stack) -> None:
    """After SIGKILL of the stage task Airflow retries it; marked failed, the task ends, and the run
    is cleared by hand. Both outputs are exact.

    That Airflow retries what was killed, and ends what is marked, only Airflow shows.
    """
    stack.write("many/a.jsonl", events(0, KILLED_RECORDS))
    killed, driver = staged_to_the_middle(stack, "killed")
    os.kill(process_of(driver), signal.SIGKILL)
    stack.let_go("killed")

    # This is done while Airflow waits before the other's retry.
    failed, stopped = staged_to_the_middle(stack, "failed")
    stack.airflow.fail("failed", failed, "stage")
    # Airflow kills it after 5 s: on a busy machine before it has given its attempt up.
    process = process_of(stopped)
    wait_for(lambda: not psutil.pid_exists(process), "the end of the task")
    assert stack.airflow.ended("failed", failed) == "failed"
    stack.let_go("failed")
    stack.airflow.clear("failed", failed)

    stack.airflow.succeeded("killed", killed)
    stack.airflow.succeeded("failed", failed)
    assert stack.airflow.tasks("killed", killed)["stage"].tries == 2
    # The process that would say when Airflow tries again is gone: the next try says what it finds.
    ended = stack.airflow.log("killed", killed, "stage", 1)[-1]
    assert ended.startswith("Process terminated by signal."), ended
    said = " ".join(" ".join(stack.airflow.log("killed", killed, "stage", 2)).split())
    assert f"process {driver}) is " in said and "attempt 1 before this one" in said, said
    for name, run in (("killed", killed), ("failed", failed)):
        assert attempts(stack, name, run) == [(1, "lost"), (2, "won")]
        assert output(name) == list(range(KILLED_RECORDS))


# Attacks P11, S16.
def test_a_deleted_runs_records_arrive(stack: Stack, begun: Begun) -> None:
    """A run that planned and was then deleted loses nothing: a later run takes its records.

    It failed at stage, without a retry, because more is quarantined than its limit allows. What
    Airflow retries, and what is left of a run that it deletes, only Airflow shows.
    """
    gone = begun.orphan
    assert stack.airflow.tasks("orphan", gone)["stage"].tries == 1
    log = stack.airflow.log("orphan", gone, "stage")
    assert any("limits.quarantine_ratio_max" in line for line in log)
    assert not any("Traceback" in line or "exc_type" in line for line in log)
    stack.airflow.delete("orphan", gone)
    stack.declare_orphan(quarantine_ratio_max=1.0)
    # In place of half a minute's wait: the age of an orphan is the ledger's to tell.
    stack.query(
        "UPDATE semel.batch SET seen_at = seen_at - interval '30 seconds' WHERE request_key = %s"
        " RETURNING 1",
        f"airflow:orphan:{gone}",
    )
    stack.airflow.run("orphan")
    assert output("orphan") == list(range(500))


@pytest.mark.usefixtures("begun")
def test_batches_share_a_python_daemon(stack: Stack) -> None:
    """However many were staged, Spark has one daemon: none outlives the session that it was for."""
    ((staged,),) = stack.query("SELECT count(*) FROM semel.attempt WHERE status = 'won'")
    if staged < 2:  # Where this test runs without the others.
        stack.write("shop/daemon.jsonl", events(800_000, 800_001))
        stack.airflow.run("shop")
    spark = psutil.Process(stack.records()["spark"].main.pid)
    alive = [child for child in spark.children() if child.status() != psutil.STATUS_ZOMBIE]
    children = [" ".join(child.cmdline()) for child in alive]
    assert len([line for line in children if "-m semel.spark.daemon" in line]) == 1, children
