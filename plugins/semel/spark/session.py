"""Opening a Spark session: over Connect, on a classic master, or inside of spark-submit.

Progress is said as plain lines. A session that was opened here is stopped here.
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
"""Tries after the first that a lost call to Spark Connect gets: 70 s, a server's restart."""

SPARK_ANSWER_SECONDS = 10.0
"""How long the first contact with a Spark Connect server may take before Spark counts as away."""

PROGRESS_SECONDS = 3.0
"""Spark's progress is said at most this often, so that a long stage does not fill a log."""

INTERRUPT_SECONDS = 30.0
"""How long what a session begins is cancelled, once it was interrupted. Airflow kills after five."""

SUBMITTED = "submitted"
"""In place of a master: the one that spark-submit was given."""

_log = logging.getLogger(__name__)

_INTERRUPT_AGAIN_SECONDS = 0.5
_CONNECT_PORT = 15002  # Spark's own default


@contextmanager
def open_engine(remote_or_master: str, log: Log = print) -> Iterator[SparkEngine]:
    """An engine on `sc://host:port`, on a master such as `local[4]`, or on SUBMITTED.

    UnavailableError: Spark does not answer. TerminalError: it lacks a setting that semel needs.
    """
    _to_debug("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    connect = remote_or_master.startswith("sc://")
    session = _connect(remote_or_master) if connect else _classic(remote_or_master)
    try:
        try:
            session.conf.set("spark.sql.session.timeZone", SETTINGS["spark.sql.session.timeZone"])
            engine = SparkEngine(session)
        except PySparkException as error:
            raise _away(remote_or_master, error) from error
        if connect:
            session.registerProgressHandler(_Progress(log))
            yield engine
        else:
            with _watched(session, _Progress(log)):
                yield engine
    finally:
        if connect:
            # stop() ends the session before these are sent, and logs that the server refused them.
            wait(session.client._release_futures, SPARK_ANSWER_SECONDS)
        session.stop()


class _Debug(logging.Handler):
    """Passes on to semel's own logger, as details."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.debug(self.format(record))


def _to_debug(*names: str) -> None:
    """What Spark's client logs of an exception that it raises, several kB of JSON on stderr, is
    said in one line by who catches it.
    """
    for name in names:
        logger = PySparkLogger.getLogger(name)
        logger.handlers.clear()
        logger.addHandler(_Debug())
        logger.propagate = False


def interrupt(engine: SparkEngine) -> None:
    """Cancel what the engine's session runs, and for some seconds what it begins: a job with
    transforms is two, and a signal may come between them. Meant for signal handlers: it waits for
    nothing.
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
    """A session of its own on a Connect server that answers."""
    address = urlsplit(remote.partition(";")[0])
    try:
        place = (address.hostname or "", address.port or _CONNECT_PORT)
        socket.create_connection(place, SPARK_ANSWER_SECONDS).close()
    except OSError as error:  # Spark's client alone would try for minutes before it says so.
        raise _away(remote, error) from error
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _to_debug("pyspark.sql.connect.logging")  # Which gets its handler when it is imported.
    try:
        session = SparkSession.builder.remote(remote).create()
    except PySparkException as error:
        raise _away(remote, error) from error
    session.client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES_MAX)])
    return session


def _classic(master: str) -> SparkSession:
    """A session whose driver is this process."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Workers need the same packages.
    builder = SparkSession.builder.appName("semel").config(map=settings_for(master))
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master != SUBMITTED:
        builder = builder.master(master)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _away(where: str, error: Exception) -> UnavailableError:
    shown = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    # What follows a `;` of a Connect address may hold a token.
    return UnavailableError(
        f"Spark at {where.partition(';')[0]} does not answer ({shown[:300]})"
    )


class _Progress:
    """Says how many tasks are done, when that changed, at most every few seconds."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.said = ""
        self.next_time = time.monotonic() + PROGRESS_SECONDS

    def __call__(
        self,
        stages: Iterable | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002 - Spark passes it by name
        done: bool,  # noqa: ARG002 - the same
    ) -> None:
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        self.tell(counts, inflight_tasks)

    def tell(self, counts: list[tuple[int, int]], running: int) -> None:
        """`counts`: tasks done and in all, for each stage."""
        done, total = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        line = f"Spark: {done} of {total} tasks done, {running} running"
        if total and line != self.said and time.monotonic() >= self.next_time:
            self.log(line)
            self.said = line
            self.next_time = time.monotonic() + PROGRESS_SECONDS


@contextmanager
def _watched(session: SparkSession, progress: _Progress) -> Iterator[None]:
    """Tell the progress of a classic session, which calls nobody back."""
    tracker = session.sparkContext.statusTracker()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(PROGRESS_SECONDS):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            found = [stage for stage in stages if stage]
            counts = [(stage.numCompletedTasks, stage.numTasks) for stage in found]
            progress.tell(counts, sum(stage.numActiveTasks for stage in found))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
