"""The fire's pipelines as the product makes their DAGs, each 20 seconds; collect each 2 minutes.

A pipeline's YAML knows minutes, so the seconds are put in here.
"""

from semel.airflow import COLLECT_DAG_ID, factory

EACH_20_SECONDS = "* * * * * */20"
factory.COLLECT_SCHEDULE = "1-59/2 * * * *"

specs = factory.load_pipelines()[0]
collect = factory.collect_dag([spec.name for spec in specs], None, COLLECT_DAG_ID)
globals().update(
    {
        spec.name: factory.pipeline_dag(spec.model_copy(update={"schedule": EACH_20_SECONDS}), None)
        for spec in specs
    }
)
