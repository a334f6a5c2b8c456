"""The ledger's side of recognising files: source partitions, asked for and written.

A partition is open, or closed because its file is gone, or retired by a person's word. Who changes
partitions, claims or losses of a pipeline holds its lock and counts its `source_version` up, so
that a plan sees with one comparison whether what it was made from is still true.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa

from semel import limits
from semel.ledger import Ledger, Row, change, row, rows
from semel.sources.content import is_gzip
from semel.sources.cut import NOTHING_READ, Evidence, Range, Spans, Wanted
from semel.sources.evidence import Partition
from semel.sources.facts import Facts, Knowledge, Lost, Where
from semel.sources.files import Listing, Refusal
from semel.sources.recognise import Answer, Match, Own

def version(connection: sa.Connection, pipeline_id: int) -> int:
    """Counts the changes of a pipeline's partitions, claims and losses."""
    return row(connection, "partitions", "version", pipeline_id=pipeline_id)["source_version"]


def touch(connection: sa.Connection, pipeline_id: int) -> None:
    """Count a change; in the transaction that makes it, under the pipeline's lock."""
    change(connection, "partitions", "touch", pipeline_id=pipeline_id)


def knowledge(
    ledger: Ledger,
    connection: sa.Connection,
    pipeline_id: int,
    listing: Listing,
    orphans: Iterable[int] = (),
) -> Knowledge:
    """What the ledger knows of listed files. What an orphan has claimed is not settled."""
    files = listing.files
    other = row(
        connection,
        "partitions",
        "unsettled",
        pipeline_id=pipeline_id,
        orphans=list(orphans),
        # Texts: psycopg looks at each element of a list, and there may be very many.
        paths="//".join([file.path for file in files]) if files else None,
        devices=_bigints([file.device for file in files]),
        inodes=_bigints([file.inode for file in files]),
        sizes=_bigints([file.size for file in files]),
        mtimes=_bigints([file.mtime_ns for file in files]),
        ctimes=_bigints([file.ctime_ns for file in files]),
    )
    unsettled = [files[place - 1] for place in sorted(other["places"])]
    inodes = {file.inode for file in unsettled}
    paths = {file.path for file in unsettled} if inodes else set()
    found = rows(connection, "partitions", "by_id", partitions=other["partitions"])
    refused = rows(connection, "partitions", "refused", pipeline_id=pipeline_id)

    def lengths(firsts: list[str]) -> list[tuple[str, int]]:
        found = ledger.rows("partitions", "lengths", pipeline_id=pipeline_id, firsts=firsts)
        return [(r["first_hash"], r["head_length"]) for r in found]

    def like(
        heads: list[tuple[int, str]], inodes: list[int], paths: list[str]
    ) -> list[Partition]:
        found = ledger.rows(
            "partitions",
            "like",
            pipeline_id=pipeline_id,
            lengths=[length for length, _ in heads],
            heads=[head for _, head in heads],
            inodes=inodes,
            paths=paths,
            count=limits.ALIKE_MAX,
        )
        return [Partition(**r) for r in found]

    return Knowledge(
        partitions=[Partition(**r) for r in found],
        unsettled=unsettled,
        names={
            file.path: file.inode
            for file in files
            if file.inode in inodes and file.path not in paths
        },
        refused=[Refusal(**r) for r in refused],
        lengths=lengths,
        like=like,
    )


def _bigints(numbers: list[int]) -> str:
    """A bigint[] of Postgres, as text."""
    return "{" + str(numbers)[1:-1] + "}"


def orphans(
    connection: sa.Connection, pipeline_id: int, request_key: str, silent_seconds: float
) -> list[int]:
    """Planned batches of other requests that gave no sign of life for so long."""
    found = rows(
        connection,
        "partitions",
        "orphans",
        pipeline_id=pipeline_id,
        request_key=request_key,
        orphan_seconds=silent_seconds,
    )
    return [r["batch_id"] for r in found]


def holders(
    connection: sa.Connection, batches: list[int], partitions: Iterable[int]
) -> list[int]:
    """Those of some batches that have claimed a range of some partitions."""
    found = rows(
        connection, "partitions", "holders", batches=batches, partitions=list(partitions)
    )
    return [r["batch_id"] for r in found]


