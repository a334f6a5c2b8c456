"""Ownership checks: refuse a sink that has output of another pipeline or ledger."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import sqlalchemy as sa

from semel import storage
from semel.archive import layout, traces
from semel.archive.marker import Marker, generations, markers_in
from semel.errors import TerminalError
from semel.ledger import Ledger, rows
from semel.model.batch import Pipeline
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.sinks import Notes, NotesQuery, RemoteSink, Sink, note_comparison
from semel.sinks.note_comparison import Differences, KnownBatch, MarkerVerdict
from semel.storage import ArchivePath, each, packs

NOTES_COMPARED = 200
"""How many of the newest batches semel compares with a target before each batch: a restored older
table lacks these first. Adopt, audit, check and `accept --moved` compare all batches."""


# Keeps D1.
def refuse_traces(spec: Spec, sink: Sink, archive: ArchivePath) -> None:
    """Raise TerminalError if the sink of a new pipeline has traces of earlier batches."""
    trace = traces.describe_trace(spec.sink_path(), archive, spec)
    if not trace and (notes := sink.notes()) and (notes.batch_notes or notes.damaged):
        notes.check()
        note_comparison.refuse_foreign(
            sink.address, spec.name, (n for n in notes.batch_notes if n.pipeline != spec.name)
        )
        trace = f"rows of batch {max(note.batch_id for note in notes.batch_notes)}"
    if trace:
        raise TerminalError(
            f"{sink.address}: this sink has {trace}, but this ledger does not know "
            f"pipeline {spec.name!r}. A run would write the same records there again, so nothing "
            "was written. Adopt the batches in the sink, or declare an empty sink",
            next=f"semel adopt {spec.name}",
        )


# Keeps D1.
def refuse_foreign_markers(
    connection: sa.Connection,
    pipeline_id: int,
    name: str,
    sink: Path | None,
    archive: ArchivePath,
) -> None:
    """Raise TerminalError if a pipeline's new sink has markers of other batches."""
    foreign = unknown_markers(connection, pipeline_id, name, markers_in(sink, archive))
    if foreign:
        examples = ", ".join(f"batch {m.batch_id} of {m.pipeline!r}" for m in foreign[:3])
        raise TerminalError(
            f"{archive}: this archive has markers of batches that pipeline {name!r} does not have "
            f"in this ledger ({examples}). Nothing was written. Move the pipeline's present sink "
            "and archive there first, or declare an empty sink"
        )


def unknown_markers(
    connection: sa.Connection, pipeline_id: int, name: str, markers: list[Marker]
) -> list[Marker]:
    """The markers that do not match a committed batch of this pipeline in this ledger.

    The marker of a replayed batch must match both the batch and its newest replay.
    """
    committed = {
        (r["batch_id"], r["fence"], r["commit_seq"])
        for r in rows(connection, "batch", "committed", pipeline_id=pipeline_id)
    }

    def is_known(m: Marker) -> bool:
        is_replay_known = m.replay is None or (m.replay.batch_id, m.replay.fence, None) in committed
        return is_replay_known and (m.batch_id, m.fence, m.commit_seq) in committed

    return [m for m in markers if m.pipeline != name or not is_known(m)]


def known_batches(
    connection: sa.Connection, pipeline: Pipeline, *, every: bool = False
) -> list[KnownBatch]:
    """The batches that the ledger expects in a pipeline's target: the newest, or all if `every`."""
    newest = None if every else NOTES_COMPARED
    values = {"pipeline_id": pipeline.pipeline_id, "newest": newest}
    return [
        KnownBatch(
            batch_id=r["batch_id"],
            root=r["root"],
            commit_seq=r["commit_seq"],
            fence=r["fence"],
            rows=r["rows"],
            rows_left=r["left"],
            finalized_at=r["finalized_at"],
            verdict=MarkerVerdict.LISTED if r["finalized_at"] and not r["replaced"] and r["left"]
            else MarkerVerdict.POSSIBLE,
        )
        for r in rows(connection, "batch", "known", **values)
    ]  # fmt: skip


def batches_of_markers(markers: Iterable[Marker]) -> list[KnownBatch]:
    """The batches that markers describe, with all replaced generations.

    Raises CorruptionError if the copy of a replaced marker is missing or damaged.
    """
    batches = []
    for newest in markers:
        for marker in generations(newest):
            rows_left = sum(file.records for file in marker.of_kind(Kind.DATA))
            batches.append(
                KnownBatch(
                    batch_id=marker.writer_id,
                    root=marker.batch_id,
                    commit_seq=marker.commit_seq,
                    fence=marker.replay.fence if marker.replay else marker.fence,
                    rows=rows_left + marker.erased_rows,
                    rows_left=rows_left,
                    verdict=MarkerVerdict.LISTED
                    if marker is newest and rows_left
                    else MarkerVerdict.POSSIBLE,
                )
            )
    return batches


