"""The buttons of a task instance: its run's batch, the batch's output and its dead letters.

The task's process computes the links when it ends, and Airflow keeps them as XComs. They lead to
the page of the run, which checks the user's rights and finds the batch.
"""

from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

PREFIX = "/semel"
"""The path of the pages, below Airflow's own."""


def airflow_path() -> str:
    """The path of Airflow's base_url; empty without one."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class BatchLink(BaseOperatorLink):
    """The batch of the task's run."""

    name = "Batch"
    part = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator
        run = f"{quote(ti_key.dag_id, safe='')}/runs/{quote(ti_key.run_id, safe='')}"
        return f"{airflow_path()}{PREFIX}/dags/{run}" + (self.part and f"?part={self.part}")


class OutputLink(BatchLink):
    """The output of the run's batch."""

    name = "Output"
    part = "output"


class LettersLink(BatchLink):
    """The dead letters of the run's batch."""

    name = "Dead letters"
    part = "letters"


class OperationsLink(BatchLink):
    """The page of all pipelines, those that need a person first."""

    name = "Operations"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator, ti_key
        return f"{airflow_path()}{PREFIX}/"


RUN_LINKS = (BatchLink(), OutputLink(), LettersLink(), OperationsLink())
COLLECT_LINKS = (OperationsLink(),)
