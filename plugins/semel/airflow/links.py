"""The buttons of a task instance: to its run's batch, that one's output and dead letters.

The task's process works them out when it ends, and Airflow keeps them as XComs. They lead to the
page of the run, which asks who may see it and finds its batch.
"""

from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

PREFIX = "/semel"
"""Below which path of Airflow's the pages lie."""


def above() -> str:
    """The path that Airflow itself lies below: empty, unless its base_url has one."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class BatchLink(BaseOperatorLink):
    """The batch of the task's run."""

    name = "Batch"
    part = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator
        run = f"{quote(ti_key.dag_id, safe='')}/runs/{quote(ti_key.run_id, safe='')}"
        return f"{above()}{PREFIX}/dags/{run}" + (self.part and f"?part={self.part}")


class OutputLink(BatchLink):
    """What it wrote."""

    name = "Output"
    part = "output"


class LettersLink(BatchLink):
    """What it set aside."""

    name = "Dead letters"
    part = "letters"


class OperationsLink(BatchLink):
    """All pipelines: what needs a person stands on top."""

    name = "Operations"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator, ti_key
        return f"{above()}{PREFIX}/"


OF_A_RUN = (BatchLink(), OutputLink(), LettersLink(), OperationsLink())
OF_COLLECT = (OperationsLink(),)
