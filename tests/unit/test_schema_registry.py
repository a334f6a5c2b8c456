"""A Schema Registry: how it is declared and reached, and what each of its answers means."""

import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import Connection

from fixtures.batches.specs import CLICKS
from fixtures.kafka.certificates import Authority
from fixtures.kafka.registry import Answers, answering
from fixtures.postgres.server import free_port
from semel.clients.kafka.registry import RegisteredSchema, Registry, registry_settings
from semel.errors import SemelError, SpecError, TerminalError, UnavailableError
from semel.model.reasons import Reason
from semel.pipeline.spec import Spec
from semel.sources.kafka.avro import Avro

PASSWORD = "pa55/w0rd: @é%&"
VARIABLE = "AIRFLOW_CONN_SCHEMAS"
TOLD_SECONDS_MAX = 10
VALUE = b"\0\0\0\0\7\2a"


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answering() as made:
        yield made


def asked(declared: str) -> RegisteredSchema | None:
    registry = Registry(declared=declared)
    with registry.client() as client:
        return registry.find(client, 7)


def refused(kind: type[SemelError], declared: str) -> str:
    """What an operator is told, in time, without the password; and never a verdict on a value."""
    began = time.monotonic()
    with pytest.raises(SemelError) as caught:
        Avro(Registry(declared=declared), "t/0").texts([VALUE])
    assert time.monotonic() - began < TOLD_SECONDS_MAX
    assert type(caught.value) is kind, caught.value
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("fields", "extra", "url"), [
    ({"host": "https://schemas:8081/Apis/v7"}, {}, "https://schemas:8081/Apis/v7"),
    ({"host": "https://schemas", "port": 8081}, {}, "https://schemas:8081"),
    ({"host": "schemas", "port": 8081}, {}, "http://schemas:8081"),
    ({"host": "schemas", "schema": "https"}, {}, "https://schemas"),
    ({"host": "schemas", "port": 8081, "schema": "https"}, {}, "https://schemas:8081"),
    ({"host": "https://schemas:1/p"}, {"a": {"b": 1}}, "https://schemas:1/p"),
    ({"host": "other"}, {"url": "http://one:1/p,http://two:2"}, "http://one:1/p,http://two:2"),
])  # fmt: skip
def test_a_connection_as_airflow_writes_it(
    fields: dict[str, Any], extra: dict[str, Any], url: str
) -> None:
    """Of type http: its URL from host, schema and port, or from its extra; its login; ssl.*, and no
    other setting. As a URI or JSON, its extra as text or as an object."""
    extra = {"ssl.ca.location": "/etc/ca.pem", "Accept": "text/plain"} | extra
    fields = {"conn_type": "http", "login": "semel", "password": PASSWORD, **fields}
    wanted = {
        "url": url, "basic.auth.user.info": f"semel:{PASSWORD}", "ssl.ca.location": "/etc/ca.pem"
    }  # fmt: skip
    for text in (
        Connection(conn_id="s", **fields, extra=json.dumps(extra)).get_uri(),
        json.dumps(fields | {"extra": extra}),
        json.dumps(fields | {"extra": json.dumps(extra)}),
    ):
        assert registry_settings("s", lambda _, text=text: text) == wanted
    assert registry_settings("http://one:1") == {"url": "http://one:1"}


@pytest.mark.parametrize(("text", "words"), [
    ("", "export AIRFLOW_CONN_SCHEMAS="),
    ("{", "it is not JSON"),
    ('{"conn_type": "kafka", "host": "a"}', "its type is kafka, not http"),
    ('{"conn_type": "http"}', "it has no host"),
    ('{"conn_type": "http", "extra": {"url": "ftp://a"}}', "neither http:// nor https://"),
    ('{"conn_type": "http", "extra": {"url": "http://u:secret@a"}}', "its URL has a login"),
    ('{"conn_type": "http", "host": "a", "extra": {"ssl.x": ["secret"]}}', "neither text nor"),
    ('{"conn_type": "http", "host": "a", "extra": {"ssl.x": "secret"}}', "fit together"),
    ('{"conn_type": "http", "host": "a", "extra": {"ssl.ca.location": "/no/secret"}}', "ssl.ca."),
    ('{"conn_type": "http", "host": "a", "extra": {"ssl.key.password": "secret"}}', "ssl.key."),
])  # fmt: skip
def test_connections_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    """What is wrong is said, without a setting's value."""
    monkeypatch.setenv(VARIABLE, text)
    said = refused(TerminalError, "schemas")
    assert words in said and "secret" not in said


