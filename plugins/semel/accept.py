"""accept: a person's word on what plan refused, on what is gone, or on new columns of the output.

What plan refuses stays unread until then: semel never guesses whether a file that changed holds new
records or old ones. What a word gives up is written down as a loss, never forgotten.
"""

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from semel import faults, settings
from semel.batch import Pipeline
from semel.errors import RetryableError, SourceError, StateError
from semel.finalize import Finalized, finalize
from semel.ledger import Ledger, change, partitions, pipelines, row, rows
from semel.sources import Shown, Word, as_read, quoted
from semel.sources.declared import open_source
from semel.spec.pipeline import Spec

_ROUNDS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The source partition that a file is read under from now on, and what was given up for it.

    `lost` are the ranges of `retired` partitions that were seen and never read.
    """

    name: str
    source_partition_id: int
    generation: int
    same: bool
    retired: tuple[int, ...] = ()
    lost: tuple[tuple[int, int, int], ...] = ()
    """(partition, start, end)"""
    found: bool = False
    """It was settled before: nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Positions [start, end) of a file, or the like, that is gone: recorded as lost."""

    name: str
    source_partition_id: int
    start: int
    end: int


# Keeps A3.
def accept_file(
    ledger: Ledger, spec: Spec, path: str, *, same: bool, start: int = 0
) -> Accepted:
    """Settle a refused file: as a new generation, read from `start`, or as the `same` partition.

    `path`: absolute, or below the data folder, the working folder or the source's own.
    SourceError: the file is not in the source, or with `same` is not what was read before, or no
    record begins at `start`.
    """
    pipeline, source = _pipeline(ledger, spec), open_source(spec)
    pipeline_id = pipeline.pipeline_id
    for _ in range(_ROUNDS_MAX):
        shown = source.discover()
        name = _named(spec, path, {item.name for item in shown.found})
        if name is None:
            raise SourceError(_not_there(spec, path, shown))
        with ledger.transaction() as connection:
            version = partitions.version(connection, pipeline_id)
            known = partitions.known(ledger, connection, pipeline_id, shown)
            there = row(connection, "accept", "open", pipeline_id=pipeline_id, name=name)
        try:
            word = source.accept(
                shown, known, name, same=same, start=start, is_open=there is not None
            )
        except FileNotFoundError:
            continue
        if word is None:
            return Accepted(**there, same=True, found=True)
        faults.point("accept.before_lock")
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            if partitions.version(connection, pipeline_id) != version:
                continue
            accepted = _write(connection, pipeline_id, word)
            change(connection, "accept", "settle", pipeline_id=pipeline_id, name=name)
            partitions.touch(connection, pipeline_id)
            faults.point("accept.before_accept")
        faults.point("accept.after_accept")
        return accepted
    raise RetryableError(
        f"accept of {path!r}: the source or its claims changed {_ROUNDS_MAX} times in a row; run "
        "this again"
    )


def _write(connection: sa.Connection, pipeline_id: int, word: Word) -> Accepted:
    """Retire what it was, and open what it is; what was unread of the first is lost."""
    offer, same = word.offer, word.offer.known
    superseded = {k.source_partition_id for k in word.superseded}
    ends = {k.source_partition_id: k.seen for k in word.ended}
    lost = partitions.free_ranges(
        connection, {k: seen for k, seen in ends.items() if k not in superseded}
    )
    partitions.lose(connection, lost, "replaced", _who())
    # A new one is no copy of what it holds: nobody shall ask again.
    retired = [*ends, *(sorted(superseded - ends.keys()) if same is None else ())]
    partitions.retire(connection, retired)
    if same is None:
        (new,) = partitions.insert(connection, pipeline_id, [(offer, None)])
        if offer.start:
            passed = {new["source_partition_id"]: [(0, offer.start)]}
            partitions.lose(connection, passed, "repeated", _who())
    else:
        partitions.update(connection, [as_read(offer, None, settled=False)])
        new = {
            "name": offer.name,
            "source_partition_id": same.source_partition_id,
            "generation": same.generation,
        }
    return Accepted(
        **new,
        same=same is not None,
        retired=tuple(retired),
        lost=tuple((k, *span) for k, spans in lost.items() for span in spans),
    )


# Keeps A5.
def accept_loss(ledger: Ledger, spec: Spec, path: str) -> list[Loss]:
    """Record as lost what was seen of a file that is gone, and never read.

    SourceError: nothing of a file of that name is missing; StateError: a batch still has it.
    """
    pipeline = _pipeline(ledger, spec)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        closed, spans = partitions.unaccounted(connection, pipeline.pipeline_id)
        name = _named(spec, path, {k.name for k in closed})
        meant = [k for k in closed if k.name == name]
        if not meant:
            known = _lost_before(connection, spec, pipeline, path)
            if known:
                return known
            _refuse_held(connection, spec, pipeline, path)
            shown = "; ".join(str(k) for k in closed[:5]) or "nothing is missing"
            raise SourceError(
                f"no records of {path!r} were seen and are gone ({shown}); `semel gaps "
                f"{spec.name}` lists what is not read, and a plan finds what is gone"
            )
        lost = {k.source_partition_id: spans[k.source_partition_id] for k in meant}
        partitions.lose(connection, lost, "gone", _who())
        partitions.account(connection, lost)
        change(connection, "accept", "settle", pipeline_id=pipeline.pipeline_id, name=name)
        partitions.touch(connection, pipeline.pipeline_id)
        faults.point("accept.before_loss")
    faults.point("accept.after_loss")
    return [
        Loss(name=name, source_partition_id=partition, start=start, end=end)
        for partition, found in lost.items()
        for start, end in found
    ]


def _lost_before(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[Loss]:
    """What was recorded as lost of a path: the same word may be given again."""
    found = rows(connection, "accept", "gone", pipeline_id=pipeline.pipeline_id)
    name = _named(spec, path, {r["name"] for r in found})
    return [Loss(**r) for r in found if r["name"] == name]


def _refuse_held(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> None:
    """StateError when a planned batch has records of a path."""
    silent = spec.limits.orphan_after.total_seconds()
    held = rows(
        connection,
        "look",
        "open_claims",
        pipeline_id=pipeline.pipeline_id,
        orphan_seconds=silent,
    )
    name = _named(spec, path, {r["name"] for r in held})
    batch = next((r["batch_id"] for r in held if r["name"] == name), None)
    if batch is not None:
        raise StateError(
            f"batch {batch} has claimed records of {name!r}: abandon it first, then run this again",
            next=f"semel abandon {batch}",
        )


def _pipeline(ledger: Ledger, spec: Spec) -> Pipeline:
    with ledger.transaction() as connection:
        found = pipelines.find(connection, spec.name)
    if found is None:
        raise StateError(
            f"pipeline {spec.name} never planned a batch; run it first",
            next=f"semel run {spec.name}",
        )
    return found


def _named(spec: Spec, path: str, there: set[str]) -> str | None:
    """Which of the known paths is meant: as it is, or below one of the usual folders."""
    folders = (spec.source_root(), *settings.data_roots(), Path.cwd())
    tried = [path, *(os.path.normpath(os.path.join(folder, path)) for folder in folders)]
    real = (os.path.realpath(os.path.dirname(name)) for name in tried)
    tried += [os.path.join(*pair) for pair in zip(real, map(os.path.basename, tried), strict=True)]
    return next((name for name in tried if name in there), None)


def _not_there(spec: Spec, path: str, shown: Shown) -> str:
    name = _named(spec, path, {r.name for r in shown.refused})
    whys = (f"{r.reason}: {r.detail}" for r in shown.refused if r.name == name)
    why = next(whys, "it is not there, or the source's pattern does not find it")
    return (
        f"{path!r} cannot be read by {spec.name} ({why}), so there is nothing to accept; mend the "
        f"file, then run the pipeline. `semel accept {spec.name} {quoted(path)} --lost` is for "
        "records of a file that is gone"
    )


def _who() -> str:
    """Who gives their word: user and machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # No name for this number.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def accept_refused(ledger: Ledger, spec: Spec, batch_id: int) -> Finalized:
    """Finish a committed batch whose sink refuses rows: they go to the archive, the others land.

    TerminalError: its sink is a folder, which refuses none; or it refuses too many.
    """
    return finalize(ledger, spec, batch_id, accepting=True)


def accept_columns(ledger: Ledger, spec: Spec) -> None:
    """Let the next batch that commits decide the output's columns. StateError: no such pipeline."""
    pipeline = _pipeline(ledger, spec)
    with ledger.transaction() as connection:
        change(connection, "accept", "forget_columns", pipeline_id=pipeline.pipeline_id)
        faults.point("accept.before_columns")
    faults.point("accept.after_columns")
