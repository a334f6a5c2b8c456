"""Failures in a task's log: short lines for an operator, the next step last, and no traceback.

Airflow prints the traceback of each exception except SystemExit. So a task logs an error of semel
line by line, and ends with a SystemExit; a retry policy decides whether Airflow tries it again.
Airflow before 3.3 lacks retry policies: there a task that must not be retried raises
AirflowFailException, with its traceback.

The last lines of a failed task's log announce what Airflow does now, which only its callbacks know:
`say_retry` if Airflow tries the task again, `say_failed` if it does not.
"""

import re
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from logging import Logger
from types import SimpleNamespace
from typing import Any

from airflow import sdk
from semel.airflow.compat import AirflowFailException
from semel.errors import Doing, LimitError, RetryableError, SemelError, TerminalError

WIDTH = 110
"""Characters of a line in a task's log: Airflow's page does not wrap lines."""

_FIRST = "correct the cause above, then "
_COMMANDS = ("next: semel ", "next: airflow ")
_WORD = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")

HAS_POLICIES = hasattr(sdk, "RetryPolicy")


class TaskFailed(SystemExit):  # noqa: N818
    """Ends a task after it has logged its error. Callbacks read the logged text with `str()`."""

    def __init__(self, error: SemelError, text: str) -> None:
        super().__init__(text)
        self.code = 1
        self.terminal = isinstance(error, TerminalError)


class RetryUnlessTerminal(sdk.RetryPolicy if HAS_POLICIES else object):  # type: ignore[misc]
    """Airflow does not retry after a TerminalError; after other errors the task's retries count."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> Any:
        """Airflow calls it in the task's process."""
        del try_number, max_tries, context
        if getattr(exception, "terminal", False):
            return sdk.RetryDecision.fail()
        return sdk.RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Returns an empty mapping, because the policy is stateless."""
        return {}


def wrap_lines(text: str) -> list[str]:
    """The lines of a text, wrapped at WIDTH with an indent."""
    return [part for line in text.splitlines() for part in _wrap_line(line)]


def _wrap_line(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    if line.startswith(_COMMANDS):
        return _wrap_command(line)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _wrap_command(line: str) -> list[str]:
    """A command on several lines that a shell reads as one."""
    lines = ["next:"]
    for word in _WORD.findall(line.removeprefix("next: ")):
        if len(lines[-1]) + len(word) + len("  \\") > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def retry_steps(
    context: Mapping[str, Any], pipeline: str, batch_id: int | None, error: SemelError
) -> Doing:
    """How a user repeats a task and its run. The steps begin with a correction if the same call
    would fail again.
    """
    instance = context["ti"]
    clear_task = f"clear the run's {context['task'].task_id} task"
    clear_run = "clear the whole run"
    if isinstance(error, TerminalError):
        clear_task = f"{_FIRST}{clear_task}"
    if isinstance(error, LimitError):
        clear_run = f"{_FIRST}{clear_run}"
    if isinstance(error, RetryableError) and instance.try_number <= instance.max_tries:
        clear_task = f"nothing, Airflow tries this task again by itself ({_next_number(instance)})"
    return Doing(again=clear_task, anew=clear_run, pipeline=pipeline, batch_id=batch_id)


def log_failure(log: Logger, error: SemelError, doing: Doing) -> BaseException:
    """Log an error line by line, the next step last. Returns the exception that ends the task."""
    step = error.next_step(doing)
    text = f"{error}" + f"\nnext: {step}" * bool(step)
    for line in wrap_lines(text):
        log.error(line)
    if HAS_POLICIES:
        return TaskFailed(error, text)
    return AirflowFailException(text) if isinstance(error, TerminalError) else error


def is_terminal(error: BaseException | None) -> bool:
    """Whether Airflow is not to retry after this error, with which a task has ended."""
    return getattr(error, "terminal", False) or isinstance(error, AirflowFailException)


def failure_text(context: Mapping[str, Any], pipeline: str) -> str:
    """The lines of the error that ended a task, and its next step.

    An error that is not semel's appears as its class alone, because its message may have secrets.
    Airflow's DAG processor reports a killed task without an exception.
    """
    error = context.get("exception")
    if isinstance(error, TaskFailed | AirflowFailException):
        return str(error)
    if isinstance(error, SemelError):  # Airflow before 3.3.
        return f"{error}\nnext: {error.next_step(retry_steps(context, pipeline, None, error))}"
    kind = type(error).__name__ if isinstance(error, BaseException) else "its process died"
    return f"{kind}\nnext: read the log, then clear the task"


def log_retry(context: Mapping[str, Any]) -> None:
    """Log when Airflow tries a failed task again. Airflow calls it after it has decided to."""
    context["task"].log.info(
        "Airflow tries this task again at %s UTC (%s, retry_delay)",
        f"{_next_try(context).astimezone(UTC):%F %T}",
        _next_number(context["ti"]),
    )


def log_no_retry(context: Mapping[str, Any]) -> None:
    """Log why Airflow does not try a failed task again, and last the next step of its error."""
    ti, log, error = context["ti"], context["task"].log, context.get("exception")
    why = ""
    if is_terminal(error):
        why = ": the same call would fail again"
    elif ti.try_number > ti.max_tries:
        why = f": no try is left after {ti.try_number} of {ti.max_tries + 1}"
    log.error("Airflow does not try this task again%s", why)
    *_, last = failure_text(context, context["task"].pipeline).splitlines()
    if last.startswith("next: "):
        for line in wrap_lines(last):
            log.error(line)


def _next_number(instance: Any) -> str:
    """The number of a task's next try, and the number of all tries."""
    return f"try {instance.try_number + 1} of {instance.max_tries + 1}"


def _next_try(context: Mapping[str, Any]) -> datetime:
    """The time of a task's next try. Airflow's scheduler computes it from these fields."""
    from airflow.models.taskinstance import TaskInstance

    ti, task = context["ti"], context["task"]
    backoff = task.retry_exponential_backoff
    delays = SimpleNamespace(
        retry_delay=task.retry_delay,
        max_retry_delay=task.max_retry_delay,
        retry_exponential_backoff=2.0 if backoff is True else backoff,  # As serialized.
    )
    instance = SimpleNamespace(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        try_number=ti.try_number,
        task=delays,
        logical_date=context["dag_run"].logical_date,
        end_date=ti.end_date or datetime.now(UTC),
        retry_delay_override=None,
    )
    return TaskInstance.next_retry_datetime(instance)
