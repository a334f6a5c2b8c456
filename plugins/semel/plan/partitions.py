"""Read and write source partitions in the ledger.

A partition is open, closed because it is gone, or retired by accept. Whoever changes a pipeline's
partitions, claims or losses holds its lock and counts up its `source_version`. So one comparison
tells a plan whether its basis still holds.
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
    LostRange,
    LedgerView,
    Offer,
    Partition,
    TakenRange,
    Refusal,
    SourceListing,
    Spans,
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
    """What the ledger holds of a source, read at one time: which open partitions are settled, and
    how these looked; which are not; and what the last plan refused.

    There may be very many: so they are ids of 8 bytes each and digests of 16, one behind the other.
    """

    settled: bytes
    looks: bytes
    others: list[int]
    refused: list[Refusal]

    def known(
        self, ledger: Ledger, pipeline_id: int, shown: SourceListing
    ) -> tuple[SourceListing, LedgerView]:
        """What is shown to this pipeline, and what the ledger knows about it."""
        digests = bytearray()
        for look in shown.signatures():
            digests += sha256(look.encode()).digest()[:_LOOK_BYTES]
        then, now = np.frombuffer(self.looks, _LOOK), np.frombuffer(digests, _LOOK)
        # They look otherwise now, or are not shown.
        gone = np.frombuffer(self.settled, ">i8")[_outside(then, now)]
        asked = self.others + gone.tolist()
        unsettled = shown.items_at(_outside(now, then).tolist())
        partitions = ledger.rows("partitions", "by_id", partitions=asked) if asked else []
        known = LedgerView(
            partitions=[Partition(**r) for r in partitions],
            unsettled=unsettled,
            refusals=self.refused,
            query=partial(ledger.rows, pipeline_id=pipeline_id),
        )
        return (shown, known) if not shown.private else without_private(shown, known)


# Keeps P26.
def without_private(shown: SourceListing, known: LedgerView) -> tuple[SourceListing, LedgerView]:
    """The same without the private names of which nothing is known."""
    over = shown.private & {one.name for one in (*known.unsettled, *shown.refusals)}
    over -= {partition.name for partition in known.partitions}

    def rest(some: Iterable[Any]) -> list[Any]:
        return [one for one in some if one.name not in over]

    shown = replace(shown, items=rest(shown.items), refusals=rest(shown.refusals))
    return shown, replace(known, unsettled=rest(known.unsettled))


def _outside(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The places of those that are not among the others."""
    if not len(others):
        return np.arange(len(some))
    others = others[np.argsort(others["first"])]
    outside = np.empty(len(some), bool)
    for at in range(0, len(some), _COMPARED_AT_ONCE):
        few = some[at : at + _COMPARED_AT_ONCE]
        places = np.searchsorted(others["first"], few["first"])
        # Of others that begin alike one is compared: what is told apart in vain is looked at again.
        outside[at : at + _COMPARED_AT_ONCE] = others[np.minimum(places, len(others) - 1)] != few
    return np.flatnonzero(outside)


def held(connection: sa.Connection, pipeline_id: int, orphans: Iterable[int] = ()) -> LedgerState:
    """What the ledger holds. An orphan's claims do not count as settled."""
    found = rows(
        connection, "partitions", "settled", pipeline_id=pipeline_id, orphans=list(orphans)
    )
    refused = rows(connection, "partitions", "refused", pipeline_id=pipeline_id)
    return LedgerState(
        settled=b"".join(r["settled"] for r in found),
        looks=b"".join(r["looks"] for r in found),
        others=[partition for r in found for partition in r["others"]],
        refused=[Refusal(**r) for r in refused],
    )


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """The numbers that a plan's ranges depend on. Same numbers, same ranges.

    `latest`: the request's latest batch. `orphans`: planned batches of other requests that have
    shown no sign of life for long. `is_full`: a plan has left nothing since the newest batch.
    """

    version: int
    latest: int | None
    orphans: list[int]
    is_full: bool


def state(
    connection: sa.Connection, pipeline_id: int, request_key: str | None, silent_seconds: float
) -> PlanInputs:
    """The state of a pipeline's source, read in one statement."""
    found = row(
        connection,
        "partitions",
        "state",
        pipeline_id=pipeline_id,
        request_key=request_key,
        orphan_seconds=silent_seconds,
    )
    return PlanInputs(**found)


def holders(
    connection: sa.Connection, batches: list[int], partitions: Iterable[int]
) -> list[int]:
    """The batches among these that have claimed a range of these partitions."""
    if not batches:
        return []
    found = rows(
        connection, "partitions", "holders", batches=batches, partitions=list(partitions)
    )
    return [r["batch_id"] for r in found]


def free_ranges(
    connection: sa.Connection, ends: dict[int, int], orphans: Iterable[int] = ()
) -> Spans:
    """The ranges up to an end of each partition that are not lost, nor claimed except by `orphans`.
    """
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
    """Cut ranges at an end for each partition."""
    cut = {
        part: [(start, min(end, ends[part])) for start, end in found if start < ends[part]]
        for part, found in spans.items()
        if part in ends
    }
    return {part: found for part, found in cut.items() if found}


def raise_floor(connection: sa.Connection, partitions: Iterable[int]) -> None:
    """Let later surveys of these partitions begin at the first range that is or may become free.

    Under the pipeline's lock, so that no planned batch is abandoned meanwhile.
    """
    change(connection, "partitions", "raise_floor", partitions=list(partitions))


def unaccounted(
    connection: sa.Connection, pipeline_id: int
) -> tuple[list[Partition], Spans]:
    """Closed partitions with ranges that were seen and never claimed, and those ranges."""
    found = rows(connection, "partitions", "unaccounted", pipeline_id=pipeline_id)
    closed = [Partition(**r) for r in found]
    ends = {k.source_partition_id: k.seen for k in closed}
    spans = free_ranges(connection, ends)
    return [k for k in closed if k.source_partition_id in spans], spans


def close(connection: sa.Connection, gone: Collection[LostRange], unread: Collection[int]) -> None:
    """Close partitions at the end of what was seen. `unread`: those with ranges never read."""
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


# Keeps P25.
def update(connection: sa.Connection, updates: list[Partition]) -> None:
    """Update the rows of known partitions. A closed one is open again.

    StateError: a claim stands on other content of one of them.
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
    """Mark closed partitions as accounted for: all that was seen is claimed or lost."""
    change(connection, "partitions", "account", partitions=list(partitions))


def lose(connection: sa.Connection, spans: Spans, reason: str, accepted_by: str) -> None:
    """Record ranges as lost for good, and who accepted that."""
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
    """Reset partitions whose claims were released to what is still claimed.

    If accept retired one meanwhile, record the rest as lost.
    """
    restored = rows(connection, "partitions", "restore", partitions=sorted(set(partitions)))
    ends = {r["source_partition_id"]: r["seen"] for r in restored if r["retired"]}
    if ends:
        lose(connection, free_ranges(connection, ends), "replaced", "abandon")
