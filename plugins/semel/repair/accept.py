"""accept: settle a refused file, record what is gone, or let the output have new columns.

Refused files stay unread until then: semel never guesses whether a changed file holds new records
or old ones. Records given up are written down as lost, never forgotten.
"""

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from semel import failpoints, settings
from semel.archive import owned
from semel.errors import RetryableError, SourceError, StateError, TerminalError
from semel.finalize import Finalized, finalize
from semel.ledger import Ledger, Row, change, pipelines, row, transition
from semel.model.batch import Pipeline
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.plan import partitions
from semel.sources import (
    Acceptance,
    Evidence,
    Refusal,
    Source,
    SourceListing,
    Spans,
    bare_accept_command,
    partition_after,
    start_evidence,
)
from semel.sources.spec import SourceSpec

_ROUNDS_MAX = 20

How = Literal["new", "same", "lost"]

_CHOICES: dict[str, tuple[How, ...]] = {
    "changed": ("new",),
    "replaced": ("new", "same"),
    "copy": ("new", "same"),
    "replayed": ("new",),
    "gone": ("lost",),
    "recreated": ("new",),
    "truncated": ("new",),
}


def choices(declared: SourceSpec, reason: str) -> tuple[How, ...]:
    """What accepting can mean, by the reason of a refusal. Empty: something has to be fixed."""
    return tuple(how for how in _CHOICES.get(reason, ()) if how != "same" or declared.resumes)


