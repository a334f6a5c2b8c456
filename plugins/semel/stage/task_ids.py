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

_COLUMNS = ("h1", "<u8"), ("h2", "<u4"), ("row", "<u4")


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
    """Where the ids of a task in a shard lie: `count` ids from byte `start` of the file `path`."""

    task: int
    shard: int
    path: str
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
    path = str(job.spill_dir / f"i{task:05d}-{uuid.uuid4().hex}")
    places, first = [], 0
    with open(path, "wb") as file:
        for shard, count in enumerate(counts):
            place = IdsPlace(task=task, shard=shard, path=path, start=file.tell(), count=count)
            places.append(place)
            for column, (_, kind) in zip(columns, _COLUMNS, strict=True):
                file.write(column[first : first + count].astype(kind, copy=False).data)
            first += count
    return places


def read_task_ids(place: IdsPlace) -> TaskIds:
    """Read the ids at a place. Raises CorruptionError if the file ends before."""
    columns = {}
    with open(place.path, "rb") as file:
        file.seek(place.start)
        for name, kind in _COLUMNS:
            columns[name] = np.fromfile(file, kind, place.count)
    if len(columns["row"]) != place.count:
        raise CorruptionError(
            f"the temporary file {place.path} ends before the ids of shard {place.shard}. Nothing "
            "was committed. Run stage again"
        )
    return TaskIds(task=place.task, **columns)
