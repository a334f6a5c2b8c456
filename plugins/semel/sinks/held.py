"""Compare a target's notes with the markers, by one decision table for all sinks.

A target's notes are rows of `semel_batch`, or messages of the control topic. The batches on the
other side come from the markers, or from the ledger, where they are the finalized batches.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import TerminalError
from semel.sinks import BatchNote, RemoteSink


class MarkerVerdict(StrEnum):
    """What the markers say about a batch."""

    LISTED = "listed"
    """Its rows are output: the target must hold them."""
    POSSIBLE = "possible"
    """The target may hold it: committed and not finalized, replaced since, or without rows."""
    UNKNOWN = "unknown"


class Holds(StrEnum):
    """What the target says about it: nothing, the same, or another batch under its number."""

    NOTHING = "nothing"
    SAME = "same"
    OTHER = "other"


class BatchVerdict(StrEnum):
    """The verdict on a batch."""

    FINE = "fine"
    MISSING = "missing"
    OTHER = "other"
    STRAY = "stray"


# Keeps H1.
def judge(told: MarkerVerdict, holds: Holds) -> BatchVerdict:
    """The decision table, with all nine cases."""
    match told, holds:
        case MarkerVerdict.LISTED, Holds.NOTHING:
            return BatchVerdict.MISSING
        case _, Holds.NOTHING:
            return BatchVerdict.FINE
        case MarkerVerdict.UNKNOWN, _:
            return BatchVerdict.STRAY
        case _, Holds.SAME:
            return BatchVerdict.FINE
        case _:
            return BatchVerdict.OTHER


@dataclass(frozen=True, kw_only=True)
class KnownBatch:
    """A batch that may be in the target, by the markers or the ledger. `root`: see `Batch.root`.

    `left`: its rows without those that were erased. `finalized_at`: by the ledger; markers do not
    tell it.
    """

    batch_id: int
    root: int
    commit_seq: int
    fence: int
    rows: int
    left: int
    told: MarkerVerdict
    finalized_at: datetime | None = None

    def holds(self, note: BatchNote | None) -> Holds:
        """Compare it with the target's note."""
        if note is None:
            return Holds.NOTHING
        if note.fence is None:
            same = note.commit_seq == self.commit_seq and note.rows <= self.left
        else:
            wanted = self.commit_seq, self.fence, self.rows
            same = (note.commit_seq, note.fence, note.rows) == wanted
        return Holds.SAME if same else Holds.OTHER


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences between target and markers. `foreign`: notes of other pipelines or ledgers."""

    missing: tuple[KnownBatch, ...] = ()
    others: tuple[BatchNote, ...] = ()
    strays: tuple[BatchNote, ...] = ()
    foreign: tuple[BatchNote, ...] = ()


def compare(
    pipeline: str, ledger: str | None, known: Iterable[KnownBatch], notes: Iterable[BatchNote]
) -> Differences:
    """Compare a target's notes with the batches that may be there. `ledger`: None accepts any."""
    batches = {one.batch_id: one for one in known}
    own: dict[int, BatchNote] = {}
    found: dict[BatchVerdict, list] = {finding: [] for finding in BatchVerdict}
    foreign = []
    for note in notes:
        says = note.fence is not None
        if note.pipeline != pipeline or (says and ledger not in (None, note.ledger)):
            foreign.append(note)
            continue
        own[note.batch_id] = note
        one = batches.get(note.batch_id)
        told, holds = (one.told, one.holds(note)) if one else (MarkerVerdict.UNKNOWN, Holds.OTHER)
        found[judge(told, holds)].append(note)
    for number, one in batches.items():
        if number not in own:
            found[judge(one.told, Holds.NOTHING)].append(one)
    return Differences(
        missing=tuple(found[BatchVerdict.MISSING]),
        others=tuple(found[BatchVerdict.OTHER]),
        strays=tuple(found[BatchVerdict.STRAY]),
        foreign=tuple(foreign),
    )


def refuse_foreign(address: str, pipeline: str, foreign: Iterable[BatchNote]) -> None:
    """TerminalError: another pipeline, or a pipeline of another ledger, published rows there."""
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


def _those(found: Iterable[BatchNote | KnownBatch]) -> str:
    return named({one.batch_id for one in found})


def named(batches: Collection[int]) -> str:
    """Batches by number: `batch 7`, `batches 3, 4, 9`."""
    numbers = sorted(batches)
    shown = ", ".join(map(str, numbers[:FILES_NAMED_MAX]))
    more = len(numbers) - FILES_NAMED_MAX
    return f"batch{'es' if len(numbers) > 1 else ''} {shown}" + (
        f" and {more} more" if more > 0 else ""
    )


# Keeps H2.
def refuse(sink: RemoteSink, pipeline: str, archive: Path, found: Differences) -> None:
    """TerminalError: the target differs from the markers in `archive`. Reports the worst difference
    first.
    """
    refuse_foreign(sink.address, pipeline, found.foreign)
    if found.others:
        raise TerminalError(
            f"{sink.address} holds other rows under the numbers of {_those(found.others)} than "
            f"those that were published: another ledger has put them in, or {archive} is of "
            "another time than it. Nothing was written. Bring back the one that is older"
        )
    if found.strays:
        raise TerminalError(
            f"{sink.address} holds rows of {_those(found.strays)}, which are none of "
            f"{pipeline!r} here: another ledger has put them in, or a backup has brought "
            f"them back. Nothing was written. {sink.forget(_numbers(found.strays))}"
        )
    if found.missing:
        raise _missing(sink, pipeline, archive, found.missing)


def _numbers(found: Iterable[BatchNote]) -> list[int]:
    return sorted({note.batch_id for note in found})


def _missing(
    sink: RemoteSink, pipeline: str, archive: Path, found: Collection[KnownBatch]
) -> TerminalError:
    """The error for a target without notes for batches that the markers list."""
    roots = sorted({one.root for one in found})
    what = (
        f"{sink.address} does not say that it holds {named(roots)}, and the markers in "
        f"{archive} list them: it was restored to an earlier time, emptied, or is another "
        "place; or its notes were removed. Nothing was written. Restore it with its notes"
    )
    if sink.replaceable:
        first = last = roots[0]
        while last + 1 in roots:
            last += 1
        lacking = [one.batch_id for one in found if first <= one.root <= last]
        batches = str(first) if first == last else f"{first}..{last}"
        # A new request: the current code and declaration may have made the missing rows already.
        again = f"semel replay {pipeline} --batches {batches} --request mend-{max(lacking)}"
        others = ", and so for the others" if last != roots[-1] else ""
        return TerminalError(
            f"{what}; or `{again}` computes their rows again from the source{others}", next=again
        )
    again = (
        "read their records again: treat the ledger as lost, move the markers of these batches "
        "aside, and adopt (docs/operations.md)"
    )
    erased = were_erased(sink, pipeline, found)
    return TerminalError(f"{what}{erased}; or, where their rows are gone, {again}")


def were_erased(sink: RemoteSink, pipeline: str, found: Collection[KnownBatch]) -> str:
    """What to do if somebody has erased missing rows on purpose, where rows are the only notes."""
    if not sink.self_noted:
        return ""
    roots, lacking = sorted(one.root for one in found), sum(one.left for one in found)
    command = f"semel accept {pipeline} --erased {roots[0]}..{roots[-1]} --rows {lacking}"
    return f"; or, if somebody has erased them on purpose, say so: `{command} --why TEXT`"
