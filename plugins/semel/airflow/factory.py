"""DAGs from pipelines' YAML files: plan >> stage >> commit >> finalize, and one DAG that collects.

A file that is wrong must take down its own pipeline only. Airflow knows import errors per Python
file and sets all DAGs of such a file stale, so they are raised by dags/broken_pipelines.py, which
holds no DAG.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    Param,
    chain,
    get_parsing_context,
)

from semel.airflow import describe
from semel.airflow.operators import (
    INTERVAL_END,
    INTERVAL_START,
    CollectOperator,
    CommitOperator,
    FinalizeOperator,
    PlanOperator,
    StageOperator,
)
from semel.errors import SpecError
from semel.spec import pipeline
from semel.spec.parts import Select
from semel.spec.pipeline import Spec
from semel.spec.yaml import declared_name

COLLECT_DAG_ID = "semel_collect"
COLLECT_SCHEDULE = "17 * * * *"
"""Hourly, off the full hour, when many pipelines begin."""

DEFAULT_ARGS = {
    "owner": "semel",
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "weight_rule": "upstream",
}
"""Retries are safe: every verb may run again, and twice at once. When slots are short, the run that
is furthest goes first: Airflow's default would plan and stage new batches before it commits any."""


def pipeline_dags() -> dict[str, DAG]:
    """The DAGs of all pipelines whose file is right, by id; in a task's process only its own."""
    if wanted := get_parsing_context().dag_id:
        return {wanted: pipeline_dag(pipeline.find(wanted))}
    return {spec.name: pipeline_dag(spec) for spec in load()[0]}


def load() -> tuple[list[Spec], list[str]]:
    """The pipelines that get a DAG, and what is wrong with the others' files.

    Of two files that clash, the one that comes first by name gets its DAG.
    """
    loaded: dict[Path, Spec] = {}
    problems: list[str] = []
    for path in pipeline.files():
        try:
            loaded[path] = pipeline.load(path)
        except SpecError as error:
            problems.append(str(error))
    clashes = pipeline.clashes(loaded)
    good = [
        spec
        for path, spec in loaded.items()
        if not any(clash.startswith(f"{path}: ") for clash in clashes)
    ]
    return good, problems + clashes


def refuse_broken() -> None:
    """Raise what is wrong with the pipelines' files, for Airflow's list of import errors."""
    if problems := load()[1]:
        raise SpecError("\n" + "\n".join(problems)) from None


def pipeline_dag(spec: Spec) -> DAG:
    """The DAG of one pipeline."""
    timetable = spec.schedule and CronDataIntervalTimetable(spec.schedule, timezone="UTC")
    dag = DAG(
        dag_id=spec.name,
        description=spec.description or None,
        doc_md=describe.pipeline(spec),
        schedule=timetable,
        catchup=False,
        max_active_runs=spec.max_active_runs,
        # What has no schedule runs only when somebody asks, and then at once.
        is_paused_upon_creation=None if spec.schedule else False,
        params=_params(spec),
        tags={"semel", "pipeline", spec.source.type},
        default_args=DEFAULT_ARGS,
    )
    chain(
        PlanOperator(task_id="plan", pipeline=spec.name, dag=dag),
        StageOperator(task_id="stage", pipeline=spec.name, dag=dag),
        CommitOperator(task_id="commit", pipeline=spec.name, dag=dag),
        FinalizeOperator(task_id="finalize", pipeline=spec.name, dag=dag),
    )
    return dag


def collect_dag() -> DAG:
    """The DAG that collects all pipelines, each in a task of its own."""
    dag = DAG(
        dag_id=COLLECT_DAG_ID,
        description="Forgets ids past their horizon, merges id runs, removes lost attempts' files.",
        doc_md=describe.COLLECT,
        schedule=CronDataIntervalTimetable(COLLECT_SCHEDULE, timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags={"semel", "maintenance"},
        default_args=DEFAULT_ARGS,
    )
    names = sorted({declared_name(path) for path in pipeline.files()})
    CollectOperator.partial(
        task_id="collect", map_index_template="{{ task.pipeline }}", dag=dag
    ).expand(pipeline=names)
    return dag


def _params(spec: Spec) -> dict[str, Param]:
    """The trigger form. A pipeline that takes what has arrived has nothing to ask."""
    if spec.source.select is not Select.INTERVAL:
        return {}

    def moment(title: str) -> Param:
        return Param(
            None,
            type=["null", "string"],
            format="date-time",
            title=title,
            description="Takes the place of the run's data interval. Give both, or neither.",
            section="Interval (UTC)",
        )

    return {INTERVAL_START: moment("From"), INTERVAL_END: moment("Before")}
