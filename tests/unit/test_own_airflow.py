"""semel in an Airflow that it did not start: DAG files of one's own, Variables, connections."""

import os
from pathlib import Path
from typing import Any

import pytest

from fix_dags import parsed_files, write
from semel import settings
from semel.errors import TerminalError

TWO_LINES = """
from semel.airflow import dags
dags(globals(), "pipelines/")
"""

BESIDE = """
from semel.airflow import dags, broken_dags
from airflow.sdk import DAG
with DAG("theirs"): pass
dags(globals(), "more", collect="collect_more")
"""

BY_HAND = '''
from airflow.sdk import DAG, chain
from semel.airflow.operators import CommitOperator, FinalizeOperator, PlanOperator, StageOperator
with DAG("by_hand", schedule="@daily"):
    where = {{"pipeline": "clicks", "folder": {folder!r}}}
    chain(
        PlanOperator(task_id="plan", **where),
        StageOperator(task_id="stage", **where),
        CommitOperator(task_id="commit", **where),
        FinalizeOperator(task_id="finalize", **where),
    )
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of DAG files of one's own, with two folders of pipelines."""
    for name in ("pipelines", "more"):
        (tmp_path / "dags" / name).mkdir(parents=True)
    write(tmp_path / "dags" / "pipelines", "clicks")
    write(tmp_path / "dags" / "more", "views")
    (tmp_path / "dags" / "ours.py").write_text(TWO_LINES)
    return tmp_path


def found_in(own: Path, *only: str, **variables: str) -> dict[str, Any]:
    """What Airflow finds there. Folders are Variables of Airflow's unless they are named."""
    inside = {"AIRFLOW_VAR_SEMEL_DATA_ROOTS": str(own / "data")}
    return parsed_files(own, own / "dags", variables or inside, *only)



def test_two_lines_make_the_dags(own: Path) -> None:
    """Airflow finds the file with its safe mode on; the folder is relative to the DAG file."""
    found = found_in(own)
    assert found["errors"] == {}
    assert set(found["dags"]) == {"clicks", "semel_collect"}


def test_dags_beside_others(own: Path) -> None:
    """A second folder has a collecting DAG of its own; a DAG of the user's stays as it is."""
    (own / "dags" / "beside.py").write_text(BESIDE)
    found = found_in(own)
    assert found["errors"] == {}
    assert set(found["dags"]) == {"clicks", "semel_collect", "views", "collect_more", "theirs"}
    assert set(found_in(own, "theirs")["dags"]) == {"theirs"}
    assert set(found_in(own, "views")["dags"]) == {"views", "theirs"}


def test_broken_files_show_in_a_file_of_their_own(own: Path) -> None:
    """What is wrong takes no other pipeline down, and is an import error of the second file."""
    (own / "dags" / "pipelines" / "typo.yaml").write_text("name: typo\nsurce: {}\n")
    broken = 'from semel.airflow import broken_dags\nbroken_dags(globals(), "pipelines/")\n'
    (own / "dags" / "broken.py").write_text(broken)
    found = found_in(own)
    assert set(found["dags"]) == {"clicks", "semel_collect"}
    assert list(found["errors"]) == ["broken.py"]
    assert "typo.yaml:2: surce:" in found["errors"]["broken.py"]


def test_a_clash_with_the_collecting_dag_is_told(own: Path) -> None:
    """A DAG that collects may not take a pipeline's name."""
    line = TWO_LINES.replace('"pipelines/"', '"pipelines/", collect="clicks"')
    (own / "dags" / "ours.py").write_text(line)
    found = found_in(own)
    assert found["dags"] == {}
    assert "give the DAG that collects another name" in found["errors"]["ours.py"]


def test_operators_by_hand(own: Path) -> None:
    """The four operators make a DAG of one's own."""
    (own / "dags" / "ours.py").write_text(BY_HAND.format(folder=str(own / "dags" / "pipelines")))
    found = found_in(own)
    assert found["errors"] == {}
    assert [task["__var"]["task_id"] for task in found["dags"]["by_hand"]["tasks"]] == [
        "plan", "stage", "commit", "finalize"
    ]  # fmt: skip


def test_variables_name_the_folders(own: Path) -> None:
    """Without a folder in the DAG file, Airflow's Variable names it; the environment goes first."""
    (own / "dags" / "ours.py").write_text(TWO_LINES.replace(', "pipelines/"', ""))
    inside = {
        "AIRFLOW_VAR_SEMEL_DATA_ROOTS": str(own / "data"),
        "AIRFLOW_VAR_SEMEL_PIPELINES_DIR": str(own / "dags" / "more"),
    }
    assert set(found_in(own, **inside)["dags"]) == {"views", "semel_collect"}
    inside["SEMEL_PIPELINES_DIR"] = str(own / "dags" / "pipelines")
    assert set(found_in(own, **inside)["dags"]) == {"clicks", "semel_collect"}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as one of an Airflow with semel as a package, and nothing said yet."""
    for name in [name for name in os.environ if name.startswith(("SEMEL_", "AIRFLOW"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(settings, "project", lambda: None)
    # What is set by the code under test goes with the test.
    for name in (settings.LEDGER_VARIABLE, settings.DATA_VARIABLE, settings.PIPELINES_VARIABLE):
        monkeypatch.setenv(name, "")
    return tmp_path


def test_nobody_guesses_where_data_lies(alone: Path) -> None:
    """The working folder of a task is no place for data: without a word the task says what to do.

    1. A task on one worker writes below its working folder. 2. The next one runs in another folder,
    and finds nothing there.
    """
    from semel.airflow import surroundings

    with pytest.raises(TerminalError, match="set the Airflow Variable semel_data_roots, or SEMEL_"):
        surroundings.find_folders()


def test_the_ledger_is_a_connection(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection semel_ledger names it, with TLS and odd passwords; the environment wins."""
    from semel.airflow import surroundings

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
        ("postgres://me:hidden@db/semel?cursor=x", "extra field has what PostgreSQL's client"),
    ],
)
def test_a_connection_that_is_no_ledger(
    said: str, why: str, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to something else is refused by its name, and its password is not shown."""
    from semel.airflow import surroundings

    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_LEDGER", said)
    with pytest.raises(TerminalError, match=why) as caught:
        surroundings.find_ledger()
    assert "semel_ledger" in str(caught.value) and "hidden" not in str(caught.value)


def test_spark_has_a_connection_of_its_own_or_the_default(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semel_spark goes before spark_default; without both the error says how to make one."""
    from semel.airflow import spark

    with pytest.raises(TerminalError, match="no Airflow connection semel_spark or spark_default"):
        spark._connection()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    assert spark._connection().conn_id == "spark_default"
    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_SPARK", '{"conn_type": "spark", "host": "local[1]"}')
    assert spark._connection().conn_id == "semel_spark"
