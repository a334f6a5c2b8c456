"""How a cluster is reached: the settings of librdkafka, from an Airflow connection or an address.

The connection is looked up in the process that uses it, a task's too, so no secret travels.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    parsed,
    require_kind,
    text_of,
    usable,
)
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
            raise ConnectionSettingsError(f"it names no {_SERVERS}")
        if not isinstance(found[_SERVERS], str):
            raise ConnectionSettingsError(f"{_SERVERS} is no text such as host:9092")
        return found


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
            raise ConnectionSettingsError(f"{key!r} is neither text nor a number")
        if not _plain(f"{key}{value}"):
            raise ConnectionSettingsError("a setting holds a character that no setting can hold")
    return {key: value for key, value in fields.items() if value not in (None, "")}


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


def brokers(connection: str | None, servers: str | None) -> frozenset[str]:
    """The names by which a cluster is known here: its brokers, and the connection."""
    known = {f"connection {connection}"} if connection else set()
    with suppress(TerminalError):  # Another process may know the connection.
        listed = servers_of(config_of(connection, servers)).split(",")
        known |= {re.sub(r"^localhost:", "127.0.0.1:", broker) for broker in listed}
    return frozenset(known)
