"""Dead letters: the records that finalized batches set aside. Reads only the archive's files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from semel.archive import layout
from semel.archive.marker import Marker, generations, markers_of, read_marker
from semel.errors import TerminalError
from semel.formats import words
from semel.formats.pieces import read_pieces
from semel.model.manifest import Kind, MarkedFile
from semel.model.reasons import Reason
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec

REFUSED = str(Kind.REFUSED)
"""The reason for rows that a table refused and a person kept apart (`semel accept --refused`)."""

KNOWN = (*map(str, Reason), REFUSED)
"""All reasons."""

_COLUMNS = ("source_partition_id", "offset", "reason", "detail", "raw")


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A record that was set aside. `detail` and `text` are empty with limits.log_samples: false.

    `line` is its line number in `source`, if that file is still there and unchanged; `offset` is
    its first byte. A refused row has them only with sink.position_columns. `file` is where it is
    kept.
    """

    batch_id: int
    source: str | None
    line: int | None
    offset: int | None
    reason: str
    detail: str
    text: str
    file: Path


@dataclass(frozen=True, kw_only=True)
class Letters:
    """The answer. `total` includes letters not shown, in this many `batches`."""

    pipeline: str
    letters: tuple[Letter, ...]
    total: int
    batches: int
    folder: Path


def letters(
    spec: Spec, *, batch_id: int | None = None, reason: str | None = None, count: int
) -> Letters:
    """The newest dead letters, at most `count`: the last batch first, each in source order.

    A replay has the dead letters of the batch that it replays. TerminalError: the batch is not
    finalized. CorruptionError: a marker is damaged.
    """
    found = markers_of(spec) if batch_id is None else [marker_of(spec, batch_id)]
    shown: list[Letter] = []
    total = batches = 0
    for marker in reversed(found):
        held = 0
        for file in files_of(marker):
            there = _count(marker, file, reason)
            if there and len(shown) < count:
                shown += _read(spec, marker, file, reason, count - len(shown))
            held += there
        total, batches = total + held, batches + (held > 0)
    return Letters(
        pipeline=spec.name,
        letters=tuple(_numbered(spec, found, shown)),
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
    """A batch's files of records that were set aside, and of rows that its target refused."""
    return *marker.of_kind(Kind.DEAD_LETTERS), *marker.of_kind(Kind.REFUSED)


def marker_of(spec: Spec, batch_id: int) -> Marker:
    """The marker of a batch, or of the batch that it replayed. Raises TerminalError if the batch is
    not finalized, CorruptionError if the marker is damaged.
    """
    path = layout.marker(layout.archive_folder(spec), batch_id)
    if path.exists():
        return read_marker(path, spec.sink_path())
    for marker in markers_of(spec):
        if marker.replay and batch_id in (old.writer_id for old in generations(marker)):
            return marker
    raise TerminalError(
        f"batch {batch_id} is no finalized batch of {spec.name}",
        next=f"semel batches {spec.name}",
    )


def _count(marker: Marker, file: MarkedFile, reason: str | None) -> int:
    if file.kind is Kind.REFUSED:
        return file.records if reason in (None, REFUSED) else 0
    if reason is None:
        return file.records
    import pyarrow.dataset as ds  # It brings pandas along.

    wanted = pc.field("reason") == reason
    return ds.dataset(marker.path_of(file), format="parquet").count_rows(filter=wanted)


def _read(
    spec: Spec, marker: Marker, file: MarkedFile, reason: str | None, count: int
) -> Iterator[Letter]:
    path = marker.path_of(file)
    told = spec.limits.log_samples
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
            detail=row["detail"] if told else "",
            text=words.record_excerpt(row["raw"]) if told else "",
            file=path,
        )


def _rows(path: Path, reason: str | None) -> Iterator[dict[str, Any]]:
    """The rows of a file, or only those with this reason."""
    for rows in read_pieces(path):
        wanted = rows if reason is None else rows.filter(pc.field("reason") == reason)
        yield from wanted.to_pylist()


def _refused_row(row: dict[str, Any]) -> dict[str, Any]:
    """An output row that a table refused, as a dead letter."""
    row, detail = dict(row), row.pop("_semel_refusal")
    return {
        "source_partition_id": row.get("_semel_source"),
        "offset": row.get("_semel_offset"),
        "reason": REFUSED,
        "detail": detail,
        "raw": json.dumps(row, default=str, ensure_ascii=False).encode(),
    }


def _numbered(spec: Spec, found: list[Marker], shown: list[Letter]) -> Iterator[Letter]:
    """Add line numbers to the letters. Those of one file are counted together."""
    claims = {marker.batch_id: marker.ranges for marker in found}
    source = open_source(spec)
    for (batch_id, name), group in groupby(shown, attrgetter("batch_id", "source")):
        some = list(group)
        offsets = sorted({one.offset for one in some if one.offset is not None})
        lines: dict[int, int | None] = {}
        for claim in claims[batch_id]:
            if claim.name == name:
                own = [offset for offset in offsets if claim.start <= offset < claim.end]
                lines |= zip(own, source.line_numbers(claim, own, batch_id), strict=True)
        yield from (replace(one, line=lines.get(one.offset)) for one in some)
