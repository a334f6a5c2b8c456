"""Staging in Spark: over Spark Connect, or with spark-submit in a driver of its own.

The Airflow connection `semel_spark`, else `spark_default`, has the address of Spark, and its type
(`spark_connect` or `spark`) selects the way.

Each way imports its modules when it runs: commit seldom stages, and spark-submit is a separate
process.
"""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from airflow.sdk.exceptions import AirflowException

from semel import errors, settings
from semel.airflow.surroundings import connection_of
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger
from semel.model.batch import AttemptStatus, Log
from semel.pipeline.spec import Spec
from semel.reports import summary
from semel.spark.settings import settings_for

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from semel.spark.engine import SparkEngine
    from semel.stage.job import StageJob

CONNECTIONS = ("semel_spark", "spark_default")
"""The Airflow connections with the address of Spark. semel uses the first that exists."""

TOKEN_SECONDS = 60
"""Maximum duration of a connection's token_command."""

PROGRAM_OPTION = "semel_program"
"""The option of a connection's extra with the path of stage_batch.py where a driver in deploy mode
cluster finds it, such as `local:///opt/semel/stage_batch.py`."""

_PROGRAM = Path(__file__).parents[1] / "spark" / "submitted" / "stage_batch.py"

_QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "WARN"}

_HOW = (
    "create one of type spark_connect (host and port of a Spark Connect server) or spark (a "
    "master), for example in AIRFLOW_CONN_SPARK_DEFAULT"
)


class Stager:
    """Stages batches of one pipeline. Use it in a `with` statement.

    Purpose: give the tasks stage and commit one way to Spark that they can cancel.
    How it works: the first batch opens a Spark Connect session, which the others share. A
    spark-submit stages one batch.
    In deploy mode cluster the driver runs on another machine, which has the ledger's address from
    its own environment, and the ledger has its answer.
    """

    def __init__(self, ledger: Ledger, spec: Spec, log: Log) -> None:
        self.ledger = ledger
        self.spec = spec
        self.log = log
        self._engine: "SparkEngine | None" = None
        self._hook: "SparkSubmitHook | None" = None
        self._open = ExitStack()

    def __enter__(self) -> "Stager":
        return self

    def __exit__(self, *failed: Any) -> None:
        self._engine = None
        self._open.__exit__(*failed)

    def stage(self, batch_id: int) -> str:
        """Stage a batch and return the summary. Raises the errors of semel.stage."""
        connection = _connection()
        if connection.conn_type == "spark_connect":
            return self._over_connect(connection, batch_id)
        if connection.conn_type == "spark":
            return self._over_submit(connection, batch_id)
        raise TerminalError(
            f"the Airflow connection {connection.conn_id} is of type "
            f"{connection.conn_type!r}; {_HOW}"
        )

    def cancel(self) -> None:
        """Stop a running job, from a signal handler. Fences make a failed cancel harmless."""
        if self._engine:
            from semel.spark.session import interrupt

            interrupt(self._engine)
        if self._hook:
            self._hook.on_kill()

    def _over_connect(self, connection: Any, batch_id: int) -> str:
        from semel.spark.session import open_engine
        from semel.stage import stage

        if self._engine is None:
            place = f"the Airflow connection {connection.conn_id}"
            remote = connect_address(connection)
            session = open_engine(remote, self.log, token_of=place)
            self._engine = self._open.enter_context(session)
        return summary.stage(stage(self.ledger, self.spec, batch_id, self._engine, self.log))

    def _over_submit(self, connection: Any, batch_id: int) -> str:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        extra = connection.extra_dejson
        is_remote = extra.get("deploy-mode") == "cluster"
        before = _attempt(self.ledger, batch_id) if is_remote else None
        with tempfile.TemporaryDirectory(prefix="semel-submit-") as folder:
            answer = Path(folder) / "answer.json"
            hook = SparkSubmitHook(
                conn_id=connection.conn_id,
                name=f"semel {self.spec.name} batch {batch_id}",
                conf=settings_for(connection.host or "") | _QUIET,
                application_args=[
                    self.spec.name, str(batch_id), *(() if is_remote else ("--answer", str(answer)))
                ],
            )  # fmt: skip
            self._hook = hook
            failure = None
            try:
                program = extra.get(PROGRAM_OPTION) or str(_PROGRAM)
                hook.submit(program, env=self._environment())
            except AirflowException as error:
                failure = error
            finally:
                self._hook = None
            if is_remote:
                fence = before["fence"] if before else 0
                return read_attempt(self.ledger, self.spec, batch_id, fence)
            return _read_answer(answer, failure)

    def _environment(self) -> dict[str, str]:
        """The driver's environment. It has the ledger's address, since all users see command lines."""
        scripts = sysconfig.get_path("scripts")
        return {
            **os.environ,
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
            "SEMEL_LEDGER_DSN": self.ledger.dsn,
        }


