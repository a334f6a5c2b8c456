"""With SEMEL_NO_SKIPS a test that is skipped has failed: CI has all that the tests need.

On a user's machine a tool may be missing; then a line says what to install: one line, however many
tests need the tool.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "SEMEL_NO_SKIPS"

Reports = Generator[None, pytest.TestReport, pytest.TestReport]
CollectReports = Generator[None, pytest.CollectReport, pytest.CollectReport]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Reports:
    """A test, or a fixture of it, that skips."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> CollectReports:
    """A whole module that does, as `pytest.importorskip` lets it."""
    return _judged((yield))


def _judged(report: Any) -> Any:
    if report.skipped and not hasattr(report, "wasxfail"):
        *_, why = report.longrepr
        # Skips of one place and one reason are one line: the place is the folder of all tests.
        report.longrepr = (str(Path(__file__).parent), None, why)
        if os.environ.get(VARIABLE):
            said = f"{why} ({VARIABLE} is set, and a skipped test counts as a failed one)"
            report.outcome, report.longrepr = "failed", said
    return report
