"""The settings of librdkafka for a cluster, from an Airflow connection or addresses.

Each process, also a task's, looks the connection up itself, so semel never sends secrets.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    connection_text,
    parse_connection,
    require_kind,
    translate_settings_errors,
)
from semel.errors import TerminalError

_SERVERS = "bootstrap.servers"
_USED_PREFIXES = ("sasl.", "ssl.", "enable.ssl.", "socket.", "broker.address.")
_USED = {_SERVERS, "security.protocol", "client.dns.lookup", "client.rack"}
"""semel uses these settings of a connection, which concern the network and the login. It ignores
others that Airflow's hook has there (a group, where to start), and sets those itself."""

_EXAMPLE = '"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}'


def cluster_settings(
    connection: str | None,
    servers: str | None,
    find: Callable[[str], str | None] = settings.connection,
) -> dict[str, Any]:
    """The settings with which librdkafka connects. They include secrets: never print them.

    `connection`: the name of an Airflow connection; else `servers`, as `host:port,host:port`.
    `find` returns a connection as a URI or JSON, as Airflow writes it, or None.
    Raises TerminalError if the connection is missing or unusable.
    """
    if connection is None:
        return {_SERVERS: servers}
    text = connection_text(connection, find, _EXAMPLE)
    with translate_settings_errors(connection, "Kafka"):
        config = _config(parse_connection(text))
        if not config.get(_SERVERS):
            raise ConnectionSettingsError(f"it does not set {_SERVERS}")
        if not isinstance(config[_SERVERS], str):
            raise ConnectionSettingsError(f"{_SERVERS} is not text such as host:9092")
        return config


def _config(fields: Fields) -> dict[str, Any]:
    """Settings from the fields. As in Airflow's own hook, the extra overrides host and login."""
    require_kind(fields, "kafka")
    extra = fields.extra.items()
    return check_settings({
        _SERVERS: f"{fields.host}:{fields.port or 9092}" if fields.host else None,
        "sasl.username": fields.login,
        "sasl.password": fields.password,
        **{k: v for k, v in extra if k in _USED or k.startswith(_USED_PREFIXES)},
    })  # fmt: skip


def check_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not empty. Raises ConnectionSettingsError if one is not text, a number
    or a boolean.
    """
    for key, value in config.items():
        if value is not None and not isinstance(value, str | int | float):
            raise ConnectionSettingsError(f"{key!r} is neither text nor a number")
        if not _fits_c_string(f"{key}{value}"):
            raise ConnectionSettingsError("a setting has a NUL character or invalid Unicode")
    return {key: value for key, value in config.items() if value not in (None, "")}


_PUBLIC = {*_USED, "sasl.mechanism", "sasl.mechanisms", "sasl.username"}
"""Settings that messages may quote, as they may quote the path of a file (`*.location`)."""


def remove_secrets(text: str, config: Mapping[str, Any]) -> str:
    """Replace each value of a setting that might be a secret in a message of the client.

    Also cut a value that the client quotes as invalid: a user may have put a password there.
    """
    text = re.sub(r'value ".*?" for', "value for", text)
    secrets = (
        str(v) for k, v in config.items() if k not in _PUBLIC and not k.endswith(".location")
    )
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    return text


def _fits_c_string(text: str) -> bool:
    """True if librdkafka, which is written in C, can represent the text."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def sorted_servers(config: Mapping[str, Any]) -> str:
    """The addresses of a cluster, sorted and in lower case."""
    return ",".join(sorted(part.strip().lower() for part in config[_SERVERS].split(",")))


def cluster_names(connection: str | None, servers: str | None) -> frozenset[str]:
    """Names that identify a cluster: its brokers, and its connection."""
    names = {f"connection {connection}"} if connection else set()
    with suppress(TerminalError):  # Only another process may have the connection.
        brokers = sorted_servers(cluster_settings(connection, servers)).split(",")
        names |= {re.sub(r"^localhost:", "127.0.0.1:", broker) for broker in brokers}
    return frozenset(names)
