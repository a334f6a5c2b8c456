"""A Schema Registry: how it is reached, the schema that an id names, and what its errors mean.

The client is confluent-kafka's, which speaks Confluent's REST API; imported only where it is used:
it belongs to the extra `semel[avro]`.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

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
from semel.clients.kafka.cluster import ANSWER_SECONDS
from semel.clients.kafka.connection import plain_settings
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

_TAKEN = ("ssl.", "basic.auth.user.info", "bearer.auth.")
_EXAMPLE = '"conn_type": "http", "host": "https://schemas:8081", "login": "semel", "password": ""'

_TRIES = 2
"""How often a request is made that fails in passing."""

_WAIT_MS = 200
"""Between two tries."""

_UNKNOWN = (40403, 40401, 40402)
"""Confluent's codes for a schema, a subject and a version that are not there, each with HTTP 404.
Without one of these a 404 is of something that is no Schema Registry."""

AVRO = "AVRO"


@dataclass(frozen=True, kw_only=True)
class Written:
    """What an id names: a schema, as text, and those that it refers to, each before its user.

    `kind`: AVRO, or another that the registry has.
    """

    kind: str
    text: str
    refers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A Schema Registry, as a pipeline declares it: an Airflow connection, or a URL.

    It holds no secret: each process that asks looks the connection up.
    """

    declared: str

    @classmethod
    def of(cls, declared: str | None) -> Self | None:
        """The one that is declared, if any is."""
        return None if declared is None else cls(declared=declared)

    def __str__(self) -> str:
        if self._is_url:
            return f"the Schema Registry at {self.declared}"
        return f"the Schema Registry of connection {self.declared!r}"

    @property
    def _is_url(self) -> bool:
        return "://" in self.declared

    @contextmanager
    def client(self) -> Iterator["SchemaRegistryClient"]:
        """A client for the length of a block, which asks nothing by itself; errors of what is asked
        within the block are semel's: see `meaning`."""
        registry = _package()
        config = self._config()
        urls = config["url"].count(",") + 1
        waits = {
            "timeout": ANSWER_SECONDS / (_TRIES * urls),
            "max.retries": _TRIES - 1,
            "retries.wait.ms": _WAIT_MS,
            "retries.max.wait.ms": _WAIT_MS,
        }
        try:
            made = registry.SchemaRegistryClient({**config, **waits})
        except (ValueError, TypeError, OSError) as error:
            # Its words may quote a setting.
            raise TerminalError(
                f"{self} cannot be used: its connection has settings that do not fit together, or "
                f"a file of ssl.* is not there or no certificate ({type(error).__name__}); correct "
                "it"
            ) from None
        with made:
            yield made

    def find(self, client: "SchemaRegistryClient", number: int) -> Written | None:
        """The schema of an id. None: the registry answers, and knows none of it.

        TerminalError, UnavailableError: anything else; that is no verdict on the id.
        """
        asked = self._asked(lambda: client.get_schema(number))
        if asked is None:
            return None
        refers: dict[tuple[str, int], str] = {}
        if not self._refers(client, asked.references or (), refers):
            return None
        return Written(
            kind=asked.schema_type or AVRO, text=asked.schema_str, refers=tuple(refers.values())
        )

    def _refers(
        self,
        client: "SchemaRegistryClient",
        references: "list[SchemaReference]",
        found: dict[tuple[str, int], str],
    ) -> bool:
        """Put what schemas refer to into `found`; whether all of them are there."""
        for one in references:
            place = one.subject, one.version
            if place in found:
                continue
            made = self._asked(lambda: client.get_version(*place, deleted=True).schema)
            if made is None or not self._refers(client, made.references or (), found):
                return False
            found[place] = made.schema_str
        return True

    # Keeps KS6.
    def _asked(self, ask: "Callable[[], Schema]") -> "Schema | None":
        """What a request gives; None: the registry says that it is not there."""
        registry = _package()
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError

        try:
            found = ask()
            if not isinstance(found.schema_str, str):
                raise ValueError("an answer without a schema")
            return found
        except registry.SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _UNKNOWN:
                return None
            raise self._refused(error.http_status_code) from None
        except httpx.RequestError as error:
            raise self._away(error) from None
        except OAuthTokenError:
            raise UnavailableError(
                f"{self} wants a token, and none was to be had; start what gives tokens, or "
                "correct bearer.auth.* of its connection"
            ) from None
        except (
            httpx.InvalidURL, ValueError, TypeError, KeyError, AttributeError, RecursionError
        ):  # fmt: skip
            # It is answered, and the answer has not the form of a registry's.
            raise self._refused(200) from None

    def _refused(self, status: int) -> SemelError:
        """What a status of HTTP says to an operator. The answer's text is not shown: who knows."""
        if status in (401, 403, 407):
            return TerminalError(
                f"{self} refuses the login, or gives it no right to read schemas (HTTP {status}); "
                "correct login and password of its connection, or give that user the right"
            )
        if status >= 500 or status in (408, 429):
            return UnavailableError(
                f"{self} does not answer as it should (HTTP {status}); see to it that it runs"
            )
        return TerminalError(
            f"{self} answers as no Schema Registry does (HTTP {status}); correct its URL, with the "
            "path before /schemas (Confluent's has none, Apicurio's is /apis/ccompat/v7)"
        )

    def _away(self, error: Exception) -> SemelError:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None and "EOF" not in str(cause):
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "")
            return TerminalError(
                f"{self} and this side do not agree on TLS ({reason or type(cause).__name__}); "
                "correct its URL and the certificates (ssl.*) of its connection"
            )
        return UnavailableError(
            f"{self} does not answer ({type(error).__name__}); start it, or correct its URL"
        )

    def _config(self) -> dict[str, Any]:
        """The settings of its client, secrets included: they are never shown."""
        return config_of(self.declared)


def config_of(
    declared: str, find: Callable[[str], str | None] = settings.connection
) -> dict[str, Any]:
    """What the registry's client needs, secrets included.

    TerminalError: there is no such connection, or it says nothing that can be used.
    """
    if "://" in declared:
        return {"url": declared}
    text = text_of(declared, find, _EXAMPLE)
    with usable(declared, "a Schema Registry"):
        return _config(parsed(text))


def _config(found: Fields) -> dict[str, Any]:
    require_kind(found, "http")
    extra: Mapping[str, Any] = found.extra
    login = f"{found.login}:{found.password or ''}" if found.login else None
    fields = plain_settings({
        "url": extra.get("url") or _url(found),
        "basic.auth.user.info": login,
        **{k: v for k, v in extra.items() if k.startswith(_TAKEN)},
    })  # fmt: skip
    if "url" not in fields:
        raise ConnectionSettingsError("it names no host")
    urls = str(fields["url"]).split(",")
    if not all(url.strip().startswith(("http://", "https://")) for url in urls):
        raise ConnectionSettingsError("its URL begins with neither http:// nor https://")
    if any("@" in url for url in urls):
        raise ConnectionSettingsError("its URL holds a login; put it into the login and password")
    return fields


def _url(found: Fields) -> str | None:
    """The URL as Airflow makes it of a connection of type http."""
    if not found.host:
        return None
    base = found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}"
    return f"{base}:{found.port}" if found.port else base


def _package() -> Any:
    """The package. TerminalError: it is not installed here."""
    with installed("Avro", "avro"):
        import confluent_kafka.schema_registry
        import fastavro  # noqa: F401 - the same extra has it.
    return confluent_kafka.schema_registry


