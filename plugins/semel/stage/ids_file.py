"""A batch's new ids, as files beside its decisions: they can rebuild a lost catalog.

Parquet, one file per shard with new ids: the columns `h1` (uint64) and `h2` (uint32), sorted by h1,
12 bytes an id. The file's metadata gives the shard, the number of shards, and in scope `bucket` the
buckets of the ids.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.model.buckets import Buckets
from semel.model.manifest import Kind, StagedFile
from semel.storage import Sealed

_KEY = b"semel"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The shard of an ids file and, in scope `bucket`, the record-time buckets of its ids."""

    shard: int
    shards: int
    buckets: Buckets | None

    def to_bytes(self) -> bytes:
        """Encode as JSON, for the file's metadata."""
        buckets = None if self.buckets is None else self.buckets.ranges
        plain = {"shard": self.shard, "shards": self.shards, "buckets": buckets}
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` encoded."""
        plain = json.loads(data)
        ranges = plain.pop("buckets")
        return cls(**plain, buckets=None if ranges is None else Buckets.of_ranges(ranges))


def write_ids(path: Path, of: Shard, h1: np.ndarray, h2: np.ndarray) -> StagedFile:
    """Write the ids of a shard durably, as one new file. Returns its description."""
    with Sealed(path) as file:
        write_shard(file, of, h1, h2)
    return StagedFile(
        kind=Kind.IDS,
        path=str(path),
        folder="",
        suffix=".parquet",
        records=len(h1),
        bytes=file.size,
        checksum=file.checksum,
    )


def write_shard(file: IO[bytes], of: Shard, h1: np.ndarray, h2: np.ndarray) -> None:
    """Write the bytes of a shard's file."""
    schema = pa.schema([("h1", pa.uint64()), ("h2", pa.uint32())], {_KEY: of.to_bytes()})
    table = pa.table([pa.array(h1), pa.array(h2)], schema=schema)
    # Hashes neither compress nor repeat: trying would waste time.
    pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)


def read_ids(path: Path) -> tuple[Shard, np.ndarray, np.ndarray]:
    """Read what `write_ids` wrote: the shard, h1 and h2. OSError, pa.ArrowException, ValueError."""
    table = pq.read_table(path, columns=["h1", "h2"], partitioning=None)
    try:
        of = Shard.from_bytes(table.schema.metadata[_KEY])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its metadata does not say which ids it holds ({error})") from error
    return of, table.column("h1").to_numpy(), table.column("h2").to_numpy()


def write_known(
    folder: Path, shards: int, shard: np.ndarray, h1: np.ndarray, h2: np.ndarray
) -> None:
    """Write ids, sorted by h1 within each shard, for a job that has them in place of the catalog.

    Each shard gets a file, also without ids: a task that does not see its file must fail.
    """
    for number in range(shards):
        own = shard == number
        np.savez(_known(folder, number), h1=h1[own], h2=h2[own])


def read_known(folder: Path, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """The h1 and h2 of a shard that `write_known` wrote. OSError: its file is not there."""
    with np.load(_known(folder, shard)) as known:
        return known["h1"], known["h2"]


def _known(folder: Path, shard: int) -> Path:
    return folder / f"known-{shard}.npz"