def command(spec: Spec, refusal: Refusal) -> str | None:
    """The command that accepts a refused name, if its message offers that. Else None: something has
    to be corrected, or a plan has to see it first.
    """
    ways = choices(spec.source, refusal.reason)
    accept = bare_accept_command(spec.name, refusal.name, "--lost" if ways[:1] == ("lost",) else "")
    return accept if ways and f"`{accept}" in refusal.detail else None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The source partition that a file is read under from now on, and what was given up for it.

    `start`: the first position that is read, if the partition is new. `lost` are the ranges of
    `retired` partitions that were seen and never read.
    """

    name: str
    source_partition_id: int
    generation: int
    same: bool
    start: int = 0
    retired: tuple[int, ...] = ()
    lost: tuple[tuple[int, int, int], ...] = ()
    """(partition, start, end)"""
    found: bool = False
    """Settled before; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class AcceptPreview:
    """What accepting a file would do now. Nothing is done yet.

    `partition`: the one that goes on; None: a new one, read from `start`. `end`: the current end of
    what there is to read; it may grow. `retired` and `lost` as in Accepted. `digest` covers all of
    this, and the evidence of the file up to `end`.
    """

    name: str
    partition: int | None
    start: int
    end: int
    retired: tuple[int, ...]
    lost: tuple[tuple[int, int, int], ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class _RefusedFile:
    """One look at a refused file. `word` is None if it is already read, in `there`."""

    pipeline: Pipeline
    source: Source
    name: str
    version: int
    there: Row | None
    word: Acceptance | None


# Keeps A3.
def accept_file(
    ledger: Ledger,
    spec: Spec,
    path: str,
    *,
    same: bool,
    start: int = 0,
    by: str | None = None,
    agreed: tuple[int, str] | None = None,
) -> Accepted:
    """Settle a refused file: as a new generation, read from `start`, or as the `same` partition.

    `path`: absolute, or below the data folder, the working folder or the source's own. `by`: who
    decides; by default, this process's user. `agreed`: `end` and `digest` of the forecast agreed
    to. SourceError: the file is not in the source, or with `same` differs from what was read
    before, or no record begins at `start`. StateError: the effect would now differ from the one
    agreed to.
    """
    for seen in _looks(ledger, spec, path, same=same, start=start):
        pipeline_id = seen.pipeline.pipeline_id
        if seen.word is None:
            return Accepted(**seen.there, same=True, found=True)
        there = _evidence(seen, agreed[0]) if agreed else None
        failpoints.point("accept.before_lock")
        with ledger.transaction() as connection:
            pipelines.lock(connection, seen.pipeline)
            if partitions.version(connection, pipeline_id) != seen.version:
                continue
            # Keeps A7.
            if agreed and _foreseen(connection, seen, agreed[0], there).digest != agreed[1]:
                raise changed(seen.name)
            accepted = _write(connection, pipeline_id, seen.word, by or who())
            change(connection, "accept", "settle", pipeline_id=pipeline_id, name=seen.name)
            partitions.touch(connection, pipeline_id)
            failpoints.point("accept.before_accept")
        failpoints.point("accept.after_accept")
        return accepted
    raise moving(path)


def foresee(
    ledger: Ledger, spec: Spec, path: str, *, same: bool, start: int = 0
) -> AcceptPreview | None:
    """What `accept_file` would do, with the same errors. None: the file is already read."""
    for seen in _looks(ledger, spec, path, same=same, start=start):
        if seen.word is None:
            return None
        end = seen.word.offer.seen
        there = _evidence(seen, end)
        with ledger.transaction() as connection:
            return _foreseen(connection, seen, end, there)
    raise RetryableError(f"{path!r} is moved faster than it can be read; look again")


def _looks(
    ledger: Ledger, spec: Spec, path: str, *, same: bool, start: int
) -> Iterator[_RefusedFile]:
    """Look at a file, again each time the caller asks, up to a bound."""
    pipeline, source = pipelines.require(ledger, spec.name), open_source(spec)
    pipeline_id = pipeline.pipeline_id
    for _ in range(_ROUNDS_MAX):
        shown = source.discover()
        name = named(spec, path, {item.name for item in shown.items})
        if name is None:
            raise SourceError(_not_there(spec, path, shown))
        with ledger.transaction() as connection:
            version = partitions.version(connection, pipeline_id)
            held = partitions.read_state(connection, pipeline_id)
            there = row(connection, "accept", "open", pipeline_id=pipeline_id, name=name)
        shown, known = held.compare(ledger, pipeline_id, shown)
        try:
            word = source.accept(
                shown, known, name, same=same, start=start, is_open=there is not None
            )
        except FileNotFoundError:
            continue
        yield _RefusedFile(
            pipeline=pipeline, source=source, name=name, version=version, there=there, word=word
        )


def _evidence(seen: _RefusedFile, end: int) -> Evidence | None:
    """The evidence of a file up to an end. None: the file is shorter now."""
    offer = None if seen.word is None else seen.word.offer
    # It may have grown since it was shown; what was there then must be unchanged.
    return seen.source.evidence(offer, end) if offer and end <= offer.seen else None


def _foreseen(
    connection: sa.Connection, seen: _RefusedFile, end: int, there: Evidence | None
) -> AcceptPreview:
    offer = seen.word.offer
    lost, retired = _given_up(connection, seen.word)
    partition = offer.partition and offer.partition.source_partition_id
    ranges = tuple((k, *span) for k, spans in lost.items() for span in spans)
    stands_for = digest(
        seen.name, offer.identity, offer.evidence, there, partition, offer.start, retired, ranges
    )
    return AcceptPreview(
        name=seen.name,
        partition=partition,
        start=offer.partition.reached if offer.partition else offer.start,
        end=end,
        retired=tuple(retired),
        lost=ranges,
        digest=stands_for,
    )


def digest(*values: object) -> str:
    """A digest of a forecast."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def moving(path: str) -> RetryableError:
    """The error for a source that changes faster than it can be read."""
    return RetryableError(
        f"accept of {path!r}: the source or its claims changed {_ROUNDS_MAX} times in a row; run "
        "this again"
    )


def changed(name: str) -> StateError:
    """The error for a file that differs from what was agreed."""
    return StateError(
        f"{name!r} is not any more as it was shown, so nothing was done; look at it again"
    )


def _given_up(connection: sa.Connection, word: Acceptance) -> tuple[Spans, list[int]]:
    """The ranges that become lost, and the partitions to retire."""
    superseded = {k.source_partition_id for k in word.superseded_partitions}
    ends = {k.source_partition_id: k.seen for k in word.replaced_partitions}
    lost = partitions.free_ranges(
        connection, {k: seen for k, seen in ends.items() if k not in superseded}
    )
    # Accepted as new, it is not a copy of those that it contains: nobody need ask again.
    new = word.offer.partition is None
    return lost, [*ends, *(sorted(superseded - ends.keys()) if new else ())]


def _write(
    connection: sa.Connection, pipeline_id: int, word: Acceptance, by: str
) -> Accepted:
    """Retire the old partitions, and open or update the new one. Unread ranges become lost."""
    offer, same = word.offer, word.offer.partition
    lost, retired = _given_up(connection, word)
    partitions.lose(connection, lost, "replaced", by)
    partitions.retire(connection, retired)
    if same is None:
        begun = replace(offer, evidence=offer.evidence | start_evidence(offer))
        (new,) = partitions.insert(connection, pipeline_id, [(begun, None)])
        if offer.start:
            passed = {new["source_partition_id"]: [(0, offer.start)]}
            partitions.lose(connection, passed, offer.reason, by)
    else:
        partitions.update(connection, [partition_after(offer, None, settled=False)])
        new = {
            "name": offer.name,
            "source_partition_id": same.source_partition_id,
            "generation": same.generation,
        }
    return Accepted(
        **new,
        same=same is not None,
        start=offer.start,
        retired=tuple(retired),
        lost=tuple((k, *span) for k, spans in lost.items() for span in spans),
    )


def named(spec: Spec, path: str, there: set[str]) -> str | None:
    """The known path that is meant: the path as given, or below one of the usual folders."""
    folders = [f for f in (spec.source_root(), *settings.data_roots(), Path.cwd()) if f]
    tried = [path, *(os.path.normpath(os.path.join(folder, path)) for folder in folders)]
    real = (os.path.realpath(os.path.dirname(name)) for name in tried)
    tried += [os.path.join(*pair) for pair in zip(real, map(os.path.basename, tried), strict=True)]
    return next((name for name in tried if name in there), None)


def _not_there(spec: Spec, path: str, shown: SourceListing) -> str:
    name = named(spec, path, {r.name for r in shown.refusals})
    whys = (f"{r.reason}: {r.detail}" for r in shown.refusals if r.name == name)
    why = next(whys, "it is not there, or the source's pattern does not find it")
    part = spec.source.part
    return (
        f"{path!r} cannot be read by {spec.name} ({why}), so there is nothing to accept; fix the "
        f"{part}, then run the pipeline. `{bare_accept_command(spec.name, path, '--lost')}` is for "
        f"records of a {part} that is gone"
    )


def who() -> str:
    """The person who accepts: user and machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # This number has no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def accept_refused(ledger: Ledger, spec: Spec, batch_id: int) -> Finalized:
    """Finish a committed batch whose sink refuses rows. They go to the archive; the others land.

    TerminalError: its sink is a folder, which refuses none; or it refuses too many.
    """
    return finalize(ledger, spec, batch_id, accepting=True)


# Keeps H3.
def accept_moved(ledger: Ledger, spec: Spec) -> tuple[str, str]:
    """Give a pipeline's table or topic the declared address, whatever is in progress.

    Returns the old address and the new one. TerminalError: by its own notes, the target does not
    hold what the pipeline published. StateError: there is nothing to accept.
    """
    pipeline, sink = pipelines.require(ledger, spec.name), open_sink(spec)
    old, new = pipeline.sink_address, sink.address
    if new == old or spec.sink_path() is not None:
        raise StateError(
            f"pipeline {spec.name} has {old} as its sink, so there is nothing to accept; a folder "
            "moves with its archive, by the next plan",
            next=f"semel check {spec.name}",
        )
    with ledger.transaction() as connection:
        known = owned.known_batches(connection, pipeline, every=True)
    owned.check_held(ledger, pipeline, sink, known, None)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        owner = pipelines.owner(connection, new, "")
        if owner is not None:
            raise TerminalError(f"{new} belongs to pipeline {owner.name!r}; declare another one")
        values = {"pipeline_id": pipeline.pipeline_id, "sink_address": new}
        change(connection, "pipelines", "rename_sink", **values)
    return old, new


def accept_columns(ledger: Ledger, spec: Spec) -> None:
    """Let the next commit decide the output's columns. StateError: there was never a plan.

    TerminalError: rows of windows with other columns would not add up with those that are there.
    """
    # Keeps AG4.
    if spec.aggregate is not None:
        raise TerminalError(
            f"{spec.name} counts windows, and rows with other columns would not add up with those "
            "that are there; declare a new pipeline with its own name and sink",
            next=f"semel windows {spec.name}",
        )
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        change(connection, "accept", "forget_columns", pipeline_id=pipeline.pipeline_id)
        failpoints.point("accept.before_columns")
    failpoints.point("accept.after_columns")


# Keeps W10.
def accept_late(ledger: Ledger, spec: Spec) -> datetime:
    """Let held windows be complete: what is still to come of them is late. Returns the event time.

    StateError: no window is held.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        found = transition(
            connection, "accept", "late", f"no window of {spec.name} is held",
            next=f"semel windows {spec.name}", name=spec.name, by=who(),
        )  # fmt: skip
    return found["event_time"]