# Attacks KS6.
@pytest.mark.parametrize(("status", "body", "kind", "words"), [
    (404, b"not found", TerminalError, "does not answer as a Schema Registry (HTTP 404)"),
    (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', TerminalError, "HTTP 404"),
    (200, b"<html>hello</html>", TerminalError, "Correct its URL"),
    (200, b"[]", TerminalError, "Correct its URL"),
    (200, b"{}", TerminalError, "Correct its URL"),
    (200, b"", TerminalError, "Correct its URL"),
    (302, b"", TerminalError, "Correct its URL"),
    (400, b"{}", TerminalError, "Correct its URL"),
    (401, b'{"error_code": 401, "message": "secret"}', TerminalError, "refuses the login"),
    (403, b'{"error_code": 40301}', TerminalError, "or its right to read schemas"),
    (429, b"{}", UnavailableError, "HTTP 429"),
    (500, b'{"error_code": 50001}', UnavailableError, "HTTP 500"),
    (502, b"<html>", UnavailableError, "HTTP 502"),
    (503, b"", UnavailableError, "Check that it runs"),
])  # fmt: skip
def test_answers_that_are_no_verdict(
    answers: Answers, status: int, body: bytes, kind: type[SemelError], words: str
) -> None:
    """Whatever is wrong with a registry, no value becomes a dead letter by it."""
    answers.status, answers.body = status, body
    said = refused(kind, answers.url)
    assert words in said and answers.url in said and "secret" not in said


# Attacks KS6.
def test_a_registry_that_is_away(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens, a host that nobody knows, one that never answers, one of two: it may come;
    with two addresses it is asked at the other one."""
    away = f"http://127.0.0.1:{free_port()}"
    assert "does not answer" in refused(UnavailableError, away)
    assert "does not answer" in refused(UnavailableError, "http://schemas.nowhere.invalid")
    monkeypatch.setattr("semel.clients.kafka.registry.ANSWER_SECONDS", 0.5)  # 8 otherwise, as of a cluster.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "does not answer (ReadTimeout)" in refused(UnavailableError, url)
    text = json.dumps({"conn_type": "http", "extra": {"url": f"{away},{answers.url}"}})
    monkeypatch.setenv(VARIABLE, text)
    assert asked("schemas") is None


# Attacks KS6.
def test_an_answer_that_is_a_verdict(answers: Answers) -> None:
    """A registry that has no such schema says so in Confluent's way; it is asked once for all
    values of an id. What it has is of another kind, or no schema: that is no fault of its state."""
    values = [VALUE, VALUE + b"b", None, VALUE]

    def verdict() -> tuple[str, str]:
        avro = Avro(Registry(declared=answers.url), "t/0")
        texts, faults = avro.texts(values)
        avro.close()
        assert texts == [b""] * 4 and faults.keys() == {0, 1, 3}
        [found] = set(faults.values())
        return found

    said = f"the Schema Registry at {answers.url} has no schema 7"
    assert verdict() == (Reason.unknown_schema, said)
    assert len(answers.asked) == 1 and answers.asked[0]["path"] == "/schemas/ids/7"
    answers.status, answers.body = 200, b'{"schema": "{}", "schemaType": "PROTOBUF"}'
    assert verdict() == (Reason.malformed, "expected Avro, found schema 7, which is PROTOBUF")
    answers.body = b'{"schema": "{}"}'
    assert verdict()[0] == Reason.malformed
    answers.body = json.dumps({"schema": '"string"'}).encode()
    texts, faults = Avro(Registry(declared=answers.url), "t/0").texts([VALUE])
    assert texts == [b'"a"'] and not faults


@pytest.mark.parametrize("package", ["fastavro", "confluent_kafka.schema_registry"])
def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Which extra brings it is said."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TerminalError) as caught:
        Avro(Registry(declared="http://schemas"), "t/0").texts([VALUE])
    assert caught.value.next == "pip install 'semel[avro]'"


def test_its_login(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent, and neither told nor shown."""
    fields = {"conn_type": "http", "host": answers.url, "login": "semel", "password": PASSWORD}
    monkeypatch.setenv(VARIABLE, json.dumps(fields))
    answers.status = 401
    assert "refuses the login" in refused(TerminalError, "schemas")
    assert answers.asked[0]["Authorization"].startswith("Basic ")
    assert PASSWORD not in repr(Registry(declared="schemas")) + str(Registry(declared="schemas"))


def test_tokens(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gives them is away: it may come. Its secret is not told."""
    own = {
        "credentials.source": "OAUTHBEARER", "client.id": "semel", "client.secret": PASSWORD,
        "scope": "schemas", "issuer.endpoint.url": f"http://127.0.0.1:{free_port()}/token",
        "logical.cluster": "one", "identity.pool.id": "two",
    }  # fmt: skip
    extra = {f"bearer.auth.{name}": value for name, value in own.items()}
    fields = {"conn_type": "http", "host": answers.url, "extra": extra}
    monkeypatch.setenv(VARIABLE, json.dumps(fields))
    assert "correct bearer.auth.*" in refused(UnavailableError, "schemas")
    assert not answers.asked


def test_tls(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its authority's certificate; without it, by another one's, and without a certificate of
    its own where one is asked for, it is said that it is TLS."""
    server = authority.sign("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(server.certificate, server.key)

    def connect(**settings: str) -> None:
        extra = {name.replace("_", "."): value for name, value in settings.items()}
        fields = {"conn_type": "http", "host": answers.url, "extra": extra}
        monkeypatch.setenv(VARIABLE, json.dumps(fields))

    with answering(context) as answers:
        connect()
        assert "do not agree on TLS" in refused(TerminalError, "schemas")
        connect(ssl_ca_location=str(stranger.certificate))
        assert "do not agree on TLS" in refused(TerminalError, "schemas")
        connect(ssl_ca_location=str(authority.certificate))
        assert asked("schemas") is None
        context.verify_mode = ssl.CERT_REQUIRED
        assert "do not agree on TLS" in refused(TerminalError, "schemas")
        own = authority.sign("reader")
        connect(
            ssl_ca_location=str(authority.certificate),
            ssl_certificate_location=str(own.certificate), ssl_key_location=str(own.key),
        )  # fmt: skip
        assert asked("schemas") is None


@pytest.mark.parametrize(("source", "words"), [
    ({"value": "avro"}, "source.registry: is missing"),
    ({"value": "json", "registry": "schemas"}, "source.registry: does not apply to value: json"),
    ({"value": "avro", "registry": "http://u:s3cret@schemas"}, "For a login or several URLs, use a connection"),
    ({"value": "avro", "registry": "schemas:8081"}, "source.registry: is neither the name"),
    ({"value": "avro", "registry": "http://a,http://b"}, "source.registry: is neither the name"),
    ({"value": "avro", "registry": "schemas", "csv": {"delimiter": ";"}}, "source.csv"),
])  # fmt: skip
def test_declarations_that_are_refused(source: dict[str, Any], words: str) -> None:
    """Each with its key; a login in a URL would be one in a file that everybody reads."""
    plain = {"type": "kafka", "bootstrap_servers": "a:1", "topics": ["t"]}
    schema = CLICKS["source"]["schema"]
    with pytest.raises(SpecError, match=words) as caught:
        Spec.from_json(CLICKS | {"source": {**plain, "schema": schema, **source}})
    assert "s3cret" not in str(caught.value)
