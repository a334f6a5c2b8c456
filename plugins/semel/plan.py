"""plan: fix a batch before any work, as offset ranges that end at a record's end.

How it works:
1. look at source and ledger (`survey`);
2. cut the ranges that are free;
3. lock the pipeline; when its claims or partitions changed since they were read, start over;
4. write source partitions, batch and claims in that transaction; nothing, where nothing changed.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from semel import faults, limits
from semel.abandon import release
from semel.batch import Batch, BatchStatus, Pipeline
from semel.errors import RetryableError, SourceError, TerminalError
from semel.ledger import Ledger, change, partitions, pipelines, row
from semel.register import register
from semel.sources.cut import Range, cut
from semel.sources.facts import Recognised, Window, in_window
from semel.sources.files import Refusal
from semel.sources.recognise import Answer
from semel.spec.parts import OnRefused
from semel.spec.pipeline import Spec
from semel.survey import Found, latest_batch, same_refusals, survey

_ROUNDS_MAX = 20  # When other planners win this often in a row, something else is wrong.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of plan. `batch` is None when there was nothing to take.

    `matched` are the files that were recognised by what is in them, with the paths that they had.
    """

    pipeline: Pipeline
    batch: Batch | None
    created: bool
    files: int = 0
    bytes: int = 0
    bytes_left: int = 0
    refusals: tuple[Refusal, ...] = ()
    taken_over: tuple[int, ...] = ()
    matched: tuple[tuple[str, str], ...] = ()


def plan(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    interval: tuple[datetime, datetime] | None = None,
) -> Plan:
    """Find the request's batch, or write one down that takes what is unclaimed.

    The same request gets the same batch until that one is finalized or abandoned; then it gets the
    next, if there is anything to take. TerminalError, LimitError: nothing was written. SourceError:
    files were refused, and `source.on_refused` is `fail`.
    """
    interval = _interval(spec, interval)
    window = (interval[0] - spec.source.lateness, interval[1]) if interval else None
    pipeline = register(ledger, spec)
    for _ in range(_ROUNDS_MAX):
        with ledger.transaction() as connection:
            latest = latest_batch(connection, pipeline, request_key)
        if latest is not None and latest.status in (BatchStatus.PLANNED, BatchStatus.COMMITTED):
            return Plan(pipeline=pipeline, batch=latest, created=False)  # Keeps P5.
        try:
            found = survey(ledger, spec, pipeline, request_key, window)
            refused = _counted(spec, found.refusals, window)
            ranges, left = ([], 0) if refused else cut(spec, found.wanted, found.free)
        except FileNotFoundError:  # It was moved under our eyes: look again.
            continue
        faults.point("plan.before_lock")
        recognised = found.recognised
        made = partitions.changes(
            found.wanted, ranges, recognised.facts.values(), recognised.lost, found.holes
        )
        batch = None
        if made or ranges or not same_refusals(found):
            with ledger.transaction() as connection:
                if not _unchanged(connection, pipeline, spec, request_key, found):
                    continue
                ordinal = found.latest.ordinal + 1 if found.latest else 1
                write = _Writing(connection, pipeline, spec, request_key, ordinal, interval)
                batch = write.all(found, made, ranges)
            faults.point("plan.after_write")
        if refused:
            raise SourceError(_failed(spec, refused))
        return Plan(
            pipeline=pipeline,
            batch=batch,
            created=batch is not None,
            files=len({r.wanted.file.path for r in ranges}),
            bytes=sum(r.end - r.start for r in ranges),
            bytes_left=left,
            refusals=found.refusals,
            taken_over=tuple(found.orphans) if batch else (),
            matched=_matched(found.recognised),
        )
    raise RetryableError(
        f"plan of {spec.name}: other planners changed its claims, or files were moved, "
        f"{_ROUNDS_MAX} times in a row; run this again"
    )


def _counted(spec: Spec, refusals: tuple[Refusal, ...], window: Window) -> list[Refusal]:
    """The refusals for which the plan fails: those of its interval, or of an unknown time."""
    # Keeps P10.
    if spec.source.on_refused_or_default is OnRefused.WARN:
        return []
    return [r for r in refusals if r.when is None or in_window(r.when, window)]


def _failed(spec: Spec, refused: list[Refusal]) -> str:
    shown = [f"{r.path!r}: {r.reason}: {r.detail}" for r in refused[: limits.FILES_NAMED_MAX]]
    more = len(refused) - len(shown)
    count = "1 file is" if len(refused) == 1 else f"{len(refused)} files are"
    return "\n".join(
        [
            f"pipeline {spec.name}: {count} refused, so this run would not be complete; nothing "
            "was planned. Settle each, or declare source.on_refused: warn, then run this again",
            *shown,
            *([f"and {more} more; `semel gaps {spec.name}` lists all"] if more else []),
        ]
    )


