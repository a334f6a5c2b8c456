"""DAGs from pipelines' YAML files: plan >> stage >> commit >> finalize, and one DAG that collects.
Where the source is a queue, receive comes before plan.

A file that is wrong must take down its own pipeline only. Airflow knows import errors per Python
file and sets all DAGs of such a file stale, so they are raised in a DAG file that holds no DAG.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AsyncCallback,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
    chain,
    get_parsing_context,
)

from semel import pipeline
from semel.airflow import assets, describe, intervals, notify, replays, surroundings
from semel.airflow.operators import (
    CollectOperator,
    CommitOperator,
    FinalizeOperator,
    PlanOperator,
    ReceiveOperator,
    StageOperator,
)
from semel.declare.durations import format_duration
from semel.declare.parts import Select
from semel.declare.yaml import declared_name
from semel.errors import SpecError
from semel.pipeline.spec import UPSTREAM, Spec

COLLECT_SCHEDULE = "17 * * * *"
"""Hourly, off the full hour, when many pipelines begin."""

DEFAULT_ARGS = {
    "owner": "semel",
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=5),
    "weight_rule": "upstream",
}
"""Retries are safe: every verb may run again, and twice at once. When slots are short, the run that
is furthest goes first: Airflow's default would plan and stage new batches before it commits any."""


def dags(folder: Path | None, collect: str) -> dict[str, DAG]:
    """The DAGs of the folder's pipelines whose file is right, and the one that collects, by id.

    In a task's process it is the task's own DAG alone: none, when that is of another file.
    """
    surroundings.find_folders()
    wanted = get_parsing_context().dag_id
    names = _names(folder)
    if collect in names:
        raise SpecError(
            f"a pipeline is named {collect!r}: give the DAG that collects another name, as in "
            "dags(globals(), collect=\"collect_pipelines\")"
        )
    made = {}
    if wanted in names:
        made = {wanted: pipeline_dag(pipeline.find(wanted, folder), folder)}
    elif not wanted:
        made = {spec.name: pipeline_dag(spec, folder) for spec in load(folder)[0]}
    if wanted in (None, collect):
        made[collect] = collect_dag(names, folder, collect)
    return made


def load(folder: Path | None = None) -> tuple[list[Spec], list[str]]:
    """The pipelines that get a DAG, and what is wrong with the others' files.

    Of two files that clash, the one that comes first by name gets its DAG.
    """
    loaded: dict[Path, Spec] = {}
    problems: list[str] = []
    for path in pipeline.declarations(folder):
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


def refuse_broken(folder: Path | None) -> None:
    """Raise what is wrong with the pipelines' files, for Airflow's list of import errors."""
    surroundings.find_folders()
    if problems := load(folder)[1]:
        raise SpecError("\n" + "\n".join(problems)) from None


def pipeline_dag(spec: Spec, folder: Path | None) -> DAG:
    """The DAG of one pipeline of a folder."""
    dag = DAG(
        dag_id=spec.name,
        description=spec.description or None,
        doc_md=describe.pipeline(spec),
        schedule=_schedule(spec),
        catchup=False,
        max_active_runs=spec.max_active_runs,
        # What has no schedule runs only when somebody asks, and then at once.
        is_paused_upon_creation=None if spec.schedule else False,
        params=intervals.form(spec) | replays.form_params(spec),
        deadline=_deadline(spec),
        tags={"semel", "pipeline", spec.source.type},
        default_args=DEFAULT_ARGS,
    )
    where = {"pipeline": spec.name, "folder": _text(folder), "dag": dag}
    by_schedule = spec.schedule and spec.source.select is Select.INTERVAL
    windows = [assets.windows(spec.name)] if spec.window else []
    chain(
        *_receive(spec, where),
        PlanOperator(
            task_id="plan",
            outlets=[*([assets.late(spec.name)] if by_schedule else []), *windows],
            **where,
        ),
        StageOperator(task_id="stage", **where),
        CommitOperator(task_id="commit", **where),
        FinalizeOperator(task_id="finalize", outlets=windows, **where),
    )
    return dag


def _receive(spec: Spec, where: dict[str, Any]) -> list[Any]:
    """What comes before plan: none, one task, or several side by side."""
    if not spec.source.receives:
        return []
    if spec.source.receivers == 1:
        return [ReceiveOperator(task_id="receive", **where)]
    numbers = list(range(1, spec.source.receivers + 1))
    return [ReceiveOperator.partial(task_id="receive", **where).expand(number=numbers)]


def _schedule(spec: Spec) -> CronDataIntervalTimetable | list[Asset] | None:
    if spec.schedule == UPSTREAM:
        return [assets.asset(spec.source.upstream)]
    return spec.schedule and CronDataIntervalTimetable(spec.schedule, timezone="UTC")


def _deadline(spec: Spec) -> DeadlineAlert | None:
    if spec.deadline is None:
        return None
    told = {
        "pipeline": spec.name,
        "connections": list(spec.notify),
        "after": format_duration(spec.deadline),
        "by_interval": spec.source.select is Select.INTERVAL,
    }
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=spec.deadline,
        callback=AsyncCallback(notify.tell_of_late_run, told),
    )


def collect_dag(names: list[str], folder: Path | None, dag_id: str) -> DAG:
    """The DAG that collects the pipelines of these names, each in a task of its own."""
    dag = DAG(
        dag_id=dag_id,
        description="Forgets ids past their horizon, merges id runs, removes lost attempts' files.",
        doc_md=describe.COLLECT,
        schedule=CronDataIntervalTimetable(COLLECT_SCHEDULE, timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags={"semel", "maintenance"},
        default_args=DEFAULT_ARGS,
    )
    CollectOperator.partial(
        task_id="collect",
        map_index_template="{{ task.pipeline }}",
        folder=_text(folder),
        outlets=[assets.OF_COLLECT],
        dag=dag,
    ).expand(pipeline=names)
    return dag


def _names(folder: Path | None) -> list[str]:
    """All that the folder's files declare, also those of files that are wrong."""
    return sorted({declared_name(path) for path in pipeline.declarations(folder)})


def _text(folder: Path | None) -> str | None:
    return str(folder) if folder else None
