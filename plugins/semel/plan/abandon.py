"""abandon: give up a batch that never committed. A later run plans its records again."""

import sqlalchemy as sa

from semel import failpoints, limits
from semel.errors import StateError
from semel.ledger import Ledger, pipelines, row, rows, transition
from semel.model.batch import BatchStatus
from semel.plan import partitions


def abandon(
    ledger: Ledger, batch_id: int, reason: str, *, silent_only: bool = False
) -> int | None:
    """Release the claims of a planned batch. Returns the number of ranges that become free.

    `silent_only`: if an attempt shows life, change nothing and return None. Raises StateError if
    the batch has committed, because then finalize MUST publish it.
    """
    with ledger.transaction() as connection:
        batch = row(connection, "abandon", "batch", batch_id=batch_id)
        if batch is None:
            raise StateError(f"there is no batch {batch_id}", next="semel batches")
        pipeline = pipelines.get(connection, batch["pipeline_id"])
        pipelines.lock(connection, pipeline)
        silent = 2 * limits.HEARTBEAT_SECONDS
        # Keeps P21.
        if silent_only and row(
            connection, "abandon", "alive", batch_id=batch_id, silent_seconds=silent
        ):
            return None
        claims = rows(connection, "abandon", "claims", batch_id=batch_id)
        released = release(connection, batch_id, reason)
        partitions.restore(connection, released)
        partitions.touch(connection, pipeline.pipeline_id)
        failpoints.point("abandon.before_release")
    failpoints.point("abandon.after_release")
    return len(claims)


# Keeps A2.
def release(connection: sa.Connection, batch_id: int, reason: str) -> set[int]:
    """Abandon within a transaction that holds the pipeline's lock, for example when plan takes over
    orphans.

    Returns the partitions whose claims it releases. The caller restores them and counts up the
    pipeline's source version in the same transaction.
    """
    status = row(connection, "abandon", "lock_batch", batch_id=batch_id)
    if status and status["status"] == BatchStatus.ABANDONED:
        raise StateError(f"batch {batch_id} is abandoned already", next=f"semel show {batch_id}")
    transition(
        connection,
        "abandon",
        "abandon_batch",
        f"batch {batch_id} is {status['status'] if status else 'gone'}, not planned, so it cannot "
        "be abandoned; a committed batch is finished by its run's finalize task, or by collect",
        batch_id=batch_id,
        reason=reason,
    )
    rows(connection, "abandon", "lose_attempts", batch_id=batch_id, reason=reason)
    released = rows(connection, "abandon", "release_claims", batch_id=batch_id)
    return {r["source_partition_id"] for r in released}