def connect_address(connection: Any) -> str:
    """The address of a Connect server, for pyspark, with a token that is read now.

    Options of the connection's extra: `use_ssl`; `token_command`, which prints the token, instead
    of the password; and headers, whose names begin with `x-`.
    """
    extra = connection.extra_dejson
    options = {
        "use_ssl": extra.get("use_ssl"),
        "user_id": connection.login,
        "token": _token(connection),
        **{name.lower(): value for name, value in extra.items() if name.lower().startswith("x-")},
    }
    texts = [f"{n}={quote(str(value), safe='')}" for n, value in options.items() if value]
    port = f":{connection.port}" if connection.port else ""
    return f"sc://{connection.host.removeprefix('sc://')}{port}/;{';'.join(texts)}"


def _token(connection: Any) -> str | None:
    """The connection's token. Raises RetryableError if its command fails."""
    command = connection.extra_dejson.get("token_command")
    if not command:
        return connection.password
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TOKEN_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise RetryableError(
            f"the Airflow connection {connection.conn_id}: its token_command failed "
            f"({said[-1] if said else type(error).__name__}). Nothing was staged. Correct the "
            "command, which must print a token"
        ) from error
    return done.stdout.strip()


def _connection() -> Any:
    for name in CONNECTIONS:
        if connection := connection_of(name):
            return connection
    raise TerminalError(f"Airflow has no connection {' or '.join(CONNECTIONS)}; {_HOW}")


def _attempt(ledger: Ledger, batch_id: int) -> dict[str, Any] | None:
    """The attempt that commit would take, else the newest one. Returns None without attempts."""
    return next(iter(ledger.rows("stage", "latest", batch_id=batch_id)), None)


def read_attempt(ledger: Ledger, spec: Spec, batch_id: int, fence: int = 0) -> str:
    """The answer of a driver on another machine, from the ledger: the summary of its attempt, whose
    fence is above `fence`. Raises the attempt's error, with the same class.

    If the driver began no attempt, stage begins one here, to find out what is in the way.
    """
    from semel.stage import stage

    attempt = _attempt(ledger, batch_id)
    open_or_lost = AttemptStatus.RUNNING, AttemptStatus.LOST
    if attempt is None or attempt["fence"] <= fence or attempt["status"] not in open_or_lost:
        return summary.stage(stage(ledger, spec, batch_id, _NoEngine()))
    name, _, message = (attempt["reason"] or "").partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.SemelError):
        raise kind(message)
    raise RetryableError(
        f"batch {batch_id}: the driver of attempt {attempt['fence']} ended without an answer. "
        "Nothing was committed. Read the driver's own log, then run stage again"
    )


class _NoEngine:
    """The engine of a batch that a driver on another machine should have staged."""

    def run(self, job: "StageJob") -> NoReturn:
        raise RetryableError(
            f"batch {job.batch_id}: the driver ended before its attempt began. Nothing was "
            f"committed. Read the driver's own log; it needs {settings.LEDGER_VARIABLE} and the "
            "folders of this machine"
        )


def _read_answer(answer: Path, failure: AirflowException | None) -> str:
    """The summary that stage_batch.py wrote. Raises its error, with the same class."""
    if not answer.exists():
        why = str(failure).splitlines()[-1] if failure else "it ended without an answer"
        raise RetryableError(
            f"spark-submit failed before or during stage ({why}); its output is above. "
            "Nothing was committed. Airflow tries this task again"
        ) from failure
    result = json.loads(answer.read_text(encoding="utf-8"))
    if result["error"]:
        raise getattr(errors, result["error"], RetryableError)(result["text"], next=result["next"])
    return result["text"]
