"""A whole run through a Kafka connection with a login and TLS, and that its secrets stay in it."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from fix_account import ids, settled
from fix_certificates import Authority
from fix_engine import LocalEngine
from fix_kafka import Kafka
from fix_tasks import Tasks
from fix_topics import Topic
from semel.ledger import Ledger
from semel.run import run_batch
from semel.spec.pipeline import Spec
from semel.stack.kafka import Listener

PASSWORD = "pa55-0f-n0body"
VARIABLE = "AIRFLOW_CONN_EVENTS"


def login(kafka: Kafka, topic: str) -> dict[str, str]:
    kafka.user("runs", PASSWORD, "SCRAM-SHA-512")
    kafka.allow("runs", "READ", topic=topic)
    more = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "runs", "sasl_password": PASSWORD}
    return kafka.client(Listener.SCRAM_TLS, **more)


def connected(topic: Topic, patch: pytest.MonkeyPatch, settings: dict[str, str]) -> Spec:
    """A pipeline over the topic, which has 100 records, by a connection with these settings."""
    patch.setenv(VARIABLE, json.dumps({"conn_type": "kafka", "extra": settings}))
    topic.append(0, 100)
    return topic.spec(source={"bootstrap_servers": None, "connection": "events"})


@pytest.mark.parametrize("by", ["scram", "tls", "mtls"])
def test_a_whole_run(
    topic: Topic, kafka: Kafka, authority: Authority, ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str,
) -> None:  # fmt: skip
    """By a password within TLS, by TLS, by a certificate and a key that the connection itself
    holds. What is logged, stored, shipped and written has nothing secret of it."""
    settings, secret = kafka.client(Listener.TLS), "no such thing"
    if by == "scram":
        settings, secret = login(kafka, topic.name), PASSWORD
    if by == "mtls":
        kafka.allow("CN=runs", "READ", topic=topic.name)
        signed = authority.sign("runs")
        key = signed.key.read_text()
        own = {"ssl.key.pem": key, "ssl.certificate.pem": signed.certificate.read_text()}
        settings, secret = kafka.client(Listener.MTLS) | own, key.splitlines()[1]
    spec = connected(topic, monkeypatch, settings)
    engine, told = LocalEngine(), []
    with caplog.at_level(logging.DEBUG):
        done = run_batch(ledger, spec, "r1", engine, log=told.append)
    assert settled(spec, audited=False).ids == ids(0, 100)
    (job,) = engine.jobs
    assert secret.encode() not in cloudpickle.dumps(job)
    for shown in (repr(job), repr(done), repr(told), caplog.text, str(everything(ledger))):
        assert secret not in shown
    for path in topic.bench.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def everything(ledger: Ledger, known: str = '"events"') -> list[str]:
    """Each row of each of the ledger's tables, as JSON; `known` is in one of them."""
    with ledger.engine.connect() as connection:
        tables = connection.exec_driver_sql(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'semel'"
        ).scalars().all()
        found = [
            row
            for table in tables
            for row in connection.exec_driver_sql(
                f'SELECT row_to_json(t)::text FROM semel."{table}" AS t'
            ).scalars()
        ]
    assert any(known in row for row in found)
    return found


def test_what_airflow_keeps_of_a_plan(
    topic: Topic, kafka: Kafka, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan task's XCom, its lines and its declaration have no secret."""
    spec = connected(topic, monkeypatch, login(kafka, topic.name))
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
from semel.run import run_batch
from semel.spark.engine import SparkEngine
from semel.spark.settings import settings_for
from semel.spec.pipeline import find

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


@pytest.mark.rest
def test_a_whole_run_by_spark(
    topic: Topic, kafka: Kafka, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a password within TLS, which the executors' Python workers look up. Spark's pages, event
    log and own log show nothing of it."""
    spec = connected(topic, monkeypatch, login(kafka, topic.name))
    folder = tmp_path / "spark"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], env={**os.environ, "PYSPARK_PYTHON":
        sys.executable, "SEMEL_LEDGER_DSN": ledger.dsn}, cwd=folder, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "survivors 100" in done.stdout, done.stderr[-3000:]
    assert settled(spec, audited=False).ids == ids(0, 100)
    files = [p for p in folder.rglob("*") if p.is_file()]
    logs = b"".join(p.read_bytes() for p in files)
    assert b"SparkListenerApplicationStart" in logs and b"Spark Properties" in logs
    for shown in (logs, done.stdout.encode(), done.stderr.encode()):
        assert PASSWORD.encode() not in shown
