"""exact: make a pipeline exactly once that was at least once until now.

How it works:
1. read the markers, and by them the ids of each batch whose horizon is not over, as adopt does,
   outside any transaction;
2. under the pipeline's lock: prove that no other batch has committed, write the ids, end the
   attempts that began without them, and set the first commit that is exactly once. It is one
   transaction: killed before its end, nothing has happened, and the same call begins again.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from semel import failpoints, settings
from semel.archive import layout
from semel.archive.marker import Marker, markers_in
from semel.declare.wording import count
from semel.errors import (
    AGAIN,
    CorruptionError,
    RetryableError,
    SemelError,
    StateError,
    TerminalError,
)
from semel.ledger import Ledger, change, pipelines, row
from semel.model.batch import BatchStatus, Log, Pipeline
from semel.pipeline import identity
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.repair.adopt import Taught, catalog_of
from semel.repair.adopt.history import histories
from semel.repair.adopt.partitions import partitions_of


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The first commit that is exactly once. `found`: it was so before, and nothing was done.

    `ids`: how many the catalog was taught, of `batches`; `batches_forgotten`: those whose ids
    nobody has.
    """

    pipeline: str
    found: bool
    exact_from: int
    ids: int = 0
    batches: int = 0
    batches_expired: int = 0
    batches_forgotten: tuple[int, ...] = ()


def exact(
    ledger: Ledger, spec: Spec, *, forget_ids: bool = False, log: Log = print
) -> Exact:
    """Teach the catalog the ids of the horizon, and let the pipeline be exactly once from the next
    commit on. The same call again changes nothing.

    `forget_ids`: go on if neither files nor source have a batch's ids; repeats of these records
    count as new. TerminalError: the declaration is at least once, or ids are gone. StateError: a
    batch is committed and not finalized. RetryableError: a batch committed meanwhile.
    """
    try:
        return _exact(ledger, spec, forget_ids=forget_ids, log=log)
    except OSError as error:
        raise RetryableError(
            f"exact of {spec.name}: {error}; nothing was changed. Fix that, then run this again"
        ) from error


def _exact(ledger: Ledger, spec: Spec, *, forget_ids: bool, log: Log) -> Exact:
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
        return Exact(pipeline=spec.name, found=True, exact_from=pipeline.exact_from)
    found = markers_in(spec.sink_path(), Path(pipeline.archive_path))
    batches = histories(found)
    partitions = partitions_of(open_source(spec), found)
    log(f"reads the ids of {count(len(found), 'batch', 'batches')}")
    with tempfile.TemporaryDirectory(prefix="exact-", dir=settings.cache_dir()) as spills:
        catalog = catalog_of(
            spec, batches, partitions, now, Path(spills),
            taught=range(1, found[-1].commit_seq + 1 if found else 1), forget_ids=forget_ids,
            verb="exact",
        )  # fmt: skip
        failpoints.point("exact.before_lock")
        with ledger.transaction() as connection:
            switched = _switch(connection, spec, pipeline, found, catalog)
            failpoints.point("exact.before_exact")
    failpoints.point("exact.after_exact")
    if switched is None:
        return _exact(ledger, spec, forget_ids=forget_ids, log=log)  # A twin was faster.
    return Exact(
        pipeline=spec.name,
        found=False,
        exact_from=switched,
        ids=catalog.ids,
        batches=len(found) - catalog.expired - len(catalog.forgotten),
        batches_expired=catalog.expired,
        batches_forgotten=catalog.forgotten,
    )


def _switch(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, found: list[Marker], catalog: Taught
) -> int | None:
    """The first commit that is exactly once. None: another process has set it."""
    # Keeps D11.
    pipelines.lock(connection, pipeline)
    done = row(
        connection, "exact", "switch", pipeline_id=pipeline.pipeline_id, ids_from=catalog.ids_from
    )
    if done is None:
        return None
    unread = row(
        connection,
        "exact",
        "unread",
        pipeline_id=pipeline.pipeline_id,
        horizon=spec.dedup.horizon.total_seconds(),
        read=[marker.batch_id for marker in found],
    )
    if unread is not None:
        raise _unread(pipeline, unread["batch_id"], BatchStatus(unread["status"]))
    catalog.write(connection, pipeline.pipeline_id, spec.dedup.horizon)
    # Keeps D12.
    reason = f"{spec.name} is exactly once from commit {done['exact_from']} on"
    change(
        connection, "exact", "lose_attempts", pipeline_id=pipeline.pipeline_id, reason=reason
    )
    return done["exact_from"]


def _unread(pipeline: Pipeline, batch_id: int, status: BatchStatus) -> SemelError:
    """Why a batch that has committed was not read."""
    if status is BatchStatus.COMMITTED:
        return StateError(
            f"batch {batch_id} of {pipeline.name} has committed and is not finalized, so its ids "
            "cannot be read; nothing was changed. Finish it (its run in Airflow, or collect, which "
            "finishes what is left), then do this again",
            next=f"semel show {batch_id}",
        )
    if layout.marker(Path(pipeline.archive_path), batch_id).exists():
        return RetryableError(
            f"batch {batch_id} of {pipeline.name} committed meanwhile; nothing was changed, run "
            "this again"
        )
    return CorruptionError(
        f"batch {batch_id} of {pipeline.name} is {status}, and {pipeline.archive_path} has no "
        "marker of it, so its ids cannot be read; nothing was changed. Restore the marker",
        next=AGAIN,
    )


def told(answer: Exact) -> str:
    """What was taught, and from where on the pipeline is exactly once."""
    name = answer.pipeline
    since = f"{name} is exactly once from commit {answer.exact_from} on"
    if answer.found:
        return f"nothing to do: {since}"
    lines = [f"{since}: {count(answer.ids, 'id')} of {count(answer.batches, 'batch', 'batches')}"]
    lines[0] += " are known, and what comes of them again is dropped"
    if answer.exact_from > 1:
        lines.append(f"repeats may be there before commit {answer.exact_from}")
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"the ids of {expired} are past the horizon, and were left out")
    if answer.batches_forgotten:
        shown = ", ".join(map(str, answer.batches_forgotten))
        lines.append(f"FORGOTTEN: the ids of batch {shown}: what comes again of them is new")
    return "\n".join([*lines, f"next: semel run {name}"])
