"""accept: settle a refused file, record a loss, or let the output have new columns.

Plan does not read a refused file until then: semel never guesses whether a changed file has new
records or old ones. The ledger records each range that accept gives up as lost.
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
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from semel import failpoints, settings
from semel.archive import ownership
from semel.errors import RetryableError, SourceError, StateError, TerminalError
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

if TYPE_CHECKING:
    from semel.finalize import Finalized

_ROUNDS_MAX = 20

AcceptMode = Literal["new", "same", "lost"]

_CHOICES: dict[str, tuple[AcceptMode, ...]] = {
    "changed": ("new",),
    "replaced": ("new", "same"),
    "copy": ("new", "same"),
    "replayed": ("new",),
    "gone": ("lost",),
    "recreated": ("new",),
    "truncated": ("new",),
}


def choices(declared: SourceSpec, reason: str) -> tuple[AcceptMode, ...]:
    """The modes that can settle a refusal with this reason. Empty if a person has to fix it."""
    return tuple(how for how in _CHOICES.get(reason, ()) if how != "same" or declared.resumes)


def accept_command(spec: Spec, refusal: Refusal) -> str | None:
    """The command that accepts a refused file.

    Returns None if the refusal's message does not offer one: a person has to correct something, or
    plan has to see the file first.
    """
    ways = choices(spec.source, refusal.reason)
    accept = bare_accept_command(spec.name, refusal.name, "--lost" if ways[:1] == ("lost",) else "")
    return accept if ways and f"`{accept}" in refusal.detail else None


@dataclass(frozen=True, kw_only=True)
class SettledFile:
    """The source partition of a file from now on, and the ranges that accept gave up for it.

    `start`: the first position to read, if the partition is new. `lost`: ranges of `retired`
    partitions that plan saw and no batch read.
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
    """Whether the file was settled before, so that nothing changed."""


