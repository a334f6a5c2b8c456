"""Source partitions in the ledger, asked for and written.

A partition is open, or closed because it is gone, or retired by accept. Who changes
partitions, claims or losses of a pipeline holds its lock and counts its `source_version` up, so
that a plan sees with one comparison whether what it was made from is still true.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from semel.ledger import Ledger, Row, change, row, rows
from semel.sources import Gone, Known, Offer, Partition, Range, Refusal, Shown, Spans


def version(connection: sa.Connection, pipeline_id: int) -> int:
    """Counts the changes of a pipeline's partitions, claims and losses."""
    return row(connection, "partitions", "version", pipeline_id=pipeline_id)["source_version"]


def touch(connection: sa.Connection, pipeline_id: int) -> None:
    """Count a change; in the transaction that makes it, under the pipeline's lock."""
    change(connection, "partitions", "touch", pipeline_id=pipeline_id)


def known(
    ledger: Ledger,
    connection: sa.Connection,
    pipeline_id: int,
    shown: Shown,
    orphans: Iterable[int] = (),
) -> Known:
    """What the ledger knows of what a source shows. What an orphan has claimed is not settled."""
    found = shown.found
    other = row(
        connection,
        "partitions",
        "unsettled",
        pipeline_id=pipeline_id,
        orphans=list(orphans),
        # Texts: psycopg looks at each element of a list, and there may be very many.
        names=_texts([item.name for item in found]),
        identities=_texts([item.identity for item in found]),
        fingerprints=_texts([item.fingerprint for item in found]),
    )
    asked = other["partitions"]
    partitions = rows(connection, "partitions", "by_id", partitions=asked) if asked else []
    refused = rows(connection, "partitions", "refused", pipeline_id=pipeline_id)
    return Known(
        partitions=[Partition(**r) for r in partitions],
        unsettled=[found[place - 1] for place in sorted(other["places"])],
        refused=[Refusal(**r) for r in refused],
        rows=partial(ledger.rows, pipeline_id=pipeline_id),
    )


def _texts(texts: list[str]) -> str | None:
    return "//".join(texts) if texts else None


@dataclass(frozen=True, kw_only=True)
class State:
    """What the ranges of a plan are cut from, by its numbers: when these are the same, so are they.

    `latest`: the request's latest batch. `orphans`: planned batches of other requests that gave no
    sign of life for long.
    """

    version: int
    latest: int | None
    orphans: list[int]


def state(
    connection: sa.Connection, pipeline_id: int, request_key: str | None, silent_seconds: float
) -> State:
    """The state of a pipeline's source, read in one statement."""
    found = row(
        connection,
        "partitions",
        "state",
        pipeline_id=pipeline_id,
        request_key=request_key,
        orphan_seconds=silent_seconds,
    )
    return State(**found)


def holders(
    connection: sa.Connection, batches: list[int], partitions: Iterable[int]
) -> list[int]:
    """Those of some batches that have claimed a range of some partitions."""
    if not batches:
        return []
    found = rows(
        connection, "partitions", "holders", batches=batches, partitions=list(partitions)
    )
    return [r["batch_id"] for r in found]


def free_ranges(
    connection: sa.Connection, ends: dict[int, int], orphans: Iterable[int] = ()
) -> Spans:
    """Of partitions, up to an end each: what is neither claimed (but by `orphans`) nor lost."""
    if not ends:
        return {}
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


def up_to(spans: Spans, ends: dict[int, int]) -> Spans:
    """What of some ranges lies before an end of each partition."""
    cut = {
        part: [(start, min(end, ends[part])) for start, end in found if start < ends[part]]
        for part, found in spans.items()
        if part in ends
    }
    return {part: found for part, found in cut.items() if found}


def raise_floor(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Let later looks at partitions begin where something is free, or may become free.

    Under the pipeline's lock: no planned batch is abandoned meanwhile.
    """
    change(connection, "partitions", "raise_floor", partitions=list(partitions))


def unaccounted(
    connection: sa.Connection, pipeline_id: int
) -> tuple[list[Partition], Spans]:
    """Closed partitions of which something was seen that nobody claimed, and what."""
    found = rows(connection, "partitions", "unaccounted", pipeline_id=pipeline_id)
    closed = [Partition(**r) for r in found]
    ends = {k.source_partition_id: k.seen for k in closed}
    spans = free_ranges(connection, ends)
    return [k for k in closed if k.source_partition_id in spans], spans


def close(connection: sa.Connection, gone: Collection[Gone], unread: Collection[int]) -> None:
    """Close partitions, each with what was seen of it. `unread`: some of it was never read."""
    found = [
        {
            "source_partition_id": item.partition.source_partition_id,
            "seen": item.seen,
            "accounted": item.partition.source_partition_id not in unread,
        }
        for item in gone
    ]
    if found:
        change(connection, "partitions", "close", partitions=json.dumps(found))


def update(connection: sa.Connection, updates: list[Partition]) -> None:
    """Bring the rows of known partitions up to date; a closed one is open again."""
    if updates:
        new = json.dumps([vars(partition) for partition in updates])
        change(connection, "partitions", "update", partitions=new)


def retire(connection: sa.Connection, partitions: list[int]) -> None:
    """Forget partitions that accept replaced, or because a new one holds all that they held."""
    if partitions:
        change(connection, "partitions", "retire", partitions=partitions)


def insert(
    connection: sa.Connection, pipeline_id: int, offers: list[tuple[Offer, Range | None]]
) -> list[Row]:
    """Open the next generation of each offer's name, with the last range that is taken of it.

    Returns (source_partition_id, name, generation) of each.
    """
    if not offers:
        return []
    new = [
        {
            "name": offer.name,
            "identity": offer.identity,
            "fingerprint": offer.fingerprint,
            "settled": offer.settled,
            "reached": last.end if last else 0,
            "seen": offer.seen,
            "evidence": offer.evidence | (last.evidence if last else {}),
        }
        for offer, last in offers
    ]
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

    Of one that was retired by accept meanwhile, the rest is a loss.
    """
    restored = rows(connection, "partitions", "restore", partitions=sorted(set(partitions)))
    ends = {r["source_partition_id"]: r["seen"] for r in restored if r["retired"]}
    if ends:
        lose(connection, free_ranges(connection, ends), "replaced", "abandon")
