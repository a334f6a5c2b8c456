"""Which file is this? One table decides, over the facts that `gather` has collected.

It is pure and total: docs/files.md shows it in full, and a test compares the two in every cell.
`plan` and `accept` act on the decisions.
"""

from enum import StrEnum


class InodeMatch(StrEnum):
    """How a file relates to the partition that the ledger has under its inode."""

    UNKNOWN = "unknown"
    """There is no such partition, or the inode number was reused after its file was deleted."""
    SAME = "same"
    """The file begins with all that was read, and nothing shows that it is another one."""
    EMPTY = "empty"
    """Something was read of the partition, and the file is empty now."""
    CUT = "cut"
    """The read content moved to another file, or a hole of NULs replaced it."""
    CHANGED = "changed"
    """The file is shorter than what was read, or begins otherwise."""


class PathMatch(StrEnum):
    """How a file relates to the partition that has its path in the ledger, with another inode."""

    FREE = "free"
    """There is no such partition, or its file is still in the folder under another name."""
    MISSING = "gone"
    """The partition's file is nowhere in the folder."""
    EDITED = "edited"
    """The partition's file is missing, and this file has its first or last record: an edited copy,
    perhaps."""
    UNSURE = "unsure"
    """semel cannot decide whether the partition's file still exists, or that file waits itself."""


class Match(StrEnum):
    """Whether a file begins with all that was read of a partition that its own file left."""

    NONE = "none"
    WEAK = "weak"
    """It does, with under 4 KiB and without other evidence."""
    STRONG = "strong"
    """It does, with 4 KiB or more, or with the time or the name of the partition's file."""
    LIVING = "living"
    """It does, and another file still holds (or takes up) the partition: this one is a copy. Or it
    holds only a part of what was read: a copy in progress."""
    UNSURE = "unsure"
    """It does, and semel cannot find out where the partition's file is. Or it did when a plan
    refused it, it has not changed since, and the partition's file went on."""


class FileDecision(StrEnum):
    """The action for a file."""

    GO_ON = "go on"
    """Read on in the partition of its inode."""
    TAKE_UP = "take up"
    """Read on in the partition whose content it holds, without reading that content again."""
    NEW = "new"
    """Read the file from its start, as a new partition."""
    WAIT = "wait"
    """Read nothing now, and decide nothing."""
    CHANGED = "changed"
    REPLACED = "replaced"
    COPY = "copy"
    """CHANGED, REPLACED and COPY are refusals: an operator decides."""
    UNSURE = "unsure"
    """Refused until semel can look for the file that had its path."""


REFUSED = frozenset({FileDecision.CHANGED, FileDecision.REPLACED, FileDecision.COPY})
"""Decisions that last until `semel accept`."""


# Keeps P8, P16, P17.
def recognise(
    own: InodeMatch, place: PathMatch, match: Match, *, by_position: bool
) -> FileDecision:
    """The decision about a file.

    By position, a record that semel reads twice is written twice, so a possible copy is refused.
    With a record id, semel reads it and drops the repeats.
    """
    if place is PathMatch.UNSURE:
        return FileDecision.UNSURE
    if own is InodeMatch.SAME:
        return FileDecision.GO_ON
    if own is InodeMatch.EMPTY:
        return FileDecision.WAIT
    if own is InodeMatch.CHANGED:
        return FileDecision.CHANGED
    if match is Match.STRONG:
        return FileDecision.TAKE_UP
    if not by_position:
        return FileDecision.NEW
    if match in (Match.LIVING, Match.UNSURE):
        return FileDecision.COPY
    if match is Match.WEAK:
        return FileDecision.COPY if place is PathMatch.FREE else FileDecision.REPLACED
    return FileDecision.REPLACED if place is PathMatch.EDITED else FileDecision.NEW
