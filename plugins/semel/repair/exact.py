"""exact: make an at-least-once pipeline exactly once.

How it works:
1. finalize all committed batches;
2. read the ids of each batch within its horizon, as adopt does, and write them to ids files where
   an exactly-once batch would have them;
3. in one transaction, under the pipeline's lock: prove that no other batch has committed, write the
   ids to the catalog, and end the attempts that began without them. Then set the first commit that
   is exactly once.

If a process dies before that transaction ends, only valid ids files remain, and the same call
continues.
"""

import io
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from semel import failpoints, settings, storage
from semel.archive import layout, ownership, write_marker
from semel.archive.marker import Marker, markers_in
from semel.declare.durations import format_duration
from semel.declare.wording import batch_list, count
from semel.errors import AGAIN, CorruptionError, RetryableError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger, change, pipelines, row
from semel.model.batch import Log, Pipeline
from semel.model.manifest import Kind
from semel.pipeline import identity
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.repair.adopt import RecoveredIds, expires_at, recover_ids
from semel.repair.adopt.history import histories
from semel.repair.adopt.ids import ShardIds
from semel.repair.adopt.partitions import partitions_of
from semel.stage.ids_file import Shard, write_shard
from semel.storage import ArchivePath, make_folder, sync_folder, write_new


@dataclass(frozen=True, kw_only=True)
class ExactSince:
    """The first commit that is exactly once. `found`: it was set before, and nothing was changed.

    `ids`: the number of ids that this call added to the catalog, from `batches`.
    """

    pipeline: str
    found: bool
    exact_from: int
    ids: int = 0
    batches: int = 0
    batches_expired: int = 0


def exact(ledger: Ledger, spec: Spec, *, log: Log = print) -> ExactSince:
    """Add the ids of each batch within its horizon to the catalog, and make the pipeline exactly
    once from the next commit on. The same call again changes nothing.

    Raises TerminalError if the declaration is at least once, finalize of a committed batch fails,
    neither files nor source have a batch's ids, or a marker is of an unknown batch.
    Raises RetryableError if a batch commits meanwhile.
    """
    try:
        return _exact(ledger, spec, log)
    except OSError as error:
        raise RetryableError(
            f"exact of {spec.name}: {error}. The pipeline is still at_least_once. Fix this fault, "
            "then run this again"
        ) from error


def _exact(ledger: Ledger, spec: Spec, log: Log) -> ExactSince:
    if spec.by_position:
        why = (
            "its declaration has guarantee: at_least_once. Remove that line first"
            if spec.record_id
            else "it lacks a record_id, so it reads each position exactly once already"
        )
        raise TerminalError(f"pipeline {spec.name}: {why}", next=f"semel validate {spec.name}")
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        now = row(connection, "adopt", "now")["now"]
    if pipeline is None:
        raise StateError(
            f"pipeline {spec.name} has no batch yet. Run it: its first batch will be exactly once",
            next=f"semel run {spec.name}",
        )
    identity.check(pipeline.identity, spec)
    if pipeline.exact_from is not None:
        return ExactSince(pipeline=spec.name, found=True, exact_from=pipeline.exact_from)
    # With the new declaration no run finalizes these batches.
    values = {"pipeline_id": pipeline.pipeline_id, "orphan_seconds": 0}
    for batch in ledger.rows("collect", "unfinished", **values):
        finalize(ledger, spec, batch["batch_id"])
        log(f"finalized batch {batch['batch_id']}, which had committed")
    # The declaration may name another sink already.
    sink = Path(pipeline.sink_address) if spec.sink_path() else None
    markers = markers_in(sink, storage.at(pipeline.archive_path))
    with ledger.transaction() as connection:
        _refuse_unknown(connection, pipeline, markers)
    batches = histories(markers)
    partitions = partitions_of(open_source(spec), markers)
    log(f"reads the ids of {count(len(markers), 'batch', 'batches')}")
    with tempfile.TemporaryDirectory(prefix="exact-", dir=settings.cache_dir()) as spills:
        keep = partial(_write_ids, spec)
        catalog = recover_ids(spec, batches, partitions, now, Path(spills), keep)
        if catalog.lost_batches:
            raise _lost_ids_error(spec, catalog)
        if (ids := storage.at(pipeline.archive_path) / Kind.IDS).is_dir():
            sync_folder(ids)  # Includes files that a twin wrote just now.
        failpoints.point("exact.before_lock")
        with ledger.transaction() as connection:
            switched = _switch(connection, spec, pipeline, markers, catalog)
            failpoints.point("exact.before_exact")
    failpoints.point("exact.after_exact")
    if switched is None:
        return _exact(ledger, spec, log)  # A twin was faster.
    return ExactSince(
        pipeline=spec.name,
        found=False,
        exact_from=switched,
        ids=catalog.ids,
        batches=len(markers) - catalog.expired,
        batches_expired=catalog.expired,
    )


