"""How a store of objects is reached: which service a URL is of, and by whose credentials.

The credentials are those of an Airflow connection, as Airflow's own providers read it, or the
machine's own. They are looked up in the process that uses them, so no secret travels.
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
    installed,
    parsed,
    require_kind,
    text_of,
    usable,
)
from semel.declare.place import PREFIX, Location
from semel.errors import TerminalError

URL = r"^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/[^\s?#@]*)?$"
"""s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."""


def checked_url(found: object) -> object:
    """What is no such URL is a ValueError in words of its own: who puts a login into a URL is not
    to read it in a log.
    """
    if isinstance(found, str) and not re.fullmatch(URL, found):
        raise ValueError(
            "is no URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix;"
            " a login belongs in a connection"
        )
    if isinstance(found, str) and {".", "..", ""} & {*found.rstrip("/").split("/")[3:]}:
        raise ValueError("has an empty part or one of dots; write the prefix without")
    return found


CONNECT_SECONDS, IDLE_SECONDS, TRIES = 2, 3, 2
"""Bounds of one call, which is tried twice: a store that is away is told of in ten seconds."""

UPLOAD_SECONDS = 600
"""The same for the answer to an upload, which comes once all of it was sent: 512 MB at 1 MB/s."""

WHOLE_SECONDS = 1_800
"""For the body of one answer, of which bytes keep coming."""

STORES_KEPT = 8
"""Stores that a process keeps open: their connections are used again."""

_EXAMPLES = {
    "aws": '"conn_type": "aws", "login": "access key id", "password": "secret access key", '
    '"extra": {"region_name": "eu-west-1"}',
    "google_cloud_platform": '"conn_type": "google_cloud_platform", '
    '"extra": {"key_path": "/path/to/key.json"}',
    "wasb": '"conn_type": "wasb", "login": "storage account", "password": "its key"',
}
_KINDS = {"s3": "aws", "gs": "google_cloud_platform", "az": "wasb"}
_STRONGER: Mapping[str, Mapping[str, str]] = {
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
"""Variables of credentials that a client takes before others, unless it is told this option."""

_ALWAYS: Mapping[str, Mapping[str, str]] = {"s3": {"conditional_put": "etag"}}
"""Options that a variable of the environment (AWS_CONDITIONAL_PUT) must not change."""

_FETCHED_BY = frozenset({"service_account", "service_account_key", "tenant_id"})
"""Of what is told, what is a credential by which others are fetched."""

_NO_ROLES = ("role_arn", "assume_role_method", "assume_role_kwargs", "profile_name")
_NO_CHAINS = ("key_secret_name", "impersonation_chain", "idp_issuer_url")


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the client is told. `who`: whose credentials they are. `config` and `keys` have secrets.

    `keys`: a credential that is used as it is; None: as `config` and the machine have it.
    """

    who: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keys: Mapping[str, Any] | None = field(default=None, repr=False)

    # Keeps OB14.
    def told(self, service: str, *, with_keys: bool) -> dict[str, Any]:
        """The configuration of a client that reads the environment too. `with_keys`: it gets the
        keys by it as well. TerminalError: it would take other credentials from the environment.
        """
        keys = {key: value for key, value in (self.keys or {}).items() if value}
        told = {**_ALWAYS.get(service, {}), **self.config, **(keys if with_keys else {})}
        if not keys and not _FETCHED_BY & told.keys():
            return told  # The machine's own are meant, or none.
        told = {"skip_signature": False, **told}
        if keys and not with_keys:
            return told  # What provides them comes before all.
        for variable, option in _STRONGER[service].items():
            if os.environ.get(variable) and option not in told:
                raise TerminalError(
                    f"{variable} is set here, which is of other credentials than {self.who}: unset "
                    "it, or leave source.connection or sink.connection out"
                )
        return told


@dataclass(frozen=True, kw_only=True)
class StoreLocation:
    """A store as a URL names it. `prefix`: without a slash at its end; may be empty."""

    service: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> "StoreLocation":
        """TerminalError: the URL is none of an object store."""
        if not re.fullmatch(URL, url):
            raise TerminalError("the URL is none such as s3://bucket/prefix; correct it")
        split = urlsplit(url)
        return cls(service=split.scheme, bucket=split.netloc, prefix=split.path.strip("/"))

    @property
    def dataset(self) -> tuple[str, str]:
        """Namespace and name by OpenLineage's rules."""
        return f"{self.service}://{self.bucket}", self.prefix or "/"

    def __str__(self) -> str:
        return f"{self.service}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


# Keeps P12.
def location(place: StoreLocation, connection: str | None) -> Location:
    """The place of a URL: of a container in the storage account that its connection names, because
    another account may have a container of that name. An account of the environment is that of
    another process, too, so it is not known. A bucket has its name once in S3 and in Google Cloud,
    and a store elsewhere may have several endpoints.
    """
    accounts: list[str] = []
    if place.service == "az" and connection is not None:
        with suppress(TerminalError):  # The client says what is wrong with it.
            config = _access(place, connection, settings.connection(connection)).config
            accounts = [config["account_name"].lower()] if config else []
    return Location(kind=PREFIX, name=str(place), servers=frozenset(accounts))


