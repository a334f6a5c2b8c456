"""The payload of id runs: stores chunks of ids and the filter, and looks ids up in them.

A segment table has two streams for each run, cut into pieces:

INDEX  the Bloom filter (`filter_bytes`), then the directory: the first h1 of each chunk (uint64),
       then the xxh3_64 of each chunk (uint64); cut into pieces of `FILTER_PIECE_BYTES`.
CHUNK  `limits.IDS_PER_CHUNK` ids a piece, sorted by h1 across the run: their h1 (uint64), then
       their h2 (uint32). All numbers are little endian.

The header's checksum is the xxh3_128 of the index. It verifies filter and directory, and the
directory verifies each chunk. So a look-up reads and verifies only the chunks that it needs.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import psycopg
import sqlalchemy as sa
import xxhash

from semel import failpoints, limits
from semel.catalog import bloom, sortedids
from semel.catalog.file_cache import CacheSpace
from semel.catalog.runs import IdRun, payload_query
from semel.errors import AGAIN, AttemptLostError, CorruptionError, UnavailableError
from semel.ledger import RESTORE_IDS, Ledger, row
from semel.model.buckets import Buckets

FILTER_PIECE_BYTES = 1 << 20
"""The size of a filter's pieces, because one large bytea broke pg_dump."""

CHUNKS_PER_READ = 2_048
"""The largest number of chunks that one statement of a look-up reads: 16 MiB."""

FILTER_CACHE_BYTES = 4 << 30
"""The size of a machine's filter files, enough for 1.8 billion ids."""

FILTERS_OPEN_MAX = 256
"""The largest number of filters that a process keeps mapped; then it unmaps all. Each one needs a
file descriptor, and the limit is often 1,024."""

