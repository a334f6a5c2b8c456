"""Notifications of a failed task or a late run, through the Airflow connections that a pipeline's
`notify` names.

How it works: each of semel's tasks has `OnFailure` among its failure callbacks, which Airflow calls
after the last retry. The DAG of a pipeline with a `deadline` has a deadline alert of Airflow.
The connection's type selects the sender: the notifier of that type's provider, or, for http, a POST
of this module.
A notification that does not get through is an error in the log, and never fails the task.
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
from semel.airflow.task_failure import failure_text
from semel.errors import SemelError, TerminalError
from semel.pipeline.spec import Spec
from semel.reports import summary

NOTIFY_SECONDS = 10
"""Timeout of a notification over http: once to connect, once for the answer."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A notification. `interval`: in words, empty for a run without one. `task`: empty if it is
    about a late run.
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
        """The notification as plain text."""
        about = [f"run: {self.run}", *([f"interval: {self.interval}"] if self.interval else [])]
        return "\n".join([self.title, *about, "", self.error, "", f"log: {self.log}"])

    @classmethod
    def for_failure(cls, context: Mapping[str, Any], spec: Spec) -> "Message":
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


Send = Callable[[Message], None]


class OnFailure(BaseNotifier):
    """Notifies the connections of the failed task's pipeline."""

    def notify(self, context: Mapping[str, Any]) -> None:
        """Airflow calls it in the task's process, or in the DAG processor if that process died."""
        task = context["task"]
        try:
            surroundings.find_folders()
            folder = Path(task.folder) if task.folder else None
            spec = pipeline.find(task.pipeline, folder)
        except SemelError as error:
            self.log.error("semel sent no notification of this failure: %s", error)
            return
        notify_connections(spec.notify, Message.for_failure(context, spec), self.log)


async def tell_of_late_run(
    pipeline: str, connections: list[str], after: str, by_interval: bool, context: dict[str, Any]
) -> None:
    """Notify these connections of a run that is not finished. Airflow calls it in the triggerer
    after the deadline.
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
    # In a thread, because it waits for answers and reads connections with a synchronous call.
    await sync_to_async(notify_connections)(connections, message, logging.getLogger(__name__))


def notify_connections(names: Sequence[str], message: Message, log: logging.Logger) -> None:
    """Send a message to each named connection, and log those that it does not reach."""
    for name in names:
        try:
            _sender(name)(message)
        except Exception as error:  # The other connections still get the message.
            log.error(
                "could not notify the connection %s: %s: %s", name, type(error).__name__, error
            )
        else:
            log.info("notified the connection %s", name)


def connection_problems(names: tuple[str, ...]) -> Iterator[str]:
    """A line for each connection that semel could not use for a notification, with its remedy."""
    for name in names:
        try:
            _sender(name)
        except TerminalError as error:
            yield f"notify: {error}"


def describe_in_shell(name: str) -> tuple[str, str]:
    """Describe a connection as this shell sees it. The second value is the remedy, if any."""
    variable = settings.connection_variable(name)
    text = settings.connection(name)
    if not text:
        return f"Airflow looks it up when a task fails; {variable} is not set here", ""
    try:
        as_json = text.lstrip().startswith("{")
        parse = Connection.from_json if as_json else Connection.from_uri
        connection = parse(text, name)
        _sender_of(connection)
    except TerminalError as error:
        fact, _, remedy = str(error).partition("; ")
        return fact, remedy
    except (ValueError, TypeError, AttributeError, AirflowException) as error:
        # Without the error's text, which may quote a password.
        fact = f"{variable} is not an Airflow connection as a URI or JSON ({type(error).__name__})"
        return fact, f"correct it, or unset {variable}"
    return f"is of type {connection.conn_type}", ""


def _sender(name: str) -> Send:
    connection = surroundings.connection_of(name)
    if connection is None:
        raise TerminalError(f"Airflow has no connection {name}; create it in Airflow")
    return _sender_of(connection)


def _sender_of(connection: Connection) -> Send:
    """The function that sends a message through a connection. Raises TerminalError, as
    `fact; remedy`, if semel cannot use the connection.
    """
    name, kind = connection.conn_id, connection.conn_type
    if kind not in _SENDERS:
        types = ", ".join(sorted(_SENDERS))
        raise TerminalError(f"the connection {name} is of type {kind!r}; name one of type {types}")
    package, make = _SENDERS[kind]
    try:
        return make(connection)
    except ImportError:
        raise TerminalError(
            f"the connection {name} is of type {kind}, whose package is not installed; "
            f"pip install {package}"
        ) from None


def _mail(connection: Connection) -> Send:
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    extra = connection.extra_dejson
    if missing := [key for key in ("from_email", "to") if not extra.get(key)]:
        raise TerminalError(
            f"the connection {connection.conn_id} lacks {' and '.join(missing)}; set its extra "
            'field: {"from_email": "semel@example.com", "to": "ops@example.com"}'
        )

    def send(message: Message) -> None:
        notifier = SmtpNotifier(
            smtp_conn_id=connection.conn_id,
            from_email=extra["from_email"],
            to=extra["to"],
            subject=message.title,
            html_content=f"<pre>{html.escape(message.text)}</pre>",
        )
        # A call of the notifier itself would render file names in the message as templates.
        notifier.notify({})

    return send


def _slack(connection: Connection) -> Send:
    from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier

    def send(message: Message) -> None:
        notifier = SlackWebhookNotifier(
            slack_webhook_conn_id=connection.conn_id, text=message.text
        )
        notifier.notify({})

    return send


def _post(connection: Connection) -> Send:
    import httpx

    url = _url(connection)
    headers = {k: v for k, v in connection.extra_dejson.items() if isinstance(v, str)}
    user = (connection.login, connection.password or "") if connection.login else None

    def send(message: Message) -> None:
        body = {**asdict(message), "text": message.text}
        try:
            reply = httpx.post(
                url, json=body, headers=headers, auth=user, timeout=NOTIFY_SECONDS
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Without the error's text: it has the address, which often is the secret.
            raise TerminalError(f"its address does not answer ({type(error).__name__})") from None
        if not reply.is_success:
            raise TerminalError(f"its address answered {reply.status_code}")

    return send


def _url(connection: Connection) -> str:
    """The URL of a connection, composed as Airflow's HttpHook does."""
    scheme = connection.schema or connection.conn_type
    if scheme not in ("http", "https") or not connection.host:
        raise TerminalError(
            f"the connection {connection.conn_id} has no http URL; write the URL into the host "
            "field (https://example.com/hook), and http, https or nothing into the schema field"
        )
    url = connection.host if "://" in connection.host else f"{scheme}://{connection.host}"
    parts = urlsplit(url)
    if connection.port and parts.port is None:
        parts = parts._replace(netloc=f"{parts.netloc}:{connection.port}")
    return parts.geturl()


_SENDERS: dict[str, tuple[str, Callable[[Connection], Send]]] = {
    "http": ("httpx", _post),
    "https": ("httpx", _post),
    "smtp": ("apache-airflow-providers-smtp", _mail),
    "slackwebhook": ("apache-airflow-providers-slack", _slack),
}
"""By connection type: the package that the sender imports, and the function that creates it."""


def _interval(context: Mapping[str, Any], spec: Spec) -> str:
    try:
        between = intervals.run_interval(context, spec)
    except TerminalError:  # The task may have failed because of its interval.
        between = None
    return summary.interval(*between) if between else ""
