"""What there is to take, and what is refused: all that a plan is made of. Changes nothing.

How it works:
1. list the source, outside any transaction;
2. read what the ledger knows of these files, and recognise each;
3. read what is unclaimed of them, and what is missing of files that are gone.
"""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from semel.batch import Batch, Pipeline
from semel.ledger import Ledger, partitions, row
from semel.sources import files
from semel.sources.cut import Spans, Wanted, gone, still_a_copy, want
from semel.sources.facts import Knowledge, Recognised, Window
from semel.sources.files import Listing, Refusal
from semel.sources.gather import gather
from semel.spec.pipeline import Spec


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a plan would be made of: all of it read from one `version` of the pipeline's ledger."""

    latest: Batch | None
    version: int
    orphans: list[int]
    wanted: list[Wanted]
    free: Spans
    holes: Spans
    """What is free before the end of what was read: its batch was abandoned, or is an orphan."""
    lost: Spans
    recognised: Recognised
    refusals: tuple[Refusal, ...]
    stored: list[Refusal]
    """What semel.refusal holds."""


def survey(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, request_key: str | None, window: Window
) -> Found:
    """What there is to take, and what is refused. Changes nothing; FileNotFoundError: look again.

    The version is read first: whatever changes after it shows under the lock. Without a request,
    what orphans have claimed is theirs.
    """
    listing = files.list_files(spec)
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline.pipeline_id)
        latest = latest_batch(connection, pipeline, request_key)
        silent = spec.limits.orphan_after.total_seconds()
        orphans = partitions.orphans(connection, pipeline.pipeline_id, request_key, silent)
        known = partitions.knowledge(ledger, connection, pipeline.pipeline_id, listing, orphans)
    recognised = gather(spec, listing, known, window)
    wanted, refused = want(spec, recognised, window)
    ends = {w.known.source_partition_id: w.end for w in wanted if w.known and w.end}
    closing, _ = partitions.closing(wanted, recognised.facts.values(), recognised.lost)
    read = {w.known.source_partition_id: w.known.reached for w in wanted if w.known}
    with ledger.transaction() as connection:
        orphans = partitions.holders(connection, orphans, ends)
        free = partitions.free_ranges(connection, ends, orphans)
        holes = partitions.free_ranges(connection, read, orphans)
        lost = partitions.free_ranges(connection, closing)
        before, spans = partitions.unaccounted(connection, pipeline.pipeline_id)
    refused += _gone(spec, known, recognised, lost)
    still_gone = [k for k in before if k.source_partition_id not in read]
    refused += [gone(spec, k, spans[k.source_partition_id], None) for k in still_gone]
    kept = _kept(spec, known, listing, recognised)
    return Found(
        latest=latest,
        version=version,
        orphans=orphans,
        wanted=wanted,
        free=free,
        holes=holes,
        lost={partition: lost.get(partition, []) for partition in closing},
        recognised=recognised,
        refusals=(*listing.refused, *refused, *kept),
        stored=known.refused,
    )


def _gone(
    spec: Spec,
    known: Knowledge,
    recognised: Recognised,
    lost: Spans,
) -> list[Refusal]:
    """Records that were seen, and whose file is found to be gone now."""
    open_before = {k.source_partition_id: k for k in known.partitions}
    paths = {item.partition.source_partition_id: item.path for item in recognised.lost}
    return [
        gone(spec, open_before[partition], spans, paths.get(partition))
        for partition, spans in lost.items()
    ]


def _kept(
    spec: Spec, known: Knowledge, listing: Listing, recognised: Recognised
) -> list[Refusal]:
    """Refusals of files that are of another interval, and that nobody looked at now."""
    asked = {*recognised.facts, *recognised.linked, *(r.path for r in listing.refused)}
    stored = {r.path: r for r in known.refused}
    copies = known.copies
    kept = []
    for file in known.unsettled:
        if file.path in asked:
            continue
        if file.path in stored:
            kept.append(replace(stored[file.path], when=file.when))
        elif (file.inode, file.size) in copies:  # It was renamed.
            kept.append(still_a_copy(spec, file, copies[file.inode, file.size]))
    return kept


def same_refusals(found: Found) -> bool:
    """Whether semel.refusal is what a plan would write."""
    return {replace(r, when=None) for r in found.refusals} == set(found.stored)


def latest_batch(connection: sa.Connection, pipeline: Pipeline, request_key: str) -> Batch | None:
    found = row(
        connection,
        "plan",
        "latest_batch",
        pipeline_id=pipeline.pipeline_id,
        request_key=request_key,
    )
    return Batch.from_row(found) if found else None


