"""A pipeline's connections reach a real broker by each way, or say soon why not and what to do; and
their secrets stay in them."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import cloudpickle

from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import ids, run, settled
from fixtures.kafka.broker import Kafka
from fixtures.kafka.certificates import Authority
from fixtures.kafka.registry import AvroTopic, connection
from fixtures.kafka.server import Listener
from fixtures.kafka.topics import Topic, everything, in_output
from fixtures.postgres.server import free_port
from fixtures.spark.local import LocalEngine
from semel.errors import SemelError, SourceError, TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs.run import run_batch

TOLD_SECONDS_MAX = 10

CERTAIN_SECONDS_MAX = 5
"""What does not pass is told at once; a busy machine takes a while all the same."""

PASSWORD = "pa55 of nobody's business"
WRONG = "a wr0ng one"
VARIABLE = "AIRFLOW_CONN_EVENTS"

Connect = Callable[..., Spec]


@pytest.fixture
def connect(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A pipeline over the topic by a connection with these settings."""

    def made(settings: dict[str, str], **source: object) -> Spec:
        monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "kafka", "extra": settings}))
        return topic.spec(source={"bootstrap_servers": None, "connection": "events", **source})

    return made


def login(
    kafka: Kafka, user: str, *rights: str, topic: str = "", listener: Listener = Listener.SCRAM_TLS
) -> dict[str, str]:
    """The settings of a user who has some rights to a topic."""
    kafka.user(user, PASSWORD, "SCRAM-SHA-512")
    for right in rights:
        kafka.allow(user, right, topic=topic)
    more = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user, "sasl_password": PASSWORD}
    return kafka.client(listener, **more)


def told(
    kind: type[SemelError], seconds: float, function: Callable, *arguments: object
) -> str:
    """The error of a call, which says nothing secret and comes in time."""
    began = time.monotonic()
    with pytest.raises(SemelError) as caught:
        function(*arguments)
    assert time.monotonic() - began < seconds
    assert type(caught.value) is kind, caught.value
    said = str(caught.value)
    assert PASSWORD not in said and WRONG not in said and "'events'" in said
    return said


class Refused(NamedTuple):
    """A listener, and what is other in its client's settings: None takes one out."""

    listener: Listener
    other: dict[str, str | None]
    words: tuple[str, ...]
    kind: type[SemelError] = TerminalError
    source: dict[str, Any] = {}


LOGIN = ("refuses the login", "Correct user, password and sasl.mechanism")
TLS = ("certificate", "Correct security.protocol and the certificates")
AWAY = ("does not answer", "correct its address or security.protocol")

REFUSED = {
    "a wrong password": Refused(Listener.SCRAM_TLS, {"sasl.password": WRONG}, LOGIN),
    "a wrong one without TLS": Refused(Listener.SCRAM, {"sasl.password": WRONG}, LOGIN),
    "a stranger": Refused(Listener.SCRAM_TLS, {"sasl.username": "stranger"}, LOGIN),
    "another mechanism": Refused(
        Listener.SCRAM_TLS, {"sasl.mechanism": "PLAIN"},
        (*LOGIN, "supported mechanisms: SCRAM-SHA-512"),
    ),
    "for a pattern": Refused(
        Listener.SCRAM_TLS, {"sasl.password": WRONG}, LOGIN,
        source={"topics": None, "pattern": "t-.*"},
    ),
    "another authority": Refused(Listener.TLS, {"ssl.ca.location": "STRANGER"}, TLS),
    "no authority": Refused(Listener.TLS, {"ssl.ca.location": None}, TLS),
    "no certificate of ours": Refused(Listener.MTLS, {}, TLS),
    "a stranger's certificate": Refused(
        Listener.MTLS, {"ssl.certificate.location": "SIGNED", "ssl.key.location": "KEY"}, TLS
    ),
    # Closed in the handshake: a load balancer whose brokers are away does the same.
    "TLS before a port without": Refused(
        Listener.TLS, {"bootstrap.servers": "PORT"}, AWAY, UnavailableError
    ),
    "a port with TLS": Refused(
        Listener.PLAIN, {"bootstrap.servers": "TLS_PORT"}, AWAY, UnavailableError
    ),
    "a wrong port": Refused(
        Listener.SCRAM_TLS, {"bootstrap.servers": "127.0.0.1:1"}, ("127.0.0.1:1", *AWAY),
        UnavailableError,
    ),
    "an unknown host": Refused(
        Listener.PLAIN, {"bootstrap.servers": "kafka.nowhere.invalid:9092"},
        ("kafka.nowhere.invalid:9092", *AWAY), UnavailableError,
    ),
    "a load balancer": Refused(
        Listener.SCRAM_TLS, {"bootstrap.servers": "CLOSING"}, AWAY, UnavailableError
    ),
}  # fmt: skip
"""Words in capitals stand for an address or a file of the test."""

