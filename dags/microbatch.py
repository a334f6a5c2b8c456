"""One Airflow DAG for each pipeline in pipelines/*.yaml, and one that runs collect for all."""

from semel.airflow import dags

dags(globals())
