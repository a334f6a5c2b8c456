"""DAG files and the plugin in each version of Airflow that semel works with."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.airflow.dags import BEHIND_DAYS, BY_INTERVAL, OF_TOPICS, parsed, write
from fixtures.airflow.versions import VERSIONS, airflow_environment

pytestmark = pytest.mark.proof

LATE = "deadline: 1 hour\nnotify: [ops]\n"

IMPORT = """
import pkgutil, semel.airflow
from importlib import import_module
for module in pkgutil.walk_packages(semel.airflow.__path__, "semel.airflow."):
    import_module(module.name)
print(semel.airflow.AIRFLOW_VERSION)
"""


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline of each kind of schedule, and one with a deadline."""
    folder = tmp_path_factory.mktemp("pipelines")
    write(folder, "clicks")
    write(folder, "days", '"0 0 * * *"', BY_INTERVAL)
    (folder / "orders.yaml").write_text(OF_TOPICS)
    (folder / "behind.yaml").write_text(BEHIND_DAYS)
    late = write(folder, "late", '"0 0 * * *"')
    late.write_text(late.read_text() + LATE)
    return folder


@pytest.fixture(scope="module")
def expected(pipelines: Path) -> dict[str, Any]:
    """What the Airflow of the tests' own environment finds."""
    return parsed(pipelines)


def shape(found: dict[str, Any]) -> dict[str, list[str]]:
    """The tasks of each DAG."""
    return {
        name: [task["__var"]["task_id"] for task in dag["tasks"]]
        for name, dag in found["dags"].items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_dag_files(version: str, pipelines: Path, expected: dict[str, Any]) -> None:
    """That Airflow finds the same DAGs and tasks, the deadline and the plugin, without an error."""
    found = parsed(pipelines, python=airflow_environment(version))
    assert found["errors"] == {} and "semel" in found["plugins"]
    assert found["plugins"] == expected["plugins"]
    assert shape(found) == shape(expected)
    assert "tell_of_late_run" in json.dumps(found["dags"]["late"]["deadline"])


@pytest.mark.parametrize("version", VERSIONS)
def test_each_module_imports(version: str, tmp_path: Path) -> None:
    """Operators, sensors, pages and lineage: no name is missing there."""
    done = subprocess.run(
        [airflow_environment(version), "-c", IMPORT], env={"AIRFLOW_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == version
