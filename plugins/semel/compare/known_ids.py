"""Finds ids that the batches knew from batches outside of the range; the batch path needs them.

The catalog may have lost them: it merges id runs, and they expire. But the stored decisions have
each record that the live path dropped because of the catalog. Its id came from a batch outside of
the range, unless an earlier batch of the range has a record with that id.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.archive.marker import Marker
from semel.catalog.ids import hash_ids
from semel.clients.duck import DuckEngine
from semel.compare.choice import ChosenBatches
from semel.declare.parts import RepeatScope
from semel.errors import CorruptionError
from semel.formats.pieces import read_pieces
from semel.model.manifest import Kind
from semel.repair.adopt.ids import Part, ids_in_source, verified_path
from semel.stage.ids_file import write_known
from semel.storage import ArchivePath

_IN_CATALOG = "duplicate_in_catalog"


def find_known(engine: DuckEngine, chosen: ChosenBatches, folder: ArchivePath) -> int:
    """Write the ids known from outside of the range, for a job. Returns their number.

    Raises SourceError if the source of a batch has changed, CorruptionError if its files have.
    """
    try:
        _insert_ids(engine, chosen)
    except (OSError, ValueError, pa.ArrowException) as error:
        name = chosen.spec.name
        raise CorruptionError(
            f"the decisions, dead letters or ids of {name} cannot be read: {error}. Restore them "
            "from a backup, or compare a range without that batch",
            next=f"semel audit {name}",
        ) from error
    ids = engine.run("known").fetchnumpy()
    write_known(folder, chosen.pipeline.shards, ids["shard"], ids["h1"], ids["h2"])
    return len(ids["h1"])


def _insert_ids(engine: DuckEngine, chosen: ChosenBatches) -> None:
    dropping = [m for m in chosen.markers if m.counts.duplicates_catalog]
    for marker in dropping:
        for part in _repeated_ids(chosen, marker):
            engine.run("insert_repeated", _table(marker, part))
    if not dropping:
        return
    last = dropping[-1].commit_seq
    for marker in chosen.markers:
        end = last + (marker.spec.dedup.scope is RepeatScope.BUCKET)
        if marker.commit_seq < end and marker.counts.survivors:
            for part in ids_in_source(marker, chosen.claims_of(marker)):
                engine.run("insert_first_seen", _table(marker, part))


def _repeated_ids(chosen: ChosenBatches, marker: Marker) -> Iterator[Part]:
    """Ids that a batch dropped because the catalog knew them.

    In scope `bucket` an id includes its bucket, which decisions do not have. So this reads all
    records of the batch again. Its survivors do no harm, as they are also among the first records
    of the range.
    """
    if marker.spec.dedup.scope is RepeatScope.BUCKET:
        yield from ids_in_source(marker, chosen.claims_of(marker), (Kind.DEAD_LETTERS,))
        return
    for file in marker.of_kind(Kind.DECISIONS):
        for piece in read_pieces(verified_path(marker, file), ["reason", "record_id"]):
            dropped = piece.filter(pc.equal(piece.column("reason"), _IN_CATALOG))
            ids = pa.Table.from_struct_array(dropped.column("record_id"))
            hashed = hash_ids(ids, marker.spec.record_id, shards=chosen.pipeline.shards)
            yield hashed.h1, hashed.h2, hashed.shard, None


def _table(marker: Marker, part: Part) -> pa.Table:
    h1, h2, shard, _ = part
    seq = np.full(len(h1), marker.commit_seq, np.int64)
    return pa.table({"seq": seq, "h1": h1, "h2": h2, "shard": shard})
