"""accept: a person's word on what plan refused, or on new columns of the output.

What plan refuses stays unread until then: semel never guesses whether a file that changed holds new
records or old ones.
"""

import os
from dataclasses import dataclass

import sqlalchemy as sa

from semel import faults
from semel.batch import Pipeline
from semel.errors import SourceError, StateError
from semel.ledger import Ledger, change, row, rows, transition
from semel.pipeline import Spec
from semel.plan import known
from semel.sources import files
from semel.sources.files import Known, ListedFile
from semel.sources.formats import is_whole


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The source partition that a file is read under from now on."""

    path: str
    source_partition_id: int
    generation: int
    same: bool
    retired: tuple[int, ...] = ()


# Keeps A3.
def accept_file(ledger: Ledger, spec: Spec, path: str, *, same: bool) -> Accepted:
    """Settle a refused file: as a new generation, read from its start, or as the `same` partition.

    SourceError: the file is not in the source, or with `same` is not what was read before.
    """
    listed, refused = files.list_files(spec)
    path = os.path.join(spec.source_root(), path)
    file = next((f for f in listed if f.path == path), None)
    if file is None:
        whys = (f"{r.reason}: {r.detail}" for r in refused if r.path == path)
        why = next(whys, "it is not there")
        raise SourceError(
            f"{path!r} cannot be read by {spec.name} ({why}), so there is nothing to accept; mend "
            "the file, then run the pipeline"
        )
    with ledger.transaction() as connection:
        found = row(connection, "plan", "pipeline", name=spec.name)
        if found is None:
            raise StateError(f"pipeline {spec.name} never planned a batch; run it first")
        pipeline_id = Pipeline.from_row(found).pipeline_id
        rows(connection, "plan", "lock_pipeline", pipeline_id=pipeline_id)
        there = known(connection, pipeline_id, [file])
        change(connection, "accept", "settle", pipeline_id=pipeline_id, path=path)
        if same:
            accepted = _go_on(connection, spec, file, there, listed)
        else:
            accepted = _begin(connection, pipeline_id, file)
        faults.point("accept.before_accept")
    faults.point("accept.after_accept")
    return accepted


def _go_on(
    connection: sa.Connection,
    spec: Spec,
    file: ListedFile,
    there: list[Known],
    listed: list[ListedFile],
) -> Accepted:
    """Bind the file to the partition whose bytes it begins with, and whose own file is no more."""
    # Keeps A4.
    candidates = [
        k
        for k in there
        if k.tail_end
        and (k.tail_end == file.size or not is_whole(spec, file.path))
        and files.differs(file, k) is None
        and not _lives_elsewhere(file, k, listed)
    ]
    candidates.sort(key=lambda k: (k.path != file.path, -k.tail_end))
    if not candidates:
        raise SourceError(
            f"{file.path!r} ({files.show(file)}) cannot go on where a file that was cut or is gone "
            "stood: it does not begin with what was read of one, or is read whole and grew; accept "
            "it as a new generation instead"
        )
    others = [
        k.source_partition_id
        for k in there
        if k.source_partition_id != candidates[0].source_partition_id
        and (k.path == file.path or (k.device, k.inode) == (file.device, file.inode))
    ]
    change(connection, "plan", "retire_partitions", partitions=others)
    moved = transition(
        connection,
        "accept",
        "move_partition",
        f"partition {candidates[0].source_partition_id} was retired meanwhile; run this again",
        source_partition_id=candidates[0].source_partition_id,
        path=file.path,
        device=file.device,
        inode=file.inode,
    )
    return Accepted(**moved, same=True, retired=tuple(others))


def _lives_elsewhere(file: ListedFile, known: Known, listed: list[ListedFile]) -> bool:
    """Whether what was read of a known file is still there: under its own path, or renamed."""
    for other in listed:
        renamed = (other.device, other.inode) == (known.device, known.inode)
        if renamed and other.path != file.path and files.differs(other, known) is None:
            return True
    if known.path == file.path:
        return False
    try:
        return files.tail_of(known.path, known.tail_end) == known.tail_hash
    except OSError:
        return False


def _begin(connection: sa.Connection, pipeline_id: int, file: ListedFile) -> Accepted:
    """Retire what the file was, and open a new generation under its path."""
    place = {"path": file.path, "device": file.device, "inode": file.inode}
    retired = rows(connection, "accept", "retire", pipeline_id=pipeline_id, **place)
    last = rows(
        connection, "plan", "next_generation", pipeline_id=pipeline_id, paths=[file.path]
    )
    generation = last[0]["generation"] + 1 if last else 1
    made = rows(
        connection,
        "plan",
        "insert_partitions",
        pipeline_id=pipeline_id,
        paths=[file.path],
        generations=[generation],
        devices=[file.device],
        inodes=[file.inode],
        head_lengths=[file.head_length],
        heads=[file.head_hash],
    )[0]
    return Accepted(
        path=file.path,
        source_partition_id=made["source_partition_id"],
        generation=generation,
        same=False,
        retired=tuple(r["source_partition_id"] for r in retired),
    )


def accept_columns(ledger: Ledger, spec: Spec) -> None:
    """Let the next batch that commits decide the output's columns. StateError: no such pipeline."""
    with ledger.transaction() as connection:
        found = row(connection, "plan", "pipeline", name=spec.name)
        transition(
            connection,
            "accept",
            "forget_columns",
            f"pipeline {spec.name} never planned a batch; run it first",
            pipeline_id=found["pipeline_id"] if found else -1,
        )
        faults.point("accept.before_columns")
    faults.point("accept.after_columns")
