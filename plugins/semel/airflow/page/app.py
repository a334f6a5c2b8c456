"""The application of semel's pages: its headers, what it says of errors, and what only shows.

Airflow authenticates nobody for a plugin's application: each route here names who may see it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query, Request, Response
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
    Files,
    MaySee,
    Since,
    Until,
    day,
    declarations,
    is_paused,
    known,
    ledger,
    may,
    may_edit,
    may_read,
    own,
    page,
    paused_dags,
    sight,
    soon,
    spec_of,
    wrong_lines,
)
from semel.airflow.page.failures import failed_runs, failures_of
from semel.airflow.page.looks import QueryCache
from semel.airflow.page.plot import DAY_PARTS, HEIGHT, plot_days
from semel.airflow.page.shown import PAGE_BATCHES, DeclaredPipelines, Overview
from semel.declare.yaml import declared_name
from semel.errors import (
    Doing,
    OutcomeUnknownError,
    RetryableError,
    SemelError,
    SourceError,
    StateError,
)
from semel.model.batch import dag_run_of
from semel.reports import intervals
from semel.reports.days import days
from semel.reports.dead_letters import Letters
from semel.reports.dead_letters import letters as letters_of
from semel.reports.progress import CellState

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

PAGE_CHECK_SECONDS = 60.0
"""How long the check of the pipelines' files is used while none of them changes."""

_checks: QueryCache[DeclaredPipelines] = QueryCache(0.5, threads=1)
_last_check: dict[Files, DeclaredPipelines] = {}

_LISTS = {"/dags/{dag_id}/accept": ("/refused", "Refused files")}
"""The list that leads to a page, of those that Days does not lead to."""

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
    if "\0" in request.scope["path"]:
        # PostgreSQL refuses this character in each text.
        response: Response = _message(request, 400, "The address has a NUL character.")
    else:
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
def _wrong(request: Request, error: RequestValidationError) -> HTMLResponse:
    """The names of the values that the address lacks, and of those that are wrong."""
    missing: list[str] = []
    wrong: list[str] = []
    for one in error.errors():
        (missing if one["type"] == "missing" else wrong).append(one["loc"][1])
    said = [f"The address lacks: {', '.join(missing)}."] if missing else []
    if wrong:
        said.append(f"This is wrong in the address: {', '.join(wrong)}.")
    said.append("A day is written as 2026-11-21, a batch is a number.")
    return _message(request, 422, " ".join(said))


@app.exception_handler(Exception)
def _broken(request: Request, error: Exception) -> HTMLResponse:  # noqa: ARG001
    """A defect of semel, or an error of Airflow's: the server raises it again, for its log."""
    said = "This page failed. The log of Airflow's API server has the error: please report it."
    response = _message(request, 500, said)
    response.headers.update(_HEADERS)  # No middleware sees this response.
    return response


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
    leads = _LISTS.get(getattr(request.scope.get("route"), "path", ""), ("", "Days"))
    told = {"said": said, "title": title, "name": name, "next": next, "leads": leads}
    return page(request, "message.html", status=status, **told)


@app.get("/semel.css", response_class=FileResponse)
@app.get("/semel.js", response_class=FileResponse)
@app.get("/semel.svg", response_class=FileResponse)
def asset(request: Request, user: GetUserDep) -> FileResponse:  # noqa: ARG001 - needs a login
    """A file that each page loads."""
    return FileResponse(FOLDER / request.url.path.rpartition("/")[2])


@app.get("/", response_class=HTMLResponse)
def pipelines(
    request: Request, user: GetUserDep, q: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """All pipelines whose DAG the user may see, the worst first; `q`: those that have it in their
    name, state or schedule.
    """
    ledger()  # It finds the folders.
    declared, checked = _declared()
    manager = get_auth_manager()
    permitted = {*manager.get_authorized_dag_ids(user=user, method="GET")}
    # Airflow has no DAG of a file that was wrong from the start.
    if manager.is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user):
        permitted |= declared.wrong.keys() - paused_dags(declared.wrong).keys()
    overviews = shown.overviews(ledger(), permitted, declared, datetime.now(UTC))
    overviews = sorted(_as_airflow_knows(_refused_now(overviews)), key=lambda one: one.order)
    some = [one for one in overviews if q.lower() in one.words]
    return page(
        request,
        "pipelines.html",
        found=some,
        count=len(overviews),
        checked=checked,
        q=q,
        batches=PAGE_BATCHES,
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
    wrong = [] if declared else wrong_lines(dag_id)
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
        wrong=wrong,
        runs=backfill.KNOWN and runs,
        replays=replay.KNOWN and declared and runs,
        since=since,
        until=until,
        states=[s for s in CellState if any(one.state is s for one in answer.days)],
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


def _declared() -> tuple[DeclaredPipelines, bool]:
    """The pipelines of the folder, by the last check of their files as they are now; else, and not
    checked, their names alone.
    """
    try:
        state = declarations()
    except OSError:
        state = ()
    turn = int(time.monotonic() / PAGE_CHECK_SECONDS)
    checked = _checks.at(f"{hash(state)} {turn}", lambda: _checked(state, turn))
    if checked is None and state in _last_check:
        checked = _last_check[state]
    if checked is None:
        return DeclaredPipelines(names=frozenset(declared_name(path) for path, *_ in state)), False
    _last_check.clear()
    _last_check[state] = checked
    return checked, True


@lru_cache(maxsize=1)
def _checked(state: Files, turn: int) -> DeclaredPipelines:  # noqa: ARG001 - the next turn checks again
    return shown.declared([path for path, *_ in state])


def _as_airflow_knows(found: list[Overview]) -> list[Overview]:
    """With what Airflow knows: which DAGs are paused, the failed tasks of open batches, and the runs
    that failed before they had a batch.
    """
    paused = paused_dags([one.name for one in found])
    keys = {b.batch_id: dag_run_of(b.request_key) for one in found for b in one.opened}
    failures = failures_of({batch: key for batch, key in keys.items() if key})
    runs = failed_runs(one.name for one in found)
    return [
        replace(
            one,
            paused=paused.get(one.name, False),
            failures={
                b.batch_id: failures[b.batch_id] for b in one.opened if b.batch_id in failures
            },
            failed_runs=tuple(
                run for run in runs.get(one.name, ())
                if one.lacks(run) and (one.name, run.run_id) not in keys.values()
            ),
        )
        for one in found
    ]


def _refused_now(found: list[Overview]) -> list[Overview]:
    """With what a plan would refuse now in the place of what the last one refused: of those whose
    source can be looked at before a page has to be there.
    """
    until = time.monotonic() + PAGE_LOOK_SECONDS
    for n, one in enumerate(found):
        if not one.refused or one.wrong or time.monotonic() >= until:
            continue
        spec, declared = known(one.name) or (None, False)
        seen = sight(spec)[0] if declared else None
        if seen is not None:
            found[n] = replace(one, refused=len(seen.gaps.refusals), looked=True)
    return found


def _letters(dag_id: str, batch_id: int) -> Letters:
    spec, _ = spec_of(dag_id)
    return letters_of(spec, batch_id=batch_id, count=limits.LETTERS_SHOWN)


def _weeks(found: Any) -> list[list[Any]]:
    """Days by weeks from Monday on, with None where there is none."""
    blank = [None] * found[0].start.weekday()
    line = [*blank, *found]
    line += [None] * (-len(line) % 7)
    return [line[n : n + 7] for n in range(0, len(line), 7)]
