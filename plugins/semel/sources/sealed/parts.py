"""Sealed parts as a source lists and inspects them.

The content of a part identifies it. `identity` and `fingerprint` come with the listing: if they are
unchanged, semel does not open the part. Its `key`, the digest of a few bytes, finds the parts that
may have its content; the digest of all its bytes decides. semel computes that digest when it claims
a part, and when another part has the same key.
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
    """A part as it is listed. `identity` survives a rename; two names share one only if they are
    hard links. `fingerprint` changes with the content. `length`: bytes; None if that is unknown
    until the part is opened.
    """

    name: str
    identity: str
    fingerprint: str
    length: int | None = None
    when: datetime | None


@dataclass(frozen=True, kw_only=True)
class PartListing(SourceListing):
    """All parts, oldest first. Unless it is `complete`, parts that it lacks may still exist."""

    items: Sequence[SealedPart]
    complete: bool


@dataclass(frozen=True, kw_only=True)
class PartInspection:
    """The result of opening a part.

    `key`: equal for equal contents, "" if it is unknown. `length`: bytes. `unfinished`: its writer
    has not finished it. `refusal`: why its rows cannot be read. `evidence`: what this kind of part
    adds to the evidence of a claim.
    """

    part: SealedPart
    length: int
    key: str = ""
    rows: int = 0
    unfinished: bool = False
    refusal: Refusal | None = None
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartOffer(Offer):
    """A part with rows to read. `content`: the digest of its bytes; None if it is not computed yet.
    `refusal`: why no row may be claimed.
    """

    part: SealedPart
    length: int
    content: str | None
    refusal: Refusal | None = None


class PartAccess(Protocol):
    """Lists and opens parts. Each kind of part implements it."""

    context: Context

    @abstractmethod
    def discover(self) -> PartListing:
        """As `Source.discover`. It opens nothing."""

    @abstractmethod
    def inspect(self, part: SealedPart) -> PartInspection:
        """Open a part, and read as much as its number of rows and its key take.

        Raises FileNotFoundError if it changed since it was listed, OSError if it cannot be read.
        """

    @abstractmethod
    def digest(self, part: SealedPart) -> str:
        """The digest of all its bytes; it may take long. Errors as in `inspect`."""

    @abstractmethod
    def current_part(self, name: str) -> SealedPart:
        """The part that has a name now, without its time and unopened. Raises OSError if no part
        has the name.
        """

    def find_candidates(self) -> Sequence[SealedPart]:
        """All parts that a renamed part may be among, including those that are not listed."""
        return self.discover().items

    def is_archived(self, partition: Partition) -> bool:  # noqa: ARG002 - most kinds stay
        """Whether collect has moved a partition's part to its archive folder."""
        return False

    def removal_reason(self, claim: Claim) -> str | None:  # noqa: ARG002 - most kinds remove none
        """Why the part of a claim was removed for ever. Returns None if it may come back."""
        return None

    def time_of(self, partition: Partition) -> datetime | None:  # noqa: ARG002 - not all have one
        """The time of a part that has disappeared, for `select: interval`."""
        return None
