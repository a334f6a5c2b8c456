"""How a task says that it failed: short lines for an operator, and no traceback of semel's own.

Airflow prints the traceback of each exception but SystemExit. So a failure that semel knows is
logged, line by line, and ends the task by a SystemExit; a retry policy says whether the same call
may succeed later. Airflow before 3.3 has no such policies: there a task that must not be retried
raises AirflowFailException, with its traceback.
"""

import textwrap
from logging import Logger
from typing import Any

from airflow import sdk
from airflow.sdk.exceptions import AirflowFailException

from semel.errors import SemelError, TerminalError

WIDTH = 110
"""Characters of a line in a task's log: Airflow's page does not wrap them."""

HAS_POLICIES = hasattr(sdk, "RetryPolicy")


class TaskFailed(SystemExit):  # noqa: N818
    """Ends a task whose error was logged. `str()` is the error's message, for callbacks."""

    def __init__(self, error: SemelError) -> None:
        super().__init__(str(error))
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
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def failed(log: Logger, error: SemelError) -> BaseException:
    """Log an error, a line at a time, and return what ends the task."""
    for line in lines_of(str(error)):
        log.error(line)
    if HAS_POLICIES:
        return TaskFailed(error)
    return AirflowFailException(str(error)) if isinstance(error, TerminalError) else error
