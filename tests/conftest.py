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

SHARED = {"stack": "stack", "cluster": "stack", "spark": "spark", "crashing": "crashing"}
"""Fixtures that take long to make, and the group of their tests: each runs in one process, one
after the other. The cluster does not start while the stack does."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests by what they share, for `pytest -n`, before that reads the groups."""
    for item in items:
        groups = [group for name, group in SHARED.items() if name in item.fixturenames]
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))
