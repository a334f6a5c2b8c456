"""stage: one attempt at a batch, which may be repeated, killed, or run twice at once.

Readers see nothing of it.

How it works:
1. take a new fence, and in one statement read the commit sequence, the forgotten buckets and the
   live id runs: this pinned list is all that the attempt may consult;
2. make the attempt's folder, keep the code in it, and check the planned ranges;
3. look for records that killed the last attempts, and judge a part of the batch, to stop here if it
   is surely too bad;
4. run the job (job.py) in an engine;
5. check again, make everything durable, and seal the manifest with `running -> staged`.
"""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from semel import failpoints, limits
from semel.archive import layout, owned, provenance
from semel.catalog.runs import ensure_segment, snapshot
from semel.declare.wording import count
from semel.errors import (
    AGAIN,
    ANEW,
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
from semel.stage.job import JobEngine, Outcome, StageJob, columns_of, splits_for
from semel.stage.sample import check_sample
from semel.storage import check_links_of, make_folder, sync_folder

DIED_ATTEMPTS = 2
"""After this many attempts that died over the same part of a batch, its records are examined."""


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
    kept: dict[str, Path] = field(default_factory=dict)
    ignored: Ignored = Ignored()


def stage(ledger: Ledger, spec: Spec, batch_id: int, engine: JobEngine, log: Log = print) -> Staged:
    """Stage a planned batch. A staged or committed batch gets no new fence.

    AttemptLostError: another attempt won, or the batch was given up, while this one ran.
    TerminalError: the spec or the source is not what was planned, or a limit was broken.
    """
    with ledger.transaction() as connection:
        pipeline, batch = pipeline_and_batch(connection, spec.name, batch_id)
        latest = row(connection, "stage", "latest", batch_id=batch_id)
        found = rows(connection, "plan", "claims", batch_id=batch_id)
        claims = [Claim.from_row(r) for r in found]
        known = owned.known_batches(connection, pipeline)
    if batch.status in (BatchStatus.COMMITTED, BatchStatus.FINALIZED):
        return Staged(batch=batch, attempt=None, found=True, counts=Counts.from_row(latest))
    if batch.status is BatchStatus.ABANDONED:
        raise StateError(
            f"batch {batch_id} was abandoned, and its records are free for a later plan", next=ANEW
        )
    # Keeps S4.
    if batch.spec_digest != spec.digest():
        identity.check(pipeline.identity, spec)  # Plan refuses such a change too.
        raise TerminalError(
            f"batch {batch_id} was planned by another version of the declaration of {spec.name} "
            f"(digest {batch.spec_digest[:12]}, now {spec.digest()[:12]}). Put that file back, or "
            "let the batch be planned again by the new one; "
            f"`semel abandon {batch_id}` gives it up",
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
            taken = provenance.take(context.spec, batch, texts, job.folder, context.log)
            job = replace(job, refuses=refuses, code=taken)
            failpoints.point("stage.after_folders")
            if attempt.fence > DIED_ATTEMPTS:
                before = range(attempt.fence - DIED_ATTEMPTS, attempt.fence)
                folders = [layout.attempt(context.archive, batch.batch_id, n) for n in before]
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
                f"batch {batch.batch_id}: what was planned was moved or compressed while it was "
                f"read ({error}); it is there, so run stage again"
            ) from error
        raise


def _check_sink(context: StageContext, sink: Sink, job: StageJob) -> RowChecker | None:
    """Check the sink before the job. Returns the check of rows, if the sink refuses any."""
    ledger, pipeline, batch = context.ledger, context.pipeline, context.batch
    is_replay = batch.replays is not None
    refuses = sink.check(_columns(job), job.data_dir)
    owned.check_held(ledger, pipeline, sink, context.known, job.data_dir, replay=is_replay)
    notes = refuses.notes if refuses else ()
    if is_replay:
        notes += sink.check_replace(replayed.old_of(ledger, pipeline, batch))
    for note in notes:
        context.log(note)
    return refuses


def make_folders(job: StageJob) -> None:
    """Make the folders that tasks write to: they make none themselves."""
    for folder in (job.spill_dir, job.data_dir):
        make_folder(folder)
    fatal.make_folder(job.folder)


def _give_up(context: StageContext, attempt: Attempt, error: BaseException) -> None:
    """Mark the attempt as lost. Raises a more specific error when one is known."""
    ledger, batch = context.ledger, context.batch
    try:
        found = ledger.rows("stage", "attempt_status", attempt_id=attempt.attempt_id)[0]
        attempts.lose(ledger, attempt.attempt_id, f"{type(error).__name__}: {error}"[:2000])
        became = ledger.rows("stage", "became", batch_id=batch.batch_id)[0]
    except RetryableError:
        return  # The ledger is away: the attempt stays open, which is safe.
    if isinstance(error, Exception) and found["status"] in (AttemptStatus.LOST, AttemptStatus.WON):
        # It was given up while it ran, and collect may have removed its files.
        raise AttemptLostError(attempts.message(batch, attempt, found, became)) from error
    if isinstance(error, OSError):
        raise RetryableError(
            f"batch {batch.batch_id}, attempt {attempt.fence}: {error}; nothing was committed. "
            f"Fix the file system below {context.archive}, then run stage again"
        ) from error


def moved(source: Source, claims: list[Claim], batch_id: int) -> bool:
    """Whether everything planned is in the source, at another place than before."""
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
                f"batch {batch.batch_id} takes no new attempt: "
                + attempts.winner(row(connection, "stage", "became", batch_id=batch.batch_id))
            )
        segment = None
        if not spec.by_position and batch.replays is None:
            # After the attempt: it began before its segment's span ends, so collect counts it.
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
    )