def free_ranges(
    connection: sa.Connection, ends: dict[int, int], orphans: Iterable[int] = ()
) -> Spans:
    """Of partitions, up to an end each: what is neither claimed (but by `orphans`) nor lost."""
    found = rows(
        connection,
        "partitions",
        "free_ranges",
        partitions=list(ends),
        ends=list(ends.values()),
        orphans=list(orphans),
    )
    spans: Spans = {}
    for r in found:
        spans.setdefault(r["source_partition_id"], []).append((r["start"], r["end"]))
    return spans


def unaccounted(
    connection: sa.Connection, pipeline_id: int
) -> tuple[list[Partition], Spans]:
    """Closed partitions of which something was seen that nobody claimed, and what."""
    found = rows(connection, "partitions", "unaccounted", pipeline_id=pipeline_id)
    closed = [Partition(**r) for r in found]
    ends = {k.source_partition_id: k.content for k in closed}
    spans = free_ranges(connection, ends) if ends else {}
    return [k for k in closed if k.source_partition_id in spans], spans


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a plan changes of partitions. Ids of what is closed come with what was seen of it.

    `made` are files with what is taken of them; nothing, of one that was cut and is empty yet.
    """

    updates: list[dict[str, object]]
    made: list[tuple[Wanted, Evidence]]
    closed: dict[int, int]
    retired: list[int]

    def __bool__(self) -> bool:
        return bool(self.updates or self.made or self.closed or self.retired)


def changes(
    wanted: list[Wanted],
    ranges: list[Range],
    facts: Collection[Facts],
    lost: Iterable[Lost],
    holes: Collection[int],
) -> Changes:
    """What follows for partitions from what was recognised and what is taken.

    `holes` are those of which something is free before the end of what was read: a later plan has
    to look at them again, whatever their file's stat says.
    """
    reached = {item.wanted.file.path: item for item in ranges}  # The last range of each file.
    updates = []
    for item in wanted:
        if item.known is None:
            continue
        whole = item.known.source_partition_id not in holes
        new = as_read(item, reached.get(item.file.path), settled=whole)
        if item.known.closed or any(new[name] != getattr(item.known, name) for name in new):
            updates.append(new)
    going_on = _going_on(wanted)
    for found in facts:
        known = found.known
        if known is None or known.source_partition_id in going_on or _was_cut(found):
            continue
        if found.answer is Answer.UNSURE:  # The path is not free yet.
            continue
        if found.seen.file.path != known.path:  # Renamed, and refused for something else.
            updates.append({**asdict(known), "path": found.seen.file.path})
    closed, retired = closing(wanted, facts, lost)
    new = {r.wanted.file.path: (r.wanted, r.evidence) for r in ranges if r.wanted.known is None}
    new |= {f.seen.file.path: (begun(f), NOTHING_READ) for f in facts if _cut(f, new)}
    return Changes(
        updates=updates,
        made=list(new.values()),
        closed=closed,
        retired=retired,
    )


def closing(
    wanted: list[Wanted], facts: Collection[Facts], lost: Iterable[Lost]
) -> tuple[dict[int, int], list[int]]:
    """The partitions that are closed now, each with what was seen of it; and those that are
    retired, for a new one holds all of them.
    """
    going_on = _going_on(wanted)
    closed = {f.known.source_partition_id: f.known.content for f in facts if _was_cut(f)}
    for item in lost:
        if item.where in (Where.GONE, Where.ELSEWHERE):
            known = item.partition
            # How long the content of a gzip file is, only a plan that reads it would know.
            unread = item.size is None or is_gzip(item.path)
            seen = known.content if unread else item.size
            closed[known.source_partition_id] = max(known.reached, seen)
    found = [f for f in facts if f.answer is Answer.NEW and f.match is Match.WEAK]
    retired = [k.source_partition_id for f in found for k in superseded(f)]
    retired = [k for k in dict.fromkeys(retired) if k not in going_on]
    gone = {k: seen for k, seen in closed.items() if k not in going_on and k not in retired}
    return gone, retired


def _going_on(wanted: list[Wanted]) -> set[int]:
    return {item.known.source_partition_id for item in wanted if item.known}


def _was_cut(found: Facts) -> bool:
    """Whether a file's own partition is not its own any more: it has a new life."""
    goes = found.answer in (Answer.NEW, Answer.TAKE_UP)
    return found.known is not None and found.own is Own.CUT and goes