def _matched(recognised: Recognised) -> tuple[tuple[str, str], ...]:
    """(path, known path) of files that are known by what is in them."""
    return tuple(
        (path, found.matched.path)
        for path, found in recognised.facts.items()
        if found.answer is Answer.TAKE_UP and found.matched.reached
    )


def _unchanged(
    connection: sa.Connection, pipeline: Pipeline, spec: Spec, request_key: str, found: Found
) -> bool:
    """Take the pipeline's lock. Whether what a plan is made of is still so."""
    # Keeps P1, P2.
    pipelines.lock(connection, pipeline)
    silent = spec.limits.orphan_after.total_seconds()
    orphans = partitions.orphans(connection, pipeline.pipeline_id, request_key, silent)
    return (
        partitions.version(connection, pipeline.pipeline_id) == found.version
        and latest_batch(connection, pipeline, request_key) == found.latest
        and set(found.orphans) <= set(orphans)
    )


class _Writing:
    """What a plan writes, in one transaction under the pipeline's lock."""

    def __init__(
        self,
        connection: sa.Connection,
        pipeline: Pipeline,
        spec: Spec,
        request_key: str,
        ordinal: int,
        interval: tuple[datetime, datetime] | None,
    ) -> None:
        self.connection, self.pipeline, self.spec = connection, pipeline, spec
        self.request_key, self.ordinal, self.interval = request_key, ordinal, interval

    def all(
        self, found: Found, made: partitions.Changes, ranges: list[Range]
    ) -> Batch | None:
        """Refusals and partitions; the batch, where there is something to take."""
        connection, pipeline_id = self.connection, self.pipeline.pipeline_id
        if not same_refusals(found):
            self._refusals(found.refusals)
        released: set[int] = set()
        if ranges:
            # Keeps P7, P11.
            for orphan in found.orphans:
                released |= release(connection, orphan, f"taken over by {self.request_key}")
        new = partitions.write(connection, pipeline_id, made)
        accounted = [partition for partition in made.closed if not found.lost.get(partition)]
        if accounted:
            partitions.account(connection, accounted)
        known = {r.wanted.file.path: r.wanted.known for r in ranges if r.wanted.known}
        new |= {path: known[path].source_partition_id for path in known}
        holes = {
            new[r.wanted.file.path]: [(0, r.wanted.start)] for r in ranges if r.wanted.start
        }
        partitions.lose(connection, holes, "hole", "plan")
        batch = None
        if ranges:
            batch = self._batch()
            _write_claims(connection, batch, ranges, new)
        if released:
            partitions.restore(connection, released)
        partitions.touch(connection, pipeline_id)
        faults.point("plan.before_write")
        return batch

    def _refusals(self, refusals: tuple[Refusal, ...]) -> None:
        pipeline_id = self.pipeline.pipeline_id
        change(self.connection, "plan", "clear_refusals", pipeline_id=pipeline_id)
        change(
            self.connection,
            "plan",
            "insert_refusals",
            pipeline_id=pipeline_id,
            refusals=json.dumps([asdict(replace(r, when=None)) for r in refusals]),
        )

    def _batch(self) -> Batch:
        interval = self.interval
        made = row(
            self.connection,
            "plan",
            "insert_batch",
            pipeline_id=self.pipeline.pipeline_id,
            request_key=self.request_key,
            ordinal=self.ordinal,
            spec=json.dumps(self.spec.to_json()),
            spec_digest=self.spec.digest(),
            split_bytes=limits.SPLIT_BYTES,
            interval_start=interval[0] if interval else None,
            interval_end=interval[1] if interval else None,
        )
        return Batch.from_row(made)


def find_batch(ledger: Ledger, spec: Spec, request_key: str) -> Batch | None:
    """The newest batch that a request planned, or None."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        return latest_batch(connection, pipeline, request_key) if pipeline else None


def _interval(
    spec: Spec, interval: tuple[datetime, datetime] | None
) -> tuple[datetime, datetime] | None:
    if spec.source.select == "arrival":
        return None
    if interval is None or interval[0] >= interval[1]:
        raise TerminalError(
            f"pipeline {spec.name} selects by interval, and the run has none; trigger it with a "
            "data interval, or give --interval START END"
        )
    return interval


def _write_claims(
    connection: sa.Connection, batch: Batch, ranges: list[Range], partitions: dict[str, int]
) -> None:
    claims = [
        {
            **vars(r.evidence),
            "ordinal": ordinal,
            "source_partition_id": partitions[r.wanted.file.path],
            "start": r.start,
            "end": r.end,
        }
        for ordinal, r in enumerate(ranges)
    ]
    change(
        connection, "plan", "insert_claims", batch_id=batch.batch_id, claims=json.dumps(claims)
    )