@dataclass(frozen=True, kw_only=True)
class AcceptPreview:
    """The effect that accepting a file would have now.

    `partition`: the partition that continues, or None for a new one that begins at `start`. `end`:
    the current end of the file, which may grow. `retired` and `lost`: as in SettledFile. `digest`
    covers all of this, and the evidence of the file up to `end`.
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
    """A refused file as discovered. `acceptance` is None if `open_partition` already reads it."""

    pipeline: Pipeline
    source: Source
    name: str
    version: int
    open_partition: Row | None
    acceptance: Acceptance | None


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
) -> SettledFile:
    """Settle a refused file: as a new generation, read from `start`, or as the `same` partition.

    `path`: absolute, or relative to the data folder, the working folder or the source's folder.
    `by`: the person who decides, by default this process's user. `agreed`: `end` and `digest` of
    the preview that the person agreed to.
    Raises SourceError if the file is not in the source, if it differs with `same` from the part
    that was read, or if no record begins at `start`. Raises StateError if the effect would differ
    from the preview.
    """
    for refused in _inspect(ledger, spec, path, same=same, start=start):
        pipeline_id = refused.pipeline.pipeline_id
        if refused.acceptance is None:
            return SettledFile(**refused.open_partition, same=True, found=True)
        evidence = _evidence(refused, agreed[0]) if agreed else None
        failpoints.point("accept.before_lock")
        with ledger.transaction() as connection:
            pipelines.lock(connection, refused.pipeline)
            if partitions.version(connection, pipeline_id) != refused.version:
                continue
            # Keeps A7.
            if agreed and _preview(connection, refused, agreed[0], evidence).digest != agreed[1]:
                raise changed_error(refused.name)
            accepted = _write(connection, pipeline_id, refused.acceptance, by or current_user())
            change(connection, "accept", "settle", pipeline_id=pipeline_id, name=refused.name)
            partitions.touch(connection, pipeline_id)
            failpoints.point("accept.before_accept")
        failpoints.point("accept.after_accept")
        return accepted
    raise moving_error(path)


def preview_accept(
    ledger: Ledger, spec: Spec, path: str, *, same: bool, start: int = 0
) -> AcceptPreview | None:
    """Preview `accept_file`, with the same errors. Returns None if the file is already settled."""
    for refused in _inspect(ledger, spec, path, same=same, start=start):
        if refused.acceptance is None:
            return None
        end = refused.acceptance.offer.seen
        evidence = _evidence(refused, end)
        with ledger.transaction() as connection:
            return _preview(connection, refused, end, evidence)
    raise RetryableError(
        f"{path!r}: the source or its claims changed {_ROUNDS_MAX} times in a row. Load this again"
    )


def _inspect(
    ledger: Ledger, spec: Spec, path: str, *, same: bool, start: int
) -> Iterator[_RefusedFile]:
    """Discover a file, again for each item that the caller takes, up to a limit."""
    pipeline, source = pipelines.require(ledger, spec.name), open_source(spec)
    pipeline_id = pipeline.pipeline_id
    for _ in range(_ROUNDS_MAX):
        listing = source.discover()
        name = match_name(spec, path, {item.name for item in listing.items})
        if name is None:
            raise SourceError(_unreadable_text(spec, path, listing))
        with ledger.transaction() as connection:
            version = partitions.version(connection, pipeline_id)
            claimed = partitions.read_state(connection, pipeline_id)
            open_row = row(connection, "accept", "open", pipeline_id=pipeline_id, name=name)
        listing, partition_known = claimed.compare(ledger, pipeline_id, listing)
        try:
            acceptance = source.accept(
                listing, partition_known, name, same=same, start=start, is_open=open_row is not None
            )
        except FileNotFoundError:
            continue
        yield _RefusedFile(
            pipeline=pipeline,
            source=source,
            name=name,
            version=version,
            open_partition=open_row,
            acceptance=acceptance,
        )


def _evidence(refused: _RefusedFile, end: int) -> Evidence | None:
    """The evidence of a file up to an end. Returns None if the file is shorter now."""
    offer = None if refused.acceptance is None else refused.acceptance.offer
    # The file may have grown since the preview, but that part must be unchanged.
    return refused.source.evidence(offer, end) if offer and end <= offer.seen else None


def _preview(
    connection: sa.Connection, refused: _RefusedFile, end: int, evidence: Evidence | None
) -> AcceptPreview:
    offer = refused.acceptance.offer
    lost, retired = _losses(connection, refused.acceptance)
    partition = offer.partition and offer.partition.source_partition_id
    ranges = tuple((k, *span) for k, spans in lost.items() for span in spans)
    digest_now = preview_digest(
        refused.name, offer.identity, offer.evidence, evidence, partition, offer.start, retired,
        ranges,
    )
    return AcceptPreview(
        name=refused.name,
        partition=partition,
        start=offer.partition.reached if offer.partition else offer.start,
        end=end,
        retired=tuple(retired),
        lost=ranges,
        digest=digest_now,
    )


def preview_digest(*values: object) -> str:
    """A digest of a preview, by its values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def moving_error(path: str) -> RetryableError:
    """The error for a source that changes faster than semel can compare it with the ledger."""
    return RetryableError(
        f"accept of {path!r}: the source or its claims changed {_ROUNDS_MAX} times in a row. "
        "Nothing was accepted. Run this again"
    )


def changed_error(name: str) -> StateError:
    """The error for a file that differs from its preview."""
    return StateError(
        f"{name!r} has changed since you saw its preview. Nothing was accepted. Load the preview "
        "again"
    )


def _losses(connection: sa.Connection, acceptance: Acceptance) -> tuple[Spans, list[int]]:
    """The ranges that become lost, and the numbers of the partitions to retire."""
    superseded = {k.source_partition_id for k in acceptance.superseded_partitions}
    ends = {k.source_partition_id: k.seen for k in acceptance.replaced_partitions}
    lost = partitions.free_ranges(
        connection, {k: seen for k, seen in ends.items() if k not in superseded}
    )
    # A file accepted as new is not a copy of the files that it contains, so retire them too.
    new = acceptance.offer.partition is None
    return lost, [*ends, *(sorted(superseded - ends.keys()) if new else ())]


def _write(
    connection: sa.Connection, pipeline_id: int, acceptance: Acceptance, by: str
) -> SettledFile:
    """Retire the old partitions, and open or update the new one. Unread ranges become lost."""
    offer, same = acceptance.offer, acceptance.offer.partition
    lost, retired = _losses(connection, acceptance)
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
    return SettledFile(
        **new,
        same=same is not None,
        start=offer.start,
        retired=tuple(retired),
        lost=tuple((k, *span) for k, spans in lost.items() for span in spans),
    )


