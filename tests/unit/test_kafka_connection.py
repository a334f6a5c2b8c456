"""A Kafka connection: what Airflow writes is understood, and nothing secret of it is ever said."""

import json
from collections.abc import Callable

import pytest
from airflow.sdk import Connection
from hypothesis import given
from hypothesis import strategies as st

from semel.clients.kafka.cluster import Cluster
from semel.clients.kafka.connection import cluster_settings, remove_secrets, sorted_servers
from semel.errors import SemelError, TerminalError

SECRET = "pa55/w0rd: @é%&"

REACHED = {
    "bootstrap.servers": "one:9092,two:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "ssl.ca.location": "/etc/ca.pem",
}

OWN = {"group.id": "theirs", "auto.offset.reset": "latest", "error_cb": "theirs.function"}
"""What Airflow's own hook keeps in a connection too."""


def config(text: str | None) -> dict[str, object]:
    return cluster_settings("events", None, lambda name: text if name == "events" else None)


def refused(text: str | None) -> str:
    with pytest.raises(TerminalError) as caught:
        config(text)
    return str(caught.value)


def as_uri(made: Connection) -> str:
    return made.get_uri()


def as_json(made: Connection) -> str:
    fields = ("conn_type", "host", "login", "password", "port", "extra")
    return json.dumps({name: getattr(made, name) for name in fields})


def with_extra(made: Connection) -> str:
    return json.dumps(json.loads(as_json(made)) | {"extra": made.extra_dejson})


@pytest.mark.parametrize("written", [as_uri, as_json, with_extra])
def test_a_connection_as_airflow_writes_it(written: Callable[[Connection], str]) -> None:
    """As a URI or JSON, its extra as text or as an object: the same settings, and no others."""
    made = Connection(
        conn_id="events", conn_type="kafka", login="semel", password=SECRET,
        extra=json.dumps(REACHED | OWN),
    )  # fmt: skip
    login = {"sasl.username": "semel", "sasl.password": SECRET}
    assert config(written(made)) == REACHED | login


@pytest.mark.parametrize("written", [as_uri, as_json, with_extra])
def test_host_and_port(written: Callable[[Connection], str]) -> None:
    """They count where the extra names no servers; the extra goes before host and login."""
    plain = Connection(conn_id="events", conn_type="kafka", host="broker", port=9093)
    assert config(written(plain)) == {"bootstrap.servers": "broker:9093"}
    plain = Connection(conn_id="events", conn_type="kafka", host="broker")
    assert config(written(plain)) == {"bootstrap.servers": "broker:9092"}
    extra = json.dumps({"bootstrap.servers": "other:1", "sasl.username": "two", "socket.x": 5})
    both = Connection(
        conn_id="events", conn_type="kafka", host="broker", login="one", extra=extra
    )  # fmt: skip
    found = {"bootstrap.servers": "other:1", "sasl.username": "two", "socket.x": 5}
    assert config(written(both)) == found


def test_addresses_alone() -> None:
    """They need no connection; their order and their case make no other cluster."""
    assert cluster_settings(None, "a:1,b:2") == {"bootstrap.servers": "a:1,b:2"}
    assert sorted_servers({"bootstrap.servers": "B:2, a:1"}) == "a:1,b:2"
    assert str(Cluster(servers="a:1")) == "Kafka at a:1"


