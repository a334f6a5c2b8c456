"""finalize: make the winner's files visible. Any number of times, also twice at once.

A pure decision table (`sinks.judge`) says of each file what to do, by what is there. The sink
publishes what is missing of the output, the archive takes the rest. Order: these, durably; the
claims when they are many; success marker (`mark`); `committed -> finalized`; and only then the
staged names go.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import xxhash
from sqlalchemy import Connection

from semel import failpoints
from semel.archive import layout, ownership, provenance, write_marker
from semel.declare.parts import Select
from semel.errors import AGAIN, ANEW, CorruptionError, RetryableError, StateError
from semel.ledger import Ledger, Row, pipelines, row, rows
from semel.ledger.batches import pipeline_and_batch
from semel.model.arrow import arrow_type
from semel.model.batch import Batch, BatchStatus, Claim, Counts, Pipeline
from semel.model.manifest import Kind, ManifestFile
from semel.model.times import TimeSet
from semel.pipeline.opening import acknowledge_stored, open_stored
from semel.pipeline.spec import Spec
from semel.plan import covered, event_time
from semel.sinks import CommittedBatch, FinalizeAction, Sink, judge
from semel.sinks.linked import HardLinkPublisher, LinkedFiles
from semel.sources import SettledPartition
from semel.storage import remove_folder

_ROUNDS_MAX = 8  # A twin moves files while we read them at most a few times.


@dataclass(frozen=True, kw_only=True)
class Finalized:
    """The answer of finalize. `found`: it had been finalized before. `kept`: patterns of the files
    that hold its dead letters and decisions.
    """

    batch: Batch
    found: bool
    counts: Counts
    marker: Path | None = None
    kept: dict[str, Path] = field(default_factory=dict)
    note: str | None = None
    """What its source could not be told."""


def finalize(
    ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool = False
) -> Finalized:
    """Finish a committed batch. A finalized one is answered from the ledger, not from files.

    `accepting`: rows that the sink refuses go to the archive, as a person has decided.

    CorruptionError: a file is missing or is not what the manifest says; nothing was touched.
    """
    try:
        done = _finalize(ledger, spec, batch_id, accepting=accepting)
        return done if done.found else replace(done, note=_acknowledge(ledger, spec, done.batch))
    except (OSError, CorruptionError) as error:
        # Keeps F9. What is missing may be so because a twin is done: the staged names go then, and
        # the output of one that was replaced since.
        with ledger.transaction() as connection:
            now = row(connection, "finalize", "batch_status", batch_id=batch_id)
        if now["status"] == BatchStatus.FINALIZED:
            return _finalize(ledger, spec, batch_id, accepting=accepting)
        if not isinstance(error, OSError):
            # The audit, which the error's class names, sees no batch before its marker.
            error.next = error.next or AGAIN
            raise
        raise RetryableError(
            f"batch {batch_id}: {error}; it has committed and stays so. Fix the file system of "
            "its sink, then run finalize again"
        ) from error


def _finalize(ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool) -> Finalized:
    with ledger.transaction() as connection:
        pipeline, batch = pipeline_and_batch(connection, spec.name, batch_id)
        won = row(connection, "finalize", "won", batch_id=batch_id)
        if won is None:
            raise StateError(
                f"batch {batch_id} is {batch.status}, and finalize needs a committed one",
                next=ANEW,
            )
        files = [
            ManifestFile(**{**r, "kind": Kind(r["kind"])})
            for r in rows(connection, "finalize", "manifest", attempt_id=won["attempt_id"])
        ]
        # An admission has none of its own.
        found = [] if batch.admits else rows(connection, "plan", "claims", batch_id=batch_id)
        claims = [Claim.from_row(r) for r in found]
        values = {"root": batch.root, "generation": batch.generation}
        replays = batch.replays is not None
        before = rows(connection, "replay", "generations", **values) if replays else []
        known = ownership.known_batches(connection, pipeline)
        stored = Spec.from_json(batch.spec)
        now = event_time.frontier(connection, stored, pipeline.pipeline_id, batch_id)
    counts = Counts.from_row(won)
    root = Path(pipeline.archive_path)
    marker = layout.marker(root, batch.root)
    done = Finalized(
        batch=batch,
        found=True,
        counts=counts,
        marker=marker,
        kept=layout.verdict_globs(root, {file.kind for file in files}, batch_id),
    )
    # Keeps F7.
    if batch.status is BatchStatus.FINALIZED:
        return done
    looks, own = LinkedFiles(), batch.replays is None and batch.admits is None
    times = event_time.times(ledger, stored, batch)
    timed = own and event_time.is_timed(stored)
    complete = ()
    if stored.aggregate:
        complete = _complete(ledger, pipeline, stored, batch, won, timed=timed)
    sink = open_stored(stored, spec, pipeline.sink_address, looks)
    failpoints.point("finalize.before_publish")
    output = replace(_won(spec, pipeline, batch, won, files, before), complete=complete)
    refused = layout.batch_file(root, Kind.REFUSED, batch_id, len(files) + 1)
    with sink:
        staged = layout.attempt(root, batch_id, won["fence"]) / "data"
        sink.repair_published(output)
        ownership.check_target(ledger, pipeline, sink, known, staged, replay=replays)
        if accepting:
            sink.publish_accepting(output, lambda rows: write_marker.write_refused(refused, rows))
        # Keeps F5.
        publish(sink, HardLinkPublisher(root, looks), output, files, looks)
        count = sink.count_refused(output)
    failpoints.point("finalize.after_publish")
    content = write_marker.marker_content(spec, pipeline, batch, won, counts, files, times)
    content |= write_marker.completeness(now, timed=event_time.is_one_stream(stored))
    if count:
        content["files"].append(write_marker.marker_entry(refused, root, Kind.REFUSED, count))
    else:
        refused.unlink(missing_ok=True)  # Of a try that did not land.
    if ran := provenance.code_of_attempt(layout.attempt(root, batch_id, won["fence"])):
        content |= {"code": asdict(ran), "code_digest": ran.digest}
    if batch.replays is None:
        write_marker.write_first_marker(root, batch, content, claims)
    else:
        write_marker.replace_marker(root, batch, won, content, before, claims)
    sink.copy_marker(output, marker)
    failpoints.point("finalize.after_mark")
    with ledger.transaction() as connection:
        changed = _finish(connection, pipeline, stored, batch, won, timed=timed)
        now = changed or row(connection, "finalize", "batch_status", batch_id=batch_id)
        failpoints.point("finalize.before_finalized")
    failpoints.point("finalize.after_finalized")
    if now["status"] != BatchStatus.FINALIZED:
        raise StateError(f"batch {batch_id} is {now['status']}, expected committed or finalized")
    # Keeps F8.
    remove_folder(layout.attempt(root, batch_id, won["fence"]))
    failpoints.point("finalize.after_clean")
    return replace(done, found=changed is None)


def _acknowledge(ledger: Ledger, spec: Spec, batch: Batch) -> str | None:
    """Tell the source what is finalized, where it wants to know."""
    stored = Spec.from_json(batch.spec)
    if not stored.source.acknowledged:
        return None
    found = ledger.rows("partitions", "finalized", batch_id=batch.batch_id)
    settled = [SettledPartition(**r) for r in found]
    return acknowledge_stored(stored, spec, settled) if settled else None


def _finish(
    connection: Connection, pipeline: Pipeline, spec: Spec, batch: Batch, won: Row, *, timed: bool
) -> Row | None:
    """`committed -> finalized`, and what that makes complete. None: it was done before. `timed`:
    the batch moves the event time.
    """
    if timed or won["covers"] is not None:
        pipelines.lock(connection, pipeline)
    changed = row(connection, "finalize", "finalize_batch", batch_id=batch.batch_id)
    if changed and won["covers"] is not None:
        covered.add(connection, pipeline.pipeline_id, TimeSet.from_ledger(won["covers"]))
    if changed and timed:
        event_time.take_in(connection, spec, batch)
    return changed


def _complete(
    ledger: Ledger, pipeline: Pipeline, spec: Spec, batch: Batch, won: Row, *, timed: bool
) -> tuple[tuple[datetime | None, datetime], ...]:
    """What is complete once a batch is finalized: found in a transaction that is rolled back."""
    with ledger.transaction() as connection:
        _finish(connection, pipeline, spec, batch, won, timed=timed)
        found = row(connection, "completeness", "pipeline", name=spec.name)
        connection.get_transaction().rollback()
    if spec.source.select is Select.ARRIVAL:
        return ((None, found["event_time"]),) if found["event_time"] else ()
    return TimeSet.from_ledger(found["covered"]).ranges


def _won(
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    won: Row,
    files: list[ManifestFile],
    before: list[Row],
) -> CommittedBatch:
    columns = json.loads(won["sink_schema"] or "[]")
    whole = json.dumps([asdict(file) for file in files], sort_keys=True).encode()
    return CommittedBatch(
        pipeline=spec.name,
        batch_id=batch.batch_id,
        fence=won["fence"],
        commit_seq=batch.commit_seq,
        files=tuple(file for file in files if file.kind is Kind.DATA),
        schema=pa.schema([(name, arrow_type(text)) for name, text in columns]),
        digest=xxhash.xxh3_128_hexdigest(whole),
        replaces=tuple(r["batch_id"] for r in before),
        ledger=pipeline.ledger,
    )


def publish(
    sink: Sink, kept: HardLinkPublisher, won: CommittedBatch, files: list[ManifestFile],
    looks: LinkedFiles,
) -> None:
    """Make a batch visible and durable, or raise before touching anything.

    `files` is the whole manifest: what of it is not `won`'s goes to the archive, `kept`.
    """
    beside = replace(won, files=tuple(file for file in files if file.kind is not Kind.DATA))
    files = [*won.files, *beside.files]
    for _ in range(_ROUNDS_MAX):
        staged = looks.presence_of((file, file.staged_path) for file in files)
        targets = [*sink.query_presence(won), *kept.query_presence(beside)]
        failpoints.point("finalize.after_look")
        acts = list(map(judge, staged, targets))
        # Keeps F4.
        broken = [n for n, act in enumerate(acts) if act is FinalizeAction.FAIL]
        if broken:
            shown = "; ".join(
                f"{files[n].final_path!r}: staged file {staged[n]}, final file {targets[n]}"
                for n in broken[:5]
            )
            raise CorruptionError(
                f"batch {won.batch_id}: {len(broken)} of {len(files)} files are not as its "
                f"manifest says ({shown}); nothing was touched. Restore what is damaged from a "
                "backup: the batch has committed; and ask whether another ledger writes to this "
                "sink where what is final is wrong",
                next=AGAIN,
            )
        missing = [
            file for file, act in zip(files, acts, strict=True) if act is FinalizeAction.PUBLISH
        ]
        failpoints.point("sink.before_publish")
        sink.publish(won, [file for file in missing if file.kind is Kind.DATA])
        failpoints.point("sink.after_publish")
        kept.publish(beside, [file for file in missing if file.kind is not Kind.DATA])
        if not missing:
            return
    raise RetryableError(
        f"batch {won.batch_id}: its files were changed by others {_ROUNDS_MAX} times while "
        "finalize worked; run this again"
    )
