"""The headers of id runs: their existence, their visibility, and the location of their ids.

An id run is the sorted ids that one attempt, or one merge, adds to one shard. Its header is a small
row. Its ids and filter (catalog.payload) are in a segment table, one per pipeline and drop span, so
that one DROP TABLE forgets a hundred million ids.

A run becomes visible when its attempt wins (`publish_runs`), and stays so until it is merged or
expires; then it is retired. A retired run keeps its payload while an open attempt may use it. So an
attempt takes its snapshot and inserts its row in one transaction under the pipeline's lock, and
`merge` and the caller of `retire_expired` take that lock, too.
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
"""Drop spans in a horizon: ids live 1 to 1.25 horizons, in about six tables for each pipeline."""

DROP_LOCK_TIMEOUT_MS = 2_000
"""How long dropping a segment waits for its table. After that, the next collect tries again."""


@dataclass(frozen=True, kw_only=True)
class IdRun:
    """The header of an id run. `seq_min` to `seq_max`: its commits, None while unpublished.

    `buckets`: the possible buckets of its ids, None in scope `horizon`. `checksum` covers the run's
    filter and directory; the directory has a digest of every chunk of ids.
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
    def from_row(cls, row: Row) -> Self:
        """The run in a row with its columns (it ignores others)."""
        values = {field.name: row[field.name] for field in fields(cls)}
        if values["buckets"] is not None:
            values["buckets"] = Buckets.from_ledger(values["buckets"])
        return cls(**values)

    @property
    def chunks(self) -> int:
        """The number of chunks of its ids."""
        return -(-self.ids // limits.IDS_PER_CHUNK)

    def may_hold(self, shard: int, buckets: Buckets | None) -> bool:
        """Whether it may contain ids of this shard and these buckets."""
        if self.shard != shard:
            return False
        return self.buckets is None or buckets is None or self.buckets.overlaps(buckets)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The runs that an attempt may query: those visible at one commit sequence."""

    commit_seq: int
    forgotten: Buckets
    runs: tuple[IdRun, ...]


def snapshot(connection: sa.Connection, pipeline_id: int) -> Snapshot:
    """The pipeline's commit sequence, forgotten buckets and live runs, read in one statement."""
    run_rows = rows(connection, "catalog", "snapshot", pipeline_id=pipeline_id)
    if not run_rows:
        raise StateError(f"there is no pipeline {pipeline_id} in the ledger. Plan a batch first")
    return Snapshot(
        commit_seq=run_rows[0]["commit_seq"],
        forgotten=Buckets.from_ledger(run_rows[0]["forgotten"]),
        runs=tuple(IdRun.from_row(each) for each in run_rows if each["id_run_id"] is not None),
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
    """The later one of batch time and the end of the newest bucket. Ids expire a horizon later."""
    if bucket_end is None:
        return batch_time
    end = datetime.fromtimestamp(0, UTC) + timedelta(seconds=bucket_end * bucket_seconds)
    return max(batch_time, end)


def ensure_segment(connection: sa.Connection, pipeline_id: int, horizon_seconds: int) -> int:
    """The segment of the current drop span. It creates the segment if needed.

    The caller must hold the pipeline's lock; otherwise two might create it at once.
    """
    segment = row(connection, "catalog", "current_segment", pipeline_id=pipeline_id)
    if segment is not None:
        return segment["segment_id"]
    seconds = span_seconds(horizon_seconds)
    values = {"pipeline_id": pipeline_id, "seconds": seconds}
    segment_id = rows(connection, "catalog", "insert_segment", **values)[0]["segment_id"]
    connection.execute(payload_query("create_payload", segment_id))
    connection.execute(payload_query("keep_payload_plain", segment_id))
    connection.execute(payload_query("grant_payload", segment_id))
    return segment_id


def span_seconds(horizon_seconds: int) -> int:
    """The length of a drop span, in seconds."""
    return max(1, horizon_seconds // SPANS_PER_HORIZON)


# Keeps G1.
def forget_expired(connection: sa.Connection, pipeline_id: int) -> None:
    """Forget the buckets of expired runs. The caller must hold the pipeline's lock."""
    runs = rows(connection, "catalog", "expired_buckets", pipeline_id=pipeline_id)
    if runs:
        sets = [runs[0]["forgotten"], *(run["buckets"] for run in runs)]
        forgotten = reduce(Buckets.__or__, map(Buckets.from_ledger, sets))
        values = {"pipeline_id": pipeline_id, "forgotten": forgotten.to_ledger()}
        change(connection, "catalog", "forget", **values)


# Keeps G2.
def retire_expired(connection: sa.Connection, pipeline_id: int) -> int:
    """Retire expired runs. Returns how many.

    The caller must hold the pipeline's lock, and in scope `bucket` call `forget_expired` first.
    """
    return len(rows(connection, "catalog", "retire_expired", pipeline_id=pipeline_id))


def delete_payload(ledger: Ledger, pipeline_id: int) -> int:
    """Delete the payload of runs that no attempt can use any more. Returns how many pieces.

    These are runs of lost attempts, and runs that a merge retired before any open attempt began.
    Expired runs vanish with their segment. It uses one transaction for each segment.
    """
    deleted = 0
    for segment in ledger.rows("catalog", "live_segments", pipeline_id=pipeline_id):
        with ledger.transaction() as connection:
            # Without it, two collectors could delete the same rows in different orders.
            rows(connection, "catalog", "lock_segment", **segment)
            segment_id = segment["segment_id"]
            runs = connection.scalars(payload_query("deletable_runs", segment_id)).all()
            if runs:
                statement = payload_query("delete_payload", segment_id)
                deleted += connection.execute(statement, {"runs": runs}).rowcount
            failpoints.point("collect.before_delete")
    return deleted


def droppable_segments(connection: sa.Connection, pipeline_id: int) -> list[int]:
    """Segments of closed spans without live runs, which no open attempt can use."""
    segments = rows(connection, "catalog", "droppable_segments", pipeline_id=pipeline_id)
    return [each["segment_id"] for each in segments]


def drop_segment(ledger: Ledger, pipeline_id: int, segment_id: int) -> None:
    """Drop a segment's table. Raises RetryableError if it is dropped already or still in use."""
    with ledger.transaction() as connection:
        timeout = f"{DROP_LOCK_TIMEOUT_MS}ms"
        rows(connection, "catalog", "lock_timeout", lock_timeout=timeout)
        # A second collector waits here, and then finds the segment dropped.
        rows(connection, "catalog", "lock_segment", segment_id=segment_id)
        if segment_id not in droppable_segments(connection, pipeline_id):
            raise RetryableError(
                f"segment {segment_id} of pipeline {pipeline_id} is dropped already or still "
                "needed. Nothing was done. The next collect tries again"
            )
        rows(connection, "catalog", "mark_dropped", segment_id=segment_id)
        connection.execute(payload_query("drop_payload", segment_id))
        failpoints.point("collect.before_dropped")


@cache
def payload_query(name: str, segment_id: int) -> sa.TextClause:
    """A statement of catalog.sql for one segment's table (names cannot be parameters)."""
    return sa.text(query("catalog", name).text.replace("{segment_id}", str(int(segment_id))))


def _runs(connection: sa.Connection, name: str, **values: Any) -> list[IdRun]:
    return [IdRun.from_row(each) for each in rows(connection, "catalog", name, **values)]
