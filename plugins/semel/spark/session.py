"""Open a Spark session: over Connect, on a classic master, or inside of spark-submit.

Logs progress as plain lines, and stops the sessions that it opened.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from semel.errors import UnavailableError
from semel.model.batch import Log
from semel.spark.engine import SparkEngine
from semel.spark.settings import SETTINGS, settings_for

CONNECT_RETRIES_MAX = 6
"""Retries of a lost call to Spark Connect: 70 s, enough for a server's restart."""

SPARK_ANSWER_SECONDS = 10.0
"""Maximum time to connect to a Spark Connect server before Spark counts as unavailable."""

PROGRESS_SECONDS = 3.0
"""Minimum time between two lines of Spark's progress, so that a long stage does not fill a log."""

INTERRUPT_SECONDS = 30.0
"""How long after an interrupt semel cancels new jobs too. Airflow kills it after five seconds."""

SUBMITTED = "submitted"
"""Stands for spark-submit's own master."""

_log = logging.getLogger(__name__)

_INTERRUPT_AGAIN_SECONDS = 0.5
_CONNECT_PORT = 15002  # Spark's own default


@contextmanager
def open_engine(remote_or_master: str, log: Log = print) -> Iterator[SparkEngine]:
    """An engine on `sc://host:port`, on a master such as `local[4]`, or on SUBMITTED.

    Raises UnavailableError if Spark does not answer, TerminalError if it lacks a setting.
    """
    _to_debug("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    connect = remote_or_master.startswith("sc://")
    session = _connect(remote_or_master) if connect else _classic(remote_or_master)
    try:
        try:
            session.conf.set("spark.sql.session.timeZone", SETTINGS["spark.sql.session.timeZone"])
            engine = SparkEngine(session)
        except PySparkException as error:
            raise _unavailable(remote_or_master, error) from error
        if connect:
            session.registerProgressHandler(_Progress(log))
            yield engine
        else:
            with _report_progress(session, _Progress(log)):
                yield engine
    finally:
        if connect:
            # stop() would end the session before these calls, and log that the server refused them.
            wait(session.client._release_futures, SPARK_ANSWER_SECONDS)
        session.stop()


class _Debug(logging.Handler):
    """Forwards records to semel's own logger, at level DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.debug(self.format(record))


def _to_debug(*names: str) -> None:
    """Log Spark's loggers of these names at level DEBUG.

    For each exception, Spark's client writes several kB of JSON to stderr; semel logs one line.
    """
    for name in names:
        logger = PySparkLogger.getLogger(name)
        logger.handlers.clear()
        logger.addHandler(_Debug())
        logger.propagate = False


def interrupt(engine: SparkEngine) -> None:
    """Cancel the session's jobs, and for INTERRUPT_SECONDS also jobs that it begins: with
    transforms there are two jobs, and a signal may come between them. Returns at once, for use in
    signal handlers.
    """

    def again() -> None:
        until = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < until:
            try:
                engine.session.interruptAll()
            except (PySparkException, ValueError):  # The session, or its channel, is closed.
                return
            time.sleep(_INTERRUPT_AGAIN_SECONDS)

    if hasattr(engine.session, "interruptAll"):
        threading.Thread(target=again, daemon=True).start()


def _connect(remote: str) -> SparkSession:
    """Create a session on a Connect server. Raises UnavailableError if it does not answer."""
    address = urlsplit(remote.partition(";")[0])
    try:
        place = (address.hostname or "", address.port or _CONNECT_PORT)
        socket.create_connection(place, SPARK_ANSWER_SECONDS).close()
    except OSError as error:  # Spark's client alone would try for minutes before it raises.
        raise _unavailable(remote, error) from error
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _to_debug("pyspark.sql.connect.logging")  # Only after its import, which adds a handler.
    try:
        session = SparkSession.builder.remote(remote).create()
    except PySparkException as error:
        raise _unavailable(remote, error) from error
    session.client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES_MAX)])
    return session


def _classic(master: str) -> SparkSession:
    """Create a session whose driver is this process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Workers need the same packages.
    builder = SparkSession.builder.appName("semel").config(map=settings_for(master))
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master != SUBMITTED:
        builder = builder.master(master)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _unavailable(where: str, error: Exception) -> UnavailableError:
    why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    # A Connect address may have a token after its first `;`.
    return UnavailableError(f"Spark at {where.partition(';')[0]} does not answer ({why[:300]})")


class _Progress:
    """Logs the number of finished tasks after each change, at most every PROGRESS_SECONDS."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.last_line = ""
        self.next_time = time.monotonic() + PROGRESS_SECONDS

    def __call__(
        self,
        stages: Iterable | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002 - Spark passes it by name
        done: bool,  # noqa: ARG002 - the same
    ) -> None:
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        self.report(counts, inflight_tasks)

    def report(self, counts: list[tuple[int, int]], running: int) -> None:
        """Log a line. `counts`: the finished tasks and all tasks, for each stage."""
        ended, total = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        line = f"Spark: {ended} of {total} tasks done, {running} running"
        if total and line != self.last_line and time.monotonic() >= self.next_time:
            self.log(line)
            self.last_line = line
            self.next_time = time.monotonic() + PROGRESS_SECONDS


@contextmanager
def _report_progress(session: SparkSession, progress: _Progress) -> Iterator[None]:
    """Log the progress of a classic session, which has no progress handlers."""
    tracker = session.sparkContext.statusTracker()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(PROGRESS_SECONDS):
            infos = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            stages = [stage for stage in infos if stage]
            counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
            progress.report(counts, sum(stage.numActiveTasks for stage in stages))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
