"""Ids that were known from batches outside of the range: the batch path must know them, too.

The catalog does not hold them any more: runs are merged, and expire. But each record that it made
the live path drop is in the stored decisions. Its id came from a batch outside where no earlier
batch of the range took a record with that id.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.archive.marker import Marker
from semel.catalog.ids import hash_ids
from semel.catalog.runs import ensure_segment
from semel.compare.engine import Engine
from semel.compare.which import Chosen
from semel.errors import CorruptionError
from semel.formats.pieces import pieces
from semel.ledger import Ledger, pipelines
from semel.model.batch import Pipeline
from semel.model.buckets import union
from semel.model.manifest import Kind
from semel.pipeline import Scope
from semel.repair.adopt.ids import Part, ShardIds, in_source, whole_file
from semel.repair.adopt.runs import OldRuns, write

_IN_CATALOG = "duplicate_in_catalog"


def find_known(engine: Engine, chosen: Chosen) -> list[ShardIds]:
    """The ids that were known from outside of the range, by shard.

    SourceError: what the batches read is not what it was. CorruptionError: what is kept of it.
    """
    try:
        return _find(engine, chosen)
    except (OSError, ValueError, pa.ArrowException) as error:
        name = chosen.spec.name
        raise CorruptionError(
            f"what is kept of the records that {name} dropped cannot be read: {error}; restore it "
            "from a backup, or compare a range without that batch",
            next=f"semel audit {name}",
        ) from error


def _find(engine: Engine, chosen: Chosen) -> list[ShardIds]:
    dropping = [m for m in chosen.markers if m.counts.duplicates_catalog]
    if not dropping:
        return []
    buckets = None
    for marker in dropping:
        for part in _repeated(chosen, marker):
            engine.insert("insert_repeated", _table(marker, part, ("h1", "h2", "shard")))
            buckets = union((buckets, part[3]))
    last = dropping[-1].commit_seq
    for marker in chosen.markers:
        before = last + (marker.spec.dedup.scope is Scope.BUCKET)
        if marker.commit_seq < before and marker.counts.survivors:
            for part in in_source(marker, chosen.claims_of(marker)):
                engine.insert("insert_first_seen", _table(marker, part, ("h1", "h2")))
    found = engine.columns("known")
    shards, h1, h2 = found["shard"], found["h1"], found["h2"]
    return [
        ShardIds(
            shard=int(shard),
            h1=h1[shards == shard],
            h2=h2[shards == shard],
            buckets=buckets,
        )
        for shard in np.unique(shards)
    ]


def _repeated(chosen: Chosen, marker: Marker) -> Iterator[Part]:
    """Ids that the catalog made a batch drop, and in scope `bucket` their buckets.

    Decisions do not hold buckets, so in that scope all records of the batch are read again. Those
    that survived do no harm: they are also among what the range's batches saw first.
    """
    if marker.spec.dedup.scope is Scope.BUCKET:
        yield from in_source(marker, chosen.claims_of(marker), (Kind.DEAD_LETTERS,))
        return
    for file in marker.of_kind(Kind.DECISIONS):
        for some in pieces(whole_file(marker, file), ["reason", "record_id"]):
            table = pa.Table.from_batches([some])
            wanted = pc.equal(table.column("reason"), _IN_CATALOG)
            ids = pa.Table.from_struct_array(table.filter(wanted).column("record_id"))
            hashed = hash_ids(ids, marker.spec.record_id, shards=chosen.pipeline.shards)
            yield hashed.h1, hashed.h2, hashed.shard, None


def _table(marker: Marker, part: tuple, names: tuple[str, ...]) -> pa.Table:
    columns = dict(zip(("h1", "h2", "shard"), part, strict=False))
    seq = np.full(len(part[0]), marker.commit_seq, np.int64)
    return pa.table({"seq": seq, **{name: columns[name] for name in names}})


def teach(
    scratch: Ledger, pipeline: Pipeline, horizon_seconds: int, known: list[ShardIds], folder: Path
) -> None:
    """Put ids into a scratch catalog, as of a commit before its first one."""
    runs = OldRuns(folder, horizon_seconds)
    with scratch.transaction() as connection:
        pipelines.lock(connection, pipeline)
        segment = ensure_segment(connection, pipeline.pipeline_id, horizon_seconds)
    expires = datetime.now(UTC) + timedelta(seconds=horizon_seconds)
    for part in known:
        runs.add(0, expires, [part])
    for run in runs.finish():
        with scratch.transaction() as connection:
            write(connection, pipeline.pipeline_id, segment, run)
