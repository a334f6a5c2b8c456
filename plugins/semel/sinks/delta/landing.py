"""How a batch lands: its files go below the table, and then one commit names them, or nothing.

1. Each staged file is written anew with semel's two columns, under a name that the manifest gives.
   No reader of the table sees it: it is in no commit.
2. One commit adds the files, and sets the batch's transaction: an application's id, made of the
   pipeline, the batch and the manifest's digest, at version 1. It is made through the handle by
   which that was found to be absent, and not tried again by the library: where somebody has
   committed meanwhile, it fails, and the table is looked at anew.

What landed is a set of such ids, and no highest number: batches are finalized in any order.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from semel import failpoints
from semel.errors import AGAIN, CorruptionError, RetryableError
from semel.formats.parquetsink import ROW_GROUP_BYTES
from semel.formats.pieces import gathered
from semel.model.manifest import ManifestFile
from semel.sinks import CommittedBatch, Presence
from semel.sinks.delta.statistics import Statistics
from semel.sinks.delta.table import OWN, Table, with_own
from semel.sinks.staged import check_count, staged

PUTS_AT_ONCE = 2
"""Files that are written at once: each takes a core, and its bytes are held."""

COMMITS_MAX = 50
"""How often a commit is tried in one publish, where others commit all the time."""

# Keeps DL1.
def app_id(won: CommittedBatch) -> str:
    """The application whose transaction a batch is, the same in each process."""
    return f"semel:{won.pipeline}:{won.batch_id}:{won.digest}"


def name_of(won: CommittedBatch, file: ManifestFile) -> str:
    """A file's name below the table, which no other batch, part or manifest has."""
    return f"{file.final_path.rpartition('#')[2]}-{won.digest[:16]}.parquet"


# Keeps DL2, DL3.
def presences(table: Table, won: CommittedBatch) -> list[Presence]:
    """What is there of each file of a batch."""
    now = table.now()
    if now is None:
        return [Presence.ABSENT] * len(won.files)
    if now.transaction_version(app_id(won)) is None:
        there = table.count(now, won.batch_id)
        return [Presence.WRONG if there else Presence.ABSENT] * len(won.files)
    active = table.active(now, [name_of(won, file) for file in won.files])
    if len(active) < len(won.files) and not table.count(now, won.batch_id):
        raise CorruptionError(
            f"batch {won.batch_id}: {table.address} has its commit, and none of its rows: somebody "
            "has deleted them, overwritten the table or restored a version before it. RESTORE a "
            "version that has them. To erase rows, delete them once the batch is finalized",
            next=AGAIN,
        )
    # A compaction has put others in the place of files; a vacuum before the commit has not.
    return [
        Presence.ABSENT if name in active and table.size(name) is None else Presence.RIGHT
        for name in (name_of(won, file) for file in won.files)
    ]


# Keeps DL3.
def mend(table: Table, won: CommittedBatch) -> None:
    """Put there again what a commit of the batch names and is gone: nobody can read the table.

    CorruptionError: what is put there would not be what was.
    """
    now = table.now()
    if now is None or now.transaction_version(app_id(won)) is None:
        return
    names = {name_of(won, file): file for file in won.files}
    for name, size in table.active(now, list(names)).items():
        if table.size(name) is None:
            _put(table, won, names[name], size)


def land(table: Table, won: CommittedBatch) -> None:
    """Let a batch land, unless it has, or rows of its number are there.

    RetryableError: others have committed all the time.
    """
    now = table.fit(won.schema)
    if now.transaction_version(app_id(won)) is not None:
        mend(table, won)
        return
    if table.count(now, won.batch_id):
        return  # The next look tells what they are.
    with ThreadPoolExecutor(PUTS_AT_ONCE) as threads:
        adds = list(threads.map(partial(_put, table, won), won.files))
    for _ in range(COMMITS_MAX):
        failpoints.point("sink.before_delta")
        if _committed(table, now, won, adds):
            failpoints.point("sink.after_delta")
            return
        now = table.fit(won.schema)
        if now.transaction_version(app_id(won)) is not None or table.count(now, won.batch_id):
            return
    raise RetryableError(
        f"batch {won.batch_id}: others have committed to {table.address} {COMMITS_MAX} times "
        "meanwhile; run finalize again"
    )


# Keeps DL2.
def _committed(table: Table, now: DeltaTable, won: CommittedBatch, adds: list[AddAction]) -> bool:
    """Name the files in one commit. False: somebody has committed since the handle was made, or
    the answer was lost: the next look tells.
    """
    about = CommitProperties(
        app_transactions=[Transaction(app_id(won), 1)],
        max_commit_retries=0,
        custom_metadata={"semel": f"{won.pipeline} {won.batch_id}"},
    )
    with table.answers():
        try:
            now.create_write_transaction(
                adds, mode="append", schema=now.schema(), partition_by=[], commit_properties=about
            )
        except CommitFailedError:
            later = table.now()
            if later is not None and later.version() == now.version():
                raise  # Nobody has committed: it is refused.
            return False
    return True


def _put(
    table: Table, won: CommittedBatch, file: ManifestFile, named: int | None = None
) -> AddAction:
    """Write a file below the table; or take the one of that name, which a twin has written.
    `named`: its bytes, where a commit says them.
    """
    name = name_of(won, file)
    with tempfile.TemporaryFile(dir=Path(file.staged_path).parent) as copy:
        told = _write(copy, won, file)
        written = copy.tell()
        if named is not None and named != written:
            raise CorruptionError(
                f"batch {won.batch_id}: {table.address}/{name} is gone, had {named} bytes, and "
                f"written anew it would have {written}: by another version of pyarrow. Run "
                f"finalize with the one that wrote it, as {file.staged_path} says, or restore it "
                "from a backup"
            )
        copy.seek(0)
        failpoints.point("sink.before_file")
        table.put(name, copy.read())
    failpoints.point("sink.after_file")
    size = table.size(name)
    if size is None:
        raise RetryableError(
            f"batch {won.batch_id}: {table.address}/{name} was removed as soon as it was written; "
            "run finalize again, and let no vacuum run with a retention of minutes"
        )
    return AddAction(
        path=name, size=size, partition_values={}, modification_time=int(time.time() * 1000),
        data_change=True, stats=told.text(),
    )  # fmt: skip


# Keeps DL5.
def _write(copy: IO[bytes], won: CommittedBatch, file: ManifestFile) -> Statistics:
    """The rows of a staged file with their batch and its place. Returns what is said of them."""
    schema, told = with_own(won.schema), Statistics()
    values = [pa.scalar(number, pa.int64()) for number in (won.batch_id, won.commit_seq)]
    pieces = (pa.Table.from_batches([rows]) for rows in staged(won, files=[file]))
    with pq.ParquetWriter(copy, schema, compression="zstd", compression_level=1) as writer:
        for some in gathered(pieces, ROW_GROUP_BYTES):
            for field, value in zip(OWN, values, strict=True):
                some = some.append_column(field, pa.repeat(value, some.num_rows))
            told.add(some := some.cast(schema))
            writer.write_table(some)
    check_count(won, told.rows, [file])
    return told
