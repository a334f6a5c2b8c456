"""plan: fix a batch before any work, as offset ranges that end at a record's end.

How it works:
1. list the source, outside any transaction;
2. read what the ledger knows of these files and what is unclaimed, and cut the ranges;
3. lock the pipeline and read the same again; if it is not the same any more, start over;
4. write source partitions, batch and claims in that transaction.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from semel import faults, limits
from semel.abandon import release
from semel.batch import Batch, BatchStatus, Pipeline
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger, change, row, rows, transition
from semel.pipeline import Spec
from semel.sources import files
from semel.sources.cut import Range, Wanted, cut, want
from semel.sources.files import Known, ListedFile, Refusal

_ROUNDS_MAX = 20  # When other planners win this often in a row, something else is wrong.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of plan. `batch` is None when there was nothing to take."""

    pipeline: Pipeline
    batch: Batch | None
    created: bool
    files: int = 0
    bytes: int = 0
    bytes_left: int = 0
    refusals: tuple[Refusal, ...] = ()
    taken_over: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Free:
    """What nobody holds: planned batches to take over, and unclaimed ranges by partition."""

    orphans: list[int]
    ranges: dict[int, list[tuple[int, int]]]


def plan(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    interval: tuple[datetime, datetime] | None = None,
) -> Plan:
    """Find the request's batch, or write one down that takes what is unclaimed.

    The same request gets the same batch until that one is finalized or abandoned; then it gets the
    next, if there is anything to take. TerminalError, LimitError: nothing was written.
    """
    interval = _interval(spec, interval)
    window = (interval[0] - spec.source.lateness, interval[1]) if interval else None
    pipeline = register(ledger, spec)
    listed: list[ListedFile] | None = None
    for _ in range(_ROUNDS_MAX):
        with ledger.transaction() as connection:
            latest = _latest(connection, pipeline, request_key)
        if latest is not None and latest.status in (BatchStatus.PLANNED, BatchStatus.COMMITTED):
            return Plan(pipeline=pipeline, batch=latest, created=False)  # Keeps P5.
        if listed is None:
            listed, unread = files.list_files(spec, window)
        with ledger.transaction() as connection:
            partitions = known(connection, pipeline.pipeline_id, listed)
        wanted, refused = want(spec, listed, partitions)
        with ledger.transaction() as connection:
            free = _free(connection, spec, pipeline, request_key, wanted)
        try:
            ranges, left = cut(spec, wanted, free.ranges)
        except FileNotFoundError:  # It went away under our eyes: look again.
            listed = None
            continue
        faults.point("plan.before_lock")
        with ledger.transaction() as connection:
            # Keeps P1, P2.
            lock(connection, pipeline)
            if (
                _latest(connection, pipeline, request_key) != latest
                or known(connection, pipeline.pipeline_id, listed) != partitions
                or _free(connection, spec, pipeline, request_key, wanted) != free
            ):
                continue
            refusals = (*unread, *refused)
            looked_at = [f.path for f in listed] + [r.path for r in unread] if window else None
            _write_refusals(connection, pipeline, refusals, looked_at)
            written = _write_partitions(connection, pipeline, wanted, ranges)
            batch = None
            if ranges:
                # Keeps P7, P11.
                for orphan in free.orphans:
                    release(connection, orphan, f"taken over by {request_key}")
                ordinal = latest.ordinal + 1 if latest else 1
                batch = _write_batch(connection, pipeline, spec, request_key, ordinal, interval)
                _write_claims(connection, batch, ranges, written)
            faults.point("plan.before_write")
        faults.point("plan.after_write")
        return Plan(
            pipeline=pipeline,
            batch=batch,
            created=batch is not None,
            files=len({r.wanted.file.path for r in ranges}),
            bytes=sum(r.end - r.start for r in ranges),
            bytes_left=left,
            refusals=refusals,
            taken_over=tuple(free.orphans) if batch else (),
        )
    raise RetryableError(
        f"plan of {spec.name}: other planners changed its claims {_ROUNDS_MAX} times in a row; "
        "run this again"
    )


# Keeps P15.
def lock(connection: sa.Connection, pipeline: Pipeline) -> None:
    """Take the pipeline's lock. RetryableError when its sink was moved since the row was read."""
    found = row(connection, "plan", "lock_pipeline", pipeline_id=pipeline.pipeline_id)
    if found["sink_path"] != pipeline.sink_path:
        raise RetryableError(
            f"the sink of {pipeline.name} was moved from {pipeline.sink_path} to "
            f"{found['sink_path']} meanwhile; run this again"
        )


