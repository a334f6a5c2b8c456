"""plan: fix a batch before any work, as offset ranges that end where a record ends.

How it works:
1. survey the source and the ledger, without a lock (`survey`);
2. cut the free ranges, and find what changes about source partitions (`cut`);
3. write the result in one transaction under the pipeline's lock, if anything changed; if the ledger
   changed since the survey, start over.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from semel import failpoints
from semel.archive import provenance
from semel.declare.durations import format_duration
from semel.declare.parts import OnEmpty
from semel.declare.wording import FILES_NAMED_MAX, count
from semel.errors import ChangedError, RetryableError, SourceError, TerminalError
from semel.ledger import Ledger, change, pipelines, row
from semel.model.batch import Batch, BatchStatus, Claim, Log, Pipeline
from semel.model.times import TimeSet
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.plan import abandon, covered, cut, event_time, partitions, register
from semel.plan.abandon import release
from semel.plan.cut import BatchDraft
from semel.plan.idle import Idle, earlier, explain_idle
from semel.plan.survey import Request, Survey, take_survey
from semel.sources import Offer, Refusal, TakenRange
from semel.sources.spec import SourceSpec

_ROUNDS_MAX = 20  # Losing to other planners this often in a row means something else is wrong.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of plan. If there was nothing to take, `batch` is None, `idle` explains why, and
    `before` is the request's last batch, which has ended.

    `bytes` and `bytes_left` are in the unit of the `source`. `resumed`: (name, known name) of
    partitions that plan recognised by their content and reads on. `earlier`: by day (UTC), the
    number of parts before the run's window that no plan has taken or seen in their current state.
    `covers`: without a batch, the time that plan covers now, or that the event time has passed.
    """

    pipeline: Pipeline
    batch: Batch | None
    created: bool
    source: SourceSpec
    before: Batch | None = None
    idle: Idle | None = None
    names: tuple[str, ...] = ()
    bytes: int = 0
    bytes_left: int = 0
    refusals: tuple[Refusal, ...] = ()
    taken_over: tuple[int, ...] = ()
    resumed: tuple[tuple[str, str], ...] = ()
    anew: tuple[int, str] | None = None
    """The request's uncommitted batch that plan abandoned for this one, and why."""
    earlier: dict[date, int] = field(default_factory=dict)
    covers: TimeSet = TimeSet()

    @property
    def is_done(self) -> bool:
        """Whether the request's batch is finalized and nothing more has come."""
        over = self.before is not None and self.before.status is BatchStatus.FINALIZED
        return self.batch is None and over

    def must_wait(self, spec: Spec, waited: timedelta) -> bool:
        """Whether to survey again later (`source.on_empty`). Raises SourceError if the run fails."""
        source = spec.source
        if self.batch is not None or self.is_done or source.on_empty is OnEmpty.SKIP:
            return False
        if source.on_empty is OnEmpty.WAIT and waited < source.wait_at_most:
            return True
        why = "source.on_empty is fail"
        if source.on_empty is OnEmpty.WAIT:
            why = f"it has waited for source.wait_at_most, {format_duration(source.wait_at_most)}"
        shown = f". {self.idle.unmatched}" if self.idle and self.idle.unmatched else ""
        raise SourceError(
            f"{spec.name}: the source shows nothing to read, and {why}{shown}",
            next=f"semel gaps {spec.name}",
        )


class _Changed(Exception):
    """The ledger changed between the survey and the lock, so the plan is out of date."""


