"""Parse Airflow connections, written as URIs or JSON, and report faulty ones."""

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel import settings
from semel.errors import MissingPackageError, TerminalError

_TYPE = r"[A-Za-z][A-Za-z0-9_+.-]{0,30}"


def connection_text(connection: str, find: Callable[[str], str | None], example: str) -> str:
    """The text of a connection. Raises TerminalError, which quotes `example`, if it is missing."""
    if text := find(connection):
        return text
    raise TerminalError(
        f"there is no connection {connection!r} here. Create it in Airflow; for the command line "
        f"and Spark's executors export {settings.connection_variable(connection)}="
        f"'{{{example}}}'"
    )


@contextmanager
def require_package(service: str, extra: str) -> Iterator[None]:
    """Turn an ImportError within the block into a MissingPackageError that names semel's extra.

    The message has the extra and the host, because it may come from one of Spark's executors.
    """
    try:
        yield
    except MissingPackageError:  # An inner block has named its own extra.
        raise
    except ImportError as error:
        raise MissingPackageError(
            f"{service} needs a package that {socket.gethostname()} lacks ({error}). "
            f"Install semel[{extra}] there",
            next=f"pip install 'semel[{extra}]'",
        ) from error


@contextmanager
def translate_settings_errors(connection: str, service: str) -> Iterator[None]:
    """Turn errors in a connection's text or fields, within the block, into a TerminalError."""
    try:
        yield
    except (ValueError, AttributeError, TypeError) as error:
        # The messages of other errors might quote a secret of the connection.
        why = str(error) if isinstance(error, ConnectionSettingsError) else type(error).__name__
        if isinstance(error, json.JSONDecodeError):
            why = f"it is not JSON: {error.msg} at character {error.pos}"
        raise TerminalError(
            f"semel cannot use the connection {connection!r} for {service}: {why}. Correct it in "
            f"Airflow, or in {settings.connection_variable(connection)}"
        ) from None


class ConnectionSettingsError(ValueError):
    """A connection has faulty settings. The message MUST NOT quote a secret."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The fields of an Airflow connection. `kind`: its type.

    `schema`: the database; for type http, the scheme (`http` or `https`).
    """

    kind: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None = field(repr=False)
    schema: str | None
    extra: Mapping[str, Any] = field(repr=False)


def parse_connection(text: str) -> Fields:
    """Parse a connection as Airflow writes it. Text that is not JSON counts as a URI: without
    `://`, its `kind` is None.

    Raises ValueError, AttributeError or TypeError if JSON or a port is malformed.
    """
    return _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)


def _from_uri(text: str) -> Fields:
    # If the host is a URL, Airflow writes its scheme after the type: http://https://host.
    nested = re.match(r"(\w+://)(https?://)(.*)", text, re.DOTALL)
    split = urlsplit(nested[1] + nested[3] if nested else text)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    host = unquote(split.hostname or "")
    if nested or "/" in host:  # `hostname` is lower case: a path or a socket must keep its case.
        host_and_path = unquote(re.sub(r":\d*$", "", split.netloc.rpartition("@")[2]))
        host = nested[2] + host_and_path if nested else host_and_path
    return Fields(
        # A URI's scheme cannot contain underscores, so Airflow writes hyphens.
        kind=split.scheme.replace("-", "_") if "://" in text else None,
        host=host,
        port=split.port,
        login=unquote(split.username or ""),
        password=unquote(split.password or ""),
        schema=unquote(split.path[1:]),
        extra=json.loads(query["__extra__"]) if "__extra__" in query else query,
    )


def _from_json(text: str) -> Fields:
    values = json.loads(text)
    extra = values.get("extra") or {}
    return Fields(
        kind=values.get("conn_type"),
        host=values.get("host"),
        port=values.get("port"),
        login=values.get("login"),
        password=values.get("password"),
        schema=values.get("schema"),
        extra=json.loads(extra) if isinstance(extra, str) else extra,
    )


def require_kind(fields: Fields, kind: str) -> None:
    """Raises ConnectionSettingsError if the connection has another type, or lacks one."""
    if str(fields.kind or "").lower() != kind:
        actual = fields.kind if re.fullmatch(_TYPE, str(fields.kind)) else "another one"
        raise ConnectionSettingsError(
            f"its type is {actual}, not {kind}" if fields.kind else f"it has no type; set {kind}"
        )
