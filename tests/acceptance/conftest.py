"""Fixtures of the acceptance tests."""

from pathlib import Path

import pytest

from fix_browser import browser, ui  # noqa: F401
from fix_stack import Stack, _running_stack, begun, stack  # noqa: F401
from fix_wheel import core, installed, wheels, without_semel  # noqa: F401

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """The stack ends with the last test here: idle it would take a fifth of a core from others."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        Stack.end()
