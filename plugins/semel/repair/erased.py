"""erased: record, when a person says so, that data of finalized batches are gone on purpose.

How it works: semel counts what is left of each batch, and compares the sum of what is missing with
the number that the person names. Then it puts each batch's marker in its place again: with the
files as they are now, and with who has erased how much, when and why. The ledger keeps the same.
It deletes nothing, and takes no such word back.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from semel import failpoints
from semel.archive import layout, traces, write_marker
from semel.archive.marker import Erased, Marker, parse_marker, read_marker
from semel.declare.wording import some_of
from semel.errors import CorruptionError, RetryableError, StateError, TerminalError
from semel.formats.table import sink_format
from semel.ledger import Ledger, pipelines, rows
from semel.model.manifest import Kind, MarkedFile
from semel.model.plain import parse_json
from semel.pipeline.opening import open_sinks
from semel.pipeline.spec import Spec
from semel.repair.accept import who
from semel.repair.adopt.insert import erase
from semel.sinks import MiscountError, Sink
from semel.storage import checksum


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What a batch lacks: rows of its output, and records of its files in the archive."""

    batch_id: int
    rows: int
    records: int

    def __str__(self) -> str:
        return f"batch {self.batch_id}: {self.rows} rows and {self.records} records of the archive"


@dataclass(frozen=True, kw_only=True)
class _MarkerFiles:
    """A batch's marker, and what is there of each file that it lists. None: nothing."""

    text: bytes
    marker: Marker
    there: list[MarkedFile | None]

    @property
    def missing(self) -> Missing:
        lacks = {True: 0, False: 0}
        for file, now in zip(self.marker.files, self.there, strict=False):
            lacks[file.kind is Kind.DATA] += file.records - (now.records if now else 0)
        return Missing(batch_id=self.marker.batch_id, rows=lacks[True], records=lacks[False])


# Keeps ER1.
def accept_erased(
    ledger: Ledger, spec: Spec, batches: tuple[int, int], *, lacking: int, why: str
) -> list[Missing]:
    """Record that data of some batches, first to last, were erased.

    `lacking`: how many rows and records of the archive that are, in all. Empty: it was recorded
    before. TerminalError: another number is missing. StateError: a batch is not finalized, or is
    being replayed. A pipeline that the ledger does not have yet is adopted later.
    """
    first, last = batches
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    kept = Path(pipeline.archive_path) if pipeline else layout.of(spec)
    numbers = [n for n in sorted(traces.markers(kept)) if first <= n <= last]
    with open_sinks(spec) as sink_of:
        looks = []
        for number in numbers:
            path = layout.marker(kept, number)
            marker = parse_marker(text := path.read_bytes(), path, spec.sink_path())
            sink = None if marker.sink else sink_of(marker.spec)
            looks.append(_MarkerFiles(text=text, marker=marker, there=_there(text, marker, sink)))
    found = [look for look in looks if look.missing.rows or look.missing.records]
    _check_number(spec, looks, found, lacking)
    at, by = datetime.now(UTC).isoformat(), who()
    with ledger.transaction() as connection:
        if pipeline:
            pipelines.lock(connection, pipeline)
            values = {"pipeline_id": pipeline.pipeline_id, "first": first, "last": last}
            free = {r["batch_id"] for r in rows(connection, "accept", "erasable", **values)}
            if busy := [number for number in numbers if number not in free]:
                raise StateError(
                    f"batch {busy[0]} is not finalized, or is being replayed; let that finish",
                    next=f"semel batches {spec.name}",
                )
        for look in found:
            _write(look, at, by, why)
        if pipeline:
            erase(connection, [read_marker(look.marker.path, None) for look in looks])
        failpoints.point("erase.before_write")
    failpoints.point("erase.after_write")
    return [look.missing for look in found]


def _check_number(
    spec: Spec, looks: list[_MarkerFiles], found: list[_MarkerFiles], lacking: int
) -> None:
    if not found and any(look.marker.erased for look in looks):
        return
    total = sum(look.missing.rows + look.missing.records for look in found)
    if total != lacking:
        shown = some_of([str(look.missing) for look in found]) or "nothing"
        raise TerminalError(
            f"{total} rows and records are missing ({shown}), and --rows says {lacking}. Nothing "
            "was recorded. If all of these were erased on purpose, name their number",
            next=f"semel audit {spec.name}",
        )


def _write(look: _MarkerFiles, at: str, by: str, why: str) -> None:
    """Put a batch's marker in its place, with what is there now, and with one more word."""
    path, plain, lacks = look.marker.path, parse_json(look.text), look.missing
    if path.read_bytes() != look.text:
        raise RetryableError(f"the marker {path} was changed meanwhile; run this again")
    pairs = zip(plain["files"], look.there, strict=True)
    plain["files"] = [{**listed, **asdict(now)} for listed, now in pairs if now]
    word = Erased(at=at, by=by, why=why, rows=lacks.rows, records=lacks.records)
    plain["erased"] = [*plain.get("erased", ()), asdict(word)]
    write_marker.erase(path, plain)


def _there(text: bytes, marker: Marker, sink: Sink | None) -> list[MarkedFile | None]:
    """What is there of each file that a marker lists: of a table, only the sum of rows counts."""
    left = _rows_left(marker, sink) if sink else 0
    there: list[MarkedFile | None] = []
    for file in marker.files[: len(parse_json(text)["files"])]:  # Behind them: what exact has made.
        if file.kind is Kind.CLAIMS:
            there.append(file)
        elif file.kind is Kind.DATA and sink:
            there.append(replace(file, records=min(file.records, left)))
            left -= there[-1].records
        else:
            there.append(_now(marker, file))
    if left:
        raise CorruptionError(
            f"{sink.address} has {left} rows of batch {marker.batch_id} more than were put in",
            next=f"semel audit {marker.pipeline}",
        )
    return there


def _rows_left(marker: Marker, sink: Sink) -> int:
    if not sink.erasable:
        raise TerminalError(
            f"nothing is to be said of {sink.address}: a topic deletes by its own rules, and a "
            "replay replaces objects, by transforms that leave the erased records out",
            next=f"semel audit {marker.pipeline}",
        )
    found = 0
    if marker.spec.sink.replaces_rows:  # A later batch may have replaced any number of them.
        return sum(file.records for file in marker.of_kind(Kind.DATA))
    with suppress(MiscountError):
        for table in sink.rows(marker):
            found += table.num_rows
    return found


def _now(marker: Marker, file: MarkedFile) -> MarkedFile | None:
    """What is there of a listed file. CorruptionError: it has as many records as before."""
    path = marker.path_of(file)
    try:
        if marker.is_whole(file):
            return file
    except FileNotFoundError:
        return None
    form = marker.spec.sink.format if file.kind is Kind.DATA else "parquet"
    found = sink_format(form).code().count_rows(path)
    if found >= file.records:
        raise CorruptionError(
            f"{path} was changed, and has {found} records of {file.records}: none was erased. "
            "Restore it from a backup",
            next=f"semel audit {marker.pipeline}",
        )
    return replace(file, records=found, bytes=path.stat().st_size, checksum=checksum(path))
