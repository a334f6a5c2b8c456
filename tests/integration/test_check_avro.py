"""`semel check` of a pipeline over Avro values, and a whole run: the registry's login stays in its
connection."""

import base64
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from fix_account import ids, settled
from fix_avro import AvroTopic, answering
from fix_engine import LocalEngine
from fix_postgres import free_port
from semel.errors import TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.run import run_batch
from test_check import Machine, machine, wrong  # noqa: F401
from test_kafka_secrets import PROGRAM, everything

PASSWORD = "pa55-0f-n0body"
VARIABLE = "AIRFLOW_CONN_SCHEMAS"
THERE = "topics from executors"


def connection(url: str) -> str:
    fields = {"conn_type": "http", "host": url, "login": "semel", "password": PASSWORD}
    return json.dumps(fields)


@pytest.mark.proof
def test_both_ends_ask_the_registry(
    machine: Machine, avro: AvroTopic, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """For a schema that a message names. What is wrong is found where it is, with the remedy and
    without the password."""

    def told(name: str, words: str) -> None:
        found = machine.look()
        assert {one.name for one in wrong(found)} == {name}, wrong(found)
        [one] = wrong(found)
        assert words in f"{one.detail} {one.remedy}"
        assert PASSWORD not in repr(found)

    monkeypatch.setenv(VARIABLE, connection(avro.url))
    machine.in_workers(VARIABLE, connection(avro.url))
    machine.spec = avro.spec(source={"registry": "schemas"})
    assert machine.look().ok  # A registry is asked also where no message is.
    avro.append(0, 5)
    found = machine.look()
    assert found.ok, wrong(found)
    assert PASSWORD not in repr(found)
    detail = next(one.detail for one in found.checks if one.name == "source")
    assert "the Schema Registry of connection 'schemas' answers" in detail
    with answering() as answers:
        monkeypatch.setenv(VARIABLE, connection(answers.url))
        told("source", "which a message of")
        answers.status = 401
        told("source", "refuses the login")
        monkeypatch.setenv(VARIABLE, connection(avro.url))
        machine.in_workers(VARIABLE, connection(answers.url))
        told(THERE, "refuses the login")
        machine.in_workers(VARIABLE, "")
        told(THERE, f"export {VARIABLE}")


# Attacks KS6.
@pytest.mark.rest
def test_a_whole_run(
    avro: AvroTopic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """While the registry is away or refuses the login a run fails, and no record is a dead letter;
    then it goes on. What is logged, stored, shipped and written has no password."""
    avro.append(0, 100)
    spec = avro.spec(source={"registry": "schemas"})
    engine, said = LocalEngine(), []

    def run() -> object:
        return run_batch(ledger, spec, "r1", engine, log=said.append)

    with caplog.at_level(logging.DEBUG):
        with answering() as answers:
            monkeypatch.setenv(VARIABLE, connection(answers.url))
            for status, kind in ((503, UnavailableError), (401, TerminalError)):
                answers.status = status
                with pytest.raises(kind) as caught:
                    run()
                said.append(str(caught.value))
        with pytest.raises(UnavailableError, match="does not answer"):
            run()
        monkeypatch.setenv(VARIABLE, connection(avro.url))
        done = run()
    assert settled(spec).ids == ids(0, 100) and not settled(spec).letters
    assert PASSWORD.encode() not in cloudpickle.dumps(engine.jobs[-1])
    for shown in (repr(engine.jobs[-1]), repr(done), repr(said), caplog.text):
        assert PASSWORD not in shown
        assert base64.b64encode(f"semel:{PASSWORD}".encode()).decode() not in shown
    assert PASSWORD not in str(everything(ledger, '"schemas"'))
    for path in avro.bench.folder.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.proof
def test_a_whole_run_by_spark(
    avro: AvroTopic, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors' Python workers look the connection up. Spark's pages, event log and own log show
    nothing of it; a registry that is away is said to be."""
    avro.append(0, 100)
    spec = avro.spec(source={"registry": "schemas"})

    def run(name: str, url: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv(VARIABLE, connection(url))
        folder = tmp_path / name
        folder.mkdir()
        surroundings = {"PYSPARK_PYTHON": sys.executable, "SEMEL_LEDGER_DSN": ledger.dsn}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)], env={**os.environ, **surroundings},
            cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    failed = run("away", f"http://127.0.0.1:{free_port()}")
    away = "UnavailableError: the Schema Registry of connection 'schemas' does not answer"
    assert away in failed.stderr.splitlines()[-1], failed.stderr[-3000:]
    done = run("spark", avro.url)
    assert "survivors 100" in done.stdout, done.stderr[-3000:]
    assert settled(spec).ids == ids(0, 100)
    logs = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"SparkListenerApplicationStart" in logs
    for shown in (logs, done.stdout.encode(), done.stderr.encode(), failed.stderr.encode()):
        assert PASSWORD.encode() not in shown
