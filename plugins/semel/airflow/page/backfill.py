"""A backfill of one interval, or of all missing intervals, from the page Days: a confirmation page,
then a call of Airflow's own API.

Airflow's dialog for a backfill ignores values in its address (3.3.2), so Days cannot link to it.
"""

import inspect
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.datamodels.backfills import BackfillPostBody
from airflow.api_fastapi.core_api.routes.public import backfills
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.backfill import ReprocessBehavior
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select

from semel.airflow.page.common import base_path, is_paused, parse_interval, render_page, spec_of
from semel.airflow.page.guard import Token, confirmed_values, sign, write_audit_log

router = APIRouter()

may_run = requires_access_dag(method="POST", access_entity=DagAccessEntity.RUN)
MayRun = Depends(may_run)
"""The right that Airflow requires for a backfill."""

_PARAMETERS = set(inspect.signature(backfills.create_backfill).parameters)

IS_SUPPORTED = _PARAMETERS | {"session"} == {"backfill_request", "user", "session"}
"""True if this Airflow's function for a backfill has the expected parameters. If not, Days links to
the DAG."""

_Start = Annotated[datetime, Query(alias="from")]
_End = Annotated[datetime, Query(alias="to")]


@router.get("/dags/{dag_id}/backfill", response_class=HTMLResponse, dependencies=[MayRun])
def ask_backfill(
    request: Request, dag_id: str, user: GetUserDep, start: _Start, end: _End
) -> HTMLResponse:
    """The runs that a backfill of [start, end) would create or clear, with a form to confirm."""
    spec, _ = spec_of(dag_id)
    start, end = parse_interval(start, end)
    wanted = {"from": start.isoformat(), "to": end.isoformat()}
    with create_session() as session:
        dry_run = _call_airflow(
            lambda: backfills.create_backfill_dry_run(body=_body(dag_id, wanted), session=session)
        )
        dates = [run.logical_date for run in dry_run.backfills]
    return render_page(
        request,
        "backfill.html",
        name=spec.name,
        start=start,
        end=end,
        dates=dates,
        paused=is_paused(dag_id),
        last=end - timedelta(seconds=1),
        token=sign(user, dag_id, "backfill", wanted),
    )


@router.post("/dags/{dag_id}/backfill", response_class=HTMLResponse, dependencies=[MayRun])
def do_backfill(
    request: Request, dag_id: str, user: GetUserDep, token: Token = ""
) -> RedirectResponse:
    """Create the confirmed backfill, and redirect to a page that you can reload without harm."""
    wanted = confirmed_values(request, token, user, dag_id, "backfill")
    write_audit_log(user, dag_id, "semel_backfill", wanted)
    with create_session() as session:
        inside = {"session": session} if "session" in _PARAMETERS else {}  # Airflow before 3.3.
        created = _call_airflow(
            lambda: backfills.create_backfill(
                backfill_request=_body(dag_id, wanted), user=user, **inside
            )
        )
        number = created.id
    where = f"{base_path(request)}/dags/{quote(dag_id, safe='')}/backfill/{number}"
    return RedirectResponse(where, status_code=303)


@router.get(
    "/dags/{dag_id}/backfill/{number}", response_class=HTMLResponse, dependencies=[MayRun]
)
def show_backfill(request: Request, dag_id: str, number: int) -> HTMLResponse:
    """A page after the creation of a backfill, with the next steps."""
    return render_page(request, "backfilled.html", name=dag_id, number=number)


def blocking_runs(dag_id: str, starts: list[datetime]) -> dict[datetime, str]:
    """Manual runs whose logical date is one of `starts`, but whose interval begins at another
    time, by that date. Airflow does not create the interval's run, and a backfill would clear the
    manual one.
    """
    date = DagRun.logical_date
    query = select(date, DagRun.run_id).where(
        DagRun.dag_id == dag_id, DagRun.run_type == "manual", date.in_(starts),
        DagRun.data_interval_start != date,
    )  # fmt: skip
    with create_session() as session:
        return {start: run_id for start, run_id in session.execute(query)}


def range_of(
    missing: Sequence[tuple[datetime, datetime]], blocked: Iterable[datetime]
) -> tuple[datetime, datetime] | None:
    """The range from the first to the last missing interval, since Airflow allows one backfill of
    a DAG at a time. Returns None if fewer than two intervals are missing, or if a `blocked` logical
    date lies in the range: the backfill would clear its manual run.
    """
    if len(missing) < 2:
        return None
    start, end = missing[0][0], missing[-1][1]
    return None if any(start <= at < end for at in blocked) else (start, end)


def _body(dag_id: str, wanted: dict[str, str]) -> BackfillPostBody:
    """The request to Airflow, whose end is the last logical date. It reprocesses completed runs,
    because a run that had nothing to take has completed too.
    """
    return BackfillPostBody(
        dag_id=dag_id,
        from_date=datetime.fromisoformat(wanted["from"]),
        to_date=datetime.fromisoformat(wanted["to"]) - timedelta(seconds=1),
        reprocess_behavior=ReprocessBehavior.COMPLETED,
        # Without it a cleared run would keep its configuration, such as `replay: true`.
        dag_run_conf={},
    )


def _call_airflow(call: Any) -> Any:
    """Call Airflow. Raises HTTPException 422 with Airflow's text if Airflow refuses."""
    try:
        return call()
    except RequestValidationError as error:
        raise HTTPException(422, f"Airflow refuses this backfill: {error.errors()}") from error