SLOW = {
    **{why: pytest.mark.rest for why, row in REFUSED.items() if row.kind is UnavailableError},
    "an unknown host": pytest.mark.proof, "a load balancer": pytest.mark.proof,
}  # fmt: skip
"""A cluster that may come is waited for."""


@pytest.fixture
def closing() -> Iterator[str]:
    """What takes clients and closes: a load balancer whose brokers are away."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.sample(5)
@pytest.mark.parametrize("why", [pytest.param(w, marks=SLOW.get(w, ())) for w in REFUSED])
def test_a_cluster_that_cannot_be_reached(
    kafka: Kafka, connect: Connect, stranger: Authority, closing: str, why: str
) -> None:
    """It is said what to correct, or that it may come, without a secret: at once where that does
    not pass, and within ten seconds always."""
    row, signed = REFUSED[why], stranger.sign("reader")
    standing = {
        "STRANGER": str(stranger.certificate), "SIGNED": str(signed.certificate),
        "KEY": str(signed.key), "CLOSING": closing,
        "PORT": kafka.broker.bootstrap, "TLS_PORT": kafka.broker.address(Listener.TLS),
    }  # fmt: skip
    by_login = row.listener.protocol.startswith("SASL")
    plain = login(kafka, "somebody", listener=row.listener) if by_login else None
    settings = (plain or kafka.client(row.listener)) | row.other
    settings = {name: standing.get(v, v) for name, v in settings.items() if v is not None}
    source = open_source(connect(settings, **row.source))
    seconds = CERTAIN_SECONDS_MAX if row.kind is TerminalError else TOLD_SECONDS_MAX
    said = told(row.kind, seconds, source.discover)
    assert all(words in said for words in row.words), said


@pytest.mark.rest
def test_rights(topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect) -> None:
    """Who may not see a topic is told so in plan, who may not read it in stage; it is named. Who
    may read it needs no right to a group."""
    topic.append(0, 10)
    spec = connect(login(kafka, "sees-nothing"))
    said = told(TerminalError, CERTAIN_SECONDS_MAX, plan, ledger, spec, "r1")
    assert topic.name in said and "TOPIC_AUTHORIZATION_FAILED" in said and "docs/kafka.md" in said
    spec = connect(login(kafka, "sees", "DESCRIBE", topic=topic.name))
    said = told(TerminalError, TOLD_SECONDS_MAX, run, ledger, spec, "r1")
    assert topic.at() in said and "TOPIC_AUTHORIZATION_FAILED" in said and "docs/kafka.md" in said
    kafka.allow("sees", "READ", topic=topic.name)
    run(ledger, spec, "r1")
    assert in_output(spec) == ids(0, 10)


def test_a_topic_that_is_not_there(
    topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect
) -> None:
    """It is named. To a user without a right to it a cluster says no more than that."""
    spec = connect(kafka.client(), topics=[topic.name, "no-such-topic"])
    began = time.monotonic()
    with pytest.raises(SourceError, match="no-such-topic.*Create it, or correct source.topics"):
        plan(ledger, spec, "r1")
    assert time.monotonic() - began < CERTAIN_SECONDS_MAX
    spec = connect(login(kafka, "somebody-else"), topics=["no-such-topic"])
    said = told(TerminalError, CERTAIN_SECONDS_MAX, plan, ledger, spec, "r1")
    assert "'no-such-topic'" in said and "create the topic if it does not exist" in said


def by_certificate(kafka: Kafka, authority: Authority, topic: str) -> tuple[dict[str, str], str]:
    """The settings of a client whose key is in them, and a line of that key."""
    kafka.allow("CN=runs", "READ", topic=topic)
    signed = authority.sign("runs")
    key = signed.key.read_text()
    own = {"ssl.key.pem": key, "ssl.certificate.location": str(signed.certificate)}
    return kafka.client(Listener.MTLS) | own, key.splitlines()[1]


@pytest.mark.parametrize("listener", [one for one in Listener if one is not Listener.PLAIN])
def test_a_whole_run(
    topic: Topic, kafka: Kafka, authority: Authority, ledger: Ledger, connect: Connect,
    caplog: pytest.LogCaptureFixture, listener: Listener,
) -> None:  # fmt: skip
    """By a password, within TLS or without, by TLS, by a certificate and a key that the connection
    itself holds; the audit too, without a right to a group. What is logged, stored, shipped and written has nothing secret of it."""
    settings, secret = kafka.client(listener), "no such thing"
    if listener.protocol.startswith("SASL"):
        settings = login(kafka, "runs", "READ", topic=topic.name, listener=listener)
        secret = PASSWORD
    if listener is Listener.MTLS:
        settings, secret = by_certificate(kafka, authority, topic.name)
    topic.append(0, 100)
    spec = connect(settings)
    engine, said = LocalEngine(), []
    with caplog.at_level(logging.DEBUG):
        done = run_batch(ledger, spec, "r1", engine, log=said.append)
        assert settled(spec).ids == ids(0, 100)
    (job,) = engine.jobs
    assert secret.encode() not in cloudpickle.dumps(job)
    for shown in (repr(job), repr(done), repr(said), caplog.text, everything(ledger)):
        assert secret not in shown
    for path in topic.bench.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_what_airflow_keeps_of_a_plan(
    topic: Topic, kafka: Kafka, ledger: Ledger, connect: Connect, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The plan task's XCom, its lines and its declaration have no secret."""
    topic.append(0, 100)
    spec = connect(login(kafka, "runs", "READ", topic=topic.name))
    tasks = Tasks.of(topic.bench, ledger, tmp_path, monkeypatch)
    said: list[object] = []
    from semel.airflow import operators

    real = operators.PlanOperator.execute.__wrapped__

    def execute(self: object, context: object) -> object:
        said.append(real(self, context))
        return said[-1]

    monkeypatch.setattr(operators.PlanOperator.execute, "__wrapped__", execute)
    task = tasks.run("Plan")
    [xcom] = said
    assert "100 offsets" in xcom["summary"]
    for shown in (json.dumps(xcom, default=str), task.declaration, repr(task), repr(spec)):
        assert PASSWORD not in shown


