"""Read and write source partitions in the ledger.

A partition is open, closed because the source no longer shows it, or retired by accept. A
transaction that changes a pipeline's partitions, claims or losses MUST hold the pipeline's lock and
count up its `source_version`. So plan compares one number to know that its survey still holds.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import sqlalchemy as sa

from semel.errors import StateError
from semel.ledger import Ledger, Row, change, row, rows
from semel.sources import (
    LedgerView,
    LostRange,
    Offer,
    Partition,
    Refusal,
    SourceListing,
    Spans,
    TakenRange,
)

_LOOK_BYTES = 16
_COMPARED_AT_ONCE = 50_000
_LOOK = np.dtype([("first", "u8"), ("second", "u8")])


def version(connection: sa.Connection, pipeline_id: int) -> int:
    """The count of changes to a pipeline's partitions, claims and losses."""
    return row(connection, "partitions", "version", pipeline_id=pipeline_id)["source_version"]


def touch(connection: sa.Connection, pipeline_id: int) -> None:
    """Count a change, in the transaction that makes it, under the pipeline's lock."""
    change(connection, "partitions", "touch", pipeline_id=pipeline_id)


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """The ledger's record of a source, read at one time: ids of settled open partitions with the
    digests of their signatures, ids of the `others`, and the last plan's refusals.

    A source may have millions of partitions, so ids of 8 bytes and digests of 16 bytes are
    concatenated.
    """

    settled: bytes
    signatures: bytes
    others: list[int]
    refused: list[Refusal]

    def compare(
        self, ledger: Ledger, pipeline_id: int, listing: SourceListing
    ) -> tuple[SourceListing, LedgerView]:
        """The listing for this pipeline, and what the ledger knows about it."""
        digests = bytearray()
        for signature in listing.signatures():
            digests += sha256(signature.encode()).digest()[:_LOOK_BYTES]
        then, now = np.frombuffer(self.signatures, _LOOK), np.frombuffer(digests, _LOOK)
        # Their signatures have changed, or the source no longer shows them.
        changed = np.frombuffer(self.settled, ">i8")[_outside(then, now)]
        ids = self.others + changed.tolist()
        unsettled = listing.items_at(_outside(now, then).tolist())
        partitions = ledger.rows("partitions", "by_id", partitions=ids) if ids else []
        view = LedgerView(
            partitions=[Partition(**r) for r in partitions],
            unsettled=unsettled,
            refusals=self.refused,
            query=partial(ledger.rows, pipeline_id=pipeline_id),
        )
        return (listing, view) if not listing.private else without_private(listing, view)


# Keeps P26.
def without_private(
    listing: SourceListing, view: LedgerView
) -> tuple[SourceListing, LedgerView]:
    """Leave out the private names that the ledger does not know."""
    hidden = listing.private & {item.name for item in (*view.unsettled, *listing.refusals)}
    hidden -= {partition.name for partition in view.partitions}

    def visible(items: Iterable[Any]) -> list[Any]:
        return [item for item in items if item.name not in hidden]

    listing = replace(listing, items=visible(listing.items), refusals=visible(listing.refusals))
    return listing, replace(view, unsettled=visible(view.unsettled))


