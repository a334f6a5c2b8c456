"""look, the first step of plan: what there is to take, and what is refused. Changes nothing.

How it works:
1. list the source, outside any transaction;
2. read what the ledger knows of these files, and recognise each;
3. read what is unclaimed of them, and what is missing of files that are gone.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from semel.batch import Batch, Pipeline
from semel.ledger import Ledger, partitions
from semel.sources import files
from semel.sources.content import is_gzip
from semel.sources.cut import gone, still_a_copy, want
from semel.sources.facts import Knowledge, Recognised, Where, Window
from semel.sources.files import Listing, Refusal
from semel.sources.gather import gather
from semel.sources.recognise import Answer, Match
from semel.sources.wanted import Spans, Wanted
from semel.spec.pipeline import Spec


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a plan was asked for. `before`: the last batch of the same key, which is over.

    Without a key nobody asked: what orphans have claimed is theirs.
    """

    spec: Spec
    key: str | None = None
    before: Batch | None = None
    interval: tuple[datetime, datetime] | None = None

    @property
    def window(self) -> Window:
        """The times of files that may be taken; None: all."""
        if self.interval is None:
            return None
        return self.interval[0] - self.spec.source.lookback, self.interval[1]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a plan would be made of: all of it read from one `version` of the pipeline's ledger."""

    version: int
    orphans: list[int]
    wanted: list[Wanted]
    free: Spans
    holes: Spans
    """What is free before the end of what was read: its batch was abandoned, or is an orphan."""
    closed: dict[int, int]
    """Partitions whose file is gone, or has a new life; with the end of what was seen of each."""
    lost: Spans
    """What was never read of these."""
    retired: list[int]
    """Partitions that a new one holds all of."""
    recognised: Recognised
    refusals: tuple[Refusal, ...]
    stored: list[Refusal]
    """What semel.refusal holds."""

    @property
    def same_refusals(self) -> bool:
        """Whether semel.refusal is what a plan would write."""
        return {replace(r, when=None) for r in self.refusals} == set(self.stored)


def look(ledger: Ledger, pipeline: Pipeline, request: Request) -> Found:
    """What there is to take, and what is refused. FileNotFoundError: look again.

    The version is read first: whatever changes after it shows under the lock.
    """
    spec, pipeline_id = request.spec, pipeline.pipeline_id
    listing = files.list_files(spec)
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline_id)
        silent = spec.limits.orphan_after.total_seconds()
        orphans = partitions.orphans(connection, pipeline_id, request.key, silent)
        known = partitions.knowledge(ledger, connection, pipeline_id, listing, orphans)
    recognised = gather(spec, listing, known, request.window)
    wanted, refused = want(spec, recognised, request.window)
    ends = {w.known.source_partition_id: w.end for w in wanted if w.known and w.end}
    read = {w.known.source_partition_id: w.known.reached for w in wanted if w.known}
    closed, retired = _closing(recognised, going_on=read.keys())
    with ledger.transaction() as connection:
        orphans = partitions.holders(connection, orphans, ends)
        free = partitions.free_ranges(connection, ends, orphans)
        holes = partitions.free_ranges(connection, read, orphans)
        lost = partitions.free_ranges(connection, closed)
        before, spans = partitions.unaccounted(connection, pipeline_id)
    refused += _gone(spec, known, recognised, lost)
    still_gone = [k for k in before if k.source_partition_id not in read]
    refused += [gone(spec, k, spans[k.source_partition_id], None) for k in still_gone]
    kept = _kept(spec, known, listing, recognised)
    return Found(
        version=version,
        orphans=orphans,
        wanted=wanted,
        free=free,
        holes=holes,
        closed=closed,
        lost=lost,
        retired=retired,
        recognised=recognised,
        refusals=(*listing.refused, *refused, *kept),
        stored=known.refused,
    )


def _closing(
    recognised: Recognised, going_on: Collection[int]
) -> tuple[dict[int, int], list[int]]:
    """The partitions that are closed now, each with the end of what was seen of it; and those that
    are retired, for a new one holds all of them.
    """
    facts = recognised.facts.values()
    closed = {f.known.source_partition_id: f.known.content for f in facts if f.was_cut}
    for item in recognised.lost:
        if item.where in (Where.GONE, Where.ELSEWHERE):
            known = item.partition
            # How long the content of a gzip file is, only a plan that reads it would know.
            unread = item.size is None or is_gzip(item.path)
            seen = known.content if unread else item.size
            closed[known.source_partition_id] = max(known.reached, seen)
    new = [f for f in facts if f.answer is Answer.NEW and f.match is Match.WEAK]
    retired = dict.fromkeys(k.source_partition_id for f in new for k in f.superseded)
    retired = [partition for partition in retired if partition not in going_on]
    ending = {*closed} - {*going_on, *retired}
    return {k: seen for k, seen in closed.items() if k in ending}, retired


def _gone(
    spec: Spec, known: Knowledge, recognised: Recognised, lost: Spans
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
