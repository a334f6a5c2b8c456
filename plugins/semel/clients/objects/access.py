"""The service, client options and credentials for the URL of an object store.

The credentials come from an Airflow connection, read as Airflow's own providers read it, or from
the machine. Each process looks them up itself, so semel never sends secrets.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    connection_text,
    parse_connection,
    require_kind,
    require_package,
    translate_settings_errors,
)
from semel.declare.place import PREFIX, Location
from semel.errors import TerminalError

URL = r"^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/[^\s?#@]*)?$"
"""s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."""


def check_url(url: object) -> object:
    """Raises ValueError if it is not the URL of an object store. The message does not quote it,
    because it may have a login, which would appear in a log.
    """
    if isinstance(url, str) and not re.fullmatch(URL, url):
        raise ValueError(
            "is not a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
            " Put a login into a connection"
        )
    if isinstance(url, str) and {".", "..", ""} & {*url.rstrip("/").split("/")[3:]}:
        raise ValueError("has //, /./ or /../ in its prefix; remove it")
    return url


CONNECT_SECONDS, IDLE_SECONDS, TRIES = 2, 3, 2
"""Bounds of one call and its number of tries: semel reports an absent store in ten seconds."""

UPLOAD_SECONDS = 600
"""Longest wait for the answer to an upload, which comes after its last byte: 512 MB at 1 MB/s."""

WHOLE_SECONDS = 1_800
"""Longest time for the body of one answer while its bytes keep coming."""

STORES_KEPT = 8
"""Stores that a process keeps open, to reuse their connections."""

_EXAMPLES = {
    "aws": '"conn_type": "aws", "login": "access key id", "password": "secret access key", '
    '"extra": {"region_name": "eu-west-1"}',
    "google_cloud_platform": '"conn_type": "google_cloud_platform", '
    '"extra": {"key_path": "/path/to/key.json"}',
    "wasb": '"conn_type": "wasb", "login": "storage account", "password": "its key"',
}
_KINDS = {"s3": "aws", "gs": "google_cloud_platform", "az": "wasb"}
_ENVIRONMENT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {"AWS_SESSION_TOKEN": "token"},
    "gs": {
        "GOOGLE_SERVICE_ACCOUNT": "service_account",
        "GOOGLE_SERVICE_ACCOUNT_PATH": "service_account",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
    },
    "az": {
        "AZURE_STORAGE_ACCOUNT_KEY": "access_key",
        "AZURE_STORAGE_ACCESS_KEY": "access_key",
        "AZURE_STORAGE_MASTER_KEY": "access_key",
        "AZURE_STORAGE_TOKEN": "token",
        "AZURE_FABRIC_TOKEN_SERVICE_URL": "fabric_token_service_url",
    },
}
"""Variables whose credentials override a client's own, unless semel sets this option."""

_FIXED_OPTIONS: Mapping[str, Mapping[str, str]] = {"s3": {"conditional_put": "etag"}}
"""Options that a variable of the environment (AWS_CONDITIONAL_PUT) must not change."""

_EXCHANGED = frozenset({"service_account", "service_account_key", "tenant_id"})
"""Options with a credential that the client exchanges for a token."""

_NO_ROLES = ("role_arn", "assume_role_method", "assume_role_kwargs", "profile_name")
_NO_CHAINS = ("key_secret_name", "impersonation_chain", "idp_issuer_url")


@dataclass(frozen=True, kw_only=True)
class Access:
    """A client's configuration. `identity`: its credentials in words. The other two have secrets.

    `keys`: a credential that the client uses directly. None if it is in `config` or the machine's.
    """

    identity: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keys: Mapping[str, Any] | None = field(default=None, repr=False)

    # Keeps OB14.
    def configuration(self, service: str, *, with_keys: bool) -> dict[str, Any]:
        """The options for a client that also reads the environment. `with_keys`: with the keys.

        Raises TerminalError if the client would use other credentials, from the environment.
        """
        keys = {key: value for key, value in (self.keys or {}).items() if value}
        config = {**_FIXED_OPTIONS.get(service, {}), **self.config, **(keys if with_keys else {})}
        if not keys and not _EXCHANGED & config.keys():
            return config  # With the machine's own credentials, or anonymous.
        config = {"skip_signature": False, **config}
        if keys and not with_keys:
            return config  # The client prefers its credential_provider to the environment.
        for variable, option in _ENVIRONMENT_OPTIONS[service].items():
            if os.environ.get(variable) and option not in config:
                raise TerminalError(
                    f"the environment sets {variable}, which would override {self.identity}. "
                    "Unset it, or remove source.connection or sink.connection from the YAML to "
                    "use the environment"
                )
        return config


