"""Dead letters: the records that finalized batches quarantined. Reads only the archive's files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

import pyarrow.compute as pc

from semel.archive import layout
from semel.archive.marker import Marker, generations, markers_of, read_marker
from semel.errors import TerminalError
from semel.formats import words
from semel.formats.output import fragment_of
from semel.formats.pieces import read_pieces
from semel.model.manifest import Kind, MarkedFile
from semel.model.reasons import Reason
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.storage import ArchivePath, packs

REFUSED = str(Kind.REFUSED)
"""The reason of rows that a table refused and `semel accept --refused` moved aside."""

LETTER_REASONS = (*map(str, Reason), REFUSED)
"""All reasons of dead letters."""

_COLUMNS = ("source_partition_id", "offset", "reason", "detail", "raw")


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A dead letter. `detail` and `text` are empty with limits.log_samples: false.

    `line`: its line number in `source`, if that file still exists unchanged. `offset`: its first
    byte. A refused row has both only with sink.position_columns. `file`: the archive's file that
    contains it.
    """

    batch_id: int
    source: str | None
    line: int | None
    offset: int | None
    reason: str
    detail: str
    text: str
    file: ArchivePath


@dataclass(frozen=True, kw_only=True)
class Letters:
    """Dead letters. `total` and `batches` also count the letters that `letters` leaves out."""

    pipeline: str
    letters: tuple[Letter, ...]
    total: int
    batches: int
    folder: ArchivePath


def letters(
    spec: Spec, *, batch_id: int | None = None, reason: str | None = None, count: int
) -> Letters:
    """The newest dead letters, at most `count`: the last batch first, each in source order.

    A replay has the dead letters of the batch that it replays. Raises TerminalError if the batch is
    not finalized, CorruptionError if a marker is damaged.
    """
    markers = markers_of(spec) if batch_id is None else [marker_of(spec, batch_id)]
    newest: list[Letter] = []
    total = batches = 0
    for marker in reversed(markers):
        batch_total = 0
        for file in files_of(marker):
            file_total = _count_letters(marker, file, reason)
            if file_total and len(newest) < count:
                newest += _read_letters(spec, marker, file, reason, count - len(newest))
            batch_total += file_total
        total, batches = total + batch_total, batches + (batch_total > 0)
    return Letters(
        pipeline=spec.name,
        letters=tuple(_numbered(spec, markers, newest)),
        total=total,
        batches=batches,
        folder=layout.archive_folder(spec) / str(Kind.DEAD_LETTERS),
    )


def raw_letters(marker: Marker) -> Iterator[dict[str, Any]]:
    """All dead letters of a finalized batch in their order in the files, each with its `raw`
    record. Raises TerminalError and CorruptionError as `letters` does.
    """
    names = {claim.source_partition_id: claim.name for claim in marker.ranges}
    for file in files_of(marker):
        rows = _rows(marker.path_of(file), None)
        for row in map(_refused_row, rows) if file.kind is Kind.REFUSED else rows:
            yield {
                "source": names.get(row["source_partition_id"]),
                **{key: row[key] for key in ("offset", "reason", "detail", "raw")},
            }


def files_of(marker: Marker) -> tuple[MarkedFile, ...]:
    """A batch's files of dead letters, and of rows that its target refused."""
    return *marker.of_kind(Kind.DEAD_LETTERS), *marker.of_kind(Kind.REFUSED)


def marker_of(spec: Spec, batch_id: int) -> Marker:
    """The marker of a batch, or of the batch that it replayed. Raises TerminalError if the batch is
    not finalized, CorruptionError if the marker is damaged.
    """
    path = layout.marker(layout.archive_folder(spec), batch_id)
    if packs.has_marker(path):
        return read_marker(path, spec.sink_path())
    for marker in markers_of(spec):
        if marker.replay and batch_id in (old.writer_id for old in generations(marker)):
            return marker
    raise TerminalError(
        f"batch {batch_id} is not a finalized batch of {spec.name}",
        next=f"semel batches {spec.name}",
    )


def _count_letters(marker: Marker, file: MarkedFile, reason: str | None) -> int:
    if file.kind is Kind.REFUSED:
        return file.records if reason in (None, REFUSED) else 0
    if reason is None:
        return file.records
    return fragment_of(marker.path_of(file)).count_rows(filter=pc.field("reason") == reason)


def _read_letters(
    spec: Spec, marker: Marker, file: MarkedFile, reason: str | None, count: int
) -> Iterator[Letter]:
    path = marker.path_of(file)
    samples = spec.limits.log_samples
    names = {claim.source_partition_id: claim.name for claim in marker.ranges}
    if file.kind is Kind.REFUSED:
        rows = map(_refused_row, _rows(path, None))
    else:
        rows = _rows(path, reason)
    for row in islice(rows, count):
        yield Letter(
            batch_id=marker.batch_id,
            source=names.get(row["source_partition_id"]),
            line=None,
            offset=row["offset"],
            reason=row["reason"],
            detail=row["detail"] if samples else "",
            text=words.record_excerpt(row["raw"]) if samples else "",
            file=path,
        )


def _rows(path: ArchivePath, reason: str | None) -> Iterator[dict[str, Any]]:
    """The rows of a file; only the rows with `reason`, unless it is None."""
    for rows in read_pieces(path):
        wanted = rows if reason is None else rows.filter(pc.field("reason") == reason)
        yield from wanted.to_pylist()


def _refused_row(row: dict[str, Any]) -> dict[str, Any]:
    """Convert an output row that a table refused to a dead letter's row."""
    row, detail = dict(row), row.pop("_semel_refusal")
    return {
        "source_partition_id": row.get("_semel_source"),
        "offset": row.get("_semel_offset"),
        "reason": REFUSED,
        "detail": detail,
        "raw": json.dumps(row, default=str, ensure_ascii=False).encode(),
    }


def _numbered(spec: Spec, markers: list[Marker], letters: list[Letter]) -> Iterator[Letter]:
    """Add line numbers to the letters, with one pass over each source file."""
    claims = {marker.batch_id: marker.ranges for marker in markers}
    source = open_source(spec)
    for (batch_id, name), group in groupby(letters, attrgetter("batch_id", "source")):
        of_file = list(group)
        offsets = sorted({one.offset for one in of_file if one.offset is not None})
        lines: dict[int, int | None] = {}
        for claim in claims[batch_id]:
            if claim.name == name:
                within = [offset for offset in offsets if claim.start <= offset < claim.end]
                lines |= zip(within, source.line_numbers(claim, within, batch_id), strict=True)
        yield from (replace(one, line=lines.get(one.offset)) for one in of_file)
