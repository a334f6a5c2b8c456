"""The catalog's headers: which id runs there are, who may see them, and where their ids lie.

An id run is the sorted ids that one attempt, or one merge, adds to one shard. Its header is a small
row; its ids and filter (catalog.payload) lie in a segment table, one per pipeline and drop span, so
that forgetting a hundred million ids is one DROP TABLE.

A run becomes visible when its attempt wins (`publish_runs`), and stays so until it is retired:
merged into another or expired. Retired runs keep their payload as long as an attempt is open that
may have pinned them. This holds because an attempt's snapshot is taken, and then the attempt
inserted, in one transaction under the lock of the pipeline, which `merge` and the caller of
`retire_expired` take too.
"""

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from typing import Any, Self

import sqlalchemy as sa

from semel import failpoints, limits
from semel.clients.sql import query
from semel.errors import RetryableError, StateError
from semel.ledger import Ledger, Row, change, row, rows
from semel.model.buckets import Buckets

SPANS_PER_HORIZON = 4
"""Drop spans in a horizon: ids are kept for 1 to 1.25 horizons, in some six tables a pipeline."""

DROP_LOCK_TIMEOUT_MS = 2_000
"""How long dropping a segment waits for its table: nobody should read it, or collect comes back."""


@dataclass(frozen=True, kw_only=True)
class IdRun:
    """The header of an id run. `seq_min` to `seq_max`: the commits it holds, None while
    unpublished.

    `buckets`: those of record time that its ids can be of, None in scope `horizon`. `checksum` is
    that of the run's filter and of its directory, which holds a digest of every chunk of ids.
    """

    id_run_id: int
    pipeline_id: int
    attempt_id: int | None
    shard: int
    buckets: Buckets | None
    seq_min: int | None
    seq_max: int | None
    expires_at: datetime | None
    segment_id: int
    ids: int
    filter_bytes: int
    checksum: str

    @classmethod
    def from_row(cls, found: Row) -> Self:
        """The run in a row that holds its columns (others are ignored)."""
        values = {field.name: found[field.name] for field in fields(cls)}
        if values["buckets"] is not None:
            values["buckets"] = Buckets.from_ledger(values["buckets"])
        return cls(**values)

    @property
    def chunks(self) -> int:
        """How many chunks its ids are cut into."""
        return -(-self.ids // limits.IDS_PER_CHUNK)

    def may_hold(self, shard: int, buckets: Buckets | None) -> bool:
        """Whether ids of this shard and of these buckets can be in it."""
        if self.shard != shard:
            return False
        return self.buckets is None or buckets is None or self.buckets.overlaps(buckets)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What an attempt may consult: the runs that were visible at one commit sequence."""

    commit_seq: int
    forgotten: Buckets
    runs: tuple[IdRun, ...]


def snapshot(connection: sa.Connection, pipeline_id: int) -> Snapshot:
    """The pipeline's commit sequence, forgotten buckets and live runs, read in one statement."""
    found = rows(connection, "catalog", "snapshot", pipeline_id=pipeline_id)
    if not found:
        raise StateError(f"there is no pipeline {pipeline_id} in the ledger; plan a batch first")
    return Snapshot(
        commit_seq=found[0]["commit_seq"],
        forgotten=Buckets.from_ledger(found[0]["forgotten"]),
        runs=tuple(IdRun.from_row(each) for each in found if each["id_run_id"] is not None),
    )


def own_runs(connection: sa.Connection, attempt_id: int) -> list[IdRun]:
    """The runs that an attempt stored, published or not, by shard."""
    return _runs(connection, "own_runs", attempt_id=attempt_id)


def publish_runs(
    connection: sa.Connection, attempt_id: int, *, seq: int, expires_at: datetime
) -> int:
    """Make an attempt's runs visible, in the transaction that makes it win. Returns how many."""
    values = {"attempt_id": attempt_id, "seq": seq, "expires_at": expires_at}
    return len(rows(connection, "catalog", "publish_runs", **values))


# Keeps C8.
def last_time(batch_time: datetime, bucket_end: int | None, bucket_seconds: int) -> datetime:
    """The later of batch time and the end of the newest bucket: ids live a horizon after both."""
    if bucket_end is None:
        return batch_time
    end = datetime.fromtimestamp(0, UTC) + timedelta(seconds=bucket_end * bucket_seconds)
    return max(batch_time, end)


def ensure_segment(connection: sa.Connection, pipeline_id: int, horizon_seconds: int) -> int:
    """The segment of the current drop span, made if it is not there yet.

    The caller holds the pipeline's lock, or two would make it at once.
    """
    found = row(connection, "catalog", "current_segment", pipeline_id=pipeline_id)
    if found is not None:
        return found["segment_id"]
    seconds = span_seconds(horizon_seconds)
    made = rows(connection, "catalog", "insert_segment", pipeline_id=pipeline_id, seconds=seconds)
    segment_id = made[0]["segment_id"]
    connection.execute(payload_query("create_payload", segment_id))
    connection.execute(payload_query("keep_payload_plain", segment_id))
    return segment_id


def span_seconds(horizon_seconds: int) -> int:
    """The length of a drop span, in seconds."""
    return max(1, horizon_seconds // SPANS_PER_HORIZON)


# Keeps G1.
def forget_expired(connection: sa.Connection, pipeline_id: int) -> None:
    """Forget the buckets of the runs whose horizon is over. The caller holds the pipeline's lock."""
    found = rows(connection, "catalog", "expired_buckets", pipeline_id=pipeline_id)
    if found:
        sets = [found[0]["forgotten"], *(run["buckets"] for run in found)]
        forgotten = reduce(Buckets.__or__, map(Buckets.from_ledger, sets))
        values = {"pipeline_id": pipeline_id, "forgotten": forgotten.to_ledger()}
        change(connection, "catalog", "forget", **values)


# Keeps G2.
def retire_expired(connection: sa.Connection, pipeline_id: int) -> int:
    """Retire the runs whose horizon is over. Returns how many.

    The caller holds the pipeline's lock; in scope `bucket` it has forgotten their buckets first.
    """
    return len(rows(connection, "catalog", "retire_expired", pipeline_id=pipeline_id))


def delete_payload(ledger: Ledger, pipeline_id: int) -> int:
    """Delete the payload of runs that nobody can ask for any more. Returns how many pieces went.

    These are runs that a merge retired before any open attempt began, and runs of lost attempts;
    expired ones go with their segment. Segment by segment, each in a transaction of its own.
    """
    deleted = 0
    for segment in ledger.rows("catalog", "live_segments", pipeline_id=pipeline_id):
        with ledger.transaction() as connection:
            # Two collectors would delete the same rows in different orders.
            rows(connection, "catalog", "lock_segment", **segment)
            segment_id = segment["segment_id"]
            runs = connection.scalars(payload_query("deletable_runs", segment_id)).all()
            if runs:
                statement = payload_query("delete_payload", segment_id)
                deleted += connection.execute(statement, {"runs": runs}).rowcount
            failpoints.point("collect.before_delete")
    return deleted


def droppable_segments(connection: sa.Connection, pipeline_id: int) -> list[int]:
    """Segments of closed spans in which no run is live, and that no open attempt can ask for."""
    found = rows(connection, "catalog", "droppable_segments", pipeline_id=pipeline_id)
    return [each["segment_id"] for each in found]


def drop_segment(ledger: Ledger, pipeline_id: int, segment_id: int) -> None:
    """Drop a segment's table. RetryableError when it may not go (yet), or somebody reads it."""
    with ledger.transaction() as connection:
        timeout = f"{DROP_LOCK_TIMEOUT_MS}ms"
        rows(connection, "catalog", "lock_timeout", lock_timeout=timeout)
        # Two collectors may come at once: the second waits here, and then finds it dropped.
        rows(connection, "catalog", "lock_segment", segment_id=segment_id)
        if segment_id not in droppable_segments(connection, pipeline_id):
            raise RetryableError(
                f"segment {segment_id} of pipeline {pipeline_id} is dropped already or still "
                "needed; nothing was done, the next collect tries again"
            )
        rows(connection, "catalog", "mark_dropped", segment_id=segment_id)
        connection.execute(payload_query("drop_payload", segment_id))
        failpoints.point("collect.before_dropped")


@cache
def payload_query(name: str, segment_id: int) -> sa.TextClause:
    """A statement of catalog.sql about one segment's table (names cannot be parameters)."""
    return sa.text(query("catalog", name).text.replace("{segment_id}", str(int(segment_id))))


def _runs(connection: sa.Connection, name: str, **values: Any) -> list[IdRun]:
    return [IdRun.from_row(each) for each in rows(connection, "catalog", name, **values)]
