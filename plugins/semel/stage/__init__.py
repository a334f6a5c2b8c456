"""stage: one attempt at a batch. It may be repeated, killed, or run twice at the same time.

Readers see nothing until commit.

How it works:
1. take a new fence, and in one statement read the commit sequence, the forgotten buckets and the
   live id runs: the attempt may consult only this pinned list;
2. create the attempt's folder, store the code in it, and check the planned ranges;
3. search for records that killed the last attempts, and judge a sample of the batch, to stop early
   if it is too bad;
4. run the job (job.py) in an engine;
5. check again, make everything durable, and seal the manifest with `running -> staged`.
"""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import pyarrow as pa

from semel import failpoints, limits, storage
from semel.archive import layout, ownership, provenance
from semel.catalog.runs import ensure_segment, snapshot
from semel.declare.wording import count
from semel.errors import (
    AGAIN,
    ANEW,
    ArchiveUnseenError,
    AttemptLostError,
    RetryableError,
    SourceError,
    StateError,
    TerminalError,
)
from semel.ledger import Ledger, attempts, pipelines, row, rows
from semel.ledger.batches import pipeline_and_batch
from semel.ledger.heartbeat import heartbeat
from semel.model.arrow import arrow_type
from semel.model.batch import (
    Attempt,
    AttemptStatus,
    Batch,
    BatchStatus,
    Claim,
    Counts,
    Ignored,
    Log,
)
from semel.model.buckets import union
from semel.model.manifest import Kind, ManifestFile, StagedFile
from semel.pipeline import identity
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.sinks import RowChecker, Sink
from semel.sources import Source
from semel.stage import account, event_time, fatal, replayed
from semel.stage.context import StageContext
from semel.stage.job import JobEngine, Outcome, StageJob, columns_of, splits_for, writes_early
from semel.stage.sample import check_sample
from semel.storage import ArchivePath, check_links_of, make_folder, sync_folder