def _cut(found: Facts, taken: Collection[str]) -> bool:
    """Whether a file was cut, and nothing is taken of it now: its inode has a new life."""
    new = found.own is Own.CUT and found.answer is Answer.NEW and found.seen.content is not None
    return new and found.seen.file.path not in taken


def begun(found: Facts) -> Wanted:
    """A file as a new partition of which nothing is read yet."""
    seen = found.seen
    return Wanted(
        file=seen.file, birth_ns=seen.birth_ns, content=seen.content, known=None, end=0
    )


def superseded(found: Facts) -> list[Partition]:
    """Partitions whose content a file holds that is read as new: nothing of them is lost."""
    content = found.seen.content
    return [k for k in found.alike if content is not None and content.size >= k.content]


def as_read(item: Wanted, last: Range | None, *, settled: bool) -> dict[str, object]:
    """The row of a known partition as it is once the plan is written. Not `settled`: a plan looks
    at its file again, also when that did not change.
    """
    known = item.known
    read = {name: getattr(known, name) for name in _EVIDENCE}
    if last is not None and last.evidence.reached > known.reached:
        read = vars(last.evidence)
    place = _place(item) if settled else {**_place(item), "size": -1}
    return {"source_partition_id": known.source_partition_id, **place, **read}


_EVIDENCE = [field.name for field in fields(Evidence)]


def _place(item: Wanted) -> dict[str, object]:
    """Where a file is, and how it looks. Not settled while its content cannot be had."""
    file, known = item.file, item.known
    size = file.size if item.content is not None else -1
    content = item.content.size if item.content is not None else known.content
    return {
        "path": file.path, "device": file.device, "inode": file.inode, "size": size,
        "birth_ns": item.birth_ns, "mtime_ns": file.mtime_ns, "ctime_ns": file.ctime_ns,
        "content": content,
    }  # fmt: skip


def write(connection: sa.Connection, pipeline_id: int, made: Changes) -> dict[str, int]:
    """Write what changes. Returns the partition of each new path."""
    retire(connection, made.retired)
    if made.closed:
        values = {"partitions": list(made.closed), "contents": list(made.closed.values())}
        change(connection, "partitions", "close", **values)
    update(connection, made.updates)
    new = insert(connection, pipeline_id, made.made)
    return {r["path"]: r["source_partition_id"] for r in new}


def update(connection: sa.Connection, updates: list[dict[str, object]]) -> None:
    """Bring the rows of known partitions up to date; a closed one is open again."""
    if updates:
        change(connection, "partitions", "update", partitions=json.dumps(updates))


def retire(connection: sa.Connection, partitions: list[int]) -> None:
    """Forget partitions by a person's word, or because a new one holds all that they held."""
    if partitions:
        change(connection, "partitions", "retire", partitions=partitions)


def insert(
    connection: sa.Connection, pipeline_id: int, files: list[tuple[Wanted, Evidence]]
) -> list[Row]:
    """Open the next generation of each file's path: (source_partition_id, path, generation)."""
    if not files:
        return []
    new = [{**_place(item), **vars(evidence)} for item, evidence in files]
    return rows(
        connection, "partitions", "insert", pipeline_id=pipeline_id, partitions=json.dumps(new)
    )


def account(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Closed partitions of which all that was seen is claimed or lost."""
    change(connection, "partitions", "account", partitions=list(partitions))


def lose(connection: sa.Connection, spans: Spans, reason: str, accepted_by: str) -> None:
    """Record that ranges are lost for good, and whose word that is."""
    flat = [(part, start, end) for part, found in spans.items() for start, end in found]
    if flat:
        partitions, starts, ends = (list(column) for column in zip(*flat, strict=True))
        change(
            connection,
            "partitions",
            "lose",
            partitions=partitions,
            starts=starts,
            ends=ends,
            reason=reason,
            accepted_by=accepted_by,
        )


# Keeps A6.
def restore(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Partitions whose claims were released: what was read of them is what is still claimed.

    Of one that was retired meanwhile by a person's word, the rest is a loss.
    """
    restored = rows(connection, "partitions", "restore", partitions=sorted(set(partitions)))
    ends = {r["source_partition_id"]: r["content"] for r in restored if r["retired"]}
    if ends:
        lose(connection, free_ranges(connection, ends), "replaced", "abandon")
