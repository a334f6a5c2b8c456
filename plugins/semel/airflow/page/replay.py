"""A replay of an interval from the page of days: shown first, then one run of the DAG is made for
it, by Airflow's own API.

A run of its own, and no backfill: a backfill clears the runs that made the batches, which then keep
its configuration, and it cannot be made while another one is at work.
"""

import inspect
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public import dag_run
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from semel.airflow import replays
from semel.airflow.page.backfill import MayRun
from semel.airflow.page.common import declared, is_paused, ledger, own, page, soon, span
from semel.airflow.page.guard import Token, agreed, sign, write_down
from semel.airflow.page.shown import PAGE_LINES
from semel.archive import provenance
from semel.archive.provenance import CodeDigests
from semel.declare.durations import format_duration
from semel.declare.parts import Select
from semel.errors import StateError
from semel.ledger import pipelines
from semel.model.batch import Pipeline
from semel.pipeline.spec import Spec
from semel.runs import replay
from semel.runs.replay import Root
from semel.stage.replayed import marker_of

router = APIRouter()

KNOWN = set(inspect.signature(dag_run.trigger_dag_run).parameters) == {
    "dag_id", "body", "dag_bag", "user", "session", "request"
}  # fmt: skip
"""Whether this Airflow makes a run as this module does. Else Days has no link to a replay."""

_Start = Annotated[datetime, Query(alias="from")]
_End = Annotated[datetime | None, Query(alias="to")]
_Last = Annotated[date | None, Query()]


@dataclass(frozen=True, kw_only=True)
class ReplayCandidate:
    """A batch that would be replayed. `made_by`: the code of its newest output, where its marker
    tells; `same`: that of now, with the declaration of now.
    """

    root: Root
    made_by: CodeDigests | None
    same: bool


@router.get("/dags/{dag_id}/replay", response_class=HTMLResponse, dependencies=[MayRun])
def ask_replay(
    request: Request,
    dag_id: str,
    user: GetUserDep,
    start: _Start,
    end: _End = None,
    last: _Last = None,
) -> HTMLResponse:
    """Which batches a replay of [start, end) would compute again, to be confirmed. `last`: the last
    day of it, in the place of its end.
    """
    spec = declared(dag_id, f"replay {dag_id}")
    start, end = span(start, end, last)
    now = provenance.read_code(spec)
    which = _which(spec, start, end)
    roots = _roots(spec, which)
    token = found = None
    if roots and len(roots) <= PAGE_LINES:
        key = f"replay {spec.name} {spec.digest()} {now.digests.digest} {roots}"
        found = soon(key, lambda: _foreseen(spec, roots, now.digests))
    if found and not any(one.root.why for one in found):
        wanted = {
            "from": start.isoformat(), "to": end.isoformat(), "batches": roots,
            "code": now.digests.digest, "spec": spec.digest(), "at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        token = sign(user, dag_id, "replay", wanted)
    return page(
        request,
        "replay.html",
        name=spec.name,
        spec=spec,
        start=start,
        end=end,
        last=(end - timedelta(microseconds=1)).date(),
        count=len(roots),
        found=found,
        codes=Counter(one.made_by.digest for one in found or () if one.made_by),
        code=now.digests,
        paused=is_paused(dag_id),
        keep=format_duration(spec.limits.keep_replaced),
        folder=spec.sink_path() is not None,
        token=token,
    )


@router.post("/dags/{dag_id}/replay", response_class=HTMLResponse, dependencies=[MayRun])
def do_replay(
    request: Request, dag_id: str, user: GetUserDep, token: Token = ""
) -> RedirectResponse:
    """Make the run that was shown: one, also when the form is sent twice."""
    wanted = agreed(request, token, user, dag_id, "replay")
    run_id = f"manual__{wanted['at']}"
    where = f"{own(request)}/dags/{quote(dag_id, safe='')}/replay/{quote(run_id, safe='')}"
    try:
        if not _is_made(dag_id, run_id):
            _make(request, dag_id, user, wanted, run_id)
    except IntegrityError:
        if not _is_made(dag_id, run_id):  # Else the same form, sent twice, has just made it.
            raise
    return RedirectResponse(where, status_code=303)


def _is_made(dag_id: str, run_id: str) -> bool:
    with create_session() as session:
        found = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        return session.scalar(found) is not None


def _make(
    request: Request, dag_id: str, user: Any, wanted: dict[str, Any], run_id: str
) -> None:
    spec = declared(dag_id, f"replay {dag_id}")
    start, end = (datetime.fromisoformat(wanted[key]) for key in ("from", "to"))
    roots = _roots(spec, _which(spec, start, end))
    replays.refuse_other(spec, roots, wanted, next="load the page of days again")
    write_down(user, dag_id, "semel_replay", {k: wanted[k] for k in ("from", "to", "batches")})
    shown = {key: wanted[key] for key in ("batches", "code", "spec")}
    conf: dict[str, Any] = {replays.REPLAY: True, replays.SHOWN: shown}
    between: dict[str, datetime] = {}
    if spec.source.select is Select.INTERVAL:
        between = {"data_interval_start": start, "data_interval_end": end}
    else:
        conf[replays.BATCHES] = f"{min(wanted['batches'])}..{max(wanted['batches'])}"
    body = TriggerDAGRunPostBody(
        dag_run_id=run_id,
        logical_date=datetime.fromisoformat(wanted["at"]),
        conf=conf,
        **between,
    )
    with create_session() as session:
        dag_run.trigger_dag_run(
            dag_id=dag_id, body=body, dag_bag=DBDagBag(), user=user, session=session,
            request=request,
        )  # fmt: skip


@router.get(
    "/dags/{dag_id}/replay/{run_id:path}", response_class=HTMLResponse, dependencies=[MayRun]
)
def replaying(request: Request, dag_id: str, run_id: str) -> HTMLResponse:
    """That the run was made, and what comes next."""
    return page(request, "replaying.html", name=dag_id, run_id=run_id)


def _which(spec: Spec, start: datetime, end: datetime) -> dict[str, Any]:
    """What the run replays: its interval; where the pipeline has no intervals, the numbers from the
    first to the last batch that committed in that time.
    """
    if spec.source.select is Select.INTERVAL:
        return {"interval": (start, end)}
    found = _roots(spec, {"interval": (start, end)})
    return {"batches": (min(found), max(found))} if found else {"interval": (start, end)}


def _roots(spec: Spec, which: dict[str, Any]) -> list[int]:
    try:
        return replay.roots(ledger(), spec, **which)
    except StateError:
        return []


def _foreseen(spec: Spec, roots: list[int], now: CodeDigests) -> list[ReplayCandidate]:
    """What a new request would replay, batch by batch."""
    with ledger().transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    found = [replay.look(ledger(), spec, root, "") for root in roots]
    return [_made(spec, pipeline, root, now) for root in found]


def _made(spec: Spec, pipeline: Pipeline, root: Root, now: CodeDigests) -> ReplayCandidate:
    if root.why is not None:
        return ReplayCandidate(root=root, made_by=None, same=False)
    marker = marker_of(pipeline, root.batch_id, root.generation)
    made = marker.code
    same = made is not None and made.digest == now.digest and marker.spec_digest == spec.digest()
    return ReplayCandidate(root=root, made_by=made, same=same)
