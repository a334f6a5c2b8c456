"""Which file is this? The one table that decides it, over facts that were gathered before.

It is pure and total: docs/files.md shows it whole, and a test compares the two in every cell.
`sources/gather.py` gathers the facts, `plan` and `accept` act on the answers.
"""

from enum import StrEnum


class InodeMatch(StrEnum):
    """What the ledger knows under the file's own inode."""

    UNKNOWN = "unknown"
    """Nothing, or a file that is gone and whose inode's number this one was given."""
    SAME = "same"
    """A file that begins with all that was read, and that nothing tells from this one."""
    EMPTY = "empty"
    """A file of which something was read, and this one has no bytes (any more)."""
    CUT = "cut"
    """A file whose content went on in another file, or was overwritten by a hole of NULs."""
    CHANGED = "changed"
    """A file that is shorter now than what was read, or begins otherwise."""


class PathMatch(StrEnum):
    """What the ledger knows under the file's path, with another inode."""

    FREE = "free"
    """Nothing, or a file that is still in the folder, under another name."""
    GONE = "gone"
    """A file that is nowhere in the folder any more."""
    EDITED = "edited"
    """The same, and this file has its first record: as if somebody edited a copy."""
    UNSURE = "unsure"
    """A file of which it cannot be told whether it is still there, or that waits for such a one."""


class Match(StrEnum):
    """Whether it begins with all that was read of a file that does not hold it itself any more."""

    NONE = "none"
    WEAK = "weak"
    """It does, but these are few bytes, and nothing else speaks for it."""
    STRONG = "strong"
    """It does: 4 KiB or more, or also the time or the name are those of the other file."""
    LIVING = "living"
    """It does, and another file still holds (or takes up) what was read: this one is a copy. Or it
    has a part of that and no more: a copy that is still being made."""
    UNSURE = "unsure"
    """It does, and nobody can tell where the other file is now. Or it did when it was refused, it
    has not changed since, and the other file went on."""


class FileDecision(StrEnum):
    """What to do with a file."""

    GO_ON = "go on"
    """Read on in the partition of its inode."""
    TAKE_UP = "take up"
    """Read on in the matched partition: what was read of it is not read again."""
    NEW = "new"
    """Read it from its start, as a new partition."""
    WAIT = "wait"
    """Nothing to read now, and nothing is decided."""
    CHANGED = "changed"
    REPLACED = "replaced"
    COPY = "copy"
    """The last three are refusals: a person decides."""
    UNSURE = "unsure"
    """Refused until the file that had its path can be looked for."""


REFUSED = frozenset({FileDecision.CHANGED, FileDecision.REPLACED, FileDecision.COPY})
"""Until `semel accept`."""


# Keeps P8, P16, P17.
def recognise(
    own: InodeMatch, place: PathMatch, match: Match, *, by_position: bool
) -> FileDecision:
    """The answer for a file.

    By position a record that is read twice is there twice, so what could be a copy is refused.
    With a record id it is read: what it repeats is dropped.
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
