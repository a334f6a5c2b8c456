"""Registers semel with Airflow, so that `airflow plugins` and the UI show that it is installed."""

from airflow.plugins_manager import AirflowPlugin


class SemelPlugin(AirflowPlugin):
    """A name; what semel adds to Airflow are DAGs."""

    name = "semel"
