"""Who hears of a task that failed, and of a run that is late: the Airflow connections that a
pipeline's `notify` names.

How it works: each of semel's tasks has `OnFailure` among its failure callbacks, which Airflow calls
once there are no retries left; the DAG of a pipeline with a `deadline` has an alert of Airflow's.
A connection's type says how it is told: by the notifier of that type's provider, or, for http, by a
POST of our own.
What it does not do: fail anything. Whoever cannot be told is an error in the task's log.
"""

import html
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseNotifier, Connection
from airflow.sdk.exceptions import AirflowException
from asgiref.sync import sync_to_async

from semel import pipeline, settings
from semel.airflow import intervals, surroundings
from semel.airflow.told import failure_text
from semel.errors import SemelError, TerminalError
from semel.pipeline.spec import Spec
from semel.reports import summary

NOTIFY_SECONDS = 10
"""How long the address of a pipeline's `notify` may take to connect, and to answer."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is told. `interval`: as people say it, empty without one. `task`: empty of a whole run.
    """

    title: str
    pipeline: str
    dag: str
    task: str
    run: str
    interval: str
    error: str
    log: str

    @property
    def text(self) -> str:
        """All of it, in lines."""
        about = [f"run: {self.run}", *([f"interval: {self.interval}"] if self.interval else [])]
        return "\n".join([self.title, *about, "", self.error, "", f"log: {self.log}"])

    @classmethod
    def of(cls, context: Mapping[str, Any], spec: Spec) -> "Message":
        """The message about the failed task of a context."""
        ti = context["ti"]
        return cls(
            title=f"semel: {spec.name}: {ti.task_id} failed",
            pipeline=spec.name,
            dag=ti.dag_id,
            task=ti.task_id,
            run=ti.run_id,
            interval=_interval(context, spec),
            error=failure_text(context, spec.name),
            log=ti.log_url,
        )


Tell = Callable[[Message], None]


class OnFailure(BaseNotifier):
    """Tells the connections of the failed task's pipeline."""

    def notify(self, context: Mapping[str, Any]) -> None:
        """As Airflow calls it, in the task's process, or in the DAG processor when that died."""
        task = context["task"]
        try:
            surroundings.find_folders()
            folder = Path(task.folder) if task.folder else None
            spec = pipeline.find(task.pipeline, folder)
        except SemelError as error:
            self.log.error("nobody is told of this failure: %s", error)
            return
        tell_all(spec.notify, Message.of(context, spec), self.log)


async def tell_of_late_run(
    pipeline: str, connections: list[str], after: str, by_interval: bool, context: dict[str, Any]
) -> None:
    """Tell these connections that a run is not finished: Airflow calls it in the triggerer, once
    the deadline is over.
    """
    run = context["dag_run"]
    name, dag = run["dag_run_id"], run["dag_id"]
    ends = [run.get("data_interval_start"), run.get("data_interval_end")]
    between = [datetime.fromisoformat(end) for end in ends if end and by_interval]
    above = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    message = Message(
        title=f"semel: {pipeline}: a run is not finished after {after}",
        pipeline=pipeline,
        dag=dag,
        task="",
        run=name,
        interval=summary.interval(*between) if len(between) == 2 else "",
        error=f"the run is {run['state']}, {after} after it was queued\nnext: look at its tasks",
        log=f"{above}/dags/{dag}/runs/{quote(name, safe='')}",
    )
    # In a thread, from which Airflow's connections can be asked for, and which may wait.
    await sync_to_async(tell_all)(connections, message, logging.getLogger(__name__))


def tell_all(names: Sequence[str], message: Message, log: logging.Logger) -> None:
    """Tell each of these connections; who cannot be told is an error in the log."""
    for name in names:
        try:
            _teller(name)(message)
        except Exception as error:  # The next connection is to be told all the same.
            log.error(
                "the connection %s was not told of this: %s: %s", name, type(error).__name__, error
            )
        else:
            log.info("told the connection %s of this", name)


def troubles(names: tuple[str, ...]) -> Iterator[str]:
    """Why some of these connections could not be told, each with what to do."""
    for name in names:
        try:
            _teller(name)
        except TerminalError as error:
            yield f"notify: {error}"