_ID_BYTES = 12
_COLUMN_TYPES = ("int8", "int4", "int2", "bytea")
_DIRECTORY_BYTES = 16
_INDEX_PIECES_PER_READ = max(1, (16 << 20) // FILTER_PIECE_BYTES)


class PayloadStream(IntEnum):
    """The streams of a run's payload."""

    INDEX = 0
    CHUNK = 1


@dataclass(frozen=True, kw_only=True)
class RunPiece:
    """One row of a segment table."""

    kind: PayloadStream
    piece: int
    payload: bytes


class IdEncoder:
    """Encodes sorted ids as pieces, part by part, so that a merge needs little memory.

    `ids_max`: an upper bound for the number of ids. Each part has the distinct ids of a range of
    the filter's blocks.
    """

    def __init__(self, ids_max: int) -> None:
        self.blocks = bloom.blocks_for(ids_max)
        self.filter_bytes = self.blocks * bloom.BLOCK_BYTES
        self.ids = 0
        self._block = 0
        self._ready: list[RunPiece] = []
        self._h1, self._h2 = np.empty(0, np.uint64), np.empty(0, np.uint32)
        self._first_h1: list[int] = []
        self._digests: list[int] = []
        self._index = bytearray()
        self._index_pieces = 0
        self._checksum = xxhash.xxh3_128()

    def add(self, h1: np.ndarray, h2: np.ndarray, end_block: int) -> None:
        """Add the ids of the next blocks, up to `end_block` (exclusive)."""
        self._add_index(bloom.build_part(h1, self.blocks, self._block, end_block).tobytes())
        self._block = end_block
        self.ids += len(h1)
        self._h1, self._h2 = np.concatenate((self._h1, h1)), np.concatenate((self._h2, h2))
        complete = len(self._h1) - len(self._h1) % limits.IDS_PER_CHUNK
        self._cut(complete)

    def finish(self) -> str:
        """Finish the run after its last part. Returns the checksum for its header."""
        self._cut(len(self._h1))
        directory = np.array(self._first_h1 + self._digests, dtype="<u8")
        self._add_index(directory.tobytes(), last=True)
        return self._checksum.hexdigest()

    def take(self) -> list[RunPiece]:
        """The pieces completed since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _cut(self, count: int) -> None:
        for start in range(0, count, limits.IDS_PER_CHUNK):
            end = min(start + limits.IDS_PER_CHUNK, count)
            payload = self._h1[start:end].astype("<u8").tobytes()
            payload += self._h2[start:end].astype("<u4").tobytes()
            self._ready.append(
                RunPiece(kind=PayloadStream.CHUNK, piece=len(self._digests), payload=payload)
            )
            self._first_h1.append(int(self._h1[start]))
            self._digests.append(xxhash.xxh3_64_intdigest(payload))
        self._h1, self._h2 = self._h1[count:], self._h2[count:]

    def _add_index(self, data: bytes, *, last: bool = False) -> None:
        self._checksum.update(data)
        self._index += data
        size = FILTER_PIECE_BYTES
        while len(self._index) >= size or (last and self._index):
            payload = bytes(self._index[:size])
            del self._index[:size]
            self._ready.append(
                RunPiece(kind=PayloadStream.INDEX, piece=self._index_pieces, payload=payload)
            )
            self._index_pieces += 1


def write_pieces(
    connection: sa.Connection, segment_id: int, id_run_id: int, pieces: Iterable[RunPiece]
) -> None:
    """Insert pieces of a run. Raises UnavailableError if the connection was lost."""
    statement = payload_query("copy_payload", segment_id).text
    try:
        # The driver's COPY, because a run has thousands of pieces.
        with connection.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_COLUMN_TYPES)
            for each in pieces:
                copy.write_row((id_run_id, each.piece, each.kind, each.payload))
    except psycopg.OperationalError as error:
        raise UnavailableError(
            f"the connection to the ledger was lost while semel wrote id run {id_run_id} "
            f"({error}). Nothing was stored. Run this again"
        ) from error


def store_run(
    ledger: Ledger,
    *,
    pipeline_id: int,
    attempt_id: int,
    shard: int,
    segment_id: int,
    buckets: Buckets | None,
    h1: np.ndarray,
    h2: np.ndarray,
    tally: "FilterTally | None" = None,
) -> IdRun:
    """Store the new ids of a running attempt's shard: at least one, sorted by h1, distinct.

    `tally`: the statistics of their look-up, for reports.

    The second of two speculative tasks finds the run of the first and returns it. Raises
    AttemptLostError if the attempt is no longer running, CorruptionError if the ids differ.
    """
    if np.any(h1[1:] < h1[:-1]):
        raise ValueError(f"the ids of shard {shard} of attempt {attempt_id} are not sorted by h1")
    encoder = IdEncoder(len(h1))
    encoder.add(h1, h2, encoder.blocks)
    checksum = encoder.finish()
    with ledger.transaction() as connection:
        if row(connection, "catalog", "share_attempt", attempt_id=attempt_id) is None:
            raise AttemptLostError(
                f"attempt {attempt_id} is no longer running, because a newer attempt has replaced "
                "it. No ids were stored"
            )
        header = row(
            connection, "catalog", "insert_run",
            pipeline_id=pipeline_id, attempt_id=attempt_id, shard=shard, segment_id=segment_id,
            buckets=buckets and buckets.to_ledger(), ids=len(h1),
            filter_bytes=encoder.filter_bytes, checksum=checksum,
            asked=tally and tally.asked, false_hits=tally and tally.false_hits,
        )  # fmt: skip
        if header is None:
            twin = row(connection, "catalog", "own_run", attempt_id=attempt_id, shard=shard)
            if (twin["checksum"], twin["ids"]) != (checksum, len(h1)):
                raise CorruptionError(
                    f"two tasks of attempt {attempt_id} found different new ids "
                    f"({twin['ids']} and {len(h1)}): the input has changed, or one task has read "
                    "wrong bytes. The attempt cannot be used. Check the source files"
                )
            return IdRun.from_row(twin)
        write_pieces(connection, segment_id, header["id_run_id"], encoder.take())
        failpoints.point("stage.before_store")
    failpoints.point("stage.after_store")
    return IdRun.from_row(header)


@dataclass(frozen=True, kw_only=True)
class Index:
    """A run's filter and directory, verified and memory-mapped."""

    filter: bloom.Filter
    first_h1: np.ndarray
    digests: np.ndarray


class FilterCache:
    """Caches the indexes of runs in files of this machine.

    Purpose: a batch fetches only the filters of new runs.
    How it works: a file's name is the checksum in the run's header. Each process verifies it when
    it opens the file, and fetches a damaged file, or one of another ledger, again. Files appear by
    rename, so any number of processes may share the folder.
    It does not guess: it raises CorruptionError for a run that is incomplete in the ledger.
    """

    def __init__(self, folder: Path, *, bytes_max: int = FILTER_CACHE_BYTES) -> None:
        self.folder = folder
        self._room = CacheSpace(folder, bytes_max)
        self._open: dict[str, Index] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, ledger: Ledger, run: IdRun) -> Index:
        """The run's index. Raises CorruptionError with the run and the reason."""
        index = self._open.get(run.checksum)
        if index is None:
            path = self.folder / run.checksum
            index = _map(path, run) or self._fetch(ledger, run, path)
            if len(self._open) >= FILTERS_OPEN_MAX:
                self._open.clear()
            self._open[run.checksum] = index
        return index

    def _fetch(self, ledger: Ledger, run: IdRun, path: Path) -> Index:
        size = run.filter_bytes + _DIRECTORY_BYTES * run.chunks
        self._room.take(size)
        pieces = -(-size // FILTER_PIECE_BYTES)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=f"{run.checksum}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                for start in range(0, pieces, _INDEX_PIECES_PER_READ):
                    wanted = range(start, min(start + _INDEX_PIECES_PER_READ, pieces))
                    file.writelines(_read(ledger, run, PayloadStream.INDEX, wanted))
            index = _map(temporary, run)
            if index is None:
                raise _corrupt(run, "its filter or directory does not match its checksum")
            failpoints.point("cache.before_rename")
            temporary.rename(path)
            failpoints.point("cache.after_rename")
            return index
        finally:
            temporary.unlink(missing_ok=True)


def _map(path: Path, run: IdRun) -> Index | None:
    """The index in a file. Returns None if it is missing or does not match the run's header."""
    try:
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        os.utime(path)  # the cache removes the least recently used files
    except (FileNotFoundError, ValueError):  # numpy raises ValueError for an empty file
        return None
    if len(data) != run.filter_bytes + _DIRECTORY_BYTES * run.chunks:
        return None
    # Keeps L5.
    if xxhash.xxh3_128_hexdigest(data) != run.checksum:
        return None
    directory = data[run.filter_bytes :].view("<u8")
    return Index(
        filter=bloom.Filter(words=data[: run.filter_bytes].view("<u4")),
        first_h1=directory[: run.chunks],
        digests=directory[run.chunks :],
    )


def read_ids(
    ledger: Ledger, run: IdRun, index: Index, chunks: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """h1 and h2 of the ids in these chunks (in ascending order), verified chunk by chunk."""
    h1, h2 = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
    for chunk, payload in zip(chunks, _read(ledger, run, PayloadStream.CHUNK, chunks), strict=True):
        count = min(limits.IDS_PER_CHUNK, run.ids - chunk * limits.IDS_PER_CHUNK)
        if len(payload) != count * _ID_BYTES:
            raise _corrupt(run, f"chunk {chunk} has {len(payload)} bytes instead of {count} ids")
        if xxhash.xxh3_64_intdigest(payload) != index.digests[chunk]:
            raise _corrupt(run, f"chunk {chunk} does not match its checksum")
        h1.append(np.frombuffer(payload, "<u8", count))
        h2.append(np.frombuffer(payload, "<u4", count, 8 * count))
    return np.concatenate(h1), np.concatenate(h2)


@dataclass(kw_only=True)
class FilterTally:
    """How often filters were probed for absent ids (`asked`), and how often they were wrong."""

    asked: int = 0
    false_hits: int = 0


def contains(
    ledger: Ledger,
    cache: FilterCache,
    runs: Iterable[IdRun],
    h1: np.ndarray,
    h2: np.ndarray,
    tally: FilterTally | None = None,
) -> np.ndarray:
    """An exact mask of the ids (sorted by h1) that are in any of the runs.

    It probes the filters first, and reads only the chunks of their hits. It adds to `tally`.
    Raises CorruptionError if a run, its index or a chunk is missing or damaged.
    """
    mask = np.zeros(len(h1), dtype=bool)
    for run in runs:
        index = cache.open(ledger, run)
        candidates = np.flatnonzero(~mask)
        hits = candidates[index.filter.probe(h1[candidates])]
        present = 0
        if len(hits):
            mask[hits] = _look_up(ledger, run, index, h1[hits], h2[hits])
            present = int(mask[hits].sum())
        if tally:
            tally.asked += len(candidates) - present
            tally.false_hits += len(hits) - present
    return mask


def overlap(
    ledger: Ledger, cache: FilterCache, mine: Iterable[IdRun], theirs: Iterable[IdRun]
) -> int:
    """The number of ids in both runs, summed over all pairs of a run of `mine` and one of `theirs`.

    It probes the larger run's filter with the smaller run's ids, a bounded number at a time.
    """
    common = 0
    theirs = list(theirs)
    for run in mine:
        for other in theirs:
            if run.may_hold(other.shard, other.buckets):
                small, large = sorted((run, other), key=lambda run: run.ids)
                common += _common(ledger, cache, small, large)
    return common


def _common(ledger: Ledger, cache: FilterCache, small: IdRun, large: IdRun) -> int:
    common = 0
    index = cache.open(ledger, small)
    for start in range(0, small.chunks, CHUNKS_PER_READ):
        chunks = range(start, min(start + CHUNKS_PER_READ, small.chunks))
        h1, h2 = read_ids(ledger, small, index, chunks)
        common += int(contains(ledger, cache, [large], h1, h2).sum())
    return common


def _look_up(
    ledger: Ledger, run: IdRun, index: Index, h1: np.ndarray, h2: np.ndarray
) -> np.ndarray:
    """A mask of the ids that are in the run, by reading its chunks."""
    # Ids with the same h1 may span chunks, so look an id up in each such chunk.
    first = np.maximum(np.searchsorted(index.first_h1, h1) - 1, 0)
    last = np.searchsorted(index.first_h1, h1, side="right") - 1
    marks = np.bincount(first, minlength=run.chunks + 1)
    marks -= np.bincount(last + 1, minlength=run.chunks + 1)
    wanted = np.flatnonzero(np.cumsum(marks) > 0)
    mask = np.zeros(len(h1), dtype=bool)
    for start in range(0, len(wanted), CHUNKS_PER_READ):
        chunks = wanted[start : start + CHUNKS_PER_READ]
        sorted_h1, sorted_h2 = read_ids(ledger, run, index, chunks.tolist())
        selected = (last >= chunks[0]) & (first <= chunks[-1])
        mask[selected] |= sortedids.contains(sorted_h1, sorted_h2, h1[selected], h2[selected])
    return mask


def _read(ledger: Ledger, run: IdRun, kind: PayloadStream, wanted: Sequence[int]) -> list[bytes]:
    """Pieces of a run in ascending order. Raises CorruptionError if one is missing."""
    statement = payload_query("pieces", run.segment_id).text
    values = {"id_run_id": run.id_run_id, "kind": kind, "pieces": list(wanted)}
    try:
        with ledger.transaction() as connection:
            # SQLAlchemy's cursor would fetch the bytes as text, four times slower.
            with connection.connection.cursor(binary=True) as cursor:
                rows = cursor.execute(statement, values).fetchall()
    except psycopg.OperationalError as error:
        raise UnavailableError(
            f"the connection to the ledger was lost while semel read id run {run.id_run_id} "
            f"({error}). Run this again"
        ) from error
    missing = sorted(set(wanted) - {piece for piece, _ in rows})
    if missing:
        what = f"{kind.name.lower()} pieces {missing[:5]} of {len(wanted)} are missing"
        raise _corrupt(run, what)
    return [payload for _, payload in rows]


# Keeps S3.
def _corrupt(run: IdRun, what: str) -> CorruptionError:
    return CorruptionError(
        f"id run {run.id_run_id} (pipeline {run.pipeline_id}, shard {run.shard}, segment "
        f"{run.segment_id}): {what}. Without it semel could miss duplicates, so nothing was "
        f"written. {RESTORE_IDS}",
        next=AGAIN,
    )
