"""How a cluster is reached: the settings of librdkafka, from an Airflow connection or an address.

The connection is looked up in the process that uses it, a task's too, so no secret travels.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel import settings
from semel.errors import TerminalError

_SERVERS = "bootstrap.servers"
_TAKEN = ("sasl.", "ssl.", "enable.ssl.", "socket.", "broker.address.")
_TAKEN_TOO = {_SERVERS, "security.protocol", "client.dns.lookup", "client.rack"}
"""The settings that say how a cluster is reached. Airflow's own hook keeps others there too (a
group, where to start): these are semel's business, and are passed over."""

_EXAMPLE = '"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}'


def config_of(
    connection: str | None,
    servers: str | None,
    find: Callable[[str], str | None] = settings.connection,
) -> dict[str, Any]:
    """What librdkafka needs to reach a cluster, secrets included: it is never shown.

    `connection`: the name of an Airflow connection; else `servers`, as `host:port,host:port`.
    `find` gives a connection as a URI or JSON, as Airflow writes it, or None.
    TerminalError: there is no such connection, or it says nothing that can be used.
    """
    if connection is None:
        return {_SERVERS: servers}
    text = text_of(connection, find, _EXAMPLE)
    with usable(connection, "Kafka"):
        found = _config(parsed(text))
        if not found.get(_SERVERS):
            raise Unusable(f"it names no {_SERVERS}")
        if not isinstance(found[_SERVERS], str):
            raise Unusable(f"{_SERVERS} is no text such as host:9092")
        return found


def text_of(connection: str, find: Callable[[str], str | None], example: str) -> str:
    """A connection as it is written. TerminalError: there is none; `example`: what one is like."""
    if text := find(connection):
        return text
    raise TerminalError(
        f"there is no connection {connection!r} here; make it in Airflow, and for the command "
        f"line and for Spark's executors export {settings.connection_variable(connection)}, as "
        f"'{{{example}}}'"
    )


@contextmanager
def usable(connection: str, what: str) -> Iterator[None]:
    """What is found to be wrong with a connection within the block, as a TerminalError."""
    try:
        yield
    except (ValueError, AttributeError, TypeError) as error:
        # The words of other errors might quote the connection.
        why = error if isinstance(error, Unusable) else type(error).__name__
        raise TerminalError(
            f"the connection {connection!r} cannot be used for {what} ({why}); correct it in "
            f"Airflow, or in {settings.connection_variable(connection)}"
        ) from None


class Unusable(ValueError):
    """What is wrong, in words that quote nothing."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """An Airflow connection. `schema` is what Airflow calls so: of type http, `http` or `https`."""

    kind: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None = field(repr=False)
    schema: str | None
    extra: Mapping[str, Any] = field(repr=False)


def parsed(text: str) -> Fields:
    """A connection as Airflow writes it, as a URI or JSON. ValueError and others: it is neither."""
    return _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)


def _from_uri(text: str) -> Fields:
    # Of a host that is a URL, Airflow writes how it begins behind the type: http://https://host.
    twice = re.match(r"(\w+://)(https?://)(.*)", text, re.DOTALL)
    split = urlsplit(twice[1] + twice[3] if twice else text)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    host = unquote(split.hostname or "")
    if twice:  # What is of its path keeps its case.
        host = twice[2] + unquote(re.sub(r":\d+$", "", split.netloc.rpartition("@")[2]))
    return Fields(
        kind=split.scheme if "://" in text else None,
        host=host,
        port=split.port,
        login=unquote(split.username or ""),
        password=unquote(split.password or ""),
        schema=unquote(split.path[1:]),
        extra=json.loads(query["__extra__"]) if "__extra__" in query else query,
    )


def _from_json(text: str) -> Fields:
    plain = json.loads(text)
    extra = plain.get("extra") or {}
    return Fields(
        kind=plain.get("conn_type"),
        host=plain.get("host"),
        port=plain.get("port"),
        login=plain.get("login"),
        password=plain.get("password"),
        schema=plain.get("schema"),
        extra=json.loads(extra) if isinstance(extra, str) else extra,
    )


def require_kind(found: Fields, kind: str) -> None:
    """Unusable: a connection is of another type."""
    if str(found.kind or "").lower() != kind:
        named = found.kind if re.fullmatch(_TYPE, str(found.kind)) else "another one"
        raise Unusable(
            f"its type is {named}, and not {kind}" if found.kind else "it has no type"
        )


def _config(found: Fields) -> dict[str, Any]:
    """Settings from the fields: those of the extra first, as Airflow's own hook has them."""
    require_kind(found, "kafka")
    fields = {
        _SERVERS: f"{found.host}:{found.port or 9092}" if found.host else None,
        "sasl.username": found.login,
        "sasl.password": found.password,
        **{k: v for k, v in found.extra.items() if k in _TAKEN_TOO or k.startswith(_TAKEN)},
    }
    return plain_settings(fields)


def plain_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that are not empty. Unusable: one is no text, number or truth value."""
    for key, value in fields.items():
        if value is not None and not isinstance(value, str | int | float):
            raise Unusable(f"{key!r} is neither text nor a number")
        if not _plain(f"{key}{value}"):
            raise Unusable("a setting holds a character that no setting can hold")
    return {key: value for key, value in fields.items() if value not in (None, "")}


_TYPE = r"[A-Za-z][A-Za-z0-9_+.-]{0,30}"

_OPEN = {*_TAKEN_TOO, "sasl.mechanism", "sasl.mechanisms", "sasl.username"}
"""Settings that may be told; what a file's path says may be too."""


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """Text of the client's without any value of a setting that might be a secret.

    Also a value that was put at the wrong setting is left out, where the client quotes it.
    """
    text = re.sub(r'value ".*?" for', "value for", text)
    secrets = (
        str(v) for k, v in config.items() if k not in _OPEN and not k.endswith(".location")
    )
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return text


def _plain(text: str) -> bool:
    """Whether librdkafka's C strings can hold it."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def servers_of(config: Mapping[str, Any]) -> str:
    """The addresses of a cluster, in one order however they were written."""
    return ",".join(sorted(part.strip().lower() for part in config[_SERVERS].split(",")))
