"""Compare a target's notes with the markers, by one decision table for all sinks.

A target's notes are rows of `semel_batch`, messages of the control topic, or derived from its rows.
The batches on the other side come from the markers, or are the finalized batches of the ledger.
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
    """State of a batch by the markers."""

    LISTED = "listed"
    """Its rows are output: the target MUST have them."""
    POSSIBLE = "possible"
    """The target may have it: committed and not finalized, replaced since, or without rows."""
    UNKNOWN = "unknown"


class TargetVerdict(StrEnum):
    """State of a batch by the target's note: no note, the same, or another with its number."""

    NOTHING = "nothing"
    SAME = "same"
    OTHER = "other"


class BatchVerdict(StrEnum):
    """The result of comparing both."""

    FINE = "fine"
    MISSING = "missing"
    OTHER = "other"
    STRAY = "stray"


# Keeps H1.
def judge_batch(by_markers: MarkerVerdict, by_target: TargetVerdict) -> BatchVerdict:
    """The decision table, with all nine cases."""
    match by_markers, by_target:
        case MarkerVerdict.LISTED, TargetVerdict.NOTHING:
            return BatchVerdict.MISSING
        case _, TargetVerdict.NOTHING:
            return BatchVerdict.FINE
        case MarkerVerdict.UNKNOWN, _:
            return BatchVerdict.STRAY
        case _, TargetVerdict.SAME:
            return BatchVerdict.FINE
        case _:
            return BatchVerdict.OTHER


@dataclass(frozen=True, kw_only=True)
class KnownBatch:
    """A batch that may be in the target, by the markers or the ledger. `root`: see `Batch.root`.

    `rows_left`: its rows without erased ones. `finalized_at` is None if the markers are the source.
    """

    batch_id: int
    root: int
    commit_seq: int
    fence: int
    rows: int
    rows_left: int
    verdict: MarkerVerdict
    finalized_at: datetime | None = None

    def compare_note(self, note: BatchNote | None) -> TargetVerdict:
        """Compare the batch with the target's note."""
        if note is None:
            return TargetVerdict.NOTHING
        if note.fence is None:
            same = note.commit_seq == self.commit_seq and note.rows <= self.rows_left
        else:
            expected = self.commit_seq, self.fence, self.rows
            same = (note.commit_seq, note.fence, note.rows) == expected
        return TargetVerdict.SAME if same else TargetVerdict.OTHER


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences between target and markers. `foreign`: notes of other pipelines or ledgers."""

    missing: tuple[KnownBatch, ...] = ()
    conflicting: tuple[BatchNote, ...] = ()
    strays: tuple[BatchNote, ...] = ()
    foreign: tuple[BatchNote, ...] = ()


def compare(
    pipeline: str, ledger: str | None, batches: Iterable[KnownBatch], notes: Iterable[BatchNote]
) -> Differences:
    """Compare a target's notes with the batches that may be there. `ledger`: None accepts any."""
    by_number = {batch.batch_id: batch for batch in batches}
    noted: set[int] = set()
    results: dict[BatchVerdict, list] = {verdict: [] for verdict in BatchVerdict}
    foreign = []
    for note in notes:
        has_ledger = note.fence is not None
        if note.pipeline != pipeline or (has_ledger and ledger not in (None, note.ledger)):
            foreign.append(note)
            continue
        noted.add(note.batch_id)
        if batch := by_number.get(note.batch_id):
            result = judge_batch(batch.verdict, batch.compare_note(note))
        else:
            result = judge_batch(MarkerVerdict.UNKNOWN, TargetVerdict.OTHER)
        results[result].append(note)
    for number, batch in by_number.items():
        if number not in noted:
            results[judge_batch(batch.verdict, TargetVerdict.NOTHING)].append(batch)
    return Differences(
        missing=tuple(results[BatchVerdict.MISSING]),
        conflicting=tuple(results[BatchVerdict.OTHER]),
        strays=tuple(results[BatchVerdict.STRAY]),
        foreign=tuple(foreign),
    )


