"""Fixtures for every folder of tests: tests/workers.py loads them where tests run."""

from fix_avro import avro, registry  # noqa: F401
from fix_certificates import authority, stranger  # noqa: F401
from fix_engine import engine  # noqa: F401
from fix_kafka import broker, kafka, kafka_jars  # noqa: F401
from fix_pages import pages, pages_server  # noqa: F401
from fix_pipelines import bench  # noqa: F401
from fix_postgres import (  # noqa: F401
    emptied,
    executors_state,
    ledger,
    ledger_dsn,
    postgres,
    template,
)
from fix_receivers import mail, statsd, web  # noqa: F401
from fix_shell import shell  # noqa: F401
from fix_sink_kafka import outlet  # noqa: F401
from fix_sink_postgres import table, warehouse, warehouse_dsn  # noqa: F401
from fix_spark import spark, spark_engine  # noqa: F401
from fix_tasks import airflow, tasks  # noqa: F401
from fix_topics import topic  # noqa: F401
