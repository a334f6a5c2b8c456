"""The page of a pipeline's windows: their state, their aggregate rows and a plot."""

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
    cached_query,
    has_right,
    ledger,
    may_read,
    parse_day,
    render_page,
    source_sight,
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
    """The state of each window. With `aggregate` and the right to read records, also their rows."""
    spec, declared = spec_of(dag_id)
    span = {"since": parse_day(since), "until": parse_day(until), "now": datetime.now(UTC)}
    states = completeness.windows(ledger(), spec, **span)
    rows = drawn = trouble = None
    levels = spec.aggregate.by if spec.aggregate else ()
    level = min(level, len(levels) - 1)
    reads = bool(levels) and has_right(may_read, request, user)
    if reads:
        key = f"counted {spec.name} {spec.digest()} {level} {since} {until}"
        try:
            rows = cached_query(
                key, lambda: window_rows.read_windows(ledger(), spec, states, level=level, **span)
            )
        except (SemelError, OSError) as error:
            trouble = str(error)
    named = partial(_window_name, spec)
    source, no_source = source_sight(spec) if declared else (None, None)
    dated = spec.source.select is Select.INTERVAL and spec.source.dated
    names = [*spec.aggregate.columns] if spec.aggregate else []
    if rows is not None:
        numbers = [
            name for at, name in enumerate(names)
            if any(is_number(values[at]) for w in rows.windows for _, values in w.rows)
        ]  # fmt: skip
        column = column if column in numbers else next(iter(numbers), "")
        if column:
            drawn = plot(
                rows.windows[::-1], names.index(column), keyed=bool(levels[level]),
                show=named,
            )  # fmt: skip
    return render_page(
        request,
        "windows.html",
        name=spec.name,
        spec=spec,
        known=states,
        states=[s for s in WindowState if any(each.state is s for each in states.windows)],
        levels=[", ".join(keys) for keys in levels],
        level=level,
        column=column,
        columns=names,
        found=rows,
        reads=reads,
        trouble=trouble,
        plot=drawn,
        height=HEIGHT,
        named=named,
        clock=partial(_clock, spec),
        zone=_zone(spec),
        delay=spec.delay,
        seen=source,
        unseen=no_source,
        unread=source.unread if source and dated else None,
        since=since,
        until=until,
    )


def _window_name(spec: Spec, start: datetime) -> str:
    """The name of a window: its start by the clock of the windows, or its day."""
    if spec.window is None or spec.window.windows.slices.seconds % _DAY_SECONDS:
        return _clock(spec, start)
    return _clock(spec, start)[: len("2026-11-01")]


def _zone(spec: Spec) -> str:
    return spec.window.zone if spec.window else "UTC"


def _clock(spec: Spec, at: datetime) -> str:
    """A time by the clock of the windows."""
    return f"{at.astimezone(ZoneInfo(_zone(spec))):%Y-%m-%d %H:%M}"
