"""collect: remove ids and files that no guarantee needs. It may run in parallel with all else.

How it works, each step in a separate transaction:
1. forget the buckets of id runs whose horizon is over (scope bucket), then retire these runs;
2. merge small id runs, so that a classification queries few filters;
3. delete payloads that no attempt can query, and drop empty segments;
4. remove staged files of attempts that are proven lost, or whose batch is finalized;
5. finalize committed batches whose runs no longer exist;
6. remove the files of outputs that replays replaced some time ago;
7. move finalized source files, if `source.after_finalize` is declared, and remove segments of a
   spool after `source.keep_spool`;
8. pack the markers of old batches, if `limits.keep_history` is declared.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from semel import failpoints, settings, storage
from semel.archive import layout
from semel.archive.marker import Marker, read_marker
from semel.catalog.payload import FilterCache
from semel.catalog.runs import (
    IdRun,
    delete_payload,
    drop_segment,
    droppable_segments,
    forget_expired,
    retire_expired,
    snapshot,
)
from semel.collect import merge, pack
from semel.collect.merge import merge_candidates
from semel.errors import CorruptionError, RetryableError, SemelError, SourceError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger, pipelines
from semel.model.batch import Log, Pipeline
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source, open_stored
from semel.pipeline.spec import Spec
from semel.sources import Partition
from semel.storage import ArchivePath, remove_folder

MERGES_PER_COLLECT_MAX = 64
"""Rounds of merging in one collect: each round reduces the number of live runs."""

MERGES_AT_ONCE = min(4, os.cpu_count() or 1)
"""Merges that run at the same time, each with two connections and 100 MiB of ids."""

_ATTEMPT = re.compile(r"b(\d{8,})/f(\d{4,})")


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The result of one collect of a pipeline."""

    pipeline: str
    batches_finalized: int
    damaged: tuple[str, ...]
    """Errors that a person must solve: committed batches that cannot be finalized, replaced files
    that cannot be removed, source files that cannot be moved."""
    runs_retired: int
    runs_merged: int
    payloads_deleted: int
    segments_dropped: int
    folders_removed: int
    bytes_freed: int
    replaced_removed: int
    files_moved: int = 0
    spooled_removed: int = 0
    """Segments removed from a spool after source.keep_spool."""
    batches_packed: int = 0
    """Old batches whose markers went into packs, after limits.keep_history."""