def refuse_foreign(address: str, pipeline: str, foreign: Iterable[BatchNote]) -> None:
    """Raises TerminalError if another pipeline or another ledger has published rows there."""
    foreign = list(foreign)
    if not foreign:
        return
    names = sorted({note.pipeline for note in foreign})
    owner = f"pipeline {', '.join(map(repr, names))}" + (
        " of another ledger" if names == [pipeline] else ""
    )
    raise TerminalError(
        f"{address} has {_numbers_text(foreign)} of {owner}. A table or topic belongs to one "
        "pipeline of one ledger, so that readers can distinguish its rows. Give "
        f"{pipeline!r} another target"
    )


def _numbers_text(batches: Iterable[BatchNote | KnownBatch]) -> str:
    return batches_text({batch.batch_id for batch in batches})


def batches_text(batches: Collection[int]) -> str:
    """Batches by number: `batch 7`, `batches 3, 4, 9`."""
    numbers = sorted(batches)
    names = ", ".join(map(str, numbers[:FILES_NAMED_MAX]))
    more = len(numbers) - FILES_NAMED_MAX
    return f"batch{'es' if len(numbers) > 1 else ''} {names}" + (
        f" and {more} more" if more > 0 else ""
    )


# Keeps H2.
def refuse_differences(
    sink: RemoteSink, pipeline: str, archive: Path, differences: Differences
) -> None:
    """Raises TerminalError if the target differs from the markers in `archive`. The message
    describes the worst difference.
    """
    refuse_foreign(sink.address, pipeline, differences.foreign)
    if differences.conflicting:
        raise TerminalError(
            f"{sink.address} and the archive {archive} disagree about "
            f"{_numbers_text(differences.conflicting)}: both have them, with different rows. "
            "Either another ledger writes there, or one of the two was restored from a backup. "
            f"Nothing was written. Restore the older of the two, or give {pipeline!r} another target"
        )
    if strays := differences.strays:
        numbers = sorted({note.batch_id for note in strays})
        raise TerminalError(
            f"{sink.address} has rows of {_numbers_text(strays)}, which {pipeline!r} has not "
            "published by this ledger. Another ledger writes there, or somebody restored a backup. "
            f"Nothing was written. {sink.describe_removal(numbers)}"
        )
    if differences.missing:
        raise _missing_error(sink, pipeline, archive, differences.missing)


def _missing_error(
    sink: RemoteSink, pipeline: str, archive: Path, missing: Collection[KnownBatch]
) -> TerminalError:
    """The error for a target without notes for batches that the markers list."""
    roots = sorted({batch.root for batch in missing})
    what = (
        f"{sink.address} has no note of {batches_text(roots)}, which the markers in {archive} "
        "list. The target was emptied, restored to an earlier time or moved, or its notes were "
        "removed. Nothing was written. Restore it with its notes"
    )
    if sink.replaceable:
        first = last = roots[0]
        while last + 1 in roots:
            last += 1
        newest = max(batch.batch_id for batch in missing if first <= batch.root <= last)
        batches = str(first) if first == last else f"{first}..{last}"
        # A new request: the current code and declaration may have made the missing rows already.
        replay = f"semel replay {pipeline} --batches {batches} --request mend-{newest}"
        more = ". Then replay the other batches in the same way" if last != roots[-1] else ""
        return TerminalError(
            f"{what}, or compute the rows again from the source: `{replay}`{more}", next=replay
        )
    return TerminalError(
        f"{what}{erasure_step(sink, pipeline, missing)}. If the rows are lost, read their records "
        "again: treat the ledger as lost, move the markers of these batches out of the archive, "
        "and adopt (docs/operations.md)"
    )


def erasure_step(sink: RemoteSink, pipeline: str, missing: Collection[KnownBatch]) -> str:
    """How to accept that somebody has erased the missing rows on purpose, as a sentence without
    its full stop. Empty if the target's notes are separate from its rows.
    """
    if not sink.self_noted:
        return ""
    roots, count = sorted(b.root for b in missing), sum(b.rows_left for b in missing)
    command = f"semel accept {pipeline} --erased {roots[0]}..{roots[-1]} --rows {count}"
    return f". If somebody has erased them on purpose, accept that: `{command} --why TEXT`"
