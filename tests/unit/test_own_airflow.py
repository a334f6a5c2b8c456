"""semel in an Airflow that it did not start: DAG files of one's own, Variables, connections."""

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from fixtures.airflow.dags import documented, parsed_files, write
from semel import settings
from semel.errors import TerminalError

pytestmark = pytest.mark.server("own dags")
"""Airflow parses the files once for all tests, which takes seconds."""

TWO_LINES = documented("import dags")

BESIDE = """
from semel.airflow import dags, broken_dags
from airflow.sdk import DAG
with DAG("theirs"): pass
dags(globals(), "more", collect="collect_more")
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of DAG files of one's own, some as documented, with two folders of pipelines."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("pipelines", "more"):
        (folder / "dags" / name).mkdir(parents=True)
    write(folder / "dags" / "pipelines", "clicks")
    write(folder / "dags" / "pipelines", "typo").write_text("name: typo\nsurce: {}\n")
    write(folder / "dags" / "more", "views")
    (folder / "dags" / "ours.py").write_text(TWO_LINES)
    (folder / "dags" / "beside.py").write_text(BESIDE)
    (folder / "dags" / "broken.py").write_text(documented("broken_dags"))
    (folder / "dags" / "by_hand.py").write_text(documented("PlanOperator"))
    return folder


def found_in(folder: Path, *only: str) -> dict[str, Any]:
    """What Airflow finds in dags/, with a Variable of Airflow's, and its safe mode on."""
    inside = {"AIRFLOW_VAR_SEMEL_DATA_ROOTS": str(folder / "data")}
    return parsed_files(folder, folder / "dags", inside, *only)


@pytest.fixture(scope="module")
def found(own: Path) -> dict[str, Any]:
    """What Airflow finds there."""
    return found_in(own)


def test_each_folder_has_its_dags(found: dict[str, Any]) -> None:
    """Folders are relative to the DAG file, each with its own DAG that collects; others stay."""
    by_semel = {"clicks", "semel_collect", "views", "collect_more"}
    assert set(found["dags"]) == by_semel | {"theirs", "clicks_and_more"}


@pytest.mark.rest
def test_broken_files_show_in_a_file_of_their_own(found: dict[str, Any]) -> None:
    """What is wrong takes no other pipeline down, and is an import error of the file for it."""
    assert list(found["errors"]) == ["broken.py"]
    assert "typo.yaml:2: surce:" in found["errors"]["broken.py"]


@pytest.mark.rest
def test_operators_by_hand(found: dict[str, Any]) -> None:
    """The four operators make a DAG of one's own."""
    tasks = found["dags"]["clicks_and_more"]["tasks"]
    assert [task["__var"]["task_id"] for task in tasks] == ["plan", "stage", "commit", "finalize"]


@pytest.mark.rest
def test_a_task_makes_only_its_own_dag(own: Path) -> None:
    """A file whose DAGs are not wanted makes none, and refuses nothing."""
    assert set(found_in(own, "views")["dags"]) == {"views", "theirs", "clicks_and_more"}


