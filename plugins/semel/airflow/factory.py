"""DAGs from pipelines' YAML files: plan >> stage >> commit >> finalize, and one DAG that collects.
If the source is a queue, receive comes before plan.

An invalid file must take down only its own pipeline. Airflow records import errors per Python file
and sets all DAGs of such a file stale, so semel raises them in a DAG file without DAGs.
"""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, chain, get_parsing_context

from semel import pipeline
from semel.airflow import assets, describe, intervals, notify, replays, surroundings
from semel.airflow.compat import (
    RETRY_BACKOFF,
    AsyncCallback,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
)
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
from semel.pipeline import UnknownPipelineError
from semel.pipeline.spec import UPSTREAM, Spec

COLLECT_SCHEDULE = "17 * * * *"
"""Hourly, but not on the hour, when many pipelines begin."""

DEFAULT_ARGS = {
    "owner": "semel",
    "retries": 3,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": RETRY_BACKOFF,
    "max_retry_delay": timedelta(minutes=5),
    "weight_rule": "upstream",
}
"""Retries are safe: every verb may run again, even twice at once. `upstream` lets the run that is
furthest go first if slots are short. Airflow's default would plan and stage new batches before it
commits any."""


def dags(folder: Path | None, collect: str) -> dict[str, DAG]:
    """By id, the DAGs of the folder's valid pipeline files, and the one that collects.

    In a task's process it returns only the task's DAG, or nothing if another file has that DAG.
    """
    surroundings.find_folders()
    task_dag = get_parsing_context().dag_id
    if task_dag not in (None, collect):
        with suppress(UnknownPipelineError):
            return {task_dag: pipeline_dag(pipeline.find(task_dag, folder), folder)}
        return {}
    names = _declared_names(folder)
    if collect in names:
        raise SpecError(
            f"a pipeline has the name of the DAG that collects, {collect!r}. Give that DAG another "
            "one: dags(globals(), collect=\"collect_pipelines\")"
        )
    by_id = {collect: collect_dag(names, folder, collect)}
    if not task_dag:
        by_id |= {spec.name: pipeline_dag(spec, folder) for spec in load_pipelines(folder)[0]}
    return by_id


def load_pipelines(folder: Path | None = None) -> tuple[list[Spec], list[str]]:
    """The pipelines that get a DAG, and the faults of the other files.

    If two files clash, the first by name gets its DAG.
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
    """Raise SpecError with the faults of the files, for Airflow's list of import errors."""
    surroundings.find_folders()
    if problems := load_pipelines(folder)[1]:
        raise SpecError("\n" + "\n".join(problems)) from None


def pipeline_dag(spec: Spec, folder: Path | None) -> DAG:
    """The DAG of one pipeline. `folder`: None if the environment names the folder."""
    dag = DAG(
        dag_id=spec.name,
        description=spec.description or None,
        doc_md=describe.pipeline_markdown(spec),
        schedule=_schedule(spec),
        catchup=False,
        max_active_runs=spec.max_active_runs,
        # Without a schedule a DAG runs only when triggered, and should then run at once.
        is_paused_upon_creation=None if spec.schedule else False,
        params=intervals.form_fields(spec) | replays.form_params(spec),
        deadline=_deadline(spec),
        tags={"semel", "pipeline", spec.source.type},
        default_args=DEFAULT_ARGS,
    )
    common = {"pipeline": spec.name, "folder": _folder_text(folder), "dag": dag}
    by_schedule = spec.schedule and spec.source.select is Select.INTERVAL
    windows = [assets.windows_asset(spec.name)] if spec.window else []
    chain(
        *_receive_tasks(spec, common),
        PlanOperator(
            task_id="plan",
            outlets=[*([assets.late_asset(spec.name)] if by_schedule else []), *windows],
            **common,
        ),
        StageOperator(task_id="stage", **common),
        CommitOperator(task_id="commit", **common),
        FinalizeOperator(task_id="finalize", outlets=windows, **common),
    )
    return dag


def _receive_tasks(spec: Spec, common: dict[str, Any]) -> list[Any]:
    """The tasks before plan: one mapped task for several receivers; empty without a queue."""
    if not spec.source.receives:
        return []
    if spec.source.receivers == 1:
        return [ReceiveOperator(task_id="receive", **common)]
    numbers = list(range(1, spec.source.receivers + 1))
    return [ReceiveOperator.partial(task_id="receive", **common).expand(number=numbers)]


def _schedule(spec: Spec) -> CronDataIntervalTimetable | list[Asset] | None:
    if spec.schedule == UPSTREAM:
        return [assets.asset(spec.source.upstream)]
    return spec.schedule and CronDataIntervalTimetable(spec.schedule, timezone="UTC")


def _deadline(spec: Spec) -> DeadlineAlert | None:
    if spec.deadline is None:
        return None
    arguments = {
        "pipeline": spec.name,
        "connections": list(spec.notify),
        "after": format_duration(spec.deadline),
        "by_interval": spec.source.select is Select.INTERVAL,
    }
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=spec.deadline,
        callback=AsyncCallback(notify.tell_of_late_run, arguments),
    )


def collect_dag(names: list[str], folder: Path | None, dag_id: str) -> DAG:
    """The DAG that collects the named pipelines, with one task for each."""
    dag = DAG(
        dag_id=dag_id,
        description="Forgets ids past their horizon, merges id runs, removes lost attempts' files.",
        doc_md=describe.COLLECT_MARKDOWN,
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
        folder=_folder_text(folder),
        outlets=[assets.COLLECT_ALIAS],
        dag=dag,
    ).expand(pipeline=names)
    return dag


def _declared_names(folder: Path | None) -> list[str]:
    """The names that the folder's files declare, invalid files included."""
    return sorted({declared_name(path) for path in pipeline.declarations(folder)})


def _folder_text(folder: Path | None) -> str | None:
    return str(folder) if folder else None
