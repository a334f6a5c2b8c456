"""What semel adds to Airflow's pages: `semel` in the navigation, `Days` at each DAG.

An entry point names this class, so that an Airflow that semel is installed in has it. Each of its
processes loads it, a task's too: the page itself is imported by the first request for it.
"""

from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from semel.airflow.links import PREFIX, airflow_path

_VIEWS = (
    ("semel", "nav", "semel", ""),
    ("Days", "dag", "semel-days", "dags/{DAG_ID}"),
    ("Batch", "dag_run", "semel-batch", "dags/{DAG_ID}/runs/{RUN_ID}"),
    ("Batch", "task_instance", "semel-batch-of-task", "dags/{DAG_ID}/runs/{RUN_ID}"),
)
"""Name, place and route in Airflow of each tab; and its page, whose braces Airflow fills."""


class _Page:
    """The page as an ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = import_module("semel.airflow.page.app").app
        await app(scope, receive, send)


class SemelPlugin(AirflowPlugin):
    """The pages. Airflow asks nobody who they are for: each of their routes does so itself."""

    name = "semel"
    fastapi_apps = [{"name": "semel", "app": _Page(), "url_prefix": PREFIX}]
    external_views = [
        {
            "name": name, "destination": at, "url_route": route,
            "href": f"{airflow_path()}{PREFIX}/{path}",
            "icon": f"{airflow_path()}{PREFIX}/semel.svg",
        }
        for name, at, route, path in _VIEWS
    ]  # fmt: skip
