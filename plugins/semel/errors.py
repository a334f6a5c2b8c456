"""The errors of semel: one base, split by what the caller can do about it.

A message is the fact, the ids, and the next action, in this order.
"""


class SemelError(Exception):
    """Base of every error that semel raises on purpose."""


class RetryableError(SemelError):
    """The same call may succeed later: a part is away, a lock was not had, an attempt was lost."""


class TerminalError(SemelError):
    """The same call fails again until somebody changes something."""


class SpecError(TerminalError):
    """A pipeline's YAML is wrong. The message names file, line and key."""


class SourceError(TerminalError):
    """The source no longer holds what a plan names: replaced, cut, edited, deleted, unreadable."""


class ChangedError(SourceError):
    """What was planned has other records in its place now: somebody corrected or replaced it."""


class LimitError(TerminalError):
    """A declared limit would be broken. Nothing was done; the message says what to change."""


class StateError(TerminalError):
    """A guarded transition matched no row. The message says what was expected and what is there."""


class CorruptionError(TerminalError):
    """Stored bytes do not match their checksum, or a listed one is missing. Nothing was touched."""


class AttemptLostError(RetryableError):
    """This attempt was given up: another one won, or its records overlap with a newer commit."""


class UnavailableError(RetryableError):
    """A part (Postgres, Spark, a file system) did not answer."""


class OutcomeUnknownError(RetryableError):
    """A commit was sent and its reply was lost: landed or not is unknown until read again."""
