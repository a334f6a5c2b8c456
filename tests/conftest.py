"""Fixtures for every folder of tests, and how many tests run at once."""

import os

import pytest
from hypothesis import HealthCheck, settings
from no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

from fix_avro import avro  # noqa: F401
from fix_certificates import authority, stranger  # noqa: F401
from fix_engine import engine  # noqa: F401
from fix_kafka import broker, kafka, kafka_jars  # noqa: F401
from fix_topics import topic  # noqa: F401
from fix_new import new, refused  # noqa: F401
from fix_pages import pages, pages_server  # noqa: F401
from fix_pipelines import bench  # noqa: F401
from fix_postgres import executors_state, ledger, ledger_dsn, postgres, template  # noqa: F401
from fix_receivers import mail, statsd, web  # noqa: F401
from fix_registry import registry  # noqa: F401
from fix_sink_kafka import outlet  # noqa: F401
from fix_sink_postgres import warehouse  # noqa: F401
from fix_spark import spark, spark_engine  # noqa: F401

# No test is timed: a machine that has other work to do must not turn one red.
settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")

WORKERS_MAX = 4
"""Each has a Postgres, and a Spark and a broker once it needs them: some 2 GiB."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: tests wait for other processes, so one more than there are cores."""
    return min((os.cpu_count() or 1) + 1, WORKERS_MAX)
