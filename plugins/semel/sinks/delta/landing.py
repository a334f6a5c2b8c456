"""Publish a batch: write its files below the table, then name them all in one commit.

1. Finalize copies each staged file, with semel's two columns, to a name that the manifest gives.
   Readers do not see the copy: no commit names it.
2. One commit adds the files and sets the batch's transaction: an application id from pipeline,
   batch and manifest digest, at version 1. The commit uses the handle that lacked the transaction,
   without the library's retries. If another commit came first, it fails, and finalize opens the
   table again.

The published batches are a set of application ids, not a highest number: batches finish in any
order.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from semel import failpoints
from semel.errors import AGAIN, CorruptionError, RetryableError
from semel.formats.parquetsink import ROW_GROUP_BYTES
from semel.formats.pieces import gather
from semel.model.manifest import ManifestFile
from semel.sinks import CommittedBatch, Presence
from semel.sinks.delta.statistics import Statistics
from semel.sinks.delta.table import SEMEL_COLUMNS, DeltaTarget, with_semel_columns
from semel.sinks.staged import check_count, staged
from semel.storage import at, folder_for_copies

PUTS_AT_ONCE = 2
"""Files that finalize writes at once: each needs a core, and memory for its bytes."""

COMMITS_MAX = 50
"""Commits that one publish tries, if others commit constantly."""

# Keeps DL1.
def app_id(won: CommittedBatch) -> str:
    """The application id of a batch's transaction, the same in each process."""
    return f"semel:{won.pipeline}:{won.batch_id}:{won.digest}"


def file_name(won: CommittedBatch, file: ManifestFile) -> str:
    """A file's name below the table, unique for (batch, part, manifest)."""
    return f"{file.final_path.rpartition('#')[2]}-{won.digest[:16]}.parquet"


# Keeps DL2, DL3.
def presences(
    table: DeltaTarget, won: CommittedBatch, now: DeltaTable | None
) -> list[Presence]:
    """The state of each file of a batch in a version of the table."""
    if now is None:
        return [Presence.ABSENT] * len(won.files)
    if now.transaction_version(app_id(won)) is None:
        rows = table.count(now, won.batch_id)
        return [Presence.WRONG if rows else Presence.ABSENT] * len(won.files)
    active = table.active_files(now, [file_name(won, file) for file in won.files])
    if len(active) < len(won.files) and not table.count(now, won.batch_id):
        raise CorruptionError(
            f"batch {won.batch_id}: {table.address} has its commit but none of its rows. Somebody "
            "has deleted them, overwritten the table or restored an older version. RESTORE a "
            "version that has them. To erase rows, wait until the batch is finalized",
            next=AGAIN,
        )
    # Only a commit that still names a missing file needs it: a compaction removes such names.
    return [
        Presence.ABSENT if name in active and table.file_size(name) is None else Presence.RIGHT
        for name in (file_name(won, file) for file in won.files)
    ]


# Keeps DL3.
def restore_files(table: DeltaTarget, won: CommittedBatch, now: DeltaTable | None) -> None:
    """Restore missing files that a commit of the batch names: without them, no reader can read the
    table. Raises CorruptionError if a restored file would differ from the lost one.
    """
    if now is None or now.transaction_version(app_id(won)) is None:
        return
    names = {file_name(won, file): file for file in won.files}
    for name, size in table.active_files(now, list(names)).items():
        if table.file_size(name) is None:
            _put(table, won, names[name], size)


def land(table: DeltaTarget, won: CommittedBatch, seen: DeltaTable | None = None) -> None:
    """Commit a batch, unless the table already has its commit, or rows with its number.

    `seen`: a version that may be old, because a commit on an old version fails. Raises
    RetryableError if others commit constantly.
    """
    now = table.open_or_create(won.schema, seen)
    if now.transaction_version(app_id(won)) is not None:
        restore_files(table, won, now)
        return
    if table.count(now, won.batch_id):
        return  # The next `presences` judges these rows.
    with ThreadPoolExecutor(PUTS_AT_ONCE) as threads:
        adds = list(threads.map(partial(_put, table, won), won.files))
    for _ in range(COMMITS_MAX):
        failpoints.point("sink.before_delta")
        if _commit(table, now, won, adds):
            failpoints.point("sink.after_delta")
            return
        now = table.open_or_create(won.schema)
        if now.transaction_version(app_id(won)) is not None or table.count(now, won.batch_id):
            return
    raise RetryableError(
        f"batch {won.batch_id}: other writers committed to {table.address} {COMMITS_MAX} times "
        "during the attempt; run finalize again"
    )


# Keeps DL2.
def _commit(
    table: DeltaTarget, now: DeltaTable, won: CommittedBatch, adds: list[AddAction]
) -> bool:
    """Name the files in one commit. Returns False if another commit came first or the answer was
    lost; the next query finds out.
    """
    about = CommitProperties(
        app_transactions=[Transaction(app_id(won), 1)],
        max_commit_retries=0,
        custom_metadata={"semel": f"{won.pipeline} {won.batch_id}"},
    )
    with table.translate_errors():
        try:
            now.create_write_transaction(
                adds, mode="append", schema=now.schema(), partition_by=[], commit_properties=about
            )
        except CommitFailedError:
            later = table.open_newest()
            if later is not None and later.version() == now.version():
                raise  # No other commit: the table refuses this one.
            return False
    return True


def _put(
    table: DeltaTarget, won: CommittedBatch, file: ManifestFile, expected: int | None = None
) -> AddAction:
    """Write a file below the table, or reuse the identical one of another attempt.
    `expected`: its bytes by the commit, or None if no commit names it.
    """
    name = file_name(won, file)
    with tempfile.TemporaryFile(dir=folder_for_copies(at(file.staged_path))) as copy:
        statistics = _write(copy, won, file)
        written = copy.tell()
        if expected is not None and expected != written:
            raise CorruptionError(
                f"batch {won.batch_id}: {table.address}/{name} is missing. It had {expected} "
                f"bytes, and this version of pyarrow would write {written}. Run finalize with the "
                f"version that wrote it (see {file.staged_path}), or restore it from a backup"
            )
        copy.seek(0)
        failpoints.point("sink.before_file")
        table.add_file(name, copy.read())
    failpoints.point("sink.after_file")
    size = table.file_size(name)
    if size is None:
        raise RetryableError(
            f"batch {won.batch_id}: somebody removed {table.address}/{name} right after semel "
            "wrote it. Run finalize again, and do not vacuum with a retention of minutes"
        )
    return AddAction(
        path=name, size=size, partition_values={}, modification_time=int(time.time() * 1000),
        data_change=True, stats=statistics.text(),
    )  # fmt: skip


# Keeps DL5.
def _write(copy: IO[bytes], won: CommittedBatch, file: ManifestFile) -> Statistics:
    """Write the rows of a staged file with semel's columns. Returns their statistics."""
    schema, statistics = with_semel_columns(won.schema), Statistics()
    values = [pa.scalar(number, pa.int64()) for number in (won.batch_id, won.commit_seq)]
    pieces = (pa.Table.from_batches([rows]) for rows in staged(won, files=[file]))
    with pq.ParquetWriter(copy, schema, compression="zstd", compression_level=1) as writer:
        for rows in gather(pieces, ROW_GROUP_BYTES):
            for field, value in zip(SEMEL_COLUMNS, values, strict=True):
                rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
            statistics.add(rows := rows.cast(schema))
            writer.write_table(rows)
    check_count(won, statistics.rows, [file])
    return statistics
