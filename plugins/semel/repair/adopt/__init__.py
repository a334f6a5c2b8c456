"""adopt: take over the batches of a lost ledger, from the markers and files of a sink alone.

How it works:
1. read the markers, prove that they are consistent, and compare them with the target's notes;
2. move the ledger's sequences past every number in markers, notes and file names;
3. outside any transaction, find the source files again, and read the ids within the horizon;
4. write pipeline, source partitions, batches, claims and catalog in one transaction.

Records of batches that the lost ledger had not finalized stay unclaimed: the next plan claims them.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import sqlalchemy as sa

from semel import failpoints, settings
from semel.archive import layout, note, ownership, traces
from semel.archive.marker import Marker, markers_in
from semel.archive.traces import Traces
from semel.catalog.runs import ensure_segment, last_time
from semel.declare.wording import count, named
from semel.errors import (
    AGAIN,
    NO_STEP,
    CorruptionError,
    RetryableError,
    StateError,
    TerminalError,
)
from semel.ledger import Ledger, change, pipelines, row, rows
from semel.model.batch import Log
from semel.model.buckets import Buckets, union
from semel.model.times import TimeSet
from semel.pipeline import identity
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.plan import event_time
from semel.repair.adopt import runs
from semel.repair.adopt.history import READ_AGAIN, History, histories
from semel.repair.adopt.ids import IdsLostError, ShardIds, ids_of
from semel.repair.adopt.insert import write_batches, write_partitions
from semel.repair.adopt.partitions import Adoptee, partitions_of
from semel.repair.adopt.target import compare_target
from semel.sinks import note_comparison


@dataclass(frozen=True, kw_only=True)
class AdoptResult:
    """The result of adopt. `found`: the ledger had all these batches already; nothing changed."""

    pipeline: str
    found: bool
    batches: int
    replays: int = 0
    source_partitions: int = 0
    files_found: int = 0
    """Source partitions that the source still has."""
    ids: int = 0
    id_runs: int = 0
    batches_expired: int = 0
    batches_forgotten: tuple[int, ...] = ()
    commits_lost: tuple[tuple[int, int], ...] = ()
    """Ranges of commits without a marker, as first and last."""
    strays: tuple[str, ...] = ()
    """Output files and files of the archive that no marker lists."""
    staging: tuple[str, ...] = ()
    """Abandoned attempt folders, relative to the archive's `staging/`."""


@dataclass(frozen=True, kw_only=True)
class RecoveredIds:
    """The ids of the batches within their horizon, as runs for the catalog.

    - `expired`: the number of batches past their horizon, whose ids adopt does not read
    - `lost_batches`: batches whose ids neither files nor source have, and `why`
    - `forgotten_buckets`: in scope `bucket`, the buckets of expired and lost batches
    """

    runs: list[runs.OldRun]
    forgotten_buckets: Buckets
    expired: int
    lost_batches: tuple[Marker, ...]
    why: str

    @property
    def ids(self) -> int:
        """The number of ids."""
        return sum(run.ids for run in self.runs)

    def write(self, connection: sa.Connection, pipeline_id: int, horizon: timedelta) -> None:
        """Write the ids. The caller MUST hold the pipeline's lock, or have inserted its row."""
        if self.runs:
            segment_id = ensure_segment(connection, pipeline_id, int(horizon.total_seconds()))
            for run in self.runs:
                runs.write_run(connection, pipeline_id, segment_id, run)


def adopt(
    ledger: Ledger,
    spec: Spec,
    others: Iterable[Spec] = (),
    *,
    forget_ids: bool = False,
    log: Log = print,
) -> AdoptResult:
    """Take over the batches in a pipeline's sink. The same call again changes nothing.

    `others`: pipelines to adopt later, whose numbers semel does not give to new batches.
    `forget_ids`: continue if neither files nor source have a batch's ids. Then repeats of its
    records count as new; in scope `bucket`, all records of its buckets count as late.

    Raises TerminalError if markers, files and target are inconsistent, or if the ledger has other
    batches. Raises StateError if the sink is empty, RetryableError if the same call may succeed.
    """
    try:
        return _adopt(ledger, spec, others, forget_ids=forget_ids, log=log)
    except OSError as error:
        raise RetryableError(
            f"{spec.name}: adopt failed ({error}). Nothing was adopted. Fix this fault, then run "
            "this again"
        ) from error


