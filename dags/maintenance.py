"""The Airflow DAG that runs collect for every pipeline."""

from semel.airflow.factory import collect_dag

dag = collect_dag()
