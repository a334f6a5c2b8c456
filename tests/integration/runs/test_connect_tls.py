"""Spark Connect as in a cluster: behind TLS, with a header, and with tokens that expire."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.gate import Gate
from semel import pipeline, settings
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.plan import plan
from semel.spark.session import open_engine

pytestmark = pytest.mark.rest  # A server of Spark Connect takes 15 CPU seconds to start.

HEADER = "x-databricks-cluster-id"
TOKEN = "a/b+c=="
SECONDS_MAX = 60
"""How soon a rejected token is said, on a busy machine."""


def planned(bench: Workbench, ledger: Ledger) -> Path:
    """A pipeline with two planned batches. Returns the file of its declaration."""
    spec = bench.spec()
    for number in range(2):
        bench.write(f"in/{number}.jsonl", events(number * 10, number * 10 + 10))
        plan(ledger, spec, f"r{number}")
    return bench.pipelines / "events.yaml"


def fields(gate: Gate, **extra: object) -> dict[str, Any]:
    """The connection to the gate."""
    extra |= {"use_ssl": True, HEADER: "1128-semel"}
    return {"conn_type": "spark_connect", "host": "localhost", "port": gate.port, "extra": extra}


def said_by(act: Callable[[], object]) -> str:
    """The error of a call, with its class; `done` without one."""
    began = time.monotonic()
    try:
        act()
    except SemelError as error:
        assert time.monotonic() - began < SECONDS_MAX
        return f"{type(error).__name__}: {error}"
    return "done"


def _trusting(gate: Gate, connection: dict[str, Any]) -> None:
    """Let this process trust the gate and have the connection."""
    os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(gate.roots)
    os.environ["AIRFLOW_CONN_SEMEL_SPARK"] = json.dumps(connection)


def _renewing(_: str, gate: Gate, dsn: str, path: Path, file: Path) -> list[str]:
    from semel.airflow.spark import Stager

    _trusting(gate, fields(gate, token_command=f"cat '{file}'"))
    with Ledger(dsn) as ledger:

        def stage(batch: int) -> None:
            with Stager(ledger, pipeline.load(path), quiet) as stager:
                stager.stage(batch)

        gate.accept(TOKEN)
        file.write_text(f"{TOKEN}\n")
        said = [said_by(lambda: stage(1))]
        file.write_text("expired")
        said.append(said_by(lambda: stage(2)))
        file.unlink()
        said.append(said_by(lambda: stage(2)))
        gate.accept("renewed")
        file.write_text("renewed")
        said.append(said_by(lambda: stage(2)))
    return said


def test_a_token_that_a_command_renews(
    bench: Workbench, ledger: Ledger, gate: Gate, over_connect: Callable, tmp_path: Path
) -> None:
    """Each session reads the token again, and sends it with the header through TLS. A token that
    Spark rejects and a command that fails end the task with the name of the connection.
    """
    path = planned(bench, ledger)
    said = over_connect(_renewing, gate, ledger.dsn, path, tmp_path / "token")
    assert said[0] == said[3] == "done"
    assert said[1] == (
        f"TerminalError: Spark at sc://localhost:{gate.port}/ rejects the token of the Airflow "
        "connection semel_spark. Nothing was committed. Renew that token, then run this again"
    )
    assert said[2].startswith(
        "RetryableError: the Airflow connection semel_spark: its token_command failed (cat: "
    )
    assert {call[HEADER] for call in gate.calls} == {"1128-semel"}
    assert {call["authorization"] for call in gate.calls} == {f"Bearer {TOKEN}", "Bearer renewed"}


def _expiring(_: str, gate: Gate, dsn: str, path: Path) -> list[str]:
    from semel.airflow.spark import Stager

    _trusting(gate, fields(gate) | {"password": TOKEN})
    with Ledger(dsn) as ledger:

        def stage_both() -> None:
            with Stager(ledger, pipeline.load(path), quiet) as stager:
                stager.stage(1)
                gate.accept("other")
                stager.stage(2)

        def open_only() -> None:
            with open_engine(os.environ[settings.SPARK_VARIABLE], quiet):
                pass

        gate.accept(TOKEN)
        said = [said_by(stage_both)]
        address = f"sc://localhost:{gate.port}/;use_ssl=true;token=secret"
        os.environ[settings.SPARK_VARIABLE] = address
        return [*said, said_by(open_only)]


def test_a_token_that_expires_in_a_session(
    bench: Workbench, ledger: Ledger, gate: Gate, over_connect: Callable
) -> None:
    """The first batch is staged. The second one's task is retried, as the next session reads the
    token again. The command line names its variable.
    """
    path = planned(bench, ledger)
    expired, shell = over_connect(_expiring, gate, ledger.dsn, path)
    place = f"Spark at sc://localhost:{gate.port}/"
    assert expired == (
        f"RetryableError: {place} no longer accepts the token of the Airflow connection "
        "semel_spark. Nothing was committed. Renew that token, then run this again"
    )
    assert shell == (
        f"TerminalError: {place} rejects the token of SEMEL_SPARK_REMOTE. Nothing was committed. "
        "Renew that token, then run this again"
    )
    with ledger.engine.connect() as connection:
        text = "SELECT batch_id, status FROM semel.attempt ORDER BY 1"
        attempts = connection.exec_driver_sql(text).fetchall()
    assert attempts == [(1, "staged"), (2, "lost")]