def _adopt(
    ledger: Ledger, spec: Spec, others: Iterable[Spec], *, forget_ids: bool, log: Log
) -> AdoptResult:
    target, sink, archive = open_sink(spec), spec.sink_path(), layout.archive_folder(spec)
    markers = _read_markers(sink, archive)
    names = {(s.name, s.sink.file_name): s for s in _specs(spec, markers)}
    leftovers = traces.find_traces(sink, archive, names.values())
    notes = target.notes()
    if notes:
        notes.check()
    note_numbers = [note.batch_id for note in notes.batch_notes] if notes else []
    earlier = _earlier_result(ledger, spec, target.address, archive, markers)
    if earlier is not None:
        return earlier
    if leftovers == Traces() and not note_numbers:
        raise StateError(
            f"{target.address} and {archive} have neither files nor notes of semel, so there is "
            f"nothing to adopt. Run {spec.name}",
            next=f"semel run {spec.name}",
        )
    _check_markers(spec, archive, markers)
    batches = histories(markers)
    created_at = compare_target(spec, target, archive, markers, notes)
    batch_max = _batch_max(leftovers.batch_max, markers, note_numbers)
    other_numbers = [_numbers_of(other, log) for other in others]
    now = _pass_numbers(ledger, spec, batches, batch_max, other_numbers)
    outputs = [marker for batch in batches for marker in batch.outputs]
    partitions = partitions_of(open_source(spec), outputs)
    lost_commits = note.missing_ranges([marker.commit_seq for marker in markers])
    with tempfile.TemporaryDirectory(prefix="adopt-", dir=settings.cache_dir()) as spills:
        # An at-least-once pipeline does not keep ids.
        identified = batches if _exact_from(spec, markers) else []
        catalog = recover_ids(spec, identified, partitions, now, Path(spills))
        # Keeps D7.
        if catalog.lost_batches and not forget_ids:
            raise TerminalError(
                f"{spec.name}: semel cannot recover the ids of "
                f"{_batches_text(catalog.lost_batches)} ({catalog.why}). Nothing was adopted. "
                "Restore the output, the ids files or the source. Or continue without these ids: "
                f"`semel adopt {spec.name} --forget-ids`. Then repeats of their records count as "
                "new (in scope bucket, all records of their buckets count as late)",
                next=AGAIN,
            )
        if lost_commits:
            note.write_note(archive, lost_commits)
        _write_ledger(
            ledger, spec, target.address, archive, batches, partitions, catalog, created_at
        )
    listed = {marker.target_of(file) for marker in outputs for file in marker.files}
    present = {str(sink / path) for path in leftovers.output}
    present |= {str(archive / path) for path in leftovers.batch_files}
    # Keeps D11.
    listed |= {str(path) for marker in markers for path in marker.added_ids_paths.values()}
    roots = {marker.batch_id for marker in markers}
    present |= {str(archive / path) for path, n in leftovers.replaced.items() if n not in roots}
    attempts = ((m.writer_id, m.replay.fence if m.replay else m.fence) for m in outputs)
    committed_attempts = {f"b{number:08d}/f{fence:04d}" for number, fence in attempts}
    return AdoptResult(
        pipeline=spec.name,
        found=False,
        batches=len(markers),
        replays=len(outputs) - len(markers),
        source_partitions=len(partitions),
        files_found=sum(part.located for part in partitions),
        ids=catalog.ids,
        id_runs=len(catalog.runs),
        batches_expired=catalog.expired,
        batches_forgotten=tuple(marker.batch_id for marker in catalog.lost_batches),
        commits_lost=tuple((first, last) for first, last in lost_commits),
        strays=tuple(sorted(present - listed)),
        staging=tuple(sorted(leftovers.staging.keys() - committed_attempts)),
    )


def _specs(spec: Spec, markers: list[Marker]) -> list[Spec]:
    return [spec, *(marker.spec for marker in markers)]


def _read_markers(sink: Path | None, archive: Path) -> list[Marker]:
    try:
        return markers_in(sink, archive)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. Or move that marker out of the archive. Then the pipeline's next run reads "
            f"the records of its batch again. {READ_AGAIN}",
            next=AGAIN,
        ) from error