@dataclass(frozen=True, kw_only=True)
class StoreLocation:
    """The parts of a store's URL. `prefix`: without a slash at its end; may be empty."""

    service: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> "StoreLocation":
        """Parse a URL. Raises TerminalError if it is not the URL of an object store."""
        if not re.fullmatch(URL, url):
            raise TerminalError("this is not a URL such as s3://BUCKET/PREFIX. Correct it")
        split = urlsplit(url)
        return cls(service=split.scheme, bucket=split.netloc, prefix=split.path.strip("/"))

    @property
    def dataset(self) -> tuple[str, str]:
        """Namespace and name of the dataset, by OpenLineage's rules."""
        return f"{self.service}://{self.bucket}", self.prefix or "/"

    def __str__(self) -> str:
        return f"{self.service}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


# Keeps P12.
def location(place: StoreLocation, connection: str | None) -> Location:
    """The location of a URL, with the storage account of an Azure container if a connection names
    it: two accounts may have containers of one name. semel ignores an account of the environment,
    which another process may not share. A bucket's name is unique in S3 and in Google Cloud; a
    store elsewhere may have several endpoints.
    """
    accounts: list[str] = []
    if place.service == "az" and connection is not None:
        with suppress(TerminalError):  # The client reports the error when it uses the connection.
            config = _access(place, connection, settings.connection(connection)).config
            accounts = [config["account_name"].lower()] if config else []
    return Location(kind=PREFIX, name=str(place), servers=frozenset(accounts))


def open_store(
    place: StoreLocation,
    connection: str | None,
    find: Callable[[str], str | None] = settings.connection,
    idle: int = IDLE_SECONDS,
) -> tuple[Any, str]:
    """The client's store, not yet connected; and its credentials, in words.

    `idle`: seconds from the beginning of a request to its answer, and between the answer's bytes.

    Raises TerminalError if obstore is not installed or the connection is unusable.
    """
    text = _text(place, connection, find)
    access = _access(place, connection, text)
    with require_package("an object store", "objects"):
        return _cached_store(place, connection, text, idle), access.identity


def client_options(
    place: StoreLocation,
    connection: str | None,
    find: Callable[[str], str | None] = settings.connection,
) -> dict[str, str]:
    """Options as text, with secrets, for delta-rs, which uses the same library as obstore.

    Also raises TerminalError if that client would use another credential, from the environment.
    """
    access = _access(place, connection, _text(place, connection, find))
    config = access.configuration(place.service, with_keys=True)
    return {
        "allow_http": "true", "connect_timeout": f"{CONNECT_SECONDS}s",
        **{key: value if isinstance(value, str) else str(value).lower()
           for key, value in config.items()},
    }  # fmt: skip


def _text(
    place: StoreLocation, connection: str | None, find: Callable[[str], str | None]
) -> str | None:
    """The unparsed text of the connection. Returns None if the pipeline does not name one."""
    if connection is None:
        return None
    return connection_text(connection, find, _EXAMPLES[_KINDS[place.service]])


def _access(place: StoreLocation, connection: str | None, text: str | None) -> Access:
    if connection is None or text is None:
        return Access(identity="this machine's own credentials")
    with translate_settings_errors(connection, f"{place.service}://"):
        fields = parse_connection(text)
        require_kind(fields, _KINDS[place.service])
        return _PARSERS[place.service](fields, f"the connection {connection!r}")


