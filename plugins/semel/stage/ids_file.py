"""A batch's new ids, as files next to its decisions, from which a lost catalog can be rebuilt.

Parquet, one file per shard with new ids: the columns `h1` (uint64) and `h2` (uint32), sorted by h1,
12 bytes an id. The file's metadata gives the shard, the number of shards, and in scope `bucket` the
buckets of the ids.
"""

import io
import json
from dataclasses import dataclass
from typing import IO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.model.buckets import Buckets
from semel.model.manifest import Kind, StagedFile
from semel.storage import ArchivePath, new, readable

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


def write_ids(path: ArchivePath, of: Shard, h1: np.ndarray, h2: np.ndarray) -> StagedFile:
    """Durably write the ids of a shard as a new file. Returns its description."""
    with new(path) as file:
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


def read_ids(path: ArchivePath) -> tuple[Shard, np.ndarray, np.ndarray]:
    """Read a file of `write_ids`: the shard, h1 and h2. Raises OSError, pa.ArrowException or
    ValueError if it is unreadable.
    """
    table = pq.read_table(readable(path), columns=["h1", "h2"], partitioning=None)
    try:
        of = Shard.from_bytes(table.schema.metadata[_KEY])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its metadata lack the shard of its ids ({error})") from error
    return of, table.column("h1").to_numpy(), table.column("h2").to_numpy()


def write_known(
    folder: ArchivePath, shards: int, shard: np.ndarray, h1: np.ndarray, h2: np.ndarray
) -> None:
    """Write ids, sorted by h1 within each shard, for a job that uses them instead of the catalog.

    Each shard gets a file, also an empty shard: a task that does not see its file must fail.
    """
    for number in range(shards):
        in_shard = shard == number
        write_arrays(_known_path(folder, number), h1=h1[in_shard], h2=h2[in_shard])


def read_known(folder: ArchivePath, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the h1 and h2 of a shard from `write_known`. Raises OSError if its file is missing."""
    arrays = read_arrays(_known_path(folder, shard))
    return arrays["h1"], arrays["h2"]


def _known_path(folder: ArchivePath, shard: int) -> ArchivePath:
    return folder / f"known-{shard}.npz"


def write_arrays(path: ArchivePath, **arrays: np.ndarray) -> None:
    """Write arrays, each with its name, for the tasks of one job. Not durable."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    path.write_bytes(file.getbuffer())


def read_arrays(path: ArchivePath) -> dict[str, np.ndarray]:
    """Read the arrays from `write_arrays`. Raises OSError if the file is missing."""
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
        return dict(arrays)