def _write_ids(spec: Spec, marker: Marker, ids: list[ShardIds]) -> None:
    """Write the ids files of a batch and then their list, if an exactly-once batch would have them.

    `spec`: the present declaration. Raises CorruptionError if an existing file differs.
    """
    has_ids_files = spec.keeps_ids or marker.spec.exactly_once().keeps_ids
    if not has_ids_files or not marker.counts.survivors:
        return
    list_path = layout.ids_list(marker.archive, marker.batch_id)
    make_folder(list_path.parent)
    files = []
    for part in ids:
        path = layout.batch_file(marker.archive, Kind.IDS, marker.batch_id, part.shard)
        shard = Shard(shard=part.shard, shards=marker.spec.dedup.shards, buckets=part.buckets)
        file = io.BytesIO()
        write_shard(file, shard, part.h1, part.h2)
        _write(path, file.getvalue())
        files.append(write_marker.marker_entry(path, marker.archive, Kind.IDS, len(part.h1)))
    plain = {"files": files, "ids": sum(len(part.h1) for part in ids)}
    _write(list_path, json.dumps(plain, indent=1, sort_keys=True).encode() + b"\n")


def _write(path: ArchivePath, data: bytes) -> None:
    with suppress(FileExistsError):  # An earlier try or a twin has written it.
        write_new(path, data)
    if path.read_bytes() != data:
        raise CorruptionError(
            f"{path}: this file differs from the ids that exact writes there. Nothing was changed. "
            "Move it out of the archive",
            next=AGAIN,
        )


def _lost_ids_error(spec: Spec, catalog: RecoveredIds) -> TerminalError:
    """The error for batches whose ids are lost, so that the pipeline stays at least once."""
    numbers = [marker.batch_id for marker in catalog.lost_batches]
    until = max(expires_at(marker) for marker in catalog.lost_batches)
    return TerminalError(
        f"{spec.name}: semel cannot recover the ids of {batch_list(numbers)} ({catalog.why}). The "
        "pipeline stays at_least_once. Restore output or source. Or run it at_least_once until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC, when their horizon ends. Then exact still needs the "
        "output or source of later batches for dedup.horizon, "
        f"{format_duration(spec.dedup.horizon)}",
        next=AGAIN,
    )


def _switch(
    connection: sa.Connection,
    spec: Spec,
    pipeline: Pipeline,
    markers: list[Marker],
    catalog: RecoveredIds,
) -> int | None:
    """Set the first commit that is exactly once. Returns None if another process has set it."""
    # Keeps D11.
    pipelines.lock(connection, pipeline)
    pipeline_id = pipeline.pipeline_id
    switched = row(connection, "exact", "switch", pipeline_id=pipeline_id)
    if switched is None:
        return None
    _refuse_unknown(connection, pipeline, markers)
    batches = [marker.batch_id for marker in markers]
    unread = row(connection, "exact", "unread", pipeline_id=pipeline_id, read=batches)
    if unread is not None:
        raise RetryableError(
            f"{spec.name}: batch {unread['batch_id']} has committed, but exact did not find its "
            f"marker in {layout.markers(storage.at(pipeline.archive_path))}. The pipeline stays "
            "at_least_once. If the marker is lost, restore it. Run this again"
        )
    catalog.write(connection, pipeline_id, spec.dedup.horizon)
    # Keeps D12.
    reason = f"{spec.name} is exactly once from commit {switched['exact_from']} on"
    change(connection, "exact", "lose_attempts", pipeline_id=pipeline_id, reason=reason)
    return switched["exact_from"]


def _refuse_unknown(
    connection: sa.Connection, pipeline: Pipeline, markers: list[Marker]
) -> None:
    unknown = ownership.unknown_markers(connection, pipeline.pipeline_id, pipeline.name, markers)
    ownership.refuse_unknown(pipeline, [marker.batch_id for marker in unknown])


def describe(answer: ExactSince) -> str:
    """Describe from which commit on the pipeline is exactly once, and the ids that were added."""
    name = answer.pipeline
    since = f"{name} is exactly once from commit {answer.exact_from} on"
    if answer.found:
        return f"nothing to do: {since}"
    lines = [since]
    if answer.ids:
        ids = f"{count(answer.ids, 'id')} of {count(answer.batches, 'batch', 'batches')}"
        lines[0] += f": the catalog has {ids}, and semel drops their repeats"
    if answer.exact_from > 1:
        lines.append(f"the output may have repeats from before commit {answer.exact_from}")
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"skipped the ids of {expired} past the horizon")
    return "\n".join([*lines, f"next: semel run {name}"])
