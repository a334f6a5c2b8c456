"""The ledger's side of recognising files: source partitions, asked for and written.

A partition is open, or closed because its file is gone, or retired by a person's word. Who changes
partitions, claims or losses of a pipeline holds its lock and counts its `source_version` up, so
that a plan sees with one comparison whether what it was made from is still true.
"""

import json
from collections.abc import Collection, Iterable

import sqlalchemy as sa

from semel import limits
from semel.ledger import Ledger, Row, change, row, rows
from semel.sources.evidence import Partition
from semel.sources.facts import Knowledge
from semel.sources.files import Listing, Refusal
from semel.sources.wanted import Evidence, Spans, Wanted


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
            heads=json.dumps([{"head_length": n, "head_hash": head} for n, head in heads]),
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
        ends=json.dumps(
            [{"source_partition_id": part, "record_end": end} for part, end in ends.items()]
        ),
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


def close(connection: sa.Connection, closed: dict[int, int], unread: Collection[int]) -> None:
    """Close partitions, each with what was seen of it. `unread`: some of it was never read."""
    found = [
        {"source_partition_id": partition, "content": content, "accounted": partition not in unread}
        for partition, content in closed.items()
    ]
    if found:
        change(connection, "partitions", "close", partitions=json.dumps(found))


def update(connection: sa.Connection, updates: list[Partition]) -> None:
    """Bring the rows of known partitions up to date; a closed one is open again."""
    if updates:
        new = json.dumps([vars(partition) for partition in updates])
        change(connection, "partitions", "update", partitions=new)


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
    new = [{**item.place, **vars(evidence)} for item, evidence in files]
    return rows(
        connection, "partitions", "insert", pipeline_id=pipeline_id, partitions=json.dumps(new)
    )


def account(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Closed partitions of which all that was seen is claimed or lost."""
    change(connection, "partitions", "account", partitions=list(partitions))


def lose(connection: sa.Connection, spans: Spans, reason: str, accepted_by: str) -> None:
    """Record that ranges are lost for good, and whose word that is."""
    lost = [
        {"source_partition_id": partition, "start": start, "end": end}
        for partition, found in spans.items()
        for start, end in found
    ]
    if lost:
        values = {"reason": reason, "accepted_by": accepted_by}
        change(connection, "partitions", "lose", spans=json.dumps(lost), **values)


# Keeps A6.
def restore(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Partitions whose claims were released: what was read of them is what is still claimed.

    Of one that was retired meanwhile by a person's word, the rest is a loss.
    """
    restored = rows(connection, "partitions", "restore", partitions=sorted(set(partitions)))
    ends = {r["source_partition_id"]: r["content"] for r in restored if r["retired"]}
    if ends:
        lose(connection, free_ranges(connection, ends), "replaced", "abandon")
