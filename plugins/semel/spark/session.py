"""Open a Spark session: over Connect, on a classic master, or inside spark-submit.

`open_engine` logs Spark's progress as plain lines, and stops the session at its end.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from semel import settings
from semel.errors import (
    MissingPackageError,
    RetryableError,
    SemelError,
    TerminalError,
    UnavailableError,
)
from semel.model.batch import Log
from semel.spark import versions
from semel.spark.engine import SparkEngine
from semel.spark.settings import SETTINGS, settings_for

CONNECT_RETRIES_MAX = 6
"""Retries of a failed call to Spark Connect. They last 70 s, enough for the server to restart."""

SPARK_ANSWER_SECONDS = 10.0
"""Longest wait for a Spark Connect server: to accept a connection, and to release its queries."""

PROGRESS_SECONDS = 3.0
"""Minimum time between two lines of Spark's progress, so that a long stage does not fill a log."""

IDLE_SECONDS = 20.0
"""How long no executor may take a task before semel names the usual reasons, once."""

INTERRUPT_SECONDS = 30.0
"""How long `interrupt` cancels new jobs: longer than the 5 s after which Airflow kills a task."""

SUBMITTED = "submitted"
"""For `open_engine`: the master that spark-submit has set."""

_NO_EXECUTOR = (
    f"Spark: no executor has taken a task for {IDLE_SECONDS:.0f} s. All are busy, or none can "
    "start: they have another version of Spark than the driver, another Python, or too little "
    "memory. Read Spark's own log for the reason"
)

_log = logging.getLogger(__name__)

_INTERRUPT_AGAIN_SECONDS = 0.5
_CONNECT_PORT = 15002  # Spark's own default
_UNAUTHENTICATED = "StatusCode.UNAUTHENTICATED"  # gRPC's status for HTTP's 401


@contextmanager
def open_engine(
    remote_or_master: str, log: Log = print, *, token_of: str = settings.SPARK_VARIABLE
) -> Iterator[SparkEngine]:
    """An engine for one block. It uses `sc://host:port`, a master such as `local[4]`, or SUBMITTED.

    `token_of`: the place of the token, for errors. Raises UnavailableError if Spark does not
    answer. Raises TerminalError if Spark was started without a setting that semel needs, if its
    version does not fit, or if it rejects the token. A token that expires within the block becomes
    a RetryableError, because the next session reads the token again.
    """
    versions.check_driver()
    engine: SparkEngine | None = None
    try:
        with _open(remote_or_master, log) as engine:
            yield engine
    except (SemelError, PySparkException) as error:
        if not _is_token_rejected(error):
            raise
        kind = TerminalError if engine is None else RetryableError
        verb = "rejects" if engine is None else "no longer accepts"
        raise kind(
            f"Spark at {_without_options(remote_or_master)} {verb} the token of {token_of}. "
            "Nothing was committed. Renew that token, then run this again"
        ) from error