DIED_ATTEMPTS = 2
"""After so many attempts died in the same part of a batch, stage examines its records."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """The answer of stage. `attempt` is None if the batch has already committed.

    `kept`: as in `Finalized`, once it is finalized.
    """

    batch: Batch
    attempt: Attempt | None
    found: bool
    counts: Counts = Counts()
    files: int = 0
    aside: account.SetAside | None = None
    kept: dict[str, ArchivePath] = field(default_factory=dict)
    ignored: Ignored = Ignored()


def stage(ledger: Ledger, spec: Spec, batch_id: int, engine: JobEngine, log: Log = print) -> Staged:
    """Stage a planned batch. Returns the existing result of a staged or committed batch.

    Raises AttemptLostError if meanwhile another attempt won or the batch was abandoned. Raises
    TerminalError if the spec or the source changed since the plan, or a limit was exceeded.
    """
    with ledger.transaction() as connection:
        pipeline, batch = pipeline_and_batch(connection, spec.name, batch_id)
        latest = row(connection, "stage", "latest", batch_id=batch_id)
        claims = [Claim.from_row(r) for r in rows(connection, "plan", "claims", batch_id=batch_id)]
        known = ownership.known_batches(connection, pipeline)
    if batch.status in (BatchStatus.COMMITTED, BatchStatus.FINALIZED):
        return Staged(batch=batch, attempt=None, found=True, counts=Counts.from_row(latest))
    if batch.status is BatchStatus.ABANDONED:
        raise StateError(
            f"batch {batch_id} was abandoned. A later plan may take its records", next=ANEW
        )
    # Keeps S4.
    if batch.spec_digest != spec.digest():
        identity.check(pipeline.identity, spec)  # Plan refuses such a change too.
        raise TerminalError(
            f"batch {batch_id} was planned by another version of the declaration of {spec.name} "
            f"(digest {batch.spec_digest[:12]}, now {spec.digest()[:12]}). Put the old file back; "
            f"or abandon the batch with `semel abandon {batch_id}`, so that the next run plans its "
            "records by the new file",
            next=ANEW,
        )
    # Keeps S19.
    if latest is not None:
        if latest["status"] in (AttemptStatus.STAGED, AttemptStatus.WON):
            attempt, counts = Attempt.from_row(latest), Counts.from_row(latest)
            return Staged(batch=batch, attempt=attempt, found=True, counts=counts)
        log(attempts.previous_attempt(batch, latest))
    source = open_source(spec)
    context = StageContext(
        ledger=ledger,
        spec=spec,
        pipeline=pipeline,
        batch=batch,
        source=source,
        claims=source.find(claims, batch_id),
        known=known,
        engine=engine,
        log=log,
    )
    return _attempt(context)


def _attempt(context: StageContext) -> Staged:
    batch, source = context.batch, context.source
    attempt, job = _begin(context)
    read = f"{count(len(job.splits), 'split')} in {count(job.tasks, 'task')}"
    context.log(f"batch {batch.batch_id}, attempt {attempt.fence}: reads {read}")
    try:
        with heartbeat(context.ledger, batch.batch_id):
            # Keeps S5.
            make_folders(job)
            sink = open_sink(context.spec, context.pipeline.sink_address)
            with sink:
                refuses = _check_sink(context, sink, job)
            texts = layout.code(context.archive)
            code = provenance.take_code(context.spec, batch, texts, job.folder, context.log)
            job = replace(job, refuses=refuses, code=code)
            failpoints.point("stage.after_folders")
            if attempt.fence > DIED_ATTEMPTS:
                first = attempt.fence - DIED_ATTEMPTS
                fences = range(max(first, fatal.first_noted(context.archive)), attempt.fence)
                folders = [layout.attempt(context.archive, batch.batch_id, n) for n in fences]
                fatal.check(job, folders)
            if batch.judges:
                check_sample(job)
                outcome = context.engine.run(job)
            else:
                outcome = replayed.run_job(context, job)
            failpoints.point("stage.after_job")
            source.check(context.claims, batch.batch_id)
        return _seal(context, attempt, job, outcome, sink)
    except BaseException as error:
        _give_up(context, attempt, error)
        if isinstance(error, SourceError) and moved(source, context.claims, batch.batch_id):
            raise RetryableError(
                f"batch {batch.batch_id}: a planned file was moved or compressed while stage read "
                f"it ({error}). Its content still exists. Run stage again"
            ) from error
        raise


def _check_sink(context: StageContext, sink: Sink, job: StageJob) -> RowChecker | None:
    """Check the sink before the job. Returns the check for rows if the sink can refuse some."""
    ledger, pipeline, batch = context.ledger, context.pipeline, context.batch
    is_replay = batch.replays is not None
    checks = (
        partial(storage.check_guarantees, context.archive),
        partial(sink.check, _columns(job), job.data_dir),
    )
    _, refuses = storage.each(context.archive, lambda check: check(), checks)
    ownership.check_target(ledger, pipeline, sink, context.known, job.data_dir, replay=is_replay)
    notes = refuses.notes if refuses else ()
    if is_replay:
        notes += sink.check_replace(replayed.old_of(ledger, pipeline, batch))
    for note in notes:
        context.log(note)
    return refuses


def make_folders(job: StageJob) -> None:
    """Create the folders for tasks to write to, because tasks create none."""
    for folder in (job.spill_dir, job.data_dir):
        make_folder(folder)
    fatal.notes_folder(job.folder).mkdir(exist_ok=True)


def _give_up(context: StageContext, attempt: Attempt, error: BaseException) -> None:
    """Mark the attempt as lost. Raises a more specific error if there is one."""
    ledger, batch = context.ledger, context.batch
    try:
        status = ledger.rows("stage", "attempt_status", attempt_id=attempt.attempt_id)[0]
        attempts.lose(ledger, attempt.attempt_id, f"{type(error).__name__}: {error}"[:2000])
        became = ledger.rows("stage", "became", batch_id=batch.batch_id)[0]
    except RetryableError:
        return  # The ledger is away: the attempt stays open, which is safe.
    if isinstance(error, Exception) and status["status"] in (AttemptStatus.LOST, AttemptStatus.WON):
        # The attempt was lost while it ran, and collect may have removed its files.
        raise AttemptLostError(attempts.message(batch, attempt, status, became)) from error
    folder = layout.attempt(context.archive, batch.batch_id, attempt.fence)
    if isinstance(error, ArchiveUnseenError) and not folder.is_dir():
        raise RetryableError(
            f"batch {batch.batch_id}, attempt {attempt.fence}: its folder {folder} was removed "
            "while it ran. Nothing was committed. Run stage again, so that it makes a new folder"
        ) from error
    if isinstance(error, OSError):
        raise RetryableError(
            f"batch {batch.batch_id}, attempt {attempt.fence}: {error}. Nothing was committed. "
            f"{storage.remedy(context.archive)}, then run stage again"
        ) from error


def moved(source: Source, claims: list[Claim], batch_id: int) -> bool:
    """Whether the source still has all claimed content, but at least one part in another place."""
    try:
        return source.find(claims, batch_id) != claims
    except SourceError:
        return False


def _begin(context: StageContext) -> tuple[Attempt, StageJob]:
    spec, pipeline, batch = context.spec, context.pipeline, context.batch
    with context.ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        pinned = snapshot(connection, pipeline.pipeline_id)
        begun = row(
            connection,
            "stage",
            "begin_attempt",
            batch_id=batch.batch_id,
            snapshot_seq=pinned.commit_seq,
            forgotten=pinned.forgotten.to_ledger(),
            driver=f"{socket.gethostname()}:{os.getpid()}",
        )
        if begun is None:
            raise AttemptLostError(
                f"batch {batch.batch_id} cannot begin another attempt: "
                + attempts.winner(row(connection, "stage", "became", batch_id=batch.batch_id))
            )
        segment = None
        if not spec.by_position and batch.replays is None:
            # After the attempt's row, so that it begins before the end of its segment's span and
            # collect counts it.
            horizon = int(spec.dedup.horizon.total_seconds())
            segment = ensure_segment(connection, pipeline.pipeline_id, horizon)
        failpoints.point("stage.before_begin")
    failpoints.point("stage.after_begin")
    attempt = Attempt.from_row(begun)
    folder = layout.attempt(context.archive, batch.batch_id, attempt.fence)
    return attempt, StageJob(
        spec=spec,
        pipeline_id=pipeline.pipeline_id,
        batch_id=batch.batch_id,
        attempt_id=attempt.attempt_id,
        began_at=begun["started_at"],
        fence=attempt.fence,
        folder=folder,
        source=context.source,
        splits=splits_for(context.source, context.claims, batch.split_bytes),
        shards=pipeline.shards,
        bucket_seconds=pipeline.bucket_seconds,
        forgotten=pinned.forgotten,
        now_seconds=begun["now_seconds"],
        times_until=begun["planned_at"] + limits.CLOCKS_AHEAD,
        segment_id=segment,
        runs=() if batch.replays else pinned.runs,
        writes_early=not spec.transforms and writes_early(begun["last_spread"]),
    )


def _seal(
    context: StageContext, attempt: Attempt, job: StageJob, outcome: Outcome, sink: Sink
) -> Staged:
    spec, pipeline, batch = context.spec, context.pipeline, context.batch
    staged, counts = account.sum_up(job, outcome)
    # A replay's dead letters were reported by the batch that judged them.
    aside = None
    if batch.judges:
        aside = account.set_aside(job, outcome.reports, counts)
    schema = json.dumps(outcome.sink_schema)
    # Keeps S17.
    if pipeline.sink_schema not in (None, schema):
        raise TerminalError(
            f"batch {batch.batch_id}: its output differs from earlier output of {spec.name}: "
            f"{column_changes(json.loads(pipeline.sink_schema), outcome.sink_schema)}. "
            f"{_column_advice(spec)}",
            next=AGAIN if spec.aggregate else f"semel accept {spec.name} --columns",
        )
    columns = [(name, arrow_type(text)) for name, text in outcome.sink_schema]
    sink.check_staged(pa.schema(columns), [file for file in staged if file.kind is Kind.DATA])
    digest = account.input_digest(job, outcome.reports)
    manifest = list(_final_names(context, sink, attempt, staged))
    check_links_of(context.archive, (f.path for f in staged))
    # Keeps S10.
    for folder in (job.data_dir, job.folder, job.folder.parent):
        sync_folder(folder)
    failpoints.point("stage.after_sync")
    buckets = union(report.buckets for report in outcome.reports)
    sealed = {
        "buckets": buckets and buckets.to_ledger(),
        "input_digest": digest,
        "sink_schema": schema,
        "times": json.dumps(event_time.of_claims(job, outcome.reports) if batch.judges else []),
        "duplicates_spread": account.duplicates_spread(job, outcome.reports),
        "touches": event_time.of_attempt(outcome.reports).to_ledger(),
        **asdict(counts),
    }
    _write_manifest(context, attempt, manifest, sealed)
    return Staged(
        batch=batch,
        attempt=attempt,
        found=False,
        counts=counts,
        files=len(manifest),
        aside=aside,
        kept=layout.verdict_globs(context.archive, {f.kind for f in manifest}, batch.batch_id),
        ignored=account.ignored_of(spec, outcome.reports),
    )


def column_changes(before: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """How columns differ, as a text. `before` and `now`: pairs of a name and its Arrow type."""
    old, new = dict(before), dict(now)
    changes = [
        ("it has", (f"{name!r} ({new[name]})" for name in new if name not in old)),
        ("it lacks", (f"{name!r} ({old[name]})" for name in old if name not in new)),
        (
            "it has",
            (
                f"{name!r} as {new[name]}, not {old[name]}"
                for name in new
                if old.get(name, new[name]) != new[name]
            ),
        ),
    ]
    lists = [(verb, ", ".join(columns)) for verb, columns in changes]
    return "; ".join(f"{verb} {text}" for verb, text in lists if text) or (
        f"its columns have another order ({', '.join(map(repr, new))})"
    )


def _column_advice(spec: Spec) -> str:
    """Advice if the columns of the output have changed."""
    transforms = ", and the transforms," if spec.transforms else ""
    changed = f"source.schema and source.unknown{transforms}"
    if spec.aggregate is not None:
        return (
            f"The rows of both would not add up. Change {changed} back, or declare a new pipeline "
            "with its own name and sink"
        )
    return (
        f"Change {changed} back, or run `semel accept {spec.name} --columns` so that the output "
        "has the new columns from now on"
    )


def _columns(job: StageJob) -> pa.Schema | None:
    """The columns of the output, if known before the job."""
    return None if job.spec.transforms else columns_of(job.spec)


def _write_manifest(
    context: StageContext,
    attempt: Attempt,
    manifest: list[ManifestFile],
    sealed: dict[str, object],
) -> None:
    """Seal the attempt (`running -> staged`) with its files and its `sealed` columns."""
    batch, digest = context.batch, sealed["input_digest"]
    files = json.dumps([{**vars(f), "ordinal": at} for at, f in enumerate(manifest)])
    with context.ledger.transaction() as connection:
        rows(connection, "commit", "lock_batch", batch_id=batch.batch_id)
        other = row(
            connection, "stage", "other_digest", batch_id=batch.batch_id, input_digest=digest
        )
        if other is not None:
            raise TerminalError(
                f"batch {batch.batch_id}: attempt {attempt.fence} read other bytes (digest "
                f"{digest[:12]}) than attempt {other['fence']} ({other['input_digest'][:12]}): a "
                "file was edited in between, or a topic compacted. Nothing was committed. Abandon "
                "the batch, so that the next run plans the current content",
                next=f"semel abandon {batch.batch_id}",
            )
        values = {"attempt_id": attempt.attempt_id, "files": files, **sealed}
        if row(connection, "stage", "seal", **values) is None:
            status = row(connection, "stage", "attempt_status", attempt_id=attempt.attempt_id)
            became = row(connection, "stage", "became", batch_id=batch.batch_id)
            raise AttemptLostError(attempts.message(batch, attempt, status, became))
        failpoints.point("stage.before_seal")
    failpoints.point("stage.after_seal")


def _final_names(
    context: StageContext, sink: Sink, attempt: Attempt, staged: list[StagedFile]
) -> Iterator[ManifestFile]:
    batch_id = context.batch.batch_id
    for part, file in enumerate(staged):
        if file.kind is Kind.DATA:
            final = sink.target(batch_id, attempt.fence, part, file)
        else:
            final = layout.batch_file(context.archive, file.kind, batch_id, part)
        yield ManifestFile(
            kind=file.kind,
            staged_path=file.path,
            final_path=str(final),
            records=file.records,
            bytes=file.bytes,
            checksum=file.checksum,
        )
