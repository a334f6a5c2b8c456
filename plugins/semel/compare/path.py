"""The batch path: what a range of batches read, read again as one batch, by stage's own job.

The job has no part in the ledger: its claims, its spec and the ids that it knows are given. What it
writes stays in a scratch folder, below the folder of the archive's attempts.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from semel.archive import provenance
from semel.compare.which import Chosen
from semel.declare.wording import count
from semel.errors import AGAIN, RetryableError, SemelError, SourceError, TerminalError
from semel.model.arrow import arrow_type
from semel.model.batch import Claim, Counts, Log
from semel.model.manifest import Kind, MarkedFile, StagedFile
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.sinks import RowChecker
from semel.stage import account, make_folders, moved
from semel.stage.job import JobEngine, Outcome, StageJob, columns_of
from semel.storage import make_folder, remove_folder

_BATCH = 0  # No ledger gives this number, so no command that an error names touches another batch.


@dataclass(frozen=True, kw_only=True)
class BatchPathOutput:
    """What the batch path made, as a marker tells it of a batch. All files lie below `sink`."""

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


@contextmanager
def scratch_folder(staging: Path) -> Iterator[Path]:
    """A folder below `staging` for the length of a block. Removes what killed compares left.

    Its maker holds a lock on it, which ends with the process. While one is made, nobody else looks
    for those without.
    """
    make_folder(staging)
    folder = staging / f"compare-{secrets.token_hex(6)}"
    with ExitStack() as kept:
        with _locked(staging):
            for left in staging.glob("compare-*"):
                with suppress(BlockingIOError, FileNotFoundError), _locked(left, fcntl.LOCK_NB):
                    remove_folder(left)
            make_folder(folder)
            kept.enter_context(_locked(folder))
        kept.callback(remove_folder, folder)
        yield folder


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a folder. BlockingIOError: another has it, and `flags` say not to wait."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(handle)


def batch_path(
    chosen: Chosen, engine: JobEngine, known: Path, folder: Path, log: Log
) -> BatchPathOutput:
    """Run the batch path into a new folder. `known`: the folder with the ids that it knows.

    SemelError: as of stage, in the compare's words.
    """
    spec, source, claims = _spec(chosen.spec), open_source(chosen.spec), in_one(chosen)
    try:
        claims = source.find(claims, _BATCH)
        job = StageJob.apart(
            spec,
            source,
            claims,
            batch_id=_BATCH,
            folder=folder,
            shards=chosen.pipeline.shards,
            bucket_seconds=chosen.pipeline.bucket_seconds,
            now_seconds=int(time.time()),
            known=known,
        )
        log(f"batch path: reads {count(len(job.splits), 'split')} in {count(job.tasks, 'task')}")
        make_folders(job)
        texts = provenance.read_code(spec).texts
        outcome = engine.run(replace(job, refuses=_refuses(chosen.spec, job), code=texts))
        source.check(claims, _BATCH)
        return _made(job, outcome)
    except (SemelError, OSError) as error:
        passing = isinstance(error, RetryableError | OSError) or (
            isinstance(error, SourceError) and moved(source, claims, _BATCH)
        )
        kind = RetryableError if passing else TerminalError
        raise kind(
            f"the batch path of {spec.name} failed, and was removed; the live output was not "
            f"touched: {error}",
            next=AGAIN,
        ) from error


def _spec(spec: Spec) -> Spec:
    """The pipeline; without transforms, with the positions of its rows."""
    if spec.transforms:
        return spec
    sink = spec.sink.model_copy(update={"position_columns": True})
    return spec.model_copy(update={"sink": sink})


def _refuses(spec: Spec, job: StageJob) -> RowChecker | None:
    """Finds the rows that the pipeline's table refuses: both paths set them aside."""
    if spec.sink.in_folder or spec.transforms:
        return None
    return open_sink(spec).check(columns_of(spec), job.data_dir)


def _made(job: StageJob, outcome: Outcome) -> BatchPathOutput:
    files, counts = account.sum_up(job, outcome)
    columns = [(name, arrow_type(text)) for name, text in outcome.sink_schema]
    return BatchPathOutput(
        pipeline=job.spec.name,
        spec=job.spec,
        sink=job.folder,
        sink_schema=pa.schema(columns),
        files=tuple(_placed(job.folder, file) for file in files),
        counts=counts,
    )


def _placed(root: Path, file: StagedFile) -> MarkedFile:
    """Give a staged file the folders and the suffix of its final name, which readers go by."""
    path = os.path.join("sink", file.folder, Path(file.path).name + file.suffix)
    make_folder((root / path).parent)
    os.rename(file.path, root / path)
    return MarkedFile(
        kind=file.kind, path=path, records=file.records, bytes=file.bytes, checksum=file.checksum
    )


def in_one(chosen: Chosen) -> list[Claim]:
    """All claims of the batches as those of one: in the order in which a plan would take them,
    and those of one partition that follow each other as one.
    """
    shown = [found.name for found in open_source(chosen.spec).discover().items]
    place = {name: at for at, name in enumerate(shown)}
    claims = [claim for own in chosen.claims.values() for claim in own]
    # What is not listed under its name was rotated away: it is older than what is.
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
