"""replay: recompute the output of finalized batches with today's transforms and spec.

A replay is a separate batch, and goes through stage, commit and finalize like any other. It reads
the ranges of its root, the batch that it replays, and keeps the root's verdicts: it never decides
again which records survived. So it does not claim, add ids or take a place in the commit order. Its
commit retires the earlier output, and its finalize replaces the old marker.

If the source has replaced parts of the batch's input, for example an upstream pipeline by a replay,
the replay claims the new parts and judges all their records again.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from semel import failpoints, limits, storage
from semel.archive import layout, provenance
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import (
    RetryableError,
    SemelError,
    SourceError,
    StateError,
    TerminalError,
)
from semel.finalize import Finalized, finalize
from semel.ledger import Ledger, Row, change, pipelines, row, rows
from semel.ledger.batches import batch_of
from semel.model.batch import Batch, BatchStatus, Claim, Counts, Log, Pipeline, run_of, runs
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.plan.abandon import abandon
from semel.plan.register import register
from semel.runs.run import finish
from semel.sources import Offer
from semel.stage import JobEngine
from semel.stage.replayed import (
    check_source,
    check_verdicts,
    erased,
    has_letters,
    outputs,
    packed,
)

Anew = list[tuple[Claim, Offer]]
"""A batch's claims whose content the source has replaced, each with the current offer."""

SILENT_SECONDS = 2 * limits.HEARTBEAT_SECONDS
"""A planned batch without a sign of life for this long counts as dead."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """A batch that can be replayed, or `why` it cannot.

    `generation`: of its newest finalized output, from 1, or 0 without one; `newest`: that output's
    batch. `done`: the request is finished with it. `counts`: the outcomes of its records.
    """

    batch_id: int
    request_key: str
    interval: tuple[datetime, datetime] | None
    generation: int
    newest: int
    counts: Counts
    done: bool = False
    why: SemelError | None = None


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of one replay. `found`: an earlier run of the request had planned it."""

    batch: Batch
    found: bool
    finalized: Finalized


