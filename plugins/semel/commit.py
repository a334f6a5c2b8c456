"""commit: make one attempt of a batch win. A winner never loses again.

How it works:
1. take the staged attempt with the highest fence (a twin with a newer fence that died does not
   block);
2. without a lock, compare its ids with the id runs of batches that committed since its snapshot;
   repeat while others commit;
3. lock pipeline, batch and attempt; if another batch committed since the comparison, go back to 2;
4. take the next place in the order of commits, let the attempt win and its siblings lose, and make
   its id runs visible: one transaction whose size does not depend on the number of records.
An attempt that overlaps with a newer commit is lost. Then commit stages the batch again by itself,
because an orchestrator cannot run an upstream task again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from semel import failpoints, settings
from semel.catalog.payload import FilterCache, overlap
from semel.catalog.runs import IdRun, last_time, own_runs, publish_runs, snapshot
from semel.errors import ANEW, CorruptionError, RetryableError, StateError, TerminalError
from semel.ledger import Ledger, Row, change, heartbeat, pipelines, row, transition
from semel.ledger.attempts import lose
from semel.ledger.batches import pipeline_and_batch
from semel.model.batch import (
    HOLDERS_SHOWN,
    Attempt,
    AttemptStatus,
    Batch,
    BatchStatus,
    Counts,
    Log,
    Pipeline,
    repeats_of,
    run_of,
)
from semel.pipeline.spec import Spec

ATTEMPTS_LOST_BEFORE_LEASE = 3
"""Attempts that a batch loses to other commits before its commit takes the pipeline's lease."""

COMPARE_ROUNDS_MAX = 20
"""Comparisons with newer commits before commit gives up with a RetryableError."""

COMMIT_ROUNDS_MAX = 16
"""Rounds (a restage, or a try to commit) before commit gives up with a RetryableError."""

