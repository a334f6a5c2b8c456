"""The page of a pipeline's catalog: the number of its ids, their tables and shards, and repeats."""

from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from semel import limits
from semel.airflow.page.common import MaySee, ledger, render_page, spec_of
from semel.airflow.page.content import PAGE_LINES
from semel.ledger import Ledger, rows
from semel.reports.intervals import DAYS_SHOWN

PAGE_CATALOG_BATCHES = 5_000
"""Newest batches whose repeats the page of a catalog counts by days."""

router = APIRouter()


@router.get("/dags/{dag_id}/catalog", response_class=HTMLResponse, dependencies=[MaySee])
def catalog(
    request: Request,
    dag_id: str,
    user: GetUserDep,  # noqa: ARG001 - needs a login
) -> HTMLResponse:
    """The catalog of a pipeline."""
    spec, _ = spec_of(dag_id)
    return render_page(
        request, "catalog.html", name=spec.name, spec=spec, bits_per_id=limits.FILTER_BITS_PER_ID,
        **catalog_of(ledger(), spec.name),
    )  # fmt: skip


def catalog_of(ledger: Ledger, name: str) -> dict[str, list[dict[str, Any]]]:
    """The catalog of a pipeline. Its lists are empty before the first plan.

    `segments`: its tables, the oldest first. `shards`: shards of the id runs that look-ups read,
    which are published and not retired. `days`: the accounts of the newest batches by the day (UTC)
    of their commit, the newest first.
    """
    with ledger.transaction() as connection:
        lines = PAGE_LINES
        return dict(
            segments=_dicts(rows(connection, "page", "segments", name=name, count=lines)),
            shards=_dicts(rows(connection, "page", "shards", name=name)),
            days=_dicts(
                rows(
                    connection,
                    "page",
                    "repeats",
                    name=name,
                    batches=PAGE_CATALOG_BATCHES,
                    days=DAYS_SHOWN,
                )
            ),
        )


def _dicts(lines: list[Any]) -> list[dict[str, Any]]:
    return [dict(line) for line in lines]