# Keeps D3.
def _earlier_result(
    ledger: Ledger, spec: Spec, address: str, archive: Path, markers: list[Marker]
) -> AdoptResult | None:
    """The result if the ledger already has the pipeline and all these batches.

    Returns None if it does not have the pipeline. Raises TerminalError if it lacks some of the
    batches, or if the sink belongs to another pipeline.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        if pipeline is None:
            owner = pipelines.owner(connection, address, str(archive))
            if owner is None:
                return None
            raise TerminalError(
                f"{address}: in this ledger, this sink or its archive belongs to pipeline "
                f"{owner.name!r}, so {spec.name!r} cannot adopt its batches. Nothing was adopted. "
                "Give the pipeline that name, or declare another sink",
                next=NO_STEP,
            )
        unknown = ownership.unknown_markers(connection, pipeline.pipeline_id, spec.name, markers)
    if not unknown:
        return AdoptResult(pipeline=spec.name, found=True, batches=len(markers))
    raise TerminalError(
        f"{archive}: this archive has markers of {_batches_text(unknown)} that this ledger does "
        "not have. The ledger was restored from an older backup, or these batches ran with "
        "another ledger. Nothing was adopted. Point SEMEL_LEDGER_DSN to an empty database, "
        "migrate it, and adopt each pipeline there",
        next="semel migrate",
    )


def _batches_text(markers: Iterable[Marker]) -> str:
    return note_comparison.batches_text([marker.batch_id for marker in markers])


# Keeps D2.
def _check_markers(spec: Spec, archive: Path, markers: list[Marker]) -> None:
    """Raises TerminalError if a marker belongs to another pipeline, or if the declared identity has
    changed. Raises CorruptionError if two markers contradict each other.
    """
    if foreign := [marker for marker in markers if marker.pipeline != spec.name]:
        raise TerminalError(
            f"{archive}: this archive has markers of pipeline {foreign[0].pipeline!r} "
            f"({_batches_text(foreign)}), and {spec.name!r} cannot adopt them. Nothing was "
            "adopted. Give the pipeline its old name",
            next=f"semel adopt {foreign[0].pipeline}",
        )
    for earlier, later in pairwise(markers):
        if earlier.commit_seq == later.commit_seq or earlier.bucket_seconds != later.bucket_seconds:
            why = (
                f"both are commit {later.commit_seq}"
                if earlier.commit_seq == later.commit_seq
                else f"buckets of {earlier.bucket_seconds} and {later.bucket_seconds} seconds"
            )
            raise CorruptionError(
                f"{earlier.path} and {later.path}: these markers come from different ledgers "
                f"({why}). Nothing was adopted. Move the markers of the ledger that you do not "
                f"want out of the archive. {READ_AGAIN}",
                next=AGAIN,
            )
    claims = sorted(
        (c.source_partition_id, c.start, c.end, m.path) for m in markers for c in m.claims
    )
    for (part, _, end, path), (other_part, start, _, other) in pairwise(claims):
        if part == other_part and start < end:
            raise CorruptionError(
                f"{path} and {other}: these markers claim the same {spec.source.unit} of source "
                f"partition {part}. Nothing was adopted. Move the marker that does not belong here "
                f"out of the archive. {READ_AGAIN}",
                next=AGAIN,
            )
    if markers:
        identity.check(identity.to_text(identity.identity_of(markers[-1].spec)), spec)


def _numbers_of(other: Spec, log: Log) -> tuple[int, int]:
    """The highest numbers of batches and of source partitions in another pipeline's sink.

    If its markers are damaged, logs this and returns 0 for source partitions.
    """
    sink, archive = other.sink_path(), layout.archive_folder(other)
    batch_max = traces.find_traces(sink, archive, [other]).batch_max
    try:
        markers = markers_in(sink, archive)
        return _batch_max(batch_max, markers), _partition_max(markers)
    except CorruptionError as error:
        log(f"adopt cannot reserve all numbers of {other.name}: {error}")
        return batch_max, 0


def _batch_max(in_names: int, markers: list[Marker], in_notes: Iterable[int] = ()) -> int:
    """The highest batch number in file names, notes and markers.

    File names alone do not suffice: they lack the number of a replay into a table.
    """
    return max([in_names, *in_notes, *(marker.writer_id for marker in markers)])


def _partition_max(markers: list[Marker]) -> int:
    return max((c.source_partition_id for m in markers for c in m.claims), default=0)


def _pass_numbers(
    ledger: Ledger,
    spec: Spec,
    batches: list[History],
    batch_max: int,
    others: list[tuple[int, int]],
) -> datetime:
    """Move the sequences past all numbers of the pipeline and of `others`.

    Returns the ledger's time.

    Raises TerminalError if this ledger already gave some of the batches' numbers to others.
    """
    numbers = [(batch_max, _partition_max([batch.newest for batch in batches])), *others]
    with ledger.transaction() as connection:
        change(connection, "adopt", "lock_numbers")
        # Keeps D5.
        conflicts = rows(
            connection,
            "adopt",
            "taken",
            batches=[marker.writer_id for batch in batches for marker in batch.outputs],
            partitions=list(
                {c.source_partition_id for b in batches for m in b.outputs for c in m.claims}
            ),
        )
        if conflicts:
            examples = ", ".join(
                f"{r['what']} {r['number']} to {r['name']!r}" for r in conflicts[:5]
            )
            raise TerminalError(
                f"{spec.name}: this ledger gave {len(conflicts)} of the pipeline's numbers to "
                f"pipelines that ran before adopt ({examples}). Two pipelines cannot share a "
                "number. Nothing was adopted. Point SEMEL_LEDGER_DSN to an empty database, migrate "
                f"it, and adopt {spec.name} there",
                next="semel migrate",
            )
        rows(
            connection,
            "adopt",
            "pass_numbers",
            batch_max=max(batch for batch, _ in numbers),
            partition_max=max(part for _, part in numbers),
        )
        now = row(connection, "adopt", "now")["now"]
        failpoints.point("adopt.before_numbers")
    failpoints.point("adopt.after_numbers")
    return now


def recover_ids(
    spec: Spec,
    batches: list[History],
    partitions: list[Adoptee],
    now: datetime,
    folder: Path,
    keep: Callable[[Marker, list[ShardIds]], None] = lambda marker, ids: None,
) -> RecoveredIds:
    """Read the ids of the batches within their horizon. Calls `keep` with each batch's ids."""
    horizon = int(spec.dedup.horizon.total_seconds())
    by_number = {part.partition.source_partition_id: part for part in partitions}
    old_runs = runs.OldRuns(folder, horizon)
    expired, lost = [], []
    for batch in batches:
        marker = batch.first
        if not marker.spec.record_id:
            continue
        # Keeps C8.
        if expires_at(marker) <= now:
            expired.append(marker)
            continue
        try:
            claims = [by_number[c.source_partition_id].current_claim(c) for c in batch.claims]
            ids = ids_of(batch, claims)
        except IdsLostError as error:
            lost.append((marker, f"batch {marker.batch_id}: {error}"))
            continue
        keep(marker, ids)
        buckets = union(part.buckets for part in ids)
        end = buckets and buckets.end
        last = last_time(marker.batch_time, end, marker.bucket_seconds)
        old_runs.add(marker.commit_seq, last + marker.spec.dedup.horizon, ids)
    # Keeps D8.
    forgotten = [marker.buckets for marker in (*expired, *(marker for marker, _ in lost))]
    return RecoveredIds(
        runs=old_runs.finish(),
        forgotten_buckets=union(forgotten) or Buckets(),
        expired=len(expired),
        lost_batches=tuple(marker for marker, _ in lost),
        why="; ".join(why for _, why in lost[:3]),
    )