def plan(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    interval: tuple[datetime, datetime] | None = None,
    log: Log = lambda _: None,
) -> Plan:
    """Find the request's batch, or plan one that takes what is unclaimed.

    The same request gets the same batch until that batch is finalized or abandoned; then it gets
    the next one, if there is anything to take. Plan replaces an uncommitted batch if its
    declaration or its source has changed and no attempt shows life. TerminalError and LimitError
    mean that plan wrote nothing. Raises SourceError if the source has refused files and
    `source.on_refused` is `fail`.
    """
    interval = interval_of(spec, interval)
    anew: tuple[int, str] | None = None
    sink = open_sink(spec)
    for _ in range(_ROUNDS_MAX):
        with ledger.transaction() as connection:
            pipeline = register.register(connection, spec, sink)
            before = _latest(connection, pipeline, request_key)
            looked_at = row(connection, "plan", "now")["now"] if interval else None
            failpoints.point("plan.before_register")
        failpoints.point("plan.after_register")
        if before is not None and before.open:
            reason = _outdated(ledger, spec, before)
            abandoned = reason and abandon.abandon(
                ledger, before.batch_id, reason, silent_only=True
            )
            if not abandoned:
                # Keeps P5.
                return Plan(pipeline=pipeline, batch=before, created=False, source=spec.source)
            anew = before.batch_id, reason
            continue
        request = Request(
            spec=spec, key=request_key, before=before, interval=interval, looked_at=looked_at,
            log=log,
        )  # fmt: skip
        try:
            survey = covered.with_growing(request, take_survey(ledger, pipeline, request))
            draft = cut.cut(request, survey)
            survey = replace(survey, refusals=(*survey.refusals, *draft.refused))
        except FileNotFoundError:  # A part moved meanwhile: survey again.
            continue
        failpoints.point("plan.before_lock")
        try:
            batch, covers = _write(ledger, pipeline, request, survey, draft)
        except _Changed:
            continue
        if draft.failing:
            raise SourceError(_failed(spec, draft.failing))
        return Plan(
            pipeline=pipeline,
            batch=batch,
            created=batch is not None,
            source=spec.source,
            before=before,
            idle=explain_idle(ledger, pipeline, request, survey) if batch is None else None,
            names=tuple(dict.fromkeys(r.offer.name for r in draft.ranges)),
            bytes=sum(r.end - r.start for r in draft.ranges),
            bytes_left=draft.remaining,
            refusals=survey.refusals,
            taken_over=tuple(survey.orphans) if batch else survey.matched.released_batches,
            resumed=survey.matched.resumed_names,
            anew=anew,
            earlier=earlier(request, survey),
            covers=covers if batch is None else TimeSet(),
        )
    raise RetryableError(
        f"plan of {spec.name}: other planners changed its claims, or its source changed, "
        f"{_ROUNDS_MAX} times in a row; run this again"
    )


def find_batch(ledger: Ledger, spec: Spec, request_key: str) -> Batch | None:
    """The newest batch that a request planned, or None."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        return _latest(connection, pipeline, request_key) if pipeline else None


# Keeps P21.
def _outdated(ledger: Ledger, spec: Spec, batch: Batch) -> str | None:
    """Why stage can never read a batch as planned. Returns None if it can."""
    if batch.status is not BatchStatus.PLANNED:
        return None
    if batch.spec_digest != spec.digest():
        return "its declaration changed since it was planned"
    claims = ledger.rows("plan", "claims", batch_id=batch.batch_id)
    try:
        open_source(spec).find([Claim.from_row(r) for r in claims], batch.batch_id)
    except ChangedError as error:
        return f"its source changed since it was planned ({error})"
    except SourceError:
        pass  # A missing part may come back: a person decides.
    return None


def _latest(connection: sa.Connection, pipeline: Pipeline, request_key: str) -> Batch | None:
    values = {"pipeline_id": pipeline.pipeline_id, "request_key": request_key}
    latest = row(connection, "plan", "latest_batch", **values)
    return Batch.from_row(latest) if latest else None


def interval_of(
    spec: Spec, interval: tuple[datetime, datetime] | None
) -> tuple[datetime, datetime] | None:
    """The interval to plan by. Raises TerminalError if the run lacks one that it needs."""
    if spec.source.select == "arrival":
        return None
    if interval is None or interval[0] >= interval[1]:
        today = datetime.now(UTC).date()
        raise TerminalError(
            f"pipeline {spec.name} selects by interval, and the run lacks one; trigger it with a "
            "data interval, or give --interval START END, such as for yesterday",
            next=f"semel run {spec.name} --interval {today - timedelta(days=1)} {today}",
        )
    return interval


def _failed(spec: Spec, refused: list[Refusal]) -> str:
    lines = [f"{r.name!r}: {r.reason}: {r.detail}" for r in refused[:FILES_NAMED_MAX]]
    more = len(refused) - len(lines)
    parts = f"{count(len(refused), spec.source.part)} {'is' if len(refused) == 1 else 'are'}"
    return "\n".join(
        [
            f"pipeline {spec.name}: {parts} refused, so this run would not be complete; nothing "
            "was planned. Settle each, or declare source.on_refused: warn, then run this again",
            *lines,
            *([f"and {more} more; `semel gaps {spec.name}` lists all"] if more else []),
        ]
    )


def _write(
    ledger: Ledger, pipeline: Pipeline, request: Request, survey: Survey, draft: BatchDraft
) -> tuple[Batch | None, TimeSet]:
    """Write the plan's result, with a batch only if there is something to take. Returns the batch,
    and the time that the plan covers.

    Raises _Changed, having written nothing, if the plan is out of date.
    """
    matched = survey.matched
    changed = (
        draft.ranges or draft.updates or draft.new_partitions or matched.lost_ranges or matched.retired_ids
    )
    pipeline_id = pipeline.pipeline_id
    sees_all = covered.sees_all(request, survey, draft)
    late = covered.late_times(request, survey) if sees_all else []
    is_full = event_time.leaves_nothing(request, survey, draft)
    covers = TimeSet()
    if survey.same_refusals and not (changed or matched.released_batches or is_full > survey.is_full):
        if sees_all:
            with ledger.transaction() as connection:
                covers, is_new = covered.covers(connection, pipeline_id, request, survey, late)
        if not (sees_all and is_new):
            return None, covers
    stored: dict[str, Any] = {}
    if draft.ranges:  # Before the lock, because it reads the transforms' files.
        stored = provenance.spec_with_code(request.spec)
    with ledger.transaction() as connection:
        _lock(connection, pipeline, request, survey)
        if not survey.same_refusals:
            _write_refusals(connection, pipeline_id, survey.refusals)
        released: set[int] = set()
        # Keeps P7, P11, CH1.
        for orphan in survey.orphans if draft.ranges else matched.released_batches:
            released |= release(connection, orphan, f"taken over by {request.key}")
        partitions.retire(connection, matched.retired_ids)
        partitions.close(connection, matched.lost_ranges, survey.lost)
        partitions.update(connection, draft.updates)
        new = partitions.insert(connection, pipeline_id, draft.new_partitions)
        ids = {r["name"]: r["source_partition_id"] for r in new}
        _write_holes(connection, draft, ids)
        batch = None
        if sees_all:
            covers, _ = covered.covers(connection, pipeline_id, request, survey, late)
        if draft.ranges:
            split = survey.source.split_size
            claims = _claims(draft.ranges, ids)
            batch = _write_batch(
                connection, pipeline_id, request, stored, split, claims, covers, is_full=is_full
            )
            partitions.raise_floor(connection, {_partition(r.offer, ids) for r in draft.ranges})
        if released:
            partitions.restore(connection, released)
        if batch is None:  # Otherwise the statement that inserts the batch does this.
            partitions.touch(connection, pipeline_id)
            if covers.ranges:
                covered.add(connection, pipeline_id, covers)
            if is_full:
                covers = event_time.record_full_plan(connection, request.spec, pipeline_id)
        failpoints.point("plan.before_write")
    failpoints.point("plan.after_write")
    return batch, covers


def _lock(
    connection: sa.Connection, pipeline: Pipeline, request: Request, survey: Survey
) -> None:
    """Take the pipeline's lock. Raises _Changed if the plan is out of date."""
    # Keeps P1, P2.
    pipelines.lock(connection, pipeline)
    silent = request.spec.limits.orphan_after.total_seconds()
    now = partitions.state(connection, pipeline.pipeline_id, request.key, silent)
    latest = request.before and request.before.batch_id  # It has ended, so it cannot change.
    same = (
        now.version == survey.version
        and now.latest == latest
        and set(survey.orphans) <= set(now.orphans)
    )
    if not same:
        raise _Changed


