"""No DAG: shows what is wrong with a pipeline's YAML among Airflow's import errors.

It stands apart from microbatch.py because Airflow stops all DAGs of a file with an import error.
"""

from semel.airflow import broken_dags

broken_dags(globals())
