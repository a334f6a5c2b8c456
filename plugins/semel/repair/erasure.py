"""erased: record that a person erased data of finalized batches on purpose.

How it works: semel counts the present rows and records of each batch, and compares the number of
missing ones with the number that the person gives. Then it rewrites each batch's marker: with the
files as they are now, and with who erased how much, when and why. The ledger records the same.
It deletes nothing, and cannot undo such a record.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from semel import failpoints, storage
from semel.archive import layout, traces, write_marker
from semel.archive.marker import MarkedErasure, Marker, parse_marker, read_marker
from semel.declare.wording import some_of
from semel.errors import CorruptionError, RetryableError, StateError, TerminalError
from semel.formats.table import sink_format
from semel.ledger import Ledger, pipelines, rows
from semel.model.manifest import Kind, MarkedFile
from semel.model.plain import parse_json
from semel.pipeline.opening import open_sinks
from semel.pipeline.spec import Spec
from semel.repair.accept import current_user
from semel.repair.adopt.insert import insert_erasures
from semel.sinks import MiscountError, Sink
from semel.storage import packs


@dataclass(frozen=True, kw_only=True)
class MissingRecords:
    """How many rows of a batch's output are missing, and records of its files in the archive."""

    batch_id: int
    rows: int
    records: int

    def __str__(self) -> str:
        return f"batch {self.batch_id}: {self.rows} rows and {self.records} records in the archive"


@dataclass(frozen=True, kw_only=True)
class _MarkerFiles:
    """A batch's marker, and each file that it lists as it is now. None if the file is missing."""

    text: bytes
    version: object
    marker: Marker
    current: list[MarkedFile | None]

    @property
    def missing(self) -> MissingRecords:
        lacks = {True: 0, False: 0}
        for file, now in zip(self.marker.files, self.current, strict=False):
            lacks[file.kind is Kind.DATA] += file.records - (now.records if now else 0)
        return MissingRecords(batch_id=self.marker.batch_id, rows=lacks[True], records=lacks[False])


# Keeps ER1.
def accept_erased(
    ledger: Ledger, spec: Spec, batches: tuple[int, int], *, lacking: int, why: str
) -> list[MissingRecords]:
    """Record that a person erased data of the batches from first to last.

    `lacking`: the number of erased output rows and archived records together. Returns an empty list
    if this is already recorded. Raises TerminalError if another number is missing, StateError if a
    batch is not finalized or is being replayed. If the ledger does not have the pipeline, which
    adopt will take over, this writes only the markers.
    """
    first, last = batches
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    archive = storage.at(pipeline.archive_path) if pipeline else layout.archive_folder(spec)
    marked = traces.marker_numbers(archive) | packs.packed(archive).keys()
    numbers = [number for number in sorted(marked) if first <= number <= last]
    with open_sinks(spec) as sink_of:
        all_files = []
        for number in numbers:
            path = layout.marker(archive, number)
            text, version = packs.read_marker_version(path)
            marker = parse_marker(text, path, spec.sink_path())
            sink = None if marker.sink else sink_of(marker.spec)
            current = _current_files(text, marker, sink)
            all_files.append(
                _MarkerFiles(text=text, version=version, marker=marker, current=current)
            )
    reduced = [files for files in all_files if files.missing.rows or files.missing.records]
    _check_number(spec, all_files, reduced, lacking)
    at, by = datetime.now(UTC).isoformat(), current_user()
    with ledger.transaction() as connection:
        if pipeline:
            pipelines.lock(connection, pipeline)
            values = {"pipeline_id": pipeline.pipeline_id, "first": first, "last": last}
            free = {r["batch_id"] for r in rows(connection, "accept", "erasable", **values)}
            if busy := [number for number in numbers if number not in free]:
                raise StateError(
                    f"batch {busy[0]}: it is not finalized, or a replay of it is in progress, or "
                    "collect is packing its marker. Nothing was recorded. Let that finish",
                    next=f"semel batches {spec.name}",
                )
        for files in reduced:
            _write(files, at, by, why)
        if pipeline:
            paths = (files.marker.path for files in all_files)
            insert_erasures(connection, [read_marker(path, None) for path in paths])
        failpoints.point("erase.before_write")
    failpoints.point("erase.after_write")
    return [files.missing for files in reduced]


