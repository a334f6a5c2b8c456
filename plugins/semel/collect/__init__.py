"""collect: forget what no promise needs any more. It runs on its own clock, beside everything else.

How it works, each in a transaction of its own:
1. forget the buckets of id runs whose horizon is over (scope bucket), then retire these runs;
2. merge small id runs, so that a classification asks few filters;
3. delete payloads that nobody can ask for, and drop segments that hold nothing else;
4. remove staged files of attempts that are proven lost, or whose batch is finalized;
5. finalize committed batches whose runs are gone;
6. remove the files of outputs that replays replaced some time ago;
7. move source files that are finalized, where `source.after_finalize` says so, and remove segments
   of a spool, once `source.keep_spool` is over.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from semel import failpoints, settings
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
from semel.collect import merge
from semel.collect.merge import merge_candidates
from semel.errors import CorruptionError, RetryableError, SourceError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger, pipelines
from semel.model.batch import Log, Pipeline
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source, open_stored
from semel.pipeline.spec import Spec
from semel.sources import Partition
from semel.storage import remove_folder

MERGES_PER_COLLECT_MAX = 64
"""Rounds of merging in one collect: each round shrinks the number of live runs."""

_ATTEMPT = re.compile(r"b(\d{8,})/f(\d{4,})")


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What one collect of a pipeline did."""

    pipeline: str
    batches_finalized: int
    damaged: tuple[str, ...]
    """Why committed batches cannot be finalized, replaced ones removed, or source files moved: each
    needs a person."""
    runs_retired: int
    runs_merged: int
    payloads_deleted: int
    segments_dropped: int
    folders_removed: int
    bytes_freed: int
    replaced_removed: int
    files_moved: int = 0
    spooled_removed: int = 0
    """Segments of a spool, once source.keep_spool was over."""


def collect(ledger: Ledger, spec: Spec, log: Log = print) -> Collected | None:
    """Collect one pipeline's garbage. None when it never planned a batch.

    Two at once are safe; what is still in use is left for the next time.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        return None
    pipeline_id, kept = pipeline.pipeline_id, Path(pipeline.archive_path)
    retired = _retire(ledger, spec, pipeline)
    merged = _merge(ledger, spec, pipeline_id, log)
    deleted = delete_payload(ledger, pipeline_id)
    failpoints.point("collect.after_delete")
    dropped = _drop(ledger, pipeline_id, log)
    try:
        folders, freed = _remove_staged(ledger, pipeline_id, kept)
    except OSError as error:
        raise RetryableError(
            f"collect of {spec.name}: {error}; fix the file system below {kept}, then run this "
            "again"
        ) from error
    finished, damaged = _finish(ledger, spec, pipeline_id, log)
    replaced, left, more = _remove_replaced(ledger, spec, pipeline)
    put, stayed = _put_away(ledger, spec, pipeline_id)
    return Collected(
        pipeline=spec.name,
        batches_finalized=finished,
        damaged=(*damaged, *left, *stayed),
        runs_retired=retired,
        runs_merged=merged,
        payloads_deleted=deleted,
        segments_dropped=dropped,
        folders_removed=folders,
        bytes_freed=freed + more,
        replaced_removed=replaced,
        files_moved=0 if spec.source.receives else put,
        spooled_removed=put if spec.source.receives else 0,
    )


# Keeps G8.
def _finish(
    ledger: Ledger, spec: Spec, pipeline_id: int, log: Log
) -> tuple[int, tuple[str, ...]]:
    """Finalize what was left. Returns how many batches were, and why others cannot be.

    RetryableError, once all were tried: one of them may be finalized later.
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
            log(f"batch {batch_id} was left for the next time: {error}")
            later = error
        else:
            finished += 1
            log(f"finalized batch {batch_id}: it had committed, and its run did not come back")
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
    """Merge until each shard has few live runs. Returns how many runs went into others."""
    merged = 0
    cache = FilterCache(settings.cache_dir())
    horizon = int(spec.dedup.horizon.total_seconds())
    for _ in range(MERGES_PER_COLLECT_MAX):
        with ledger.transaction() as connection:
            live = snapshot(connection, pipeline_id).runs
        groups = merge_candidates(live, horizon_seconds=horizon)
        if not groups:
            break
        for group in groups:
            try:
                failpoints.point("collect.before_merge")
                merge.merge(ledger, cache, group)
                failpoints.point("collect.after_merge")
                merged += len(group)
            except (RetryableError, CorruptionError) as error:
                if isinstance(error, CorruptionError) and _all_live(ledger, pipeline_id, group):
                    raise
                log(f"a merge was left for the next time: {error}")
                return merged
    return merged


