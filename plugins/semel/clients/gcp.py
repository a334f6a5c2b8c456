"""Google's credentials: those of an Airflow connection of type google_cloud_platform, as Airflow's
own provider reads it, or the application default ones.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    parsed,
    require_kind,
    text_of,
    usable,
)
from semel.errors import TerminalError

_EXAMPLE = '"conn_type": "google_cloud_platform", "extra": {"key_path": "/path/to/key.json"}'
_ELSEWHERE = ("key_secret_name", "impersonation_chain", "idp_issuer_url")


def who(connection: str | None) -> str:
    """Whose rights count, in words."""
    return f"the connection {connection!r}" if connection else "the application default credentials"


def credentials(
    connection: str | None, what: str, scope: str, find: Callable[[str], str | None]
) -> Any:
    """The credentials of a connection. None: the application default ones.

    `what`: the service, in messages. TerminalError: there is no such connection, or it cannot be
    used.
    """
    if connection is None:
        return None
    text = text_of(connection, find, _EXAMPLE)
    with usable(connection, what):
        return _of_key(parsed(text), scope)


@contextmanager
def needed() -> Iterator[None]:
    """Within the block a client looks for credentials. TerminalError: there are none."""
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as error:
        raise TerminalError(
            f"there are no Google credentials here ({type(error).__name__}); name a connection, or "
            "let GOOGLE_APPLICATION_CREDENTIALS name a key's file"
        ) from None


def _of_key(found: Fields, scope: str) -> Any:
    """Credentials of a key, or None: the application default ones. ValueError: it is no key."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import service_account

    require_kind(found, "google_cloud_platform")
    # Older versions of Airflow wrote long names.
    extra = {
        key.removeprefix("extra__google_cloud_platform__"): value
        for key, value in found.extra.items()
    }
    if named := [name for name in _ELSEWHERE if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {named[0]}, which semel does not take; give a key"
        )
    if extra.get("is_anonymous"):
        return AnonymousCredentials()
    key = extra.get("keyfile_dict") or extra.get("keyfile_json")
    path = extra.get("key_path") or extra.get("credential_config_file")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                key = file.read()
        except OSError as error:
            raise ConnectionSettingsError(
                f"the key's file cannot be read: {error.strerror}"
            ) from None
    if not key:
        return None
    key = json.loads(key) if isinstance(key, str) else dict(key)
    if key.get("type") != "service_account":
        raise ConnectionSettingsError("its key is not one of a service account")
    try:
        return service_account.Credentials.from_service_account_info(key, scopes=[scope])
    except (GoogleAuthError, ValueError):
        raise ConnectionSettingsError(
            "its key is not whole: make a new one for the service account"
        ) from None
