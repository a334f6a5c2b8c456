"""Which days a run is about: Airflow's data interval, or what takes its place where it has none.

Airflow gives no interval to a run of its REST API with `logical_date: null`; none that a caller can
choose to the runs of TriggerDagRunOperator and of `airflow dags trigger`; and to the form of a DAG
without a schedule no field for it. These name theirs in the run's configuration.
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


def form(spec: Spec) -> dict[str, Param]:
    """What the trigger form asks beside Airflow's own fields.

    With a schedule they have "Data Interval"; without, Airflow leaves that out of the form.
    """
    if spec.schedule or spec.source.select is not Select.INTERVAL:
        return {}

    def moment(title: str) -> Param:
        return Param(
            None,
            type=["null", "string"],
            format="date-time",
            title=title,
            description="Which files: those of this interval. Airflow asks for a data interval "
            "only where a DAG has a schedule, and this one has none. Give both.",
            section="Interval (UTC)",
        )

    return {INTERVAL_START: moment("From"), INTERVAL_END: moment("Before")}


def interval(context: Mapping[str, Any], spec: Spec) -> tuple[datetime, datetime] | None:
    """The run's interval: of its configuration, else its data interval. None: it needs none.

    TerminalError: it is wrong, or a pipeline that selects by interval has a run without one.
    """
    if spec.source.select is not Select.INTERVAL:
        return None
    params = context["params"]
    given = [params.get(INTERVAL_START), params.get(INTERVAL_END)]
    if any(given):
        if context["dag_run"].run_type == "backfill":
            raise TerminalError(
                f"each run of a backfill has its own interval; start it again without "
                f"{INTERVAL_START} and {INTERVAL_END}",
                next="start the backfill again, with an empty configuration",
            )
        if not all(given):
            raise TerminalError(
                f"the run has only one of {INTERVAL_START} and {INTERVAL_END}; it needs both",
                next=_TRIGGER,
            )
        start, end = map(_moment, given)
    else:
        start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if not start or not end or start >= end:
        between = f"[{start.isoformat()}, {end.isoformat()})" if start and end else "none"
        raise TerminalError(
            f"pipeline {spec.name} reads the files of an interval, and this run's is {between}; "
            f"trigger it with a data interval, or with the configuration {_EXAMPLE}",
            next=_TRIGGER,
        )
    # Airflow's are of pendulum, which forgets the zone of datetime.UTC when a day is subtracted.
    return datetime.fromisoformat(start.isoformat()), datetime.fromisoformat(end.isoformat())


def left_out(context: Mapping[str, Any], spec: Spec) -> tuple[datetime, datetime] | None:
    """The interval whose scheduled run Airflow will not create, because this manual run has its
    logical date, as one has that is triggered at the start of the interval that goes on now.
    """
    run = context["dag_run"]
    at = getattr(run, "logical_date", None)
    by_schedule = spec.schedule and spec.source.select is Select.INTERVAL
    if not at or not by_schedule or run.run_type != "manual":
        return None
    at = datetime.fromisoformat(at.isoformat()).astimezone(UTC)
    start, end = cells_of(spec.schedule, at, at + TICK)
    return (start, end) if start == at and end > datetime.now(UTC) else None


def _moment(given: object) -> datetime:
    try:
        moment = datetime.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise TerminalError(
            f"{given!r} is not a time with a time zone; trigger the run with the configuration "
            f"{_EXAMPLE}",
            next=_TRIGGER,
        )
    return moment
