"""The pages that accept a refused file and abandon a batch.

Each works in two steps: a page that shows what would happen, and its form, which does exactly that.
"""

from functools import partial
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from semel.airflow.page import content
from semel.airflow.page.common import (
    MayEdit,
    MaySee,
    cached_query,
    declared_spec,
    has_right,
    ledger,
    may_edit,
    may_read,
    render_page,
    source_sight,
    spec_of,
    wrong_lines,
)
from semel.airflow.page.content import PAGE_LINES
from semel.airflow.page.guard import Token, confirmed_values, sign, write_audit_log
from semel.errors import StateError
from semel.pipeline.spec import Spec
from semel.plan.abandon import abandon
from semel.repair import accept
from semel.repair import losses as lost
from semel.repair.accept import AcceptMode

router = APIRouter()

_File = Annotated[str, Query(max_length=8_192, pattern=r"^[^\x00]*$")]
_Byte = Annotated[int, Query(alias="from", ge=0, lt=1 << 63)]


@router.get(
    "/dags/{dag_id}/refused", response_class=HTMLResponse, dependencies=[MaySee]
)
def show_refused(request: Request, dag_id: str, user: GetUserDep) -> HTMLResponse:
    """The refused files of a pipeline, each with its choices."""
    spec, is_declared = spec_of(dag_id)
    source, trouble = source_sight(spec) if is_declared else (None, None)
    in_ledger = content.refusals_of(ledger(), spec.name)
    now = in_ledger if source is None else source.gaps.refusals
    since = {refusal["name"]: refusal["seen_at"] for refusal in in_ledger}
    return render_page(
        request,
        "refused.html",
        name=spec.name,
        spec=spec,
        declared=is_declared,
        wrong=[] if is_declared else wrong_lines(dag_id),
        trouble=trouble,
        looked=source is not None,
        found=now[:PAGE_LINES],
        count=len(now),
        since=since,
        losses=source.gaps.losses if source else (),
        choices=partial(accept.choices, spec.source),
        edits=has_right(may_edit, request, user),
        reads=has_right(may_read, request, user),
    )


@router.get("/dags/{dag_id}/accept", response_class=HTMLResponse, dependencies=[MayEdit])
def ask_accept(
    request: Request,
    dag_id: str,
    user: GetUserDep,
    file: _File,
    how: AcceptMode,
    start: _Byte = 0,
) -> HTMLResponse:
    """The effect of accepting a file now, with a form to confirm."""
    spec = declared_spec(dag_id, f"accept {dag_id} FILE")
    start = start if how == "new" else 0
    key = f"accept {spec.name} {spec.digest()} {how} {start} {file}"
    # In a list, because `soon` returns None while the query runs.
    effects = cached_query(key, lambda: [_foresee(spec, file, how, start)])
    token = None
    if effects and effects[0]:
        what = effects[0]
        losses = how == "lost"
        digest = lost.losses_digest(what) if losses else what.digest
        end = 0 if losses else what.end
        name = what[0].name if losses else what.name
        wanted = {"file": name, "how": how, "start": start, "end": end, "digest": digest}
        token = sign(user, dag_id, "accept", wanted)
    return render_page(
        request,
        "accept.html",
        name=spec.name,
        spec=spec,
        file=file,
        how=how,
        start=start,
        found=effects,
        token=token,
        user=_name(user),
    )


@router.post("/dags/{dag_id}/accept", response_class=HTMLResponse, dependencies=[MayEdit])
def do_accept(
    request: Request, dag_id: str, user: GetUserDep, token: Token = ""
) -> HTMLResponse:
    """Accept the confirmed file or loss, with the functions of `semel accept`."""
    wanted = confirmed_values(request, token, user, dag_id, "accept")
    spec = declared_spec(dag_id, f"accept {dag_id} FILE")
    file, how = wanted["file"], wanted["how"]
    write_audit_log(user, dag_id, "semel_accept", {k: wanted[k] for k in ("file", "how", "start")})
    if how == "lost":
        result: Any = lost.accept_loss(
            ledger(), spec, file, by=_name(user), agreed=wanted["digest"]
        )
    else:
        result = accept.accept_file(
            ledger(),
            spec,
            file,
            same=how == "same",
            start=wanted["start"],
            by=_name(user),
            agreed=(wanted["end"], wanted["digest"]),
        )
    return render_page(
        request, "accepted.html", name=spec.name, spec=spec, file=file, how=how, done=result,
        user=_name(user),
    )  # fmt: skip


@router.get(
    "/dags/{dag_id}/batches/{batch_id}/abandon",
    response_class=HTMLResponse,
    dependencies=[MayEdit],
)
def ask_abandon(
    request: Request, dag_id: str, batch_id: int, user: GetUserDep
) -> HTMLResponse:
    """The effect of abandoning a batch now, with a form to confirm."""
    candidate = _abandon_candidate(dag_id, batch_id)
    wanted = {"batch": batch_id, "attempts": candidate.attempts, "alive": candidate.alive}
    token = sign(user, dag_id, "abandon", wanted)
    return render_page(
        request, "abandon.html", name=dag_id, found=candidate, token=token, user=_name(user)
    )


@router.post(
    "/dags/{dag_id}/batches/{batch_id}/abandon",
    response_class=HTMLResponse,
    dependencies=[MayEdit],
)
def do_abandon(
    request: Request, dag_id: str, batch_id: int, user: GetUserDep, token: Token = ""
) -> HTMLResponse:
    """Abandon the confirmed batch, with the function of `semel abandon`."""
    wanted = confirmed_values(request, token, user, dag_id, "abandon")
    if wanted["batch"] != batch_id:
        raise HTTPException(403, f"This was confirmed for batch {wanted['batch']}")
    candidate = _abandon_candidate(dag_id, batch_id)
    if candidate.attempts != wanted["attempts"]:
        raise StateError(
            f"the attempts of batch {batch_id} have changed since the page showed them. Nothing "
            "was done. Load the page again"
        )
    write_audit_log(user, dag_id, "semel_abandon", {"batch": batch_id})
    reason = f"abandoned on semel's page by {_name(user)}"
    ranges = abandon(ledger(), batch_id, reason, silent_only=not wanted["alive"])
    if ranges is None:
        raise StateError(
            f"an attempt of batch {batch_id} has sent a heartbeat since the page showed it. "
            "Nothing was done. Load the page again"
        )
    return render_page(request, "abandoned.html", name=dag_id, found=candidate, ranges=ranges)


def _abandon_candidate(dag_id: str, batch_id: int) -> content.AbandonCandidate:
    candidate = content.abandon_candidate(ledger(), dag_id, batch_id)
    if candidate is None:
        raise HTTPException(404, f"{dag_id} has no batch {batch_id}")
    if candidate.status == "abandoned":
        raise StateError(f"batch {batch_id} is abandoned already")
    if candidate.status != "planned":
        raise StateError(
            f"batch {batch_id} is {candidate.status}, so it cannot be abandoned: only a batch that "
            "never committed can"
        )
    return candidate


def _foresee(spec: Spec, file: str, how: AcceptMode, start: int) -> Any:
    if how == "lost":
        return lost.preview_loss(ledger(), spec, file)
    return accept.preview_accept(ledger(), spec, file, same=how == "same", start=start)


def _name(user: Any) -> str:
    return f"{user.get_name()} (Airflow)"
