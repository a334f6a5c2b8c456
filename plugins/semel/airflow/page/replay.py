"""A replay of an interval from the page Days: a confirmation page, then one run of the DAG, created
by Airflow's own API.

The replay is a new run and not a backfill: a backfill clears the runs of the batches, which then
keep its configuration, and Airflow refuses it while another one runs.
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
from semel.airflow.page.common import (
    base_path,
    cached_query,
    declared_spec,
    is_paused,
    ledger,
    parse_interval,
    render_page,
)
from semel.airflow.page.content import PAGE_LINES
from semel.airflow.page.guard import Token, confirmed_values, sign, write_audit_log
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

IS_SUPPORTED = set(inspect.signature(dag_run.trigger_dag_run).parameters) == {
    "dag_id", "body", "dag_bag", "user", "session", "request"
}  # fmt: skip
"""True if this Airflow's function for a run has the expected parameters. If not, Days does not
link to a replay."""

_Start = Annotated[datetime, Query(alias="from")]
_End = Annotated[datetime | None, Query(alias="to")]
_Last = Annotated[date | None, Query()]


@dataclass(frozen=True, kw_only=True)
class ReplayCandidate:
    """A batch of the replay. `made_by`: the code of its newest output, None if its marker lacks it.
    `same`: code and declaration have not changed since that output.
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
    """The batches that a replay of [start, end) would compute again, with a form to confirm.
    `last`: the last day, instead of `end`.
    """
    spec = declared_spec(dag_id, f"replay {dag_id}")
    start, end = parse_interval(start, end, last)
    now = provenance.read_code(spec)
    which = _replay_arguments(spec, start, end)
    roots = _roots(spec, which)
    token = candidates = None
    if roots and len(roots) <= PAGE_LINES:
        key = f"replay {spec.name} {spec.digest()} {now.digests.digest} {roots}"
        candidates = cached_query(key, lambda: _foresee(spec, roots, now.digests))
    if candidates and not any(each.root.why for each in candidates):
        wanted = {
            "from": start.isoformat(), "to": end.isoformat(), "batches": roots,
            "code": now.digests.digest, "spec": spec.digest(), "at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        token = sign(user, dag_id, "replay", wanted)
    return render_page(
        request,
        "replay.html",
        name=spec.name,
        spec=spec,
        start=start,
        end=end,
        last=(end - timedelta(microseconds=1)).date(),
        count=len(roots),
        found=candidates,
        codes=Counter(each.made_by.digest for each in candidates or () if each.made_by),
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
    """Create the confirmed run: one, even if the browser sends the form twice."""
    wanted = confirmed_values(request, token, user, dag_id, "replay")
    run_id = f"manual__{wanted['at']}"
    where = f"{base_path(request)}/dags/{quote(dag_id, safe='')}/replay/{quote(run_id, safe='')}"
    try:
        if not _run_exists(dag_id, run_id):
            _trigger_run(request, dag_id, user, wanted, run_id)
    except IntegrityError:
        if not _run_exists(dag_id, run_id):  # If it does, the form came twice.
            raise
    return RedirectResponse(where, status_code=303)


def _run_exists(dag_id: str, run_id: str) -> bool:
    with create_session() as session:
        query = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        return session.scalar(query) is not None


def _trigger_run(
    request: Request, dag_id: str, user: Any, wanted: dict[str, Any], run_id: str
) -> None:
    spec = declared_spec(dag_id, f"replay {dag_id}")
    start, end = (datetime.fromisoformat(wanted[key]) for key in ("from", "to"))
    roots = _roots(spec, _replay_arguments(spec, start, end))
    replays.refuse_changed(spec, roots, wanted, next="load the page Days again")
    write_audit_log(user, dag_id, "semel_replay", {k: wanted[k] for k in ("from", "to", "batches")})
    confirmed = {key: wanted[key] for key in ("batches", "code", "spec")}
    conf: dict[str, Any] = {replays.REPLAY: True, replays.SHOWN_KEY: confirmed}
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
    """A page after the creation of the run, with the next steps."""
    return render_page(request, "replaying.html", name=dag_id, run_id=run_id)


def _replay_arguments(spec: Spec, start: datetime, end: datetime) -> dict[str, Any]:
    """Arguments of `roots`: the interval or, for a pipeline without intervals, the numbers of the
    first and the last batch that committed in that time.
    """
    if spec.source.select is Select.INTERVAL:
        return {"interval": (start, end)}
    roots = _roots(spec, {"interval": (start, end)})
    return {"batches": (min(roots), max(roots))} if roots else {"interval": (start, end)}


def _roots(spec: Spec, which: dict[str, Any]) -> list[int]:
    try:
        return replay.roots(ledger(), spec, **which)
    except StateError:
        return []


def _foresee(spec: Spec, roots: list[int], now: CodeDigests) -> list[ReplayCandidate]:
    """The batches that a new request would replay."""
    with ledger().transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    present = [replay.check_root(ledger(), spec, root, "") for root in roots]
    return [_candidate(spec, pipeline, root, now) for root in present]


def _candidate(spec: Spec, pipeline: Pipeline, root: Root, now: CodeDigests) -> ReplayCandidate:
    if root.why is not None:
        return ReplayCandidate(root=root, made_by=None, same=False)
    marker = marker_of(pipeline, root.batch_id, root.generation)
    code = marker.code
    same = code is not None and code.digest == now.digest and marker.spec_digest == spec.digest()
    return ReplayCandidate(root=root, made_by=code, same=same)