def roots(
    ledger: Ledger,
    spec: Spec,
    *,
    batches: tuple[int, int] | None = None,
    interval: tuple[datetime, datetime] | None = None,
) -> list[int]:
    """The batches to replay in a range, in commit order.

    `batches`: first and last number. `interval`: [start, end), which contains each batch's own
    interval, or its commit in a pipeline without intervals. Raises StateError if the range is
    empty, and TerminalError if a batch lies only partly in the interval.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        selected = _roots(connection, pipeline, batches=batches, interval=interval)
        if interval:
            _check_within(connection, pipeline, interval)
    if not selected:
        what = f"batches {batches[0]} to {batches[1]}" if batches else _interval_text(interval)
        raise StateError(
            f"{spec.name} has nothing to replay in {what}: it has no batches there, or only "
            "replays and abandoned batches",
            next=f"semel batches {spec.name}",
        )
    return [r["batch_id"] for r in selected]


def check_root(
    ledger: Ledger, spec: Spec, root: int, request_key: str, *, once: bool = False
) -> Root:
    """Check whether a batch can be replayed now, with the bytes of its decisions and dead letters,
    unless the request has begun or finished its replay. `once`: as in `plan`.
    """
    pipeline = pipelines.require(ledger, spec.name)
    root_row = _root(ledger, pipeline, spec, root)
    mine = _replay_of_request(ledger, spec, request_key, root)
    try:
        answered = mine is not None and _is_answered(
            ledger, pipeline, spec, mine, root_row, once=once
        )
        begun = mine is not None and mine.open
        why = None if answered or begun else _obstacle(ledger, spec, pipeline, root_row)
    except SemelError as error:
        answered, why = False, error
    between = root_row["interval_start"], root_row["interval_end"]
    return Root(
        batch_id=root,
        request_key=root_row["request_key"],
        interval=between if between[0] else None,
        generation=root_row["made"],
        newest=root_row["made_by"],
        counts=Counts.from_row(root_row),
        done=answered,
        why=why,
    )


def plan(
    ledger: Ledger, spec: Spec, request_key: str, root: int, *, once: bool = False
) -> tuple[Batch, bool]:
    """Find or plan the request's replay of a batch. Returns it, and True if it existed already.

    The same request gets the same replay until another one replaces its output or it is abandoned;
    then it gets a new one. With `once` it also gets a replaced one, if the code and the declaration
    have not changed since.

    Raises StateError, CorruptionError, SourceError or TerminalError if the batch cannot be
    replayed; then nothing was written. Raises RetryableError if another request is replaying it.
    """
    sink = open_sink(spec)
    with ledger.transaction() as connection:
        pipeline = register(connection, spec, sink)
    mine = _replay_of_request(ledger, spec, request_key, root)
    root_row = _root(ledger, pipeline, spec, root)
    if mine is not None:
        if _is_answered(ledger, pipeline, spec, mine, root_row, once=once):
            return mine, True
        if mine.open and not abandon_outdated(ledger, spec, mine):
            return mine, True
        root_row = _root(ledger, pipeline, spec, root)
    with ledger.transaction() as connection:
        other = _open_replay(connection, root)
    if other is not None:
        finish_or_refuse(ledger, spec, other, request_key, root)
        root_row = _root(ledger, pipeline, spec, root)
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline.pipeline_id)
    anew = _check(ledger, spec, pipeline, root_row)
    claims = _claims(spec, anew)
    stored = provenance.spec_with_code(spec)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        # Keeps RP2.
        now = _roots(connection, pipeline, batches=(root, root))
        moved = anew and partitions.version(connection, pipeline.pipeline_id) != version
        begun = not now or now[0]["newest"] != root_row["newest"] or _open_replay(connection, root)
        begun = begun or now[0]["erased"]
        if moved or begun:
            raise RetryableError(f"another request began to replay batch {root} at the same time")
        place = {"replays": root, "generation": root_row["generation"] + 1}
        if not anew:
            place["judged_by"] = root_row["judged_by"]
        batch = insert(connection, spec, stored, request_key, **place)
        # Keeps CH2.
        if anew:
            _refuse_apart(connection, spec, pipeline, root, _names(anew))
            values = {"pipeline_id": pipeline.pipeline_id, "batch_id": batch.batch_id}
            change(connection, "replay", "claim", parts=json.dumps(claims), **values)
            partitions.touch(connection, pipeline.pipeline_id)
        failpoints.point("replay.before_write")
    failpoints.point("replay.after_write")
    return batch, False


def plan_all(ledger: Ledger, spec: Spec, request_key: str, roots: list[int]) -> list[Batch]:
    """Plan a request's replays of some batches, each once: all or none.

    Errors as in `refuse`.
    """
    reasons = {r: check_root(ledger, spec, r, request_key, once=True).why for r in roots}
    refuse(ledger, spec, reasons)
    return [plan(ledger, spec, request_key, root, once=True)[0] for root in roots]


def refuse(
    ledger: Ledger,
    spec: Spec,
    reasons: Mapping[int, SemelError | None],
    *,
    option: str = "",
    idle: Collection[int] = (),
) -> None:
    """Raise TerminalError, with each reason, if some of the batches cannot be replayed; then none
    are. Raises RetryableError if the only reason is that other requests are replaying them now.

    If some have lost their input for good, the next step is to replay the others, by a command with
    this `option`. The command may include `idle` batches, because it does nothing for them.
    """
    refused = {root: why for root, why in reasons.items() if why is not None}
    if not refused:
        return
    count = f"{len(refused)} of {len(reasons)}" if len(reasons) > 1 else "the batch"
    lines = [f"batch {root}: {why}" for root, why in refused.items()]
    busy = all(isinstance(why, RetryableError) for why in refused.values())
    first, why = next(iter(refused.items()))
    step = why.next or f"semel show {first}"
    lasting = any(isinstance(w, SourceError) and w.lasting for w in refused.values())
    good = [root for root in reasons if root not in refused]
    if lasting and good:
        between = roots(ledger, spec, batches=(min(good), max(good)))
        others = [
            f"semel replay {spec.name} --batches {first}"
            + (f"..{last}" if last > first else "")
            + option
            for first, last in runs(good, set(between) - set(idle))
        ]
        lines.append(f"You can replay the others: {', then '.join(f'`{c}`' for c in others)}")
        step = others[0]
    raise (RetryableError if busy else TerminalError)(
        "\n".join([f"{count} cannot be replayed. Nothing was done", *lines]), next=step
    )


def request_of(spec: Spec) -> str:
    """The key of a manual request, which changes with the code or the declaration."""
    return f"cli:replay:{provenance.read_code(spec).digests.digest[:16]}:{spec.digest()[:16]}"


def replays_of_request(
    ledger: Ledger, spec: Spec, request_key: str, root: int | None = None
) -> list[Batch]:
    """The newest replay of each batch that a request has replayed, ordered by root.

    `root`: only that batch.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        replays = rows(
            connection, "replay", "of_request",
            pipeline_id=pipeline.pipeline_id, request_key=request_key, root=root,
        )  # fmt: skip
        return [batch_of(connection, spec.name, r["batch_id"]) for r in replays]