# Keeps H2.
def check_target(
    ledger: Ledger,
    pipeline: Pipeline,
    sink: Sink,
    expected: list[KnownBatch],
    staged: ArchivePath | None,
    *,
    replay: bool = False,
) -> None:
    """Raise TerminalError if the target lacks rows that the ledger's finalized batches published.

    `expected`: the ledger's batches, read before this call. With `staged`, the folder of an
    attempt's data files, they are the newest ones, otherwise all. A `replay` may publish missing
    rows.
    """
    archive, count = storage.at(pipeline.archive_path), NOTES_COMPARED if staged else None
    listed = [batch for batch in expected if batch.verdict is MarkerVerdict.LISTED]
    newest_listed = max(listed, key=attrgetter("finalized_at")).batch_id if listed else None
    newest = staged and NotesQuery(pipeline.name, count, staged, newest_listed)
    first = _first([batch.batch_id for batch in expected], count)
    marked, notes = traces.marker_numbers(archive, first), sink.notes(newest)
    if notes is not None and newest is None:
        notes.check()
    differences = _differences(pipeline, expected, notes, count)
    # A replay's root may be older than `first`, and collect may pack a marker meanwhile.
    unlisted = list({batch.root for batch in expected if batch.finalized_at} - marked)
    exist = each(archive, lambda n: packs.has_marker(layout.marker(archive, n)), unlisted)
    lacking = {number for number, exists in zip(unlisted, exist, strict=True) if not exists}
    unknown = _unknown(expected, marked, count)
    if unknown or differences.strays or differences.conflicting:  # New batches may have landed.
        with ledger.transaction() as connection:
            expected = known_batches(connection, pipeline, every=staged is None)
        later = _differences(pipeline, expected, notes, count)
        differences = replace(differences, strays=later.strays, conflicting=later.conflicting)
        unknown = _unknown(expected, marked, count)
    _check_markers(pipeline, lacking, unknown, archive)
    if notes is None:
        return
    if replay or not notes.complete:
        differences = replace(differences, missing=())
    note_comparison.refuse_differences(sink, pipeline.name, layout.markers(archive), differences)


def _differences(
    pipeline: Pipeline, expected: list[KnownBatch], notes: Notes | None, count: int | None
) -> Differences:
    """Compare the batch numbers that both queries, to the ledger and to the target, cover."""
    if notes is None:
        return Differences()
    noted = [note.batch_id for note in notes.batch_notes if note.pipeline == pipeline.name]
    first = max(_first([batch.batch_id for batch in expected], count), _first(noted, count))
    return note_comparison.compare(
        pipeline.name,
        pipeline.ledger,
        (batch for batch in expected if batch.batch_id >= first),
        (n for n in notes.batch_notes if n.batch_id >= first or n.pipeline != pipeline.name),
    )


def _first(numbers: list[int], count: int | None) -> int:
    """The lowest batch number from which on a query for the newest `count` batches is complete."""
    return min(numbers) if count is not None and len(numbers) >= count else 0


def _unknown(expected: list[KnownBatch], marked: set[int], count: int | None) -> set[int]:
    first = _first([batch.batch_id for batch in expected], count)
    return {number for number in marked if number >= first} - {batch.root for batch in expected}


def _check_markers(
    pipeline: Pipeline, lacking: set[int], unknown: set[int], archive: ArchivePath
) -> None:
    """Raise TerminalError if the archive's markers differ from the ledger's finalized batches."""
    if lacking:
        raise TerminalError(
            f"{layout.markers(archive)}: the markers of {note_comparison.batches_text(lacking)} are missing, "
            "though these are finalized. The archive was emptied or restored from an older backup. "
            "Nothing was written. Restore sink and archive, or treat the ledger as lost and read "
            "the missing records again (docs/operations.md)"
        )
    refuse_unknown(pipeline, unknown)


def refuse_unknown(pipeline: Pipeline, unknown: Collection[int]) -> None:
    """Raise TerminalError if the archive has markers of batches that the ledger does not have."""
    if unknown:
        raise TerminalError(
            f"{layout.markers(storage.at(pipeline.archive_path))}: the markers of "
            f"{note_comparison.batches_text(unknown)} are not of {pipeline.name!r} in this ledger. Another "
            "ledger writes to this sink, or a backup restored them. Nothing was written. Stop the "
            "other ledger, and move these markers and their files out of the archive"
        )


# Keeps H2.
def check_markers(spec: Spec, sink: RemoteSink) -> None:
    """Raise TerminalError if a target lacks rows that markers list, or has foreign rows.

    Rows without a marker are no error, because a batch may be in progress. This does not query the
    ledger.
    """
    archive = layout.archive_folder(spec)
    notes = sink.notes()
    notes.check()
    expected = batches_of_markers(markers_in(None, archive))
    differences = replace(
        note_comparison.compare(spec.name, None, expected, notes.batch_notes), strays=()
    )
    note_comparison.refuse_differences(sink, spec.name, layout.markers(archive), differences)
