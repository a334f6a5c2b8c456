"""Whether a key is there twice in one batch, asked of its staged Parquet files. By stage's seal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.catalog.ids import hash_ids
from semel.formats.pieces import pieces
from semel.model.manifest import ManifestFile, StagedFile

KEYS_TWICE_NAMED_MAX = 1_000
"""Keys of a batch that seem to be there twice and are examined; one of them is named."""


@dataclass(frozen=True, kw_only=True)
class Twice:
    """A key that several rows have: its values, how many rows, and how many such keys there are.

    `keys` is at most KEYS_TWICE_NAMED_MAX.
    """

    key: dict[str, Any]
    rows: int
    keys: int


# Keeps PG8.
def twice(files: Sequence[StagedFile | ManifestFile], key: tuple[str, ...]) -> Twice | None:
    """A key that is in more than one row of these files, or None. Rows with a null are left out.

    How it works: 8 bytes of each row's hash are sorted, and where two agree, the keys themselves
    are compared. TypeError: a column cannot identify (floats, nested values).
    """
    hashes = np.empty(sum(file.records for file in files), np.uint64)
    count = 0
    for _, h1 in _hashed(files, key):
        hashes[count : count + len(h1)] = h1
        count += len(h1)
    hashes = hashes[:count]
    hashes.sort()
    again = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])[:KEYS_TWICE_NAMED_MAX]
    if not len(again):
        return None
    # Counted piece by piece: one key may be in all rows.
    found = [
        _counted(rows.filter(pa.array(np.isin(h1, again))), key, ([], "count_all"))
        for rows, h1 in _hashed(files, key)
    ]
    counts = _counted(pa.concat_tables(found), key, ("count_all", "sum"))
    many = counts.filter(pc.greater(counts.column("count_all"), 1))
    if not many.num_rows:
        return None  # Two keys of one hash: once in 10^19 pairs.
    first = many.slice(0, 1).to_pylist()[0]
    return Twice(rows=first.pop("count_all"), key=first, keys=many.num_rows)


def _counted(rows: pa.Table, key: tuple[str, ...], of: tuple[list | str, str]) -> pa.Table:
    """Each key once, with how many there are."""
    counts = rows.group_by(list(key)).aggregate([of])
    return counts.rename_columns([*key, "count_all"])


def _hashed(
    files: Sequence[StagedFile | ManifestFile], key: tuple[str, ...]
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """The keys of all rows, some at once, and their h1 (uint64)."""
    for file in files:
        path = file.path if isinstance(file, StagedFile) else file.staged_path
        for some in pieces(path, key):
            table = pa.Table.from_batches([some])
            hashed = hash_ids(table, key, shards=1)
            yield table.filter(pa.array(hashed.valid)), hashed.h1[hashed.valid]
