"""The commands of docker-compose.yaml, run here with the addresses and folders of a test."""

import os
import re
import secrets
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
import yaml
from cryptography.fernet import Fernet

from fixtures.postgres.server import database, free_port
from fixtures.spark.cluster import answers
from fixtures.wait import wait_for
from semel import settings
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget, dsn_of

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 240


UID = 54_321
"""Of a user that no system has."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the group of the containers' users, 0, may write to."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o770)
        yield Path(name)


@pytest.fixture
def services(postgres: str, folder: Path) -> Iterator[dict]:
    """The services with values for .env, and with this test's server, ports and folders."""
    server = sa.make_url(postgres)
    (folder / "airflow").mkdir()
    (folder / "airflow").chmod(0o770)
    passwords = folder / "airflow_passwords.json"
    passwords.write_text('{"admin": "secret"}')
    with (
        database(postgres) as ledger,
        database(postgres) as airflow,
        database(postgres) as warehouse,
    ):
        text = (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
        text = re.sub(r"\$\{SEMEL_POSTGRES_PASSWORD:[^}]*\}", server.password, text)
        text = re.sub(r"\$\{\w+FERNET_KEY:[^}]*\}", Fernet.generate_key().decode(), text)
        text = re.sub(r"\$\{\w+:[^}]*\}", secrets.token_hex(32), text)
        text = text.replace("//postgres:", f"//{server.username}:")
        for name, dsn in {"semel": ledger, "airflow": airflow, "warehouse": warehouse}.items():
            there = f"@{server.host}:{server.port}/{sa.make_url(dsn).database}"
            text = text.replace(f"@postgres:5432/{name}", there)
        text = text.replace("15002", str(free_port())).replace("/semel/.semel", str(folder))
        text = text.replace("api-server:8080", f"127.0.0.1:{free_port()}")
        text = text.replace("/run/semel/", f"{folder}/")
        # In the container no folder has a space in its name, as one above a checkout may have.
        checkout = folder / "checkout"
        checkout.symlink_to(ROOT)
        text = re.sub(r"(?<!\w)/semel/", f"{checkout}/", text)
        # A container's network is its own; here nothing but loopback may be listened on.
        loopback = ("connect.grpc.binding.address", "driver.bindAddress", "driver.host")
        (folder / "spark-defaults.conf").write_text(
            "".join(f"spark.{name} 127.0.0.1\n" for name in loopback)
        )
        services = yaml.safe_load(text)["services"]
        passwords.chmod(services["api-server"]["configs"][0].get("mode", 0o444))
        address = services["scheduler"]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
        for service in services.values():
            service["environment"] |= {
                "AIRFLOW__API__HOST": "127.0.0.1", "AIRFLOW__API__PORT": str(urlsplit(address).port)
            }  # fmt: skip
        yield services


@contextmanager
def running(
    service: dict, folder: Path, user: tuple[str, ...] = (), output: str = "output"
) -> Iterator[subprocess.Popen]:
    """A service's command as compose would start it; ended with the block. `user`: what starts it
    as somebody else.
    """
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    if user:
        kept["HOME"] = str(folder)
    with open(folder / output, "ab") as file:
        process = subprocess.Popen(
            [*user, *(word.replace("$$", "$") for word in service["command"])],
            env={**kept, "PATH": path, "SPARK_CONF_DIR": str(folder), **service["environment"]},
            cwd=folder,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
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
def test_migrate_as_it_stands(services: dict, folder: Path) -> None:
    """Both databases are at this version's schema when the service has ended."""
    with running(services["migrate"], folder) as process:
        code = process.wait(WAIT_SECONDS)
    assert code == 0, (folder / "output").read_text()[-3000:]
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
def test_spark_as_it_stands(services: dict, folder: Path) -> None:
    """The server answers on its port, and the service's own check of health says so."""
    with running(services["spark"], folder) as process:
        port = int(services["spark"]["ports"][0].rsplit(":", 1)[1])
        wait_for(lambda: answers(port) or process.poll() is not None, "Spark", WAIT_SECONDS, 0.2)
        assert process.poll() is None, (folder / "output").read_text()[-3000:]
        [_shell, check] = services["spark"]["healthcheck"]["test"]
        env = {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}
        assert subprocess.run(["sh", "-c", check], env=env, timeout=60).returncode == 0


def as_user(folder: Path, known: bool) -> tuple[str, ...]:
    """What starts a command as UID of group 0, which has a name if the image's own line made it."""
    etc = folder / "root" / "etc"
    etc.mkdir(parents=True)
    for name in ("passwd", "group"):
        lines = Path("/etc", name).read_text().splitlines(keepends=True)
        (etc / name).write_text("".join(o for o in lines if not o.startswith("semel:")))
    if known:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        [line] = set(re.findall(r"RUN (getent .*)", text))
        line = line.replace("useradd", f"useradd --prefix {folder / 'root'}")
        subprocess.run(["sh", "-c", line], env={**os.environ, "SEMEL_UID": str(UID)}, check=True)
    mount = f'mount --bind {etc / "passwd"} /etc/passwd && exec setpriv "$@"'
    # Python itself may lie in a folder of root's.
    reads = [f"--{which}-caps=+dac_read_search" for which in ("inh", "ambient")]
    user = ("--reuid", str(UID), "--regid", "0", "--clear-groups", *reads)
    return ("unshare", "--mount", "sh", "-c", mount, "sh", *user)


# It mounts a list of users over the system's, in a namespace of its own.
@pytest.mark.proof
@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes as another user")
def test_every_service_as_an_ordinary_user(services: dict, folder: Path) -> None:
    """Each is healthy, as its own check says, as the user that the image makes. Without a name for
    their user, Airflow and Spark end.
    """
    (folder / "spark-defaults.conf").chmod(0o640)
    nameless, named = as_user(folder / "nameless", False), as_user(folder / "named", True)
    for name, why in {"migrate": "has no username", "spark": "UserGroupInformation"}.items():
        with running(services[name], folder, nameless, f"{name} nameless") as process:
            assert process.wait(WAIT_SECONDS) != 0
        assert why in (folder / f"{name} nameless").read_text()
    with running(services["migrate"], folder, named) as process:
        assert process.wait(WAIT_SECONDS) == 0, (folder / "output").read_text()[-3000:]
    names = [name for name in services if name not in ("postgres", "migrate")]
    with ExitStack() as stack:
        there = {
            name: stack.enter_context(running(services[name], folder, named, name))
            for name in names
        }
        for name, process in there.items():
            ends = partial(_is_settled, services[name], process)
            wait_for(ends, f"the service {name}", WAIT_SECONDS, 1)
            assert process.poll() is None, (folder / name).read_text()[-3000:]


def _is_settled(service: dict, process: subprocess.Popen) -> bool:
    """Whether it has ended, or is healthy."""
    return process.poll() is not None or _is_healthy(service)


def _is_healthy(service: dict) -> bool:
    kind, *check = service["healthcheck"]["test"]
    command = ["sh", "-c", *check] if kind == "CMD-SHELL" else check
    env = {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}
    return subprocess.run(command, env=env, capture_output=True, timeout=60).returncode == 0
