"""The page that finds a record id, with the function of `semel find`."""

from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from semel.airflow.page.common import MayRead, MaySee, page, soon, spec_of
from semel.errors import SemelError
from semel.reports import find as core

PAGE_ID_CHARS_MAX = 16_384
"""Characters of an id that the page looks for: an address has room for more, an id seldom."""

router = APIRouter()

_CHARS_MAX = PAGE_ID_CHARS_MAX
_Ids = Annotated[list[str], Query(alias="id", max_length=64)]


@router.get(
    "/dags/{dag_id}/find", response_class=HTMLResponse, dependencies=[MaySee, MayRead]
)
def find(
    request: Request,
    dag_id: str,
    user: GetUserDep,  # noqa: ARG001 - who has no login sees nothing
    values: _Ids = (),
) -> HTMLResponse:
    """Where an id is; without one, the form alone."""
    spec, declared = spec_of(dag_id)
    given = list(values)
    found = trouble = None
    # It reads all markers, and the files of a column's ids: with many batches that takes long.
    if given and sum(map(len, given)) > _CHARS_MAX:
        trouble = f"An id that is looked for here has {_CHARS_MAX:,} characters at most."
    elif given:
        try:
            key = f"find {spec.name} {spec.digest()} {given!r}"
            found = soon(key, lambda: core.find(spec, given))
        except (SemelError, OSError) as error:
            trouble = str(error)
    return page(
        request,
        "find.html",
        name=spec.name,
        spec=spec,
        columns=spec.record_id,
        declared=declared,
        given=given,
        found=found,
        trouble=trouble,
    )
