"""What all routes of the pages share: the ledger, a pipeline's declaration, looks, rendering."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from semel import pipeline, settings
from semel.airflow import surroundings
from semel.airflow.links import PREFIX
from semel.airflow.page import shown, text
from semel.airflow.page.looks import QueryCache
from semel.airflow.page.shown import PAGE_LINES
from semel.declare.wording import size
from semel.errors import NO_STEP, LimitError, SemelError, SpecError
from semel.ledger import Ledger, pipelines
from semel.model.batch import dag_run_of
from semel.pipeline import UnknownPipelineError
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.reports import summary
from semel.reports.progress import Sight

PAGE_LOOK_SECONDS = 1.0
"""How long a page waits for a look at the source before it shows what the ledger knows."""

PAGE_TOLD_SECONDS = 10.0
"""How long a server goes by the folders and the ledger that Airflow told it, before it asks anew."""

PAGE_RUN_DAYS_MAX = 366
"""Days of a backfill or a replay from a page: one of more is made in Airflow's own dialog."""

T = TypeVar("T")

FOLDER = Path(__file__).parent / "templates"

MaySee = Depends(requires_access_dag(method="GET"))
"""Who may see the DAG sees what its pipeline came to."""
may_read = requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_LOGS)
MayRead = Depends(may_read)
"""Who may read its tasks' logs may see records: the logs show samples of them too."""
may_edit = requires_access_dag(method="PUT")
MayEdit = Depends(may_edit)
"""Who may edit the DAG decides what is read."""

_DayText = Annotated[str, Query(pattern=r"^(\d{4}-\d\d-\d\d)?$")]
Since = Annotated[_DayText, Query(alias="from")]
Until = Annotated[_DayText, Query(alias="to")]

_looks: QueryCache[Any] = QueryCache(PAGE_LOOK_SECONDS)


def ledger() -> Ledger:
    """The ledger of this server, with a pool of its own."""
    find_folders()
    return _ledger(settings.ledger_dsn())


def find_folders() -> None:
    """Find the folders and the ledger's address in Airflow, if the last answer is too old."""
    _told_at(int(time.monotonic() / PAGE_TOLD_SECONDS))


@lru_cache(maxsize=1)
def _told_at(turn: int) -> None:  # noqa: ARG001 - the next turn asks again
    surroundings.find_folders(settings.airflow_variables)
    surroundings.find_ledger(settings.airflow_variables)


@lru_cache(maxsize=1)
def _ledger(address: str) -> Ledger:
    return Ledger(address)


def spec_of(dag_id: str) -> tuple[Spec, bool]:
    """A DAG's pipeline, and whether it is declared here. 404: it is none."""
    found = known(dag_id)
    if found is None:
        refuse_wrong(dag_id)
        raise HTTPException(404, f"{dag_id} is no pipeline of semel, or has planned nothing yet")
    return found


def declared(dag_id: str, command: str) -> Spec:
    """A DAG's pipeline as it is declared. 404: nothing here declares it; `command` is typed there.
    """
    spec, is_declared = spec_of(dag_id)
    if not is_declared:
        refuse_wrong(dag_id)
        raise HTTPException(
            404,
            f"this server does not see the file that declares {dag_id}: type `semel {command}` "
            "where it is",
        )
    return spec


def refuse_wrong(dag_id: str) -> None:
    """SpecError: a file declares this pipeline, and is wrong; the lines of `semel validate`."""
    with suppress(UnknownPipelineError):
        pipeline.find(dag_id)


def wrong_lines(dag_id: str) -> list[str]:
    """The lines of `semel validate` about a pipeline's file. Empty if the file is right, or not here.
    """
    try:
        refuse_wrong(dag_id)
    except SpecError as error:
        return str(error).splitlines()
    return []


Files = tuple[tuple[Path, int, int], ...]
"""Files with their times of change and their sizes: others are other files."""


def declarations() -> Files:
    """The pipelines' files as they are now, by which what was read of all of them is kept."""
    stats = ((path, path.stat()) for path in pipeline.declarations())
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def is_paused(dag_id: str) -> bool:
    """Whether the DAG's runs wait."""
    dag = DagModel.get_dagmodel(dag_id)
    return bool(dag and dag.is_paused)


