"""How a task says that it failed: short lines for an operator, of which the last says what to do
next, and no traceback of semel's own.

Airflow prints the traceback of each exception but SystemExit. So a failure that semel knows is
logged, line by line, and ends the task by a SystemExit; a retry policy says whether the same call
may succeed later. Airflow before 3.3 has no such policies: there a task that must not be retried
raises AirflowFailException, with its traceback.
"""

import re
import textwrap
from collections.abc import Mapping
from logging import Logger
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
        tries = f"try {instance.try_number + 1} of {instance.max_tries + 1}"
        again = f"nothing, Airflow tries this task again by itself ({tries})"
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