def collect(ledger: Ledger, spec: Spec, log: Log = print) -> Collected | None:
    """Collect one pipeline's garbage. Returns None if it has never planned a batch.

    Two collects may run at the same time. Files in use stay for the next collect.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        return None
    pipeline_id, archive = pipeline.pipeline_id, storage.at(pipeline.archive_path)
    retired = _retire(ledger, spec, pipeline)
    merged = _merge(ledger, spec, pipeline_id, log)
    deleted = delete_payload(ledger, pipeline_id)
    failpoints.point("collect.after_delete")
    dropped = _drop(ledger, pipeline_id, log)
    try:
        folders, freed = _remove_staged(ledger, pipeline_id, archive)
    except OSError as error:
        raise RetryableError(
            f"collect of {spec.name}: {error}. {storage.remedy(archive)}, then run this again"
        ) from error
    finished, damaged = _finish(ledger, spec, pipeline_id, log)
    replaced, stuck_outputs, replaced_bytes = _remove_replaced(ledger, spec, pipeline)
    archived, stuck_parts = _archive_parts(ledger, spec, pipeline_id)
    packed, damaged_packs = pack.pack_history(ledger, spec, pipeline)
    return Collected(
        pipeline=spec.name,
        batches_finalized=finished,
        damaged=(*damaged, *stuck_outputs, *stuck_parts, *damaged_packs),
        runs_retired=retired,
        runs_merged=merged,
        payloads_deleted=deleted,
        segments_dropped=dropped,
        folders_removed=folders,
        bytes_freed=freed + replaced_bytes,
        replaced_removed=replaced,
        files_moved=0 if spec.source.receives else archived,
        spooled_removed=archived if spec.source.receives else 0,
        batches_packed=packed,
    )


# Keeps G8.
def _finish(
    ledger: Ledger, spec: Spec, pipeline_id: int, log: Log
) -> tuple[int, tuple[str, ...]]:
    """Finalize committed batches without a run. Returns their number, and the errors of others.

    Tries all, then raises RetryableError if one may succeed later.
    """
    orphan = spec.limits.orphan_after.total_seconds()
    values = {"pipeline_id": pipeline_id, "orphan_seconds": orphan}
    finished, damaged, later = 0, [], None
    for batch in ledger.rows("collect", "unfinished", **values):
        batch_id = batch["batch_id"]
        try:
            finalize(ledger, spec, batch_id)
        except TerminalError as error:
            damaged.append(str(error))
        except RetryableError as error:
            log(f"batch {batch_id} waits for the next collect: {error}")
            later = error
        else:
            finished += 1
            log(f"finalized batch {batch_id}: it was committed, but its run never finalized it")
    if later:
        raise later
    return finished, tuple(damaged)


def _retire(ledger: Ledger, spec: Spec, pipeline: Pipeline) -> int:
    if spec.dedup.scope == "bucket":
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            forget_expired(connection, pipeline.pipeline_id)
            failpoints.point("collect.before_floor")
        failpoints.point("collect.after_floor")
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        retired = retire_expired(connection, pipeline.pipeline_id)
        failpoints.point("collect.before_retire")
    failpoints.point("collect.after_retire")
    return retired


def _merge(ledger: Ledger, spec: Spec, pipeline_id: int, log: Log) -> int:
    """Merge until each shard has few live runs. Returns the number of merged runs."""
    merged = 0
    cache = FilterCache(settings.cache_dir())
    horizon = int(spec.dedup.horizon.total_seconds())
    for _ in range(MERGES_PER_COLLECT_MAX):
        with ledger.transaction() as connection:
            live = snapshot(connection, pipeline_id).runs
        groups = merge_candidates(live, horizon_seconds=horizon)
        if not groups:
            break
        done, failed = _merge_groups(ledger, cache, groups)
        merged += done
        for group, error in failed:
            if isinstance(error, CorruptionError) and _all_live(ledger, pipeline_id, group):
                raise error
            log(f"a merge waits for the next collect: {error}")
        if failed:
            break
    return merged


def _merge_groups(
    ledger: Ledger, cache: FilterCache, groups: list[tuple[IdRun, ...]]
) -> tuple[int, list[tuple[tuple[IdRun, ...], SemelError]]]:
    """Merge groups that have no run in common, MERGES_AT_ONCE at a time, until one fails.

    Returns the number of merged runs, and the groups that failed.
    """
    waiting = iter(groups)
    failed: list[tuple[tuple[IdRun, ...], SemelError]] = []

    def merge_waiting() -> int:
        merged = 0
        try:
            for group in waiting:
                failpoints.point("collect.before_merge")
                merge.merge(ledger, cache, group)
                failpoints.point("collect.after_merge")
                merged += len(group)
        except (RetryableError, CorruptionError) as error:
            failed.append((group, error))
        finally:
            for _ in waiting:  # After an error or an interrupt no other thread begins another.
                pass
        return merged

    more = min(MERGES_AT_ONCE, len(groups)) - 1
    with ThreadPoolExecutor(MERGES_AT_ONCE) as pool:
        others = [pool.submit(merge_waiting) for _ in range(more)]
        return merge_waiting() + sum(other.result() for other in others), failed


def _all_live(ledger: Ledger, pipeline_id: int, group: tuple[IdRun, ...]) -> bool:
    """Whether all runs of a group are still live, so that a failed read means damage."""
    with ledger.transaction() as connection:
        live = {run.id_run_id for run in snapshot(connection, pipeline_id).runs}
    return all(run.id_run_id in live for run in group)


def _drop(ledger: Ledger, pipeline_id: int, log: Log) -> int:
    dropped = 0
    with ledger.transaction() as connection:
        segments = droppable_segments(connection, pipeline_id)
    for segment in segments:
        try:
            failpoints.point("collect.before_drop")
            drop_segment(ledger, pipeline_id, segment)
            failpoints.point("collect.after_drop")
            dropped += 1
        except RetryableError as error:
            log(f"a segment waits for the next collect: {error}")
    return dropped


def _remove_staged(ledger: Ledger, pipeline_id: int, archive: ArchivePath) -> tuple[int, int]:
    """Remove folders of attempts that the ledger proves dead. All other folders stay. Returns the
    numbers of folders and bytes.
    """
    removed = freed = 0
    staging = layout.staging(archive)
    for name in sorted(storage.nested_names(staging)):
        folder, match = staging / name, _ATTEMPT.fullmatch(name)
        if match is None:
            continue
        batch_id, fence = int(match[1]), int(match[2])
        values = {"batch_id": batch_id, "pipeline_id": pipeline_id}
        for attempt in ledger.rows("collect", "attempt_ends", **values):
            # Keeps G6, AR4.
            over = attempt["status"] == "lost" or attempt["batch_status"] == "finalized"
            if attempt["fence"] == fence and over:
                failpoints.point("collect.before_remove")
                freed += remove_folder(folder)
                failpoints.point("collect.after_remove")
                removed += 1
        storage.remove_empty(folder.parent)
    return removed, freed


# Keeps G9, Q5.
def _archive_parts(ledger: Ledger, spec: Spec, pipeline_id: int) -> tuple[int, tuple[str, ...]]:
    """Move or remove parts of the source that are entirely finalized or lost. Returns their number,
    and the errors of others.
    """
    if (keep := spec.source.retention) is None:
        return 0, ()
    source, moved, errors = open_source(spec), 0, []
    values = {"pipeline_id": pipeline_id, "kept_seconds": keep.total_seconds()}
    for partition in ledger.rows("collect", "accounted", **values):
        try:
            moved += source.archive_part(Partition(**partition))
        except SourceError as error:
            errors.append(str(error))
    return moved, tuple(errors)


# Keeps RP7.
def _remove_replaced(
    ledger: Ledger, spec: Spec, pipeline: Pipeline
) -> tuple[int, tuple[str, ...], int]:
    """Remove the files of outputs that were replaced some time ago, but not their markers.

    Returns the number of batches, the errors of others, and the freed bytes.
    """
    archive = storage.at(pipeline.archive_path)
    sink = Path(pipeline.sink_address) if spec.sink_path() else None
    values = {
        "pipeline_id": pipeline.pipeline_id,
        "keep_seconds": spec.limits.keep_replaced.total_seconds(),
    }
    removed, freed, errors = 0, 0, []
    for batch in ledger.rows("collect", "replaced", **values):
        old = layout.replaced_marker(archive, batch["root"], batch["generation"])
        try:
            marker = read_marker(layout.marker(archive, batch["root"]), sink)
            replaced = read_marker(old, sink)
            _check_replaced(replaced, marker)
            if replaced.spec.sink.in_files:
                stored_sink = open_stored(replaced.spec, spec, pipeline.sink_address)
                freed += stored_sink.remove_files(replaced)
        except (TerminalError, RetryableError) as error:
            errors.append(f"cannot remove the replaced files of batch {batch['batch_id']}: {error}")
            continue
        failpoints.point("collect.before_removed")
        ledger.rows("collect", "files_removed", batch_id=batch["batch_id"])
        failpoints.point("collect.after_removed")
        removed += 1
    return removed, tuple(errors), freed


def _check_replaced(old: Marker, marker: Marker) -> None:
    """Raises CorruptionError if the current marker still lists a replaced output."""
    counts = {file.path for file in marker.of_kind(Kind.DATA)}
    files = old.of_kind(Kind.DATA) if old.spec.sink.in_files else ()
    if marker.generation <= old.generation or counts & {file.path for file in files}:
        raise CorruptionError(
            f"{marker.path} is of generation {marker.generation} and lists files of {old.path}, "
            "which was replaced. Nothing was removed. Restore the marker from a backup"
        )
