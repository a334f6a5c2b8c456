"""What a source of sealed parts shows: each part, and what opening one tells of it.

A part is known by its content. `identity` and `fingerprint` come with the listing, and tell without
opening it that a part is as it was; its `key`, the digest of a few bytes, finds the parts that may
have its content; the digest of all its bytes decides. That is taken when a part is claimed, and
when something with its key turns up.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from semel.declare.context import Context
from semel.model.batch import Claim
from semel.sources import Evidence, Offer, Partition, Refusal, SourceListing


@dataclass(frozen=True, kw_only=True)
class SealedPart:
    """A part as it is listed. `identity` survives a rename, and no two parts share one, unless they
    are one. `fingerprint` changes with the content. `length`: its bytes; None: only opening it
    tells.
    """

    name: str
    identity: str
    fingerprint: str
    length: int | None = None
    when: datetime | None


@dataclass(frozen=True, kw_only=True)
class PartListing(SourceListing):
    """All parts, oldest first. Not `complete`: what is not listed may be there all the same."""

    items: Sequence[SealedPart]
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A part that was opened.

    `key`: equal for equal contents, "" where it cannot be told. `length`: its bytes. `unfinished`:
    its end is still to come. `refused`: why its rows cannot be read. `evidence`: of the kind's own.
    """

    part: SealedPart
    length: int
    key: str = ""
    rows: int = 0
    unfinished: bool = False
    refused: Refusal | None = None
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartOffer(Offer):
    """A part of which rows may be read. `content`: the digest of its bytes, where it is known.
    `refused`: why none may be claimed.
    """

    part: SealedPart
    length: int
    content: str | None
    refused: Refusal | None = None


class Opens(Protocol):
    """What a kind of parts gives: what there is, and how it is opened."""

    context: Context

    @abstractmethod
    def discover(self) -> PartListing:
        """As `Source.discover`. It opens nothing."""

    @abstractmethod
    def look(self, part: SealedPart) -> Looked:
        """Open a part, and read what it takes to know its rows and key.

        FileNotFoundError: it is not as it was listed. OSError: it cannot be read.
        """

    @abstractmethod
    def digest(self, part: SealedPart) -> str:
        """The digest of all its bytes; it may take long. Errors as in `look`."""

    @abstractmethod
    def now(self, name: str) -> SealedPart:
        """The part that has a name now, without its time; it is not opened. OSError: there is none.
        """

    def below(self) -> Sequence[SealedPart]:
        """All parts that a claimed one may be among now, also those that are not listed."""
        return self.discover().items

    def is_put_away(self, known: Partition) -> bool:  # noqa: ARG002 - most kinds stay
        """Whether a partition's part lies where collect has put it."""
        return False

    def removed(self, claim: Claim) -> str | None:  # noqa: ARG002 - most kinds remove none
        """Why the part of a claim is gone for good. None: somebody may bring it back."""
        return None

    def time_of(self, known: Partition) -> datetime | None:  # noqa: ARG002 - not all have one
        """The time of a part that is gone, for `select: interval`."""
        return None