def _all_live(ledger: Ledger, pipeline_id: int, group: tuple[IdRun, ...]) -> bool:
    """Whether the runs that could not be read should be there: no other collect retired them."""
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
            log(f"a segment was left for the next time: {error}")
    return dropped


def _remove_staged(ledger: Ledger, pipeline_id: int, kept: Path) -> tuple[int, int]:
    """Remove folders of attempts that the ledger proves dead. Others', and unknown ones, stay."""
    removed = freed = 0
    staging = layout.staging(kept)
    # Not Path.glob: it fails where a finalize removes a batch's folder meanwhile.
    for name in sorted(glob("b*/f*", root_dir=staging)):
        folder, match = staging / name, _ATTEMPT.fullmatch(name)
        if match is None:
            continue
        batch_id, fence = int(match[1]), int(match[2])
        values = {"batch_id": batch_id, "pipeline_id": pipeline_id}
        for attempt in ledger.rows("collect", "attempt_ends", **values):
            # Keeps G6.
            over = attempt["status"] == "lost" or attempt["batch_status"] == "finalized"
            if attempt["fence"] == fence and over:
                failpoints.point("collect.before_remove")
                freed += remove_folder(folder)
                failpoints.point("collect.after_remove")
                removed += 1
        with suppress(OSError):  # Not empty, or gone: another attempt or collect was faster.
            folder.parent.rmdir()
    return removed, freed


# Keeps G9, Q5.
def _put_away(ledger: Ledger, spec: Spec, pipeline_id: int) -> tuple[int, tuple[str, ...]]:
    """Move or remove the parts of the source of which all is finalized or lost. Returns how many
    were, and why others were left.
    """
    if (kept := spec.source.retention) is None:
        return 0, ()
    source, moved, left = open_source(spec), 0, []
    values = {"pipeline_id": pipeline_id, "kept_seconds": kept.total_seconds()}
    for found in ledger.rows("collect", "accounted", **values):
        try:
            moved += source.archive_part(Partition(**found))
        except SourceError as error:
            left.append(str(error))
    return moved, tuple(left)


# Keeps RP7.
def _remove_replaced(
    ledger: Ledger, spec: Spec, pipeline: Pipeline
) -> tuple[int, tuple[str, ...], int]:
    """Remove the files of outputs that were replaced some time ago, but not their markers.

    Returns of how many batches they were removed, why others were left, and the bytes freed.
    """
    kept = Path(pipeline.archive_path)
    sink = Path(pipeline.sink_address) if spec.sink_path() else None
    values = {
        "pipeline_id": pipeline.pipeline_id,
        "keep_seconds": spec.limits.keep_replaced.total_seconds(),
    }
    removed, freed, left = 0, 0, []
    for found in ledger.rows("collect", "replaced", **values):
        old = layout.replaced(kept, found["root"], found["generation"])
        try:
            marker = read_marker(layout.marker(kept, found["root"]), sink)
            replaced = read_marker(old, sink)
            _check_replaced(replaced, marker)
            if replaced.spec.sink.in_files:
                there = open_stored(replaced.spec, spec, pipeline.sink_address)
                freed += there.remove_files(replaced)
        except (TerminalError, RetryableError) as error:
            left.append(f"the replaced files of batch {found['batch_id']} were left: {error}")
            continue
        failpoints.point("collect.before_removed")
        ledger.rows("collect", "files_removed", batch_id=found["batch_id"])
        failpoints.point("collect.after_removed")
        removed += 1
    return removed, tuple(left), freed


def _check_replaced(old: Marker, marker: Marker) -> None:
    """CorruptionError: a replaced output counts."""
    counts = {file.path for file in marker.of_kind(Kind.DATA)}
    files = old.of_kind(Kind.DATA) if old.spec.sink.in_files else ()
    if marker.generation <= old.generation or counts & {file.path for file in files}:
        raise CorruptionError(
            f"{marker.path} is of generation {marker.generation}, and lists what {old.path} lists, "
            "which was replaced; restore it from a backup"
        )
