"""erased: record, when a person says so, that data of finalized batches are gone on purpose.

Purpose: rows that a person or a retention has deleted count as erased, and no longer as lost.
How it works: semel counts what is left of each batch, and compares the sum of what is missing with
the number that the person names. Then it puts each batch's marker in its place again: with the
files as they are now, and with who has erased how much, when and why. The ledger keeps the same.
The counts of the marker stay: they say what became of the records.
What it does not do: delete anything, or take back such a word.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from semel import failpoints
from semel.archive import layout, traces, write_marker
from semel.archive.marker import Erased, Marker, parse_marker, read_marker
from semel.declare.wording import count, some_of
from semel.errors import CorruptionError, RetryableError, StateError, TerminalError
from semel.formats.table import sink_format
from semel.ledger import Ledger, pipelines, rows
from semel.model.batch import Pipeline
from semel.model.manifest import Kind, MarkedFile
from semel.model.plain import parsed
from semel.pipeline.opening import open_sinks
from semel.pipeline.spec import Spec
from semel.repair.accept import who
from semel.repair.adopt.insert import erase
from semel.sinks import MiscountError, Sink, SupersededError
from semel.storage import checksum

_KEPT = (Kind.DEAD_LETTERS, Kind.DECISIONS, Kind.IDS, Kind.REFUSED)
"""Files of the archive of which records may be erased. Claims have none of the source's data."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What a batch lacks: rows of its output, and records of its files in the archive."""

    batch_id: int
    rows: int
    records: int

    def __str__(self) -> str:
        kept = f" and {count(self.records, 'record')} of the archive" if self.records else ""
        return f"batch {self.batch_id}: {count(self.rows, 'row')}{kept}"


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A batch's marker, and what is there of the files that it lists. None: nothing."""

    text: bytes
    marker: Marker
    there: tuple[MarkedFile | None, ...]

    @property
    def changed(self) -> bool:
        return self.there != self.marker.files

    @property
    def missing(self) -> Missing:
        lacks = {True: 0, False: 0}
        for file, now in zip(self.marker.files, self.there, strict=True):
            lacks[file.kind is Kind.DATA] += file.records - (now.records if now else 0)
        return Missing(batch_id=self.marker.batch_id, rows=lacks[True], records=lacks[False])


