"""A backfill of one interval, or of all missing intervals, from the page of days: shown first, then
made by Airflow's own API.

Airflow's dialog for a backfill takes no values from an address (seen in 3.3.2): so this asks.
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

from semel.airflow.page.common import is_paused, own, page, span, spec_of
from semel.airflow.page.guard import Token, agreed, sign, write_down

router = APIRouter()

may_run = requires_access_dag(method="POST", access_entity=DagAccessEntity.RUN)
MayRun = Depends(may_run)
"""What Airflow asks of who makes a backfill."""

KNOWN = set(inspect.signature(backfills.create_backfill).parameters) == {
    "backfill_request", "user", "session"
}  # fmt: skip
"""Whether this Airflow makes a backfill as is known here. Else Days links to the DAG."""

_Start = Annotated[datetime, Query(alias="from")]
_End = Annotated[datetime, Query(alias="to")]


@router.get("/dags/{dag_id}/backfill", response_class=HTMLResponse, dependencies=[MayRun])
def ask_backfill(
    request: Request, dag_id: str, user: GetUserDep, start: _Start, end: _End
) -> HTMLResponse:
    """Which runs a backfill of [start, end) would make or clear, to be confirmed."""
    spec, _ = spec_of(dag_id)
    start, end = span(start, end)
    wanted = {"from": start.isoformat(), "to": end.isoformat()}
    with create_session() as session:
        found = _said(
            lambda: backfills.create_backfill_dry_run(body=_body(dag_id, wanted), session=session)
        )
        dates = [one.logical_date for one in found.backfills]
    return page(
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
    """Make the backfill that was shown. To reload where this leads makes no other one."""
    wanted = agreed(request, token, user, dag_id, "backfill")
    write_down(user, dag_id, "semel_backfill", wanted)
    with create_session() as session:
        made = _said(
            lambda: backfills.create_backfill(
                backfill_request=_body(dag_id, wanted), user=user, session=session
            )
        )
        number = made.id
    where = f"{own(request)}/dags/{quote(dag_id, safe='')}/backfill/{number}"
    return RedirectResponse(where, status_code=303)


@router.get(
    "/dags/{dag_id}/backfill/{number}", response_class=HTMLResponse, dependencies=[MayRun]
)
def backfilled(request: Request, dag_id: str, number: int) -> HTMLResponse:
    """That it was made, and what comes next."""
    return page(request, "backfilled.html", name=dag_id, number=number)


def in_its_place(dag_id: str, starts: list[datetime]) -> dict[datetime, str]:
    """By the start of an interval: the manual run of another interval that has its logical date, so
    that Airflow creates no run of it, and a backfill would clear that one.
    """
    at = DagRun.logical_date
    found = select(at, DagRun.run_id).where(
        DagRun.dag_id == dag_id, DagRun.run_type == "manual", at.in_(starts),
        DagRun.data_interval_start != at,
    )  # fmt: skip
    with create_session() as session:
        return {when: run_id for when, run_id in session.execute(found)}


def range_of(
    missing: Sequence[tuple[datetime, datetime]], blocked: Iterable[datetime]
) -> tuple[datetime, datetime] | None:
    """The range from the first to the last missing interval, since Airflow takes one backfill of a
    DAG at a time. Returns None if fewer than two intervals are missing, or if a `blocked` logical
    date lies in the range: the backfill would clear its manual run.
    """
    if len(missing) < 2:
        return None
    start, end = missing[0][0], missing[-1][1]
    return None if any(start <= at < end for at in blocked) else (start, end)


def _body(dag_id: str, wanted: dict[str, str]) -> BackfillPostBody:
    """Airflow's request. Its end is the last logical date, and a run of a day is there already when
    it found nothing: without reprocessing Airflow would pass over it.
    """
    return BackfillPostBody(
        dag_id=dag_id,
        from_date=datetime.fromisoformat(wanted["from"]),
        to_date=datetime.fromisoformat(wanted["to"]) - timedelta(seconds=1),
        reprocess_behavior=ReprocessBehavior.COMPLETED,
        # Without one a run that is cleared keeps its own, `replay: true` too.
        dag_run_conf={},
    )


def _said(call: Any) -> Any:
    """What Airflow answers; what it refuses, in its words."""
    try:
        return call()
    except RequestValidationError as error:
        raise HTTPException(422, f"Airflow makes no such backfill: {error.errors()}") from error