def run(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    root: int,
    engine: JobEngine,
    log: Log = print,
) -> Replayed:
    """Plan, stage, commit and finalize the replay of one batch, from where it stopped."""
    batch, existed = plan(ledger, spec, request_key, root)
    finalized = finish(ledger, spec, batch.batch_id, engine, log)
    return Replayed(batch=finalized.batch, found=existed, finalized=finalized)


def run_all(
    ledger: Ledger, spec: Spec, request_key: str, roots: list[int], engine: JobEngine, log: Log
) -> Iterator[Replayed]:
    """Replay some batches, one after another. An error ends it; earlier replays stay."""
    for at, root in enumerate(roots, 1):
        log(f"batch {root} ({at} of {len(roots)})")
        yield run(ledger, spec, request_key, root, engine, log)


def _roots(
    connection: sa.Connection,
    pipeline: Pipeline,
    *,
    batches: tuple[int, int] | None = None,
    interval: tuple[datetime, datetime] | None = None,
) -> list[Row]:
    first, last = batches or (None, None)
    since, until = interval or (None, None)
    return rows(
        connection, "replay", "roots", pipeline_id=pipeline.pipeline_id,
        first=first, last=last, since=since, until=until,
    )  # fmt: skip


# Keeps RP11.
def _check_within(
    connection: sa.Connection, pipeline: Pipeline, interval: tuple[datetime, datetime]
) -> None:
    """Raise TerminalError if a batch lies only partly in the interval."""
    values = {"pipeline_id": pipeline.pipeline_id, "since": interval[0], "until": interval[1]}
    partial = rows(connection, "replay", "beyond", **values)
    if not partial:
        return
    batch = partial[0]
    between = batch["interval_start"], batch["interval_end"]
    wider = min(between[0], interval[0]), max(between[1], interval[1])
    raise TerminalError(
        f"batch {batch['batch_id']} of {_interval_text(between)} lies only partly in "
        f"{_interval_text(interval)}, and semel replays whole batches. Nothing was done. Choose an "
        "interval that contains it",
        next=f"semel replay {pipeline.name} --interval "
        f"{' '.join(end.isoformat() for end in wider)} --dry-run",
    )


def _root(ledger: Ledger, pipeline: Pipeline, spec: Spec, root: int) -> Row:
    """The batch to replay. Raises StateError if it is itself a replay, or was abandoned."""
    with ledger.transaction() as connection:
        selected = _roots(connection, pipeline, batches=(root, root))
        if selected:
            return selected[0]
        batch = batch_of(connection, spec.name, root)
    if batch.replays is not None:
        raise StateError(
            f"batch {root} is itself a replay, of batch {batch.replays}",
            next=f"semel replay {spec.name} --batches {batch.replays}",
        )
    raise StateError(
        f"batch {root} was abandoned; a later plan takes its records",
        next=f"semel batches {spec.name}",
    )


def _replay_of_request(ledger: Ledger, spec: Spec, request_key: str, root: int) -> Batch | None:
    return next(iter(replays_of_request(ledger, spec, request_key, root)), None)


# Keeps CH3.
def follows(
    ledger: Ledger, spec: Spec, root: int, moving: Collection[str]
) -> tuple[bool, SemelError | None]:
    """True if a batch's input was replaced, or will be with the parts `moving`; and the reason why
    the batch cannot follow, as far as semel can see now.
    """
    pipeline = pipelines.require(ledger, spec.name)
    root_row = _root(ledger, pipeline, spec, root)
    claims = ledger.rows("plan", "claims", batch_id=root_row["newest"])
    names = {claim["name"] for claim in claims} & {*moving}
    try:
        names |= {*_names(replaced_parts(ledger, spec, root_row["newest"]))}
        no_replay = root_row["newest"] == root or root_row["newest_status"] == BatchStatus.FINALIZED
        if not names and no_replay:
            return False, None
        with ledger.transaction() as connection:
            if names:
                _refuse_apart(connection, spec, pipeline, root, sorted(names))
            other = _open_replay(connection, root)
        if other is None:  # Else plan goes on with it, abandons it, or reports that it is at work.
            _check_replaceable(ledger, spec, pipeline, root_row)
    except SemelError as error:
        return True, error
    return True, None


