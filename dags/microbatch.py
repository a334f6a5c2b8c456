"""One Airflow DAG for each pipeline in pipelines/*.yaml."""

from semel.airflow.factory import pipeline_dags

globals().update(pipeline_dags())
