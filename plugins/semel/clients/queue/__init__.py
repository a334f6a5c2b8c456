"""What semel asks of a queue that redelivers, whichever service it is.

A message is pulled, made durable in a spool, and acknowledged. Until then it may be delivered again
at any time, also to somebody else; an acknowledgement may be lost. Nothing here must be exact: what
is delivered again is a repeat, which its id tells.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Self

Attributes = list[tuple[str, bytes]]
"""Names and values, as the publisher gave them; a value need not be text."""

MALFORMED = ""
"""The name of the only attribute of a message whose attributes cannot be parsed: their bytes."""


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Messages of one pull, as columns of equal lengths.

    `ids`: the service's, unique within the queue's address. `published`: microseconds since 1970 in
    UTC; None: unknown. `attempts`: the number of this delivery, from 1; 0: unknown. `handles`: what
    this receiver acknowledges them by. An ordering key that is no text has its bytes as surrogates.
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
class DeadLetters:
    """Where a service moves a message that nobody acknowledged in so many deliveries. `back`: the
    command that brings such messages back, or finds them.
    """

    address: str
    deliveries: int
    back: str


@dataclass(frozen=True, kw_only=True)
class About:
    """What a service says of a queue.

    `address`: what message ids are unique within, without secrets: another queue, or one that was
    made anew under the same name, has another address. `notes`: settings that make it slower than
    it could be, or leave messages out, each a sentence. `deadline_seconds`: how long a message may
    be held before it is delivered again. `retention`: how long it keeps what nobody acknowledges;
    None: it does not say. `waiting`: messages that are not delivered yet, about; None: unknown.
    `dead_letters`: None: it delivers a message until somebody acknowledges it. `ordered`: it may
    hold messages back until the ones before them are acknowledged.
    """

    address: str
    notes: tuple[str, ...] = ()
    deadline_seconds: float
    retention: timedelta | None = None
    waiting: int | None = None
    dead_letters: DeadLetters | None = None
    ordered: bool = False


class Queue(ABC):
    """A connection to a queue, of one receiver: one thread at a time. Closed when a block ends.

    Errors of all methods: UnavailableError: the service is away, or too busy. TerminalError: there
    is no such queue, or no right to it; `next` or the message says what to do.

    `rights`: the least that its user needs, as the service spells them.
    """

    rights: ClassVar[str] = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def about(self) -> About:
        """Ask the service what queue this is."""

    def dead(self) -> int | None:
        """How many dead letters there are. None: unknown. For `semel check`."""
        return None

    @abstractmethod
    def pull(self, messages: int, size: int, seconds: float) -> Pulled:
        """Take at most so many messages, of about `size` bytes in all, and at least one if any
        comes within `seconds`. It does not wait to fill up what it takes.
        """

    @abstractmethod
    def acknowledge(self, handles: Sequence[Any]) -> int:
        """Say that messages are durable here. Returns how many were refused, failed or came too
        late: these are delivered again.
        """

    @abstractmethod
    def extend(self, handles: Sequence[Any]) -> None:
        """Hold messages for another `deadline_seconds`. Those that it fails for come again."""

    @abstractmethod
    def hand_back(self, handles: Sequence[Any]) -> None:
        """Let messages be delivered again at once. Best effort."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. What was pulled and not acknowledged is delivered again."""
