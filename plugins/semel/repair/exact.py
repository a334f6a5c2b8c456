"""exact: make a pipeline exactly once that was at least once until now.

How it works:
1. finalize what has committed;
2. read the ids of each batch whose horizon is not over, as adopt does, and keep them in ids files
   where an exactly-once batch would have done so;
3. under the pipeline's lock: prove that these and no other batches have committed, write the ids,
   end the attempts that began without them, and set the first commit that is exactly once. It is one
   transaction: killed before its end, nothing has changed but for files that stay true, and the
   same call goes on.
"""

import io
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from semel import failpoints, settings
from semel.archive import layout, owned, write_marker
from semel.archive.marker import Marker, markers_in
from semel.declare.durations import format_duration
from semel.declare.wording import batch_list, count
from semel.errors import AGAIN, CorruptionError, RetryableError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger, change, pipelines, row
from semel.model.batch import Log, Pipeline
from semel.model.manifest import Kind
from semel.pipeline import identity
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.repair.adopt import Taught, catalog_of, expires_at
from semel.repair.adopt.history import histories
from semel.repair.adopt.ids import ShardIds
from semel.repair.adopt.partitions import partitions_of
from semel.stage.ids_file import Shard, write_shard
from semel.storage import make_folder, sync_folder, write_new


@dataclass(frozen=True, kw_only=True)
class ExactSince:
    """The first commit that is exactly once. `found`: it was so before, and nothing was done.

    `ids`: how many the catalog was taught, of `batches`.
    """

    pipeline: str
    found: bool
    exact_from: int
    ids: int = 0
    batches: int = 0
    batches_expired: int = 0


def exact(ledger: Ledger, spec: Spec, *, log: Log = print) -> ExactSince:
    """Teach the catalog the ids of each batch whose horizon is not over, and let the pipeline be
    exactly once from the next commit on. The same call again changes nothing.

    TerminalError: the declaration is at least once, neither files nor source have a batch's ids, a
    committed batch cannot be finalized, or a marker is of no batch that the ledger has.
    RetryableError: a batch committed meanwhile.
    """
    try:
        return _exact(ledger, spec, log)
    except OSError as error:
        raise RetryableError(
            f"exact of {spec.name}: {error}; it is still at_least_once. Fix that, then run this "
            "again"
        ) from error


def _exact(ledger: Ledger, spec: Spec, log: Log) -> ExactSince:
    if spec.by_position:
        why = (
            "is declared at_least_once: take guarantee out of its file first"
            if spec.record_id
            else "has no record_id: each position is read exactly once as it is"
        )
        raise TerminalError(f"pipeline {spec.name} {why}", next=f"semel validate {spec.name}")
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        now = row(connection, "adopt", "now")["now"]
    if pipeline is None:
        raise StateError(
            f"pipeline {spec.name} has planned no batch yet; its first one will be exactly once",
            next=f"semel run {spec.name}",
        )
    identity.check(pipeline.identity, spec)
    if pipeline.exact_from is not None:
        return ExactSince(pipeline=spec.name, found=True, exact_from=pipeline.exact_from)
    # By the new declaration no run does that any more.
    values = {"pipeline_id": pipeline.pipeline_id, "orphan_seconds": 0}
    for batch in ledger.rows("collect", "unfinished", **values):
        finalize(ledger, spec, batch["batch_id"])
        log(f"finalized batch {batch['batch_id']}, which had committed")
    # The declaration may have another sink already.
    sink = Path(pipeline.sink_address) if spec.sink_path() else None
    found = markers_in(sink, Path(pipeline.archive_path))
    with ledger.transaction() as connection:
        _refuse_unknown(connection, pipeline, found)
    batches = histories(found)
    partitions = partitions_of(open_source(spec), found)
    log(f"reads the ids of {count(len(found), 'batch', 'batches')}")
    with tempfile.TemporaryDirectory(prefix="exact-", dir=settings.cache_dir()) as spills:
        keep = partial(_keep, spec)
        catalog = catalog_of(spec, batches, partitions, now, Path(spills), keep)
        if catalog.gone:
            raise _gone(spec, catalog)
        if (ids := Path(pipeline.archive_path) / Kind.IDS).is_dir():
            sync_folder(ids)  # Also what a twin wrote just now.
        failpoints.point("exact.before_lock")
        with ledger.transaction() as connection:
            switched = _switch(connection, spec, pipeline, found, catalog)
            failpoints.point("exact.before_exact")
    failpoints.point("exact.after_exact")
    if switched is None:
        return _exact(ledger, spec, log)  # A twin was faster.
    return ExactSince(
        pipeline=spec.name,
        found=False,
        exact_from=switched,
        ids=catalog.ids,
        batches=len(found) - catalog.expired,
        batches_expired=catalog.expired,
    )