_LEASE_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The answer of commit. `found`: it had committed before. `losses`: attempts staged again."""

    batch: Batch
    fence: int
    found: bool
    counts: Counts
    losses: int = 0


class _NewerCommit(Exception):
    """Another batch committed after the comparison."""


class _AlreadyEnded(Exception):
    """Another process ended this batch or attempt; commit must read its status again."""


def commit(
    ledger: Ledger, spec: Spec, batch_id: int, restage: Callable[[], object], log: Log = print
) -> Committed:
    """Commit a batch. After each lost attempt, stage it again through `restage`.

    Raises RetryableError if the batch lost too often or a service does not answer; the same call
    goes on from there. Raises StateError if the batch was abandoned, and TerminalError if its
    records have to be planned again.
    """
    losses = 0
    for _ in range(COMMIT_ROUNDS_MAX):
        with ledger.transaction() as connection:
            pipeline, batch = pipeline_and_batch(connection, spec.name, batch_id)
            staged = row(connection, "stage", "staged", batch_id=batch_id)
        if batch.status in (BatchStatus.COMMITTED, BatchStatus.FINALIZED):
            # Keeps C12.
            return _result(batch, staged, losses, repeated=True)
        if batch.status is BatchStatus.ABANDONED:
            raise StateError(
                f"batch {batch_id} was abandoned; a later plan takes its records",
                next=ANEW,
            )
        if losses >= ATTEMPTS_LOST_BEFORE_LEASE:
            # If another batch has the lease, it would win, and this attempt would lose again.
            with _while_unleased(ledger, batch, log):
                pass
            _take_lease(ledger, batch, log)
        if staged is None:
            log(f"batch {batch_id} lacks a staged attempt: staging it")
            failpoints.point("commit.before_restage")
            restage()
            continue
        attempt = Attempt.from_row(staged)
        try:
            outcome = _try_commit(ledger, spec, pipeline, batch, attempt, log)
        except _AlreadyEnded:
            continue
        if isinstance(outcome, Batch):
            failpoints.point("commit.after_win")
            return _result(outcome, staged, losses, repeated=False)
        lose(ledger, attempt.attempt_id, outcome)
        losses += 1
        log(f"batch {batch_id}: attempt {attempt.fence} is lost: {outcome}; staging it again")
    raise RetryableError(
        f"batch {batch_id} lost {losses} attempts to other commits in {COMMIT_ROUNDS_MAX} "
        "rounds. Nothing was committed. Run commit again"
    )


def _result(batch: Batch, attempt: Row, losses: int, *, repeated: bool) -> Committed:
    counts = Counts.from_row(attempt)
    return Committed(
        batch=batch, fence=attempt["fence"], found=repeated, counts=counts, losses=losses
    )


def _try_commit(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, batch: Batch, attempt: Attempt, log: Log
) -> Batch | str:
    """Commit one attempt. Returns the committed batch, or the reason why it can never commit."""
    if batch.replays is not None:  # A replay does not add ids.
        with ledger.transaction() as connection:
            return _decide(connection, spec, pipeline, batch, attempt, [], attempt.snapshot_seq)
    compared = attempt.snapshot_seq
    for _ in range(COMPARE_ROUNDS_MAX):
        with _while_unleased(ledger, batch, log) as connection:
            now = snapshot(connection, batch.pipeline_id)
            mine = [] if batch.by_position else own_runs(connection, attempt.attempt_id)
        failpoints.point("commit.before_compare")
        # Keeps C2.
        common = _compare(ledger, attempt, mine, [r for r in now.runs if r.seq_max > compared])
        if common:
            return (
                f"{common:,} of its records were committed first by "
                f"{_newer_batches(ledger, batch, attempt.snapshot_seq)}"
            )
        compared = now.commit_seq
        failpoints.point("commit.after_compare")
        try:
            with ledger.transaction() as connection:
                return _decide(connection, spec, pipeline, batch, attempt, mine, compared)
        except _NewerCommit:
            continue
    raise RetryableError(
        f"batch {batch.batch_id}: other batches committed {COMPARE_ROUNDS_MAX} times during "
        "the comparison of ids. The batch stays staged. Run commit again"
    )


def _newer_batches(ledger: Ledger, batch: Batch, since: int) -> str:
    """The batches that committed since an attempt began; names the newest HOLDERS_SHOWN."""
    newer = ledger.rows(
        "commit", "since",
        pipeline_id=batch.pipeline_id, commit_seq=since, count=HOLDERS_SHOWN + 1,
    )  # fmt: skip
    names = [f"batch {r['batch_id']} (run {run_of(r['request_key'])})" for r in newer]
    more = ["others"] if len(names) > HOLDERS_SHOWN else []
    return " and ".join([*names[:HOLDERS_SHOWN], *more])


def _compare(ledger: Ledger, attempt: Attempt, mine: list[IdRun], theirs: list[IdRun]) -> int:
    """Count the attempt's ids in newer runs. Raises _AlreadyEnded if it won or lost meanwhile."""
    if any(run.attempt_id == attempt.attempt_id for run in theirs):
        raise _AlreadyEnded  # A twin of this commit let it win: these are the attempt's own runs.
    if not mine or not theirs:
        return 0
    try:
        return overlap(ledger, FilterCache(settings.cache_dir()), mine, theirs)
    except CorruptionError:
        now = ledger.rows("stage", "attempt_status", attempt_id=attempt.attempt_id)[0]
        if now["status"] != AttemptStatus.STAGED:
            raise _AlreadyEnded from None  # It lost meanwhile, and collect has removed its ids.
        raise


def _decide(
    connection: sa.Connection,
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    attempt: Attempt,
    mine: list[IdRun],
    compared: int,
) -> Batch | str:
    # Keeps C3.
    pipelines.lock(connection, pipeline)
    batch_now = row(connection, "commit", "lock_batch", batch_id=batch.batch_id)
    attempt_now = row(connection, "commit", "lock_attempt", attempt_id=attempt.attempt_id)
    if batch_now["status"] != BatchStatus.PLANNED or attempt_now["status"] != AttemptStatus.STAGED:
        raise _AlreadyEnded
    # A separate statement after the locks sees commits that happened while we waited.
    now = row(connection, "commit", "pipeline_now", pipeline_id=batch.pipeline_id)
    # Keeps C4, C9.
    leased = now["leased"] and now["lease_batch_id"] != batch.batch_id
    if batch.replays is None and (now["commit_seq"] != compared or leased):
        raise _NewerCommit
    # Keeps C14.
    if batch.replays is None and batch.at_least_once != (now["exact_from"] is None):
        guarantee = repeats_of(now["exact_from"]) or "exactly_once"
        raise TerminalError(
            f"batch {batch.batch_id} was planned with another guarantee than {spec.name} has now "
            f"({guarantee}). Nothing was committed. Plan its records again",
            next=ANEW,
        )
    # Keeps C15.
    if attempt_now["replaced"] is not None:
        raise TerminalError(
            f"batch {batch.batch_id} has claimed content of {attempt_now['replaced']!r} that was "
            "replaced since. Nothing was committed. Plan its records again",
            next=ANEW,
        )
    # Keeps C5.
    if attempt_now["forgotten"] is not None:
        return f"semel forgot the ids of its bucket {attempt_now['forgotten']} since it began"
    # Keeps C13.
    if now["sink_schema"] not in (None, attempt.sink_schema):
        return "the output's columns changed since it was staged"
    transition(
        connection,
        "commit",
        "win_attempt",
        f"batch {batch.batch_id}: attempt {attempt.fence} is no longer staged. Run commit again",
        batch_id=batch.batch_id,
        attempt_id=attempt.attempt_id,
        reason=f"attempt {attempt.fence} won",
    )
    if batch.replays is None:
        batch = _take_position(connection, spec, pipeline, batch, attempt, mine, compared)
    else:
        _replace_output(connection, batch, attempt)
    failpoints.point("commit.before_win")
    return replace(batch, status=BatchStatus.COMMITTED)


