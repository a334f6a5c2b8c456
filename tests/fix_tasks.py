"""Airflow's tasks of a pipeline, run in the process of a test with a real ledger."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fix_pipelines import Workbench
from semel.ledger import Ledger


def _home(folder: Path, patch: pytest.MonkeyPatch) -> None:
    if "airflow" not in sys.modules:
        patch.setenv("AIRFLOW_HOME", str(folder))


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may be imported, and writes nothing to the user's home."""
    _home(tmp_path, monkeypatch)


class Tasks:
    """Airflow's tasks of a pipeline in this process. `events`: what Airflow has stored of them."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @classmethod
    def of(
        cls, bench: Workbench, ledger: Ledger, folder: Path, patch: pytest.MonkeyPatch
    ) -> "Tasks":
        """Tasks of a project. `folder`: for what Airflow writes."""
        _home(folder, patch)
        patch.setenv("SEMEL_HOME", str(bench.folder))
        from semel.airflow import assets, operators  # noqa: F401 - all that Airflow starts with

        made = cls()
        patch.setattr(assets, "_events", lambda *_: made.events)
        return made

    def run(self, name: str, pipeline: str = "events", *, ends: bool = True) -> Any:
        """Run a task as Airflow does, and return it. Unless it `ends`, its process died before
        its success.
        """
        from airflow.sdk.execution_time.context import OutletEventAccessors

        from semel.airflow import operators

        task = getattr(operators, f"{name}Operator")(task_id=name.lower(), pipeline=pipeline)
        run = SimpleNamespace(dag_id=pipeline, run_id="r1", run_type="manual")
        told = OutletEventAccessors()
        ti = SimpleNamespace(try_number=1, max_tries=0)
        context = {
            "dag_run": run, "params": {}, "outlet_events": told, "task": task, "ti": ti
        }  # fmt: skip
        type(task).execute.__wrapped__(task, context)
        if ends:
            self.events += [SimpleNamespace(extra=one.extra) for one in told._dict.values()]
        return task


@pytest.fixture
def tasks(
    bench: Workbench, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tasks:
    """Tasks of this test's project."""
    return Tasks.of(bench, ledger, tmp_path, monkeypatch)
