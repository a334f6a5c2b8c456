"""semel's tabs in Airflow: `semel` in the navigation, `Days` at each DAG, `Batch` at each run.

Airflow finds the plugin by its entry point and loads it in each of its processes, tasks included.
So the first request imports the pages, and not this module.
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
"""The name, place, route and page of each tab in Airflow, which fills the braces."""


class _Page:
    """The pages as an ASGI application, imported by the first request."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = import_module("semel.airflow.page.app").app
        await app(scope, receive, send)


class SemelPlugin(AirflowPlugin):
    """The pages and their tabs. Airflow does not authorize requests: each route does it itself."""

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