def replaced_parts(ledger: Ledger, spec: Spec, batch_id: int) -> Anew:
    """The replaced parts of a batch's input. Raises SourceError if the source is unreadable."""
    if spec.source.upstream is None:
        return []
    claims = [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]
    return open_source(spec).find_replaced(claims, batch_id)


def _names(anew: Anew) -> list[str]:
    return [claim.name for claim, _ in anew]


def _claims(spec: Spec, anew: Anew) -> list[dict[str, Any]]:
    """The claims of a replay on the current parts, as parameters of their statement."""
    source = open_source(spec)
    return [
        {
            "ordinal": claim.ordinal,
            "name": offer.name,
            "identity": offer.identity,
            "fingerprint": offer.fingerprint,
            "end": offer.end,
            "evidence": source.evidence(offer, offer.end) | ({} if offer.end else {"rows": 0}),
        }
        for claim, offer in anew
    ]


# Keeps CH2.
def _refuse_apart(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, root: int, names: list[str]
) -> None:
    """Raise TerminalError if semel cannot judge all records of a batch again."""
    pairs = {"roots": [root] * len(names), "names": names, "orphans": []}
    apart = row(connection, "replay", "apart", pipeline_id=pipeline.pipeline_id, **pairs)
    if spec.record_id:
        why = "the catalog has the ids of its records, by its place in the order of commits"
    elif apart is None:
        return
    elif apart["admission"]:
        why = f"batch {apart['admission']} has judged some of its dead letters again"
    elif apart["other"]:
        why = f"batch {apart['other']} reads some of it too, because a person accepted that"
    else:
        why = "a person accepted some of it as new rows, and no batch has read these yet"
    raise TerminalError(
        f"cannot replay batch {root} with the new output of "
        f"{', '.join(map(repr, names[:FILES_NAMED_MAX]))}: {why}. Its old output stays. To use the "
        "new rows, declare a pipeline with another name and sink, which reads everything from the "
        "start",
        next=f"semel gaps {spec.name}",
    )


def _is_answered(
    ledger: Ledger, pipeline: Pipeline, spec: Spec, mine: Batch, root_row: Row, *, once: bool
) -> bool:
    """True if the request does not need a new replay of a batch: its own is finalized and still
    visible, and the source has not replaced its input.

    With `once`, a later replay may have replaced it, if its code and declaration are the current
    ones.
    """
    if mine.status is not BatchStatus.FINALIZED:
        return False
    if not once:
        is_newest = root_row["newest"] == mine.batch_id
        return is_newest and not replaced_parts(ledger, spec, mine.batch_id)
    archive = storage.at(pipeline.archive_path)
    code = provenance.code_of_marker(layout.replaced_marker(archive, mine.root, mine.generation))
    if root_row["newest"] == mine.batch_id or code is None:
        code = provenance.code_of_marker(layout.marker(archive, mine.root))
    now = provenance.read_code(spec).digests.digest
    return mine.spec_digest == spec.digest() and code is not None and code.digest == now


def insert(
    connection: sa.Connection, spec: Spec, stored: dict[str, Any], request_key: str, **place: int
) -> Batch:
    """Write a replay (`replays`, `generation`, `judged_by`) or an admission (`admits`,
    `admission`). `stored`: its declaration, with the current code. Raises TerminalError if the
    first batch is packed.
    """
    nothing = dict.fromkeys(("replays", "judged_by", "admits", "admission"))
    places = {**nothing, "generation": 1, **place}
    inserted = row(
        connection, "replay", "insert", request_key=request_key, spec=json.dumps(stored),
        spec_digest=spec.digest(), **places,
    )  # fmt: skip
    if inserted is None:  # Collect has begun to pack it meanwhile.
        raise packed(place.get("replays") or place["admits"])
    return batch_of(connection, spec.name, inserted["batch_id"])


def abandon_outdated(ledger: Ledger, spec: Spec, batch: Batch) -> bool:
    """Abandon a planned replay or admission whose declaration or input changed since, unless it
    shows life. Returns True if it was abandoned.
    """
    if batch.status is not BatchStatus.PLANNED:
        return False
    # Keeps P21.
    if batch.spec_digest != spec.digest():
        reason = "its declaration changed since it was planned"
    elif batch.replays and replaced_parts(ledger, spec, batch.batch_id):
        reason = "its input was replaced since it was planned"
    else:
        return False
    return abandon(ledger, batch.batch_id, reason, silent_only=True) is not None


