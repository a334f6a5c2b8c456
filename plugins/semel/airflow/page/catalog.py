"""The page of a pipeline's catalog: how many ids it holds, where, until when; what they drop."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from semel import limits
from semel.airflow.page.common import MaySee, ledger, page, spec_of
from semel.airflow.page.shown import PAGE_LINES
from semel.ledger import Ledger, rows
from semel.reports.intervals import DAYS_SHOWN

PAGE_CATALOG_BATCHES = 5_000
"""Newest batches whose repeats the page of a catalog counts by days."""

router = APIRouter()


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """What the ledger says of a catalog. Sums go over the id runs that look-ups ask: published, and
    not retired.

    `segments`: the tables that hold them, the oldest first. `days`: by the day (UTC) of their
    commit, the newest first, the accounts of the newest batches, of which `batches` were counted.
    """

    segments: list[dict[str, Any]]
    shards: list[dict[str, Any]]
    days: list[dict[str, Any]]

    @property
    def ids(self) -> int:
        return sum(one["ids"] for one in self.shards)

    @property
    def runs(self) -> int:
        return sum(one["runs"] for one in self.shards)

    @property
    def filter_bytes(self) -> int:
        return sum(one["filter_bytes"] for one in self.shards)

    @property
    def asked(self) -> int:
        """How often filters were asked for ids that their run does not have."""
        return sum(one["asked"] for one in self.shards)

    @property
    def false_hits(self) -> int:
        """How often they said yes."""
        return sum(one["false_hits"] for one in self.shards)

    @property
    def bytes(self) -> int:
        return sum(one["bytes"] for one in self.segments)

    @property
    def batches(self) -> int:
        return sum(one["batches"] for one in self.days)

    @property
    def next_drop(self) -> datetime | None:
        """When the first segment may go at the earliest; None: there is none."""
        return min((one["drop_at"] for one in self.segments), default=None)


@router.get("/dags/{dag_id}/catalog", response_class=HTMLResponse, dependencies=[MaySee])
def catalog(
    request: Request,
    dag_id: str,
    user: GetUserDep,  # noqa: ARG001 - who has no login sees nothing
) -> HTMLResponse:
    """All of a catalog."""
    spec, _ = spec_of(dag_id)
    return page(
        request, "catalog.html", name=spec.name, spec=spec, found=catalog_of(ledger(), spec.name),
        bits_per_id=limits.FILTER_BITS_PER_ID,
    )  # fmt: skip


def catalog_of(ledger: Ledger, name: str) -> Catalog:
    """The catalog of a pipeline; empty when it has planned nothing."""
    with ledger.transaction() as connection:
        lines = PAGE_LINES
        return Catalog(
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


def _dicts(found: list[Any]) -> list[dict[str, Any]]:
    return [dict(one) for one in found]
