"""write: a split's spill minus its dropped rows becomes output files and decisions.

Runs in a task after classify, for each of its splits, and once more per retry or speculation. Which
rows are kept is a pure function of the job; with transforms, the rows pass through Spark and
`write_rows` writes what comes out of them.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from semel.errors import CorruptionError
from semel.manifest import SplitReport, StagedFile
from semel.sources.records import OFFSET
from semel.steps.classify import Dropped, Reason
from semel.steps.job import Split, StageJob
from semel.steps.read import output_columns
from semel.steps.task_files import TaskFiles

REASONS = pa.array(["", "duplicate_in_batch", "duplicate_in_catalog"])


def write_task(
    job: StageJob, task: int, parts: list[tuple[SplitReport, list[Dropped]]], *, write: bool
) -> list[SplitReport]:
    """Write the decisions and, with `write`, the survivors of a task's splits (in source order).

    Returns the whole account; the last report names what the task wrote here. Without `write` the
    kept rows go to a file beside each spill, for `survivors` to read.
    """
    out = TaskFiles(job, f"w{task:05d}")
    done = [_decide(job, report, dropped, out, write=write) for report, dropped in parts]
    return [*done[:-1], replace(done[-1], files=(*done[-1].files, *out.close()))]


def _decide(
    job: StageJob, report: SplitReport, dropped: list[Dropped], out: TaskFiles, *, write: bool
) -> SplitReport:
    split = job.splits[report.split]
    rows = np.concatenate([d.rows for d in dropped]) if dropped else np.zeros(0, np.uint32)
    reason = np.concatenate([d.reason for d in dropped]) if dropped else np.zeros(0, np.uint8)
    total = report.counts.survivors
    code = np.zeros(total, np.uint8)
    code[rows] = reason
    if np.count_nonzero(code) != len(rows):
        raise CorruptionError(
            f"attempt {job.attempt_id}: classify dropped a row of split {report.split} twice; this "
            "is a defect of semel, nothing was committed"
        )
    for table, codes in _parts(report, code):
        if codes.any():
            out.decisions(_decisions(job, split, table, codes))
        if write:
            kept = table.filter(pa.array(codes == 0)) if codes.any() else table
            out.rows(output_columns(job, split, kept))
    out.end_split()
    kept_path = None
    if not write:
        kept_path = str(job.spill_dir / f"k{split.number:05d}-{uuid.uuid4().hex}.npy")
        np.save(kept_path, code == 0)
    catalog = int(np.count_nonzero(reason == Reason.DUPLICATE_CATALOG))
    counts = replace(
        report.counts,
        survivors=total - len(rows),
        duplicates_batch=len(rows) - catalog,
        duplicates_catalog=catalog,
    )
    return replace(report, counts=counts, kept=kept_path)


def survivors(job: StageJob, report: SplitReport) -> Iterator[pa.RecordBatch]:
    """The kept rows of a split, for the transforms."""
    split = job.splits[report.split]
    if report.kept is None:
        code = np.zeros(report.counts.survivors, np.uint8)
    else:
        code = (~np.load(report.kept)).astype(np.uint8)
    for table, codes in _parts(report, code):
        kept = table.filter(pa.array(codes == 0)) if codes.any() else table
        yield from output_columns(job, split, kept).to_batches()


def write_rows(
    job: StageJob, part: int, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> tuple[StagedFile, ...]:
    """Write what the transforms made in one Spark partition, as `schema`. Returns the files."""
    out = TaskFiles(job, f"t{part:05d}")
    for batch in batches:
        # Spark hands times over in the zone of its session: the same moments, another type.
        out.rows(pa.Table.from_batches([batch]).cast(schema))
    return out.close()


def _parts(report: SplitReport, code: np.ndarray) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """A spill's record batches, each with its rows' decisions."""
    start = 0
    with pa.memory_map(report.spill) as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            yield pa.Table.from_batches([batch]), code[start : start + batch.num_rows]
            start += batch.num_rows
    if start != len(code):
        raise CorruptionError(
            f"the spill {report.spill} has {start} rows, and {len(code)} were read; this attempt "
            "is lost, run stage again"
        )


def _decisions(job: StageJob, split: Split, table: pa.Table, codes: np.ndarray) -> pa.Table:
    dropped = table.filter(pa.array(codes != 0))
    ids = dropped.select(list(job.spec.record_id)).combine_chunks()
    source = np.full(dropped.num_rows, split.claim.source_partition_id, np.int64)
    return pa.table(
        {
            "source_partition_id": source,
            "offset": dropped.column(OFFSET),
            "reason": REASONS.take(pa.array(codes[codes != 0])),
            "record_id": ids.to_struct_array(),
        }
    )