def _check_number(
    spec: Spec, all_files: list[_MarkerFiles], reduced: list[_MarkerFiles], lacking: int
) -> None:
    if not reduced and any(files.marker.erased for files in all_files):
        return
    total = sum(files.missing.rows + files.missing.records for files in reduced)
    if total != lacking:
        details = some_of([str(files.missing) for files in reduced]) or "nothing"
        raise TerminalError(
            f"{total} rows and records are missing ({details}), but --rows is {lacking}. Nothing "
            "was recorded. If you erased all of them on purpose, give their number",
            next=f"semel audit {spec.name}",
        )


def _write(files: _MarkerFiles, at: str, by: str, why: str) -> None:
    """Rewrite a batch's marker, with the files as they are now and with this erasure."""
    path, plain, missing = files.marker.path, parse_json(files.text), files.missing
    if packs.read_marker_bytes(path) != files.text:
        raise RetryableError(
            f"{path}: another process changed this marker meanwhile. Run this again"
        )
    pairs = zip(plain["files"], files.current, strict=True)
    plain["files"] = [{**listed, **asdict(file)} for listed, file in pairs if file]
    erasure = MarkedErasure(at=at, by=by, why=why, rows=missing.rows, records=missing.records)
    plain["erased"] = [*plain.get("erased", ()), asdict(erasure)]
    write_marker.rewrite_marker(path, plain, files.version)


def _current_files(text: bytes, marker: Marker, sink: Sink | None) -> list[MarkedFile | None]:
    """Each file that a marker lists, as it is now. None if the file is missing.

    A table does not have files, so this distributes the number of its present rows over them.
    """
    rows_left = _rows_left(marker, sink) if sink else 0
    files: list[MarkedFile | None] = []
    for file in marker.files[
        : len(parse_json(text)["files"])
    ]:  # Without ids files that exact added.
        if file.kind is Kind.CLAIMS:
            files.append(file)
        elif file.kind is Kind.DATA and sink:
            files.append(replace(file, records=min(file.records, rows_left)))
            rows_left -= files[-1].records
        else:
            files.append(_current_file(marker, file))
    if rows_left:
        raise CorruptionError(
            f"{sink.address}: it has {rows_left} more rows of batch {marker.batch_id} than semel "
            "wrote. Nothing was recorded. Run the audit to compare them",
            next=f"semel audit {marker.pipeline}",
        )
    return files


def _rows_left(marker: Marker, sink: Sink) -> int:
    if not sink.erasable:
        raise TerminalError(
            f"{sink.address}: --erased does not apply to this sink. A topic deletes by its own "
            "rules. To remove records from objects, replay with a transform that drops them",
            next=f"semel audit {marker.pipeline}",
        )
    count = 0
    if marker.spec.sink.replaces_rows:  # A later batch may have replaced any number of rows.
        return sum(file.records for file in marker.of_kind(Kind.DATA))
    with suppress(MiscountError):
        for table in sink.rows(marker):
            count += table.num_rows
    return count


def _current_file(marker: Marker, file: MarkedFile) -> MarkedFile | None:
    """A listed file as it is now. Returns None if it is missing.

    Raises CorruptionError if the file has changed without losing records.
    """
    path = marker.path_of(file)
    try:
        if marker.is_whole(file):
            return file
    except FileNotFoundError:
        return None
    form = marker.spec.sink.format if file.kind is Kind.DATA else "parquet"
    count = sink_format(form).code().count_rows(storage.readable(path))
    if count >= file.records:
        raise CorruptionError(
            f"{path}: this file has changed, but no record of it is missing ({count} of "
            f"{file.records}). Nothing was recorded. Restore it from a backup",
            next=f"semel audit {marker.pipeline}",
        )
    size = storage.stat(path).size
    return replace(file, records=count, bytes=size, checksum=storage.checksum(path))
