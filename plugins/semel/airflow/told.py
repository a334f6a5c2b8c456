"""How a task says that it failed: short lines for an operator, of which the last says what to do
next, and no traceback of semel's own.

Airflow prints the traceback of each exception but SystemExit. So a failure that semel knows is
logged, line by line, and ends the task by a SystemExit; a retry policy says whether the same call
may succeed later. Airflow before 3.3 has no such policies: there a task that must not be retried
raises AirflowFailException, with its traceback.

The last lines of a failed task's log say what Airflow does now. Its own callbacks log them, because
only they know that: `say_retry` when Airflow tries the task again, `say_failed` when it does not.
"""

import re
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from logging import Logger
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow import sdk
from semel.errors import Doing, LimitError, RetryableError, SemelError, TerminalError

WIDTH = 110
"""Characters of a line in a task's log: Airflow's page does not wrap them."""

_FIRST = "correct what is said above, then "
_COMMANDS = ("next: semel ", "next: airflow ")
_WORD = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")

HAS_POLICIES = hasattr(sdk, "RetryPolicy")


class TaskFailed(SystemExit):  # noqa: N818
    """Ends a task whose error was logged. `str()` is what was logged, for callbacks."""

    def __init__(self, error: SemelError, text: str) -> None:
        super().__init__(text)
        self.code = 1
        self.terminal = isinstance(error, TerminalError)


class OnlyWhatMaySucceed(sdk.RetryPolicy if HAS_POLICIES else object):  # type: ignore[misc]
    """A TerminalError is not retried; all else is, as often as the task says."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> Any:
        """As Airflow asks, in the task's process."""
        del try_number, max_tries, context
        if getattr(exception, "terminal", False):
            return sdk.RetryDecision.fail()
        return sdk.RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """It has no state."""
        return {}


def lines_of(text: str) -> list[str]:
    """The lines of a text, the longer ones broken; what follows a break is indented."""
    return [part for line in text.splitlines() for part in _broken(line)]


def _broken(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    if line.startswith(_COMMANDS):
        return _broken_command(line)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _broken_command(line: str) -> list[str]:
    """A command on several lines that a shell takes for one."""
    lines = ["next:"]
    for word in _WORD.findall(line.removeprefix("next: ")):
        if len(lines[-1]) + len(word) + len("  \\") > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def doing(
    context: Mapping[str, Any], pipeline: str, batch_id: int | None, error: SemelError
) -> Doing:
    """What a task does, and how a user does it again: after a correction, where that fails else."""
    instance = context["ti"]
    again = f"clear the run's {context['task'].task_id} task"
    anew = "clear the whole run"
    if isinstance(error, TerminalError):
        again = f"{_FIRST}{again}"
    if isinstance(error, LimitError):
        anew = f"{_FIRST}{anew}"
    if isinstance(error, RetryableError) and instance.try_number <= instance.max_tries:
        again = f"nothing, Airflow tries this task again by itself ({_next_number(instance)})"
    return Doing(again=again, anew=anew, pipeline=pipeline, batch_id=batch_id)


def failed(log: Logger, error: SemelError, doing: Doing) -> BaseException:
    """Log an error, a line at a time and what to do next as the last, and return what ends the
    task.
    """
    step = error.next_step(doing)
    text = f"{error}" + f"\nnext: {step}" * bool(step)
    for line in lines_of(text):
        log.error(line)
    if HAS_POLICIES:
        return TaskFailed(error, text)
    return AirflowFailException(text) if isinstance(error, TerminalError) else error


def failure_text(context: Mapping[str, Any], pipeline: str) -> str:
    """The lines of the error that ended a task, and the step of it. Of an error that is not semel's
    it has the kind alone, for such a message may hold anything.

    What Airflow's DAG processor knows of a killed task is no exception.
    """
    error = context.get("exception")
    if isinstance(error, TaskFailed | AirflowFailException):
        return str(error)
    if isinstance(error, SemelError):  # Airflow before 3.3.
        return f"{error}\nnext: {error.next_step(doing(context, pipeline, None, error))}"
    kind = type(error).__name__ if isinstance(error, BaseException) else "its process died"
    return f"{kind}\nnext: read the log, then clear the task"


def say_retry(context: Mapping[str, Any]) -> None:
    """Log when Airflow tries a failed task again. Airflow calls it once that is certain."""
    context["task"].log.info(
        "Airflow tries this task again at %s UTC (%s, retry_delay)",
        f"{_next_try(context).astimezone(UTC):%F %T}",
        _next_number(context["ti"]),
    )


def say_failed(context: Mapping[str, Any]) -> None:
    """Log why Airflow does not try a failed task again, and the step of its error as the last line.
    """
    ti, log, error = context["ti"], context["task"].log, context.get("exception")
    why = ""
    if getattr(error, "terminal", False) or isinstance(error, AirflowFailException):
        why = ": the same call would fail again"
    elif ti.try_number > ti.max_tries:
        why = f": no try is left after {ti.try_number} of {ti.max_tries + 1}"
    log.error("Airflow does not try this task again%s", why)
    *_, last = failure_text(context, context["task"].pipeline).splitlines()
    if last.startswith("next: "):
        for line in lines_of(last):
            log.error(line)


def _next_number(instance: Any) -> str:
    """The number of a task's next try, and of all."""
    return f"try {instance.try_number + 1} of {instance.max_tries + 1}"


def _next_try(context: Mapping[str, Any]) -> datetime:
    """The time of a task's next try, as Airflow's scheduler computes it of these fields."""
    from airflow.models.taskinstance import TaskInstance

    ti, task = context["ti"], context["task"]
    backoff = task.retry_exponential_backoff
    delays = SimpleNamespace(
        retry_delay=task.retry_delay,
        max_retry_delay=task.max_retry_delay,
        retry_exponential_backoff=2.0 if backoff is True else backoff,  # As serialized.
    )
    known = SimpleNamespace(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        try_number=ti.try_number,
        task=delays,
        logical_date=context["dag_run"].logical_date,
        end_date=ti.end_date or datetime.now(UTC),
        retry_delay_override=None,
    )
    return TaskInstance.next_retry_datetime(known)