def _aws(fields: Fields, identity: str) -> Access:
    extra = fields.extra
    if unsupported := [name for name in _NO_ROLES if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {unsupported[0]}, which semel does not support; set an access key, or "
            "give the machine the role and remove source.connection or sink.connection"
        )
    for_s3 = (extra.get("service_config") or {}).get("s3") or {}
    config = {
        "region": extra.get("region_name"),
        "endpoint": for_s3.get("endpoint_url") or extra.get("endpoint_url"),
    }
    login = fields.login or extra.get("aws_access_key_id")
    password = fields.password or extra.get("aws_secret_access_key")
    if bool(login) != bool(password):
        raise ConnectionSettingsError(
            "it has only one of access key id (login) and secret access key (password)"
        )
    keys = {"access_key_id": login, "secret_access_key": password,
            "token": extra.get("aws_session_token"), "expires_at": None}  # fmt: skip
    return Access(identity=identity, config=_nonempty_texts(config), keys=keys if login else None)


def _google(fields: Fields, identity: str) -> Access:
    # Older versions of Airflow wrote long names.
    prefix = "extra__google_cloud_platform__"
    extra = {key.removeprefix(prefix): value for key, value in fields.extra.items()}
    if unsupported := [name for name in _NO_CHAINS if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {unsupported[0]}, which semel does not support; set keyfile_dict"
        )
    if extra.get("is_anonymous"):
        return Access(identity=identity, config={"skip_signature": True})
    key = extra.get("keyfile_dict") or extra.get("keyfile_json")
    config = {
        "service_account": extra.get("key_path"),
        "service_account_key": json.dumps(key) if isinstance(key, dict) else key,
    }
    return Access(identity=identity, config=_nonempty_texts(config))


def _azure(fields: Fields, identity: str) -> Access:
    extra = {key.removeprefix("extra__wasb__"): value for key, value in fields.extra.items()}
    if extra.get("connection_string"):
        raise ConnectionSettingsError(
            "its extra has connection_string; set login (account) and password (key) instead"
        )
    tenant, host = extra.get("tenant_id"), fields.host or ""
    match = re.match(r"(?:https://)?([a-z0-9]+)(?:\.|$)", host)
    account = (match and match[1]) if tenant else fields.login or (match and match[1])
    config = {
        "account_name": account,
        "endpoint": host.rstrip("/") if host.startswith("http") else None,
        **({"tenant_id": tenant, "client_id": fields.login, "client_secret": fields.password}
           if tenant else {}),
    }  # fmt: skip
    if not account:
        raise ConnectionSettingsError("it lacks the storage account; set it as login")
    keys = _nonempty_texts({"sas_token": extra.get("sas_token")})
    keys = keys or _nonempty_texts({"access_key": fields.password})
    return Access(
        identity=identity, config=_nonempty_texts(config),
        keys={**keys, "expires_at": None} if keys and not tenant else None,
    )  # fmt: skip


_PARSERS = {"s3": _aws, "gs": _google, "az": _azure}


def _nonempty_texts(config: Mapping[str, Any]) -> dict[str, str]:
    for key, value in config.items():
        if value is not None and not isinstance(value, str):
            raise ConnectionSettingsError(f"{key} is not text")
    return {key: value for key, value in config.items() if value}


@lru_cache(maxsize=STORES_KEPT)
def _cached_store(place: StoreLocation, connection: str | None, text: str | None, idle: int) -> Any:
    """A store, by the text of a connection. Raises TerminalError if the client refuses it."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    access = _access(place, connection, text)
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[place.service]
    config = access.configuration(place.service, with_keys=False)
    if access.keys is not None:
        # Otherwise the client would combine these keys with a session token of the environment.
        config["credential_provider"] = lambda: access.keys
    try:
        return kind(
            place.bucket,
            prefix=place.prefix or None,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "read_timeout": timedelta(seconds=idle),
                "timeout": timedelta(seconds=WHOLE_SECONDS),
            },
            retry_config={
                "max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=2 * IDLE_SECONDS),
            },
            **config,
        )  # fmt: skip
    except (BaseError, ValueError, OSError) as error:
        raise TerminalError(
            f"the client of {place} does not accept {access.identity} ({type(error).__name__}). "
            "Correct it, or give the machine a role and remove the connection from the YAML"
        ) from None
