"""Failed tasks in Airflow, of runs with a batch and of runs without, each with its next try."""

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
"""The newest failed tasks of runs without a batch, of all pipelines, that a page reads."""

BEFORE_BATCH = ("receive", "plan")
"""The tasks that run before the run has a batch."""

_FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)

Run = tuple[str, str]
"""The ids of a DAG and of its run."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed task. `again`: the time of its next try; None if Airflow does not try it again."""

    task_id: str
    again: datetime | None


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that failed before it had a batch. `interval`: its data interval. `fresh`: it was never
    cleared, and it is not a replay. `planned_since`: the plan of another run has succeeded since;
    `same_since`: that run has the same interval.
    """

    run_id: str
    failure: Failure
    interval: tuple[datetime, datetime] | None
    fresh: bool
    planned_since: bool
    same_since: bool


def failures_of(runs: Mapping[int, Run]) -> dict[int, Failure]:
    """The failed task of each batch, given its DAG and run. A task that Airflow tries again goes
    first.
    """
    wanted = tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_([*set(runs.values())])
    failed: dict[Run, Failure] = {}
    with create_session() as session:
        query = select(TaskInstance).where(wanted, TaskInstance.state.in_(_FAILED))
        for task in session.scalars(query) if runs else ():
            _add_failure(failed, task)
        session.rollback()
    return {batch: failed[key] for batch, key in runs.items() if key in failed}


def failed_runs(dag_ids: Iterable[str]) -> dict[str, list[FailedRun]]:
    """The runs that failed before they had a batch, by DAG, the newest first."""
    wanted = TaskInstance.dag_id.in_([*dag_ids]), TaskInstance.task_id.in_(BEFORE_BATCH)
    failed: dict[Run, Failure] = {}
    last: dict[Run, TaskInstance] = {}
    by_dag: dict[str, list[FailedRun]] = defaultdict(list)
    with create_session() as session:
        query = select(TaskInstance).where(*wanted, TaskInstance.state.in_(_FAILED))
        newest = query.order_by(TaskInstance.end_date.desc()).limit(FAILED_PLANS_MAX)
        for task in session.scalars(newest):
            last.setdefault(_add_failure(failed, task), task)
        planned = _successful_plans(session, {dag_id for dag_id, _ in failed})
        for (dag_id, run_id), task in last.items():
            run = task.dag_run
            interval = run.data_interval_start, run.data_interval_end
            since = [at for at, end in planned[dag_id] if task.end_date and end > task.end_date]
            failed_run = FailedRun(
                run_id=run_id,
                failure=failed[dag_id, run_id],
                interval=interval if None not in interval else None,
                fresh=not run.clear_number and not (run.conf or {}).get(REPLAY),
                planned_since=bool(since),
                same_since=interval in since,
            )
            by_dag[dag_id].append(failed_run)
        session.rollback()
    return by_dag


def _successful_plans(session: Any, dag_ids: set[str]) -> dict[str, list[tuple[Any, datetime]]]:
    """The intervals of each DAG's runs, with the time when plan last succeeded for them."""
    key = (DagRun.dag_id, DagRun.data_interval_start, DagRun.data_interval_end)
    query = (
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
    plans: dict[str, list[tuple[Any, datetime]]] = defaultdict(list)
    for dag_id, start, end, at in session.execute(query) if dag_ids else ():
        plans[dag_id].append(((start, end), at))
    return plans


def _add_failure(failed: dict[Run, Failure], task: TaskInstance) -> Run:
    """Add a failed task. If its run has several, keep one that Airflow tries again."""
    from semel.airflow.factory import DEFAULT_ARGS

    again = None
    if task.state == TaskInstanceState.UP_FOR_RETRY:
        # All of semel's tasks have the same retries, so there is no need to read the DAG.
        task.task = BaseOperator(task_id=task.task_id, **DEFAULT_ARGS)
        again = task.next_retry_datetime()
    key = task.dag_id, task.run_id
    if key not in failed or again:
        failed[key] = Failure(task_id=task.task_id, again=again)
    return key
