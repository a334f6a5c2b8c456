"""Starts runs of the demo's DAGs in Airflow together, and shows them until all have ended."""

import time
from collections.abc import Sequence

from rich.live import Live
from rich.table import Table

from semel import console
from semel.errors import TerminalError, UnavailableError
from semel_local.demo.airflow_api import FINISHED, POLL_SECONDS, AirflowApi, TaskState

VERBS = ("receive", "plan", "stage", "commit", "finalize")
"""The tasks of a run in their order. `receive` is only for queues."""

RUN_SECONDS_MAX = 900
"""How long the runs may take. They take seconds, but some minutes if Airflow retries tasks."""

LOG_LINES_SHOWN = 25
"""Lines of a failed task's log to print."""

Tasks = dict[str, dict[str, TaskState]]
"""By pipeline and verb."""


def run_all(api: AirflowApi, pipelines: Sequence[str], run_id: str) -> Tasks:
    """Run the DAGs to their ends, and show their tasks meanwhile.

    Raises TerminalError if a run fails, after all have ended, UnavailableError if they take too
    long.
    """
    for name in pipelines:
        api.wait_for_dag(name)
        api.start_run(name, run_id)
        console.progress.print(f"Airflow runs {name}, run {run_id}: {api.run_url(name, run_id)}")
    deadline = time.monotonic() + RUN_SECONDS_MAX
    printed: Tasks = {name: {} for name in pipelines}
    with Live(console=console.progress, transient=False) as live:
        while True:
            states = {name: api.run_state(name, run_id) for name in pipelines}
            tasks = {name: api.tasks(name, run_id) for name in pipelines}
            for name in pipelines:
                for verb in VERBS:
                    _print_change(api, name, run_id, tasks[name].get(verb), printed[name])
            if console.progress.is_terminal:
                live.update(_progress_table(tasks))
            if FINISHED.issuperset(states.values()):
                break
            if time.monotonic() > deadline:
                name = next(name for name in pipelines if states[name] not in FINISHED)
                raise UnavailableError(
                    f"run {run_id} of {name} has not ended in {RUN_SECONDS_MAX} s. See "
                    f"{api.run_url(name, run_id)}, then run this again, which resumes this run"
                )
            time.sleep(POLL_SECONDS)
    if failed := [name for name in pipelines if states[name] == "failed"]:
        which = "; ".join(
            f"run {run_id} of {name} failed, see {api.run_url(name, run_id)}" for name in failed
        )
        raise TerminalError(f"{which}. Run this again, which resumes the run")
    return tasks


def seconds(tasks: dict[str, TaskState]) -> dict[str, float]:
    """The duration of each verb of a run; 0 if Airflow skipped it."""
    return {verb: round(tasks[verb].seconds or 0, 1) for verb in VERBS if verb in tasks}


def seconds_line(seconds: dict[str, float]) -> str:
    """The result of `seconds`, on one line."""
    verbs = (verb for verb in VERBS if verb in seconds)
    return "seconds: " + ", ".join(f"{verb} {seconds[verb]}" for verb in verbs)


def _print_change(
    api: AirflowApi,
    name: str,
    run_id: str,
    task: TaskState | None,
    printed: dict[str, TaskState],
) -> None:
    """Print a line if a task's state has changed and, after a failed try, the end of its log."""
    last = printed.get(task.task_id) if task else None
    if task is None or (last and (last.state, last.try_number) == (task.state, task.try_number)):
        return
    printed[task.task_id] = task
    if not console.progress.is_terminal and task.state not in (None, "scheduled", "queued"):
        took = f" after {task.seconds:.1f} s" if task.ended and task.seconds else ""
        console.progress.print(f"  {name} {task.task_id}: {task.state}{took}")
    if task.state in ("failed", "up_for_retry"):
        show_log(api, name, run_id, task)


def show_log(api: AirflowApi, name: str, run_id: str, task: TaskState) -> None:
    """Print the end of the log of a task's newest try."""
    console.progress.print(f"end of the log of {name} {task.task_id}, try {task.try_number}:")
    for line in api.log(name, run_id, task)[-LOG_LINES_SHOWN:]:
        console.progress.print(f"  | {line}", markup=False)


def _progress_table(tasks: Tasks) -> Table:
    colours = {"success": "green", "failed": "red", "up_for_retry": "red", "running": "cyan"}
    table = Table("pipeline", "task", "state", "seconds", box=None, pad_edge=False)
    for name, by_verb in tasks.items():
        for verb in (verb for verb in VERBS if verb in by_verb):
            task = by_verb[verb]
            state = task.state or "waiting"
            took = f"{task.seconds:.1f}" if task.seconds is not None else ""
            table.add_row(name, verb, state, took, style=colours.get(state, "dim"))
    return table
