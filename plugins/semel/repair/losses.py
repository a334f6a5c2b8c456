"""losses: record unread records that disappeared from a source as lost, when a person says so."""

from dataclasses import astuple, dataclass

import sqlalchemy as sa

from semel import failpoints
from semel.errors import SourceError, StateError
from semel.ledger import Ledger, change, pipelines, rows
from semel.model.batch import Pipeline
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.plan.survey import Request, steadily, take_survey
from semel.repair.accept import (
    changed_error,
    current_user,
    match_name,
    moving_error,
    preview_digest,
)
from semel.sources import Spans

_ROUNDS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class RecordedLoss:
    """Positions [start, end) of a missing file, object or topic partition, recorded as lost."""

    name: str
    source_partition_id: int
    start: int
    end: int


# Keeps A5.
def accept_loss(
    ledger: Ledger, spec: Spec, path: str, *, by: str | None = None, agreed: str | None = None
) -> list[RecordedLoss]:
    """Record as lost the positions of a missing file that plan saw and no batch read.

    `by`: the person who decides, as in `accept_file`. `agreed`: the digest of the preview that the
    person agreed to. Raises SourceError if nothing is missing under this name, StateError if a
    batch has claimed it or the effect would differ from the preview.
    """
    pipeline = pipelines.require(ledger, spec.name)
    pipeline_id = pipeline.pipeline_id
    for _ in range(_ROUNDS_MAX):
        version, vanished = _vanished_ranges(ledger, spec, pipeline, path)
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            if vanished and partitions.version(connection, pipeline_id) != version:
                continue
            losses = vanished or _unread_ranges(connection, spec, pipeline, path)
            if not losses:
                return _recorded_losses(connection, spec, pipeline, path)
            # Keeps A7.
            if agreed and losses_digest(losses) != agreed:
                raise changed_error(losses[0].name)
            _lose(connection, losses, by or current_user())
            change(
                connection, "accept", "settle", pipeline_id=pipeline_id, name=losses[0].name
            )
            partitions.touch(connection, pipeline_id)
            failpoints.point("accept.before_loss")
        failpoints.point("accept.after_loss")
        return losses
    raise moving_error(path)


def preview_loss(ledger: Ledger, spec: Spec, path: str) -> list[RecordedLoss]:
    """Preview `accept_loss`, with the same errors. Empty if the loss is already recorded."""
    pipeline = pipelines.require(ledger, spec.name)
    _, passed = _vanished_ranges(ledger, spec, pipeline, path)
    with ledger.transaction() as connection:
        return passed or _unread_ranges(connection, spec, pipeline, path)


def _lose(connection: sa.Connection, losses: list[RecordedLoss], by: str) -> None:
    lost: Spans = {}
    for loss in losses:
        lost.setdefault(loss.source_partition_id, []).append((loss.start, loss.end))
    partitions.lose(connection, lost, "gone", by)
    partitions.account(connection, lost)


def _vanished_ranges(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, path: str
) -> tuple[int, list[RecordedLoss]]:
    """The ledger's version, and the unread ranges that are missing from an open partition.

    There are no ranges if the path means a closed partition.
    """
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline.pipeline_id)
        closed, _ = partitions.unaccounted(connection, pipeline.pipeline_id)
    if match_name(spec, path, {k.name for k in closed}) is not None:
        return version, []
    survey = steadily(spec.name, lambda: take_survey(ledger, pipeline, Request(spec=spec)))
    name = match_name(spec, path, {k.name for k, _ in survey.missing})
    return survey.version, [
        RecordedLoss(name=k.name, source_partition_id=k.source_partition_id, start=start, end=end)
        for k, spans in survey.missing
        if k.name == name
        for start, end in spans
    ]


def losses_digest(losses: list[RecordedLoss]) -> str:
    """A digest of losses, to compare them with a preview."""
    return preview_digest(*map(astuple, losses))


def _unread_ranges(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[RecordedLoss]:
    """The missing ranges of a path that plan saw and no batch read. Empty if already recorded."""
    closed, spans = partitions.unaccounted(connection, pipeline.pipeline_id)
    name = match_name(spec, path, {k.name for k in closed})
    meant = [k.source_partition_id for k in closed if k.name == name]
    if not meant and not _recorded_losses(connection, spec, pipeline, path):
        _refuse_claimed(connection, spec, pipeline, path)
        missing = "; ".join(map(str, closed[:5])) or "none"
        raise SourceError(
            f"{path!r}: the ledger does not list it as missing (missing: {missing}). Nothing was "
            "recorded. Run a plan first, which finds losses",
            next=f"semel gaps {spec.name}",
        )
    return [
        RecordedLoss(name=name, source_partition_id=partition, start=start, end=end)
        for partition in meant
        for start, end in spans[partition]
    ]


def _recorded_losses(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[RecordedLoss]:
    """The losses already recorded for a path, so that the same command gives the same answer."""
    recorded = rows(connection, "accept", "gone", pipeline_id=pipeline.pipeline_id)
    name = match_name(spec, path, {r["name"] for r in recorded})
    return [RecordedLoss(**r) for r in recorded if r["name"] == name]


def _refuse_claimed(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> None:
    """Raise StateError if a planned batch has claimed records of the path."""
    silent = spec.limits.orphan_after.total_seconds()
    claimed = rows(
        connection,
        "look",
        "open_claims",
        pipeline_id=pipeline.pipeline_id,
        orphan_seconds=silent,
    )
    name = match_name(spec, path, {r["name"] for r in claimed})
    batch = next((r["batch_id"] for r in claimed if r["name"] == name), None)
    if batch is not None:
        raise StateError(
            f"{name!r}: batch {batch} has claimed its records. Nothing was recorded. Abandon the "
            "batch, then run this again",
            next=f"semel abandon {batch}",
        )
