"""Recover the ids of a finalized batch from its files alone, for a lost catalog.

They come from the batch's ids files (of one that was at least once, these come last); else from its
output (without transforms, since these may drop or change ids); else from the source: the claimed
ranges, less what decisions and dead letters name.
Everything read is proven first: files by size and checksum, ranges by head and tail. The result has
as many distinct ids as the marker has survivors; otherwise it is an error. Of a batch that was at
least once, some of whose records have one id, or none, the records are as many.
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

_EVER = 1 << 62  # Seconds beyond any clock: records ahead of time are in the dead letters.


@dataclass(frozen=True, kw_only=True)
class ShardIds:
    """The distinct ids of a batch in one shard, sorted by h1 (uint64), with their h2 (uint32)."""

    shard: int
    h1: np.ndarray
    h2: np.ndarray
    buckets: Buckets | None


class IdsLostError(Exception):
    """Ids files, output and source all fail to give a batch's ids. The message says why."""


_POSITION = pa.schema([("source_partition_id", pa.int64()), ("offset", pa.int64())])

Part = tuple[np.ndarray, np.ndarray, np.ndarray, Buckets | None]
"""h1, h2 and shard of some ids and, in scope `bucket`, the buckets of these ids."""

_NO_SURVIVORS = (Kind.DECISIONS, Kind.DEAD_LETTERS)


def ids_of(batch: History, claims: Iterable[Claim]) -> list[ShardIds]:
    """The ids of a batch, by shard. `claims` are its ranges, in the files' current places.

    Any of its outputs gives them if its files are still there.
    """
    marker = batch.first
    if not marker.counts.survivors:
        return []
    kept = {"ids files": lambda: _kept(marker)}
    ways: dict[str, Callable[[], list[ShardIds]]] = {}
    if marker.of_kind(Kind.IDS) and not marker.taught:
        ways |= kept
    for made in reversed(batch.outputs):
        if made.sink and not made.spec.transforms:
            name = f"output of generation {made.generation}" if batch.replays else "output"
            ways[name] = partial(_of_output, marker, made)
    ways["source"] = lambda: _proven(marker, in_source(marker, tuple(claims), before=batch.before))
    if marker.taught:  # Their number proves nothing: they come last.
        ways |= kept
    whys = []
    for name, way in ways.items():
        try:
            return way()
        except (OSError, ValueError, pa.ArrowException, SourceError, CorruptionError) as error:
            whys.append(f"{name}: {finalized_reason(error)}")
    raise IdsLostError("; ".join(whys))


def _of_output(marker: Marker, made: Marker) -> list[ShardIds]:
    if made.counts.rows_written != marker.counts.survivors:
        raise ValueError(
            f"they have {made.counts.rows_written} rows of {marker.counts.survivors} survivors"
        )
    return _proven(marker, _in_output(made, all_have_ids=marker.exact))


def _kept(marker: Marker) -> list[ShardIds]:
    found = []
    for file in marker.of_kind(Kind.IDS):
        of, h1, h2 = read_ids(whole_file(marker, file))
        if of.shards != marker.spec.dedup.shards:
            raise ValueError(f"{file.path} has {of.shards} shards")
        found.append(ShardIds(shard=of.shard, h1=h1, h2=h2, buckets=of.buckets))
    _check_count(marker, sum(len(part.h1) for part in found))
    return found


def whole_file(marker: Marker, file: MarkedFile) -> Path:
    """A listed file that matches its marker. OSError, ValueError otherwise."""
    if not marker.is_whole(file):
        raise ValueError(f"{file.path} is not what its marker says")
    return marker.path_of(file)


def _proven(marker: Marker, parts: Iterable[Part]) -> list[ShardIds]:
    """Ids by shard, sorted. ValueError: their number differs from the number of survivors."""
    none = np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint16), None
    held = [none, *parts]
    h1, h2, shard = (np.concatenate([part[at] for part in held]) for at in range(3))
    buckets = union(part[3] for part in held)
    found = []
    for number in np.unique(shard):
        own = shard == number
        once = sortedids.distinct(h1[own], h2[own])
        found.append(ShardIds(shard=int(number), h1=once[0], h2=once[1], buckets=buckets))
    _check_count(marker, sum(len(part.h1) for part in found))
    return found


def _check_count(marker: Marker, found: int) -> None:
    if marker.exact and found != marker.counts.survivors:
        raise ValueError(f"they give {found} ids of {marker.counts.survivors} survivors")


def _in_output(marker: Marker, *, all_have_ids: bool) -> Iterator[Part]:
    spec = marker.spec
    by_bucket = spec.dedup.scope is RepeatScope.BUCKET
    names = list(dict.fromkeys([*spec.record_id, *([spec.record_time] if by_bucket else [])]))
    declared = spec.arrow_schema()
    for file in marker.of_kind(Kind.DATA):
        whole_file(marker, file)
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
            found = None if buckets is None else Buckets.of(buckets)
            yield ids.h1[ids.valid], ids.h2[ids.valid], ids.shard[ids.valid], found


def in_source(
    marker: Marker,
    claims: tuple[Claim, ...],
    but: tuple[Kind, ...] = _NO_SURVIVORS,
    before: Marker | None = None,
) -> Iterator[Part]:
    """Read the ids of a batch's records again, except those that files of the kinds `but` name.

    `before`: for an admission, the batch whose dead letters its records are. SourceError: the
    source has changed. ValueError, CorruptionError: such a file has changed.
    """
    skip = _dropped(marker, but)
    source = open_source(marker.spec)
    source.check(claims, marker.batch_id)
    wanted = None if marker.exact else marker.counts.survivors
    job = job_of(replace(marker, spec=marker.spec.exactly_once()), claims, source)
    with tempfile.TemporaryDirectory() as folder:
        if before is not None:
            letters = verdicts.read(before, before.counts).letters()
            selected = letters.select(Path(folder), job.splits, only=True, judged=True)
            job = replace(job, selected=selected)
        yield from _read_again(job, skip, wanted)


def _read_again(
    job: StageJob, skip: dict[int, np.ndarray], wanted: int | None
) -> Iterator[Part]:
    """`wanted`: how many records there must be, those without an id too. ValueError: others."""
    records = 0
    for split in job.splits:
        offsets = skip.get(split.claim.source_partition_id, np.zeros(0, np.int64))
        done = read_again(job, split, offsets)
        records += done.report.counts.records_read
        for shard, ids in done.ids.items():
            shards = np.full(len(ids.h1), shard, np.uint16)
            yield ids.h1, ids.h2, shards, done.report.buckets
    if wanted not in (None, records):
        raise ValueError(f"it gives {records} records of {wanted} survivors")


def _dropped(marker: Marker, kinds: tuple[Kind, ...]) -> dict[int, np.ndarray]:
    """The offsets of a batch's duplicates or rejected records, by source partition."""
    tables = [
        pq.read_table(whole_file(marker, file), columns=list(_POSITION.names), partitioning=None)
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
    """The job for a reading task: nothing is looked up or written."""
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
