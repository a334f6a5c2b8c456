"""replay: recompute the output of finalized batches with today's transforms and spec.

A replay is a batch of its own, and goes through stage, commit and finalize like any other. It reads
the ranges claimed by its root, the batch that it replays, and takes the root's verdicts: it never
decides again which records survived. So it claims nothing, adds no id, and takes no place in the
commit order. Its commit retires the output before it, and its finalize replaces the old marker with
the new one.

Where the source has replaced what the batch has read, as a pipeline does that was replayed, it
reads what is there now: it claims these parts, and judges all records again.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from semel import failpoints, limits
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
from semel.stage.replayed import check_source, check_verdicts, erased, has_letters, outputs

Anew = list[tuple[Claim, Offer]]
"""What the source has replaced of what a batch reads, each with what is there now."""

SILENT_SECONDS = 2 * limits.HEARTBEAT_SECONDS
"""A planned batch that shows no sign of life for this long counts as dead."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """A batch that can be replayed, or `why` it cannot.

    `generation`: that of its newest finalized output, from 1, or 0 if there is none; `newest`: the batch that made it.
    `done`: the request has nothing left to do for it. `counts`: the outcomes of its records.
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
    interval, or its commit if the pipeline has no intervals. StateError: there are none.
    TerminalError: a batch has some of the interval, and some of another time.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        found = _roots(connection, pipeline, batches=batches, interval=interval)
        if interval:
            _check_within(connection, pipeline, interval)
    if not found:
        what = f"batches {batches[0]} to {batches[1]}" if batches else _shown(interval)
        raise StateError(
            f"{spec.name} has nothing to replay in {what}: no batch is there, or only replays and "
            "batches that were abandoned",
            next=f"semel batches {spec.name}",
        )
    return [r["batch_id"] for r in found]


def look(
    ledger: Ledger, spec: Spec, root: int, request_key: str, *, once: bool = False
) -> Root:
    """Check whether a batch can be replayed now. The bytes of its decisions and dead letters are
    checked, unless the request has replayed the batch, or is replaying it. `once`: as in `plan`.
    """
    pipeline = pipelines.require(ledger, spec.name)
    found = _root(ledger, pipeline, spec, root)
    mine = _of_request(ledger, spec, request_key, root)
    try:
        done = mine is not None and _answers(ledger, pipeline, spec, mine, found, once=once)
        begun = mine is not None and mine.open
        why = None if done or begun else _why_not(ledger, spec, pipeline, found)
    except SemelError as error:
        done, why = False, error
    between = found["interval_start"], found["interval_end"]
    return Root(
        batch_id=root,
        request_key=found["request_key"],
        interval=between if between[0] else None,
        generation=found["made"],
        newest=found["made_by"],
        counts=Counts.from_row(found),
        done=done,
        why=why,
    )


def plan(
    ledger: Ledger, spec: Spec, request_key: str, root: int, *, once: bool = False
) -> tuple[Batch, bool]:
    """Find or plan the request's replay of a batch. Returns it, and whether it was found.

    The same request gets the same replay until another one replaces its output or it is abandoned;
    then it gets a new one. With `once` it also gets the replaced one, as long as the code and the
    declaration are still those that made it. StateError, CorruptionError, SourceError,
    TerminalError: it cannot be replayed, and nothing was written. RetryableError: another request
    is replaying it now.
    """
    sink = open_sink(spec)
    with ledger.transaction() as connection:
        pipeline = register(connection, spec, sink)
    mine = _of_request(ledger, spec, request_key, root)
    found = _root(ledger, pipeline, spec, root)
    if mine is not None:
        if _answers(ledger, pipeline, spec, mine, found, once=once):
            return mine, True
        if mine.open and not outdated(ledger, spec, mine):
            return mine, True
        found = _root(ledger, pipeline, spec, root)
    with ledger.transaction() as connection:
        other = _at_work(connection, root)
    if other is not None:
        finish_or_refuse(ledger, spec, other, request_key, root)
        found = _root(ledger, pipeline, spec, root)
    with ledger.transaction() as connection:
        version = partitions.version(connection, pipeline.pipeline_id)
    anew = _check(ledger, spec, pipeline, found)
    claims = _claims(spec, anew)
    stored = provenance.spec_with_code(spec)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        # Keeps RP2.
        now = _roots(connection, pipeline, batches=(root, root))
        moved = anew and partitions.version(connection, pipeline.pipeline_id) != version
        begun = not now or now[0]["newest"] != found["newest"] or _at_work(connection, root)
        begun = begun or now[0]["erased"]
        if moved or begun:
            raise RetryableError(f"another request began to replay batch {root} at the same time")
        place = {"replays": root, "generation": found["generation"] + 1}
        if not anew:
            place["judged_by"] = found["judged_by"]
        made = insert(connection, spec, stored, request_key, **place)
        # Keeps CH2.
        if anew:
            _refuse_apart(connection, spec, pipeline, root, _names(anew))
            values = {"pipeline_id": pipeline.pipeline_id, "batch_id": made.batch_id}
            change(connection, "replay", "claim", parts=json.dumps(claims), **values)
            partitions.touch(connection, pipeline.pipeline_id)
        failpoints.point("replay.before_write")
    failpoints.point("replay.after_write")
    return made, False


