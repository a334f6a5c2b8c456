"""The interface of a queue that redelivers messages, the same for each service.

semel pulls a message, makes it durable in a spool, and acknowledges it. Before that the service may
deliver it again at any time, also to another receiver, and an acknowledgement may be lost. Nothing
here needs to be exact: semel recognizes a repeat by its id.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Self

Attributes = list[tuple[str, bytes]]
"""Names and values, as the publisher set them; a value need not be text."""

MALFORMED = ""
"""If a message's attributes are malformed, it has one attribute of this name with their bytes."""


@dataclass(frozen=True, kw_only=True)
class PulledMessages:
    """Messages of one pull, as columns of equal lengths.

    `ids`: of the service, unique within the queue's address. `published`: microseconds since 1970
    in UTC, None if unknown. `attempts`: the number of this delivery, from 1; 0 if unknown.
    `handles`: for this receiver's acknowledgements. `ordering_keys`: invalid text as surrogates.
    """

    ids: list[str] = field(default_factory=list)
    published: list[int | None] = field(default_factory=list)
    attributes: list[Attributes] = field(default_factory=list)
    ordering_keys: list[str | None] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class DeadLetterQueue:
    """Where a service moves a message after so many deliveries without an acknowledgement.

    `restore_command`: moves such messages back, or shows where they are.
    """

    address: str
    deliveries: int
    restore_command: str


@dataclass(frozen=True, kw_only=True)
class QueueInfo:
    """A service's description of a queue.

    `address`: the scope in which message ids are unique, without secrets. Another queue, or a new
    one of the same name, has another address. `notes`: sentences about settings that slow the queue
    down or leave messages out. `deadline_seconds`: the service delivers a message again if it is
    not acknowledged by then. `retention`: how long the queue keeps an unacknowledged message, None
    if unknown. `waiting`: about how many messages were never delivered, None if unknown.
    `dead_letters`: None if the queue delivers a message until it is acknowledged. `ordered`: the
    queue may hold a message back until earlier ones are acknowledged.
    """

    address: str
    notes: tuple[str, ...] = ()
    deadline_seconds: float
    retention: timedelta | None = None
    waiting: int | None = None
    dead_letters: DeadLetterQueue | None = None
    ordered: bool = False


class Queue(ABC):
    """One receiver's connection to a queue, for one thread at a time, closed when its block ends.

    All methods raise UnavailableError if the service does not answer or is too busy, and
    TerminalError if the queue does not exist or the user lacks a right.

    `rights`: the rights that the user needs, as the service spells them.
    """

    rights: ClassVar[str] = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def describe(self) -> QueueInfo:
        """Query the service for the queue's settings."""

    def count_dead_letters(self) -> int | None:
        """The number of dead letters, for `semel check`. Returns None if unknown."""
        return None

    @abstractmethod
    def pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        """Pull at most so many messages, of about `size` bytes in all. Waits up to `seconds` for
        the first one, but does not wait for more.
        """

    @abstractmethod
    def acknowledge(self, handles: Sequence[Any]) -> int:
        """Acknowledge messages that are durable in the spool. Returns how many the service refused,
        for example because they came too late: it delivers these again.
        """

    @abstractmethod
    def extend(self, handles: Sequence[Any]) -> None:
        """Extend the messages' deadline by `deadline_seconds`. Where it fails, they come again."""

    @abstractmethod
    def hand_back(self, handles: Sequence[Any]) -> None:
        """Ask the service to deliver messages again at once. Errors are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. The service delivers unacknowledged messages again."""
