"""merge: fewer, larger id runs, because probing costs per filter, not per size.

A merge joins runs of the same shard that expire in the same drop span, so that ids are forgotten at
the latest one span after their horizon. A retired run keeps its payload until no open attempt can
have pinned it (catalog.delete_payload).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import sqlalchemy as sa

from semel import failpoints
from semel.catalog import bloom, sortedids
from semel.catalog.payload import FilterCache, IdEncoder, Index, read_ids, write_pieces
from semel.catalog.runs import IdRun, span_seconds
from semel.errors import RetryableError
from semel.ledger import Ledger, pipelines, row, rows
from semel.model.batch import Pipeline
from semel.model.buckets import union

RUNS_LIVE_PER_SHARD_MAX = 12
"""Live id runs of a shard before collect merges them: probing costs per filter, not per size, and
twelve filters send less than 1 % of new ids to a look-up."""

MERGE_IDS_AT_ONCE = 2 << 20
"""Ids that a merge holds in memory: about 100 MiB with the copies that sorting makes."""

_RATIO = 2  # a run joins smaller ones that hold at least half as many ids together


def merge_candidates(
    runs: Iterable[IdRun], *, horizon_seconds: int, live_max: int = RUNS_LIVE_PER_SHARD_MAX
) -> list[tuple[IdRun, ...]]:
    """Groups of visible runs, each to be merged into one, so that shards keep to `live_max`.

    A shard within the limit stays as it is. Otherwise each closed span becomes one run, and runs of
    similar size in the youngest span are merged. Each merge makes an id's run larger by half or
    more, so it is rewritten a logarithmic number of times.
    """
    span = span_seconds(horizon_seconds)
    groups = []
    for _, of_shard in groupby(sorted(runs, key=lambda run: run.shard), key=lambda run: run.shard):
        members = list(of_shard)
        groups += _shard_groups(members, lambda run: run.expires_at.timestamp() // span, live_max)
    return groups


def _shard_groups(
    runs: list[IdRun], span_of: Callable[[IdRun], float], live_max: int
) -> list[tuple[IdRun, ...]]:
    if len(runs) <= live_max:
        return []
    runs.sort(key=span_of)
    *closed, youngest = (list(group) for _, group in groupby(runs, key=span_of))
    groups = [tuple(group) for group in closed if len(group) > 1]
    return groups + _youngest_groups(youngest, max(1, live_max - len(closed)))


def _youngest_groups(runs: list[IdRun], live_max: int) -> list[tuple[IdRun, ...]]:
    """Merge neighbours in size. If their sizes differ too much, merge the smallest ones."""
    runs.sort(key=lambda run: run.ids)
    groups: list[list[IdRun]] = []
    total = 0
    for run in runs:
        if groups and run.ids <= _RATIO * total:
            groups[-1].append(run)
        else:
            groups.append([run])
            total = 0
        total += run.ids
    excess = len(groups) - live_max
    if excess > 0:
        groups = [[run for group in groups[: excess + 1] for run in group], *groups[excess + 1 :]]
    return [tuple(group) for group in groups if len(group) > 1]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An input of a merge. `block`: the filter block, in the merged run, of each chunk's first id."""

    run: IdRun
    index: Index
    block: np.ndarray


def merge(ledger: Ledger, cache: FilterCache, parts: tuple[IdRun, ...]) -> IdRun:
    """Merge visible runs of one shard into a new one, in one transaction.

    1. Insert the merged run's header.
    2. Range by range of h1: read the parts' ids, sort them, drop repeated ones, write pieces.
    3. Complete the header.
    4. Under the pipeline's lock retire the parts.

    Raises RetryableError if a part was retired meanwhile (another merge, or its age); nothing is
    changed. Raises CorruptionError if a part is missing or damaged.
    """
    encoder = IdEncoder(sum(run.ids for run in parts))
    with ledger.transaction() as connection:
        pipeline = pipelines.get(connection, parts[0].pipeline_id)
        header = row(connection, "catalog", "insert_visible_run", **_header(parts, encoder))
        id_run_id, segment_id = header["id_run_id"], header["segment_id"]
        opened = [_open_run(ledger, cache, run, encoder.blocks) for run in parts]
        count = -(-sum(run.ids for run in parts) // MERGE_IDS_AT_ONCE)
        ends = [encoder.blocks * at // count for at in range(count + 1)]
        for first, end in zip(ends, ends[1:], strict=False):
            encoder.add(*_range(ledger, opened, encoder.blocks, first, end), end)
            write_pieces(connection, segment_id, id_run_id, encoder.take())
        checksum = encoder.finish()
        write_pieces(connection, segment_id, id_run_id, encoder.take())
        numbers = [run.id_run_id for run in parts]
        sealed = {
            "id_run_id": id_run_id, "ids": encoder.ids, "checksum": checksum, "parts": numbers
        }  # fmt: skip
        merged = row(connection, "catalog", "seal_run", **sealed)
        _retire(connection, pipeline, id_run_id, parts)
        failpoints.point("collect.before_merged")
    return IdRun.from_row(merged)


def _header(parts: tuple[IdRun, ...], encoder: IdEncoder) -> dict[str, object]:
    """The merged run's columns, in the segment of the part that expires last."""
    # Keeps G7.
    last = max(parts, key=lambda run: run.expires_at)
    # Exactly the buckets of its parts, because collect forgets each bucket when the run expires.
    buckets = union(run.buckets for run in parts)
    return {
        "pipeline_id": last.pipeline_id,
        "shard": last.shard,
        "buckets": buckets and buckets.to_ledger(),
        "seq_min": min(run.seq_min for run in parts),
        "seq_max": max(run.seq_max for run in parts),
        "expires_at": last.expires_at,
        "segment_id": last.segment_id,
        "ids": sum(run.ids for run in parts),
        "filter_bytes": encoder.filter_bytes,
        "checksum": "",
    }


# Keeps G2, G3.
def _retire(
    connection: sa.Connection, pipeline: Pipeline, merged: int, parts: tuple[IdRun, ...]
) -> None:
    pipelines.lock(connection, pipeline)
    ids = [run.id_run_id for run in parts]
    retired = rows(connection, "catalog", "retire_merged", merged=merged, parts=ids)
    if len(retired) != len(parts):
        lost = sorted(set(ids) - {each["id_run_id"] for each in retired})
        raise RetryableError(
            f"id runs {lost} were retired during the merge. The merge was undone, and the next "
            "collect tries again"
        )


def _open_run(ledger: Ledger, cache: FilterCache, run: IdRun, blocks: int) -> _Part:
    index = cache.open(ledger, run)
    return _Part(run=run, index=index, block=bloom.block_of(index.first_h1, blocks))


def _range(
    ledger: Ledger, parts: list[_Part], blocks: int, first: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids of all parts in the blocks `first` to `end` (exclusive), sorted."""
    h1, h2 = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
    for part in parts:
        # A chunk may begin before the range and reach into it.
        begin = max(0, int(np.searchsorted(part.block, first)) - 1)
        stop = int(np.searchsorted(part.block, end))
        part_h1, part_h2 = read_ids(ledger, part.run, part.index, range(begin, stop))
        cut = slice(*np.searchsorted(bloom.block_of(part_h1, blocks), (first, end)))
        h1.append(part_h1[cut])
        h2.append(part_h2[cut])
    return sortedids.distinct(np.concatenate(h1), np.concatenate(h2))
