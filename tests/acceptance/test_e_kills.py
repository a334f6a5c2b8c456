"""SIGKILL of the stack's processes, and the end of the stack: the last tests, for it is gone then.
"""

import os
import signal

import psutil
import pytest
from test_b_airflow import attempts, output, staged_to_the_middle

from fix_stack import Stack
from fixtures.batches.workbench import events
from fixtures.wait import wait_for
from semel_local.stack import process

RECOVERY_SECONDS = 120
RECORDS = 1000


@pytest.mark.proof
def test_the_log_of_a_task_whose_spark_is_killed(stack: Stack) -> None:
    """Its first error says that Spark was started again, its last line when Airflow tries again.
    The next try makes the output exact.
    """
    stack.write("cut/a.jsonl", events(0, RECORDS))
    run, _ = staged_to_the_middle(stack, "cut")
    os.kill(stack.records()["spark"].main.pid, signal.SIGKILL)
    stack.let_go("cut")
    stack.airflow.succeeded("cut", run)
    said = stack.airflow.log("cut", run, "stage", 1)
    first = next(n for n, line in enumerate(said) if line.startswith("the Spark job failed: "))
    assert "Spark was restarted while it ran the job" in said[first], said
    assert "next: nothing, Airflow tries this task again by itself (try 2 of 4)" in said[first:]
    again = [line for line in said if line.startswith("Airflow tries this task again at ")]
    assert len(again) == 1 and again[0].endswith(" UTC (try 2 of 4, retry_delay)"), said
    assert attempts(stack, "cut", run) == [(1, "lost"), (2, "won")]
    assert output("cut") == list(range(RECORDS))
    wait_for(lambda: stack.call("status")[0] == 0, "Spark again", RECOVERY_SECONDS, 1)


@pytest.mark.rest
def test_every_part_comes_back_after_sigkill(stack: Stack) -> None:
    """Each killed part is restarted and healthy, and nothing of the former one lives beside it."""
    before = stack.records()
    former = {name: [process.identify(pid) for pid in one.living_pids()] for name, one in before.items()}
    for name, record in before.items():
        # Of two parts the leader is killed, of the others the main process.
        victim = record.leader if name in ("spark", "scheduler") else record.main
        os.kill(victim.pid, signal.SIGKILL)

    wait_for(lambda: stack.call("status")[0] == 0, "its recovery", RECOVERY_SECONDS, 1)
    after = stack.records()
    assert not [name for name in before if after[name].main == before[name].main]
    alive = {n: [i for i in found if i and process.alive(i)] for n, found in former.items()}
    assert not [name for name in before if alive[name]], alive


def test_down_leaves_no_process_after_a_killed_supervisor(stack: Stack) -> None:
    """`semel down` ends everything, also when supervisor itself was killed, and status says so.

    No process is left that has the stack's folder in its environment or command line. Whether all
    of Airflow, Spark and Postgres end, only they show; test_stack_leader.py has the parts of it.
    """
    running = stack.processes()
    assert _named(stack)
    os.kill(stack.supervisor(), signal.SIGKILL)
    code, state, _ = stack.call("status")
    assert code == 1 and {part["health"] for part in state["parts"]} == {"down"}
    code, _, said = stack.call("down")
    assert code == 0 and "a killed supervisor had left behind" in said
    assert not [identity for identity in running if process.alive(identity)]
    assert _named(stack) == []
    assert stack.call("status")[0] == 1


def _named(stack: Stack) -> list[str]:
    """Command lines of other processes that name the stack's folder."""
    found = []
    for other in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        about = other.info
        words = [*(about["cmdline"] or ()), *(about["environ"] or {}).values()]
        ours = about["pid"] == os.getpid() or about["status"] == psutil.STATUS_ZOMBIE
        if not ours and any(str(stack.folder) in word for word in words):
            found.append(" ".join(about["cmdline"] or ()))
    return found
