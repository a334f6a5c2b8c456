"""adopt: take over what a lost ledger's batches left below a sink, from markers and files alone.

How it works:
1. read the markers, prove that they go together, and find their source files again;
2. move the ledger's sequences past every number in markers and file names;
3. read the ids of each batch whose horizon is not over, outside any transaction;
4. write pipeline, source partitions, batches, claims and catalog in one transaction.

Batches that the lost ledger had planned, or committed and not finalized, stay unclaimed: the next
plan takes their records.
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
from semel.archive import layout, note, owned, traces
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
from semel.repair.adopt.landed import check_landed
from semel.repair.adopt.partitions import Adoptee, partitions_of
from semel.sinks import held


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """What was taken over. `found`: the ledger already had all of it, and nothing was done."""

    pipeline: str
    found: bool
    batches: int
    replays: int = 0
    source_partitions: int = 0
    files_found: int = 0
    ids: int = 0
    id_runs: int = 0
    batches_expired: int = 0
    batches_forgotten: tuple[int, ...] = ()
    commits_lost: tuple[tuple[int, int], ...] = ()
    """Commits, first and last, that never got a marker."""
    strays: tuple[str, ...] = ()
    """Files of batches that no marker lists."""
    staging: tuple[str, ...] = ()
    """Abandoned attempt folders, relative to the archive's `staging/`."""


@dataclass(frozen=True, kw_only=True)
class Taught:
    """The ids of all batches, ready to be written. `gone`: batches whose ids nobody has, and `why`;
    in scope `bucket` their buckets are forgotten, and those of expired ones.
    """

    runs: list[runs.OldRun]
    forgotten_buckets: Buckets
    expired: int
    gone: tuple[Marker, ...]
    why: str

    @property
    def ids(self) -> int:
        """How many there are."""
        return sum(run.ids for run in self.runs)

    def write(self, connection: sa.Connection, pipeline_id: int, horizon: timedelta) -> None:
        """Make them known. The caller holds the pipeline's lock, or has made its row."""
        if self.runs:
            segment_id = ensure_segment(connection, pipeline_id, int(horizon.total_seconds()))
            for run in self.runs:
                runs.write(connection, pipeline_id, segment_id, run)


def adopt(
    ledger: Ledger,
    spec: Spec,
    others: Iterable[Spec] = (),
    *,
    forget_ids: bool = False,
    log: Log = print,
) -> Adopted:
    """Take over what batches left in a pipeline's sink. The same call again changes nothing.

    `others`: pipelines that may be adopted later; their numbers stay free. `forget_ids`: go on if
    neither files nor source have a batch's ids; repeats of these records count as new, or in scope
    `bucket` as late. TerminalError: the markers and files do not go together, or the ledger has
    other batches.
    """
    try:
        return _adopt(ledger, spec, others, forget_ids=forget_ids, log=log)
    except OSError as error:
        raise RetryableError(
            f"adopt of {spec.name}: {error}; the ledger has nothing of it yet. Fix that, then run "
            "this again"
        ) from error


