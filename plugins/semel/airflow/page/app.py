"""The application of semel's pages: its headers, its error pages, and the pages that only read.

Airflow does not authorize requests to a plugin's application: each route names the right it needs.
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
    content,
    decide,
    drawing,
    find,
    records,
    replay,
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
    base_path,
    cached_query,
    declarations,
    find_spec,
    has_right,
    is_paused,
    ledger,
    may_edit,
    may_read,
    parse_day,
    paused_dags,
    render_page,
    source_sight,
    spec_of,
    wrong_lines,
)
from semel.airflow.page.content import PAGE_BATCHES, DeclaredPipelines, Overview
from semel.airflow.page.failures import failed_runs, failures_of
from semel.airflow.page.plot import DAY_PARTS, HEIGHT, plot_days
from semel.airflow.page.queries import QueryCache
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
"""How long the server uses a check of the pipelines' files, if no file changes."""

_checks: QueryCache[DeclaredPipelines] = QueryCache(0.5, threads=1)
_last_check: dict[Files, DeclaredPipelines] = {}

_PARENT_PAGES = {"/dags/{dag_id}/accept": ("/refused", "Refused files")}
"""By route: path and title of the page with links to it, if that is not Days."""

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
async def _add_headers(
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
def _semel_error(request: Request, error: SemelError) -> HTMLResponse:
    """The page of an error of semel: 503 if the request may succeed later, else 400.

    409: a form came too late, and its subject has changed since the page showed it.
    """
    status = 503 if isinstance(error, RetryableError) else 400
    if isinstance(error, StateError | SourceError) and request.method == "POST":
        status = 409
    params = request.path_params
    batch_id = params.get("batch_id", "")
    doing = Doing(
        again="load this page again",
        anew="clear the run from plan on",
        pipeline=params.get("dag_id", ""),
        batch_id=int(batch_id) if str(batch_id).isdecimal() else None,
    )
    unknown = isinstance(error, OutcomeUnknownError)
    return _message(request, status, str(error), unknown=unknown, next=error.next_step(doing))


@app.exception_handler(StarletteHTTPException)
def _http_error(request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """The page of a missing login, a missing right or an unknown address."""
    detail = str(error.detail)
    if error.status_code == 401:
        detail = f"{detail}: log in to Airflow first."
    return _message(request, error.status_code, detail)


@app.exception_handler(RequestValidationError)
def _invalid_address(request: Request, error: RequestValidationError) -> HTMLResponse:
    """The page that names the missing and the invalid values of an address."""
    missing: list[str] = []
    invalid: list[str] = []
    for fault in error.errors():
        (missing if fault["type"] == "missing" else invalid).append(fault["loc"][1])
    sentences = [f"The address lacks: {', '.join(missing)}."] if missing else []
    if invalid:
        sentences.append(f"The address has invalid values: {', '.join(invalid)}.")
    sentences.append("Write a day as 2026-11-21, and a batch as a number.")
    return _message(request, 422, " ".join(sentences))


@app.exception_handler(Exception)
def _server_error(request: Request, error: Exception) -> HTMLResponse:  # noqa: ARG001
    """The page of a defect of semel or Airflow. The server raises the error again, for its log."""
    sentences = "This page failed. The log of Airflow's API server has the error: please report it."
    response = _message(request, 500, sentences)
    response.headers.update(_HEADERS)  # No middleware sees this response.
    return response


def _message(
    request: Request,
    status: int,
    sentences: str,
    *,
    unknown: bool = False,
    next: str = "",
) -> HTMLResponse:
    title = "This cannot be shown" if request.method == "GET" else "This was not done"
    if unknown and request.method == "POST":
        title = "This may have been done or not: load the page before this one again"
    name = request.path_params.get("dag_id") if status not in (401, 403, 404) else None
    parent = _PARENT_PAGES.get(getattr(request.scope.get("route"), "path", ""), ("", "Days"))
    return render_page(
        request,
        "message.html",
        status=status,
        said=sentences,
        title=title,
        name=name,
        next=next,
        leads=parent,
    )


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
    """All pipelines whose DAG the user may see, the worst first. `q` filters them by name, state
    and schedule.
    """
    ledger()  # It sets the folders of the declarations.
    declared, checked = _declared_pipelines()
    manager = get_auth_manager()
    permitted = {*manager.get_authorized_dag_ids(user=user, method="GET")}
    # Airflow does not have the DAG of a file that was wrong from the start.
    if manager.is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user):
        permitted |= declared.wrong.keys() - paused_dags(declared.wrong).keys()
    overviews = content.overviews(ledger(), permitted, declared, datetime.now(UTC))
    overviews = _with_airflow_state(_with_current_refusals(overviews))
    overviews = sorted(overviews, key=lambda each: each.order)
    return render_page(
        request,
        "pipelines.html",
        found=[each for each in overviews if q.lower() in each.words],
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
    """The progress of each interval of a pipeline."""
    spec, declared = spec_of(dag_id)
    source, trouble = source_sight(spec) if declared else (None, None)
    wrong = [] if declared else wrong_lines(dag_id)
    first, last = parse_day(since), parse_day(until)
    answer = days(ledger(), spec, source, now=datetime.now(UTC), since=first, until=last)
    runs = has_right(backfill.may_run, request, user)
    blocking = backfill.blocking_runs(dag_id, [each.start for each in answer.days])
    missing = [(each.start, each.end) for each in answer.days if each.command]
    return render_page(
        request,
        "days.html",
        name=spec.name,
        spec=spec,
        answer=answer,
        declared=declared,
        paused=is_paused(dag_id),
        trouble=trouble,
        wrong=wrong,
        runs=backfill.IS_SUPPORTED and runs,
        replays=replay.IS_SUPPORTED and declared and runs,
        since=since,
        until=until,
        states=[s for s in CellState if any(each.state is s for each in answer.days)],
        weeks=_weeks(answer.days) if intervals.are_days(answer.days) else None,
        in_its_place=blocking,
        missing=spec.schedule and backfill.range_of(missing, blocking),
        plot=plot_days(
            [(each.start, each.counts) for each in answer.days], show=text.interval_start
        ),
        plot_height=HEIGHT,
        plot_parts=DAY_PARTS,
    )


@app.get("/dags/{dag_id}/batches/{batch_id}", response_class=HTMLResponse, dependencies=[MaySee])
def batch(
    request: Request, dag_id: str, batch_id: int, user: GetUserDep
) -> HTMLResponse:
    """One batch with all its details."""
    details = content.batch_of(ledger(), dag_id, batch_id)
    if details is None:
        raise HTTPException(404, f"{dag_id} has no batch {batch_id}")
    letters = trouble = None
    if details.set_aside and has_right(may_read, request, user):
        try:
            key = f"letters {dag_id} {batch_id}"
            letters = cached_query(key, lambda: _letters(dag_id, batch_id))
        except (SemelError, OSError) as error:
            trouble = str(error)
    return render_page(
        request,
        "batch.html",
        spec=spec_of(dag_id)[0],
        name=dag_id,
        found=details,
        letters=letters,
        trouble=trouble,
        reads=has_right(may_read, request, user),
        edits=has_right(may_edit, request, user),
        letters_max=records.PAGE_LETTERS_MAX,
    )


@app.get(
    "/dags/{dag_id}/runs/{run_id:path}", response_class=HTMLResponse, dependencies=[MaySee]
)
def batch_of_run(request: Request, dag_id: str, run_id: str, part: _Part = "") -> Response:
    """A redirect to the newest batch of a run, or a page about a run without a batch."""
    newest = content.batch_of_run(ledger(), dag_id, f"airflow:{dag_id}:{run_id}")
    if newest is None:
        return render_page(request, "norun.html", name=dag_id, run_id=run_id)
    where = f"{base_path(request)}/dags/{quote(dag_id, safe='')}/batches/{newest}"
    return RedirectResponse(where + (part and f"#{part}"), status_code=303)


def _declared_pipelines() -> tuple[DeclaredPipelines, bool]:
    """The pipelines of the folder. The second value is False if no check of the present files is
    complete; then the pipelines have names only.
    """
    try:
        state = declarations()
    except OSError:
        state = ()
    turn = int(time.monotonic() / PAGE_CHECK_SECONDS)
    loaded = _checks.get(f"{hash(state)} {turn}", lambda: _check(state, turn))
    if loaded is None and state in _last_check:
        loaded = _last_check[state]
    if loaded is None:
        return DeclaredPipelines(names=frozenset(declared_name(path) for path, *_ in state)), False
    _last_check.clear()
    _last_check[state] = loaded
    return loaded, True


@lru_cache(maxsize=1)
def _check(state: Files, turn: int) -> DeclaredPipelines:  # noqa: ARG001 - a turn has one check
    return content.load_declared([path for path, *_ in state])


def _with_airflow_state(overviews: list[Overview]) -> list[Overview]:
    """Add Airflow's state: paused DAGs, failed tasks of open batches, and runs that failed before
    they had a batch.
    """
    paused = paused_dags([each.name for each in overviews])
    keys = {b.batch_id: dag_run_of(b.request_key) for each in overviews for b in each.opened}
    failures = failures_of({batch: key for batch, key in keys.items() if key})
    runs = failed_runs(each.name for each in overviews)
    return [
        replace(
            each,
            paused=paused.get(each.name, False),
            failures={
                b.batch_id: failures[b.batch_id] for b in each.opened if b.batch_id in failures
            },
            failed_runs=tuple(
                run for run in runs.get(each.name, ())
                if each.lacks(run) and (each.name, run.run_id) not in keys.values()
            ),
        )
        for each in overviews
    ]


def _with_current_refusals(overviews: list[Overview]) -> list[Overview]:
    """Replace the last plan's refusals by those of the present source, for the pipelines whose
    source answers within PAGE_LOOK_SECONDS in all.
    """
    until = time.monotonic() + PAGE_LOOK_SECONDS
    for n, overview in enumerate(overviews):
        if not overview.refused or overview.wrong or time.monotonic() >= until:
            continue
        spec, declared = find_spec(overview.name) or (None, False)
        source = source_sight(spec)[0] if declared else None
        if source is not None:
            overviews[n] = replace(overview, refused=len(source.gaps.refusals), looked=True)
    return overviews


def _letters(dag_id: str, batch_id: int) -> Letters:
    spec, _ = spec_of(dag_id)
    return letters_of(spec, batch_id=batch_id, count=limits.LETTERS_SHOWN)


def _weeks(cells: Any) -> list[list[Any]]:
    """Days as weeks from Monday on, filled up with None."""
    blank = [None] * cells[0].start.weekday()
    line = [*blank, *cells]
    line += [None] * (-len(line) % 7)
    return [line[n : n + 7] for n in range(0, len(line), 7)]
