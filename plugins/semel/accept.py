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
from semel.formats.declared import is_whole
from semel.ledger import Ledger, change, partitions, pipelines, rows
from semel.sources import files
from semel.sources.cut import show, unsure
from semel.sources.evidence import Partition
from semel.sources.facts import Facts, Recognised
from semel.sources.files import Listing, quoted
from semel.sources.gather import gather
from semel.sources.recognise import REFUSED, Answer, Own
from semel.sources.wanted import NOTHING_READ, Wanted, as_read
from semel.spec.pipeline import Spec

_ROUNDS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The source partition that a file is read under from now on, and what was given up for it.

    `lost` are the ranges of `retired` partitions that were seen and never read.
    """

    path: str
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
    """Bytes [start, end) of a file that is gone, recorded as lost."""

    path: str
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
    pipeline = _pipeline(ledger, spec)
    for _ in range(_ROUNDS_MAX):
        listing = files.list_files(spec)
        name = _named(spec, path, {file.path for file in listing.files})
        if name is None:
            raise SourceError(_not_there(spec, path, listing))
        with ledger.transaction() as connection:
            version = partitions.version(connection, pipeline.pipeline_id)
            known = partitions.knowledge(ledger, connection, pipeline.pipeline_id, listing)
        try:
            recognised = gather(spec, listing, known, None)
            done = _settled(ledger, pipeline, recognised, name)
            if done is not None:
                return done
            accepting = _Accepting(spec, recognised, name, same=same, start=start)
        except FileNotFoundError:
            continue
        faults.point("accept.before_lock")
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            if partitions.version(connection, pipeline.pipeline_id) != version:
                continue
            accepted = accepting.write(connection, pipeline.pipeline_id)
            change(
                connection, "accept", "settle", pipeline_id=pipeline.pipeline_id, path=name
            )
            partitions.touch(connection, pipeline.pipeline_id)
            faults.point("accept.before_accept")
        faults.point("accept.after_accept")
        return accepted
    raise RetryableError(
        f"accept of {path!r}: the source or its claims changed {_ROUNDS_MAX} times in a row; run "
        "this again"
    )


def _settled(
    ledger: Ledger, pipeline: Pipeline, recognised: Recognised, path: str
) -> Accepted | None:
    """The partition that the file is read in already. None: it is refused, or never was read."""
    found = recognised.facts.get(path)
    if found is not None and found.own is not Own.SAME:
        return None
    known = ledger.rows("accept", "open", pipeline_id=pipeline.pipeline_id, path=path)
    return Accepted(**known[0], same=True, found=True) if known else None


class _Accepting:
    """What a word on one file comes to. SourceError when the word cannot be taken."""

    def __init__(
        self, spec: Spec, recognised: Recognised, path: str, *, same: bool, start: int
    ) -> None:
        found = recognised.facts.get(path)
        if found is None and path in recognised.linked:
            raise SourceError(
                f"{path!r} is one of several names of a file; leave one of them in the source "
                "folder, then run the pipeline"
            )
        if found is not None and found.answer is Answer.UNSURE:
            raise SourceError(f"{path!r} has to wait: {unsure(found)}")
        self.found = found
        self.same = _same(spec, path, found) if same else None
        if found is None or not (same or found.answer in REFUSED):
            raise SourceError(
                f"{path!r} is not refused as a file that changed or may be a copy, so there is "
                f"nothing to accept; `semel gaps {spec.name}` lists what is refused, and why"
            )
        seen = found.seen
        content = seen.of(self.same)
        if content is None:
            raise SourceError(f"{seen.trouble}; mend or replace the file, then run the pipeline")
        if start and (start > content.size or content.read(start - 1, 1) != b"\n"):
            raise SourceError(
                f"no record of {path!r} begins at byte {start}: the byte before it ends none; the "
                f"file has {content.size} bytes"
            )
        self.wanted = Wanted(
            file=seen.file, birth_ns=seen.birth_ns, content=content, known=self.same, end=0,
            start=start,
        )  # fmt: skip
        self.closed = {
            k.source_partition_id: k
            for k in (found.known, found.before)
            if k is not None and k is not self.same
        }

    def write(self, connection: sa.Connection, pipeline_id: int) -> Accepted:
        """Retire what the file was, and open what it is; what was unread of the first is lost."""
        superseded = {k.source_partition_id for k in self.found.superseded}
        ends = {k: known.content for k, known in self.closed.items() if k not in superseded}
        lost = partitions.free_ranges(connection, ends)
        partitions.lose(connection, lost, "replaced", _who())
        retired = list(self.closed)
        if self.same is None:  # It is no copy of these: nobody shall ask again.
            retired += [k for k in superseded if k not in retired]
        partitions.retire(connection, retired)
        if self.same is None:
            (new,) = partitions.insert(connection, pipeline_id, [(self.wanted, NOTHING_READ)])
            if self.wanted.start:
                passed = {new["source_partition_id"]: [(0, self.wanted.start)]}
                partitions.lose(connection, passed, "repeated", _who())
        else:
            partitions.update(connection, [as_read(self.wanted, None, settled=False)])
            new = {
                "path": self.wanted.file.path,
                "source_partition_id": self.same.source_partition_id,
                "generation": self.same.generation,
            }
        return Accepted(
            **new,
            same=self.same is not None,
            retired=tuple(retired),
            lost=tuple((k, *span) for k, spans in lost.items() for span in spans),
        )


# Keeps A4.
def _same(spec: Spec, path: str, found: Facts | None) -> Partition:
    """The partition whose bytes the file begins with, and which no other file holds."""
    able = [] if found is None else found.alike
    if is_whole(spec):
        able = [k for k in able if found.seen.content.size == k.reached]
    if not able:
        raise SourceError(
            f"{path!r} cannot go on where a file that was cut or is gone stood: it does not begin "
            "with what was read of one, or is read whole and grew; accept it as a new generation "
            f"instead: `semel accept {spec.name} {quoted(path)}`"
        )
    return min(able, key=lambda k: (k.path != path, -k.reached))


# Keeps A5.
def accept_loss(ledger: Ledger, spec: Spec, path: str) -> list[Loss]:
    """Record as lost what was seen of a file that is gone, and never read.

    SourceError: nothing of a file of that name is missing; StateError: a batch still has it.
    """
    pipeline = _pipeline(ledger, spec)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        closed, spans = partitions.unaccounted(connection, pipeline.pipeline_id)
        name = _named(spec, path, {k.path for k in closed})
        meant = [k for k in closed if k.path == name]
        if not meant:
            known = _lost_before(connection, spec, pipeline, path)
            if known:
                return known
            _refuse_held(connection, spec, pipeline, path)
            shown = "; ".join(show(k) for k in closed[:5]) or "nothing is missing"
            raise SourceError(
                f"no records of {path!r} were seen and are gone ({shown}); `semel gaps "
                f"{spec.name}` lists what is not read, and a plan finds what is gone"
            )
        lost = {k.source_partition_id: spans[k.source_partition_id] for k in meant}
        partitions.lose(connection, lost, "gone", _who())
        partitions.account(connection, lost)
        change(connection, "accept", "settle", pipeline_id=pipeline.pipeline_id, path=name)
        partitions.touch(connection, pipeline.pipeline_id)
        faults.point("accept.before_loss")
    faults.point("accept.after_loss")
    return [
        Loss(path=name, source_partition_id=partition, start=start, end=end)
        for partition, found in lost.items()
        for start, end in found
    ]


def _lost_before(
    connection: sa.Connection, spec: Spec, pipeline: Pipeline, path: str
) -> list[Loss]:
    """What was recorded as lost of a path: the same word may be given again."""
    found = rows(connection, "accept", "gone", pipeline_id=pipeline.pipeline_id)
    name = _named(spec, path, {r["path"] for r in found})
    return [Loss(**r) for r in found if r["path"] == name]


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
    name = _named(spec, path, {r["path"] for r in held})
    batch = next((r["batch_id"] for r in held if r["path"] == name), None)
    if batch is not None:
        raise StateError(
            f"batch {batch} has claimed records of {name!r}: `semel abandon {batch}` first, then "
            "run this again"
        )


def _pipeline(ledger: Ledger, spec: Spec) -> Pipeline:
    with ledger.transaction() as connection:
        found = pipelines.find(connection, spec.name)
    if found is None:
        raise StateError(f"pipeline {spec.name} never planned a batch; run it first")
    return found


def _named(spec: Spec, path: str, there: set[str]) -> str | None:
    """Which of the known paths is meant: as it is, or below one of the usual folders."""
    folders = (spec.source_root(), *settings.data_roots(), Path.cwd())
    tried = [path, *(os.path.normpath(os.path.join(folder, path)) for folder in folders)]
    real = (os.path.realpath(os.path.dirname(name)) for name in tried)
    tried += [os.path.join(*pair) for pair in zip(real, map(os.path.basename, tried), strict=True)]
    return next((name for name in tried if name in there), None)


def _not_there(spec: Spec, path: str, listing: Listing) -> str:
    name = _named(spec, path, {r.path for r in listing.refused})
    whys = (f"{r.reason}: {r.detail}" for r in listing.refused if r.path == name)
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
