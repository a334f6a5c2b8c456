"""The batch path: what a range of batches read, read again as one batch, by stage, commit and
finalize as they are, into a scratch sink with a scratch ledger. Nothing of it stays.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from semel import settings
from semel.archive import layout
from semel.archive.marker import Marker, read_marker
from semel.compare.known import teach
from semel.compare.which import Chosen
from semel.errors import AGAIN, RetryableError, SemelError, TerminalError
from semel.ledger import Ledger, change, pipelines
from semel.ledger import scratch as scratch_ledgers
from semel.model.batch import Claim, Log, Pipeline
from semel.pipeline import Spec
from semel.pipeline.opening import open_sink, open_source
from semel.repair.adopt.ids import ShardIds
from semel.runs.run import steps_of
from semel.sinks.files.spec import FilesSink
from semel.stage import Engine, Outcome
from semel.stage.job import OFFSET_COLUMN, SOURCE_COLUMN, StageJob
from semel.storage import make_folder, remove_folder

_BATCH = 0  # No ledger gives this number, so no command that an error names touches another batch.


@dataclass(frozen=True, kw_only=True)
class Made:
    """What the batch path made. `seconds` of each of its steps."""

    marker: Marker
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _AsTable:
    """An engine whose tasks set aside the rows that the pipeline's table refuses, as its own do."""

    engine: Engine
    spec: Spec

    def run(self, job: StageJob) -> Outcome:
        wanted = job.output_schema()
        if not self.spec.sink.position_columns:
            wanted = pa.schema(f for f in wanted if f.name not in (SOURCE_COLUMN, OFFSET_COLUMN))
        refuses = open_sink(self.spec).check(wanted, job.data_dir)
        return self.engine.run(replace(job, refuses=refuses))


@contextmanager
def batch_path(
    ledger: Ledger, chosen: Chosen, engine: Engine, known: list[ShardIds], log: Log
) -> Iterator[Made]:
    """Run the batch path; what it made is there for the length of a block.

    SemelError: as of stage, commit and finalize.
    """
    with scratch_ledgers.scratch_ledger(ledger) as scratch:
        staging = layout.staging(Path(chosen.pipeline.archive_path))
        folder = scratch_ledgers.folder_of(scratch, staging)
        make_folder(folder)
        try:
            yield _run(scratch, chosen, folder, engine, known, log)
        finally:
            remove_folder(folder)


def _run(
    scratch: Ledger,
    chosen: Chosen,
    folder: Path,
    engine: Engine,
    known: list[ShardIds],
    log: Log,
) -> Made:
    spec = _spec(chosen.spec, folder)
    if not chosen.spec.sink.in_folder and not spec.transforms:
        engine = _AsTable(engine=engine, spec=chosen.spec)
    seconds: dict[str, float] = {}

    def said(line: str) -> None:
        log(f"batch path: {line.replace(f'batch {_BATCH}, ', '')}")

    pipeline = _plan(scratch, chosen, spec)
    if known:
        teach(scratch, pipeline, int(spec.dedup.horizon.total_seconds()), known, folder)
    for name, step in steps_of(scratch, spec, _BATCH, engine, said).items():
        began = time.monotonic()
        try:
            step()
        except SemelError as error:
            kind = RetryableError if isinstance(error, RetryableError) else TerminalError
            raise kind(
                f"the batch path of {spec.name} failed at {name}, and was removed; the live "
                f"output was not touched: {error}",
                next=AGAIN,
            ) from error
        seconds[name] = round(time.monotonic() - began, 3)
    marker = read_marker(layout.marker(folder / "archive", _BATCH), spec.sink_path())
    return Made(marker=marker, seconds=seconds)


def _spec(spec: Spec, folder: Path) -> Spec:
    """The pipeline with its rows going to a folder; without transforms, with their positions."""
    root = settings.data_roots()[0]
    out, kept = (os.path.relpath(folder / name, root) for name in ("sink", "archive"))
    if not folder.is_relative_to(root):
        out, kept = str(folder / "sink"), str(folder / "archive")
    sink = FilesSink(
        type="files", path="scratch", format=spec.sink.format, file_name=spec.sink.file_name,
        partition_by=spec.sink.partition_by,
        position_columns=spec.sink.position_columns or not spec.transforms,
    )  # fmt: skip
    sink = sink.model_copy(update={"path": out, "archive": kept})
    dedup = spec.dedup if spec.by_position else spec.dedup.model_copy(update={"keep_ids": False})
    # What the live path quarantined is compared, not refused.
    loose = spec.limits.model_copy(update={"quarantine_ratio_max": 1.0})
    return spec.model_copy(update={"sink": sink, "dedup": dedup, "limits": loose})


def _plan(scratch: Ledger, chosen: Chosen, spec: Spec) -> Pipeline:
    """Write pipeline, source partitions and the one batch into the scratch ledger."""
    live = chosen.pipeline
    claims = in_one(chosen)
    partitions = {
        c.source_partition_id: {
            "source_partition_id": c.source_partition_id,
            "name": c.name,
            "identity": c.identity,
        }
        for c in claims
    }
    with scratch.transaction() as connection:
        change(
            connection,
            "pipelines",
            "insert",
            name=spec.name,
            sink_address=str(spec.sink_path()),
            archive_path=str(spec.declared_archive()),
            identity=live.identity,
            shards=live.shards,
            bucket_seconds=live.bucket_seconds,
        )
        pipeline = pipelines.find(connection, spec.name)
        change(
            connection,
            "compare",
            "insert_partitions",
            pipeline_id=pipeline.pipeline_id,
            partitions=json.dumps(list(partitions.values())),
        )
        change(
            connection,
            "compare",
            "insert_batch",
            pipeline_id=pipeline.pipeline_id,
            spec=json.dumps(spec.to_json()),
            spec_digest=spec.digest(),
            split_bytes=open_source(spec).split_size,
        )
        change(
            connection,
            "compare",
            "insert_claims",
            batch_id=_BATCH,
            claims=json.dumps([vars(claim) for claim in claims]),
        )
    return pipeline


def in_one(chosen: Chosen) -> list[Claim]:
    """All claims of the batches as those of one: in the order in which a plan would take them,
    and those of one partition that follow each other as one.
    """
    shown = [found.name for found in open_source(chosen.spec).discover().found]
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
