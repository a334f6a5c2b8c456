"""Workers of the executor that are killed, in the processes that Airflow would fork."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.executor_loader import ExecutorLoader
from airflow.executors.local_executor import LocalExecutor
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.state import TaskInstanceState

from semel_local.stack import airflow_server
from semel_local.stack.executor import PACKET_BYTES_MAX, Packets, SturdyLocalExecutor

WAIT_SECONDS = 20

UPSTREAM_SECONDS = 2
"""A task that starts at all has ended after some hundredths of one."""


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[SturdyLocalExecutor]:
    """Two workers. A task of theirs sleeps as long as its name says."""

    def run(workload: SimpleNamespace, **_others: object) -> int:
        time.sleep(float(workload.display_name))
        return 0

    monkeypatch.setattr(BaseExecutor, "run_workload", staticmethod(run))
    yield from started(SturdyLocalExecutor(parallelism=2))


@pytest.fixture
def upstream(executor: SturdyLocalExecutor) -> Iterator[LocalExecutor]:
    """Airflow's own executor with two workers; a task sleeps as with the other one."""
    yield from started(LocalExecutor(parallelism=2))


def started(made: LocalExecutor) -> Iterator[LocalExecutor]:
    """An executor that is started, and whose workers end with the test."""
    made.start()
    yield made
    for process in made.workers.values():
        process.kill()
        process.join()
    made.activity_queue.close()
    made.result_queue.close()


def begin(executor: LocalExecutor, name: str, seconds: float) -> TaskInstanceKey:
    """Hand a task to the executor as its scheduler would."""
    key = TaskInstanceKey("dag", name, "run", 1, -1)
    task = SimpleNamespace(
        key=key,
        running_state=None,
        success_state=TaskInstanceState.SUCCESS,
        failure_state=TaskInstanceState.FAILED,
        display_name=str(seconds),
    )
    executor.queued_tasks[key] = task
    executor.running.add(key)
    executor._process_workloads([task])
    return key


def until(executor: LocalExecutor, come: Callable[[], bool]) -> None:
    """Do what the scheduler's heartbeat does until `come` is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not come():
        assert time.monotonic() < deadline, (executor.event_buffer, vars(executor).get("taken"))
        executor.sync()
        time.sleep(0.02)


def state(executor: LocalExecutor, key: TaskInstanceKey) -> str | None:
    return executor.event_buffer.get(key, (None, None))[0]


def test_the_stack_runs_this_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow loads it by the name that the local stack gives."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("AIRFLOW__CORE__EXECUTOR", raising=False)
    named = airflow_server.environment(1, "database", "ledger", "sc://h:1/", None)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", named["AIRFLOW__CORE__EXECUTOR"])
    loaded, _source = ExecutorLoader.import_default_executor_cls()
    assert loaded is SturdyLocalExecutor


def test_tasks_start_after_waiting_workers_were_killed(executor: SturdyLocalExecutor) -> None:
    """SIGKILL of each worker that waits for work leaves nothing locked: tasks go on starting."""
    former = set(executor.workers)
    for pid in former:
        until(executor, lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
        os.kill(pid, signal.SIGKILL)
        until(executor, lambda pid=pid: pid not in executor.workers)
        key = begin(executor, f"after-{pid}", 0)
        until(executor, lambda key=key: state(executor, key) == TaskInstanceState.SUCCESS)
    until(executor, lambda: len(executor.workers) == 2 and not former & set(executor.workers))


def test_airflow_still_needs_it(upstream: LocalExecutor) -> None:
    """Airflow's own executor starts no task any more. When this fails, its defect is mended.

    1. A worker waits for work, and holds the queue's lock. 2. SIGKILL ends it, with the others.
    3. New workers wait for the lock, for ever, and so does each task.
    """
    key = begin(upstream, "before", 0)
    until(upstream, lambda: state(upstream, key) == TaskInstanceState.SUCCESS)
    for pid, process in upstream.workers.items():
        until(upstream, lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
        os.kill(pid, signal.SIGKILL)
        process.join()
    key = begin(upstream, "after", 0)
    deadline = time.monotonic() + UPSTREAM_SECONDS
    while time.monotonic() < deadline:
        upstream.sync()
        time.sleep(0.02)
    why = "Airflow's LocalExecutor has outlived its workers: remove semel_local/stack/executor.py"
    assert state(upstream, key) is None, why
    assert len(upstream.workers) == 2 and all(p.is_alive() for p in upstream.workers.values())


def test_the_task_of_a_killed_worker_has_failed(executor: SturdyLocalExecutor) -> None:
    """It is said at once, so that the scheduler retries it; another worker's task is unharmed."""
    doomed, other = begin(executor, "doomed", 60), begin(executor, "other", 0.5)
    until(executor, lambda: doomed in executor.taken.values())
    [worker] = [pid for pid, key in executor.taken.items() if key == doomed]
    os.kill(worker, signal.SIGKILL)
    until(executor, lambda: state(executor, doomed) == TaskInstanceState.FAILED)
    until(executor, lambda: state(executor, other) == TaskInstanceState.SUCCESS)
    assert not executor.running and not executor.taken


def test_a_task_that_dies_as_it_is_received_has_failed(
    executor: SturdyLocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed before it can say what it took does not keep the task waiting."""
    monkeypatch.setattr("semel_local.stack.executor.UNSAID_SECONDS", 0.5)
    for pid in executor.workers:
        until(executor, lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
        os.kill(pid, signal.SIGSTOP)
        # Until it has, it may still take the task that comes.
        until(executor, lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    doomed = begin(executor, "doomed", 0)
    Packets.get(executor.activity_queue)
    for pid in executor.workers:
        os.kill(pid, signal.SIGKILL)
    until(executor, lambda: state(executor, doomed) == TaskInstanceState.FAILED)


def test_a_message_is_whole_or_refused() -> None:
    """A message that is too long is an error for its sender, and never cut for its reader."""
    queue = Packets()
    with pytest.raises(ValueError, match="bytes"):
        queue.put(b"x" * PACKET_BYTES_MAX)
    assert queue.empty()
    queue.put(b"x" * (PACKET_BYTES_MAX - 100))
    assert not queue.empty()
    assert queue.get() == b"x" * (PACKET_BYTES_MAX - 100)
    queue.close()