@contextmanager
def _open(remote_or_master: str, log: Log) -> Iterator[SparkEngine]:
    _demote_loggers("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    connect = remote_or_master.startswith("sc://")
    session = _connect(remote_or_master) if connect else _open_classic(remote_or_master)
    try:
        try:
            version = versions.check_session(session, connect=connect)
            if remark := versions.note(version):
                log(remark)
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
            versions.await_releases(session, SPARK_ANSWER_SECONDS)
        session.stop()


class _DebugHandler(logging.Handler):
    """Forwards records to semel's own logger, at level DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.debug(self.format(record))


def _demote_loggers(*names: str) -> None:
    """Send the records of the named Spark loggers to semel's own logger, at level DEBUG.

    For each exception, Spark's client writes several kB of JSON to stderr. semel's own error is one
    line.
    """
    from pyspark.logger import PySparkLogger  # An unsupported pyspark lacks it.

    for name in names:
        logger = PySparkLogger.getLogger(name)
        logger.handlers.clear()
        logger.addHandler(_DebugHandler())
        logger.propagate = False


def interrupt(engine: SparkEngine) -> None:
    """Cancel the session's jobs, in a thread that repeats this for INTERRUPT_SECONDS.

    Stage with transforms runs two jobs, and a signal may come between them. Returns at once, so a
    signal handler may call it.
    """

    def cancel_jobs() -> None:
        deadline = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < deadline:
            try:
                engine.session.interruptAll()
            except (PySparkException, ValueError):  # The session, or its channel, is closed.
                return
            time.sleep(_INTERRUPT_AGAIN_SECONDS)

    if hasattr(engine.session, "interruptAll"):
        threading.Thread(target=cancel_jobs, daemon=True).start()


def _connect(remote: str) -> SparkSession:
    """Create a session on a Connect server. Raises UnavailableError if that does not answer."""
    address = urlsplit(remote.partition(";")[0])
    try:
        host_and_port = (address.hostname or "", address.port or _CONNECT_PORT)
        socket.create_connection(host_and_port, SPARK_ANSWER_SECONDS).close()
    except OSError as error:  # Spark's client alone would try for minutes before it raises.
        raise _unavailable(remote, error) from error
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _demote_loggers("pyspark.sql.connect.logging")  # The import above has added a handler.
    try:
        session = SparkSession.builder.remote(remote).create()
    except PySparkException as error:
        raise _unavailable(remote, error) from error
    session.client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES_MAX)])
    return session


def _open_classic(master: str) -> SparkSession:
    """Create a session whose driver is this process, or return the existing one.

    Raises MissingPackageError if this Python has pyspark-client alone, which Airflow's provider
    brings.
    """
    if is_remote_only():
        raise MissingPackageError(
            f"Spark: this Python has pyspark-client alone, which starts no driver for {master}. "
            "Nothing was started. Install semel[spark], or name a Spark Connect server",
            next="pip install 'semel[spark]'",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Workers need the same packages.
    builder = SparkSession.builder.appName("semel").config(map=settings_for(master))
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master != SUBMITTED:
        builder = builder.master(master)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _is_token_rejected(error: BaseException | None) -> bool:
    """Whether a Connect server's rejection of the session's token caused this error."""
    while error is not None:
        if isinstance(error, PySparkException):
            code = getattr(error, "getGrpcStatusCode", lambda: None)()  # Spark 4.0 lacks it.
            if _UNAUTHENTICATED in f"{code} {error}":
                return True
        error = error.__cause__ or error.__context__
    return False


def _without_options(where: str) -> str:
    """An address without its options: a token may follow the first `;`."""
    return where.partition(";")[0]


def _unavailable(remote_or_master: str, error: Exception) -> UnavailableError:
    why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    address = _without_options(remote_or_master)
    return UnavailableError(
        f"Spark at {address} does not answer ({why[:300]}). Start it, or correct its address"
    )


class _Progress:
    """Logs the number of finished tasks after each change, at most every PROGRESS_SECONDS."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.last_line = ""
        self.next_time = time.monotonic() + PROGRESS_SECONDS
        self.idle_since: float | None = None

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
        """Log a line if it is new and the previous one is PROGRESS_SECONDS old.

        `counts`: the finished tasks and all tasks, for each stage.
        """
        finished, total = map(sum, zip(*counts, strict=True)) if counts else (0, 0)
        if running or finished or not total:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = time.monotonic()
        elif time.monotonic() - self.idle_since >= IDLE_SECONDS:
            self.log(_NO_EXECUTOR)
            self.idle_since = float("inf")
        line = f"Spark: {finished} of {total} tasks done, {running} running"
        if total and line != self.last_line and time.monotonic() >= self.next_time:
            self.log(line)
            self.last_line = line
            self.next_time = time.monotonic() + PROGRESS_SECONDS


@contextmanager
def _report_progress(session: SparkSession, progress: _Progress) -> Iterator[None]:
    """Log the progress of a classic session, which lacks progress handlers."""
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
