"""requarantine: judge the dead letters of a finalized batch again, by the current declaration.

An admission is a separate batch. It reads again, at their places in the source, the records that
the dead letters of its root name. A second admission reads the dead letters of the first, and so
on. Records that are good now are new, unless today's catalog has their ids. Records that are still
bad become dead letters of the admission. So a dead letter is admitted once.
"""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from semel import failpoints
from semel.archive import provenance
from semel.errors import RetryableError, SemelError, StateError
from semel.finalize import Finalized
from semel.ledger import Ledger, Row, pipelines, row
from semel.ledger.batches import batch_of
from semel.model.batch import Batch, BatchStatus, Log, Pipeline
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.plan.register import register
from semel.runs import replay
from semel.runs.replay import SILENT_SECONDS, abandon_outdated, finish_or_refuse, insert
from semel.runs.run import finish
from semel.stage import JobEngine
from semel.stage.replayed import check_source, check_verdicts, has_letters

_MEANWHILE = "another request began to judge the dead letters of batch {root} at the same time"


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The result for the dead letters of a batch. `finalized` is None if none were left."""

    root: int
    batch: Batch | None
    finalized: Finalized | None


def letters_by_batch(ledger: Ledger, spec: Spec, batches: list[int]) -> dict[int, int]:
    """The number of dead letters left in each batch that has some."""
    with ledger.transaction() as connection:
        candidates = [batch_of(connection, spec.name, number) for number in batches]
    judges = [batch.batch_id for batch in candidates if not (batch.replays or batch.admits)]
    counted = {number: letters_left(ledger, spec, number) for number in judges}
    return {number: count for number, count in counted.items() if count}


def refuse(ledger: Ledger, spec: Spec, batches: list[int], letters: Collection[int]) -> None:
    """Raise TerminalError, with each reason, if the dead `letters` of some batches cannot be judged
    again; then none are. The next step is as in `replay.refuse`.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    reasons: dict[int, SemelError | None] = {}
    for root in letters:
        with ledger.transaction() as connection:
            last = _last_admission(connection, root)
        try:
            if last is None or last["status"] == BatchStatus.FINALIZED:
                _check(ledger, spec, pipeline, root, last)
            reasons[root] = None
        except SemelError as error:
            reasons[root] = error
    idle = set(batches) - reasons.keys()
    replay.refuse(ledger, spec, reasons, option=" --requarantine", idle=idle)


def letters_left(ledger: Ledger, spec: Spec, root: int) -> int:
    """The number of a finalized batch's dead letters that no admission has admitted.

    Raises StateError if the batch is not finalized, or is itself a replay or an admission.
    """
    with ledger.transaction() as connection:
        batch = batch_of(connection, spec.name, root)
        last = _last_admission(connection, root)
    if batch.replays or batch.admits:
        first = batch.admits or batch.replays
        raise StateError(
            f"batch {root} takes records of batch {first} again, so its dead letters are those of "
            f"that batch. Name batch {first} instead"
        )
    if batch.status is not BatchStatus.FINALIZED:
        raise StateError(
            f"batch {root} is {batch.status}, and semel judges only dead letters of a finalized "
            "batch again. Let its run finish",
            next=f"semel show {root}",
        )
    return _count_left(ledger, last, root)


def _count_left(ledger: Ledger, last: Row | None, root: int) -> int:
    """The dead letters that the newest admission left; before it commits, those of the root."""
    if last is not None and last["letters"] is not None:
        return last["letters"]
    won = ledger.rows("replay", "won", root=root)[0]
    return won["quarantined"] + won["late"]


def plan(ledger: Ledger, spec: Spec, request_key: str, root: int) -> Batch | None:
    """Find or plan the request's admission of a batch. Returns None if no dead letter is left.

    Raises StateError, CorruptionError or SourceError if they cannot be judged again; then nothing
    was written. Raises RetryableError if another request is judging them now.
    """
    sink = open_sink(spec)
    with ledger.transaction() as connection:
        pipeline = register(connection, spec, sink)
    letters_left(ledger, spec, root)  # Refuses a replay or an admission.
    with ledger.transaction() as connection:
        last = _last_admission(connection, root)
    if last is not None and last["status"] != BatchStatus.FINALIZED:
        if last["request_key"] != request_key:
            finish_or_refuse(ledger, spec, last, request_key, root)
        else:
            with ledger.transaction() as connection:
                mine = batch_of(connection, spec.name, last["batch_id"])
            if not abandon_outdated(ledger, spec, mine):
                return mine
    with ledger.transaction() as connection:
        last = _last_admission(connection, root)
    if not _count_left(ledger, last, root):
        return None
    return _write(ledger, spec, pipeline, request_key, root, last)


def run(
    ledger: Ledger, spec: Spec, request_key: str, root: int, engine: JobEngine, log: Log = print
) -> Admitted:
    """Plan, stage, commit and finalize an admission. The same request resumes where it stopped."""
    batch = plan(ledger, spec, request_key, root)
    if batch is None:
        return Admitted(root=root, batch=None, finalized=None)
    finalized = finish(ledger, spec, batch.batch_id, engine, log)
    return Admitted(root=root, batch=finalized.batch, finalized=finalized)


def _write(
    ledger: Ledger,
    spec: Spec,
    pipeline: Pipeline,
    request_key: str,
    root: int,
    last: Row | None,
) -> Batch:
    """Write the admission after the `last` one. RetryableError if another one followed it."""
    if last is not None and last["status"] != BatchStatus.FINALIZED:
        raise RetryableError(_MEANWHILE.format(root=root))
    admission = _check(ledger, spec, pipeline, root, last)
    stored = provenance.spec_with_code(spec)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        # Keeps RP9.
        now = _last_admission(connection, root)
        if (now and now["batch_id"]) != (last and last["batch_id"]):
            raise RetryableError(_MEANWHILE.format(root=root))
        batch = insert(
            connection, spec, stored, request_key, admits=root, admission=admission
        )
        failpoints.point("requarantine.before_write")
    failpoints.point("requarantine.after_write")
    return batch


def _check(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, root: int, last: Row | None
) -> int:
    """The number of the admission after the `last` one. Raises SemelError if it would fail."""
    admission = last["admission"] + 1 if last else 1
    check_verdicts(ledger, pipeline, has_letters(ledger, root, admission))
    check_source(ledger, spec, root, letters=f"semel letters {spec.name} --batch {root}")
    return admission


def _last_admission(connection: sa.Connection, root: int) -> Row | None:
    values = {"root": root, "silent_seconds": SILENT_SECONDS}
    return row(connection, "replay", "last_admission", **values)
