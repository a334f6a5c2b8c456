"""The page that finds a record id, with the function of `semel find`."""

from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from semel.airflow.page.common import MayRead, MaySee, cached_query, render_page, spec_of
from semel.errors import SemelError
from semel.reports import find as core

PAGE_ID_CHARS_MAX = 16_384
"""Characters of an id that the page can find. An address has room for more; ids are shorter."""

router = APIRouter()

_CHARS_MAX = PAGE_ID_CHARS_MAX
_Ids = Annotated[list[str], Query(alias="id", max_length=64)]


@router.get(
    "/dags/{dag_id}/find", response_class=HTMLResponse, dependencies=[MaySee, MayRead]
)
def find(
    request: Request,
    dag_id: str,
    user: GetUserDep,  # noqa: ARG001 - needs a login
    values: _Ids = (),
) -> HTMLResponse:
    """The batches of an id; without an id, the form alone."""
    spec, declared = spec_of(dag_id)
    record_id = list(values)
    matches = trouble = None
    # It reads all markers, and the files of a column's ids: with many batches that takes long.
    if record_id and sum(map(len, record_id)) > _CHARS_MAX:
        trouble = f"This page finds ids of {_CHARS_MAX:,} characters at most. Use `semel find`."
    elif record_id:
        try:
            key = f"find {spec.name} {spec.digest()} {record_id!r}"
            matches = cached_query(key, lambda: core.find(spec, record_id))
        except (SemelError, OSError) as error:
            trouble = str(error)
    return render_page(
        request,
        "find.html",
        name=spec.name,
        spec=spec,
        columns=spec.record_id,
        declared=declared,
        given=record_id,
        found=matches,
        trouble=trouble,
    )
