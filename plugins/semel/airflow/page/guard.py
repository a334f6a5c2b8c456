"""Checks of a form that changes something: its user, its page, and the values on that page.

A confirmation page signs its values for its user. The second step acts on the signed values alone.
A page of another site cannot read the signed text, and the browser reports the site that sends a
form.
"""

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.tokens import get_signing_key
from airflow.configuration import conf
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Form, HTTPException, Request
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

PAGE_CONFIRM_SECONDS = 900
"""How long a confirmation page is valid: enough to read it, and to ask a colleague."""

Token = Annotated[str, Form()]

_AGAIN = "Nothing was done. Load the page before this one again, and confirm there."


def sign(user: Any, dag_id: str, action: str, values: dict[str, Any]) -> str:
    """The signed values of a confirmation page, for its form."""
    return _signer().dumps([user.get_id(), dag_id, action, values])


# Keeps A8.
def confirmed_values(
    request: Request, token: str, user: Any, dag_id: str, action: str
) -> dict[str, Any]:
    """The values on this user's confirmation page, for this DAG and action.

    Raises HTTPException 403 if there was no such page, or if it is too old.
    """
    _refuse_other_site(request)
    try:
        user_id, dag, what, values = _signer().loads(token, max_age=PAGE_CONFIRM_SECONDS)
    except SignatureExpired as error:
        minutes = PAGE_CONFIRM_SECONDS // 60
        why = f"The confirmation page is more than {minutes} min old."
        raise HTTPException(403, f"{why} {_AGAIN}") from error
    except (BadSignature, ValueError, TypeError) as error:
        why = "The form lacks its signed values, or another server signed them."
        raise HTTPException(403, f"{why} {_AGAIN}") from error
    if [user_id, dag, what] != [user.get_id(), dag_id, action]:
        raise HTTPException(403, f"The form is for another user, DAG or action. {_AGAIN}")
    return values


def write_audit_log(user: Any, dag_id: str, event: str, what: dict[str, Any]) -> None:
    """Write an action into Airflow's audit log. The caller does it before the action."""
    with create_session() as session:
        name = user.get_name()
        session.add(
            Log(
                event=event,
                owner=name,
                owner_display_name=name,
                extra=json.dumps(what),
                dag_id=dag_id,
            )
        )


def _refuse_other_site(request: Request) -> None:
    """Raises HTTPException 403 unless the browser names this server as the origin of the form."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        raise HTTPException(403, f"The request has no Origin header. {_AGAIN}")
    if site not in (None, "same-origin"):
        raise HTTPException(403, f"Another site sent this (Sec-Fetch-Site: {site}). {_AGAIN}")
    base_url = conf.get("api", "base_url", fallback="")
    hosts = {request.headers.get("host"), urlsplit(base_url).netloc}
    if origin is not None and (urlsplit(origin).netloc or origin) not in hosts:
        why = f"Another site sent this ({origin}), or [api] base_url does not name this one."
        raise HTTPException(403, f"{why} {_AGAIN}")


def _signer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(get_signing_key("api", "secret_key"), salt="semel-page")
