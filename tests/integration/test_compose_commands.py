"""The commands of docker-compose.yaml, run here with the addresses and folders of a test."""

import os
import re
import secrets
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
import yaml

from fixtures.postgres.server import database, free_port
from fixtures.spark.cluster import answers
from fixtures.wait import wait_for
from semel import settings
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget, dsn_of

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 240


@pytest.fixture
def services(postgres: str, tmp_path: Path) -> Iterator[dict]:
    """The services with values for .env, and with this test's server, port and folders."""
    server = sa.make_url(postgres)
    (tmp_path / "airflow").mkdir()
    with (
        database(postgres) as ledger,
        database(postgres) as airflow,
        database(postgres) as warehouse,
    ):
        text = (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
        text = re.sub(r"\$\{SEMEL_POSTGRES_PASSWORD:[^}]*\}", server.password, text)
        text = re.sub(r"\$\{\w+:[^}]*\}", secrets.token_hex(32), text)
        text = text.replace("//postgres:", f"//{server.username}:")
        for name, dsn in {"semel": ledger, "airflow": airflow, "warehouse": warehouse}.items():
            there = f"@{server.host}:{server.port}/{sa.make_url(dsn).database}"
            text = text.replace(f"@postgres:5432/{name}", there)
        text = text.replace("15002", str(free_port())).replace("/semel/.semel", str(tmp_path))
        text = text.replace("/usr/local/bin/python", "python")
        # In the container no folder has a space in its name, as one above a checkout may have.
        checkout = tmp_path / "checkout"
        checkout.symlink_to(ROOT)
        text = re.sub(r"(?<!\w)/semel/", f"{checkout}/", text)
        # A container's network is its own; here nothing but loopback may be listened on.
        loopback = ("connect.grpc.binding.address", "driver.bindAddress", "driver.host")
        (tmp_path / "spark-defaults.conf").write_text(
            "".join(f"spark.{name} 127.0.0.1\n" for name in loopback)
        )
        yield yaml.safe_load(text)["services"]


@contextmanager
def running(service: dict, folder: Path) -> Iterator[subprocess.Popen]:
    """A service's command as compose would start it; ended with the block."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    with open(folder / "output", "ab") as output:
        process = subprocess.Popen(
            [word.replace("$$", "$") for word in service["command"]],
            env={**kept, "PATH": path, "SPARK_CONF_DIR": str(folder), **service["environment"]},
            cwd=folder,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # It has ended by itself.
            process.wait()


@pytest.mark.rest
def test_migrate_as_it_stands(services: dict, tmp_path: Path) -> None:
    """Both databases are at this version's schema when the service has ended."""
    with running(services["migrate"], tmp_path) as process:
        code = process.wait(WAIT_SECONDS)
    assert code == 0, (tmp_path / "output").read_text()[-3000:]
    environment = services["migrate"]["environment"]
    with psycopg.connect(environment["SEMEL_LEDGER_DSN"]) as connection:
        assert connection.execute("SELECT count(*) FROM semel.batch").fetchone() == (0,)
    airflow = sa.make_url(environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    address = airflow.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM dag").fetchone() == (0,)


def test_the_warehouse_as_it_stands(
    services: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of each service leads a sink to the user's own database, and it may write."""
    for name in ("spark", "scheduler"):
        variable = settings.connection_variable("warehouse")
        monkeypatch.setenv(variable, services[name]["environment"][variable])
        target = PostgresTarget(dsn=dsn_of("warehouse"), table=name, create=True)
        refuses = PostgresSink(target).check(pa.schema({"n": pa.int64()}), tmp_path)
        assert refuses is not None
        with psycopg.connect(target.dsn) as connection:
            assert connection.execute("SELECT to_regclass('semel.batch')").fetchone() == (None,)


@pytest.mark.rest
def test_spark_as_it_stands(services: dict, tmp_path: Path) -> None:
    """The server answers on its port, and the service's own check of health says so."""
    with running(services["spark"], tmp_path) as process:
        port = int(services["spark"]["ports"][0].rsplit(":", 1)[1])
        wait_for(lambda: answers(port) or process.poll() is not None, "Spark", WAIT_SECONDS, 0.2)
        assert process.poll() is None, (tmp_path / "output").read_text()[-3000:]
        [_shell, check] = services["spark"]["healthcheck"]["test"]
        env = {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}
        assert subprocess.run(["sh", "-c", check], env=env, timeout=60).returncode == 0