def in_this_shell(name: str) -> tuple[str, str]:
    """What the command line can see of a connection, and what to do when that is wrong."""
    variable = settings.connection_variable(name)
    text = settings.connection(name)
    if not text:
        return f"Airflow looks it up when a task fails; {variable} is not set here", ""
    try:
        as_json = text.lstrip().startswith("{")
        found = Connection.from_json(text, name) if as_json else Connection.from_uri(text, name)
        _teller_of(found)
    except TerminalError as error:
        fact, _, remedy = str(error).partition("; ")
        return fact, remedy
    except (ValueError, TypeError, AttributeError, AirflowException) as error:
        # Without its words: there are passwords in the text.
        why = f"{variable} is no connection ({type(error).__name__})"
        return why, f"write it as Airflow's documents tell, or unset {variable}"
    return f"is of type {found.conn_type}", ""


def _teller(name: str) -> Tell:
    connection = surroundings.connection_of(name)
    if connection is None:
        raise TerminalError(f"there is no Airflow connection {name}; make it in Airflow")
    return _teller_of(connection)


def _teller_of(connection: Connection) -> Tell:
    """What tells a connection. TerminalError, `fact; remedy`: nothing could."""
    name, kind = connection.conn_id, connection.conn_type
    if kind not in _TELLERS:
        known = ", ".join(sorted(_TELLERS))
        raise TerminalError(f"the connection {name} is of type {kind!r}; name one of type {known}")
    package, make = _TELLERS[kind]
    try:
        return make(connection)
    except ImportError:
        raise TerminalError(
            f"the connection {name} is of type {kind}, whose package is not installed; "
            f"pip install {package}"
        ) from None


def _mail(connection: Connection) -> Tell:
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    extra = connection.extra_dejson
    if missing := [key for key in ("from_email", "to") if not extra.get(key)]:
        raise TerminalError(
            f"the connection {connection.conn_id} has no {' and no '.join(missing)}; set its extra "
            'field: {"from_email": "semel@example.com", "to": "ops@example.com"}'
        )

    def tell(message: Message) -> None:
        notifier = SmtpNotifier(
            smtp_conn_id=connection.conn_id,
            from_email=extra["from_email"],
            to=extra["to"],
            subject=message.title,
            html_content=f"<pre>{html.escape(message.text)}</pre>",
        )
        # Not by a call of the notifier, which would take what a file is named for a template.
        notifier.notify({})

    return tell


def _slack(connection: Connection) -> Tell:
    from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier

    def tell(message: Message) -> None:
        notifier = SlackWebhookNotifier(
            slack_webhook_conn_id=connection.conn_id, text=message.text
        )
        notifier.notify({})

    return tell


def _post(connection: Connection) -> Tell:
    import httpx

    url = _url(connection)
    headers = {k: v for k, v in connection.extra_dejson.items() if isinstance(v, str)}
    user = (connection.login, connection.password or "") if connection.login else None

    def tell(message: Message) -> None:
        body = {**asdict(message), "text": message.text}
        try:
            reply = httpx.post(
                url, json=body, headers=headers, auth=user, timeout=NOTIFY_SECONDS
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Without its own words: they hold the address, which often is the secret.
            raise TerminalError(f"it does not answer ({type(error).__name__})") from None
        if not reply.is_success:
            raise TerminalError(f"it answered {reply.status_code}")

    return tell


def _url(connection: Connection) -> str:
    """The address, put together as Airflow's HttpHook does."""
    scheme = connection.schema or connection.conn_type
    if scheme not in ("http", "https") or not connection.host:
        raise TerminalError(
            f"the connection {connection.conn_id} has no address; put all of it into the host "
            "field (https://example.com/hook), and http, https or nothing into the schema field"
        )
    whole = connection.host if "://" in connection.host else f"{scheme}://{connection.host}"
    split = urlsplit(whole)
    if connection.port and split.port is None:
        split = split._replace(netloc=f"{split.netloc}:{connection.port}")
    return split.geturl()


_TELLERS: dict[str, tuple[str, Callable[[Connection], Tell]]] = {
    "http": ("httpx", _post),
    "https": ("httpx", _post),
    "smtp": ("apache-airflow-providers-smtp", _mail),
    "slackwebhook": ("apache-airflow-providers-slack", _slack),
}
"""By a connection's type: the package that tells it, and what makes a teller of it."""


def _interval(context: Mapping[str, Any], spec: Spec) -> str:
    try:
        between = intervals.run_interval(context, spec)
    except TerminalError:  # That may be why the task failed.
        between = None
    return summary.interval(*between) if between else ""