def _keep(spec: Spec, marker: Marker, ids: list[ShardIds]) -> None:
    """Keep the ids of a batch in ids files, if an exactly-once one would have: each whole, then
    their list. `spec`: the declaration of now.

    CorruptionError: a file has the name of one of them or of the list, and is another.
    """
    kept = spec.keeps_ids or marker.spec.exactly_once().keeps_ids
    if not kept or not marker.counts.survivors:
        return
    listed = layout.ids_list(marker.archive, marker.batch_id)
    make_folder(listed.parent)
    files = []
    for part in ids:
        path = layout.kept(marker.archive, Kind.IDS, marker.batch_id, part.shard)
        of = Shard(shard=part.shard, shards=marker.spec.dedup.shards, buckets=part.buckets)
        file = io.BytesIO()
        write_shard(file, of, part.h1, part.h2)
        _write(path, file.getvalue())
        files.append(write_marker.listed(path, marker.archive, Kind.IDS, len(part.h1)))
    plain = {"files": files, "ids": sum(len(part.h1) for part in ids)}
    _write(listed, json.dumps(plain, indent=1, sort_keys=True).encode() + b"\n")


def _write(path: Path, data: bytes) -> None:
    with suppress(FileExistsError):  # An earlier try has written it, or a twin.
        write_new(path, data)
    if path.read_bytes() != data:
        raise CorruptionError(
            f"{path} is not as exact writes it, and was not touched; move it aside", next=AGAIN
        )


def _gone(spec: Spec, catalog: Taught) -> TerminalError:
    """Why it stays at least once: the ids of some batches are gone."""
    numbers = [marker.batch_id for marker in catalog.gone]
    until = max(expires_at(marker) for marker in catalog.gone)
    return TerminalError(
        f"the ids of {batch_list(numbers)} of {spec.name} cannot be found ({catalog.why}), so it "
        "stays at_least_once. Restore output or source; or run it at_least_once until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC, when these ids count no more by the horizon that their "
        "batches were declared with. Output or source of all later batches must stay for "
        f"dedup.horizon, {format_duration(spec.dedup.horizon)}, or exact will miss theirs then",
        next=AGAIN,
    )


def _switch(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, found: list[Marker], catalog: Taught
) -> int | None:
    """The first commit that is exactly once. None: another process has set it."""
    # Keeps D11.
    pipelines.lock(connection, pipeline)
    pipeline_id = pipeline.pipeline_id
    done = row(connection, "exact", "switch", pipeline_id=pipeline_id)
    if done is None:
        return None
    _refuse_unknown(connection, pipeline, found)
    read = [marker.batch_id for marker in found]
    unread = row(connection, "exact", "unread", pipeline_id=pipeline_id, read=read)
    if unread is not None:
        raise RetryableError(
            f"batch {unread['batch_id']} of {spec.name} has committed, and its marker was not in "
            f"{layout.markers(Path(pipeline.archive_path))} when the ids were read, so {spec.name} "
            "stays at_least_once. Run this again; if that marker is gone, restore it first"
        )
    catalog.write(connection, pipeline_id, spec.dedup.horizon)
    # Keeps D12.
    reason = f"{spec.name} is exactly once from commit {done['exact_from']} on"
    change(connection, "exact", "lose_attempts", pipeline_id=pipeline_id, reason=reason)
    return done["exact_from"]


def _refuse_unknown(
    connection: sa.Connection, pipeline: Pipeline, found: list[Marker]
) -> None:
    others = owned.not_of(connection, pipeline.pipeline_id, pipeline.name, found)
    owned.refuse_unknown(pipeline, [marker.batch_id for marker in others])


def told(answer: ExactSince) -> str:
    """What was taught, and from where on the pipeline is exactly once."""
    name = answer.pipeline
    since = f"{name} is exactly once from commit {answer.exact_from} on"
    if answer.found:
        return f"nothing to do: {since}"
    lines = [since]
    if answer.ids:
        known = f"{count(answer.ids, 'id')} of {count(answer.batches, 'batch', 'batches')}"
        lines[0] += f": {known} are known, and what comes of them again is dropped"
    if answer.exact_from > 1:
        lines.append(f"repeats may be there before commit {answer.exact_from}")
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"the ids of {expired} are past their horizon, and were left out")
    return "\n".join([*lines, f"next: semel run {name}"])
