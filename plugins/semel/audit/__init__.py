"""audit: prove from files alone that the output holds each record of the source once.

Purpose: an independent judge. It reads the markers, the source that they name, the output, the
decisions and the dead letters.
How it works: DuckDB reads every record of the claimed ranges again, and Python judges the records
that DuckDB cannot. DuckDB then joins ids and hashes of rows; each promise is a query. A replayed
batch has two markers: the one of its first output proves each record's verdict, the newest one
proves the rows. If their declarations read the source differently, the audit reads it by both.
Independence: it does not query the ledger, the catalog or Spark, and does not use semel's readers
of records. Each kind of source has a second reader in its own room (semel.sources.reread). It
shares with semel the connection to Kafka, the meaning of claims, the readers of sinks and of
semel's own files, and the definition of windows.
Known limitations: files do not show whether collect had forgotten a bucket (late), or whether a
time was too far ahead at the moment of staging. A number that readers may parse in two ways may be
in the output or in the dead letters. With transforms, the audit matches output rows by id or
position, not by their values. It fails if a transform changes id columns or makes several rows of
one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import duckdb
import pyarrow as pa

from semel import limits
from semel.archive import layout, ownership
from semel.archive.marker import Marker
from semel.audit import fast, files, generations, windows
from semel.audit.generations import Generations
from semel.audit.reading import Reading, claims_of
from semel.audit.source_reader import LetterBytes, Letters, letters_table
from semel.audit.verdict import AUDIT_OFFENDERS_SHOWN, AuditVerdict, Findings, Obligation, Offender
from semel.clients.duck import DuckEngine, drop_time_zones
from semel.declare.parts import RepeatScope
from semel.declare.wording import batch_list, count
from semel.errors import CorruptionError, TerminalError, first_line
from semel.formats.output import columns_for_readers, columns_in_files, rows_of
from semel.formats.pieces import gather, read_pieces
from semel.model.batch import OF_THE_OUTPUT, Counts, repeats_of, runs
from semel.model.manifest import Kind, MarkedFile
from semel.model.reasons import DecidedBy, Reason
from semel.model.windows import zones_version
from semel.pipeline.opening import open_sink, open_sinks
from semel.pipeline.spec import Spec
from semel.sinks import (
    BatchNote,
    MiscountError,
    Notes,
    OutputLostError,
    Sink,
    SupersededError,
    note_comparison,
)
from semel.sinks.note_comparison import MarkerVerdict
from semel.sinks.spec import archive_of

__all__ = ["Obligation", "Offender", "AuditVerdict", "audit"]

_POSITION = ("_semel_source", "_semel_offset")
_UNPROVEN = "cannot be proven, except for their files"
_PROVED_BY = {
    "id": "record id",
    "position": "position",
    "windows": "windows, counted again",
    "counts": "the markers' counts and checksums",
}


def audit(spec: Spec, sink_path: str | Path | None = None) -> AuditVerdict:
    """Audit a pipeline's sink. `sink_path` replaces the spec's folder.

    Each marker has the spec of its batch. `spec` gives the name, the sink, and the folder with
    renamed source files or the cluster with the topics. A broken promise is part of the verdict,
    not an error. Raises UnavailableError or TerminalError if the source or sink does not answer.
    """
    if sink_path is None:
        sink, archive = spec.sink_path(), layout.archive_folder(spec)
    else:
        sink = Path(sink_path)
        archive = archive_of(sink)
    with DuckEngine("audit") as engine:
        return _Audit(spec, sink, archive, engine).run()


class _Audit:
    """One audit: the steps in their order."""

    def __init__(self, spec: Spec, sink: Path | None, archive: Path, engine: DuckEngine) -> None:
        self._spec, self._sink, self._archive, self._engine = spec, sink, archive, engine
        self._findings = Findings()
        self._markers: list[Marker] = []
        self._replaced = Generations()
        self._letters: Letters = {}
        self._lost_outputs: dict[int, OutputLostError] = {}
        self._misplaced_windows: set[int] = set()
        self._superseded: dict[int, SupersededError] = {}
        self._notes: Notes | None = None
        self._in_flight: set[int] = set()
        self._to_replay: set[int] = set()
        self._samples = spec.limits.log_samples

    def run(self) -> AuditVerdict:
        # 1. Files before markers: a file that finalize adds meanwhile is then in a marker.
        paths = files.files_below(self._sink, self._archive)
        self._notes = self._read_notes()
        self._markers = files.read_markers(
            self._sink, self._archive, self._spec.name, self._findings
        )
        self._replaced = generations.read_generations(
            self._sink, self._archive, self._markers, self._findings
        )
        self._to_replay = files.check_files(
            paths, self._markers, self._replaced.paths, self._findings
        )
        files.check_code([*self._markers, *self._replaced.markers], self._findings)
        files.check_claims(self._markers, self._findings)
        self._check_target()
        # 2. Read semel's verdicts on the records, then the records themselves.
        self._read_letters()
        self._read_decisions()
        self._read_source()
        with open_sinks(self._spec) as sink_of:
            self._read_output(sink_of)
        self._write_batches()
        self._engine.run("record")
        # 3. Compare the two.
        self._prove()
        return self._verdict()

    @cached_property
    def _last_upsert_seq(self) -> int:
        """The commit number of the last batch in mode upsert, or 0."""
        return max((m.commit_seq for m in self._markers if m.spec.sink.replaces_rows), default=0)

    @cached_property
    def _reading(self) -> Reading:
        """The second reading of the source; the markers and dead letters must be in memory."""
        return Reading(
            self._spec, self._engine, self._markers, self._replaced, self._letters, self._findings
        )

    def _read_notes(self) -> Notes | None:
        """The batch notes in a table or topic. None for a folder, or if it does not answer."""
        if self._sink:
            return None
        try:
            with open_sink(self._spec) as sink:
                return sink.notes()
        except TerminalError as error:
            self._findings.blame("strays", Offender(what=str(error)))
            return None

    # Keeps H2.
    def _check_target(self) -> None:
        """Compare a table's or topic's notes, and the batch numbers of its rows, with the markers.

        After the last marker, a batch or a replay of a listed batch may be in flight.
        """
        if self._notes is None:
            return
        try:
            marked = ownership.batches_of_markers(self._markers)
        except CorruptionError:
            return  # The check of the generations has blamed it.
        difference = note_comparison.compare(self._spec.name, None, marked, self._notes.batch_notes)
        listed = [one for one in marked if one.verdict is MarkerVerdict.LISTED]
        newest = {one.commit_seq: one.batch_id for one in listed}
        for note in difference.strays:
            if note.batch_id > newest.get(note.commit_seq, 0):
                self._in_flight.add(note.batch_id)
                continue
            what = f"the sink's note has {note.rows} rows of this batch, and no marker lists them"
            self._blame_stray(note, what)
        for note in difference.conflicting:
            self._blame_stray(note, "the sink's note under this number is of another batch")
        for note in difference.foreign:
            what = f"the sink's note under this number is of pipeline {note.pipeline!r}"
            self._blame_stray(note, what)
        for damage in self._notes.damaged:
            self._findings.blame("strays", Offender(what=damage.what, batch=damage.batch_id))
        missing: set[int] = set()
        # Finalize may have written the note since.
        if difference.missing and (notes := self._read_notes()):
            later = note_comparison.compare(self._spec.name, None, marked, notes.batch_notes)
            damaged = {one.batch_id for one in notes.damaged}
            for batch in later.missing:
                if batch.batch_id in damaged:
                    continue
                what = "the sink lacks a note of this batch"
                self._findings.blame("files", Offender(what=what, batch=batch.root))
                missing.add(batch.root)
        listed = {marker.writer_id for marker in self._markers} | self._in_flight
        with suppress(TerminalError), open_sink(self._spec) as sink:
            if sink.replaceable:
                self._to_replay |= missing
            for number, rows in sink.count_strays(listed).items():
                what = f"the sink has {count(rows, 'row')} of this batch, which no marker lists"
                offender = Offender(what=what, batch=number)
                self._findings.blame("strays", offender, count=rows)
            if rows := sink.count_unmerged():
                what = f"the view omits {rows} partial rows: they do not belong to any window"
                self._findings.blame("output", Offender(what=what), count=rows)

    def _blame_stray(self, note: BatchNote, what: str) -> None:
        self._findings.blame("strays", Offender(what=what, batch=note.batch_id))

    def _read_letters(self) -> None:
        columns = ["source_partition_id", "offset", "reason", "raw"]
        for marker, table in self._tables_of_kind(Kind.DEAD_LETTERS, columns):
            for row in table.to_pylist():
                key = (marker.batch_id, row["source_partition_id"])
                copies = self._letters.setdefault(key, {}).setdefault(row["offset"], [])
                copies.append((row["reason"], LetterBytes.from_raw(row["raw"])))

    def _read_decisions(self) -> None:
        columns = ["source_partition_id", "offset", "reason", "record_id"]
        for marker, table in self._tables_of_kind(Kind.DECISIONS, columns):
            spec = (self._replaced.judging_marker(marker) or marker).spec
            identity = fast.identity(spec, lambda name: f"record_id.{fast.column(name)}")
            ids = drop_time_zones(pa.Table.from_struct_array(table.column("record_id")))
            table = table.set_column(3, "record_id", ids.to_struct_array())
            self._insert("insert_decision", "its decisions", marker, table, {"id": identity})

    def _insert(
        self, statement: str, what: str, marker: Marker, rows: pa.Table, braces: dict[str, str]
    ) -> None:
        """Insert rows of a batch into the engine. Blames `what` if DuckDB cannot read them."""
        batch = pa.repeat(pa.scalar(marker.batch_id, pa.int64()), rows.num_rows)
        try:
            self._engine.run(statement, rows.append_column("_semel_batch", batch), braces)
        except duckdb.Error as error:
            self._blame_unreadable(marker, what, error)

    def _tables_of_kind(self, kind: Kind, columns: list[str]) -> Iterator[tuple[Marker, pa.Table]]:
        """The decisions or dead letters of each batch. `check_files` blames unreadable files."""
        for marker in self._markers:
            for file in marker.of_kind(kind):
                try:
                    for rows in read_pieces(marker.path_of(file), columns):
                        yield marker, pa.Table.from_batches([rows])
                except (pa.ArrowException, OSError):
                    continue

    def _read_source(self) -> None:
        self._reading.run()
        letters = letters_table(self._letters, self._reading.wrong_bytes)
        self._engine.run("insert", letters, {"table": "letter"})

    def _read_output(self, sink_of: Callable[[Spec], Sink]) -> None:
        """Insert ids, positions and content hashes of the output's rows. `sink_of` opens the sink
        of a batch's declaration, for sinks other than folders.
        """
        for marker in self._markers:
            spec, names = marker.spec, set(columns_in_files(marker).names)
            column = partial(fast.output_expression, spec)
            columns = [*spec.record_id, *_POSITION]
            columns += [] if spec.transforms else spec.source.columns
            columns = [name for name in dict.fromkeys(columns) if name in names]
            if spec.aggregate is not None:
                columns = columns_in_files(marker).names
            braces = {
                "id": "CAST(NULL AS VARCHAR)",
                "part": fast.column(_POSITION[0]) if _POSITION[0] in names else "NULL",
                "pos": fast.column(_POSITION[1]) if _POSITION[1] in names else "NULL",
                "content": "NULL" if spec.transforms else fast.content(spec, column),
            }
            if set(spec.record_id) <= names and spec.aggregate is None:
                braces["id"] = fast.identity(spec, column)
            tables = self._output_of(sink_of, marker, columns)
            for rows in gather(tables, limits.AUDIT_CHUNK_BYTES):
                self._insert("insert_output", "its output", marker, rows, braces)
                if _is_counted(marker):
                    cells = windows.partial_row_expressions(spec)
                    self._insert("insert_partial", "its output", marker, rows, cells)

    def _output_of(
        self, sink_of: Callable[[Spec], Sink], marker: Marker, columns: list[str]
    ) -> Iterator[pa.Table]:
        """The rows of a batch, each with its file or address. Blames unreadable files."""
        for file in marker.of_kind(Kind.REFUSED):  # An operator has accepted these refusals.
            for rows in read_pieces(marker.path_of(file), columns):
                yield _with_address(file.path, pa.Table.from_batches([rows]).select(columns))
        if marker.sink is None:
            sink = sink_of(marker.spec)
            try:
                for table in sink.rows(marker, strays=True):
                    yield _with_address(sink.address, table.select(columns))
            except MiscountError:
                # The sink has yielded its rows; the checks of sums and output blame the rest.
                if sink.replaceable:
                    self._to_replay.add(marker.batch_id)
            except SupersededError as error:
                self._superseded[marker.batch_id] = error
            except OutputLostError as error:
                self._reading.unproven.add(marker.batch_id)
                self._lost_outputs[marker.batch_id] = error
            except TerminalError as error:
                self._blame_unreadable(marker, sink.address, error)
            return
        folders, names = marker.spec.sink.windows, columns_for_readers(marker).names
        more = [name for one in folders for name in (one.of, one.name) if name in names]
        for file in marker.of_kind(Kind.DATA):
            astray: dict[str, int] = Counter()
            try:
                for table in rows_of(marker, file, [*dict.fromkeys([*columns, *more])]):
                    for window in folders:
                        rows = windows.count_astray(self._engine, window, table)
                        astray[window.name] += rows
                    yield _with_address(file.path, table.select(columns))
                self._blame_folder(marker, file, +astray)
            except (pa.ArrowException, OSError) as error:
                self._blame_unreadable(marker, file.path, error)

    # Keeps L7.
    def _blame_folder(
        self, marker: Marker, file: MarkedFile, astray: Mapping[str, int]
    ) -> None:
        """`astray`: by window, how many rows of a file do not belong to its folder's window."""
        for name, rows in astray.items():
            what = f"{count(rows, 'row')} of this file have times outside of its folder {name!r}"
            offender = Offender(what=what, batch=marker.batch_id, file=file.path)
            self._findings.blame("files", offender)
            self._misplaced_windows.add(marker.batch_id)

    def _blame_unreadable(self, marker: Marker, what: str, error: Exception) -> None:
        why = first_line(error)
        offender = Offender(what=f"{what} cannot be read: {why}", batch=marker.batch_id)
        self._findings.blame("files", offender)

    def _write_batches(self) -> None:
        rows, buckets = [], []
        for marker in self._markers:
            first = (self._replaced.judging_marker(marker) or marker).spec
            row = {
                "batch": marker.batch_id,
                "commit_seq": marker.commit_seq,
                "batch_time": marker.batch_time.replace(tzinfo=None),
                "horizon_seconds": first.dedup.horizon.total_seconds(),
                "matched_by": _matched_by(marker),
                "identified": marker.exact,
                "bucketed": first.dedup.scope is RepeatScope.BUCKET,
                "timed": _is_counted(marker),
                "transformed": bool(marker.spec.transforms),
                "checked": not first.sink.in_folder or bool(first.sink.partition_by),
                "registered": first.source.has_typed_values,
                "replaced": self._may_be_replaced(marker) or bool(marker.erased),
                "reread": marker.batch_id in self._reading.read_twice,
                "proven": marker.batch_id not in self._reading.unproven,
            }
            rows.append(row)
            if row["bucketed"]:
                buckets += _bucket_rows(marker)
        for table, records in (("named", buckets), ("batch", rows)):
            if records:
                self._engine.run("insert", pa.Table.from_pylist(records), {"table": table})

    def _prove(self) -> None:
        findings = self._findings
        counts = self._recount()
        read = sum(c.records_read for c in counts.values())
        dropped = sum(c.duplicates for c in counts.values())
        letters = sum(c.quarantined + c.late for c in counts.values())
        unproven = [m.commit_seq for m in self._markers if m.batch_id in self._reading.unproven]
        limit = AUDIT_OFFENDERS_SHOWN
        values = {
            "letters": {
                "of_the_text": _reasons_decided_by(DecidedBy.TEXT),
                "of_the_time": _reasons_decided_by(DecidedBy.TIME),
                "of_the_sink": _reasons_decided_by(DecidedBy.SINK),
                "of_the_registry": _reasons_decided_by(DecidedBy.REGISTRY),
            },
            "decisions": {"proven_below": min(unproven, default=1 << 62)},
        }
        examined = {
            "accounted": ("accounted", read),
            "records": ("records", read - letters),
            "letters": ("dead letters", letters),
            "buckets": ("dead letters", 0),
            "decisions": ("decisions", dropped),
            "ids": ("ids", sum(c.survivors for c in counts.values())),
            "output": ("output", sum(c.rows_written for c in counts.values())),
        }
        for name, (check, number) in examined.items():
            findings.examine(check, number)
            self._blame(check, self._engine.rows(name, shown=limit, **values.get(name, {})))
        counted = [marker.spec for marker in self._markers if _is_counted(marker)]
        if counted:
            windows.slices_of_records(self._engine, counted[-1])
            filled = windows.recount_expressions(counted[-1])
            differing = self._engine.rows("windows", filled, shown=limit)
            self._misplaced_windows.update(row["batch"] for row in differing)
            self._blame("output", differing)
        plain = {m.batch_id for m in self._markers if not m.spec.transforms}
        findings.examine("content", sum(c.rows_written for b, c in counts.items() if b in plain))

    def _blame(self, name: str, rows: list[dict]) -> None:
        """Blame the rows of a check's statement; `total` of each row counts its whole check."""
        paths = {
            (m.batch_id, c.source_partition_id): c.name
            for m in self._markers
            for c in claims_of(m, self._markers)
        }
        hidden: dict[str, int] = {}
        for row in rows:
            check = row.get("check", name)
            hidden[check] = hidden.get(check, row["total"]) - 1
            offender = Offender(
                what=row["what"] if self._samples else row["what"].partition(": ")[0],
                batch=row["batch"],
                file=paths.get((row["batch"], row["part"])) or row.get("file"),
                offset=row["pos"],
                id=row["id"] if self._samples else None,
            )
            self._findings.blame(check, offender)
        for check, count in hidden.items():
            self._findings.blame(check, None, count=count)

    def _recount(self) -> dict[int, Counts]:
        """The counts of source and files by batch. Blames markers with other counts."""
        recounted: dict[int, Counts] = {}
        markers = {marker.batch_id: marker for marker in self._markers}
        for row in self._engine.rows("sums"):
            batch = row.pop("batch")
            marker = markers[batch]
            row["bytes_read"] = self._reading.bytes_read(marker)
            recounted[batch] = Counts(**row)
            self._findings.examine("sums")
            for name, actual in row.items():
                stated = getattr(marker.counts, name)
                # Keeps ER3.
                if name in OF_THE_OUTPUT:
                    stated -= marker.erased_rows
                    stated = min(stated, actual) if self._may_be_replaced(marker) else stated
                if stated != actual:
                    erased = name in OF_THE_OUTPUT and marker.erased_rows
                    stated = f"{stated} and {erased} erased" if erased else stated
                    what = f"the marker has {name} = {stated}, source and files have {actual}"
                    offender = Offender(what=what, batch=batch, file=marker.path.name)
                    self._findings.blame("sums", offender)
        return recounted

    def _may_be_replaced(self, marker: Marker) -> bool:
        """True if later batches may have replaced rows (mode upsert) or did (compacted topic)."""
        return marker.batch_id in self._superseded or marker.commit_seq < self._last_upsert_seq

    def _verdict(self) -> AuditVerdict:
        ways = sorted({_matched_by(marker) for marker in self._markers})
        notes = []
        if not self._markers:
            notes.append("no batch is finalized")
        if any(marker.commit_seq < self._last_upsert_seq for marker in self._markers):
            what = "the audit treats missing rows of batches before the last upsert as replaced"
            notes.append(f"mode upsert: {what}")
        if repeating := [m.commit_seq for m in self._markers if m.spec.record_id and not m.exact]:
            ended = max(repeating) < max(marker.commit_seq for marker in self._markers)
            notes.append(repeats_of(max(repeating) + 1 if ended else None))
        if erased := {m.batch_id: m.erased_rows for m in self._markers if m.erased}:
            rows = count(sum(erased.values()), "row")
            notes.append(f"an operator has recorded the erasure of {rows} of {batch_list(erased)}")
        # Keeps AG7.
        here, batches_by_zones = zones_version(), {}
        for marker in self._markers:
            zones = marker.code and marker.code.zones
            if marker.batch_id in self._misplaced_windows and zones and zones != here:
                batches_by_zones.setdefault(zones, set()).add(marker.batch_id)
        for zones, batches in sorted(batches_by_zones.items()):
            notes.append(
                f"stage computed the windows of {batch_list(batches)} with tz database {zones}. The "
                f"audit has tz database {here or '(no version)'}, with other windows"
            )
        if self._in_flight:
            numbers = ", ".join(map(str, sorted(self._in_flight)))
            notes.append(
                f"the sink has rows of batches {numbers}, which no marker lists: these batches are "
                "not finalized, so the audit has not proven them"
            )
        if expired := self._reading.expired:
            why = self._spec.source.expires
            notes.append(f"{batch_list(expired)} {_UNPROVEN}: {why}, as expected")
        if self._lost_outputs:
            first = self._lost_outputs[min(self._lost_outputs)]
            notes.append(f"{batch_list(self._lost_outputs)} {_UNPROVEN}: {first}")
        if self._superseded:
            first = self._superseded[min(self._superseded)]
            notes.append(f"{batch_list(self._superseded)}: the remaining rows are proven: {first}")
        kinds = self._spec.column_types().items()
        if skipped := [name for name, kind in kinds if not fast.is_compared(kind)]:
            notes.append(f"values of {', '.join(skipped)} (nested, json) are not compared")
        return AuditVerdict(
            pipeline=self._spec.name,
            sink=str(self._sink or open_sink(self._spec).address),
            batches=len(self._markers),
            gone=len(expired | self._lost_outputs.keys()),
            to_replay=runs(self._to_replay - expired, [m.batch_id for m in self._markers]),
            replayed=sum(marker.generation > 1 for marker in self._markers),
            proved_by=", ".join(_PROVED_BY[way] for way in ways) or "nothing to prove",
            checks=self._findings.checks(),
            totals=sum((marker.counts for marker in self._markers), Counts()),
            notes=tuple(notes),
        )


def _with_address(place: str, rows: pa.Table) -> pa.Table:
    return rows.append_column("_semel_file", pa.repeat(place, rows.num_rows))


def _bucket_rows(marker: Marker) -> list[dict[str, int]]:
    """The ranges of buckets in a marker, as rows of the table `named`."""
    row = {"batch": marker.batch_id, "commit_seq": marker.commit_seq}
    ranges = marker.buckets.ranges if marker.buckets else ()
    return [{**row, "low": low, "high": high} for low, high in ranges]


def _is_counted(marker: Marker) -> bool:
    """True if the batch's rows count its records without transforms before."""
    return marker.spec.aggregate is not None and not marker.spec.transforms


def _matched_by(marker: Marker) -> str:
    """How the audit matches output rows to records: the strongest way that the batch allows."""
    if marker.spec.aggregate is not None:
        return "windows"
    names = set(marker.sink_schema.names)
    if marker.exact and set(marker.spec.record_id) <= names:
        return "id"
    return "position" if set(_POSITION) <= names else "counts"


def _reasons_decided_by(judge: DecidedBy) -> list[str]:
    return [str(reason) for reason in Reason if reason.decided_by is judge]
