"""The application of semel's pages: its headers, what it says of errors, and what only shows.

Airflow authenticates nobody for a plugin's application: each route here names who may see it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from semel import limits
from semel.airflow.page import (
    backfill,
    catalog,
    decide,
    drawing,
    find,
    records,
    replay,
    shown,
    text,
    windows,
)
from semel.airflow.page.common import (
    FOLDER,
    PAGE_LOOK_SECONDS,
    MaySee,
    Since,
    Until,
    day,
    is_paused,
    known,
    ledger,
    may,
    may_edit,
    may_read,
    own,
    page,
    sight,
    soon,
    spec_of,
)
from semel.airflow.page.plot import DAY_PARTS, HEIGHT, plot_days
from semel.airflow.page.shown import PAGE_BATCHES, Overview
from semel.errors import (
    Doing,
    OutcomeUnknownError,
    RetryableError,
    SemelError,
    SourceError,
    StateError,
)
from semel.reports import intervals
from semel.reports.days import State, days
from semel.reports.dead_letters import Letters
from semel.reports.dead_letters import letters as letters_of

_HEADERS = {
    # No inline script, and nothing from elsewhere; Airflow's own pages may frame this one.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_Part = Literal["", "output", "letters"]

app = FastAPI(title="semel", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(decide.router)
app.include_router(find.router)
app.include_router(catalog.router)
app.include_router(backfill.router)
app.include_router(replay.router)
app.include_router(windows.router)
app.include_router(records.router)
app.include_router(drawing.router)


@app.middleware("http")
async def _headed(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    response.headers.update(_HEADERS)
    return response


@app.exception_handler(SemelError)
def _failed(request: Request, error: SemelError) -> HTMLResponse:
    """What semel says of its own: 503 when the same may succeed later, else 400.

    409: a form came too late, and what it was about is not as it was shown.
    """
    status = 503 if isinstance(error, RetryableError) else 400
    if isinstance(error, StateError | SourceError) and request.method == "POST":
        status = 409
    given = request.path_params
    batch_id = given.get("batch_id", "")
    doing = Doing(
        again="load this page again",
        anew="clear the run from plan on",
        pipeline=given.get("dag_id", ""),
        batch_id=int(batch_id) if str(batch_id).isdecimal() else None,
    )
    unknown = isinstance(error, OutcomeUnknownError)
    return _message(request, status, str(error), unknown=unknown, next=error.next_step(doing))


@app.exception_handler(StarletteHTTPException)
def _refused(request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """No login, no right, no such thing."""
    said = str(error.detail)
    if error.status_code == 401:
        said = f"{said}: log in to Airflow first."
    return _message(request, error.status_code, said)


@app.exception_handler(RequestValidationError)
def _wrong(request: Request, error: RequestValidationError) -> HTMLResponse:  # noqa: ARG001
    said = "The address is not right: a day is written as 2026-11-21, a batch is a number."
    return _message(request, 422, said)


def _message(
    request: Request,
    status: int,
    said: str,
    *,
    unknown: bool = False,
    next: str = "",
) -> HTMLResponse:
    title = "This cannot be shown" if request.method == "GET" else "This was not done"
    if unknown and request.method == "POST":
        title = "It is not known whether this was done: look again"
    name = request.path_params.get("dag_id") if status not in (401, 403, 404) else None
    told = {"said": said, "title": title, "name": name, "next": next}
    return page(request, "message.html", status=status, **told)


@app.get("/semel.css", response_class=FileResponse)
@app.get("/semel.js", response_class=FileResponse)
@app.get("/semel.svg", response_class=FileResponse)
def asset(request: Request, user: GetUserDep) -> FileResponse:  # noqa: ARG001 - needs a login
    """A file that each page loads."""
    return FileResponse(FOLDER / request.url.path.rpartition("/")[2])


@app.get("/", response_class=HTMLResponse)
def pipelines(request: Request, user: GetUserDep) -> HTMLResponse:
    """All pipelines whose DAG the user may see."""
    permitted = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    found = _refused_now(shown.overviews(ledger(), permitted))
    return page(
        request, "pipelines.html", found=found, verbs=shown.VERBS, count=PAGE_BATCHES
    )


@app.get("/dags/{dag_id}", response_class=HTMLResponse, dependencies=[MaySee])
def days_of(
    request: Request,
    dag_id: str,
    user: GetUserDep,
    since: Since = "",
    until: Until = "",
) -> HTMLResponse:
    """How far each interval of a pipeline is."""
    spec, declared = spec_of(dag_id)
    seen, trouble = sight(spec) if declared else (None, None)
    answer = days(
        ledger(), spec, seen, now=datetime.now(UTC), since=day(since), until=day(until)
    )
    runs = may(backfill.may_run, request, user)
    in_its_place = backfill.in_its_place(dag_id, [one.start for one in answer.days])
    missing = [(one.start, one.end) for one in answer.days if one.command]
    return page(
        request,
        "days.html",
        name=spec.name,
        spec=spec,
        answer=answer,
        declared=declared,
        paused=is_paused(dag_id),
        trouble=trouble,
        runs=backfill.KNOWN and runs,
        replays=replay.KNOWN and declared and runs,
        since=since,
        until=until,
        states=[s for s in State if any(one.state is s for one in answer.days)],
        weeks=_weeks(answer.days) if intervals.are_days(answer.days) else None,
        in_its_place=in_its_place,
        missing=spec.schedule and backfill.range_of(missing, in_its_place),
        plot=plot_days([(one.start, one.counts) for one in answer.days], show=text.starting),
        plot_height=HEIGHT,
        plot_parts=DAY_PARTS,
    )


@app.get("/dags/{dag_id}/batches/{batch_id}", response_class=HTMLResponse, dependencies=[MaySee])
def batch(
    request: Request, dag_id: str, batch_id: int, user: GetUserDep
) -> HTMLResponse:
    """All of one batch."""
    found = shown.batch_of(ledger(), dag_id, batch_id)
    if found is None:
        raise HTTPException(404, f"{dag_id} has no batch {batch_id}")
    letters = trouble = None
    if found.set_aside and may(may_read, request, user):
        try:
            letters = soon(f"letters {dag_id} {batch_id}", lambda: _letters(dag_id, batch_id))
        except (SemelError, OSError) as error:
            trouble = str(error)
    return page(
        request,
        "batch.html",
        spec=spec_of(dag_id)[0],
        name=dag_id,
        found=found,
        letters=letters,
        trouble=trouble,
        reads=may(may_read, request, user),
        edits=may(may_edit, request, user),
        letters_max=records.PAGE_LETTERS_MAX,
    )


@app.get(
    "/dags/{dag_id}/runs/{run_id:path}", response_class=HTMLResponse, dependencies=[MaySee]
)
def batch_of_run(request: Request, dag_id: str, run_id: str, part: _Part = "") -> Response:
    """To the newest batch of a run; that it has none, where it has none."""
    found = shown.batch_of_run(ledger(), dag_id, f"airflow:{dag_id}:{run_id}")
    if found is None:
        return page(request, "norun.html", name=dag_id, run_id=run_id)
    where = f"{own(request)}/dags/{quote(dag_id, safe='')}/batches/{found}"
    return RedirectResponse(where + (part and f"#{part}"), status_code=303)


def _refused_now(found: list[Overview]) -> list[Overview]:
    """With what a plan would refuse now in the place of what the last one refused: of those whose
    source can be looked at before a page has to be there.
    """
    until = time.monotonic() + PAGE_LOOK_SECONDS
    for n, one in enumerate(found):
        if not one.refused or time.monotonic() >= until:
            continue
        spec, declared = known(one.name) or (None, False)
        seen = sight(spec)[0] if declared else None
        if seen is not None:
            found[n] = replace(one, refused=len(seen.gaps.refusals), looked=True)
    return sorted(found, key=Overview.order)


def _letters(dag_id: str, batch_id: int) -> Letters:
    spec, _ = spec_of(dag_id)
    return letters_of(spec, batch_id=batch_id, count=limits.LETTERS_SHOWN)


def _weeks(found: Any) -> list[list[Any]]:
    """Days by weeks from Monday on, with None where there is none."""
    blank = [None] * found[0].start.weekday()
    line = [*blank, *found]
    line += [None] * (-len(line) % 7)
    return [line[n : n + 7] for n in range(0, len(line), 7)]
