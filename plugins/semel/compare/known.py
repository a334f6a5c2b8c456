"""Ids that were known from batches outside of the range: the batch path must know them, too.

The catalog does not hold them any more: runs are merged, and expire. But each record that it made
the live path drop is in the stored decisions. Its id came from a batch outside where no earlier
batch of the range took a record with that id.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.archive.marker import Marker
from semel.catalog.ids import hash_ids
from semel.clients.duck import DuckEngine
from semel.compare.which import Chosen
from semel.declare.parts import RepeatScope
from semel.errors import CorruptionError
from semel.formats.pieces import pieces
from semel.model.manifest import Kind
from semel.repair.adopt.ids import Part, ids_in_source, verified_path
from semel.stage.ids_file import write_known

_IN_CATALOG = "duplicate_in_catalog"


def find_known(engine: DuckEngine, chosen: Chosen, folder: Path) -> int:
    """Write the ids that were known from outside of the range, for a job. Returns how many.

    SourceError: what the batches read is not what it was. CorruptionError: what is kept of it.
    """
    try:
        _read(engine, chosen)
    except (OSError, ValueError, pa.ArrowException) as error:
        name = chosen.spec.name
        raise CorruptionError(
            f"what is kept of the records that {name} dropped cannot be read: {error}; restore it "
            "from a backup, or compare a range without that batch",
            next=f"semel audit {name}",
        ) from error
    found = engine.run("known").fetchnumpy()
    write_known(folder, chosen.pipeline.shards, found["shard"], found["h1"], found["h2"])
    return len(found["h1"])


def _read(engine: DuckEngine, chosen: Chosen) -> None:
    dropping = [m for m in chosen.markers if m.counts.duplicates_catalog]
    for marker in dropping:
        for part in _repeated(chosen, marker):
            engine.run("insert_repeated", _table(marker, part))
    if not dropping:
        return
    last = dropping[-1].commit_seq
    for marker in chosen.markers:
        before = last + (marker.spec.dedup.scope is RepeatScope.BUCKET)
        if marker.commit_seq < before and marker.counts.survivors:
            for part in ids_in_source(marker, chosen.claims_of(marker)):
                engine.run("insert_first_seen", _table(marker, part))


def _repeated(chosen: Chosen, marker: Marker) -> Iterator[Part]:
    """Ids that the catalog made a batch drop.

    In scope `bucket` an id has its bucket, which decisions do not hold, so there all records of the
    batch are read again. Those that survived do no harm: they are also among what the range's
    batches saw first.
    """
    if marker.spec.dedup.scope is RepeatScope.BUCKET:
        yield from ids_in_source(marker, chosen.claims_of(marker), (Kind.DEAD_LETTERS,))
        return
    for file in marker.of_kind(Kind.DECISIONS):
        for some in pieces(verified_path(marker, file), ["reason", "record_id"]):
            dropped = some.filter(pc.equal(some.column("reason"), _IN_CATALOG))
            ids = pa.Table.from_struct_array(dropped.column("record_id"))
            hashed = hash_ids(ids, marker.spec.record_id, shards=chosen.pipeline.shards)
            yield hashed.h1, hashed.h2, hashed.shard, None


def _table(marker: Marker, part: Part) -> pa.Table:
    h1, h2, shard, _ = part
    seq = np.full(len(h1), marker.commit_seq, np.int64)
    return pa.table({"seq": seq, "h1": h1, "h2": h2, "shard": shard})
