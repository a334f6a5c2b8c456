"""The local stack, as `semel up` starts it, with folders of its own; one for each file of tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from airflow_rest import Airflow, wait_for
from fix_pipelines import Workbench

from semel import stack as semel_stack

PARSED_SECONDS_MAX = 60


class Stack(Workbench):
    """A running stack, and the folder of its data and pipelines."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment = {
            "SEMEL_STATE_DIR": str(folder / "state"),
            "SEMEL_DATA_ROOTS": str(self.data),
            "SEMEL_PIPELINES_DIR": str(self.pipelines),
        }
        self.airflow: Airflow

    def start(self) -> None:
        """Start it, or find it running, and log in."""
        semel_stack.up(echo=print)
        self.airflow = Airflow(semel_stack.connection())

    def wait_for_dags(self, *names: str) -> None:
        """Wait until Airflow has parsed these pipelines."""
        wait_for(
            lambda: self.airflow.dags() >= set(names), f"the DAGs {names}", PARSED_SECONDS_MAX
        )

    def query(self, statement: str, *values: object) -> list[tuple]:
        """Rows of the ledger."""
        with psycopg.connect(semel_stack.ledger_dsn()) as connection:
            return connection.execute(statement, values).fetchall()


@pytest.fixture(scope="module")
def _running_stack() -> Iterator[Stack]:
    # Not pytest's folder: Postgres runs as another user, who could not enter it.
    folder = Path(tempfile.mkdtemp(prefix="semel-stack-"))
    folder.chmod(0o755)
    made = Stack(folder)
    with pytest.MonkeyPatch.context() as patch:
        _enter(patch, made)
        try:
            made.start()
            yield made
        finally:
            _enter(patch, made)
            semel_stack.down(echo=print)
            shutil.rmtree(folder)


@pytest.fixture
def stack(_running_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The running stack; this process sees its folders while the test runs."""
    _enter(monkeypatch, _running_stack)
    return _running_stack


def _enter(patch: pytest.MonkeyPatch, stack: Stack) -> None:
    """Set the stack's variables, and none of a developer's own."""
    for name in [n for n in os.environ if n.startswith(("SEMEL_", "AIRFLOW"))]:
        patch.delenv(name)
    for name, value in stack.environment.items():
        patch.setenv(name, value)
