"""Functions for all routes: the ledger, declarations, rights, cached queries, rendering."""

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
from semel.airflow.page import content, text
from semel.airflow.page.content import PAGE_LINES
from semel.airflow.page.queries import QueryCache
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
"""How long a page waits for the source before it shows the ledger's state alone."""

PAGE_SETTINGS_SECONDS = 10.0
"""How long a server uses the folders and the ledger's address that it has read from Airflow."""

PAGE_RUN_DAYS_MAX = 366
"""Days of a backfill or a replay from a page. For more days there is Airflow's own dialog."""

T = TypeVar("T")

FOLDER = Path(__file__).parent / "templates"

MaySee = Depends(requires_access_dag(method="GET"))
"""A user who may see the DAG may see its pipeline's state."""
may_read = requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_LOGS)
MayRead = Depends(may_read)
"""A user who may read its tasks' logs may see records, since the logs show samples too."""
may_edit = requires_access_dag(method="PUT")
MayEdit = Depends(may_edit)
"""A user who may edit the DAG may accept files and abandon batches."""

_DayText = Annotated[str, Query(pattern=r"^(\d{4}-\d\d-\d\d)?$")]
Since = Annotated[_DayText, Query(alias="from")]
Until = Annotated[_DayText, Query(alias="to")]

_looks: QueryCache[Any] = QueryCache(PAGE_LOOK_SECONDS)


def ledger() -> Ledger:
    """The ledger of this server, with a pool of its own."""
    find_folders()
    return _ledger(settings.ledger_dsn())


def find_folders() -> None:
    """Read the folders and the ledger's address from Airflow, if the last values are too old."""
    _find_folders_once(int(time.monotonic() / PAGE_SETTINGS_SECONDS))


@lru_cache(maxsize=1)
def _find_folders_once(turn: int) -> None:  # noqa: ARG001 - the next turn asks again
    surroundings.find_folders(settings.airflow_variables)
    surroundings.find_ledger(settings.airflow_variables)


@lru_cache(maxsize=1)
def _ledger(address: str) -> Ledger:
    return Ledger(address)


def spec_of(dag_id: str) -> tuple[Spec, bool]:
    """A DAG's pipeline, and whether it is declared here. Raises HTTPException 404 if not."""
    spec = find_spec(dag_id)
    if spec is None:
        refuse_wrong(dag_id)
        raise HTTPException(
            404,
            f"semel does not know {dag_id}: no file on this server declares it, and it has never "
            "planned a batch",
        )
    return spec


def declared_spec(dag_id: str, command: str) -> Spec:
    """A DAG's pipeline as it is declared. Raises HTTPException 404 if no file here declares it, and
    then names a `command` for the machine that has the file.
    """
    spec, is_declared = spec_of(dag_id)
    if not is_declared:
        refuse_wrong(dag_id)
        raise HTTPException(
            404,
            f"this server does not see the file that declares {dag_id}. Run `semel {command}` on "
            "a machine that has the file.",
        )
    return spec


def refuse_wrong(dag_id: str) -> None:
    """Raises SpecError, with the lines of `semel validate`, if this pipeline's file is wrong."""
    with suppress(UnknownPipelineError):
        pipeline.find(dag_id)


def wrong_lines(dag_id: str) -> list[str]:
    """The lines of `semel validate` about a pipeline's file. Empty if it is right or missing."""
    try:
        refuse_wrong(dag_id)
    except SpecError as error:
        return str(error).splitlines()
    return []


Files = tuple[tuple[Path, int, int], ...]
"""The path, modification time (ns) and size of each file, so that a change of a file shows."""


def declarations() -> Files:
    """The pipelines' files as they are now, as a key for caches of their content."""
    stats = ((path, path.stat()) for path in pipeline.declarations())
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def is_paused(dag_id: str) -> bool:
    """True if Airflow has the DAG and starts none of its runs."""
    dag = DagModel.get_dagmodel(dag_id)
    return bool(dag and dag.is_paused)


def paused_dags(dag_ids: Iterable[str]) -> dict[str, bool]:
    """Whether each DAG is paused. DAGs that Airflow does not have are missing."""
    query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_([*dag_ids]))
    with create_session() as session:
        return {dag_id: bool(paused) for dag_id, paused in session.execute(query)}


def find_spec(dag_id: str) -> tuple[Spec, bool] | None:
    """A DAG's pipeline, and whether it is declared here. Returns None if semel lacks it."""
    spec = content.spec_of(ledger(), dag_id)
    if spec is not None:
        surroundings.find_connections(spec[0], settings.airflow_variables)
    return spec


def source_sight(spec: Spec) -> tuple[Sight | None, str | None]:
    """The state of the source, no older than what the ledger knows about it; or a text that
    explains why it is missing.
    """
    try:
        key = f"sight {spec.name} {spec.digest()} {_source_version(spec.name)}"
        state = cached_query(key, lambda: Sight.of(ledger(), spec))
    except (SemelError, OSError) as error:
        return None, f"semel could not read the source: {error}"
    if state is None:
        seconds = f"{PAGE_LOOK_SECONDS:.0f} s"
        return None, f"Reading the source takes longer than {seconds}. Load this page again."
    return state, None


def _source_version(name: str) -> int | None:
    """How often the ledger's knowledge of the source has changed. Returns None before the first
    plan.
    """
    with ledger().transaction() as connection:
        row = pipelines.find(connection, name)
        return row and partitions.version(connection, row.pipeline_id)


def cached_query(key: str, query: Callable[[], T]) -> T | None:
    """The result of a query. Returns None while it runs; a later page with the same key has it."""
    return _looks.get(key, query)


def has_right(right: Callable[[Request, Any], None], request: Request, user: Any) -> bool:
    """True if the user has a right (`may_edit`, `may_read`) on the DAG of this address."""
    try:
        right(request, user)
    except HTTPException:
        return False
    return True


def parse_day(value: str) -> date | None:
    """A day of an address. Returns None if the value is empty. Raises LimitError if it is not a day
    within the years 2 to 9998, which leave room for a day before and after.
    """
    try:
        parsed = date.fromisoformat(value) if value else None
    except ValueError as error:
        raise LimitError(f"{value} is not a day; write it as 2026-11-21", next=NO_STEP) from error
    if parsed and not date.min.year < parsed.year < date.max.year:
        raise LimitError(f"{value} is not within the years 2 to 9998", next=NO_STEP)
    return parsed


def parse_interval(
    start: datetime, end: datetime | None, last: date | None = None
) -> tuple[datetime, datetime]:
    """An interval of an address, in UTC if it lacks a zone. `last`: its last day, instead of `end`.
    Raises HTTPException 422 if it is empty, too long or out of range.
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


def base_path(request: Request) -> str:
    """The path of the pages' root in the browser's address."""
    return request.scope.get("root_path", "")


def render_page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page from a template."""
    above = base_path(request).removesuffix(PREFIX)
    values = {"name": None, "route": getattr(request.scope.get("route"), "path", ""), **values}
    html = _templates().get_template(template).render(
        above=above, own=above + PREFIX, now=datetime.now(UTC), **values
    )
    return HTMLResponse(html, status_code=status)


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "span": summary.interval, "number": text.number, "moment": text.moment, "ago": text.ago,
        "seconds": text.seconds, "symbols": text.SYMBOLS,
        "css_class": text.css_class, "cell": text.cell, "dag_run_of": dag_run_of,
        "quote": lambda part: quote(part, safe=""), "size": size, "query": urlencode,
        "lines_max": PAGE_LINES,
    }  # fmt: skip
    return templates
