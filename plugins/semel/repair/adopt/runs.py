"""Build id runs for a rebuilt catalog: the ids of many batches as a few sorted runs.

They go through files, so that reading ids does not need a transaction, and writing them does not
need memory.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from semel.catalog.payload import IdEncoder, write_pieces
from semel.catalog.runs import span_seconds
from semel.catalog.sortedids import distinct
from semel.ledger import row
from semel.model.buckets import Buckets, union
from semel.repair.adopt.ids import ShardIds

OLD_IDS_AT_ONCE = 8 << 20
"""Ids that adopt keeps in memory before it writes them to files: 400 MiB with sorted copies."""


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run to write. Its sorted ids are in the files `h1` and `h2`."""

    shard: int
    buckets: Buckets | None
    seq_min: int
    seq_max: int
    expires_at: datetime
    ids: int
    h1: Path
    h2: Path


@dataclass(kw_only=True)
class _ShardIds:
    """The ids of one shard that are not in a file yet."""

    parts: list[ShardIds] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)


class OldRuns:
    """Collects the ids of batches in commit order.

    Like a merged run, a run has ids that expire within one drop span, so that the catalog does not
    keep an id much longer than its horizon.
    """

    def __init__(self, folder: Path, horizon_seconds: int) -> None:
        self._folder, self._span = folder, span_seconds(horizon_seconds)
        self._groups: dict[int, _ShardIds] = defaultdict(_ShardIds)
        self._of_span: float | None = None
        self._held = 0
        self._runs: list[OldRun] = []

    def add(self, seq: int, expires_at: datetime, parts: list[ShardIds]) -> None:
        """Add the ids of the batch with the commit number `seq`."""
        span = expires_at.timestamp() // self._span
        if span != self._of_span or self._held > OLD_IDS_AT_ONCE:
            self._spill()
        self._of_span = span
        for part in parts:
            group = self._groups[part.shard]
            group.parts.append(part)
            group.seqs.append(seq)
            group.ends.append(expires_at)
            self._held += len(part.h1)

    def finish(self) -> list[OldRun]:
        """All runs, in commit order."""
        self._spill()
        return self._runs

    def _spill(self) -> None:
        for shard, group in sorted(self._groups.items()):
            h1, h2 = distinct(
                np.concatenate([part.h1 for part in group.parts]),
                np.concatenate([part.h2 for part in group.parts]),
            )
            files = [self._folder / f"{len(self._runs)}.{name}.npy" for name in ("h1", "h2")]
            for path, column in zip(files, (h1, h2), strict=True):
                np.save(path, column)
            self._runs.append(
                OldRun(
                    shard=shard,
                    buckets=union(part.buckets for part in group.parts),
                    seq_min=min(group.seqs),
                    seq_max=max(group.seqs),
                    expires_at=max(group.ends),  # Keeps G7.
                    ids=len(h1),
                    h1=files[0],
                    h2=files[1],
                )
            )
        self._groups.clear()
        self._held = 0


def write_run(connection: sa.Connection, pipeline_id: int, segment_id: int, run: OldRun) -> None:
    """Write a run, header and payload, as visible. It does not belong to an attempt."""
    encoder = IdEncoder(run.ids)
    encoder.add(np.load(run.h1), np.load(run.h2), encoder.blocks)
    checksum = encoder.finish()
    header = row(
        connection, "catalog", "insert_visible_run",
        pipeline_id=pipeline_id, shard=run.shard, segment_id=segment_id,
        buckets=run.buckets and run.buckets.to_ledger(), ids=run.ids,
        filter_bytes=encoder.filter_bytes, checksum=checksum,
        seq_min=run.seq_min, seq_max=run.seq_max, expires_at=run.expires_at,
    )  # fmt: skip
    write_pieces(connection, segment_id, header["id_run_id"], encoder.take())
