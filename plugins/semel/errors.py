"""The errors of semel: one base, split by what the caller can do about it.

A message is the fact, the ids, and what to correct, in this order. What to do next is told apart
from it, as the last line of a task's log and of a command's output: `next: ...`.
"""

from dataclasses import dataclass
from typing import ClassVar

AGAIN = "again"
"""For `next`: the same again, once what the message says is done."""

ANEW = "anew"
"""For `next`: the run again from its plan on, which plans its batch anew."""

NO_STEP = "no step"
"""For `next`: no command helps, only what the message says."""


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What failed, as far as that is known: it fills in what an error says to do next.

    `again` and `anew`: how a user does the same once more, or the whole run; as in AGAIN and ANEW.
    """

    again: str
    anew: str
    pipeline: str = ""
    batch_id: int | None = None


class SemelError(Exception):
    """Base of every error that semel raises on purpose.

    `next`: the command that goes on from here, ready to be typed, or a step in Airflow's UI, or
    AGAIN, ANEW or NO_STEP. Left out, it is the first of the class's `rule` of which all fields are
    known.
    """

    rule: ClassVar[tuple[str, ...]] = ("{again}",)

    def __init__(self, message: str = "", *, next: str = "") -> None:
        super().__init__(message)
        self.next = next

    def next_step(self, doing: Doing) -> str:
        """What to do next, on one line; empty: nothing can be typed."""
        if self.next == NO_STEP:
            return ""
        if self.next in (AGAIN, ANEW):
            return doing.again if self.next == AGAIN else doing.anew
        if self.next:
            return self.next
        values = {**vars(doing), "batch": doing.batch_id}
        known = {name: value for name, value in values.items() if value not in ("", None)}
        for template in self.rule:
            try:
                return template.format_map(known)
            except KeyError:
                continue
        return doing.again


class RetryableError(SemelError):
    """The same call may succeed later: a part is away, a lock was not had, an attempt was lost."""


class TerminalError(SemelError):
    """The same call fails again until somebody changes something."""


class UsageError(TerminalError):
    """A command names something that cannot be. Its exit code is that of a wrong usage."""


class SpecError(TerminalError):
    """A pipeline's YAML is wrong. The message names file, line and key."""

    rule = ("semel validate",)


class SourceError(TerminalError):
    """The source no longer holds what a plan names: replaced, cut, edited, deleted, unreadable.

    `lasting`: nobody can bring it back, so no advice says to do the same again.
    """

    rule = ("semel gaps {pipeline}",)

    def __init__(self, message: str = "", *, next: str = "", lasting: bool = False) -> None:
        super().__init__(message, next=next)
        self.lasting = lasting


class ChangedError(SourceError):
    """What was planned has other records in its place now: somebody corrected or replaced it."""

    rule = ("{anew}",)


class LimitError(TerminalError):
    """A declared limit would be broken. Nothing was done; the message says what to change."""


class StateError(TerminalError):
    """A guarded transition matched no row. The message says what was expected and what is there."""

    rule = ("semel show {batch}", "semel batches {pipeline}", "semel batches")


class CorruptionError(TerminalError):
    """Stored bytes do not match their checksum, or a listed one is missing. Nothing was touched."""

    rule = ("semel audit {pipeline}",)


class AttemptLostError(RetryableError):
    """This attempt was given up: another one won, or its records overlap with a newer commit."""

    rule = ("semel show {batch}",)


class UnavailableError(RetryableError):
    """A part (Postgres, Spark, a file system) did not answer."""

    rule = ("semel check {pipeline}", "semel check")


class OutcomeUnknownError(RetryableError):
    """A commit was sent and its reply was lost: landed or not is unknown until read again."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; of one that says nothing, its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
