"""Staging in Spark: over Spark Connect, or with spark-submit in a driver of its own.

The Airflow connection `semel_spark`, else `spark_default`, has the address of Spark, and its type
(`spark_connect` or `spark`) selects the way.

Each way imports its modules when it runs: commit seldom stages, and spark-submit is a separate
process.
"""

import json
import os
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from semel import errors
from semel.airflow.surroundings import connection_of
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger
from semel.model.batch import Log
from semel.pipeline.spec import Spec
from semel.reports import summary
from semel.spark.settings import settings_for

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from semel.spark.engine import SparkEngine

CONNECTIONS = ("semel_spark", "spark_default")
"""The Airflow connections with the address of Spark. semel uses the first that exists."""

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
    Known limitation: spark-submit works in client mode only. A driver on another machine could not
    get the ledger's address without showing it, or return its answer.
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
        self._open.close()

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
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        from semel.spark.session import open_engine
        from semel.stage import stage

        if self._engine is None:
            remote = SparkConnectHook(connection.conn_id).get_connection_url()
            self._engine = self._open.enter_context(open_engine(remote, self.log))
        return summary.stage(stage(self.ledger, self.spec, batch_id, self._engine, self.log))

    def _over_submit(self, connection: Any, batch_id: int) -> str:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        if connection.extra_dejson.get("deploy-mode") == "cluster":
            raise TerminalError(
                f"the Airflow connection {connection.conn_id} has deploy-mode cluster, but semel "
                "needs the driver on the task's machine. Set deploy-mode to client, or use Spark "
                "Connect"
            )
        with tempfile.TemporaryDirectory(prefix="semel-submit-") as folder:
            answer = Path(folder) / "answer.json"
            hook = SparkSubmitHook(
                conn_id=connection.conn_id,
                name=f"semel {self.spec.name} batch {batch_id}",
                conf=settings_for(connection.host or "") | _QUIET,
                application_args=[self.spec.name, str(batch_id), "--answer", str(answer)],
            )
            self._hook = hook
            failure = None
            try:
                hook.submit(str(_PROGRAM), env=self._environment())
            except AirflowException as error:
                failure = error
            finally:
                self._hook = None
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


def _connection() -> Any:
    for name in CONNECTIONS:
        if connection := connection_of(name):
            return connection
    raise TerminalError(f"Airflow has no connection {' or '.join(CONNECTIONS)}; {_HOW}")


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
