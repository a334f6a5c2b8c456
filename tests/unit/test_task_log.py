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
    session._demote_loggers("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    with caplog.at_level(logging.DEBUG, "semel"):
        error._log_exception()
    assert capfd.readouterr().err == ""
    [record] = caplog.records
    assert record.levelno == logging.DEBUG and "exited unexpectedly" in record.getMessage()


def test_what_sparks_client_says_of_a_server_that_went(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed server's next one knows no session of it: 30 lines, before the reason."""
    from pyspark.sql.connect.logging import logger

    monkeypatch.setattr(logger, "disabled", False)  # As Airflow has it.
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(session.socket, "create_connection", lambda *_: SimpleNamespace(close=str))
    monkeypatch.setattr(session, "SparkSession", _Server)
    with pytest.raises(ConnectionError):
        session._connect("sc://localhost:15002")
    assert capsys.readouterr().err == ""


class _Server:
    """In the place of SparkSession: a server whose last session is gone."""

    class builder:  # noqa: N801
        @staticmethod
        def remote(_remote: str) -> None:
            from pyspark.sql.connect.logging import logger

            logger.warning("ReleaseExecute failed with exception")
            raise ConnectionError