def find_batch(ledger: Ledger, spec: Spec, request_key: str) -> Batch | None:
    """The newest batch that a request planned, or None."""
    with ledger.transaction() as connection:
        found = row(connection, "plan", "pipeline", name=spec.name)
        return _latest(connection, Pipeline.from_row(found), request_key) if found else None


def register(ledger: Ledger, spec: Spec) -> Pipeline:
    """The pipeline's row, made at its first plan. TerminalError when it contradicts the spec."""
    identity = json.dumps(
        {"record_id": spec.record_id, "scope": spec.dedup.scope, "shards": spec.dedup.shards}
    )
    sink_path = str(spec.sink_path())
    with ledger.transaction() as connection:
        change(
            connection,
            "plan",
            "insert_pipeline",
            name=spec.name,
            sink_path=sink_path,
            identity=identity,
            shards=spec.dedup.shards,
            bucket_seconds=max(60, int(spec.dedup.horizon.total_seconds()) // 32),
        )
        owner = row(connection, "plan", "sink_owner", sink_path=sink_path)
        if owner is not None and owner["name"] != spec.name:
            raise TerminalError(
                f"sink.path {sink_path} belongs to pipeline {owner['name']!r}, and {spec.name!r} "
                "would write its records there again; keep the old name, or give this one its own "
                "sink"
            )
        pipeline = Pipeline.from_row(row(connection, "plan", "pipeline", name=spec.name))
        # Keeps P12.
        if pipeline.identity != identity:
            raise TerminalError(
                f"pipeline {spec.name}: record_id, dedup.scope and dedup.shards say what its "
                f"catalog holds and cannot change (catalog: {pipeline.identity}; file: "
                f"{identity}); put them back, or declare a new pipeline with its own sink"
            )
        if pipeline.sink_path != sink_path:
            pipeline = _move_sink(connection, pipeline, sink_path)
        faults.point("plan.before_register")
    faults.point("plan.after_register")
    return pipeline


def _move_sink(connection: sa.Connection, pipeline: Pipeline, sink_path: str) -> Pipeline:
    lock(connection, pipeline)
    transition(
        connection,
        "plan",
        "move_sink",
        f"sink.path of {pipeline.name} cannot move from {pipeline.sink_path} to {sink_path} while "
        "a batch is on its way; put it back and finish or abandon what `semel batches` shows",
        pipeline_id=pipeline.pipeline_id,
        sink_path=sink_path,
    )
    return replace(pipeline, sink_path=sink_path)


def _interval(
    spec: Spec, interval: tuple[datetime, datetime] | None
) -> tuple[datetime, datetime] | None:
    if spec.source.select == "arrival":
        return None
    if interval is None or interval[0] >= interval[1]:
        raise TerminalError(
            f"pipeline {spec.name} selects by interval, and the run has none; trigger it with a "
            "data interval, or give --interval START END"
        )
    return interval


def _latest(connection: sa.Connection, pipeline: Pipeline, request_key: str) -> Batch | None:
    found = row(
        connection,
        "plan",
        "latest_batch",
        pipeline_id=pipeline.pipeline_id,
        request_key=request_key,
    )
    return Batch.from_row(found) if found else None


def known(connection: sa.Connection, pipeline_id: int, listed: list[ListedFile]) -> list[Known]:
    """The open source partitions that listed files may be, by path, inode or head."""
    found = rows(
        connection,
        "plan",
        "known",
        pipeline_id=pipeline_id,
        paths=[file.path for file in listed],
        inodes=[file.inode for file in listed],
        heads=[file.head_hash for file in listed],
        head_bytes=limits.HEAD_BYTES,
    )
    return [Known(**r) for r in found]


def _free(
    connection: sa.Connection,
    spec: Spec,
    pipeline: Pipeline,
    request_key: str,
    wanted: list[Wanted],
) -> _Free:
    ends = {w.known.source_partition_id: w.end for w in wanted if w.known and w.end}
    partitions = list(ends)
    orphans = rows(
        connection,
        "plan",
        "orphans",
        pipeline_id=pipeline.pipeline_id,
        request_key=request_key,
        orphan_seconds=spec.limits.orphan_after.total_seconds(),
        partitions=partitions,
    )
    batches = [r["batch_id"] for r in orphans]
    free: dict[int, list[tuple[int, int]]] = {}
    for r in rows(
        connection, "plan", "free", partitions=partitions, ends=list(ends.values()), orphans=batches
    ):
        free.setdefault(r["source_partition_id"], []).append((r["start"], r["end"]))
    return _Free(orphans=batches, ranges=free)


def _write_refusals(
    connection: sa.Connection,
    pipeline: Pipeline,
    refusals: tuple[Refusal, ...],
    looked_at: list[str] | None,
) -> None:
    change(
        connection,
        "plan",
        "clear_refusals",
        pipeline_id=pipeline.pipeline_id,
        everything=looked_at is None,
        paths=looked_at or [],
    )
    change(
        connection,
        "plan",
        "insert_refusals",
        pipeline_id=pipeline.pipeline_id,
        paths=[r.path for r in refusals],
        reasons=[r.reason for r in refusals],
        details=[r.detail for r in refusals],
    )


def _write_partitions(
    connection: sa.Connection, pipeline: Pipeline, wanted: list[Wanted], ranges: list[Range]
) -> dict[str, int]:
    """Bring the source partitions up to date. Returns the partition of each path."""
    tails = {r.wanted.file.path: (r.end, r.tail_hash) for r in ranges}
    old = [(w.file, w.known) for w in wanted if w.known]
    new = [r.wanted.file for r in ranges if r.wanted.known is None]
    generations = rows(
        connection,
        "plan",
        "next_generation",
        pipeline_id=pipeline.pipeline_id,
        paths=[file.path for file in new],
    )
    last = {r["path"]: r["generation"] for r in generations}
    stale = [r.wanted.stale.source_partition_id for r in ranges if r.wanted.stale]
    change(connection, "plan", "retire_partitions", partitions=stale)
    made = rows(
        connection,
        "plan",
        "insert_partitions",
        pipeline_id=pipeline.pipeline_id,
        paths=[file.path for file in new],
        generations=[last.get(file.path, 0) + 1 for file in new],
        devices=[file.device for file in new],
        inodes=[file.inode for file in new],
        head_lengths=[file.head_length for file in new],
        heads=[file.head_hash for file in new],
    )
    partitions = {r["path"]: r["source_partition_id"] for r in made}
    partitions |= {file.path: known.source_partition_id for file, known in old}
    moved = [(file, known.tail_end, known.tail_hash) for file, known in old]
    moved += [(file, 0, "") for file in new]
    moved = [(f, *max((end, tail), tails.get(f.path, (0, "")))) for f, end, tail in moved]
    change(
        connection,
        "plan",
        "update_partitions",
        partitions=[partitions[file.path] for file, _, _ in moved],
        paths=[file.path for file, _, _ in moved],
        devices=[file.device for file, _, _ in moved],
        head_lengths=[file.head_length for file, _, _ in moved],
        heads=[file.head_hash for file, _, _ in moved],
        tail_ends=[end for _, end, _ in moved],
        tails=[tail for _, _, tail in moved],
    )
    return partitions


def _write_batch(
    connection: sa.Connection,
    pipeline: Pipeline,
    spec: Spec,
    request_key: str,
    ordinal: int,
    interval: tuple[datetime, datetime] | None,
) -> Batch:
    made = row(
        connection,
        "plan",
        "insert_batch",
        pipeline_id=pipeline.pipeline_id,
        request_key=request_key,
        ordinal=ordinal,
        spec=json.dumps(spec.to_json()),
        spec_digest=spec.digest(),
        split_bytes=limits.SPLIT_BYTES,
        interval_start=interval[0] if interval else None,
        interval_end=interval[1] if interval else None,
    )
    return Batch.from_row(made)


def _write_claims(
    connection: sa.Connection, batch: Batch, ranges: list[Range], partitions: dict[str, int]
) -> None:
    change(
        connection,
        "plan",
        "insert_claims",
        batch_id=batch.batch_id,
        partitions=[partitions[r.wanted.file.path] for r in ranges],
        starts=[r.start for r in ranges],
        ends=[r.end for r in ranges],
        tails=[r.tail_hash for r in ranges],
    )
