"""The batch path: stage's own job reads the claims of a range of batches again, as one batch.

The job does not use the ledger: compare passes its claims, its spec and its known ids. It writes
into a scratch folder, below the folder of the archive's attempts.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa

from semel.archive import provenance
from semel.compare.choice import ChosenBatches
from semel.declare.wording import count
from semel.errors import AGAIN, RetryableError, SemelError, SourceError, TerminalError
from semel.ledger import Ledger
from semel.model.arrow import arrow_type
from semel.model.batch import Claim, Counts, Log
from semel.model.manifest import Kind, MarkedFile, StagedFile
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.sinks import RowChecker
from semel.stage import account, make_folders, moved
from semel.stage.job import JobEngine, Outcome, StageJob, columns_of
from semel.storage import ArchivePath, at, make_folder, move_to_disk, remove_folder

_BATCH = 0  # Ledgers start at 1, so a command in an error message cannot affect a real batch.


@dataclass(frozen=True, kw_only=True)
class BatchPathOutput:
    """The batch path's output, with the attributes of a marker. All files are below `sink`."""

    pipeline: str
    spec: Spec
    sink: Path
    sink_schema: pa.Schema
    files: tuple[MarkedFile, ...]
    counts: Counts
    batch_id: int = _BATCH

    def of_kind(self, kind: Kind) -> tuple[MarkedFile, ...]:
        """The files of one kind."""
        return tuple(file for file in self.files if file.kind is kind)

    def path_of(self, file: MarkedFile) -> Path:
        """The path of a file."""
        return self.sink / file.path


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The folders of one compare. `shared`: for its tasks, below the archive's attempts. `local`:
    for the rows that they wrote. Both are one folder unless the archive is in a store.
    """

    shared: ArchivePath
    local: Path


@contextmanager
def scratch_folders(ledger: Ledger, staging: ArchivePath) -> Iterator[Scratch]:
    """Folders for the duration of a block. Removes those of killed compares below `staging`.

    Each process has a lock in the ledger on the name of its folder. The lock ends with the session.
    """
    shared = staging / f"compare-{secrets.token_hex(6)}"
    with ExitStack() as stack:
        session = stack.enter_context(ledger.session())
        _try_lock(session, shared)  # Nobody else knows its name yet.
        for other in staging.glob("compare-*"):
            if _try_lock(session, other):
                remove_folder(other)
        make_folder(staging)
        make_folder(shared)
        stack.callback(remove_folder, shared)
        local = shared
        if not isinstance(local, Path):
            folder = tempfile.TemporaryDirectory(prefix="semel-compare-")
            local = Path(stack.enter_context(folder))
        yield Scratch(shared=shared, local=local)


def _try_lock(session: sa.Connection, folder: ArchivePath) -> bool:
    """Lock the name of a folder until the session ends. Returns False if another session has it."""
    lock = sa.func.pg_try_advisory_lock(sa.func.hashtextextended(str(folder), 0))
    return session.execute(sa.select(lock)).scalar_one()


def batch_path(
    chosen: ChosenBatches, engine: JobEngine, scratch: Scratch, name: str, log: Log
) -> BatchPathOutput:
    """Run the batch path into new folders with this name. The known ids are in `scratch.shared`.

    Raises RetryableError if another run may succeed, else TerminalError.
    """
    spec, source, claims = _spec(chosen.spec), open_source(chosen.spec), join_claims(chosen)
    try:
        claims = source.find(claims, _BATCH)
        job = StageJob.apart(
            spec,
            source,
            claims,
            batch_id=_BATCH,
            folder=scratch.shared / name,
            shards=chosen.pipeline.shards,
            bucket_seconds=chosen.pipeline.bucket_seconds,
            now_seconds=int(time.time()),
            known=scratch.shared,
        )
        log(f"batch path: reads {count(len(job.splits), 'split')} in {count(job.tasks, 'task')}")
        make_folders(job)
        texts = provenance.read_code(spec).texts
        outcome = engine.run(replace(job, refuses=_row_checker(chosen.spec, job), code=texts))
        source.check(claims, _BATCH)
        return _output_of(job, outcome, scratch.local / name)
    except (SemelError, OSError) as error:
        passing = isinstance(error, RetryableError | OSError) or (
            isinstance(error, SourceError) and moved(source, claims, _BATCH)
        )
        kind = RetryableError if passing else TerminalError
        raise kind(
            f"the batch path of {spec.name} failed: {error}. Its files were removed, and the live "
            "output is unchanged",
            next=AGAIN,
        ) from error


def _spec(spec: Spec) -> Spec:
    """The pipeline's spec. Without transforms, its rows also get their positions."""
    if spec.transforms:
        return spec
    sink = spec.sink.model_copy(update={"position_columns": True})
    return spec.model_copy(update={"sink": sink})


def _row_checker(spec: Spec, job: StageJob) -> RowChecker | None:
    """The check that finds rows that the pipeline's table refuses. None if there is no check."""
    if spec.sink.in_folder or spec.transforms:
        return None
    return open_sink(spec).check(columns_of(spec), job.data_dir)


def _output_of(job: StageJob, outcome: Outcome, folder: Path) -> BatchPathOutput:
    files, counts = account.sum_up(job, outcome)
    columns = [(name, arrow_type(text)) for name, text in outcome.sink_schema]
    return BatchPathOutput(
        pipeline=job.spec.name,
        spec=job.spec,
        sink=folder,
        sink_schema=pa.schema(columns),
        files=tuple(_place_file(folder, file) for file in files),
        counts=counts,
    )


def _place_file(root: Path, file: StagedFile) -> MarkedFile:
    """Move a staged file to its final folder and suffix, which readers need."""
    staged = at(file.path)
    path = os.path.join("sink", file.folder, staged.name + file.suffix)
    make_folder((root / path).parent)
    move_to_disk(staged, root / path)
    return MarkedFile(
        kind=file.kind, path=path, records=file.records, bytes=file.bytes, checksum=file.checksum
    )


def join_claims(chosen: ChosenBatches) -> list[Claim]:
    """All claims of the batches as claims of one batch: in plan's order, with adjacent claims of
    a source partition joined.
    """
    names = [item.name for item in open_source(chosen.spec).discover().items]
    place = {name: at for at, name in enumerate(names)}
    claims = [claim for of_batch in chosen.claims.values() for claim in of_batch]
    # A name outside of the listing was rotated away, so its file is older than the listed ones.
    claims.sort(key=lambda c: (place.get(c.name, -1), c.source_partition_id, c.start))
    joined: list[Claim] = []
    for claim in claims:
        last, part = joined[-1] if joined else None, claim.source_partition_id
        follows = last and (last.source_partition_id, last.end) == (part, claim.start)
        if follows and (last.name, last.identity) == (claim.name, claim.identity):
            joined[-1] = replace(claim, ordinal=last.ordinal, start=last.start)
        else:
            joined.append(replace(claim, ordinal=len(joined)))
    return joined
