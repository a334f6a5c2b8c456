"""What a target says that it holds, against what the markers say: one decision table for all sinks.

A target's word are its notes: rows of `semel_batch`, or of the control topic. The word of markers
is read from them, or from the ledger, which has them as finalized batches.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import TerminalError
from semel.sinks import Note


class Told(StrEnum):
    """What the markers say of a batch."""

    LISTED = "listed"
    """Its rows are output: the target must hold them."""
    POSSIBLE = "possible"
    """It may: committed and not finalized, replaced since, or without a row."""
    UNKNOWN = "unknown"


class Holds(StrEnum):
    """What the target says of it: nothing, the same, or another batch under its number."""

    NOTHING = "nothing"
    SAME = "same"
    OTHER = "other"


class Finding(StrEnum):
    """What that comes to."""

    FINE = "fine"
    MISSING = "missing"
    OTHER = "other"
    STRAY = "stray"


# Keeps H1.
def judge(told: Told, holds: Holds) -> Finding:
    """The decision table: all nine cases."""
    match told, holds:
        case Told.LISTED, Holds.NOTHING:
            return Finding.MISSING
        case _, Holds.NOTHING:
            return Finding.FINE
        case Told.UNKNOWN, _:
            return Finding.STRAY
        case _, Holds.SAME:
            return Finding.FINE
        case _:
            return Finding.OTHER


@dataclass(frozen=True, kw_only=True)
class Known:
    """A batch that may be in the target, as markers or the ledger have it. `root`: whose output."""

    batch_id: int
    root: int
    commit_seq: int
    fence: int
    rows: int
    told: Told
    finalized: bool = True

    def holds(self, note: Note | None) -> Holds:
        """What the target's note says of it."""
        if note is None:
            return Holds.NOTHING
        same = (note.commit_seq, note.fence, note.rows) == (self.commit_seq, self.fence, self.rows)
        return Holds.SAME if same else Holds.OTHER


@dataclass(frozen=True, kw_only=True)
class Differences:
    """How the two differ. `foreign`: notes of other pipelines, or of other ledgers."""

    missing: tuple[Known, ...] = ()
    others: tuple[Note, ...] = ()
    strays: tuple[Note, ...] = ()
    foreign: tuple[Note, ...] = ()

    def __bool__(self) -> bool:
        return any(vars(self).values())


def compare(
    pipeline: str, ledger: str | None, known: Iterable[Known], notes: Iterable[Note]
) -> Differences:
    """Hold all notes of a target against the batches that may be there. `ledger`: None: any."""
    batches = {one.batch_id: one for one in known}
    own: dict[int, Note] = {}
    found: dict[Finding, list] = {finding: [] for finding in Finding}
    foreign = []
    for note in notes:
        theirs = ledger is not None and note.ledger not in (None, ledger)
        if note.pipeline != pipeline or theirs:
            foreign.append(note)
            continue
        own[note.batch_id] = note
        one = batches.get(note.batch_id)
        told, holds = (one.told, one.holds(note)) if one else (Told.UNKNOWN, Holds.OTHER)
        found[judge(told, holds)].append(note)
    for number, one in batches.items():
        if number not in own:
            found[judge(one.told, Holds.NOTHING)].append(one)
    return Differences(
        missing=tuple(found[Finding.MISSING]),
        others=tuple(found[Finding.OTHER]),
        strays=tuple(found[Finding.STRAY]),
        foreign=tuple(foreign),
    )


def refuse_foreign(address: str, pipeline: str, foreign: Iterable[Note]) -> None:
    """TerminalError: another pipeline, or another ledger's, has put rows in."""
    foreign = list(foreign)
    if not foreign:
        return
    names = sorted({note.pipeline for note in foreign})
    whose = f"pipeline {', '.join(map(repr, names))}" + (
        ", of another ledger" if names == [pipeline] else ""
    )
    raise TerminalError(
        f"{address} holds {_those(foreign)} of {whose}, and one table or topic belongs to one "
        f"pipeline of one ledger: readers could not tell their rows apart. Give {pipeline!r} "
        "another one"
    )


def _those(found: Iterable[Note | Known]) -> str:
    return named({one.batch_id for one in found})


def named(batches: Collection[int]) -> str:
    """Batches by their numbers: `batch 7`, `batches 3, 4, 9`."""
    numbers = sorted(batches)
    shown = ", ".join(map(str, numbers[:FILES_NAMED_MAX]))
    more = len(numbers) - FILES_NAMED_MAX
    return f"batch{'es' if len(numbers) > 1 else ''} {shown}" + (
        f" and {more} more" if more > 0 else ""
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """What messages need to know of a target. `replaceable`: a replay puts rows in the place of
    what is there of its batch. `forget`: as `Remote.forget`.
    """

    address: str
    pipeline: str
    archive: Path
    replaceable: bool
    forget: Callable[[Sequence[int]], str]


# Keeps H2.
def refuse(place: Place, found: Differences) -> None:
    """TerminalError for how a target differs from the markers, the worst first."""
    refuse_foreign(place.address, place.pipeline, found.foreign)
    if found.others:
        raise TerminalError(
            f"{place.address} holds other rows under the numbers of {_those(found.others)} than "
            f"those that were published: another ledger has put them in, or {place.archive} is of "
            "another time than it. Nothing was written. Bring back the one that is older"
        )
    if found.strays:
        raise TerminalError(
            f"{place.address} holds rows of {_those(found.strays)}, which are none of "
            f"{place.pipeline!r} here: another ledger has put them in, or a backup has brought "
            f"them back. Nothing was written. {place.forget(_numbers(found.strays))}"
        )
    if found.missing:
        raise missing(place, found.missing)


def _numbers(found: Iterable[Note]) -> list[int]:
    return sorted({note.batch_id for note in found})


def missing(place: Place, found: Collection[Known]) -> TerminalError:
    """The target does not say that it holds what markers list."""
    roots = sorted({one.root for one in found})
    what = (
        f"{place.address} does not say that it holds {named(roots)}, and the markers in "
        f"{place.archive} list them: it was restored to an earlier time, emptied, or is another "
        "place; or its notes were removed. Nothing was written. Restore it with its notes"
    )
    if place.replaceable:
        first = last = roots[0]
        while last + 1 in roots:
            last += 1
        lacking = [one.batch_id for one in found if first <= one.root <= last]
        batches = str(first) if first == last else f"{first}..{last}"
        # A request of its own: the code and declaration of now may have made what is lacking.
        again = f"semel replay {place.pipeline} --batches {batches} --request mend-{max(lacking)}"
        others = ", and so for the others" if last != roots[-1] else ""
        return TerminalError(
            f"{what}; or `{again}` computes their rows again from the source{others}", next=again
        )
    return TerminalError(
        f"{what}; or, where their rows are gone, read their records again: treat the ledger as "
        "lost, move the markers of these batches aside, and adopt (docs/operations.md)"
    )
