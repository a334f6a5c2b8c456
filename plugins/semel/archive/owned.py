"""Ownership checks: refuse a sink that holds output of another pipeline or ledger."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import sqlalchemy as sa

from semel.archive import layout, traces
from semel.archive.marker import Marker, generations, markers_in
from semel.errors import TerminalError
from semel.ledger import Ledger, rows
from semel.model.batch import Pipeline
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.sinks import NotesQuery, Notes, RemoteSink, Sink, held
from semel.sinks.held import Differences, KnownBatch, MarkerVerdict

NOTES_HELD = 200
"""Newest batches to check a target against before each batch: a restored older table lacks these
first. Adopt, audit, check and `accept --moved` check all batches."""


# Keeps D1.
def refuse_traces(spec: Spec, sink: Sink, kept: Path) -> None:
    """TerminalError: the sink of a new pipeline holds something from earlier batches."""
    found = traces.first(spec.sink_path(), kept, spec)
    if not found and (notes := sink.notes()) and (notes.batch_notes or notes.damaged):
        notes.check()
        held.refuse_foreign(
            sink.address, spec.name, (n for n in notes.batch_notes if n.pipeline != spec.name)
        )
        found = f"rows of batch {max(note.batch_id for note in notes.batch_notes)}"
    if found:
        raise TerminalError(
            f"the sink {sink.address} holds {found}, and this ledger knows no pipeline "
            f"{spec.name!r}: its records would be written there again. Adopt what is there, or "
            "give the pipeline an empty sink",
            next=f"semel adopt {spec.name}",
        )


# Keeps D1.
def refuse_foreign_markers(
    connection: sa.Connection, pipeline_id: int, name: str, sink: Path | None, kept: Path
) -> None:
    """TerminalError: the sink that a pipeline moves to holds markers of other batches."""
    foreign = not_of(connection, pipeline_id, name, markers_in(sink, kept))
    if foreign:
        shown = ", ".join(f"{m.batch_id} of {m.pipeline!r}" for m in foreign[:3])
        raise TerminalError(
            f"{kept} holds markers of batches that {name!r} does not have in this ledger "
            f"(batch {shown}); move the pipeline's own sink and archive there first, or give it an "
            "empty sink"
        )


def not_of(
    connection: sa.Connection, pipeline_id: int, name: str, found: list[Marker]
) -> list[Marker]:
    """The markers that match no committed batch of this pipeline in this ledger.

    A replayed batch's marker must match two: the batch itself, and its newest replay.
    """
    known = {
        (r["batch_id"], r["fence"], r["commit_seq"])
        for r in rows(connection, "batch", "committed", pipeline_id=pipeline_id)
    }

    def is_known(m: Marker) -> bool:
        made = m.replay is None or (m.replay.batch_id, m.replay.fence, None) in known
        return made and (m.batch_id, m.fence, m.commit_seq) in known

    return [m for m in found if m.pipeline != name or not is_known(m)]


def known_batches(
    connection: sa.Connection, pipeline: Pipeline, *, every: bool = False
) -> list[KnownBatch]:
    """The batches that the ledger expects in a pipeline's target: the newest, or `every` one."""
    newest = None if every else NOTES_HELD
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


def by_markers(markers: Iterable[Marker]) -> list[KnownBatch]:
    """The batches of these markers, with the generations that were replaced.

    CorruptionError: a marker that was kept aside is gone or damaged.
    """
    found = []
    for newest in markers:
        for marker in generations(newest):
            left = sum(file.records for file in marker.of_kind(Kind.DATA))
            found.append(
                KnownBatch(
                    batch_id=marker.made_by,
                    root=marker.batch_id,
                    commit_seq=marker.commit_seq,
                    fence=marker.replay.fence if marker.replay else marker.fence,
                    rows=left + marker.erased_rows,
                    rows_left=left,
                    verdict=MarkerVerdict.LISTED
                    if marker is newest and left
                    else MarkerVerdict.POSSIBLE,
                )
            )
    return found


