"""The fire's pipelines as the product makes their DAGs, each 20 seconds; collect each 2 minutes.

A pipeline's YAML knows minutes, so the seconds are put in here.
"""

from semel.airflow import factory

EACH_20_SECONDS = "* * * * * */20"
factory.COLLECT_SCHEDULE = "1-59/2 * * * *"

collect = factory.collect_dag()
globals().update(
    {
        spec.name: factory.pipeline_dag(spec.model_copy(update={"schedule": EACH_20_SECONDS}))
        for spec in factory.load()[0]
    }
)
