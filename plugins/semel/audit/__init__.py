"""audit: prove from files alone that the output holds each record of the source once.

Purpose: an independent judge. It reads the markers, the source that they name, the output, the
decisions and the dead letters.
How it works: every record of the claimed ranges is read again, by DuckDB and, where that cannot
decide, by Python; ids and hashes of rows meet in DuckDB, where each promise is a query. Of a batch
that was replayed, what became of its records is proven by the marker of its own output, which is
kept aside, and the rows by the newest one: the source is read by both declarations where they read
it differently.
What it does not do: ask the ledger, the catalog or Spark, or use semel's own readers of records.
Each kind of source is read again by code in its own room (semel.sources.reread). Shared are: how
Kafka is reached, what a claim says, how a sink's rows and semel's own files are read, and what the
windows of time are.
Known limitations: whether a bucket that an earlier batch had was forgotten (late) or a time was too
far ahead at the moment of staging cannot be seen in files; a numeral that readers read in two ways
may be in the output or in the dead letters. With transforms, output rows are matched by id or
position, not by their values: a transform that changes id columns, or makes several rows of one,
fails the audit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import duckdb
import pyarrow as pa

from semel import limits
from semel.archive import layout, owned
from semel.archive.marker import Marker
from semel.audit import fast, files, generations, windows
from semel.audit.generations import Generations
from semel.audit.reading import Reading, claims_of
from semel.audit.source_reader import Kept, Letters, letters_table
from semel.audit.verdict import AUDIT_OFFENDERS_SHOWN, AuditVerdict, Findings, Obligation, Offender
from semel.clients.duck import DuckEngine, zoneless
from semel.declare.parts import RepeatScope
from semel.declare.wording import count, those
from semel.errors import CorruptionError, TerminalError, first_line
from semel.formats.output import columns_for_readers, columns_in_files, rows_of
from semel.formats.pieces import gathered, pieces
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
    held,
)
from semel.sinks.held import MarkerVerdict
from semel.sinks.spec import archive_of

__all__ = ["Obligation", "Offender", "AuditVerdict", "audit"]

_POSITION = ("_semel_source", "_semel_offset")
_UNPROVEN = "cannot be proven, but for their files"
_PROVED_BY = {
    "id": "record id",
    "position": "position",
    "windows": "windows, counted again",
    "counts": "the markers' counts and checksums",
}


def audit(spec: Spec, sink_path: str | Path | None = None) -> AuditVerdict:
    """Audit a pipeline's sink (`sink_path`: another folder than the spec's).

    The specs of the batches are those in their markers; `spec` gives the name, the sink, and the
    folder in which renamed source files are looked for, or the cluster that has the topics. A
    broken promise is in the verdict, never an error. UnavailableError, TerminalError: source or
    sink cannot be asked.
    """
    if sink_path is None:
        sink, kept = spec.sink_path(), layout.of(spec)
    else:
        sink = Path(sink_path)
        kept = archive_of(sink)
    with DuckEngine("audit") as engine:
        return _Audit(spec, sink, kept, engine).run()


class _Audit:
    """One audit: the steps in their order."""

    def __init__(self, spec: Spec, sink: Path | None, kept: Path, engine: DuckEngine) -> None:
        self._spec, self._sink, self._archive, self._engine = spec, sink, kept, engine
        self._findings = Findings()
        self._markers: list[Marker] = []
        self._replaced = Generations()
        self._letters: Letters = {}
        self._output_gone: dict[int, OutputLostError] = {}
        self._other_windows: set[int] = set()
        self._superseded: dict[int, SupersededError] = {}
        self._notes: Notes | None = None
        self._in_flight: set[int] = set()
        self._to_replay: set[int] = set()
        self._samples = spec.limits.log_samples

    def run(self) -> AuditVerdict:
        # 1. Files before markers: what is finalized meanwhile is then listed by its marker.
        there = files.below(self._sink, self._archive)
        self._notes = self._noted()
        self._markers = files.read_markers(
            self._sink, self._archive, self._spec.name, self._findings
        )
        self._replaced = generations.read(
            self._sink, self._archive, self._markers, self._findings
        )
        self._to_replay = files.check_files(
            there, self._markers, self._replaced.paths, self._findings
        )
        files.check_code([*self._markers, *self._replaced.markers], self._findings)
        files.check_claims(self._markers, self._findings)
        self._check_target()
        # 2. Read what semel says became of the records, then the records themselves.
        self._read_letters()
        self._read_decisions()
        self._read_source()
        with open_sinks(self._spec) as sink_of:
            self._read_output(sink_of)
        self._write_batches()
        self._engine.run("record")
        # 3. Hold the two against each other.
        self._prove()
        return self._verdict()

    @cached_property
    def _upserted(self) -> int:
        """The last place in the order of commits whose batch was put in in mode upsert."""
        return max((m.commit_seq for m in self._markers if m.spec.sink.replaces_rows), default=0)

    @cached_property
    def _reading(self) -> Reading:
        """Of the markers and dead letters, once these were read."""
        return Reading(
            self._spec, self._engine, self._markers, self._replaced, self._letters, self._findings
        )

    def _noted(self) -> Notes | None:
        """What a table or topic says that it holds."""
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
        """Hold what a table or topic says, and the numbers in all of its rows, against the markers.

        Behind the last marker a batch may be on its way, and so may a replay of a listed one.
        """
        if self._notes is None:
            return
        try:
            known = owned.by_markers(self._markers)
        except CorruptionError:
            return  # Blamed before, among the generations.
        found = held.compare(self._spec.name, None, known, self._notes.batch_notes)
        listed = [one for one in known if one.verdict is MarkerVerdict.LISTED]
        newest = {one.commit_seq: one.batch_id for one in listed}
        for note in found.strays:
            if note.batch_id > newest.get(note.commit_seq, 0):
                self._in_flight.add(note.batch_id)
                continue
            what = f"the sink says that it holds {note.rows} rows of it, and no marker lists them"
            self._stray(note, what)
        for note in found.conflicting:
            self._stray(note, "the sink says that it holds another batch under its number")
        for note in found.foreign:
            self._stray(note, f"the sink holds rows of it, of pipeline {note.pipeline!r}")
        for one in self._notes.damaged:
            self._findings.blame("strays", Offender(what=one.what, batch=one.batch_id))
        missing: set[int] = set()
        # It may have landed since the notes were read.
        if found.missing and (notes := self._noted()):
            later = held.compare(self._spec.name, None, known, notes.batch_notes)
            damaged = {one.batch_id for one in notes.damaged}
            for one in later.missing:
                if one.batch_id in damaged:
                    continue
                what = "the sink does not say that it holds its rows"
                self._findings.blame("files", Offender(what=what, batch=one.root))
                missing.add(one.root)
        listed = {marker.made_by for marker in self._markers} | self._in_flight
        with suppress(TerminalError), open_sink(self._spec) as sink:
            if sink.replaceable:
                self._to_replay |= missing
            for number, rows in sink.count_strays(listed).items():
                are = "row in the sink is" if rows == 1 else "rows in the sink are"
                what = f"{rows} {are} of it, and no marker lists {'it' if rows == 1 else 'them'}"
                offender = Offender(what=what, batch=number)
                self._findings.blame("strays", offender, count=rows)
            if rows := sink.count_unmerged():
                what = f"{rows} partial rows are in no window, so the view passes over them"
                self._findings.blame("output", Offender(what=what), count=rows)

    def _stray(self, note: BatchNote, what: str) -> None:
        self._findings.blame("strays", Offender(what=what, batch=note.batch_id))

    def _read_letters(self) -> None:
        columns = ["source_partition_id", "offset", "reason", "raw"]
        for marker, table in self._kept(Kind.DEAD_LETTERS, columns):
            for row in table.to_pylist():
                key = (marker.batch_id, row["source_partition_id"])
                copies = self._letters.setdefault(key, {}).setdefault(row["offset"], [])
                copies.append((row["reason"], Kept.of(row["raw"])))

    def _read_decisions(self) -> None:
        columns = ["source_partition_id", "offset", "reason", "record_id"]
        for marker, table in self._kept(Kind.DECISIONS, columns):
            spec = (self._replaced.judged(marker) or marker).spec
            identity = fast.identity(spec, lambda name: f"record_id.{fast.column(name)}")
            ids = zoneless(pa.Table.from_struct_array(table.column("record_id")))
            table = table.set_column(3, "record_id", ids.to_struct_array())
            self._insert("insert_decision", "its decisions", marker, table, {"id": identity})

    def _insert(
        self, statement: str, what: str, marker: Marker, rows: pa.Table, braces: dict[str, str]
    ) -> None:
        """Bring what a batch has into the engine. Rows that DuckDB cannot read so are told."""
        batch = pa.repeat(pa.scalar(marker.batch_id, pa.int64()), rows.num_rows)
        try:
            self._engine.run(statement, rows.append_column("_semel_batch", batch), braces)
        except duckdb.Error as error:
            self._unreadable(marker, what, error)

    def _kept(self, kind: Kind, columns: list[str]) -> Iterator[tuple[Marker, pa.Table]]:
        """The decisions or dead letters of each batch. What cannot be read was blamed before."""
        for marker in self._markers:
            for file in marker.of_kind(kind):
                try:
                    for rows in pieces(marker.path_of(file), columns):
                        yield marker, pa.Table.from_batches([rows])
                except (pa.ArrowException, OSError):
                    continue

    def _read_source(self) -> None:
        self._reading.run()
        letters = letters_table(self._letters, self._reading.wrong_bytes)
        self._engine.run("insert", letters, {"table": "letter"})

    def _read_output(self, sink_of: Callable[[Spec], Sink]) -> None:
        """Ids, positions and content hashes of the output's rows. `sink_of`: of a batch's
        declaration; not asked where it is a folder.
        """
        for marker in self._markers:
            spec, names = marker.spec, set(columns_in_files(marker).names)
            column = partial(fast.in_output, spec)
            wanted = [*spec.record_id, *_POSITION]
            wanted += [] if spec.transforms else spec.source.columns
            wanted = [name for name in dict.fromkeys(wanted) if name in names]
            if spec.aggregate is not None:
                wanted = columns_in_files(marker).names
            braces = {
                "id": "CAST(NULL AS VARCHAR)",
                "part": fast.column(_POSITION[0]) if _POSITION[0] in names else "NULL",
                "pos": fast.column(_POSITION[1]) if _POSITION[1] in names else "NULL",
                "content": "NULL" if spec.transforms else fast.content(spec, column),
            }
            if set(spec.record_id) <= names and spec.aggregate is None:
                braces["id"] = fast.identity(spec, column)
            found = self._output_of(sink_of, marker, wanted)
            for rows in gathered(found, limits.AUDIT_CHUNK_BYTES):
                self._insert("insert_output", "its output", marker, rows, braces)
                if _is_counted(marker):
                    cells = windows.of_rows(spec)
                    self._insert("insert_partial", "its output", marker, rows, cells)

    def _output_of(
        self, sink_of: Callable[[Spec], Sink], marker: Marker, wanted: list[str]
    ) -> Iterator[pa.Table]:
        """The rows of a batch, with where they come from. What cannot be read is told."""
        for file in marker.of_kind(Kind.REFUSED):  # A person has said that they count.
            for rows in pieces(marker.path_of(file), wanted):
                yield _from(file.path, pa.Table.from_batches([rows]).select(wanted))
        if marker.sink is None:
            sink = sink_of(marker.spec)
            try:
                for table in sink.rows(marker, strays=True):
                    yield _from(sink.address, table.select(wanted))
            except MiscountError:
                # What is there was given: the sums and the output tell it.
                if sink.replaceable:
                    self._to_replay.add(marker.batch_id)
            except SupersededError as error:
                self._superseded[marker.batch_id] = error
            except OutputLostError as error:
                self._reading.lost.add(marker.batch_id)
                self._output_gone[marker.batch_id] = error
            except TerminalError as error:
                self._unreadable(marker, sink.address, error)
            return
        folders, there = marker.spec.sink.windows, columns_for_readers(marker).names
        more = [name for one in folders for name in (one.of, one.name) if name in there]
        for file in marker.of_kind(Kind.DATA):
            astray: dict[str, int] = Counter()
            try:
                for table in rows_of(marker, file, [*dict.fromkeys([*wanted, *more])]):
                    for one in folders:
                        astray[one.name] += windows.astray(self._engine, one, table)
                    yield _from(file.path, table.select(wanted))
                self._blame_folder(marker, file, +astray)
            except (pa.ArrowException, OSError) as error:
                self._unreadable(marker, file.path, error)

    # Keeps L7.
    def _blame_folder(
        self, marker: Marker, file: MarkedFile, astray: Mapping[str, int]
    ) -> None:
        """`astray`: by window, how many rows of a file are of another one than its folder's."""
        for name, rows in astray.items():
            what = f"the times of {count(rows, 'row')} in it are not of its folder {name!r}"
            offender = Offender(what=what, batch=marker.batch_id, file=file.path)
            self._findings.blame("files", offender)
            self._other_windows.add(marker.batch_id)

    def _unreadable(self, marker: Marker, what: str, error: Exception) -> None:
        why = first_line(error)
        offender = Offender(what=f"{what} cannot be read: {why}", batch=marker.batch_id)
        self._findings.blame("files", offender)

    def _write_batches(self) -> None:
        rows, named = [], []
        for marker in self._markers:
            first = (self._replaced.judged(marker) or marker).spec
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
                "reread": marker.batch_id in self._reading.reread,
                "proven": marker.batch_id not in self._reading.lost,
            }
            rows.append(row)
            if row["bucketed"]:
                named += _named(marker)
        for table, found in (("named", named), ("batch", rows)):
            if found:
                self._engine.run("insert", pa.Table.from_pylist(found), {"table": table})

    def _prove(self) -> None:
        found = self._findings
        counts = self._sums()
        read = sum(c.records_read for c in counts.values())
        dropped = sum(c.duplicates_batch + c.duplicates_catalog for c in counts.values())
        letters = sum(c.quarantined + c.late for c in counts.values())
        lost = [m.commit_seq for m in self._markers if m.batch_id in self._reading.lost]
        shown = AUDIT_OFFENDERS_SHOWN
        values = {
            "letters": {
                "of_the_text": _decided_by(DecidedBy.TEXT),
                "of_the_time": _decided_by(DecidedBy.TIME),
                "of_the_sink": _decided_by(DecidedBy.SINK),
                "of_the_registry": _decided_by(DecidedBy.REGISTRY),
            },
            "decisions": {"proven_below": min(lost, default=1 << 62)},
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
            found.examine(check, number)
            self._blame(check, self._engine.rows(name, shown=shown, **values.get(name, {})))
        counted = [marker.spec for marker in self._markers if _is_counted(marker)]
        if counted:
            windows.slices_of_records(self._engine, counted[-1])
            filled = windows.proof(counted[-1])
            differing = self._engine.rows("windows", filled, shown=shown)
            self._other_windows.update(row["batch"] for row in differing)
            self._blame("output", differing)
        plain = {m.batch_id for m in self._markers if not m.spec.transforms}
        found.examine("content", sum(c.rows_written for b, c in counts.items() if b in plain))

    def _blame(self, name: str, rows: list[dict]) -> None:
        """Blame the rows of a check's statement; each says how many there are of its kind."""
        paths = {
            (m.batch_id, c.source_partition_id): c.name
            for m in self._markers
            for c in claims_of(m, self._markers)
        }
        untold: dict[str, int] = {}
        for row in rows:
            check = row.get("check", name)
            untold[check] = untold.get(check, row["total"]) - 1
            offender = Offender(
                what=row["what"] if self._samples else row["what"].partition(": ")[0],
                batch=row["batch"],
                file=paths.get((row["batch"], row["part"])) or row.get("file"),
                offset=row["pos"],
                id=row["id"] if self._samples else None,
            )
            self._findings.blame(check, offender)
        for check, count in untold.items():
            self._findings.blame(check, None, count=count)

    def _sums(self) -> dict[int, Counts]:
        """What source and files show, held against each marker's account."""
        shown: dict[int, Counts] = {}
        markers = {marker.batch_id: marker for marker in self._markers}
        for row in self._engine.rows("sums"):
            batch = row.pop("batch")
            marker = markers[batch]
            row["bytes_read"] = self._reading.bytes_read(marker)
            shown[batch] = Counts(**row)
            self._findings.examine("sums")
            for name, found in row.items():
                said = getattr(marker.counts, name)
                # Keeps ER3.
                if name in OF_THE_OUTPUT:
                    said -= marker.erased_rows
                    said = min(said, found) if self._may_be_replaced(marker) else said
                if said != found:
                    erased = name in OF_THE_OUTPUT and marker.erased_rows
                    said = f"{said} and {erased} erased" if erased else said
                    what = f"the marker says {name} = {said}, source and files show {found}"
                    offender = Offender(what=what, batch=batch, file=marker.path.name)
                    self._findings.blame("sums", offender)
        return shown

    def _may_be_replaced(self, marker: Marker) -> bool:
        """Whether later batches may have replaced rows of this one, in mode upsert, or did, in a
        compacted topic.
        """
        return marker.batch_id in self._superseded or marker.commit_seq < self._upserted

    def _verdict(self) -> AuditVerdict:
        ways = sorted({_matched_by(marker) for marker in self._markers})
        notes = []
        if not self._markers:
            notes.append("no batch has been finalized here")
        if any(marker.commit_seq < self._upserted for marker in self._markers):
            what = "of all batches before the last one of that mode, missing rows count as replaced"
            notes.append(f"mode upsert: {what}")
        if made := [m.commit_seq for m in self._markers if m.spec.record_id and not m.exact]:
            ended = max(made) < max(marker.commit_seq for marker in self._markers)
            notes.append(repeats_of(max(made) + 1 if ended else None))
        if erased := {m.batch_id: m.erased_rows for m in self._markers if m.erased}:
            rows = count(sum(erased.values()), "row")
            notes.append(f"somebody has erased {rows} of {those(erased)}, and has said so")
        # Keeps AG7.
        here, made_by = zones_version(), {}
        for marker in self._markers:
            zones = marker.code and marker.code.zones
            if marker.batch_id in self._other_windows and zones and zones != here:
                made_by.setdefault(zones, set()).add(marker.batch_id)
        for zones, batches in sorted(made_by.items()):
            notes.append(
                f"tz database {zones} cut the windows of {those(batches)}, which differ from those "
                f"of tz database {here or '(no version)'} of this audit"
            )
        if self._in_flight:
            shown = ", ".join(map(str, sorted(self._in_flight)))
            notes.append(
                f"the sink has rows of batches {shown}, which no marker lists: these are not "
                "finalized, and nothing of them was proven"
            )
        if gone := self._reading.gone:
            notes.append(f"{those(gone)} {_UNPROVEN}: {self._spec.source.expires}, as it is to")
        if self._output_gone:
            first = self._output_gone[min(self._output_gone)]
            notes.append(f"{those(self._output_gone)} {_UNPROVEN}: {first}")
        if self._superseded:
            first = self._superseded[min(self._superseded)]
            notes.append(f"{those(self._superseded)}: the rows that are left are proven: {first}")
        kinds = self._spec.column_types().items()
        if apart := [name for name, kind in kinds if not fast.compared(kind)]:
            notes.append(f"the values of {', '.join(apart)} (nested, json) were not compared")
        return AuditVerdict(
            pipeline=self._spec.name,
            sink=str(self._sink or open_sink(self._spec).address),
            batches=len(self._markers),
            gone=len(gone | self._output_gone.keys()),
            to_replay=runs(self._to_replay - gone, [m.batch_id for m in self._markers]),
            replayed=sum(marker.generation > 1 for marker in self._markers),
            proved_by=", ".join(_PROVED_BY[way] for way in ways) or "nothing to prove",
            checks=self._findings.checks(),
            totals=sum((marker.counts for marker in self._markers), Counts()),
            notes=tuple(notes),
        )


def _from(place: str, rows: pa.Table) -> pa.Table:
    return rows.append_column("_semel_file", pa.repeat(place, rows.num_rows))


def _named(marker: Marker) -> list[dict[str, int]]:
    """The ranges of buckets that a marker names."""
    row = {"batch": marker.batch_id, "commit_seq": marker.commit_seq}
    ranges = marker.buckets.ranges if marker.buckets else ()
    return [{**row, "low": low, "high": high} for low, high in ranges]


def _is_counted(marker: Marker) -> bool:
    """Whether its rows are counts of its records as they are."""
    return marker.spec.aggregate is not None and not marker.spec.transforms


def _matched_by(marker: Marker) -> str:
    """By what an output row is matched to its record, from the strongest down."""
    if marker.spec.aggregate is not None:
        return "windows"
    names = set(marker.sink_schema.names)
    if marker.exact and set(marker.spec.record_id) <= names:
        return "id"
    return "position" if set(_POSITION) <= names else "counts"


def _decided_by(what: DecidedBy) -> list[str]:
    return [str(reason) for reason in Reason if reason.decided_by is what]
