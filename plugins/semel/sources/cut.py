"""Cutting a plan: which ranges of the files a batch takes, by what is known and unclaimed."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import xxhash

from semel.errors import LimitError, SourceError
from semel.pipeline import Spec
from semel.sources import files
from semel.sources.files import Known, ListedFile, Refusal
from semel.sources.formats import header_of, is_whole


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file that may be read up to `end`. `whole`: as one range or not at all.

    `stale` is the partition of a deleted file whose inode this new file was given.
    """

    file: ListedFile
    known: Known | None
    end: int
    whole: bool
    stale: Known | None = None


@dataclass(frozen=True, kw_only=True)
class Range:
    """What a plan takes of one file: bytes [start, end)."""

    wanted: Wanted
    start: int
    end: int
    tail_hash: str


def want(
    spec: Spec, listed: list[ListedFile], known: list[Known]
) -> tuple[list[Wanted], list[Refusal]]:
    """Recognise each listed file and find its last record end; leave out what went away."""
    by_inode = {(k.device, k.inode): k for k in known}
    by_path = {k.path: k for k in known}
    inodes = {file.inode for file in listed}
    heads = _heads(_cut_or_gone(listed, known))
    wanted, refused = [], []
    for file in listed:
        there = by_path.get(file.path)
        try:
            same = by_inode.get((file.device, file.inode)) or _after_reboot(file, there)
            stale = same if same and files.is_stale(file, same) else None
            copies = [] if same else _begins_alike(file, heads)
            found = files.recognise(file, None if stale else same, there, copies, inodes)
            item = found if isinstance(found, Refusal) else _end(spec, file, found)
            if isinstance(item, Wanted) and item.end and not (found and found.tail_end):
                item = _first_look(spec, item)
        except FileNotFoundError:
            continue
        if stale and isinstance(item, Wanted):
            item = replace(item, stale=stale)
        (refused if isinstance(item, Refusal) else wanted).append(item)
    wanted = _each_inode_once(wanted, refused)
    return _each_path_once(wanted, by_path, refused), refused


def _each_path_once(
    wanted: list[Wanted], by_path: dict[str, Known], refused: list[Refusal]
) -> list[Wanted]:
    """Leave out new files whose path is still that of a partition: its file was not recognised."""
    found = {item.known.source_partition_id for item in wanted if item.known}
    kept = []
    for item in wanted:
        there = by_path.get(item.file.path)
        if item.known is None and there and there.source_partition_id not in found:
            refused.append(files.replaced(item.file, there))
        else:
            kept.append(item)
    return kept


def _cut_or_gone(listed: list[ListedFile], known: list[Known]) -> Iterator[Known]:
    """Partitions that no listed file holds any more, also where a cut one has grown again."""
    by_inode = {(file.device, file.inode): file for file in listed}
    by_path = {file.path: file for file in listed}
    for k in known:
        file = by_inode.get((k.device, k.inode)) or by_path.get(k.path)
        try:
            if k.tail_end and (file is None or files.differs(file, k)):
                yield k
        except FileNotFoundError:
            yield k


def _heads(cut_or_gone: Iterable[Known]) -> dict[int, dict[str, list[Known]]]:
    """Partitions whose own file was truncated or is gone, by the length and hash of their heads."""
    heads: dict[int, dict[str, list[Known]]] = {}
    for known in cut_or_gone:
        heads.setdefault(known.head_length, {}).setdefault(known.head_hash, []).append(known)
    return heads


def _begins_alike(file: ListedFile, heads: dict[int, dict[str, list[Known]]]) -> list[Known]:
    """Those with whose head a file begins, however long that was when it was hashed."""
    head = files.read_head(file) if heads else b""
    return [
        known
        for length, by_hash in heads.items()
        if length <= len(head)
        for known in by_hash.get(xxhash.xxh3_128_hexdigest(head[:length]), [])
    ]


def _after_reboot(file: ListedFile, there: Known | None) -> Known | None:
    """The partition of the file's path when only the number of its device changed."""
    alike = there is not None and there.inode == file.inode and not files.differs(file, there)
    return there if alike else None