@pytest.mark.parametrize("text, why", [
    (None, "there is no connection 'events' here"),
    ("", "there is no connection 'events' here"),
    ("postgresql://u:{s}@host/db", "its type is postgresql, not kafka"),
    ('{"conn_type": "http", "password": "{s}"}', "its type is http, not kafka"),
    ('{"password": "{s}", "host": "a"}', "it has no type"),
    ('{"conn_type": "{s}"}', "its type is another one, not kafka"),
    ('{"conn_type": ["{s}"]}', "its type is another one, not kafka"),
    ("{s}", "it has no type"),
    ("password-{s}:9092", "it has no type"),
    ("kafka://u:{s}@", "does not set bootstrap.servers"),
    ('{"conn_type": "kafka", "password": "{s}"}', "does not set bootstrap.servers"),
    ("kafka://u:{s}@host:port", "ValueError"),
    ("kafka://u:p@[{s}", "ValueError"),
    ("kafka://host?__extra__={s}", "it is not JSON"),
    ('{"conn_type": "kafka", "password": "{s}"', "it is not JSON"),
    ('{"conn_type": "kafka", "host": "h", "extra": "{s}"}', "it is not JSON"),
    ('{"conn_type": "kafka", "host": "h", "extra": ["{s}"]}', "AttributeError"),
    ('{"conn_type": "kafka", "extra": {"bootstrap.servers": ["{s}"]}}', "'bootstrap.servers'"),
    ('{"conn_type": "kafka", "host": "h", "password": {"x": "{s}"}}', "'sasl.password' is neither"),
    ('{"conn_type": "kafka", "host": "h", "password": "{s}\\u0000"}', "a NUL character or invalid"),
    ('{"conn_type": "kafka", "host": "h", "password": "{s}\\ud800"}', "or invalid Unicode"),
])  # fmt: skip
def test_what_is_no_connection_to_kafka(text: str | None, why: str) -> None:
    """It is told which connection, why, and where to correct it; nothing of it is quoted."""
    secret = "pa55w0rd!"
    said = refused(text and text.replace("{s}", secret))
    assert why in said and "AIRFLOW_CONN_EVENTS" in said
    assert secret not in said and "pa55" not in said


@pytest.mark.parametrize(("setting", "value", "words"), [
    ("sasl.colour", SECRET, 'No such configuration property: "sasl.colour"'),
    ("security.protocol", SECRET, 'configuration property "security.protocol"'),
    ("sasl.mechanism", "SCRAM-MD5", "Unsupported SASL mechanism: SCRAM-MD5"),
    ("sasl.jaas.config", f"password={SECRET}", "JAAS"),
    ("ssl.key.pem", SECRET, "ssl.key.pem"),
    ("ssl.ca.location", "/nowhere.pem", "ssl.ca.location failed"),
    ("ssl.key.location", "/nowhere.pem", "ssl.key.location failed"),
    ("ssl.certificate.location", "/nowhere.pem", "ssl.certificate.location failed"),
])  # fmt: skip
def test_a_setting_that_the_client_does_not_take(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str, words: str
) -> None:
    """Which one, in the client's words, without its value; before anything is connected to."""
    own = {"sasl.username": "semel", "sasl.password": SECRET, "ssl.ca.location": None}
    extra = {k: v for k, v in (REACHED | own | {setting: value}).items() if v is not None}
    text = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", text)
    with pytest.raises(TerminalError) as caught, Cluster(connection="events").admin():
        pass
    said = str(caught.value)
    assert "connection 'events'" in said and "librdkafka does not accept" in said
    assert words in said and SECRET not in said


@given(st.text(), st.text(min_size=4))
def test_hostile_text(text: str, secret: str) -> None:
    """Whatever a connection holds, it is settings of text and numbers, or a TerminalError."""
    for tried in (text, f"kafka://h/?__extra__={text}", f'{{"conn_type": "kafka", {text}}}'):
        try:
            found = config(tried)
        except SemelError:
            continue
        assert all(isinstance(value, str | int | float) for value in found.values())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_hostile_extra(extra: object) -> None:
    """The same of its extra, and of each of its fields."""
    for field in ("extra", "host", "port", "login", "password", "conn_type"):
        text = json.dumps({"conn_type": "kafka", "host": "h", field: extra})
        try:
            found = config(text)
        except TerminalError:
            continue
        assert all(isinstance(value, str | int | float) for value in found.values())


def test_what_a_client_says_quotes_no_secret() -> None:
    """Neither the secrets that were set, nor a value that was put at the wrong setting."""
    found = REACHED | {"sasl.password": SECRET, "ssl.key.pem": "-----BEGIN-----"}
    said = remove_secrets(f"login {SECRET} at one:9092 with -----BEGIN----- SCRAM-SHA-512", found)
    assert said == "login *** at one:9092 with *** SCRAM-SHA-512"
    said = remove_secrets('Invalid value "hunter22" for configuration property "a"', REACHED)
    assert said == 'Invalid value for configuration property "a"'


def test_a_cluster_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text, its repr and its address have none: they go to tasks, logs and the ledger."""
    made = Connection(
        conn_id="events", conn_type="kafka", login="semel", password=SECRET, host="broker"
    )  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", made.get_uri())
    cluster = Cluster(connection="events")
    assert cluster.address == "kafka://broker:9092"
    for shown in (str(cluster), repr(cluster), cluster.address):
        assert "pa55" not in shown and "semel" not in shown
