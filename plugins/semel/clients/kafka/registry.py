"""Read schemas from a Schema Registry by their ids, and translate its errors.

The client is confluent-kafka's, for Confluent's REST API, of the extra `semel[avro]`. Functions
import it where they use it.
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
    connection_text,
    parse_connection,
    require_kind,
    require_package,
    translate_settings_errors,
)
from semel.clients.kafka.cluster import ANSWER_SECONDS
from semel.clients.kafka.connection import check_settings
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

_USED_PREFIXES = ("ssl.", "basic.auth.user.info", "bearer.auth.")
_EXAMPLE = '"conn_type": "http", "host": "https://schemas:8081", "login": "semel", "password": ""'

_TRIES = 2
"""How often the client sends a request that fails with a passing error."""

_WAIT_MS = 200
"""Pause between two tries."""

_UNKNOWN = (40403, 40401, 40402)
"""Confluent's codes for an unknown schema, subject and version, each with HTTP 404. A 404 without
such a code comes from a server that is not a Schema Registry."""

AVRO = "AVRO"


@dataclass(frozen=True, kw_only=True)
class RegisteredSchema:
    """A schema's text, and `references`: the schemas that it uses, each before its user.

    `kind`: AVRO, or another type of the registry.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A Schema Registry, as a pipeline declares it: an Airflow connection, or a URL.

    It does not hold secrets: each process looks the connection up.
    """

    declared: str

    @classmethod
    def of(cls, declared: str | None) -> Self | None:
        """Returns None if the pipeline does not declare a registry."""
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
        """A client for one block. It does not connect before the first request."""
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
            client = registry.SchemaRegistryClient({**config, **waits})
        except (ValueError, TypeError, OSError) as error:
            # The error's text may quote a secret setting.
            raise TerminalError(
                f"semel cannot open {self} ({type(error).__name__}). Check that "
                "ssl.ca.location, ssl.certificate.location and ssl.key.location of its connection "
                "name PEM files, and that its login and bearer.auth.* settings fit together"
            ) from None
        with client:
            yield client

    def find(self, client: "SchemaRegistryClient", number: int) -> RegisteredSchema | None:
        """The schema of an id. Returns None if the registry answers that it does not know the id.

        Raises TerminalError or UnavailableError if the request fails: the id may be valid.
        """
        schema = self._request(lambda: client.get_schema(number))
        if schema is None:
            return None
        references: dict[tuple[str, int], str] = {}
        if not self._collect_references(client, schema.references or (), references):
            return None
        return RegisteredSchema(
            kind=schema.schema_type or AVRO,
            text=schema.schema_str,
            references=tuple(references.values()),
        )

    def _collect_references(
        self,
        client: "SchemaRegistryClient",
        references: "list[SchemaReference]",
        schemas: dict[tuple[str, int], str],
    ) -> bool:
        """Add the schemas of references to `schemas`. Returns False if one does not exist."""
        for reference in references:
            version = reference.subject, reference.version
            if version in schemas:
                continue
            schema = self._request(lambda: client.get_version(*version, deleted=True).schema)
            if schema is None:
                return False
            if not self._collect_references(client, schema.references or (), schemas):
                return False
            schemas[version] = schema.schema_str
        return True

    # Keeps KS6.
    def _request(self, fetch: "Callable[[], Schema]") -> "Schema | None":
        """The schema that a request returns. None if the registry does not have it."""
        registry = _package()
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError

        try:
            schema = fetch()
            if not isinstance(schema.schema_str, str):
                raise ValueError("an answer without a schema")
            return schema
        except registry.SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _UNKNOWN:
                return None
            raise self._status_error(error.http_status_code) from None
        except httpx.RequestError as error:
            raise self._transport_error(error) from None
        except OAuthTokenError:
            raise UnavailableError(
                f"{self}: the token endpoint did not issue a token. Start that server, or "
                "correct bearer.auth.* of its connection"
            ) from None
        except (
            httpx.InvalidURL, ValueError, TypeError, KeyError, AttributeError, RecursionError
        ):  # fmt: skip
            # The server's answer does not have the form of a registry's.
            raise self._status_error(200) from None

    def _status_error(self, status: int) -> SemelError:
        """The error for an HTTP status. It leaves out the answer's text, which may have secrets."""
        if status in (401, 403, 407):
            return TerminalError(
                f"{self} refuses the login or its right to read schemas (HTTP {status}). "
                "Correct login and password of its connection, or grant that user the right"
            )
        if status >= 500 or status in (408, 429):
            return UnavailableError(
                f"{self} fails or is too busy (HTTP {status}). Check that it runs"
            )
        return TerminalError(
            f"{self} does not answer as a Schema Registry (HTTP {status}). Correct its URL, with "
            "the path before /schemas (none for Confluent, /apis/ccompat/v7 for Apicurio)"
        )

    def _transport_error(self, error: Exception) -> SemelError:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None and "EOF" not in str(cause):
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "")
            return TerminalError(
                f"{self} and semel do not agree on TLS ({reason or type(cause).__name__}). "
                "Correct its URL and the certificates (ssl.*) of its connection"
            )
        return UnavailableError(
            f"{self} does not answer ({type(error).__name__}). Start it, or correct its URL"
        )

    def _config(self) -> dict[str, Any]:
        """The settings of its client. They include secrets: never print them."""
        return registry_settings(self.declared)


def registry_settings(
    declared: str, find: Callable[[str], str | None] = settings.connection
) -> dict[str, Any]:
    """The settings of the registry's client, with secrets. Raises TerminalError if the connection
    is missing or unusable.
    """
    if "://" in declared:
        return {"url": declared}
    text = connection_text(declared, find, _EXAMPLE)
    with translate_settings_errors(declared, "a Schema Registry"):
        return _config(parse_connection(text))


def _config(fields: Fields) -> dict[str, Any]:
    require_kind(fields, "http")
    extra: Mapping[str, Any] = fields.extra
    login = f"{fields.login}:{fields.password or ''}" if fields.login else None
    config = check_settings({
        "url": extra.get("url") or _url(fields),
        "basic.auth.user.info": login,
        **{k: v for k, v in extra.items() if k.startswith(_USED_PREFIXES)},
    })  # fmt: skip
    if "url" not in config:
        raise ConnectionSettingsError("it has no host")
    urls = str(config["url"]).split(",")
    if not all(url.strip().startswith(("http://", "https://")) for url in urls):
        raise ConnectionSettingsError("its URL begins with neither http:// nor https://")
    if any("@" in url for url in urls):
        raise ConnectionSettingsError("its URL has a login; move it to the login and password")
    return config


def _url(fields: Fields) -> str | None:
    """The URL of a connection of type http, as Airflow builds it."""
    if not fields.host:
        return None
    base = fields.host if "://" in fields.host else f"{fields.schema or 'http'}://{fields.host}"
    return f"{base}:{fields.port}" if fields.port else base


def _package() -> Any:
    """The package. Raises TerminalError if it is not installed."""
    with require_package("Avro", "avro"):
        import confluent_kafka.schema_registry
        import fastavro  # noqa: F401 - the same extra has it.
    return confluent_kafka.schema_registry


