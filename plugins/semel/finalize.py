"""finalize: make the winner's files visible. It may run any number of times, even twice at once.

A pure decision table (`sinks.judge`) maps the state of each file to an action. The sink publishes
missing output files, the archive takes the other files. The order: these files, durably; the
claims, if they are many; the success marker; `committed -> finalized`; at last the staged names
are removed.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import xxhash
from sqlalchemy import Connection

from semel import failpoints, storage
from semel.archive import layout, ownership, provenance, write_marker
from semel.declare.parts import Select
from semel.errors import AGAIN, ANEW, CorruptionError, ReplacedError, RetryableError, StateError
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
from semel.sinks.linked import LinkedFiles, Publisher
from semel.sources import SettledPartition
from semel.storage import ArchivePath, remove_folder

_ROUNDS_MAX = 8  # A twin can move files under us at most a few times.


@dataclass(frozen=True, kw_only=True)
class Finalized:
    """The answer of finalize. `found`: it was already finalized. `kept`: patterns of the files of
    its dead letters and decisions.
    """

    batch: Batch
    found: bool
    counts: Counts
    marker: ArchivePath | None = None
    kept: dict[str, ArchivePath] = field(default_factory=dict)
    note: str | None = None
    """The failure of the acknowledgement to the source, if it failed."""


def finalize(
    ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool = False
) -> Finalized:
    """Finish a committed batch. For a finalized one the answer comes from the ledger alone.

    `accepting`: a person decided that rows which the sink refuses go to the archive.

    Raises CorruptionError if a file is missing or differs from the manifest; nothing was touched.
    """
    try:
        result = _finalize(ledger, spec, batch_id, accepting=accepting)
        if result.found:
            return result
        return replace(result, note=_acknowledge(ledger, spec, result.batch))
    except (OSError, CorruptionError, ReplacedError) as error:
        # Keeps F9. Files may be missing because a twin has finished: it removes the staged names,
        # and a later replay removes replaced output, or has replaced the marker.
        with ledger.transaction() as connection:
            now = row(connection, "finalize", "batch_status", batch_id=batch_id)
        if now["status"] == BatchStatus.FINALIZED:
            return _finalize(ledger, spec, batch_id, accepting=accepting)
        if not isinstance(error, OSError):
            # CorruptionError's next step is the audit, which does not see a batch without a marker.
            error.next = error.next or AGAIN
            raise
        raise RetryableError(
            f"batch {batch_id}: {error}. The batch stays committed. Fix the file system of its "
            "sink, or the access to its archive, then run finalize again"
        ) from error


def _finalize(ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool) -> Finalized:
    with ledger.transaction() as connection:
        pipeline, batch = pipeline_and_batch(connection, spec.name, batch_id)
        won = row(connection, "finalize", "won", batch_id=batch_id)
        if won is None:
            raise StateError(
                f"batch {batch_id} is {batch.status}, and finalize needs a committed batch",
                next=ANEW,
            )
        files = [
            ManifestFile(**{**r, "kind": Kind(r["kind"])})
            for r in rows(connection, "finalize", "manifest", attempt_id=won["attempt_id"])
        ]
        root = storage.at(pipeline.archive_path)
        result = Finalized(
            batch=batch,
            found=True,
            counts=Counts.from_row(won),
            marker=layout.marker(root, batch.root),
            kept=layout.verdict_globs(root, {file.kind for file in files}, batch_id),
        )
        # Keeps F7.
        if batch.status is BatchStatus.FINALIZED:
            return result
        # An admission does not claim anything.
        claimed = [] if batch.admits else rows(connection, "plan", "claims", batch_id=batch_id)
        claims = [Claim.from_row(r) for r in claimed]
        values = {"root": batch.root, "generation": batch.generation}
        replays = batch.replays is not None
        replaced = rows(connection, "replay", "generations", **values) if replays else []
        batches = ownership.known_batches(connection, pipeline)
        stored = Spec.from_json(batch.spec)
        now = event_time.frontier(connection, stored, pipeline.pipeline_id, batch_id)
    links, is_first = LinkedFiles(), batch.replays is None and batch.admits is None
    times = event_time.times(ledger, stored, batch)
    timed = is_first and event_time.is_timed(stored)
    complete = ()
    if stored.aggregate:
        complete = _complete_after(ledger, pipeline, stored, batch, won, timed=timed)
    sink = open_stored(stored, spec, pipeline.sink_address, links)
    failpoints.point("finalize.before_publish")
    output = _committed_batch(spec, pipeline, batch, won, files, replaced)
    output = replace(output, complete=complete)
    refused = layout.batch_file(root, Kind.REFUSED, batch_id, len(files) + 1)
    with sink:
        staged = layout.attempt(root, batch_id, won["fence"]) / "data"
        sink.repair_published(output)
        ownership.check_target(ledger, pipeline, sink, batches, staged, replay=replays)
        if accepting:
            sink.publish_accepting(output, lambda rows: write_marker.write_refused(refused, rows))
        # Keeps F5.
        publish(sink, Publisher(root, links), output, files, links)
        count = sink.count_refused(output)
    failpoints.point("finalize.after_publish")
    content = write_marker.marker_content(spec, pipeline, batch, won, result.counts, files, times)
    content |= write_marker.completeness(now, timed=event_time.is_one_stream(stored))
    if count:
        content["files"].append(write_marker.marker_entry(refused, root, Kind.REFUSED, count))
    elif count is not None:
        refused.unlink(missing_ok=True)  # A failed try left it.
    if code := provenance.code_of_attempt(layout.attempt(root, batch_id, won["fence"])):
        content |= {"code": asdict(code), "code_digest": code.digest}
    # Keeps HI1. A twin may have finalized it long ago, and collect have packed its marker.
    with ledger.transaction() as connection:
        current = row(connection, "finalize", "batch_status", batch_id=batch_id)
    if current["status"] == BatchStatus.FINALIZED:
        return result
    if batch.replays is None:
        write_marker.write_first_marker(root, batch, content, claims)
    else:
        write_marker.replace_marker(root, batch, won, content, replaced, claims)
    sink.copy_marker(output, result.marker)
    failpoints.point("finalize.after_mark")
    with ledger.transaction() as connection:
        changed = _mark_finalized(connection, pipeline, stored, batch, won, timed=timed)
        now = changed or row(connection, "finalize", "batch_status", batch_id=batch_id)
        failpoints.point("finalize.before_finalized")
    failpoints.point("finalize.after_finalized")
    if now["status"] != BatchStatus.FINALIZED:
        raise StateError(f"batch {batch_id} is {now['status']}, expected committed or finalized")
    # Keeps F8.
    remove_folder(layout.attempt(root, batch_id, won["fence"]))
    failpoints.point("finalize.after_clean")
    return replace(result, found=changed is None)


def _acknowledge(ledger: Ledger, spec: Spec, batch: Batch) -> str | None:
    """Acknowledge finalized records to a source that needs it. Returns a note if that failed."""
    stored = Spec.from_json(batch.spec)
    if not stored.source.acknowledged:
        return None
    partitions = ledger.rows("partitions", "finalized", batch_id=batch.batch_id)
    settled = [SettledPartition(**r) for r in partitions]
    return acknowledge_stored(stored, spec, settled) if settled else None


def _mark_finalized(
    connection: Connection, pipeline: Pipeline, spec: Spec, batch: Batch, won: Row, *, timed: bool
) -> Row | None:
    """`committed -> finalized`, and the times that become complete. `timed`: the batch moves the
    event time. Returns None if the batch was already finalized.
    """
    if timed or won["covers"] is not None:
        pipelines.lock(connection, pipeline)
    changed = row(connection, "finalize", "finalize_batch", batch_id=batch.batch_id)
    if changed and won["covers"] is not None:
        covered.add(connection, pipeline.pipeline_id, TimeSet.from_ledger(won["covers"]))
    if changed and timed:
        event_time.take_in(connection, spec, batch)
    return changed


def _complete_after(
    ledger: Ledger, pipeline: Pipeline, spec: Spec, batch: Batch, won: Row, *, timed: bool
) -> tuple[tuple[datetime | None, datetime], ...]:
    """The times that are complete once a batch is finalized, from a transaction that rolls back."""
    with ledger.transaction() as connection:
        _mark_finalized(connection, pipeline, spec, batch, won, timed=timed)
        state = row(connection, "completeness", "pipeline", name=spec.name)
        connection.get_transaction().rollback()
    if spec.source.select is Select.ARRIVAL:
        return ((None, state["event_time"]),) if state["event_time"] else ()
    return TimeSet.from_ledger(state["covered"]).ranges


def _committed_batch(
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    won: Row,
    files: list[ManifestFile],
    replaced: list[Row],
) -> CommittedBatch:
    columns = json.loads(won["sink_schema"] or "[]")
    manifest = json.dumps([asdict(file) for file in files], sort_keys=True).encode()
    return CommittedBatch(
        pipeline=spec.name,
        batch_id=batch.batch_id,
        fence=won["fence"],
        commit_seq=batch.commit_seq,
        files=tuple(file for file in files if file.kind is Kind.DATA),
        schema=pa.schema([(name, arrow_type(text)) for name, text in columns]),
        digest=xxhash.xxh3_128_hexdigest(manifest),
        replaces=tuple(r["batch_id"] for r in replaced),
        ledger=pipeline.ledger,
    )


def publish(
    sink: Sink, archive: Publisher, won: CommittedBatch, files: list[ManifestFile],
    links: LinkedFiles,
) -> None:
    """Make a batch visible and durable, or raise before touching anything.

    `files`: the complete manifest; the files that are not in `won` go to the archive.
    """
    archived = replace(won, files=tuple(file for file in files if file.kind is not Kind.DATA))
    files = [*won.files, *archived.files]
    names = [(file, file.staged_path) for file in files]
    names += [(file, file.final_path) for file in archived.files]
    for _ in range(_ROUNDS_MAX):
        looked = links.presence_of(names)
        staged, in_archive = looked[: len(files)], looked[len(files) :]
        targets = [*sink.query_presence(won), *in_archive]
        failpoints.point("finalize.after_look")
        acts = list(map(judge, staged, targets))
        # Keeps F4.
        broken = [n for n, act in enumerate(acts) if act is FinalizeAction.FAIL]
        if broken:
            places = "; ".join(
                f"{files[n].final_path!r}: staged file {staged[n]}, final file {targets[n]}"
                for n in broken[:5]
            )
            raise CorruptionError(
                f"batch {won.batch_id}: {len(broken)} of {len(files)} files differ from its "
                f"manifest ({places}). Nothing was touched, and the batch stays committed. Restore "
                "the damaged files from a backup. If final files are wrong, check whether another "
                "ledger writes to this sink",
                next=AGAIN,
            )
        missing = [
            file for file, act in zip(files, acts, strict=True) if act is FinalizeAction.PUBLISH
        ]
        failpoints.point("sink.before_publish")
        sink.publish(won, [file for file in missing if file.kind is Kind.DATA])
        failpoints.point("sink.after_publish")
        archive.publish(archived, [file for file in missing if file.kind is not Kind.DATA])
        if not missing:
            return
    raise RetryableError(
        f"batch {won.batch_id}: other processes changed its files {_ROUNDS_MAX} times during "
        "finalize. Run finalize again"
    )
