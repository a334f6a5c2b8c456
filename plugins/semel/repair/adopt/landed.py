"""Compare a table or topic with the markers that adopt takes over."""

from pathlib import Path

from semel.archive import layout, owned
from semel.archive.marker import Marker
from semel.errors import AGAIN, TerminalError
from semel.pipeline.spec import Spec
from semel.repair.adopt.history import READ_AGAIN
from semel.sinks import BatchNote, Notes, RemoteSink, held


# Keeps D10, H2.
def check_landed(
    spec: Spec, sink: RemoteSink, kept: Path, found: list[Marker], notes: Notes | None
) -> str | None:
    """The ledger named in a target's notes, as in `Pipeline.ledger`. None: unknown.

    TerminalError: rows are missing, or are another pipeline's, or would stand beside those of the
    batch that reads their records again. For rows replaced since, the marker is kept aside and the
    rows are gone.
    """
    if notes is None:
        return None
    differ = held.compare(spec.name, None, owned.by_markers(found), notes.batch_notes)
    ledgers = {n.ledger for n in notes.batch_notes if n.pipeline == spec.name and n.ledger}
    if len(ledgers) > 1:
        held.refuse_foreign(sink.address, spec.name, (n for n in notes.batch_notes if n.ledger))
    if not (differ.foreign or differ.conflicting):
        _refuse_strays(spec, sink, kept, found, differ.strays)
        if differ.missing:
            raise _missing(sink, spec.name, kept, differ.missing)
    held.refuse_differences(sink, spec.name, layout.markers(kept), differ)
    return next(iter(ledgers), None)


def _missing(
    sink: RemoteSink, pipeline: str, kept: Path, missing: tuple[held.KnownBatch, ...]
) -> TerminalError:
    """The error for missing rows: once adopted, their records would never be read again."""
    roots = sorted({one.root for one in missing})
    first = layout.marker(kept, roots[0])
    return TerminalError(
        f"{sink.address} has no note of {held.batches_text(roots)}, whose markers are in "
        f"{layout.markers(kept)}. The target was restored to an earlier time or moved. Adopted "
        "now, the rows would be missing for ever. Restore it with its notes"
        f"{held.erasure_step(sink, pipeline, missing)}. If the rows are lost, move the markers of "
        f"these batches out of the archive ({first}, ...), and the next run reads their records "
        f"again. {READ_AGAIN}",
        next=AGAIN,
    )


def _refuse_strays(
    spec: Spec, sink: RemoteSink, kept: Path, found: list[Marker], strays: tuple[BatchNote, ...]
) -> None:
    made_by = {marker.commit_seq: marker for marker in found}
    replays = [note for note in strays if note.commit_seq in made_by]
    if replays:
        number, marker = replays[0].batch_id, made_by[replays[0].commit_seq]
        root, maker = marker.batch_id, marker.made_by
        raise TerminalError(
            f"{sink.address} has rows of batch {number}, which replaced those of batch {root} just "
            f"before the ledger was lost, and no marker in {kept} lists them. Let them be batch "
            f"{maker}'s (UPDATE, SET _semel_batch = {maker} WHERE _semel_batch = {number}), delete "
            f"batch {number}'s row in semel_batch, and run this again; after that `semel replay "
            f"{spec.name} --batches {root}` makes them what its marker will say",
            next=AGAIN,
        )
    if strays:
        numbers = sorted(note.batch_id for note in strays)
        raise TerminalError(
            f"{sink.address} has rows of {held.batches_text(numbers)}, which no marker in {kept} "
            "lists: they landed just before the ledger was lost, and their records will be read again. "
            f"{sink.describe_removal(numbers)}; then run this again",
            next=AGAIN,
        )
