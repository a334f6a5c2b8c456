"""classify: find the duplicates in a shard, within the batch or in the catalog.

A pure function of the shard's ids, in source order, and of the ids in the pinned runs. The first
copy in source order wins. If the catalog has an id, every copy is a duplicate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from semel.catalog import sortedids
from semel.stage.task_ids import TaskIds

Contains = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Repeat(IntEnum):
    """Why a record is not a survivor."""

    OF_BATCH = 1
    OF_CATALOG = 2


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The rows (uint32, ascending) dropped from a task, and the `Repeat` (uint8) of each."""

    rows: np.ndarray
    reason: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The rows to drop, by task (only tasks that lose rows), and the new ids.

    `h1` and `h2` are the survivors' ids, one each, sorted by h1: the shard's next id run.
    """

    dropped: dict[int, Dropped]
    h1: np.ndarray
    h2: np.ndarray

    @property
    def survivors(self) -> int:
        """The number of records that stay."""
        return len(self.h1)


def classify(parts: list[TaskIds], contains: Contains) -> Classification:
    """Judge a shard's ids. `parts` come in source order, one per task.

    Calls `contains(h1, h2)` once, with distinct ids sorted by h1. It returns a mask of the ids in
    the pinned runs.
    """
    # 1. Group the copies of each id, in source order.
    h1 = np.concatenate([np.empty(0, np.uint64), *(part.h1 for part in parts)])
    h2 = np.concatenate([np.empty(0, np.uint32), *(part.h2 for part in parts)])
    order = sortedids.grouped_order(h1, h2)
    h1, h2 = h1[order], h2[order]
    first = sortedids.is_first(h1, h2)

    # 2. Query the catalog once for each id.
    new_h1, new_h2 = h1[first], h2[first]
    old = contains(new_h1, new_h2)

    # 3. Judge every copy, then restore source order.
    # Keeps S8.
    judged = np.where(first, np.uint8(0), np.uint8(Repeat.OF_BATCH))
    if old.any():
        judged[old[np.cumsum(first) - 1]] = Repeat.OF_CATALOG
    reason = np.empty(len(h1), dtype=np.uint8)
    reason[order] = judged
    dropped = {}
    start = 0
    for part in parts:
        of_part = reason[start : start + len(part.h1)]
        start += len(part.h1)
        repeats = np.flatnonzero(of_part)
        if len(repeats):
            dropped[part.task] = Dropped(rows=part.row[repeats], reason=of_part[repeats])
    return Classification(dropped=dropped, h1=new_h1[~old], h2=new_h2[~old])


def pack_dropped(dropped: Dropped) -> bytes:
    """Encode dropped rows for the shuffle: the rows, then their reasons."""
    return dropped.rows.astype("<u4").tobytes() + dropped.reason.astype("u1").tobytes()


def unpack_dropped(data: bytes) -> Dropped:
    """Decode what `pack_dropped` encoded. The columns are views of `data`."""
    count = len(data) // 5
    return Dropped(
        rows=np.frombuffer(data, "<u4", count), reason=np.frombuffer(data, "u1", count, 4 * count)
    )