def _seal(
    context: StageContext, attempt: Attempt, job: StageJob, outcome: Outcome, sink: Sink
) -> Staged:
    spec, pipeline, batch = context.spec, context.pipeline, context.batch
    staged, counts = account.added_up(job, outcome)
    # What others set aside was set aside and reported before.
    aside = None
    if batch.judges:
        aside = account.set_aside(job, outcome.reports, counts)
    schema = json.dumps(outcome.sink_schema)
    # Keeps S17.
    if pipeline.sink_schema not in (None, schema):
        raise TerminalError(
            f"batch {batch.batch_id}: its output has the columns {schema}, and {spec.name}'s "
            f"output had {pipeline.sink_schema}; {_otherwise(spec)}",
            next=AGAIN if spec.aggregate else f"semel accept {spec.name} --columns",
        )
    columns = [(name, arrow_type(text)) for name, text in outcome.sink_schema]
    sink.check_staged(pa.schema(columns), [file for file in staged if file.kind is Kind.DATA])
    digest = account.input_digest(job, outcome.reports)
    manifest = list(_final_names(context, sink, attempt, staged))
    check_links_of((f.path for f in staged), context.archive)
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
        kept=layout.all_kept(context.archive, {f.kind for f in manifest}, batch.batch_id),
        ignored=account.ignored_of(spec, outcome.reports),
    )


def _otherwise(spec: Spec) -> str:
    """What helps where the output's columns are others."""
    transforms = ", and the transforms," if spec.transforms else ""
    changed = f"source.schema and source.unknown{transforms}"
    if spec.aggregate is not None:
        return (
            f"rows of both would not add up. Change {changed} back, or declare a new pipeline with "
            "its own name and sink"
        )
    return (
        f"change {changed} back, or `semel accept {spec.name} --columns` to let the output have "
        "new columns from here on"
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
    """`running -> staged`, with the attempt's files and its `sealed` columns."""
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
                "file was edited in between, or a topic compacted; once the batch is abandoned, "
                "what is there now is planned anew",
                next=f"semel abandon {batch.batch_id}",
            )
        values = {"attempt_id": attempt.attempt_id, "files": files, **sealed}
        done = row(connection, "stage", "seal", **values)
        if done is None:
            found = row(connection, "stage", "attempt_status", attempt_id=attempt.attempt_id)
            became = row(connection, "stage", "became", batch_id=batch.batch_id)
            raise AttemptLostError(attempts.message(batch, attempt, found, became))
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
            final = layout.kept(context.archive, file.kind, batch_id, part)
        yield ManifestFile(
            kind=file.kind,
            staged_path=file.path,
            final_path=str(final),
            records=file.records,
            bytes=file.bytes,
            checksum=file.checksum,
        )