# Keeps ER1.
def accept_erased(
    ledger: Ledger, spec: Spec, batches: tuple[int, int], *, lacking: int, why: str
) -> list[Missing]:
    """Record that data of some batches, first to last, were erased.

    `lacking`: how many rows and records of the archive that are, in all. Empty: it was recorded
    before. TerminalError: another number is missing. StateError: nothing is missing, or a batch is
    not finalized, or is being replayed.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    kept = Path(pipeline.archive_path) if pipeline else layout.of(spec)
    numbers = [n for n in sorted(traces.markers(kept)) if batches[0] <= n <= batches[1]]
    with open_sinks(spec) as sink_of:
        looks = [_look(layout.marker(kept, n), spec, sink_of) for n in numbers]
        found = [look.missing for look in looks if look.changed]
        _check(spec, looks, batches, lacking)
        with ledger.transaction() as connection:
            if pipeline:
                pipelines.lock(connection, pipeline)
                _refuse_busy(connection, pipeline, batches, numbers)
            _write(looks, why, sink_of)
            if pipeline:
                erase(connection, [read_marker(look.marker.path, None) for look in looks])
            failpoints.point("accept.before_erased")
    failpoints.point("accept.after_erased")
    return found


def _write(looks: list[_Look], why: str, sink_of: Callable[[Spec], Sink]) -> None:
    """Write the markers. RetryableError: one was changed meanwhile."""
    at, by = datetime.now(UTC).isoformat(), who()
    for look in looks:
        path, lacks = look.marker.path, look.missing
        if look.changed and path.read_bytes() != look.text:
            raise RetryableError(f"the marker {path} was changed meanwhile; run this again")
        if look.changed:
            word = Erased(at=at, by=by, why=why, rows=lacks.rows, records=lacks.records)
            write_marker.erase(path, _content(look, word))
        if look.marker.sink is None and (look.changed or look.marker.erased):
            sink_of(look.marker.spec).erased(look.marker)


def _check(
    spec: Spec, looks: list[_Look], batches: tuple[int, int], lacking: int
) -> None:
    lacks = [look.missing for look in looks if look.changed]
    if not lacks and any(look.marker.erased for look in looks):
        return
    if not lacks:
        raise StateError(
            f"no data of batches {batches[0]} to {batches[1]} of {spec.name} are missing",
            next=f"semel batches {spec.name}",
        )
    total = sum(one.rows + one.records for one in lacks)
    if total != lacking:
        raise TerminalError(
            f"{total:,} rows and records are missing, and --rows says {lacking:,}, so nothing was "
            f"recorded: {some_of([str(one) for one in lacks])}. If somebody has erased all of "
            "these, name that number",
            next=f"semel accept {spec.name} --erased {batches[0]}..{batches[1]} --rows {total} "
            "--why TEXT",
        )


def _refuse_busy(
    connection: sa.Connection, pipeline: Pipeline, batches: tuple[int, int], numbers: list[int]
) -> None:
    first, last = batches
    values = {"pipeline_id": pipeline.pipeline_id, "first": first, "last": last}
    there = rows(connection, "accept", "erasable", **values)
    free = {r["batch_id"] for r in there if not r["replayed"]}
    batch_id = next((number for number in numbers if number not in free), None)
    if batch_id is not None:
        raise StateError(
            f"batch {batch_id} is not finalized, or is being replayed; let that finish first",
            next=f"semel show {batch_id}",
        )


def _look(path: Path, spec: Spec, sink_of: Callable[[Spec], Sink]) -> _Look:
    text = path.read_bytes()
    marker = parse_marker(text, path, spec.sink_path())
    sink = None if marker.sink else sink_of(marker.spec)
    if sink and not sink.erasable:
        raise TerminalError(
            f"{sink.address} deletes rows by its own rules alone, which semel knows; nothing is to "
            "be recorded",
            next=f"semel audit {spec.name}",
        )
    data = iter(_of_table(marker, sink) if sink else map(_of_file(marker), _data(marker)))
    there = [
        next(data) if f.kind is Kind.DATA else _of_file(marker)(f) if f.kind in _KEPT else f
        for f in marker.files
    ]
    return _Look(text=text, marker=marker, there=tuple(there))


def _data(marker: Marker) -> tuple[MarkedFile, ...]:
    return marker.of_kind(Kind.DATA)


def _of_table(marker: Marker, sink: Sink) -> Iterator[MarkedFile | None]:
    """The data files with the rows that are left of them. Of a table only their sum counts; an
    object is whole or gone.
    """
    if marker.spec.sink.in_files:
        for file in _data(marker):
            yield file if _rows_left(replace(marker, files=(file,)), sink) else None
        return
    left = _rows_left(marker, sink)
    for file in _data(marker):
        yield replace(file, records=min(file.records, left))
        left -= min(file.records, left)
    if left:
        raise CorruptionError(
            f"{sink.address} has {left} rows of batch {marker.batch_id} more than were put in",
            next=f"semel audit {marker.pipeline}",
        )


def _rows_left(marker: Marker, sink: Sink) -> int:
    found = 0
    try:
        with suppress(MiscountError):
            for table in sink.rows(marker):
                found += table.num_rows
    except SupersededError:  # Of these a later batch has replaced some.
        return sum(file.records for file in _data(marker))
    return found


def _of_file(marker: Marker) -> Callable[[MarkedFile], MarkedFile | None]:
    """What is there of a listed file. CorruptionError: it has as many records as before, or more."""

    def look(file: MarkedFile) -> MarkedFile | None:
        path = marker.path_of(file)
        try:
            if marker.is_whole(file):
                return file
        except FileNotFoundError:
            return None
        form = marker.spec.sink.format if file.kind is Kind.DATA else "parquet"
        found = sink_format(form).code().rows(path)
        if found >= file.records:
            raise CorruptionError(
                f"{path} was changed, and has {found} records of {file.records}: nothing was "
                "erased from it. Restore it from a backup",
                next=f"semel audit {marker.pipeline}",
            )
        size = path.stat().st_size
        return replace(file, records=found, bytes=size, checksum=checksum(path))

    return look


def _content(look: _Look, word: Erased) -> dict[str, Any]:
    """The marker as it is, with what is there now, and one more word."""
    plain = parsed(look.text)
    pairs = zip(plain["files"], look.there, strict=False)  # Behind them: ids that exact has made.
    plain["files"] = [{**listed, **asdict(now)} for listed, now in pairs if now]
    plain["erased"] = [*plain.get("erased", ()), asdict(word)]
    return plain
