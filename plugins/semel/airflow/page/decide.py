"""The pages that change something: accepting a refused file, and abandoning a batch.

Each in two steps: a page that says what would be done, and its form, which does exactly that.
"""

from functools import partial
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from semel.airflow.page import shown
from semel.airflow.page.common import (
    MayEdit,
    MaySee,
    declared,
    ledger,
    may,
    may_edit,
    may_read,
    page,
    sight,
    soon,
    spec_of,
    wrong_lines,
)
from semel.airflow.page.guard import Token, agreed, sign, write_down
from semel.airflow.page.shown import PAGE_LINES
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
def refused(request: Request, dag_id: str, user: GetUserDep) -> HTMLResponse:
    """The files that are refused, and what can be done about each."""
    spec, is_declared = spec_of(dag_id)
    seen, trouble = sight(spec) if is_declared else (None, None)
    known = shown.refusals_of(ledger(), spec.name)
    now = known if seen is None else seen.gaps.refusals
    since = {one["name"]: one["seen_at"] for one in known}
    return page(
        request,
        "refused.html",
        name=spec.name,
        spec=spec,
        declared=is_declared,
        wrong=[] if is_declared else wrong_lines(dag_id),
        trouble=trouble,
        looked=seen is not None,
        found=now[:PAGE_LINES],
        count=len(now),
        since=since,
        losses=seen.gaps.losses if seen else (),
        choices=partial(accept.choices, spec.source),
        edits=may(may_edit, request, user),
        reads=may(may_read, request, user),
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
    """What accepting a file would do now, to be confirmed."""
    spec = declared(dag_id, f"accept {dag_id} FILE")
    start = start if how == "new" else 0
    key = f"accept {spec.name} {spec.digest()} {how} {start} {file}"
    # In a list, for None has a meaning of its own.
    found = soon(key, lambda: [_foreseen(spec, file, how, start)])
    token = None
    if found and found[0]:
        what = found[0]
        losses = how == "lost"
        digest = lost.losses_digest(what) if losses else what.digest
        end = 0 if losses else what.end
        name = what[0].name if losses else what.name
        wanted = {"file": name, "how": how, "start": start, "end": end, "digest": digest}
        token = sign(user, dag_id, "accept", wanted)
    return page(
        request,
        "accept.html",
        name=spec.name,
        spec=spec,
        file=file,
        how=how,
        start=start,
        found=found,
        token=token,
        user=_name(user),
    )


@router.post("/dags/{dag_id}/accept", response_class=HTMLResponse, dependencies=[MayEdit])
def do_accept(
    request: Request, dag_id: str, user: GetUserDep, token: Token = ""
) -> HTMLResponse:
    """Do what was shown, with the functions of `semel accept`."""
    wanted = agreed(request, token, user, dag_id, "accept")
    spec = declared(dag_id, f"accept {dag_id} FILE")
    file, how = wanted["file"], wanted["how"]
    write_down(user, dag_id, "semel_accept", {k: wanted[k] for k in ("file", "how", "start")})
    if how == "lost":
        done: Any = lost.accept_loss(
            ledger(), spec, file, by=_name(user), agreed=wanted["digest"]
        )
    else:
        done = accept.accept_file(
            ledger(),
            spec,
            file,
            same=how == "same",
            start=wanted["start"],
            by=_name(user),
            agreed=(wanted["end"], wanted["digest"]),
        )
    return page(
        request, "accepted.html", name=spec.name, spec=spec, file=file, how=how, done=done,
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
    """What abandoning a batch would do now, to be confirmed."""
    found = _planned(dag_id, batch_id)
    wanted = {"batch": batch_id, "attempts": found.attempts, "alive": found.alive}
    token = sign(user, dag_id, "abandon", wanted)
    return page(
        request, "abandon.html", name=dag_id, found=found, token=token, user=_name(user)
    )


@router.post(
    "/dags/{dag_id}/batches/{batch_id}/abandon",
    response_class=HTMLResponse,
    dependencies=[MayEdit],
)
def do_abandon(
    request: Request, dag_id: str, batch_id: int, user: GetUserDep, token: Token = ""
) -> HTMLResponse:
    """Do what was shown, with the function of `semel abandon`."""
    wanted = agreed(request, token, user, dag_id, "abandon")
    if wanted["batch"] != batch_id:
        raise HTTPException(403, f"This was confirmed for batch {wanted['batch']}")
    found = _planned(dag_id, batch_id)
    if found.attempts != wanted["attempts"]:
        raise StateError(
            f"batch {batch_id} has another attempt than was shown, or one got further, so nothing "
            "was done; look at it again"
        )
    write_down(user, dag_id, "semel_abandon", {"batch": batch_id})
    reason = f"abandoned on semel's page by {_name(user)}"
    ranges = abandon(ledger(), batch_id, reason, silent_only=not wanted["alive"])
    if ranges is None:
        raise StateError(
            f"an attempt of batch {batch_id} shows life again: nothing was done; look at it again"
        )
    return page(request, "abandoned.html", name=dag_id, found=found, ranges=ranges)


def _planned(dag_id: str, batch_id: int) -> shown.Planned:
    found = shown.planned_of(ledger(), dag_id, batch_id)
    if found is None:
        raise HTTPException(404, f"{dag_id} has no batch {batch_id}")
    if found.status == "abandoned":
        raise StateError(f"batch {batch_id} is abandoned already")
    if found.status != "planned":
        raise StateError(
            f"batch {batch_id} is {found.status}, so it cannot be abandoned: only a batch that "
            "never committed can"
        )
    return found


def _foreseen(spec: Spec, file: str, how: AcceptMode, start: int) -> Any:
    if how == "lost":
        return lost.preview_loss(ledger(), spec, file)
    return accept.preview_accept(ledger(), spec, file, same=how == "same", start=start)


def _name(user: Any) -> str:
    return f"{user.get_name()} (Airflow)"
