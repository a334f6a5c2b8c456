"""Failures that Airflow knows of: the failed tasks of batches' runs, and when it tries them again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow.models.taskinstance import TaskInstance
from airflow.sdk import BaseOperator
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select, tuple_

_FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A task that failed. `again`: when Airflow tries it again. None: it does not."""

    task_id: str
    again: datetime | None


def failures_of(runs: Mapping[int, tuple[str, str]]) -> dict[int, Failure]:
    """The failures of batches, by what DAG and run each has: one that is tried again before one that
    is not.
    """
    from semel.airflow.factory import DEFAULT_ARGS

    wanted = tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_([*set(runs.values())])
    failed: dict[tuple[str, str], Failure] = {}
    with create_session() as session:
        found = select(TaskInstance).where(wanted, TaskInstance.state.in_(_FAILED))
        for task in session.scalars(found) if runs else ():
            again = None
            if task.state == TaskInstanceState.UP_FOR_RETRY:
                # All of semel's tasks are tried again alike; their DAGs would have to be read.
                task.task = BaseOperator(task_id=task.task_id, **DEFAULT_ARGS)
                again = task.next_retry_datetime()
            key = task.dag_id, task.run_id
            if key not in failed or again:
                failed[key] = Failure(task_id=task.task_id, again=again)
        session.rollback()
    return {batch: failed[key] for batch, key in runs.items() if key in failed}
