"""A run's interval: Airflow's data interval, or the one that the run's configuration names.

Some runs have to name theirs in the configuration:
- runs by the REST API with `logical_date: null`: Airflow does not give them an interval;
- runs by TriggerDagRunOperator and `airflow dags trigger`: the caller cannot choose it;
- runs by the form of a DAG without a schedule: the form lacks a field for it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Param

from semel.declare.parts import Select
from semel.errors import TerminalError
from semel.pipeline.spec import Spec
from semel.reports.intervals import TICK, cells_of

INTERVAL_START, INTERVAL_END = "interval_start", "interval_end"
"""The keys of a run's configuration."""

_TRIGGER = "trigger the DAG again, with a data interval"

_EXAMPLE = (
    f'{{"{INTERVAL_START}": "2013-01-01T00:00:00Z", "{INTERVAL_END}": "2013-01-02T00:00:00Z"}}'
)


def form_fields(spec: Spec) -> dict[str, Param]:
    """The fields that semel adds to Airflow's trigger form.

    Airflow offers "Data Interval" only if the DAG has a schedule.
    """
    if spec.schedule or spec.source.select is not Select.INTERVAL:
        return {}

    def moment(title: str) -> Param:
        return Param(
            None,
            type=["null", "string"],
            format="date-time",
            title=title,
            description="The run reads the files of this interval. Fill in both fields. Airflow "
            "asks for a data interval only if the DAG has a schedule.",
            section="Interval (UTC)",
        )

    return {INTERVAL_START: moment("From"), INTERVAL_END: moment("Before")}


def run_interval(context: Mapping[str, Any], spec: Spec) -> tuple[datetime, datetime] | None:
    """The interval of the run's configuration, else its data interval.

    Returns None if the pipeline does not select by interval. Raises TerminalError if the interval
    is missing or invalid.
    """
    if spec.source.select is not Select.INTERVAL:
        return None
    params = context["params"]
    ends = [params.get(INTERVAL_START), params.get(INTERVAL_END)]
    if any(ends):
        if context["dag_run"].run_type == "backfill":
            raise TerminalError(
                f"the backfill's configuration has {INTERVAL_START} or {INTERVAL_END}, but Airflow "
                "gives each of its runs an interval. Start it again without them",
                next="start the backfill again, with an empty configuration",
            )
        if not all(ends):
            raise TerminalError(
                f"the run's configuration needs both {INTERVAL_START} and {INTERVAL_END}, and it "
                "has only one of the two",
                next=_TRIGGER,
            )
        start, end = map(_moment, ends)
    else:
        start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if not start or not end or start >= end:
        between = f"[{start.isoformat()}, {end.isoformat()})" if start and end else "none"
        raise TerminalError(
            f"pipeline {spec.name} reads the files of the run's interval, and this run has "
            f"{between}. Trigger it with a data interval, or with the configuration {_EXAMPLE}",
            next=_TRIGGER,
        )
    # Airflow's are pendulum's, which lose the zone datetime.UTC if one subtracts a day.
    return datetime.fromisoformat(start.isoformat()), datetime.fromisoformat(end.isoformat())


def skipped_interval(context: Mapping[str, Any], spec: Spec) -> tuple[datetime, datetime] | None:
    """The current interval, if this manual run has its logical date; else None.

    Then Airflow will not create the scheduled run of that interval.
    """
    run = context["dag_run"]
    at = getattr(run, "logical_date", None)
    by_schedule = spec.schedule and spec.source.select is Select.INTERVAL
    if not at or not by_schedule or run.run_type != "manual":
        return None
    at = datetime.fromisoformat(at.isoformat()).astimezone(UTC)
    start, end = cells_of(spec.schedule, at, at + TICK)
    return (start, end) if start == at and end > datetime.now(UTC) else None


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise TerminalError(
            f"{value!r} is not a time with a time zone. Trigger the run with a configuration such "
            f"as {_EXAMPLE}",
            next=_TRIGGER,
        )
    return moment
