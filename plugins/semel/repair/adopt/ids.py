"""Recover the ids of a finalized batch from its files alone, for a lost catalog.

semel tries, in this order:
1. the batch's ids files (last, if exact added them to an at-least-once batch);
2. its output, without transforms, because these may drop or change ids;
3. its source: the claimed ranges without the records of decisions and dead letters.

It verifies files by size and checksum, ranges by head and tail. The number of distinct ids must be
the marker's number of survivors. In an at-least-once batch, records may share an id or lack one, so
only the number of records must match.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.archive.marker import Marker
from semel.catalog import sortedids
from semel.catalog.ids import hash_ids, seconds_of
from semel.declare.parts import RepeatScope
from semel.errors import CorruptionError, SourceError
from semel.formats.output import rows_of
from semel.formats.pieces import PIECE_BYTES_MAX, gather
from semel.model.batch import Claim
from semel.model.buckets import Buckets, union
from semel.model.manifest import Kind, MarkedFile
from semel.pipeline.opening import open_source
from semel.repair.adopt.history import History
from semel.sources import Source, finalized_reason
from semel.stage import verdicts
from semel.stage.ids_file import read_ids
from semel.stage.job import StageJob
from semel.stage.read import read_again
from semel.storage import ArchivePath, readable

_EVER = 1 << 62  # Seconds beyond any clock: records ahead of time are in the dead letters.


@dataclass(frozen=True, kw_only=True)
class ShardIds:
    """The distinct ids of a batch in one shard, sorted by h1 (uint64), with their h2 (uint32)."""

    shard: int
    h1: np.ndarray
    h2: np.ndarray
    buckets: Buckets | None


class IdsLostError(Exception):
    """Neither ids files nor output nor source give a batch's ids. The message has the reasons."""


_POSITION = pa.schema([("source_partition_id", pa.int64()), ("offset", pa.int64())])

Part = tuple[np.ndarray, np.ndarray, np.ndarray, Buckets | None]
"""Ids as columns h1, h2 and shard and, in scope `bucket`, their buckets."""

_NO_SURVIVORS = (Kind.DECISIONS, Kind.DEAD_LETTERS)


def ids_of(batch: History, claims: Iterable[Claim]) -> list[ShardIds]:
    """The ids of a batch, by shard. `claims`: its ranges, at the files' current places.

    Any of its outputs serves if its files still exist. Raises IdsLostError.
    """
    marker = batch.first
    if not marker.counts.survivors:
        return []
    from_files = {"ids files": lambda: _ids_in_files(marker)}
    ways: dict[str, Callable[[], list[ShardIds]]] = {}
    if marker.of_kind(Kind.IDS) and not marker.has_added_ids:
        ways |= from_files
    for output in reversed(batch.outputs):
        if output.sink and not output.spec.transforms:
            name = f"output of generation {output.generation}" if batch.replays else "output"
            ways[name] = partial(_ids_in_output, marker, output)
    ways["source"] = lambda: _by_shard(
        marker, ids_in_source(marker, tuple(claims), previous=batch.previous)
    )
    if marker.has_added_ids:  # Their number proves nothing, so they come last.
        ways |= from_files
    whys = []
    for name, way in ways.items():
        try:
            return way()
        except (OSError, ValueError, pa.ArrowException, SourceError, CorruptionError) as error:
            whys.append(f"{name}: {finalized_reason(error)}")
    raise IdsLostError("; ".join(whys))


def _ids_in_output(marker: Marker, output: Marker) -> list[ShardIds]:
    if output.counts.rows_written != marker.counts.survivors:
        raise ValueError(
            f"{output.counts.rows_written} rows, but {marker.counts.survivors} survivors"
        )
    return _by_shard(marker, _hash_output(output, all_have_ids=marker.exact))


def _ids_in_files(marker: Marker) -> list[ShardIds]:
    shards = []
    for file in marker.of_kind(Kind.IDS):
        header, h1, h2 = read_ids(verified_path(marker, file))
        if header.shards != marker.spec.dedup.shards:
            raise ValueError(
                f"{file.path} has dedup.shards {header.shards}, not {marker.spec.dedup.shards}"
            )
        shards.append(ShardIds(shard=header.shard, h1=h1, h2=h2, buckets=header.buckets))
    _check_count(marker, sum(len(part.h1) for part in shards))
    return shards


def verified_path(marker: Marker, file: MarkedFile) -> ArchivePath:
    """The path of a listed file. Raises OSError or ValueError if it does not match its marker."""
    if not marker.is_whole(file):
        raise ValueError(f"{file.path} does not have the size and checksum in its marker")
    return marker.path_of(file)