# Keeps H2.
def check_held(
    ledger: Ledger,
    pipeline: Pipeline,
    sink: Sink,
    known: list[KnownBatch],
    staged: Path | None,
    *,
    replay: bool = False,
) -> None:
    """TerminalError: the target does not hold what the ledger's finalized batches published.

    `known`: the ledger's batches, read before this call: all of them; or the newest, with `staged`,
    the folder of an attempt's data files. A `replay` may publish what is missing.
    """
    kept, count = Path(pipeline.archive_path), NOTES_HELD if staged else None
    listed = [one for one in known if one.verdict is MarkerVerdict.LISTED]
    has = max(listed, key=attrgetter("finalized_at")).batch_id if listed else None
    newest = staged and NotesQuery(pipeline.name, count, staged, has)
    there, notes = traces.markers(kept), sink.notes(newest)
    if notes is not None and newest is None:
        notes.check()
    found = _differences(pipeline, known, notes, count)
    lacking = {one.root for one in known if one.finalized_at} - there
    unknown = _unknown(known, there, count)
    if unknown or found.strays or found.conflicting:  # Some may have landed since the read.
        with ledger.transaction() as connection:
            known = known_batches(connection, pipeline, every=staged is None)
        later = _differences(pipeline, known, notes, count)
        found = replace(found, strays=later.strays, conflicting=later.conflicting)
        unknown = _unknown(known, there, count)
    _check_markers(pipeline, lacking, unknown, kept)
    if notes is None:
        return
    if replay or not notes.complete:
        found = replace(found, missing=())
    held.refuse_differences(sink, pipeline.name, layout.markers(kept), found)


def _differences(
    pipeline: Pipeline, known: list[KnownBatch], notes: Notes | None, count: int | None
) -> Differences:
    """Compare only the batch numbers that both sides were asked for."""
    if notes is None:
        return Differences()
    own = [note.batch_id for note in notes.batch_notes if note.pipeline == pipeline.name]
    first = max(_first([one.batch_id for one in known], count), _first(own, count))
    return held.compare(
        pipeline.name,
        pipeline.ledger,
        (one for one in known if one.batch_id >= first),
        (n for n in notes.batch_notes if n.batch_id >= first or n.pipeline != pipeline.name),
    )


def _first(asked: list[int], count: int | None) -> int:
    """The first batch number from which on a query for the newest is complete."""
    return min(asked) if count is not None and len(asked) >= count else 0


def _unknown(known: list[KnownBatch], there: set[int], count: int | None) -> set[int]:
    first = _first([one.batch_id for one in known], count)
    return {number for number in there if number >= first} - {one.root for one in known}


def _check_markers(
    pipeline: Pipeline, lacking: set[int], unknown: set[int], kept: Path
) -> None:
    """TerminalError: the archive's markers are not those of the ledger's finalized batches."""
    if lacking:
        raise TerminalError(
            f"{layout.markers(kept)} lacks the markers of {held.batches_text(lacking)}, which are "
            "finalized: it was restored to an earlier time, or emptied. Nothing was written. "
            "Restore sink and archive; or treat the ledger as lost: what they lack is read again "
            "(docs/operations.md)"
        )
    refuse_unknown(pipeline, unknown)


def refuse_unknown(pipeline: Pipeline, unknown: Collection[int]) -> None:
    """TerminalError: the archive has markers of these batches, which the ledger does not have."""
    if unknown:
        raise TerminalError(
            f"{layout.markers(Path(pipeline.archive_path))} has markers of "
            f"{held.batches_text(unknown)}, which are none of "
            f"{pipeline.name!r} here: another ledger works with this sink, or a backup has brought "
            "them back. Nothing was written. Move these markers aside, and their files"
        )


# Keeps H2.
def check_markers(spec: Spec, sink: RemoteSink) -> None:
    """TerminalError: a target lacks what a pipeline's markers list, or holds another's rows.

    Rows that no marker lists may be in progress: the ledger is not asked.
    """
    kept = layout.of(spec)
    notes = sink.notes()
    notes.check()
    found = held.compare(spec.name, None, by_markers(markers_in(None, kept)), notes.batch_notes)
    held.refuse_differences(sink, spec.name, layout.markers(kept), replace(found, strays=()))