def _adopt(
    ledger: Ledger, spec: Spec, others: Iterable[Spec], *, forget_ids: bool, log: Log
) -> Adopted:
    target, sink, kept = open_sink(spec), spec.sink_path(), layout.of(spec)
    found = _markers(sink, kept)
    names = {(s.name, s.sink.file_name): s for s in _specs(spec, found)}
    there = traces.look(sink, kept, names.values())
    notes = target.notes()
    if notes:
        notes.check()
    landed = [note.batch_id for note in notes.batch_notes] if notes else []
    known = _known(ledger, spec, target.address, kept, found)
    if known is not None:
        return known
    if there == Traces() and not landed:
        raise StateError(
            f"{target.address} and {kept} hold nothing of semel, so there is nothing to adopt; "
            f"run {spec.name}",
            next=f"semel run {spec.name}",
        )
    _check(spec, kept, found)
    batches = histories(found)
    of_ledger = check_landed(spec, target, kept, found, notes)
    batch_max = _batch_max(there.batch_max, found, landed)
    now = _pass_numbers(ledger, spec, batches, batch_max, [_numbers(o, log) for o in others])
    outputs = [marker for batch in batches for marker in batch.outputs]
    partitions = partitions_of(open_source(spec), outputs)
    lost = note.gaps([marker.commit_seq for marker in found])
    with tempfile.TemporaryDirectory(prefix="adopt-", dir=settings.cache_dir()) as spills:
        # At least once, it has none.
        identified = batches if _exact_from(spec, found) else []
        catalog = catalog_of(spec, identified, partitions, now, Path(spills))
        # Keeps D7.
        if catalog.gone and not forget_ids:
            raise TerminalError(
                f"the ids of {_named(catalog.gone)} of {spec.name} cannot be found any more "
                f"({catalog.why}). Restore what is missing; or `semel adopt {spec.name} "
                "--forget-ids` goes on without them: records with these ids that come again are "
                "new (in scope bucket, all of their buckets are late)",
                next=AGAIN,
            )
        if lost:
            note.write(kept, lost)
        _write(ledger, spec, target.address, kept, batches, partitions, catalog, of_ledger)
    listed = {marker.target_of(file) for marker in outputs for file in marker.files}
    named = {*(str(sink / path) for path in there.output), *(str(kept / p) for p in there.kept)}
    # Keeps D11.
    listed |= {str(path) for marker in found for path in marker.taught_paths.values()}
    numbers = {marker.batch_id for marker in found}
    named |= {str(kept / path) for path, of in there.replaced.items() if of not in numbers}
    made = ((m.made_by, m.replay.fence if m.replay else m.fence) for m in outputs)
    won = {f"b{number:08d}/f{fence:04d}" for number, fence in made}
    return Adopted(
        pipeline=spec.name,
        found=False,
        batches=len(found),
        replays=len(outputs) - len(found),
        source_partitions=len(partitions),
        files_found=sum(part.found for part in partitions),
        ids=catalog.ids,
        id_runs=len(catalog.runs),
        batches_expired=catalog.expired,
        batches_forgotten=tuple(marker.batch_id for marker in catalog.gone),
        commits_lost=tuple((first, last) for first, last in lost),
        strays=tuple(sorted(named - listed)),
        staging=tuple(sorted(there.staging.keys() - won)),
    )


def _specs(spec: Spec, found: list[Marker]) -> list[Spec]:
    return [spec, *(marker.spec for marker in found)]


def _markers(sink: Path | None, kept: Path) -> list[Marker]:
    try:
        return markers_in(sink, kept)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. Or move that marker aside: then its batch is not taken over, and its "
            f"records are read again by the pipeline's next run. {READ_AGAIN}",
            next=AGAIN,
        ) from error


# Keeps D3.
def _known(
    ledger: Ledger, spec: Spec, address: str, kept: Path, found: list[Marker]
) -> Adopted | None:
    """The answer if the ledger already has the pipeline and all these batches.

    None: it has no such pipeline. TerminalError: it lacks some of the batches, or the sink belongs
    to another pipeline.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        if pipeline is None:
            owner = pipelines.owner(connection, address, str(kept))
            if owner is None:
                return None
            raise TerminalError(
                f"the sink {address} belongs to pipeline {owner.name!r} in this ledger; "
                f"{spec.name!r} cannot take over its batches",
                next=NO_STEP,
            )
        unknown = owned.not_of(connection, pipeline.pipeline_id, spec.name, found)
    if not unknown:
        return Adopted(pipeline=spec.name, found=True, batches=len(found))
    raise TerminalError(
        f"this ledger has {spec.name}, and not {_named(unknown)} whose markers lie in {kept}: it "
        "was restored to an earlier time, or they ran with another ledger. Make an empty database "
        "the ledger (SEMEL_LEDGER_DSN), migrate it, and adopt each pipeline",
        next="semel migrate",
    )


def _named(found: Iterable[Marker]) -> str:
    return held.batches_text([marker.batch_id for marker in found])


# Keeps D2.
def _check(spec: Spec, kept: Path, found: list[Marker]) -> None:
    """Prove that all markers are of this pipeline, and consistent."""
    if foreign := [marker for marker in found if marker.pipeline != spec.name]:
        raise TerminalError(
            f"{kept} holds {_named(foreign)} of pipeline {foreign[0].pipeline!r}; "
            f"{spec.name!r} cannot take them over: give the pipeline its old name",
            next=f"semel adopt {foreign[0].pipeline}",
        )
    for one, other in pairwise(found):
        if one.commit_seq == other.commit_seq or one.bucket_seconds != other.bucket_seconds:
            raise CorruptionError(
                f"the markers {one.path} and {other.path} are of two ledgers: their places in the "
                "order of commits, or their buckets, do not go together; move those aside that do "
                f"not belong here. {READ_AGAIN}",
                next=AGAIN,
            )
    claims = sorted(
        (c.source_partition_id, c.start, c.end, m.path) for m in found for c in m.claims
    )
    for (part, _, end, path), (other_part, start, _, other) in pairwise(claims):
        if part == other_part and start < end:
            raise CorruptionError(
                f"the markers {path} and {other} claim the same {spec.source.unit} of source "
                f"partition {part}; move aside the one that does not belong here. {READ_AGAIN}",
                next=AGAIN,
            )
    if found:
        identity.check(identity.to_text(identity.identity_of(found[-1].spec)), spec)


def _numbers(other: Spec, log: Log) -> tuple[int, int]:
    """The highest batch and source partition numbers in another pipeline's sink."""
    sink, kept = other.sink_path(), layout.of(other)
    batch_max = traces.look(sink, kept, [other]).batch_max
    try:
        found = markers_in(sink, kept)
        return _batch_max(batch_max, found), _partition_max(found)
    except CorruptionError as error:
        log(f"the numbers of {other.name} are not left free as a whole: {error}")
        return batch_max, 0


