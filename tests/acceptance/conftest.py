"""Fixtures of the acceptance tests."""

from fix_own_airflow import own_airflow  # noqa: F401
from fix_runs import begun  # noqa: F401
from fix_stack import _running_stack, stack  # noqa: F401
from fix_wheel import installed  # noqa: F401
