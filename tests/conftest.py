"""Fixtures for every folder of tests."""

import pytest
from fix_engine import engine  # noqa: F401
from fix_pipelines import bench  # noqa: F401
from fix_postgres import ledger, ledger_dsn, postgres, template  # noqa: F401
from fix_spark import spark, spark_engine  # noqa: F401
from hypothesis import HealthCheck, settings

# No test is timed: a machine that has other work to do must not turn one red.
settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")

SHARED = ("stack", "cluster", "spark", "crashing")
"""Fixtures that take long to make: the tests of each run in one process, one after the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests by what they share, for `pytest -n`."""
    for item in items:
        for name in SHARED:
            if name in item.fixturenames:
                item.add_marker(pytest.mark.xdist_group(name))
                break
