"""Compare a table or topic with the markers that adopt takes over."""

from pathlib import Path

from semel.archive import layout, ownership
from semel.archive.marker import Marker
from semel.errors import AGAIN, TerminalError
from semel.pipeline.spec import Spec
from semel.repair.adopt.history import READ_AGAIN
from semel.sinks import BatchNote, Notes, RemoteSink, note_comparison


# Keeps D10, H2.
def compare_target(
    spec: Spec, sink: RemoteSink, archive: Path, markers: list[Marker], notes: Notes | None
) -> str | None:
    """The ledger in a target's notes, as in `Pipeline.ledger`. Returns None if unknown.

    Raises TerminalError if rows are missing or another pipeline's, or if they would duplicate those
    of a batch that reads their records again. The rows of replaced outputs need not exist.
    """
    if notes is None:
        return None
    differ = note_comparison.compare(
        spec.name, None, ownership.batches_of_markers(markers), notes.batch_notes
    )
    ledgers = {n.ledger for n in notes.batch_notes if n.pipeline == spec.name and n.ledger}
    if len(ledgers) > 1:
        note_comparison.refuse_foreign(
            sink.address, spec.name, (n for n in notes.batch_notes if n.ledger)
        )
    if not (differ.foreign or differ.conflicting):
        _refuse_strays(spec, sink, archive, markers, differ.strays)
        if differ.missing:
            raise _missing_rows_error(sink, spec.name, archive, differ.missing)
    note_comparison.refuse_differences(sink, spec.name, layout.markers(archive), differ)
    return next(iter(ledgers), None)


def _missing_rows_error(
    sink: RemoteSink, pipeline: str, archive: Path, missing: tuple[note_comparison.KnownBatch, ...]
) -> TerminalError:
    """The error for missing rows, whose records no run would read again after adopt."""
    roots = sorted({batch.root for batch in missing})
    first = layout.marker(archive, roots[0])
    return TerminalError(
        f"{sink.address}: it has no note of {note_comparison.batches_text(roots)}, but the archive has their "
        f"markers ({layout.markers(archive)}). The target was moved, or restored from an older "
        "backup. Nothing was adopted, because no run would write the missing rows. Restore the "
        f"target with its notes{note_comparison.erasure_step(sink, pipeline, missing)}. If the rows are lost, "
        f"move the markers of these batches ({first}, ...) out of the archive, and the next run "
        f"reads their records again. {READ_AGAIN}",
        next=AGAIN,
    )


def _refuse_strays(
    spec: Spec,
    sink: RemoteSink,
    archive: Path,
    markers: list[Marker],
    strays: tuple[BatchNote, ...],
) -> None:
    listed = {marker.commit_seq: marker for marker in markers}
    replays = [note for note in strays if note.commit_seq in listed]
    if replays:
        number, marker = replays[0].batch_id, listed[replays[0].commit_seq]
        root, maker = marker.batch_id, marker.writer_id
        raise TerminalError(
            f"{sink.address}: just before the ledger was lost, the rows of batch {number} replaced "
            f"those of batch {root}, and no marker in {archive} lists them. Nothing was adopted. "
            f"1. UPDATE the table: SET _semel_batch = {maker} WHERE _semel_batch = {number}. "
            f"2. Delete the row of batch {number} in semel_batch. 3. Run this again. "
            f"4. Write the rows again by `semel replay {spec.name} --batches {root}`",
            next=AGAIN,
        )
    if strays:
        numbers = sorted(note.batch_id for note in strays)
        raise TerminalError(
            f"{sink.address}: it has rows of {note_comparison.batches_text(numbers)}, which landed just "
            f"before the ledger was lost, and no marker in {archive} lists them. Nothing was "
            "adopted, because the next run writes the same records again. "
            f"{sink.describe_removal(numbers)}; then run this again",
            next=AGAIN,
        )