def _write_refusals(
    connection: sa.Connection, pipeline_id: int, refusals: tuple[Refusal, ...]
) -> None:
    change(connection, "plan", "clear_refusals", pipeline_id=pipeline_id)
    change(
        connection,
        "plan",
        "insert_refusals",
        pipeline_id=pipeline_id,
        refusals=json.dumps([asdict(replace(r, when=None)) for r in refusals]),
    )


def _write_batch(
    connection: sa.Connection,
    pipeline_id: int,
    request: Request,
    stored: dict[str, Any],
    split_size: int,
    claims: list[dict[str, Any]],
    covers: TimeSet,
    *,
    is_full: bool,
) -> Batch:
    start, end = request.interval or (None, None)
    inserted = row(
        connection,
        "plan",
        "insert_batch",
        pipeline_id=pipeline_id,
        request_key=request.key,
        ordinal=request.before.ordinal + 1 if request.before else 1,
        spec=json.dumps(stored),
        spec_digest=request.spec.digest(),
        split_bytes=split_size,
        interval_start=start,
        interval_end=end,
        claims=json.dumps(claims),
        covers=covers.to_ledger() if covers.ranges else None,
        is_full=is_full,
    )
    return Batch.from_row(inserted)


def _partition(offer: Offer, made: dict[str, int]) -> int:
    return offer.partition.source_partition_id if offer.partition else made[offer.name]


def _write_holes(connection: sa.Connection, draft: BatchDraft, made: dict[str, int]) -> None:
    """Record the gap before an offer's first record as lost."""
    begun = {
        o.name: o for o in (*(r.offer for r in draft.ranges), *(o for o, _ in draft.new_partitions))
    }
    for offer in begun.values():
        if offer.start:
            hole = {_partition(offer, made): [(0, offer.start)]}
            partitions.lose(connection, hole, offer.reason, "plan")


def _claims(ranges: list[TakenRange], made: dict[str, int]) -> list[dict[str, Any]]:
    """The ranges of a batch, as parameters of its statement."""
    return [
        {
            "ordinal": ordinal,
            "source_partition_id": _partition(r.offer, made),
            "start": r.start,
            "end": r.end,
            "evidence": r.evidence,
        }
        for ordinal, r in enumerate(ranges)
    ]
