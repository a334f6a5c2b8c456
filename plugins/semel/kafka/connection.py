"""How a cluster is reached: the settings of librdkafka, from an Airflow connection or an address.

The connection is looked up in the process that uses it, a task's too, so no secret travels.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel import settings
from semel.errors import TerminalError

_SERVERS = "bootstrap.servers"
_TAKEN = ("sasl.", "ssl.", "enable.ssl.", "socket.", "broker.address.")
_TAKEN_TOO = {_SERVERS, "security.protocol", "client.dns.lookup", "client.rack"}
"""The settings that say how a cluster is reached. Airflow's own hook keeps others there too (a
group, where to start): these are semel's business, and are passed over."""


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
    text = find(connection)
    variable = settings.connection_variable(connection)
    if not text:
        raise TerminalError(
            f"there is no connection {connection!r} here; make it in Airflow, and for the command "
            f"line and for Spark's executors export {variable}, as "
            """'{"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}}'"""
        )
    try:
        found = _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
        if not found.get(_SERVERS):
            raise _Unusable(f"it names no {_SERVERS}")
        return found
    except (ValueError, AttributeError, TypeError) as error:
        # The words of other errors might quote the connection.
        why = error if isinstance(error, _Unusable) else type(error).__name__
        raise TerminalError(
            f"the connection {connection!r} cannot be used for Kafka ({why}); correct it in "
            f"Airflow, or in {variable}"
        ) from None


class _Unusable(ValueError):
    """What is wrong, in words that quote nothing."""


def _from_uri(text: str) -> dict[str, Any]:
    split = urlsplit(text)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    host = unquote(split.hostname or "")
    return _config(
        split.scheme if "://" in text else None, host, split.port, unquote(split.username or ""),
        unquote(split.password or ""), extra,
    )  # fmt: skip


def _from_json(text: str) -> dict[str, Any]:
    plain = json.loads(text)
    extra = plain.get("extra") or {}
    return _config(
        plain.get("conn_type"), plain.get("host"), plain.get("port"), plain.get("login"),
        plain.get("password"), json.loads(extra) if isinstance(extra, str) else extra,
    )  # fmt: skip


def _config(
    kind: str | None,
    host: str | None,
    port: int | None,
    login: str | None,
    password: str | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a connection: those of its extra first, as Airflow's own hook has them."""
    if str(kind or "").lower() != "kafka":
        named = kind if re.fullmatch(_TYPE, str(kind)) else "another one"
        raise _Unusable(f"its type is {named}, and not kafka" if kind else "it has no type")
    fields = {
        _SERVERS: f"{host}:{port or 9092}" if host else None,
        "sasl.username": login,
        "sasl.password": password,
        **{k: v for k, v in extra.items() if k in _TAKEN_TOO or k.startswith(_TAKEN)},
    }
    for key, value in fields.items():
        if value is not None and not isinstance(value, str | int | float):
            raise _Unusable(f"{key!r} is neither text nor a number")
        if not _plain(f"{key}{value}"):
            raise _Unusable("a setting holds a character that no setting can hold")
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