def _take_position(
    connection: sa.Connection,
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    attempt: Attempt,
    mine: list[IdRun],
    compared: int,
) -> Batch:
    """Give the batch the next place in the order of commits, and make its ids visible."""
    place = transition(
        connection,
        "commit",
        "take_place",
        f"{_not_planned(batch)}. If that fails too, semel has a bug: the commit sequence of "
        f"{spec.name} moved under its lock. Please report it",
        batch_id=batch.batch_id,
        pipeline_id=batch.pipeline_id,
        compared_seq=compared,
        sink_schema=attempt.sink_schema,
    )
    # Keeps C8.
    if mine:
        publish_runs(
            connection,
            attempt.attempt_id,
            seq=place["commit_seq"],
            expires_at=_last_bucket_time(pipeline, mine, place["batch_time"]) + spec.dedup.horizon,
        )
    return replace(batch, **place)


# Keeps RP4.
def _replace_output(connection: sa.Connection, batch: Batch, attempt: Attempt) -> None:
    """Let a replay replace the earlier output; the two never count together."""
    transition(
        connection,
        "commit",
        "retire_generation",
        f"semel has a bug: batch {batch.batch_id} is generation {batch.generation} of batch "
        f"{batch.root}, and generation {batch.generation - 1} is not its newest finalized output. "
        "Nothing was committed. Please report it",
        batch_id=batch.batch_id,
        root=batch.root,
        generation=batch.generation,
    )
    values = {"pipeline_id": batch.pipeline_id, "sink_schema": attempt.sink_schema}
    change(connection, "commit", "keep_columns", **values)
    transition(
        connection, "commit", "commit_replay", _not_planned(batch), batch_id=batch.batch_id
    )


def _not_planned(batch: Batch) -> str:
    return f"batch {batch.batch_id} is no longer planned. Run commit again"


def _last_bucket_time(pipeline: Pipeline, mine: list[IdRun], batch_time: datetime) -> datetime:
    ends = [run.buckets.end for run in mine if run.buckets]
    return last_time(batch_time, max(ends, default=None), pipeline.bucket_seconds)


def _take_lease(ledger: Ledger, batch: Batch, log: Log) -> None:
    """Make the other batches of the pipeline wait, because this one lost too often."""
    failpoints.point("commit.before_lease")
    leases = ledger.rows(
        "commit",
        "take_lease",
        pipeline_id=batch.pipeline_id,
        batch_id=batch.batch_id,
        seconds=heartbeat.LEASE_SECONDS,
    )
    failpoints.point("commit.after_lease")
    if leases:
        log(f"batch {batch.batch_id} has the commit lease until {leases[0]['lease_until']}")


@contextmanager
def _while_unleased(ledger: Ledger, batch: Batch, log: Log) -> Iterator[sa.Connection]:
    """A transaction that begins while no other batch has the commit lease. The lease of a dead
    holder ends by itself.
    """
    logged = False
    for _ in range(int(heartbeat.LEASE_SECONDS / _LEASE_POLL_S) + 1):
        with ledger.transaction() as connection:
            now = row(connection, "commit", "pipeline_now", pipeline_id=batch.pipeline_id)
            if not now["leased"] or now["lease_batch_id"] == batch.batch_id:
                yield connection
                return
        if not logged:
            holder = now["lease_batch_id"]
            log(f"batch {batch.batch_id} waits: batch {holder} has the commit lease")
            logged = True
        time.sleep(_LEASE_POLL_S)
    raise RetryableError(
        f"batch {batch.batch_id} waited {heartbeat.LEASE_SECONDS} s for the commit lease of "
        "another batch. Run commit again"
    )