def paused_dags(dag_ids: Iterable[str]) -> dict[str, bool]:
    """Those of some DAGs that Airflow knows, and whether their runs wait."""
    found = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_([*dag_ids]))
    with create_session() as session:
        return {dag_id: bool(paused) for dag_id, paused in session.execute(found)}


def known(dag_id: str) -> tuple[Spec, bool] | None:
    """The same; None: it is no pipeline."""
    found = shown.spec_of(ledger(), dag_id)
    if found is not None:
        surroundings.find_connections(found[0], settings.airflow_variables)
    return found


def sight(spec: Spec) -> tuple[Sight | None, str | None]:
    """A look at the source, no older than what the ledger says of it, or why there is none."""
    try:
        key = f"sight {spec.name} {spec.digest()} {_changes(spec.name)}"
        found = soon(key, lambda: Sight.of(ledger(), spec))
    except (SemelError, OSError) as error:
        return None, f"The source could not be read: {error}"
    if found is None:
        seconds = f"{PAGE_LOOK_SECONDS:.0f} s"
        return None, f"Reading the source takes longer than {seconds}. Load this page again."
    return found, None


def _changes(name: str) -> int | None:
    """How often what is read of the source has changed in the ledger. None: nothing was planned."""
    with ledger().transaction() as connection:
        found = pipelines.find(connection, name)
        return found and partitions.version(connection, found.pipeline_id)


def soon(key: str, look: Callable[[], T]) -> T | None:
    """What a look comes to; None while it goes on: the next page of the same key has it."""
    return _looks.at(key, look)


def may(right: Callable[[Request, Any], None], request: Request, user: Any) -> bool:
    """Whether somebody has a right on the DAG of this address: `may_edit`, `may_read`."""
    try:
        right(request, user)
    except HTTPException:
        return False
    return True


def day(given: str) -> date | None:
    """A day of an address. LimitError: it is none, or nothing can be before or after it."""
    try:
        found = date.fromisoformat(given) if given else None
    except ValueError as error:
        raise LimitError(
            f"{given} is not a day; write it as 2026-11-21", next=NO_STEP
        ) from error
    if found and not date.min.year < found.year < date.max.year:
        raise LimitError(f"{given} is not within the years 2 to 9998", next=NO_STEP)
    return found


def span(
    start: datetime, end: datetime | None, last: date | None = None
) -> tuple[datetime, datetime]:
    """An interval of an address, in UTC where it names no zone. `last`: its last day, in the place
    of its end. 422: it is none, or too long.
    """
    days = PAGE_RUN_DAYS_MAX
    try:
        if last is not None:
            end = datetime.combine(last, clock()) + timedelta(days=1)
        if end is None:
            raise HTTPException(422, "The address lacks: to.")
        start, end = (
            at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC) for at in (start, end)
        )
    except OverflowError as error:
        raise HTTPException(422, "An interval lies within the years 1 to 9999.") from error
    if not timedelta() < end - start <= timedelta(days=days):
        raise HTTPException(422, f"An interval ends after it begins, {days} days later at most.")
    return start, end


def own(request: Request) -> str:
    """The path below which the pages lie, as a browser has it."""
    return request.scope.get("root_path", "")


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of a template."""
    above = own(request).removesuffix(PREFIX)
    values = {"name": None, "route": getattr(request.scope.get("route"), "path", ""), **values}
    html = _templates().get_template(template).render(
        above=above, own=above + PREFIX, now=datetime.now(UTC), **values
    )
    return HTMLResponse(html, status_code=status)


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "span": summary.interval, "number": text.number, "moment": text.moment, "ago": text.ago,
        "seconds": text.seconds, "symbols": text.SYMBOLS,
        "css_class": text.css_class, "cell": text.cell, "dag_run_of": dag_run_of,
        "quote": lambda part: quote(part, safe=""), "size": size, "query": urlencode,
        "lines_max": PAGE_LINES,
    }  # fmt: skip
    return made