def _each_inode_once(wanted: list[Wanted], refused: list[Refusal]) -> list[Wanted]:
    """Leave out all names but the known one of a file that is listed under several names."""
    names = defaultdict(list)
    for item in wanted:
        names[item.file.device, item.file.inode].append(item)
    kept = []
    for items in names.values():
        known = [i for i in items if i.known and i.known.path == i.file.path]
        chosen = known or (items if len(items) == 1 else [])
        kept += chosen
        refused += [
            Refusal(
                path=i.file.path,
                reason="hard link",
                detail=f"one file under {len(items)} names; leave one name in the source folder",
            )
            for i in items
            if i not in chosen
        ]
    return sorted(kept, key=lambda i: (i.file.mtime_ns, i.file.path))


def _end(spec: Spec, file: ListedFile, known: Known | None) -> Wanted | Refusal:
    after = spec.source.closed_after
    age = datetime.now(UTC).timestamp() - file.mtime_ns / 1e9
    closed = after is not None and age >= after.total_seconds()
    if is_whole(spec, file.path):
        kind = "gzip" if file.path.endswith(".gz") else "multiline CSV"
        if known and known.tail_end and known.tail_end != file.size:
            detail = (
                f"a {kind} file is read once, whole, and this one was {known.tail_end} bytes long "
                f"then (partition {known.source_partition_id}), now {file.size}; put it back, or "
                "`semel accept` reads all of it again as a new generation"
            )
            return Refusal(path=file.path, reason="changed", detail=detail)
        if after is None:
            detail = (
                f"a {kind} file is read once, whole, and nothing says when it is complete; declare "
                "source.closed_after"
            )
            return Refusal(path=file.path, reason="open", detail=detail)
        return Wanted(file=file, known=known, end=file.size if closed else 0, whole=True)
    end = files.record_end(file, 0, file.size, whole=closed)
    return Wanted(file=file, known=known, end=end, whole=False)


# Keeps P14.
def _first_look(spec: Spec, item: Wanted) -> Wanted | Refusal:
    """Check what a new file begins with: a CSV header must name the schema's columns."""
    try:
        header_of(spec, item.file.path)
    except (SourceError, OSError, EOFError) as error:
        return Refusal(path=item.file.path, reason="header", detail=str(error))
    return item


def cut(
    spec: Spec, wanted: list[Wanted], free: dict[int, list[tuple[int, int]]]
) -> tuple[list[Range], int]:
    """The ranges to claim, oldest file first, and how many bytes are left for a later plan.

    `free` holds the unclaimed ranges of each known partition up to its wanted end.
    `select: arrival` takes up to limits.bytes_per_batch_max; `select: interval` takes all or raises
    LimitError.
    """
    room = spec.limits.bytes_per_batch_max
    spans = [
        (item, start, end)
        for item in wanted
        for start, end in (
            free.get(item.known.source_partition_id, []) if item.known else [(0, item.end)]
        )
        if start < end
    ]
    total = sum(end - start for _, start, end in spans)
    # Keeps P10.
    if spec.source.select == "interval" and total > room:
        raise LimitError(
            f"pipeline {spec.name}: the interval holds {total} bytes in {len(spans)} ranges, and "
            f"limits.bytes_per_batch_max is {room}; raise the limit, or run shorter intervals"
        )
    taken, used = [], 0
    for item, start, end in spans:
        stop = _stop(spec, item, start, end, room - used, first=not taken)
        if stop > start:
            tail = files.tail_of(item.file.path, stop)
            taken.append(Range(wanted=item, start=start, end=stop, tail_hash=tail))
            used += stop - start
        if stop < end:
            break
    return taken, total - used


# Keeps P6.
def _stop(spec: Spec, item: Wanted, start: int, end: int, room: int, *, first: bool) -> int:
    if end - start <= room:
        return end
    if item.whole:
        if first:
            raise LimitError(
                f"pipeline {spec.name}: {os.path.basename(item.file.path)!r} has {end} bytes and "
                "is read whole; limits.bytes_per_batch_max is "
                f"{spec.limits.bytes_per_batch_max}: raise it"
            )
        return start
    stop = files.record_end(item.file, start, start + room, whole=False) if room > 0 else start
    if stop == start and first:  # One record is longer than the limit: it is taken alone.
        stop = files.next_record_end(item.file, start, end)
    return stop