def plan_all(ledger: Ledger, spec: Spec, request_key: str, roots: list[int]) -> list[Batch]:
    """Plan a request's replays of some batches, each once: all of them or none.

    Errors as in `refuse`.
    """
    found = {r: look(ledger, spec, r, request_key, once=True).why for r in roots}
    refuse(ledger, spec, found)
    return [plan(ledger, spec, request_key, root, once=True)[0] for root in roots]


def refuse(
    ledger: Ledger,
    spec: Spec,
    found: Mapping[int, SemelError | None],
    *,
    option: str = "",
    idle: Collection[int] = (),
) -> None:
    """TerminalError: some of the batches cannot be replayed, so none is; it gives the reason for
    each. RetryableError: the only reason is that other requests are replaying them now.

    If the input of some is gone for good, the next step is to replay the others, by a command with
    this `option`. The command may include `idle` batches, as it does nothing for them.
    """
    refused = {root: why for root, why in found.items() if why is not None}
    if not refused:
        return
    count = f"{len(refused)} of {len(found)}" if len(found) > 1 else "the batch"
    lines = [f"batch {root}: {why}" for root, why in refused.items()]
    busy = all(isinstance(why, RetryableError) for why in refused.values())
    first, why = next(iter(refused.items()))
    step = why.next or f"semel show {first}"
    lasting = any(isinstance(w, SourceError) and w.lasting for w in refused.values())
    good = [root for root in found if root not in refused]
    if lasting and good:
        between = roots(ledger, spec, batches=(min(good), max(good)))
        others = [
            f"semel replay {spec.name} --batches {first}"
            + (f"..{last}" if last > first else "")
            + option
            for first, last in runs(good, set(between) - set(idle))
        ]
        lines.append(f"The others can be replayed: {', then '.join(f'`{c}`' for c in others)}")
        step = others[0]
    raise (RetryableError if busy else TerminalError)(
        "\n".join([f"{count} cannot be replayed, so nothing was done", *lines]), next=step
    )


def request_of(spec: Spec) -> str:
    """The key of a manual request. It changes with the code or the declaration."""
    return f"cli:replay:{provenance.read_code(spec).digests.digest[:16]}:{spec.digest()[:16]}"


