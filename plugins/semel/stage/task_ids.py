"""The ids of a task's valid records, from read to classify in a file, sorted by shard.

Spark shuffles only where they lie: its JVM would copy each byte six times.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from semel.catalog.ids import HashedIds, join_ids
from semel.errors import CorruptionError
from semel.stage.job import StageJob
from semel.storage import read_range

_COLUMNS = ("h1", "<u8"), ("h2", "<u4"), ("row", "<u4")
_BYTES = 16  # One id, in all columns.


@dataclass(frozen=True, kw_only=True)
class TaskIds:
    """The ids of one task in one shard, in source order.

    `row` (uint32) is each id's row among the task's valid records, ascending. h1 is uint64, h2
    uint32.
    """

    task: int
    h1: np.ndarray
    h2: np.ndarray
    row: np.ndarray


@dataclass(frozen=True, kw_only=True)
class IdsPlace:
    """Where the ids of a task in a shard lie: `count` ids from byte `start` of the file `name`."""

    task: int
    shard: int
    name: str
    start: int
    count: int

    def to_bytes(self) -> bytes:
        """Encode for the shuffle."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` encoded."""
        return cls(**json.loads(data))


def write_task_ids(job: StageJob, task: int, parts: Iterable[HashedIds]) -> list[IdsPlace]:
    """Write the ids of a task's valid records, given in order. Returns a place for every shard."""
    ids = join_ids(parts)
    order = np.argsort(ids.shard, kind="stable")
    counts = np.bincount(ids.shard, minlength=job.shards).tolist()
    columns = ids.h1[order], ids.h2[order], order
    name = f"i{task:05d}-{uuid.uuid4().hex}"
    places, parts, first, start = [], [], 0, 0
    for shard, count in enumerate(counts):
        places.append(IdsPlace(task=task, shard=shard, name=name, start=start, count=count))
        for column, (_, kind) in zip(columns, _COLUMNS, strict=True):
            parts.append(column[first : first + count].astype(kind, copy=False).data)
        first, start = first + count, start + count * _BYTES
    (job.spill_dir / name).write_bytes(b"".join(parts))
    return places


def read_task_ids(job: StageJob, place: IdsPlace) -> TaskIds:
    """Read the ids at a place. Raises CorruptionError if the file ends before."""
    path = job.spill_dir / place.name
    data = read_range(path, place.start, place.count * _BYTES)
    if len(data) != place.count * _BYTES:
        raise CorruptionError(
            f"the temporary file {path} ends before the ids of shard {place.shard}. Nothing "
            "was committed. Run stage again"
        )
    columns, start = {}, 0
    for name, kind in _COLUMNS:
        columns[name] = np.frombuffer(data, kind, place.count, start)
        start += columns[name].nbytes
    return TaskIds(task=place.task, **columns)
