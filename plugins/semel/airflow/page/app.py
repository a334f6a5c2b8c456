"""The routes of semel's pages. They show and change nothing.

Airflow authenticates nobody for a plugin's application: each route here names who may see it.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import jinja2
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from semel import cells, limits, settings, summary
from semel.airflow import surroundings
from semel.airflow.page import shown, text
from semel.airflow.page.looks import Looks
from semel.airflow.plugin import PREFIX
from semel.batch import dag_run_of
from semel.days import Sight, State, days
from semel.errors import LimitError, RetryableError, SemelError
from semel.ledger import Ledger
from semel.spec.pipeline import Spec

_FOLDER = Path(__file__).parent / "templates"

_HEADERS = {
    # No script at all, and nothing from elsewhere; Airflow's own pages may hold this one.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

app = FastAPI(title="semel", docs_url=None, redoc_url=None, openapi_url=None)

_looks = Looks(limits.PAGE_LOOK_SECONDS)
_MaySee = Depends(requires_access_dag(method="GET"))
_Day = Annotated[str, Query(pattern=r"^(\d{4}-\d\d-\d\d)?$")]


@app.middleware("http")
async def _headed(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    response.headers.update(_HEADERS)
    return response


@app.exception_handler(SemelError)
def _failed(request: Request, error: SemelError) -> HTMLResponse:
    """What semel says of its own: 503 when the same may succeed later, else 400."""
    status = 503 if isinstance(error, RetryableError) else 400
    return _page(request, "message.html", status=status, said=str(error))


@app.exception_handler(StarletteHTTPException)
def _refused(request: Request, error: StarletteHTTPException) -> HTMLResponse:
    """No login, no right, no such thing."""
    said = str(error.detail)
    if error.status_code == 401:
        said = f"{said}: log in to Airflow first."
    return _page(request, "message.html", status=error.status_code, said=said)


@app.exception_handler(RequestValidationError)
def _wrong(request: Request, error: RequestValidationError) -> HTMLResponse:  # noqa: ARG001
    said = "The address is not right: a day is written as 2026-11-21, a batch is a number."
    return _page(request, "message.html", status=422, said=said)


@app.get("/semel.css", response_class=FileResponse)
def style(user: GetUserDep) -> FileResponse:  # noqa: ARG001 - who has no login sees nothing
    return FileResponse(_FOLDER / "semel.css", media_type="text/css")


@app.get("/", response_class=HTMLResponse)
def pipelines(request: Request, user: GetUserDep) -> HTMLResponse:
    """All pipelines whose DAG the user may see."""
    permitted = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    found = shown.overviews(ledger(), permitted)
    return _page(request, "pipelines.html", found=found, count=limits.PAGE_BATCHES)


@app.get("/dags/{dag_id}", response_class=HTMLResponse, dependencies=[_MaySee])
def days_of(
    request: Request,
    dag_id: str,
    since: Annotated[_Day, Query(alias="from")] = "",
    until: Annotated[_Day, Query(alias="to")] = "",
) -> HTMLResponse:
    """How far each interval of a pipeline is."""
    spec, declared = _spec(dag_id)
    sight, trouble = _sight(spec) if declared else (None, None)
    answer = days(
        ledger(), spec, sight, now=datetime.now(UTC), since=_day(since), until=_day(until)
    )
    return _page(
        request,
        "days.html",
        name=spec.name,
        spec=spec,
        answer=answer,
        declared=declared,
        paused=bool((dag := DagModel.get_dagmodel(dag_id)) and dag.is_paused),
        trouble=trouble,
        since=since,
        until=until,
        states=[s for s in State if any(day.state is s for day in answer.days)],
        weeks=_weeks(answer.days) if cells.are_days(answer.days) else None,
    )


@app.get("/dags/{dag_id}/batches/{batch_id}", response_class=HTMLResponse, dependencies=[_MaySee])
def batch(request: Request, dag_id: str, batch_id: int) -> HTMLResponse:
    """All of one batch."""
    found = shown.batch_of(ledger(), dag_id, batch_id)
    if found is None:
        raise HTTPException(404, f"{dag_id} has no batch {batch_id}")
    return _page(request, "batch.html", name=dag_id, found=found)


@cache
def ledger() -> Ledger:
    """The ledger of this server, with a pool of its own."""
    surroundings.find_folders()
    surroundings.find_ledger()
    return Ledger(settings.ledger_dsn())


def _spec(dag_id: str) -> tuple[Spec, bool]:
    found = shown.spec_of(ledger(), dag_id)
    if found is None:
        raise HTTPException(404, f"{dag_id} is no pipeline of semel, or has planned nothing yet")
    return found


def _sight(spec: Spec) -> tuple[Sight | None, str | None]:
    """A look at the source, or why there is none."""
    try:
        found = _looks.at(f"{spec.name} {spec.digest()}", lambda: shown.sight(ledger(), spec))
    except (SemelError, OSError) as error:
        return None, f"The source could not be looked at: {error}"
    if found is None:
        seconds = f"{limits.PAGE_LOOK_SECONDS:.0f} s"
        return None, f"Looking at the source takes longer than {seconds}. Load this page again."
    return found, None


def _day(given: str) -> date | None:
    try:
        return date.fromisoformat(given) if given else None
    except ValueError as error:
        raise LimitError(f"{given} is not a day; write it as 2026-11-21") from error


def _weeks(found: Any) -> list[list[Any]]:
    """Days by weeks from Monday on, with None where there is none."""
    blank = [None] * found[0].start.weekday()
    line = [*blank, *found]
    line += [None] * (-len(line) % 7)
    return [line[n : n + 7] for n in range(0, len(line), 7)]


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "span": summary.interval, "number": text.number, "moment": text.moment, "ago": text.ago,
        "seconds": text.seconds, "symbols": text.SYMBOLS, "meanings": text.MEANINGS,
        "css_class": text.css_class, "dag_run_of": dag_run_of, "lines_max": limits.PAGE_LINES,
        "quote": lambda part: quote(part, safe=""),
    }  # fmt: skip
    return made


def _page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    above = request.scope.get("root_path", "").removesuffix(PREFIX)
    values = {"name": None, **values}
    html = _templates().get_template(template).render(
        above=above, own=above + PREFIX, now=datetime.now(UTC), **values
    )
    return HTMLResponse(html, status_code=status)