def planned(
    ledger: Ledger, spec: Spec, request_key: str, root: int | None = None
) -> list[Batch]:
    """The newest replay of each batch that a request has replayed, ordered by root.

    `root`: only that batch.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        found = rows(
            connection, "replay", "of_request",
            pipeline_id=pipeline.pipeline_id, request_key=request_key, root=root,
        )  # fmt: skip
        return [batch_of(connection, spec.name, r["batch_id"]) for r in found]


def run(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    root: int,
    engine: JobEngine,
    log: Log = print,
) -> Replayed:
    """Plan, stage, commit and finalize the replay of one batch. Resumes where it stopped."""
    batch, found = plan(ledger, spec, request_key, root)
    finalized = finish(ledger, spec, batch.batch_id, engine, log)
    return Replayed(batch=finalized.batch, found=found, finalized=finalized)


def run_all(
    ledger: Ledger, spec: Spec, request_key: str, roots: list[int], engine: JobEngine, log: Log
) -> Iterator[Replayed]:
    """Replay some batches, one after another. An error ends it; earlier ones stay replayed."""
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
    """TerminalError: a batch would be left out that has some of the interval."""
    values = {"pipeline_id": pipeline.pipeline_id, "since": interval[0], "until": interval[1]}
    found = rows(connection, "replay", "beyond", **values)
    if not found:
        return
    batch = found[0]
    own = batch["interval_start"], batch["interval_end"]
    wider = min(own[0], interval[0]), max(own[1], interval[1])
    raise TerminalError(
        f"batch {batch['batch_id']} of {_shown(own)} has some of {_shown(interval)}, and a batch is "
        "replayed as a whole. Nothing was done. Give an interval that has all of it",
        next=f"semel replay {pipeline.name} --interval "
        f"{' '.join(end.isoformat() for end in wider)} --dry-run",
    )


def _root(ledger: Ledger, pipeline: Pipeline, spec: Spec, root: int) -> Row:
    """The batch to replay. StateError: it is a replay itself, or was abandoned."""
    with ledger.transaction() as connection:
        found = _roots(connection, pipeline, batches=(root, root))
        if found:
            return found[0]
        batch = batch_of(connection, spec.name, root)
    if batch.replays is not None:
        raise StateError(
            f"batch {root} is itself a replay, of batch {batch.replays}",
            next=f"semel replay {spec.name} --batches {batch.replays}",
        )
    raise StateError(
        f"batch {root} was abandoned, and its records are free for a later plan",
        next=f"semel batches {spec.name}",
    )


def _of_request(ledger: Ledger, spec: Spec, request_key: str, root: int) -> Batch | None:
    return next(iter(planned(ledger, spec, request_key, root)), None)


# Keeps CH3.
def follows(
    ledger: Ledger, spec: Spec, root: int, moving: Collection[str]
) -> tuple[bool, SemelError | None]:
    """Whether a batch is behind what it reads, or will be once the parts `moving` are replayed; and
    why it cannot follow, as far as it is known now.
    """
    pipeline = pipelines.require(ledger, spec.name)
    found = _root(ledger, pipeline, spec, root)
    claims = ledger.rows("plan", "claims", batch_id=found["newest"])
    names = {claim["name"] for claim in claims} & {*moving}
    try:
        names |= {*_names(renewed(ledger, spec, found["newest"]))}
        no_replay = found["newest"] == root or found["newest_status"] == BatchStatus.FINALIZED
        if not names and no_replay:
            return False, None
        with ledger.transaction() as connection:
            if names:
                _refuse_apart(connection, spec, pipeline, root, sorted(names))
            other = _at_work(connection, root)
        if other is None:  # Else plan goes on with it, gives it up, or tells that it is at work.
            _check_replaceable(ledger, spec, pipeline, found)
    except SemelError as error:
        return True, error
    return True, None


def renewed(ledger: Ledger, spec: Spec, batch_id: int) -> Anew:
    """What the source has replaced of what a batch reads. SourceError: it cannot be looked at."""
    if spec.source.upstream is None:
        return []
    claims = [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]
    return open_source(spec).find_replaced(claims, batch_id)


def _names(anew: Anew) -> list[str]:
    return [claim.name for claim, _ in anew]


def _claims(spec: Spec, anew: Anew) -> list[dict[str, Any]]:
    """The claims of a replay on what is there now, as parameters of their statement."""
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
    """TerminalError: the records of a batch cannot be judged anew as a whole."""
    pairs = {"roots": [root] * len(names), "names": names, "orphans": []}
    apart = row(connection, "replay", "apart", pipeline_id=pipeline.pipeline_id, **pairs)
    if spec.record_id:
        why = "the catalog has the ids of its records at its place in the order of commits"
    elif apart is None:
        return
    elif apart["admission"]:
        why = f"batch {apart['admission']} has judged some of its dead letters again"
    elif apart["other"]:
        why = f"batch {apart['other']} reads some of it, too, since somebody accepted that"
    else:
        why = "somebody accepted some of it as new rows, and no batch has read these yet"
    raise TerminalError(
        f"batch {root} cannot take other output of "
        f"{', '.join(map(repr, names[:FILES_NAMED_MAX]))}, as its records cannot be judged anew: "
        f"{why}. Its output stays what it is; give the declaration to a pipeline of another "
        "name and sink, which reads all from its start",
        next=f"semel gaps {spec.name}",
    )


def _answers(
    ledger: Ledger, pipeline: Pipeline, spec: Spec, mine: Batch, found: Row, *, once: bool
) -> bool:
    """Whether the request needs no new replay of a batch: its own is finalized and still counts,
    and the source has not replaced what it read.

    With `once`, it may have been replaced, if the current code and declaration made it.
    """
    if mine.status is not BatchStatus.FINALIZED:
        return False
    if not once:
        return found["newest"] == mine.batch_id and not renewed(ledger, spec, mine.batch_id)
    kept = Path(pipeline.archive_path)
    made = provenance.code_of_marker(layout.replaced_marker(kept, mine.root, mine.generation))
    if found["newest"] == mine.batch_id or made is None:
        made = provenance.code_of_marker(layout.marker(kept, mine.root))
    now = provenance.read_code(spec).digests.digest
    return mine.spec_digest == spec.digest() and made is not None and made.digest == now


def insert(
    connection: sa.Connection, spec: Spec, stored: dict[str, Any], request_key: str, **place: int
) -> Batch:
    """Write a replay (`replays`, `generation`, `judged_by`) or an admission (`admits`,
    `admission`).

    `stored`: its declaration, with the current code.
    """
    nothing = dict.fromkeys(("replays", "judged_by", "admits", "admission"))
    places = {**nothing, "generation": 1, **place}
    made = row(
        connection, "replay", "insert", request_key=request_key, spec=json.dumps(stored),
        spec_digest=spec.digest(), **places,
    )  # fmt: skip
    return batch_of(connection, spec.name, made["batch_id"])


def outdated(ledger: Ledger, spec: Spec, batch: Batch) -> bool:
    """Give up a planned replay or admission with an outdated declaration, or a replay of what the
    source has replaced since, unless it shows life. Returns whether it was given up.
    """
    if batch.status is not BatchStatus.PLANNED:
        return False
    # Keeps P21.
    if batch.spec_digest != spec.digest():
        reason = "its declaration changed since it was planned"
    elif batch.replays and renewed(ledger, spec, batch.batch_id):
        reason = "what it reads was replaced since it was planned"
    else:
        return False
    return abandon(ledger, batch.batch_id, reason, silent_only=True) is not None


def _at_work(connection: sa.Connection, root: int) -> Row | None:
    return row(connection, "replay", "at_work", root=root, silent_seconds=SILENT_SECONDS)


# Keeps RP2, RP9.
def finish_or_refuse(ledger: Ledger, spec: Spec, other: Row, request_key: str, root: int) -> None:
    """Finish what another request has committed, or give up what it planned and left.

    `root`: the batch that both replay, or whose dead letters both judge again. RetryableError: the
    other request is still at work.
    """
    _refuse_alive(other, root)
    number = other["batch_id"]
    if other["status"] == BatchStatus.COMMITTED:
        finalize(ledger, spec, number)
        return
    reason = f"it gave no sign of life, and {request_key} went on with batch {root}"
    if abandon(ledger, number, reason, silent_only=True) is None:
        raise _busy(other, root)  # It has begun an attempt meanwhile.


def _refuse_alive(other: Row, root: int) -> None:
    if other["status"] == BatchStatus.PLANNED and other["alive"]:
        raise _busy(other, root)


def _busy(other: Row, root: int) -> RetryableError:
    number = other["batch_id"]
    state = f"is at work on batch {root}; wait for it"
    if other["failed"]:
        state = f"has just failed on batch {root}, and its run may try again; wait a minute"
    return RetryableError(
        f"batch {number} (run {run_of(other['request_key'])}) {state}, or abandon it",
        next=f"semel show {number}",
    )


def _why_not(
    ledger: Ledger, spec: Spec, pipeline: Pipeline, found: Row
) -> SemelError | None:
    """Why a batch cannot be replayed now.

    While another replay of it is open, this only checks whether that one shows life: plan first
    finishes it or gives it up, and then checks the batch.
    """
    root = found["batch_id"]
    try:
        with ledger.transaction() as connection:
            other = _at_work(connection, root)
        if other is not None:
            _refuse_alive(other, root)
        else:
            _check(ledger, spec, pipeline, found)
    except SemelError as error:
        return error
    return None


def _check(ledger: Ledger, spec: Spec, pipeline: Pipeline, found: Row) -> Anew:
    """SemelError: a replay of the batch is known to fail, and why. Else what it would read anew."""
    root = found["batch_id"]
    _check_replaceable(ledger, spec, pipeline, found)
    if anew := renewed(ledger, spec, found["newest"]):
        with ledger.transaction() as connection:
            _refuse_apart(connection, spec, pipeline, root, _names(anew))
        return anew
    # Keeps RP1.
    check_verdicts(ledger, pipeline, root)
    if found["admits"]:
        before = has_letters(ledger, found["admits"], found["admission"])
        check_verdicts(ledger, pipeline, before)
    check_source(ledger, spec, found["admits"] or root)
    return []


def _check_replaceable(ledger: Ledger, spec: Spec, pipeline: Pipeline, found: Row) -> None:
    """SemelError: the newest output of a batch cannot be replaced now."""
    root = found["batch_id"]
    # Keeps ER4.
    if found["erased"]:
        raise erased(root)
    if found["newest_status"] != BatchStatus.FINALIZED:
        number = found["newest"]
        planned = found["newest_status"] == BatchStatus.PLANNED
        raise StateError(
            f"batch {number} (run {run_of(found['newest_key'])}) is {found['newest_status']}, and "
            "only a finalized batch can be replayed; let its run finish"
            + f", or abandon it (`semel abandon {number}`)" * planned,
            next=f"semel show {number}",
        )
    # Keeps RP8.
    old = outputs(ledger, pipeline, root, found["generation"] + 1)
    if set(old.types) != {spec.sink.type}:
        raise TerminalError(
            f"the output of batch {root} is in a sink of another type ({old.types[-1]}) than the "
            f"pipeline has now ({spec.sink.type}), which cannot replace it; give the corrected "
            "transforms to a pipeline of another name and sink: it reads the source from its start"
        )
    open_sink(spec, pipeline.sink_address).check_replace(old)


def _shown(interval: tuple[datetime, datetime] | None) -> str:
    return " to ".join(t.isoformat() for t in interval) if interval else "all of its output"