def match_name(spec: Spec, path: str, names: set[str]) -> str | None:
    """The one of `names` that a path means: as given, or relative to one of the usual folders."""
    folders = [f for f in (spec.source_root(), *settings.data_roots(), Path.cwd()) if f]
    paths = [path, *(os.path.normpath(os.path.join(folder, path)) for folder in folders)]
    real = (os.path.realpath(os.path.dirname(name)) for name in paths)
    paths += [os.path.join(*pair) for pair in zip(real, map(os.path.basename, paths), strict=True)]
    return next((name for name in paths if name in names), None)


def _unreadable_text(spec: Spec, path: str, listing: SourceListing) -> str:
    name = match_name(spec, path, {r.name for r in listing.refusals})
    whys = (f"{r.reason}: {r.detail}" for r in listing.refusals if r.name == name)
    why = next(whys, "it does not exist, or the source's pattern does not match it")
    part = spec.source.part
    return (
        f"{path!r}: {spec.name} cannot read this {part} ({why}), so there is nothing to accept. "
        f"Fix the {part}, then run the pipeline. If the {part} is lost, "
        f"`{bare_accept_command(spec.name, path, '--lost')}` records that"
    )


def current_user() -> str:
    """The person who accepts, as USER@MACHINE."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # The user number lacks a name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def accept_refused(ledger: Ledger, spec: Spec, batch_id: int) -> "Finalized":
    """Finalize a committed batch whose sink refuses rows: the archive gets these rows.

    Raises TerminalError if the sink is a folder, or refuses too many rows.
    """
    from semel.finalize import finalize  # `semel gaps` names refusals without its Arrow.

    return finalize(ledger, spec, batch_id, accepting=True)


# Keeps H3.
def accept_moved(ledger: Ledger, spec: Spec) -> tuple[str, str]:
    """Record the declared address of a pipeline's table or topic, even if batches are in progress.

    Returns the old address and the new one. Raises TerminalError if the target's notes do not match
    the published batches, StateError if the address is already recorded or the sink is a folder.
    """
    pipeline, sink = pipelines.require(ledger, spec.name), open_sink(spec)
    old, new = pipeline.sink_address, sink.address
    if new == old or spec.sink_path() is not None:
        why = "is its sink already" if new == old else "is a folder, which the next plan moves"
        raise StateError(
            f"pipeline {spec.name}: {new} {why}. There is nothing to accept",
            next=f"semel check {spec.name}",
        )
    with ledger.transaction() as connection:
        batches = ownership.known_batches(connection, pipeline, every=True)
    ownership.check_target(ledger, pipeline, sink, batches, None)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        owner = pipelines.owner(connection, new, "")
        if owner is not None:
            raise TerminalError(
                f"{new}: this sink belongs to pipeline {owner.name!r}. Declare another sink"
            )
        values = {"pipeline_id": pipeline.pipeline_id, "sink_address": new}
        change(connection, "pipelines", "rename_sink", **values)
    return old, new


def accept_columns(ledger: Ledger, spec: Spec) -> None:
    """Let the next commit decide the output's columns.

    Raises StateError if the pipeline never had a plan, TerminalError if it counts windows.
    """
    # Keeps AG4.
    if spec.aggregate is not None:
        raise TerminalError(
            f"{spec.name} counts windows, and rows with other columns would not add up with its "
            "present rows. Nothing was changed. Declare a new pipeline with its own name and sink",
            next=f"semel windows {spec.name}",
        )
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        change(connection, "accept", "forget_columns", pipeline_id=pipeline.pipeline_id)
        failpoints.point("accept.before_columns")
    failpoints.point("accept.after_columns")


# Keeps W10.
def accept_late(ledger: Ledger, spec: Spec) -> datetime:
    """Let held windows be complete, so that their later records are late. Returns the event time.

    Raises StateError if no window is held.
    """
    pipeline = pipelines.require(ledger, spec.name)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        released = transition(
            connection, "accept", "late", f"no window of {spec.name} is held",
            next=f"semel windows {spec.name}", name=spec.name, by=current_user(),
        )  # fmt: skip
    return released["event_time"]