def _by_shard(marker: Marker, parts: Iterable[Part]) -> list[ShardIds]:
    """Sorted ids by shard. Raises ValueError if their number is not the number of survivors."""
    none = np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint16), None
    all_parts = [none, *parts]
    h1, h2, shard = (np.concatenate([part[at] for part in all_parts]) for at in range(3))
    buckets = union(part[3] for part in all_parts)
    shards = []
    for number in np.unique(shard):
        in_shard = shard == number
        distinct = sortedids.distinct(h1[in_shard], h2[in_shard])
        shards.append(ShardIds(shard=int(number), h1=distinct[0], h2=distinct[1], buckets=buckets))
    _check_count(marker, sum(len(part.h1) for part in shards))
    return shards


def _check_count(marker: Marker, ids: int) -> None:
    if marker.exact and ids != marker.counts.survivors:
        raise ValueError(f"{ids} ids, but {marker.counts.survivors} survivors")


def _hash_output(marker: Marker, *, all_have_ids: bool) -> Iterator[Part]:
    spec = marker.spec
    by_bucket = spec.dedup.scope is RepeatScope.BUCKET
    names = list(dict.fromkeys([*spec.record_id, *([spec.record_time] if by_bucket else [])]))
    declared = spec.arrow_schema()
    for file in marker.of_kind(Kind.DATA):
        verified_path(marker, file)
        for table in gather(rows_of(marker, file, names), PIECE_BYTES_MAX):
            # JSON Lines stores dates as text.
            columns = [table.column(name).cast(declared.field(name).type) for name in names]
            table = pa.table(columns, names=names)
            buckets = None
            if by_bucket:
                buckets = np.floor_divide(
                    seconds_of(table.column(spec.record_time)), marker.bucket_seconds
                )
            ids = hash_ids(table, spec.record_id, shards=spec.dedup.shards, bucket=buckets)
            if all_have_ids and not ids.valid.all():
                raise ValueError(f"{file.path} has rows without an id")
            parts_buckets = None if buckets is None else Buckets.of(buckets)
            yield ids.h1[ids.valid], ids.h2[ids.valid], ids.shard[ids.valid], parts_buckets


def ids_in_source(
    marker: Marker,
    claims: tuple[Claim, ...],
    skipped_kinds: tuple[Kind, ...] = _NO_SURVIVORS,
    previous: Marker | None = None,
) -> Iterator[Part]:
    """Read the ids of a batch's records from the source, except those in files of `skipped_kinds`.

    `previous`: for an admission, the batch whose dead letters it judged again. Raises SourceError
    if the source has changed, ValueError or CorruptionError if a file has.
    """
    skip = _dropped_offsets(marker, skipped_kinds)
    source = open_source(marker.spec)
    source.check(claims, marker.batch_id)
    wanted = None if marker.exact else marker.counts.survivors
    job = job_of(replace(marker, spec=marker.spec.exactly_once()), claims, source)
    with tempfile.TemporaryDirectory() as folder:
        if previous is not None:
            letters = verdicts.read(previous, previous.counts).letters()
            selected = letters.select(Path(folder), job.splits, only=True, judged=True)
            job = replace(job, selected=selected)
        yield from _read_again(job, skip, wanted)


def _read_again(
    job: StageJob, skip: dict[int, np.ndarray], wanted: int | None
) -> Iterator[Part]:
    """Raise ValueError if the records, with or without an id, are not as many as `wanted`."""
    records = 0
    for split in job.splits:
        offsets = skip.get(split.claim.source_partition_id, np.zeros(0, np.int64))
        result = read_again(job, split, skip=offsets)
        records += result.report.counts.records_read
        for ids in result.ids:
            yield ids.h1, ids.h2, ids.shard, result.report.buckets
    if wanted not in (None, records):
        raise ValueError(f"{records} records, but {wanted} survivors")


def _dropped_offsets(marker: Marker, kinds: tuple[Kind, ...]) -> dict[int, np.ndarray]:
    """The offsets of the records in a batch's files of some kinds, by source partition."""
    tables = [
        pq.read_table(readable(verified_path(marker, file)), columns=list(_POSITION.names), partitioning=None)
        for kind in kinds
        for file in marker.of_kind(kind)
    ]
    table = pa.concat_tables([_POSITION.empty_table(), *(t.cast(_POSITION) for t in tables)])
    part, offset = (table.column(name).to_numpy() for name in _POSITION.names)
    return {int(number): offset[part == number] for number in np.unique(part)}


def job_of(
    marker: Marker,
    claims: tuple[Claim, ...],
    source: Source,
    split_size: int | None = None,
) -> StageJob:
    """The job for a reading task, which does not query the catalog and writes no output."""
    return StageJob.apart(
        marker.spec,
        source,
        claims,
        split_size,
        batch_id=marker.batch_id,
        shards=marker.spec.dedup.shards,
        bucket_seconds=marker.bucket_seconds,
        now_seconds=_EVER,
    )
