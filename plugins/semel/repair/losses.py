"""losses: record as lost, when a person says so, what is gone from a source and was never read."""

from dataclasses import astuple, dataclass

import sqlalchemy as sa

from semel import failpoints
from semel.errors import SourceError, StateError
from semel.ledger import Ledger, change, pipelines, rows
from semel.model.batch import Pipeline
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.plan.survey import Request, take_survey, steadily
from semel.repair.accept import changed, digest, moving, named, who
from semel.sources import Spans

_ROUNDS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class RecordedLoss:
    """Positions [start, end) of a vanished file, or the like, that are recorded as lost."""

    name: str
    source_partition_id: int
    start: int
    end: int


# Keeps A5.
def accept_loss(
    ledger: Ledger, spec: Spec, path: str, *, by: str | None = None, agreed: str | None = None
) -> list[RecordedLoss]:
    """Record as lost what was seen of a vanished file and never read.

    `by`: who decides, as in `accept_file`. `agreed`: the digest of the forecast agreed to.
    SourceError: nothing is missing under this name. StateError: a batch still has it, or the effect
    would now differ from the one agreed to.
    """
    pipeline = pipelines.require(ledger, spec.name)
    pipeline_id = pipeline.pipeline_id
    for _ in range(_ROUNDS_MAX):
        version, passed = _passed(ledger, spec, pipeline, path)
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            if passed and partitions.version(connection, pipeline_id) != version:
                continue
            found = passed or _missing(connection, spec, pipeline, path)
            if not found:
                return _lost_before(connection, spec, pipeline, path)
            # Keeps A7.
            if agreed and digest_of(found) != agreed:
                raise changed(found[0].name)
            _lose(connection, found, by or who())
            change(
                connection, "accept", "settle", pipeline_id=pipeline_id, name=found[0].name
            )
            partitions.touch(connection, pipeline_id)
            failpoints.point("accept.before_loss")
        failpoints.point("accept.after_loss")
        return found
    raise moving(path)


def foresee_loss(ledger: Ledger, spec: Spec, path: str) -> list[RecordedLoss]:
    """What `accept_loss` would record, with the same errors. Empty: it is already recorded."""
    pipeline = pipelines.require(ledger, spec.name)
    _, passed = _passed(ledger, spec, pipeline, path)
    with ledger.transaction() as connection:
        return passed or _missing(connection, spec, pipeline, path)


def _lose(connection: sa.Connection, found: list[RecordedLoss], by: str) -> None:
    lost: Spans = {}
    for one in found:
        lost.setdefault(one.source_partition_id, []).append((one.start, one.end))
    partitions.lose(connection, lost, "gone", by)
    partitions.account(connection, lost)


def _passed(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, path: str
) -> tuple[int, list[RecordedLoss]]:
    """The unread ranges that vanished from an open partition, with the ledger's version.

    No ranges if the path means a closed partition.
    """
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline.pipeline_id)
        closed, _ = partitions.unaccounted(connection, pipeline.pipeline_id)
    if named(spec, path, {k.name for k in closed}) is not None:
        return version, []
    seen = steadily(spec.name, lambda: take_survey(ledger, pipeline, Request(spec=spec)))
    name = named(spec, path, {k.name for k, _ in seen.missing})
    return seen.version, [
        RecordedLoss(name=k.name, source_partition_id=k.source_partition_id, start=start, end=end)
        for k, spans in seen.missing
        if k.name == name
        for start, end in spans
    ]


def digest_of(losses: list[RecordedLoss]) -> str:
    """A digest of these losses."""
    return digest(*map(astuple, losses))


def _missing(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[RecordedLoss]:
    """The ranges of a path that were seen, never read, and are gone. Empty: already recorded."""
    closed, spans = partitions.unaccounted(connection, pipeline.pipeline_id)
    name = named(spec, path, {k.name for k in closed})
    meant = [k.source_partition_id for k in closed if k.name == name]
    if not meant and not _lost_before(connection, spec, pipeline, path):
        _refuse_held(connection, spec, pipeline, path)
        shown = "; ".join(str(k) for k in closed[:5]) or "nothing is missing"
        raise SourceError(
            f"no records of {path!r} were seen and are gone ({shown}); a plan finds what is gone",
            next=f"semel gaps {spec.name}",
        )
    return [
        RecordedLoss(name=name, source_partition_id=partition, start=start, end=end)
        for partition in meant
        for start, end in spans[partition]
    ]


def _lost_before(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[RecordedLoss]:
    """The losses already recorded for a path: repeating the command gives the same answer."""
    found = rows(connection, "accept", "gone", pipeline_id=pipeline.pipeline_id)
    name = named(spec, path, {r["name"] for r in found})
    return [RecordedLoss(**r) for r in found if r["name"] == name]


def _refuse_held(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> None:
    """StateError: a planned batch has records of the path."""
    silent = spec.limits.orphan_after.total_seconds()
    held = rows(
        connection,
        "look",
        "open_claims",
        pipeline_id=pipeline.pipeline_id,
        orphan_seconds=silent,
    )
    name = named(spec, path, {r["name"] for r in held})
    batch = next((r["batch_id"] for r in held if r["name"] == name), None)
    if batch is not None:
        raise StateError(
            f"batch {batch} has claimed records of {name!r}: abandon it first, then run this again",
            next=f"semel abandon {batch}",
        )