def _outside(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The indices of values that are not among the others."""
    if not len(others):
        return np.arange(len(values))
    others = others[np.argsort(others["first"])]
    outside = np.empty(len(values), bool)
    for at in range(0, len(values), _COMPARED_AT_ONCE):
        few = values[at : at + _COMPARED_AT_ONCE]
        places = np.searchsorted(others["first"], few["first"])
        # Compares with one value that shares 8 bytes: a false difference costs one more look.
        outside[at : at + _COMPARED_AT_ONCE] = others[np.minimum(places, len(others) - 1)] != few
    return np.flatnonzero(outside)


def read_state(
    connection: sa.Connection, pipeline_id: int, orphans: Iterable[int] = ()
) -> LedgerState:
    """Read the ledger's record of a source. Claims of an orphan do not count as settled."""
    batches = rows(
        connection, "partitions", "settled", pipeline_id=pipeline_id, orphans=list(orphans)
    )
    refused = rows(connection, "partitions", "refused", pipeline_id=pipeline_id)
    return LedgerState(
        settled=b"".join(r["settled"] for r in batches),
        signatures=b"".join(r["looks"] for r in batches),
        others=[partition for r in batches for partition in r["others"]],
        refused=[Refusal(**r) for r in refused],
    )


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """The numbers that a plan's ranges depend on. Same numbers, same ranges.

    `latest`: the request's latest batch. `orphans`: planned batches of other requests without a
    sign of life for `limits.orphan_after`. `is_full`: since the newest batch, a plan has left
    nothing unread.
    """

    version: int
    latest: int | None
    orphans: list[int]
    is_full: bool


def state(
    connection: sa.Connection, pipeline_id: int, request_key: str | None, silent_seconds: float
) -> PlanInputs:
    """The state of a pipeline's source, read in one statement."""
    numbers = row(
        connection,
        "partitions",
        "state",
        pipeline_id=pipeline_id,
        request_key=request_key,
        orphan_seconds=silent_seconds,
    )
    return PlanInputs(**numbers)


def holders(
    connection: sa.Connection, batches: list[int], partitions: Iterable[int]
) -> list[int]:
    """Those of the batches that have claimed a range of one of the partitions."""
    if not batches:
        return []
    claiming = rows(
        connection, "partitions", "holders", batches=batches, partitions=list(partitions)
    )
    return [r["batch_id"] for r in claiming]


def free_ranges(
    connection: sa.Connection, ends: dict[int, int], orphans: Iterable[int] = ()
) -> Spans:
    """The ranges up to an end of each partition that are neither lost nor claimed. Claims of
    `orphans` do not count.
    """
    if not ends:
        return {}
    ranges = rows(
        connection,
        "partitions",
        "free_ranges",
        ends=json.dumps(
            [{"source_partition_id": part, "record_end": end} for part, end in ends.items()]
        ),
        orphans=list(orphans),
    )
    spans: Spans = {}
    for r in ranges:
        spans.setdefault(r["source_partition_id"], []).append((r["start"], r["end"]))
    return spans


def up_to(spans: Spans, ends: dict[int, int]) -> Spans:
    """Cut ranges at an end for each partition."""
    cut = {
        part: [(start, min(end, ends[part])) for start, end in ranges if start < ends[part]]
        for part, ranges in spans.items()
        if part in ends
    }
    return {part: ranges for part, ranges in cut.items() if ranges}


def raise_floor(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Let later surveys of the partitions begin at the first range that is or may become free.

    The caller holds the pipeline's lock, so no transaction abandons a planned batch meanwhile.
    """
    change(connection, "partitions", "raise_floor", partitions=list(partitions))


def unaccounted(
    connection: sa.Connection, pipeline_id: int
) -> tuple[list[Partition], Spans]:
    """Closed partitions with ranges that plan saw and no batch claimed, and these ranges."""
    unread = rows(connection, "partitions", "unaccounted", pipeline_id=pipeline_id)
    closed = [Partition(**r) for r in unread]
    ends = {k.source_partition_id: k.seen for k in closed}
    spans = free_ranges(connection, ends)
    return [k for k in closed if k.source_partition_id in spans], spans


def close(connection: sa.Connection, lost: Collection[LostRange], unread: Collection[int]) -> None:
    """Close partitions at the last position that plan saw. `unread`: those with unread ranges."""
    closed = [
        {
            "source_partition_id": item.partition.source_partition_id,
            "seen": item.seen,
            "accounted": item.partition.source_partition_id not in unread,
        }
        for item in lost
    ]
    if closed:
        change(connection, "partitions", "close", partitions=json.dumps(closed))


# Keeps P25.
def update(connection: sa.Connection, updates: list[Partition]) -> None:
    """Update the rows of known partitions, and open closed ones again.

    Raises StateError if a batch has claimed other content of such a partition.
    """
    new = json.dumps([vars(partition) for partition in updates])
    if updates and change(connection, "partitions", "update", partitions=new) < len(updates):
        raise StateError(
            "plan would change the content of a source partition that a batch has claimed. "
            "Nothing was written. semel has a bug: please report it"
        )


def retire(connection: sa.Connection, partitions: list[int]) -> None:
    """Forget partitions that accept replaced, or that a new one contains entirely."""
    if partitions:
        change(connection, "partitions", "retire", partitions=partitions)


def insert(
    connection: sa.Connection, pipeline_id: int, offers: list[tuple[Offer, TakenRange | None]]
) -> list[Row]:
    """Open the next generation of each offer's name, with the last range taken from it.

    Returns (source_partition_id, name, generation) for each.
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
    """Mark closed partitions as accounted for: all seen positions are claimed or lost."""
    change(connection, "partitions", "account", partitions=list(partitions))


def lose(connection: sa.Connection, spans: Spans, reason: str, accepted_by: str) -> None:
    """Record ranges as lost for good, and who accepted that."""
    lost = [
        {"source_partition_id": partition, "start": start, "end": end}
        for partition, ranges in spans.items()
        for start, end in ranges
    ]
    if lost:
        values = {"reason": reason, "accepted_by": accepted_by}
        change(connection, "partitions", "lose", spans=json.dumps(lost), **values)


# Keeps A6.
def restore(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Reset partitions to what is still claimed, after a batch has released claims.

    If accept has retired a partition meanwhile, record its unclaimed ranges as lost.
    """
    restored = rows(connection, "partitions", "restore", partitions=sorted(set(partitions)))
    ends = {r["source_partition_id"]: r["seen"] for r in restored if r["retired"]}
    if ends:
        lose(connection, free_ranges(connection, ends), "replaced", "abandon")