@pytest.mark.rest
def test_a_clash_with_the_collecting_dag_is_told(tmp_path: Path) -> None:
    """A DAG that collects may not take a pipeline's name."""
    (tmp_path / "dags" / "pipelines").mkdir(parents=True)
    write(tmp_path / "dags" / "pipelines", "clicks")
    line = TWO_LINES.replace('"pipelines/"', '"pipelines/", collect="clicks"')
    (tmp_path / "dags" / "ours.py").write_text(line)
    found = found_in(tmp_path)
    assert found["dags"] == {}
    assert "Give that DAG another one: dags(globals(), collect=" in found["errors"]["ours.py"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as one of an Airflow with semel as a package, and nothing said yet."""
    for name in [name for name in os.environ if name.startswith(("SEMEL_", "AIRFLOW"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(settings, "project", lambda: None)
    # What is set by the code under test goes with the test.
    for name in (
        settings.LEDGER_VARIABLE, settings.DATA_VARIABLE, settings.PIPELINES_VARIABLE,
        settings.TRANSFORMS_VARIABLE,
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
    return tmp_path


@pytest.fixture
def surroundings(alone: Path) -> ModuleType:  # noqa: ARG001 - nothing is said when it is asked
    """What finds folders and connections; importing it imports Airflow."""
    from semel.airflow import surroundings

    return surroundings


def test_nobody_guesses_where_data_lies(surroundings: ModuleType) -> None:
    """The working folder of a task is no place for data: without a word the task says what to do.

    1. A task on one worker writes below its working folder. 2. The next one runs in another folder,
    and finds nothing there.
    """
    with pytest.raises(TerminalError, match="Set the Airflow Variable semel_data_roots, or SEMEL_"):
        surroundings.find_folders()


def test_variables_name_the_folders(
    surroundings: ModuleType, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's Variables do; the environment wins; SEMEL_HOME says where all of them are."""
    inside = {"data_roots": "/of/variable", "pipelines_dir": "/p", "transforms_dir": "/t"}
    for name, value in inside.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_SEMEL_{name.upper()}", value)
    monkeypatch.setenv(settings.PIPELINES_VARIABLE, "/of/environment")
    monkeypatch.setenv(settings.HOME_VARIABLE, str(alone))
    surroundings.find_folders()
    assert settings.data_roots() != [Path("/of/variable")]
    monkeypatch.delenv(settings.HOME_VARIABLE)
    surroundings.find_folders()
    assert settings.data_roots() == [Path("/of/variable")]
    assert settings.pipelines_dir() == Path("/of/environment")
    assert settings.transforms_dir() == Path("/t")


def test_the_ledger_is_a_connection(
    surroundings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection semel_ledger names it, with TLS and odd passwords; the environment wins."""
    said = "postgres://me:p%40ss%2Fword@db.example:5433/semel?sslmode=require"
    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_LEDGER", said)
    surroundings.find_ledger()
    there = "postgresql://me:p%40ss%2Fword@db.example:5433/semel?sslmode=require"
    assert settings.ledger_dsn() == there
    monkeypatch.setenv(settings.LEDGER_VARIABLE, "postgresql://other/db")
    surroundings.find_ledger()
    assert settings.ledger_dsn() == "postgresql://other/db"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("mysql://me:hidden@db/semel", "is of type 'mysql'; make it one of type postgres"),
        ("postgres://me:hidden@db/semel?cursor=x", "extra field has an option that PostgreSQL's"),
    ],
)
def test_a_connection_that_is_no_ledger(
    said: str, why: str, surroundings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to something else is refused by its name, and its password is not shown."""
    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_LEDGER", said)
    with pytest.raises(TerminalError, match=why) as caught:
        surroundings.find_ledger()
    assert "semel_ledger" in str(caught.value) and "hidden" not in str(caught.value)


def test_spark_has_a_connection_of_its_own_or_the_default(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semel_spark goes before spark_default; without both the error says how to make one."""
    from semel.airflow import spark

    with pytest.raises(TerminalError, match="has no connection semel_spark or spark_default"):
        spark._connection()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    assert spark._connection().conn_id == "spark_default"
    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_SPARK", '{"conn_type": "spark", "host": "local[1]"}')
    assert spark._connection().conn_id == "semel_spark"


def test_connections_go_where_source_and_sink_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only Airflow knows reaches both, and spark-submit; the environment's own wins."""
    from airflow.sdk import Connection

    from semel.airflow import surroundings
    from semel.clients.kafka import registry
    from semel.clients.kafka.connection import cluster_settings
    from semel.sinks.postgres.spec import PostgresSinkSpec
    from semel.sinks.postgres.target import dsn_of
    from semel.sources.kafka.spec import KafkaSourceSpec

    known = {
        "warehouse": Connection(
            conn_id="warehouse", conn_type="postgres", host="db", login="me", password="a/b@c",
            schema="sales", port=5433,
        ),
        "events": Connection(
            conn_id="events", conn_type="kafka", password="a/b@c",
            extra='{"bootstrap.servers": "one:9092,two:9092", "group.id": "theirs"}',
        ),
    }  # fmt: skip
    monkeypatch.setattr(surroundings, "connection_of", known.get)
    for name in ("WAREHOUSE", "EVENTS"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "")
    known["schemas"] = Connection(conn_id="schemas", conn_type="http", host="https://one:8081")
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", "")
    source = KafkaSourceSpec.model_construct(connection="events", registry="schemas")
    sink = PostgresSinkSpec.model_construct(connection="warehouse")
    spec = SimpleNamespace(source=source, sink=sink)
    surroundings.find_connections(spec)
    reached = {"bootstrap.servers": "one:9092,two:9092", "sasl.password": "a/b@c"}
    assert cluster_settings("events", None) == reached
    assert registry.registry_settings("schemas") == {"url": "https://one:8081"}
    parts = conninfo_to_dict(dsn_of("warehouse"))
    assert (parts["host"], parts["password"], parts["dbname"]) == ("db", "a/b@c", "sales")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgresql://you@there/other")
    surroundings.find_connections(spec)
    assert conninfo_to_dict(dsn_of("warehouse"))["host"] == "there"
