"""The errors of semel: one base, and a class for each way in which a caller can react.

A message has the fact, the ids and the correction, in this order. The next step is separate, as the
last line of a task's log and of a command's output: `next: ...`.
"""

from dataclasses import dataclass
from typing import ClassVar

AGAIN = "again"
"""For `next`: follow the message, then run the same again."""

ANEW = "anew"
"""For `next`: run again from plan on, which plans the batch again."""

NO_STEP = "no step"
"""For `next`: no command helps; follow the message."""


@dataclass(frozen=True, kw_only=True)
class Doing:
    """The call that failed, for the next step of its error."""

    again: str
    """How a user repeats the call: see AGAIN."""
    anew: str
    """How a user repeats the whole run: see ANEW."""
    pipeline: str = ""
    batch_id: int | None = None


class SemelError(Exception):
    """Base of every error that semel raises on purpose.

    `next`: the command that goes on from here, ready to paste, or a step in Airflow's UI, or AGAIN,
    ANEW or NO_STEP. By default it is the first template of `rule` whose fields all have a value.
    """

    rule: ClassVar[tuple[str, ...]] = ("{again}",)

    def __init__(self, message: str = "", *, next: str = "") -> None:
        super().__init__(message)
        self.next = next

    def next_step(self, doing: Doing) -> str:
        """The next step, on one line. Empty if no command helps."""
        if self.next == NO_STEP:
            return ""
        if self.next in (AGAIN, ANEW):
            return doing.again if self.next == AGAIN else doing.anew
        if self.next:
            return self.next
        values = {**vars(doing), "batch": doing.batch_id}
        fields = {name: value for name, value in values.items() if value not in ("", None)}
        for template in self.rule:
            try:
                return template.format_map(fields)
            except KeyError:
                continue
        return doing.again


class RetryableError(SemelError):
    """The same call may succeed later: a service is down, a lock is busy, an attempt lost."""


class TerminalError(SemelError):
    """The same call fails again until a person changes something."""


class MissingPackageError(TerminalError, ImportError):
    """A Python lacks semel, or a package that one of semel's extras brings."""


class UsageError(TerminalError):
    """A command has an invalid argument. It exits with the code of a wrong usage."""


class SpecError(TerminalError):
    """A pipeline's YAML is invalid. The message names file, line and key."""

    rule = ("semel validate",)


class SourceError(TerminalError):
    """The source lacks planned records: they were replaced, cut, edited, deleted or are unreadable.

    `lasting`: nothing can bring them back, so no advice is to try again.
    """

    rule = ("semel gaps {pipeline}",)

    def __init__(self, message: str = "", *, next: str = "", lasting: bool = False) -> None:
        super().__init__(message, next=next)
        self.lasting = lasting


class ChangedError(SourceError):
    """A person or a pipeline has replaced the planned records by others."""

    rule = ("{anew}",)


class LimitError(TerminalError):
    """A declared limit would be exceeded. Nothing was done; the message says what to change."""


class StateError(TerminalError):
    """A guarded transition matched no row. The message has the expected and the actual state."""

    rule = ("semel show {batch}", "semel batches {pipeline}", "semel batches")


class CorruptionError(TerminalError):
    """Stored bytes do not match their checksum, or a file is missing. No file was changed."""

    rule = ("semel audit {pipeline}",)


class ArchiveUnseenError(TerminalError):
    """A task does not see the folder that the driver made for its attempt."""

    rule = ("semel check {pipeline}", "semel check")


class ReplacedError(RetryableError):
    """Another process has replaced an object since this one read it."""


class AttemptLostError(RetryableError):
    """This attempt lost: another one won, or its records overlap with a newer commit."""

    rule = ("semel show {batch}",)


class UnavailableError(RetryableError):
    """A service (Postgres, Spark, a file system) did not answer."""

    rule = ("semel check {pipeline}", "semel check")


class OutcomeUnknownError(RetryableError):
    """The reply to a COMMIT was lost; a new read must find out whether it succeeded."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class name if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
