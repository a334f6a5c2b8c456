"""Opening Spark: what is said when it is away, and how progress is told."""

import threading
import time
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from semel.errors import UnavailableError
from semel.spark.session import (
    IDLE_SECONDS,
    PROGRESS_SECONDS,
    SPARK_ANSWER_SECONDS,
    _Progress,
    interrupt,
    open_engine,
)


def test_spark_away_is_said_at_once() -> None:
    """A Connect server that is not there is a retryable error within seconds, without its token."""
    began = time.monotonic()
    with (
        pytest.raises(UnavailableError, match=r"sc://127\.0\.0\.1:1/ does not answer") as caught,
        open_engine("sc://127.0.0.1:1/;token=secret"),
    ):
        pass
    assert time.monotonic() - began < SPARK_ANSWER_SECONDS
    assert "secret" not in str(caught.value)


def test_a_cancel_meets_the_job_that_begins_after_it() -> None:
    """A signal between the two jobs of a stage with transforms cancels the second one too; the end
    of the session ends that.
    """
    called, over = [], threading.Event()

    def cancel_what_runs() -> None:
        called.append(time.monotonic())
        if len(called) == 3:
            over.set()
            raise PySparkException("the session is closed")

    interrupt(SimpleNamespace(session=SimpleNamespace(interruptAll=cancel_what_runs)))
    assert over.wait(10)
    time.sleep(0.6)
    assert len(called) == 3


def test_progress_is_told_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often Spark reports, a line comes at most every few seconds, and never twice."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said: list[str] = []
    progress = _Progress(said.append)
    for step in range(1000):
        now = step * PROGRESS_SECONDS / 100
        progress.report([(min(step // 100, 4), 4), (0, 6)], running=2)
    assert said == [f"Spark: {done} of 10 tasks done, 2 running" for done in (1, 2, 3, 4)]


def test_executors_that_never_begin_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no task of a job begins, as of executors of another Spark, a line says so within
    seconds, once; a job whose tasks have begun may wait for a slot.
    """
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said: list[str] = []
    progress = _Progress(said.append)
    for _ in range(3 * int(IDLE_SECONDS)):
        now += 1
        progress.report([(0, 4)], running=0)
    assert [line for line in said if "no executor has taken a task" in line] == said[-1:]
    progress.report([(0, 4)], running=2)
    for _ in range(3 * int(IDLE_SECONDS)):
        now += 1
        progress.report([(1, 4), (0, 6)], running=0)
    assert len([line for line in said if "no executor has taken a task" in line]) == 1
