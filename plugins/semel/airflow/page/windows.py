"""The page of a pipeline's windows: what is complete, what was counted in each, and its plot."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated
from zoneinfo import ZoneInfo

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from semel.airflow.page.common import (
    MaySee,
    Since,
    Until,
    day,
    ledger,
    may,
    may_read,
    page,
    sight,
    soon,
    spec_of,
)
from semel.airflow.page.plot import HEIGHT, plot
from semel.airflow.page.text import is_number
from semel.declare.parts import Select
from semel.errors import SemelError
from semel.model.complete import WindowState
from semel.pipeline.spec import Spec
from semel.reports import completeness, window_rows

_DAY_SECONDS = 86_400

router = APIRouter()


@router.get("/dags/{dag_id}/windows", response_class=HTMLResponse, dependencies=[MaySee])
def windows(
    request: Request,
    dag_id: str,
    user: GetUserDep,
    since: Since = "",
    until: Until = "",
    level: Annotated[int, Query(ge=0)] = 0,
    column: str = "",
) -> HTMLResponse:
    """Which windows are complete; with `aggregate` and the right to read records, their rows."""
    spec, declared = spec_of(dag_id)
    asked = {"since": day(since), "until": day(until), "now": datetime.now(UTC)}
    known = completeness.windows(ledger(), spec, **asked)
    found = drawn = trouble = None
    levels = spec.aggregate.by if spec.aggregate else ()
    level = min(level, len(levels) - 1)
    reads = bool(levels) and may(may_read, request, user)
    if reads:
        key = f"counted {spec.name} {spec.digest()} {level} {since} {until}"
        try:
            found = soon(
                key, lambda: window_rows.read_windows(ledger(), spec, known, level=level, **asked)
            )
        except (SemelError, OSError) as error:
            trouble = str(error)
    named = partial(_named, spec)
    seen, unseen = sight(spec) if declared else (None, None)
    dated = spec.source.select is Select.INTERVAL and spec.source.dated
    names = [*spec.aggregate.columns] if spec.aggregate else []
    if found is not None:
        numbers = [
            name for at, name in enumerate(names)
            if any(is_number(values[at]) for w in found.windows for _, values in w.rows)
        ]  # fmt: skip
        column = column if column in numbers else next(iter(numbers), "")
        if column:
            drawn = plot(
                found.windows[::-1], names.index(column), keyed=bool(levels[level]),
                show=named,
            )  # fmt: skip
    return page(
        request,
        "windows.html",
        name=spec.name,
        spec=spec,
        known=known,
        states=[s for s in WindowState if any(one.state is s for one in known.windows)],
        levels=[", ".join(keys) for keys in levels],
        level=level,
        column=column,
        columns=names,
        found=found,
        reads=reads,
        trouble=trouble,
        plot=drawn,
        height=HEIGHT,
        named=named,
        clock=partial(_clock, spec),
        zone=_zone(spec),
        delay=spec.delay,
        seen=seen,
        unseen=unseen,
        unread=seen.unread if seen and dated else None,
        since=since,
        until=until,
    )


def _named(spec: Spec, start: datetime) -> str:
    """What a window that begins then is called, by its clock."""
    if spec.window is None or spec.window.windows.slices.seconds % _DAY_SECONDS:
        return _clock(spec, start)
    return _clock(spec, start)[: len("2026-11-01")]


def _zone(spec: Spec) -> str:
    return spec.window.zone if spec.window else "UTC"


def _clock(spec: Spec, at: datetime) -> str:
    """A moment by the clock of the windows."""
    return f"{at.astimezone(ZoneInfo(_zone(spec))):%Y-%m-%d %H:%M}"
