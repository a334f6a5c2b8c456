"""A task's log: the first line that is marked ERROR says what is wrong, in one line."""

import logging
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException, QueryContextType

from semel.spark import session


@pytest.mark.parametrize("kind", [QueryContextType.DataFrame, QueryContextType.SQL])
def test_sparks_own_logger_says_details(
    kind: QueryContextType, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What its client logs of an exception goes to debug: on stderr Airflow marks it ERROR, and it
    stood before the reason."""
    context = SimpleNamespace(
        contextType=lambda: kind, callSite=lambda: "a.py:1", fragment=lambda: "collect"
    )
    error = PySparkException("Python worker exited unexpectedly", contexts=[context])
    session._to_debug()
    with caplog.at_level(logging.DEBUG, "semel"):
        error._log_exception()
    assert capfd.readouterr().err == ""
    [record] = caplog.records
    assert record.levelno == logging.DEBUG and "exited unexpectedly" in record.getMessage()