PROGRAM = """
import sys
from pathlib import Path
from urllib.request import urlopen
from pyspark.sql import SparkSession
from semel import settings
from semel.ledger import Ledger
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine
from semel.spark.settings import settings_for
from semel.pipeline import find

folder = sys.argv[1]
conf = settings_for("local") | {
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{folder}",
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": f"{folder}/local",
    "spark.eventLog.compress": "false", "spark.log.level": "INFO",
}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
with Ledger(settings.ledger_dsn()) as ledger:
    done = run_batch(ledger, find("events"), "r1", SparkEngine(spark), log=print)
pages = ("environment/", "jobs/", "stages/", "SQL/", "executors/", "api/v1/applications")
url = spark.sparkContext.uiWebUrl
text = "".join(urlopen(f"{url}/{page}").read().decode() for page in pages)
Path(folder, "pages.html").write_text(text)
spark.stop()
print("survivors", done.finalized.counts.survivors)
"""


@pytest.mark.proof
@pytest.mark.parametrize("away", [False, True])
def test_a_whole_run_by_spark(
    avro: AvroTopic, kafka: Kafka, ledger: Ledger, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, away: bool,
) -> None:  # fmt: skip
    """Executors' Python workers look up both connections: the cluster's, the Schema Registry's.
    Spark's pages, event log and own log show nothing secret of them; a registry that is away is
    said to be. Only a Spark of its own, half a minute, shows what Spark itself writes."""
    avro.append(0, 100)
    extra = login(kafka, "runs", "READ", topic=avro.name)
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "kafka", "extra": extra}))
    url = f"http://127.0.0.1:{free_port()}" if away else avro.url
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", connection(url, PASSWORD))
    spec = avro.spec(
        source={"bootstrap_servers": None, "connection": "events", "registry": "schemas"}
    )
    folder = tmp_path / "spark"
    folder.mkdir()
    surroundings = {"PYSPARK_PYTHON": sys.executable, "SEMEL_LEDGER_DSN": ledger.dsn}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], env={**os.environ, **surroundings},
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    logs = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"SparkListenerApplicationStart" in logs
    for shown in (logs, done.stdout.encode(), done.stderr.encode()):
        assert PASSWORD.encode() not in shown
    if away:
        words = "UnavailableError: the Schema Registry of connection 'schemas' does not answer"
        assert words in done.stderr.splitlines()[-1], done.stderr[-3000:]
        return
    assert "survivors 100" in done.stdout, done.stderr[-3000:]
    assert b"Spark Properties" in logs and settled(spec).ids == ids(0, 100)