def _open_replay(connection: sa.Connection, root: int) -> Row | None:
    return row(connection, "replay", "at_work", root=root, silent_seconds=SILENT_SECONDS)


# Keeps RP2, RP9.
def finish_or_refuse(ledger: Ledger, spec: Spec, other: Row, request_key: str, root: int) -> None:
    """Finish the batch that another request has committed, or abandon its planned, dead batch.

    `root`: the batch that both replay, or whose dead letters both judge again. Raises
    RetryableError if the other request is still at work.
    """
    _refuse_alive(other, root)
    number = other["batch_id"]
    if other["status"] == BatchStatus.COMMITTED:
        finalize(ledger, spec, number)
        return
    reason = f"it gave no sign of life, and {request_key} went on with batch {root}"
    if abandon(ledger, number, reason, silent_only=True) is None:
        raise _busy_error(other, root)  # The other request has begun an attempt meanwhile.


def _refuse_alive(other: Row, root: int) -> None:
    if other["status"] == BatchStatus.PLANNED and other["alive"]:
        raise _busy_error(other, root)


def _busy_error(other: Row, root: int) -> RetryableError:
    number = other["batch_id"]
    state = f"is at work on batch {root}. Wait for it"
    if other["failed"]:
        state = f"has just failed on batch {root}, and its run may try again. Wait a minute"
    return RetryableError(
        f"batch {number} (run {run_of(other['request_key'])}) {state}, or abandon it",
        next=f"semel show {number}",
    )


def _obstacle(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, root_row: Row
) -> SemelError | None:
    """The reason why a batch cannot be replayed now, or None.

    If another replay of the batch is open, this only checks whether that one shows life: plan first
    finishes or abandons it, and then checks the batch.
    """
    root = root_row["batch_id"]
    try:
        with ledger.transaction() as connection:
            other = _open_replay(connection, root)
        if other is not None:
            _refuse_alive(other, root)
        else:
            _check(ledger, spec, pipeline, root_row)
    except SemelError as error:
        return error
    return None


def _check(ledger: Ledger, spec: Spec, pipeline: Pipeline, root_row: Row) -> Anew:
    """The replaced parts that a replay would claim. Raises SemelError if a replay would fail."""
    root = root_row["batch_id"]
    _check_replaceable(ledger, spec, pipeline, root_row)
    if anew := replaced_parts(ledger, spec, root_row["newest"]):
        with ledger.transaction() as connection:
            _refuse_apart(connection, spec, pipeline, root, _names(anew))
        return anew
    # Keeps RP1.
    check_verdicts(ledger, pipeline, root)
    if root_row["admits"]:
        judged = has_letters(ledger, root_row["admits"], root_row["admission"])
        check_verdicts(ledger, pipeline, judged)
    check_source(ledger, spec, root_row["admits"] or root)
    return []


def _check_replaceable(ledger: Ledger, spec: Spec, pipeline: Pipeline, root_row: Row) -> None:
    """Raise SemelError if the newest output of a batch cannot be replaced now."""
    root = root_row["batch_id"]
    # Keeps ER4.
    if root_row["erased"]:
        raise erased(root)
    if root_row["packed"]:
        raise packed(root)
    if root_row["newest_status"] != BatchStatus.FINALIZED:
        number = root_row["newest"]
        planned = root_row["newest_status"] == BatchStatus.PLANNED
        raise StateError(
            f"batch {number} (run {run_of(root_row['newest_key'])}) is "
            f"{root_row['newest_status']}, and only a finalized batch can be replayed. "
            "Let its run finish"
            + f", or abandon it (`semel abandon {number}`)" * planned,
            next=f"semel show {number}",
        )
    # Keeps RP8.
    old = outputs(ledger, pipeline, root, root_row["generation"] + 1)
    if set(old.types) != {spec.sink.type}:
        raise TerminalError(
            f"the output of batch {root} is in a sink of another type ({old.types[-1]}) than the "
            f"pipeline has now ({spec.sink.type}), which cannot replace it. Declare a pipeline "
            "with the corrected transforms, another name and another sink"
        )
    open_sink(spec, pipeline.sink_address).check_replace(old)


def _interval_text(interval: tuple[datetime, datetime] | None) -> str:
    return " to ".join(t.isoformat() for t in interval) if interval else "all of its output"
