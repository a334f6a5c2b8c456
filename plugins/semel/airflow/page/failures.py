"""Failures that Airflow knows of: the failed tasks of batches' runs, and of runs that have no batch;
and when Airflow tries each again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import BaseOperator
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import func, select, tuple_

from semel.airflow.replays import REPLAY

FAILED_PLANS_MAX = 1_000
"""Failed tasks before a batch that a page looks at, of all pipelines: the newest ones."""

BEFORE_BATCH = ("receive", "plan")
"""The tasks of a run before it has a batch."""

_FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)

Run = tuple[str, str]
"""The ids of a DAG and of its run."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A task that failed. `again`: when Airflow tries it again. None: it does not."""

    task_id: str
    again: datetime | None


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that failed before it had a batch. `interval`: its data interval. `fresh`: nobody has
    cleared the run, and it is not a replay. `planned_since`: a plan has ended well since, and
    `same_since`: one of the same interval.
    """

    run_id: str
    failure: Failure
    interval: tuple[datetime, datetime] | None
    fresh: bool
    planned_since: bool
    same_since: bool


def failures_of(runs: Mapping[int, Run]) -> dict[int, Failure]:
    """The failures of batches, by what DAG and run each has: one that is tried again before one that
    is not.
    """
    wanted = tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_([*set(runs.values())])
    failed: dict[Run, Failure] = {}
    with create_session() as session:
        found = select(TaskInstance).where(wanted, TaskInstance.state.in_(_FAILED))
        for task in session.scalars(found) if runs else ():
            _note(failed, task)
        session.rollback()
    return {batch: failed[key] for batch, key in runs.items() if key in failed}


def failed_runs(dag_ids: Iterable[str]) -> dict[str, list[FailedRun]]:
    """By DAG the runs that failed before they had a batch, the newest first."""
    wanted = TaskInstance.dag_id.in_([*dag_ids]), TaskInstance.task_id.in_(BEFORE_BATCH)
    failed: dict[Run, Failure] = {}
    last: dict[Run, TaskInstance] = {}
    found: dict[str, list[FailedRun]] = defaultdict(list)
    with create_session() as session:
        some = select(TaskInstance).where(*wanted, TaskInstance.state.in_(_FAILED))
        newest = some.order_by(TaskInstance.end_date.desc()).limit(FAILED_PLANS_MAX)
        for task in session.scalars(newest):
            last.setdefault(_note(failed, task), task)
        planned = _planned(session, {dag_id for dag_id, _ in failed})
        for (dag_id, run_id), task in last.items():
            run = task.dag_run
            interval = run.data_interval_start, run.data_interval_end
            since = [at for at, end in planned[dag_id] if task.end_date and end > task.end_date]
            one = FailedRun(
                run_id=run_id,
                failure=failed[dag_id, run_id],
                interval=interval if None not in interval else None,
                fresh=not run.clear_number and not (run.conf or {}).get(REPLAY),
                planned_since=bool(since),
                same_since=interval in since,
            )
            found[dag_id].append(one)
        session.rollback()
    return found


def _planned(session: Any, dag_ids: set[str]) -> dict[str, list[tuple[Any, datetime]]]:
    """By DAG each interval of its runs, and when a plan of it last ended well."""
    key = (DagRun.dag_id, DagRun.data_interval_start, DagRun.data_interval_end)
    some = (
        select(*key, func.max(TaskInstance.end_date))
        .select_from(TaskInstance)
        .join(TaskInstance.dag_run)
        .where(
            TaskInstance.dag_id.in_(dag_ids),
            TaskInstance.task_id == "plan",
            TaskInstance.state == TaskInstanceState.SUCCESS,
            TaskInstance.end_date.is_not(None),
        )
        .group_by(*key)
    )
    found: dict[str, list[tuple[Any, datetime]]] = defaultdict(list)
    for dag_id, start, end, at in session.execute(some) if dag_ids else ():
        found[dag_id].append(((start, end), at))
    return found


def _note(failed: dict[Run, Failure], task: TaskInstance) -> Run:
    """Add a failed task to those of the runs: one that is tried again before one that is not."""
    from semel.airflow.factory import DEFAULT_ARGS

    again = None
    if task.state == TaskInstanceState.UP_FOR_RETRY:
        # All of semel's tasks are tried again alike; their DAGs would have to be read.
        task.task = BaseOperator(task_id=task.task_id, **DEFAULT_ARGS)
        again = task.next_retry_datetime()
    key = task.dag_id, task.run_id
    if key not in failed or again:
        failed[key] = Failure(task_id=task.task_id, again=again)
    return key
