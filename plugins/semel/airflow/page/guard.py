"""Forms that change something: who sent them, from which page, and what that page showed.

A confirmation page signs what it showed, for the user who saw it. The second step takes that and
nothing else: no other field says what is done. A page of somebody else's cannot read the signed
text, and a browser says itself that a request comes from elsewhere.
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
"""How long a confirmation page may be confirmed: to read it, and ask somebody."""

Token = Annotated[str, Form()]

_AGAIN = "Nothing was done. Load the page before this one again, and confirm there."


def sign(user: Any, dag_id: str, action: str, agreed: dict[str, Any]) -> str:
    """What a confirmation page showed, for its form."""
    return _signer().dumps([user.get_id(), dag_id, action, agreed])


# Keeps A8.
def agreed(request: Request, token: str, user: Any, dag_id: str, action: str) -> dict[str, Any]:
    """What was shown to this user, for this DAG and action. 403: it was not, or too long ago."""
    _refuse_elsewhere(request)
    try:
        who, dag, what, found = _signer().loads(token, max_age=PAGE_CONFIRM_SECONDS)
    except SignatureExpired as error:
        minutes = PAGE_CONFIRM_SECONDS // 60
        raise HTTPException(403, f"This was shown more than {minutes} min ago. {_AGAIN}") from error
    except (BadSignature, ValueError, TypeError) as error:
        why = "The form lacks what the confirmation page signed, or another server signed it."
        raise HTTPException(403, f"{why} {_AGAIN}") from error
    if [who, dag, what] != [user.get_id(), dag_id, action]:
        raise HTTPException(403, f"This was confirmed for another user, DAG or action. {_AGAIN}")
    return found


def write_down(user: Any, dag_id: str, event: str, what: dict[str, Any]) -> None:
    """Into Airflow's audit log, before it is done."""
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


def _refuse_elsewhere(request: Request) -> None:
    """403 unless the browser says that one of these pages sent the form."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        raise HTTPException(403, f"No Origin says which page sent this. {_AGAIN}")
    if site not in (None, "same-origin"):
        raise HTTPException(403, f"Another site sent this (Sec-Fetch-Site: {site}). {_AGAIN}")
    own = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc}
    if origin is not None and (urlsplit(origin).netloc or origin) not in own:
        why = f"Another site sent this ({origin}), or [api] base_url does not name this one."
        raise HTTPException(403, f"{why} {_AGAIN}")


def _signer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(get_signing_key("api", "secret_key"), salt="semel-page")
