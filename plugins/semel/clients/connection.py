"""Airflow connections, as URIs or JSON: which fields one has, and what is wrong with it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel import settings
from semel.errors import TerminalError

_TYPE = r"[A-Za-z][A-Za-z0-9_+.-]{0,30}"


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
def installed(what: str, extra: str) -> Iterator[None]:
    """What cannot be imported within the block, as a TerminalError that names semel's extra."""
    try:
        yield
    except ImportError as error:
        raise TerminalError(
            f"{what} needs a package that is not installed here ({error})",
            next=f"pip install 'semel[{extra}]'",
        ) from error


@contextmanager
def usable(connection: str, what: str) -> Iterator[None]:
    """What is found to be wrong with a connection within the block, as a TerminalError."""
    try:
        yield
    except (ValueError, AttributeError, TypeError) as error:
        # The words of other errors might quote the connection.
        why = str(error) if isinstance(error, ConnectionSettingsError) else type(error).__name__
        if isinstance(error, json.JSONDecodeError):
            why = f"it is no JSON: {error.msg} at character {error.pos}"
        raise TerminalError(
            f"the connection {connection!r} cannot be used for {what} ({why}); correct it in "
            f"Airflow, or in {settings.connection_variable(connection)}"
        ) from None


class ConnectionSettingsError(ValueError):
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
    if twice or "/" in host:  # What is of its path, or of a socket's, keeps its case.
        behind = unquote(re.sub(r":\d*$", "", split.netloc.rpartition("@")[2]))
        host = twice[2] + behind if twice else behind
    return Fields(
        # A URI's scheme has no underscores, so Airflow writes hyphens.
        kind=split.scheme.replace("-", "_") if "://" in text else None,
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
        raise ConnectionSettingsError(
            f"its type is {named}, and not {kind}" if found.kind else "it has no type"
        )