def opened(
    place: StoreLocation,
    connection: str | None,
    find: Callable[[str], str | None] = settings.connection,
    idle: int = IDLE_SECONDS,
) -> tuple[Any, str]:
    """The client's store, which is not asked anything yet; and whose credentials it has, in words.

    `idle`: seconds from the beginning of a request to its answer, and between the answer's bytes.

    TerminalError: obstore is not installed, or the connection cannot be used.
    """
    text = _text(place, connection, find)
    access = _access(place, connection, text)
    with installed("an object store", "objects"):
        return _made(place, connection, text, idle), access.who


def options(
    place: StoreLocation,
    connection: str | None,
    find: Callable[[str], str | None] = settings.connection,
) -> dict[str, str]:
    """The same for another client of the same library, which takes it as texts. They have secrets.

    TerminalError also: it would take another credential from the environment.
    """
    access = _access(place, connection, _text(place, connection, find))
    told = access.told(place.service, with_keys=True)
    return {
        "allow_http": "true", "connect_timeout": f"{CONNECT_SECONDS}s",
        **{key: value if isinstance(value, str) else str(value).lower()
           for key, value in told.items()},
    }  # fmt: skip


def _text(
    place: StoreLocation, connection: str | None, find: Callable[[str], str | None]
) -> str | None:
    """A connection as it is written, if there is to be one."""
    if connection is None:
        return None
    return text_of(connection, find, _EXAMPLES[_KINDS[place.service]])


def _access(place: StoreLocation, connection: str | None, text: str | None) -> Access:
    if connection is None or text is None:
        return Access(who="this machine's own credentials")
    with usable(connection, f"{place.service}://"):
        found = parsed(text)
        require_kind(found, _KINDS[place.service])
        return _OF[place.service](found, f"the connection {connection!r}")


def _aws(found: Fields, who: str) -> Access:
    extra = found.extra
    if named := [name for name in _NO_ROLES if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {named[0]}, which semel does not take; give the machine the role and "
            "leave source.connection or sink.connection out, or give an access key"
        )
    ours = (extra.get("service_config") or {}).get("s3") or {}
    config = {
        "region": extra.get("region_name"),
        "endpoint": ours.get("endpoint_url") or extra.get("endpoint_url"),
    }
    login = found.login or extra.get("aws_access_key_id")
    password = found.password or extra.get("aws_secret_access_key")
    if bool(login) != bool(password):
        raise ConnectionSettingsError(
            "it has one of access key id (login) and secret access key (password)"
        )
    keys = {"access_key_id": login, "secret_access_key": password,
            "token": extra.get("aws_session_token"), "expires_at": None}  # fmt: skip
    return Access(who=who, config=_texts(config), keys=keys if login else None)


def _google(found: Fields, who: str) -> Access:
    # Older versions of Airflow wrote long names.
    long = "extra__google_cloud_platform__"
    extra = {key.removeprefix(long): value for key, value in found.extra.items()}
    if named := [name for name in _NO_CHAINS if extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {named[0]}, which semel does not take; give a key"
        )
    if extra.get("is_anonymous"):
        return Access(who=who, config={"skip_signature": True})
    key = extra.get("keyfile_dict") or extra.get("keyfile_json")
    config = {
        "service_account": extra.get("key_path"),
        "service_account_key": json.dumps(key) if isinstance(key, dict) else key,
    }
    return Access(who=who, config=_texts(config))


def _azure(found: Fields, who: str) -> Access:
    extra = {key.removeprefix("extra__wasb__"): value for key, value in found.extra.items()}
    if extra.get("connection_string"):
        raise ConnectionSettingsError(
            "its extra has connection_string; give login (account) and password (key)"
        )
    tenant, host = extra.get("tenant_id"), found.host or ""
    named = re.match(r"(?:https://)?([a-z0-9]+)(?:\.|$)", host)
    account = (named and named[1]) if tenant else found.login or (named and named[1])
    config = {
        "account_name": account,
        "endpoint": host.rstrip("/") if host.startswith("http") else None,
        **({"tenant_id": tenant, "client_id": found.login, "client_secret": found.password}
           if tenant else {}),
    }  # fmt: skip
    if not account:
        raise ConnectionSettingsError("it names no storage account: give it as login")
    keys = _texts({"sas_token": extra.get("sas_token")}) or _texts({"access_key": found.password})
    return Access(
        who=who, config=_texts(config),
        keys={**keys, "expires_at": None} if keys and not tenant else None,
    )  # fmt: skip


_OF = {"s3": _aws, "gs": _google, "az": _azure}


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    for key, value in config.items():
        if value is not None and not isinstance(value, str):
            raise ConnectionSettingsError(f"{key} is no text")
    return {key: value for key, value in config.items() if value}


@lru_cache(maxsize=STORES_KEPT)
def _made(place: StoreLocation, connection: str | None, text: str | None, idle: int) -> Any:
    """A store by a connection as it is written. TerminalError: the client has no use for it."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    access = _access(place, connection, text)
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[place.service]
    config = access.told(place.service, with_keys=False)
    if access.keys is not None:
        # What the environment says of keys is of somebody else's: a session token too.
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
            f"the client of {place} has no use for {access.who} ({type(error).__name__}); correct "
            "it, or give the machine a role and leave the connection out"
        ) from None
