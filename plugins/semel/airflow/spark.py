"""Where a task stages: over Spark Connect, or in a driver of its own under spark-submit.

The Airflow connection `semel_spark`, else `spark_default`, says where Spark is. Its type, which is
`spark_connect` or `spark`, decides.

Each way imports its own: a commit that wins stages nothing, and a spark-submit is a process apart.
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
"""The Airflow connections that say where Spark is: the first one that there is."""

_PROGRAM = Path(__file__).parents[1] / "spark" / "submitted" / "stage_batch.py"

_QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "WARN"}

_HOW = (
    "make one of type spark_connect (host and port of a Spark Connect server) or spark (a master), "
    "for instance in AIRFLOW_CONN_SPARK_DEFAULT"
)


class Stager:
    """Stages batches of one pipeline, each as often as it is asked to; to be used with `with`.

    Purpose: the one way to Spark for the tasks stage and commit, which may both be killed.
    How it works: over Spark Connect all share one session, which the first one opens; a
    spark-submit stages one.
    Known limitation: spark-submit in client mode only; a driver elsewhere could neither be handed
    the ledger's address unseen nor hand back its answer.
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
        """Stage a batch and return the summary. Errors are those of semel.stage."""
        connection = _connection()
        if connection.conn_type == "spark_connect":
            return self._over_connect(connection, batch_id)
        if connection.conn_type == "spark":
            return self._submitted(connection, batch_id)
        raise TerminalError(
            f"the Airflow connection {connection.conn_id} is of type "
            f"{connection.conn_type!r}; {_HOW}"
        )

    def cancel(self) -> None:
        """Stop what is running, from a signal handler. Fences make it safe not to succeed."""
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

    def _submitted(self, connection: Any, batch_id: int) -> str:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        if connection.extra_dejson.get("deploy-mode") == "cluster":
            raise TerminalError(
                f"the Airflow connection {connection.conn_id} asks for deploy-mode cluster; semel "
                "needs the driver beside the task: set it to client, or use Spark Connect"
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
            return _told(answer, failure)

    def _environment(self) -> dict[str, str]:
        """What the driver gets; the ledger's address is here, for command lines are seen by all."""
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
    raise TerminalError(f"there is no Airflow connection {' or '.join(CONNECTIONS)}; {_HOW}")


def _told(answer: Path, failure: AirflowException | None) -> str:
    """The summary that stage_batch.py left, or its error under its own class."""
    if not answer.exists():
        shown = str(failure).splitlines()[-1] if failure else "it ended without an answer"
        raise RetryableError(
            f"spark-submit failed before or while it staged ({shown}); its output is above. "
            "Nothing is committed; this task is retried"
        ) from failure
    told = json.loads(answer.read_text(encoding="utf-8"))
    if told["error"]:
        raise getattr(errors, told["error"], RetryableError)(told["text"], next=told["next"])
    return told["text"]
