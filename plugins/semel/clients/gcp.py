"""Google credentials: from an Airflow connection of type google_cloud_platform, read as Airflow's
own provider reads it, or the application default credentials.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    connection_text,
    parse_connection,
    require_kind,
    translate_settings_errors,
)
from semel.errors import TerminalError

_EXAMPLE = '"conn_type": "google_cloud_platform", "extra": {"key_path": "/path/to/key.json"}'
_UNSUPPORTED = ("key_secret_name", "impersonation_chain", "idp_issuer_url")


def identity_text(connection: str | None) -> str:
    """The credentials that semel uses, in words for a message."""
    return f"the connection {connection!r}" if connection else "the application default credentials"


def credentials(
    connection: str | None, service: str, scope: str, find: Callable[[str], str | None]
) -> Any:
    """The credentials of a connection. Returns None for the application default credentials.

    `service`: its name in messages. Raises TerminalError if the connection is missing or unusable.
    """
    if connection is None:
        return None
    text = connection_text(connection, find, _EXAMPLE)
    with translate_settings_errors(connection, service):
        return _key_credentials(parse_connection(text), scope)


@contextmanager
def require_credentials() -> Iterator[None]:
    """Raises TerminalError if a client within the block does not find credentials."""
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as error:
        raise TerminalError(
            f"there are no Google credentials here ({type(error).__name__}). Name a connection, or "
            "set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file"
        ) from None


def _key_credentials(fields: Fields, scope: str) -> Any:
    """Credentials of a connection's key. None without a key. Raises ValueError if it is faulty."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import service_account

    require_kind(fields, "google_cloud_platform")
    # Older versions of Airflow wrote long names.
    extra = {
        key.removeprefix("extra__google_cloud_platform__"): value
        for key, value in fields.extra.items()
    }
    if unsupported := [name for name in _UNSUPPORTED if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {unsupported[0]}, which semel does not support; set keyfile_dict"
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
                f"semel cannot read its key file: {error.strerror}"
            ) from None
    if not key:
        return None
    key = json.loads(key) if isinstance(key, str) else dict(key)
    if key.get("type") != "service_account":
        raise ConnectionSettingsError("its key is not the key of a service account")
    try:
        return service_account.Credentials.from_service_account_info(key, scopes=[scope])
    except (GoogleAuthError, ValueError):
        raise ConnectionSettingsError(
            "its key is incomplete; create a new key for the service account"
        ) from None