def _exact_from(spec: Spec, markers: list[Marker]) -> int | None:
    """The first exactly-once commit of the pipeline, which the marker of each later commit repeats.

    Returns None if the pipeline is at least once.
    """
    if not markers:
        return spec.exact_from
    return max(marker.exact_from or 0 for marker in markers) or None


def expires_at(marker: Marker) -> datetime:
    """The time at which the ids of a batch expire, according to its marker."""
    end = marker.buckets and marker.buckets.end
    last = last_time(marker.batch_time, end, marker.bucket_seconds)
    return last + marker.spec.dedup.horizon


# Keeps D4.
def _write_ledger(
    ledger: Ledger,
    spec: Spec,
    address: str,
    archive: Path,
    batches: list[History],
    partitions: list[Adoptee],
    catalog: RecoveredIds,
    created_at: str | None,
) -> None:
    """Write the pipeline and all that belongs to it, in one transaction.

    `created_at`: the pipeline's creation in the lost ledger, by which its notes are its own. None
    if unknown. Raises RetryableError if another process has registered the pipeline meanwhile.
    """
    last = batches[-1].first if batches else None
    newest = max((batch.newest for batch in batches), key=lambda m: m.committed_at, default=None)
    with ledger.transaction() as connection:
        inserted = row(
            connection,
            "adopt",
            "insert_pipeline",
            name=spec.name,
            sink_address=address,
            archive_path=str(archive),
            identity=identity.to_text(identity.identity_of(spec)),
            shards=spec.dedup.shards,
            bucket_seconds=last.bucket_seconds if last else spec.bucket_seconds,
            commit_seq=last.commit_seq if last else 0,
            batch_time_last=max((batch.first.batch_time for batch in batches), default=None),
            forgotten=catalog.forgotten_buckets.to_ledger(),
            sink_schema=json.dumps(newest.sink_columns) if newest else None,
            exact_from=_exact_from(spec, [batch.newest for batch in batches]),
            created_at=created_at,
            # Keeps W3.
            covered=TimeSet.of(
                r for batch in batches for r in batch.first.covers.ranges
            ).to_ledger(),
            event_time=_complete_to(spec, batches),
        )
        if inserted is None:
            raise RetryableError(
                f"{spec.name}: another process registered this pipeline or its sink meanwhile. "
                "This call changed nothing. Run this again to compare the ledger with the markers"
            )
        pipeline_id = inserted["pipeline_id"]
        write_partitions(connection, pipeline_id, partitions)
        write_batches(connection, pipeline_id, batches, open_source(spec).split_size)
        catalog.write(connection, pipeline_id, spec.dedup.horizon)
        if event_time.is_timed(spec) and spec.source.streams:
            event_time.advance_streams(connection, pipeline_id, None)
        failpoints.point("adopt.before_adopt")
    failpoints.point("adopt.after_adopt")


