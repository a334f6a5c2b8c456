"""What semel adds to Airflow's pages: `semel` in the navigation, `Days` at each DAG.

An entry point names this class, so that an Airflow that semel is installed in has it. Each of its
processes loads it, a task's too: the page itself is imported by the first request for it.
"""

from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from semel.airflow.links import PREFIX, above


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
            "name": "semel",
            "href": f"{above()}{PREFIX}/",
            "destination": "nav",
            "url_route": "semel",
        },
        {
            "name": "Days",
            "href": f"{above()}{PREFIX}/dags/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "semel-days",
        },
        {
            "name": "Batch",
            "href": f"{above()}{PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "semel-batch",
        },
        {
            "name": "Batch",
            "href": f"{above()}{PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
            "destination": "task_instance",
            "url_route": "semel-batch-of-task",
        },
    ]
