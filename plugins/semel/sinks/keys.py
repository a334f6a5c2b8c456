"""Find a key that two rows of a batch share, in its staged Parquet files. Stage calls it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.catalog.ids import hash_ids
from semel.formats.pieces import read_pieces
from semel.model.manifest import ManifestFile, StagedFile
from semel.storage import at

DUPLICATE_KEYS_MAX = 1_000
"""The number of equal hashes whose keys semel compares; a message names one key."""


@dataclass(frozen=True, kw_only=True)
class DuplicateKey:
    """The values of one key that several rows share, the number of its rows, and the number of all
    such keys, at most DUPLICATE_KEYS_MAX.
    """

    key: dict[str, Any]
    rows: int
    keys: int


# Keeps PG8.
def find_duplicate_key(
    files: Sequence[StagedFile | ManifestFile], key: tuple[str, ...]
) -> DuplicateKey | None:
    """A key that several rows of the files share. Skips rows with a null in the key.

    It sorts 8 bytes of each row's hash, and compares the keys themselves if two hashes are equal.
    Returns None if no key repeats. Raises TypeError if a column cannot identify a row (floats,
    nested values).
    """
    hashes = np.empty(sum(file.records for file in files), np.uint64)
    count = 0
    for _, h1 in _hashed(files, key):
        hashes[count : count + len(h1)] = h1
        count += len(h1)
    hashes = hashes[:count]
    hashes.sort()
    equal = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])[:DUPLICATE_KEYS_MAX]
    if not len(equal):
        return None
    # Count piece by piece: one key may be in all rows.
    pieces_counts = [
        _count_keys(rows.filter(pa.array(np.isin(h1, equal))), key, ([], "count_all"))
        for rows, h1 in _hashed(files, key)
    ]
    counts = _count_keys(pa.concat_tables(pieces_counts), key, ("count_all", "sum"))
    duplicates = counts.filter(pc.greater(counts.column("count_all"), 1))
    if not duplicates.num_rows:
        return None  # Two keys with one hash: once in 10^19 pairs.
    first = duplicates.slice(0, 1).to_pylist()[0]
    return DuplicateKey(rows=first.pop("count_all"), key=first, keys=duplicates.num_rows)


def _count_keys(rows: pa.Table, key: tuple[str, ...], how: tuple[list | str, str]) -> pa.Table:
    """The distinct keys, with the number of rows of each."""
    counts = rows.group_by(list(key)).aggregate([how])
    return counts.rename_columns([*key, "count_all"])


def _hashed(
    files: Sequence[StagedFile | ManifestFile], key: tuple[str, ...]
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """The keys of all rows without a null, in pieces, and their h1 (uint64)."""
    for file in files:
        path = file.path if isinstance(file, StagedFile) else file.staged_path
        for piece in read_pieces(at(path), key):
            table = pa.Table.from_batches([piece])
            hashed = hash_ids(table, key, shards=1)
            yield table.filter(pa.array(hashed.valid)), hashed.h1[hashed.valid]