# Keeps W3.
def _complete_to(spec: Spec, batches: list[History]) -> datetime | None:
    """The end of the complete windows, according to the markers of all batches.

    Returns None if the pipeline does not have one event time for its whole source.
    """
    if not event_time.is_one_stream(spec):
        return None
    ends = (m.complete_to for batch in batches for m in (batch.first, batch.newest))
    return max(filter(None, ends), default=None)


def describe(answer: AdoptResult) -> str:
    """Describe the adopted batches, the losses, and leftover files."""
    name, batches = answer.pipeline, count(answer.batches, "batch", "batches")
    if answer.found:
        return f"nothing to do: this ledger already has {name} and the {batches} in its archive"
    parts = count(answer.source_partitions, "source partition")
    if answer.replays:
        batches += f" ({count(answer.replays, 'replay')} of them)"
    lines = [
        f"adopted {name}: {batches}, {parts} ({answer.files_found:,} found), "
        f"{count(answer.ids, 'id')} in {count(answer.id_runs, 'id run')}"
    ]
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"skipped the ids of {expired} past the horizon")
    if answer.batches_forgotten:
        forgotten = note_comparison.batches_text(answer.batches_forgotten)
        lines.append(
            f"FORGOTTEN: the ids of {forgotten}. Repeats of their records count as new (in scope "
            "bucket, all records of their buckets count as late)"
        )
    for first, last in answer.commits_lost:
        lines.append(
            f"commits {first} to {last} have no marker: the next run reads their records again"
        )
    if answer.strays:
        lines.append(
            f"left over: {count(len(answer.strays), 'file')} that no marker lists "
            f"({named(answer.strays)}). Move them away, because runs write their records again"
        )
    if answer.staging:
        lines.append(
            f"left over: {count(len(answer.staging), 'staging folder')} "
            f"({named(answer.staging)}). Remove them when no old process runs"
        )
    return "\n".join([*lines, f"next: semel run {name}"])