def _batch_max(named: int, found: list[Marker], landed: Iterable[int] = ()) -> int:
    """The highest batch number. No file's name shows that of a replay into a table."""
    return max([named, *landed, *(marker.made_by for marker in found)])


def _partition_max(found: list[Marker]) -> int:
    return max((c.source_partition_id for m in found for c in m.claims), default=0)


def _pass_numbers(
    ledger: Ledger,
    spec: Spec,
    batches: list[History],
    batch_max: int,
    others: list[tuple[int, int]],
) -> datetime:
    """Move the sequences past all numbers. Returns the ledger's time.

    TerminalError: this ledger gave some of them to others.
    """
    numbers = [(batch_max, _partition_max([batch.newest for batch in batches])), *others]
    with ledger.transaction() as connection:
        change(connection, "adopt", "lock_numbers")
        # Keeps D5.
        taken = rows(
            connection,
            "adopt",
            "taken",
            batches=[marker.made_by for batch in batches for marker in batch.outputs],
            partitions=list(
                {c.source_partition_id for b in batches for m in b.outputs for c in m.claims}
            ),
        )
        if taken:
            shown = ", ".join(f"{r['what']} {r['number']} to {r['name']!r}" for r in taken[:5])
            raise TerminalError(
                f"this ledger gave {len(taken)} numbers of {spec.name}'s to others ({shown}), which "
                f"ran before it was adopted, and two cannot share one. Give {spec.name} a ledger "
                "of its own: make an empty database its ledger (SEMEL_LEDGER_DSN), migrate it, and "
                "adopt it there",
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


def catalog_of(
    spec: Spec,
    batches: list[History],
    partitions: list[Adoptee],
    now: datetime,
    folder: Path,
    keep: Callable[[Marker, list[ShardIds]], None] = lambda marker, ids: None,
) -> Taught:
    """Read the ids of all batches within their horizon. `keep` is called with those of each."""
    horizon = int(spec.dedup.horizon.total_seconds())
    of = {part.known.source_partition_id: part for part in partitions}
    made = runs.OldRuns(folder, horizon)
    expired, gone = [], []
    for batch in batches:
        marker = batch.first
        if not marker.spec.record_id:
            continue
        # Keeps C8.
        if expires_at(marker) <= now:
            expired.append(marker)
            continue
        try:
            ids = ids_of(batch, [of[c.source_partition_id].here(c) for c in batch.claims])
        except IdsLostError as error:
            gone.append((marker, f"batch {marker.batch_id}: {error}"))
            continue
        keep(marker, ids)
        buckets = union(part.buckets for part in ids)
        end = buckets and buckets.end
        last = last_time(marker.batch_time, end, marker.bucket_seconds)
        made.add(marker.commit_seq, last + marker.spec.dedup.horizon, ids)
    # Keeps D8.
    lacking = [marker.buckets for marker in (*expired, *(marker for marker, _ in gone))]
    return Taught(
        runs=made.finish(),
        forgotten_buckets=union(lacking) or Buckets(),
        expired=len(expired),
        gone=tuple(marker for marker, _ in gone),
        why="; ".join(why for _, why in gone[:3]),
    )


def _exact_from(spec: Spec, found: list[Marker]) -> int | None:
    """From where on the pipeline was exactly once, as all markers say that were written since."""
    if not found:
        return spec.exact_from
    return max(marker.exact_from or 0 for marker in found) or None


def expires_at(marker: Marker) -> datetime:
    """When the ids of a batch expire, by what its marker says."""
    end = marker.buckets and marker.buckets.end
    last = last_time(marker.batch_time, end, marker.bucket_seconds)
    return last + marker.spec.dedup.horizon


# Keeps D4.
def _write(
    ledger: Ledger,
    spec: Spec,
    address: str,
    kept: Path,
    batches: list[History],
    partitions: list[Adoptee],
    catalog: Taught,
    of_ledger: str | None,
) -> None:
    last = batches[-1].first if batches else None
    newest = max((batch.newest for batch in batches), key=lambda m: m.committed_at, default=None)
    with ledger.transaction() as connection:
        made = row(
            connection,
            "adopt",
            "insert_pipeline",
            name=spec.name,
            sink_address=address,
            archive_path=str(kept),
            identity=identity.to_text(identity.identity_of(spec)),
            shards=spec.dedup.shards,
            bucket_seconds=last.bucket_seconds if last else spec.bucket_seconds,
            commit_seq=last.commit_seq if last else 0,
            batch_time_last=max((batch.first.batch_time for batch in batches), default=None),
            forgotten=catalog.forgotten_buckets.to_ledger(),
            sink_schema=json.dumps(newest.sink_columns) if newest else None,
            exact_from=_exact_from(spec, [batch.newest for batch in batches]),
            created_at=of_ledger,
            # Keeps W3.
            covered=TimeSet.of(
                r for batch in batches for r in batch.first.covers.ranges
            ).to_ledger(),
            event_time=_complete_to(spec, batches),
        )
        if made is None:
            raise RetryableError(
                f"pipeline {spec.name} was made by another process meanwhile; run this again to "
                "see what became of it"
            )
        pipeline_id = made["pipeline_id"]
        write_partitions(connection, pipeline_id, partitions)
        write_batches(connection, pipeline_id, batches, open_source(spec).split_size)
        catalog.write(connection, pipeline_id, spec.dedup.horizon)
        if event_time.is_timed(spec) and spec.source.streams:
            event_time.advance_streams(connection, pipeline_id, None)
        failpoints.point("adopt.before_adopt")
    failpoints.point("adopt.after_adopt")


# Keeps W3.
def _complete_to(spec: Spec, batches: list[History]) -> datetime | None:
    """Up to where windows were complete, by the markers of all batches."""
    if not event_time.is_one_stream(spec):
        return None
    ends = (m.complete_to for batch in batches for m in (batch.first, batch.newest))
    return max(filter(None, ends), default=None)


def told(answer: Adopted) -> str:
    """What was taken over, what was lost, and what nobody needs any more."""
    name, batches = answer.pipeline, count(answer.batches, "batch", "batches")
    if answer.found:
        return f"nothing to do: this ledger has {name} with the {batches} that have a marker"
    parts = count(answer.source_partitions, "source partition")
    if answer.replays:
        batches += f" ({count(answer.replays, 'replay')} of them)"
    lines = [
        f"adopted {name}: {batches}, {parts} ({answer.files_found:,} found), "
        f"{count(answer.ids, 'id')} in {count(answer.id_runs, 'id run')}"
    ]
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"the ids of {expired} are past their horizon, and were left out")
    if answer.batches_forgotten:
        shown = ", ".join(map(str, answer.batches_forgotten))
        lines.append(
            f"FORGOTTEN: the ids of batch {shown}: what comes again of them is new, or in scope "
            "bucket late"
        )
    for first, last in answer.commits_lost:
        lines.append(f"commits {first} to {last} never had a marker: their records are read again")
    if answer.strays:
        lines.append(
            f"left over: {count(len(answer.strays), 'file')} of batches that never had a marker "
            f"({named(answer.strays)}): move them away, their records are written again"
        )
    if answer.staging:
        lines.append(
            f"left over: {count(len(answer.staging), 'staging folder')} "
            f"({named(answer.staging)}): once no old process runs, remove them"
        )
    return "\n".join([*lines, f"next: semel run {name}"])
