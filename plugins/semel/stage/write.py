"""write: turn a task's valid records, without its dropped rows, into output files and decisions.

A task runs this after classify, also in each retry or speculative try. The surviving rows are a
pure function of the job. The records come from the spill of read. If read wrote the output early, a
task without dropped rows keeps these files, and any other task reads its splits again. With
transforms, the survivors pass through Spark, and `write_rows` writes the result.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from semel.errors import CorruptionError, RetryableError, TerminalError
from semel.formats.pieces import PIECE_BYTES_MAX, cut
from semel.formats.records import OFFSET
from semel.model.manifest import Kind, SplitReport, StagedFile
from semel.model.split import Split
from semel.stage import fatal
from semel.stage.classify import Dropped, Repeat
from semel.stage.combine import timeless
from semel.stage.job import StageJob, output_columns
from semel.stage.part_files import TaskFiles
from semel.stage.read import read_again
from semel.stage.spill import Spilled

REASONS = pa.array(["", "duplicate_in_batch", "duplicate_in_catalog"])


def write_task(
    job: StageJob,
    task: int,
    reports: list[SplitReport],
    dropped: list[Dropped],
    *,
    write: bool,
    files: tuple[StagedFile, ...] = (),
) -> list[SplitReport]:
    """Write the decisions and, with `write`, the survivors of a task's splits, in source order.

    `dropped`: the rows of the task to drop. Returns the reports with all counts. The last report
    lists the files of this task, and `files` from classify. Without `write`, it writes a mask of
    the survivors to a file next to the spill, for `survivors` to read.
    """
    codes = _codes(job, task, reports, dropped)
    early = reports[-1].files
    if job.writes_early and not codes.any():
        return _with_files(reports, (*early, *files))
    out = TaskFiles(job, f"w{task:05d}")
    spill = None if job.writes_early else _open_spill(job, reports)
    results = []
    for report in reports:
        code = codes[report.first_row :][: report.counts.survivors]
        decide = partial(_decide, job, job.splits[report.split], out, write=write)
        if spill is None:
            _read_again(job, report, code, decide)
        else:
            for table, codes_of in _parts(spill, report, code):
                decide(table, codes_of)
        out.end_split()
        results.append(_count_duplicates(report, code))
    if not write:
        mask = job.spill_dir / f"k{task:05d}-{uuid.uuid4().hex}"
        mask.write_bytes((codes == 0).tobytes())
        results = [replace(report, kept=mask.name) for report in results]
    kept = (file for file in early if file.kind is not Kind.DATA)
    return _with_files(results, (*kept, *out.close(), *files))


def _with_files(reports: list[SplitReport], files: tuple[StagedFile, ...]) -> list[SplitReport]:
    """The reports of a task, of which the last lists the files."""
    return [*reports[:-1], replace(reports[-1], files=files)]


def _open_spill(job: StageJob, reports: list[SplitReport]) -> Spilled:
    """Open the spill of a task's splits. Checks that their rows are contiguous."""
    starts = np.cumsum([0, *(report.counts.survivors for report in reports)])
    names = {report.spill for report in reports}
    if len(names) > 1 or [report.first_row for report in reports] != starts[:-1].tolist():
        raise CorruptionError(
            f"semel has a bug: the rows of splits {reports[0].split} to {reports[-1].split} are "
            f"not contiguous in {sorted(names)}. Nothing was committed. Please report it"
        )
    return Spilled(job.spill_dir / reports[0].spill)


def _codes(
    job: StageJob, task: int, reports: list[SplitReport], dropped: list[Dropped]
) -> np.ndarray:
    """A code for each valid record of a task: 0 for a survivor, else its `Repeat`."""
    codes = np.zeros(sum(report.counts.survivors for report in reports), np.uint8)
    for each in dropped:
        codes[each.rows] = each.reason
    if np.count_nonzero(codes) != sum(len(each.rows) for each in dropped):
        raise CorruptionError(
            f"attempt {job.attempt_id}: semel has a bug: it dropped a row of task {task} twice. "
            "Nothing was committed. Please report it"
        )
    return codes


def _decide(
    job: StageJob,
    split: Split,
    out: TaskFiles,
    table: pa.Table,
    codes: np.ndarray,
    *,
    write: bool,
) -> None:
    """Write the decisions about some rows of a split and, with `write`, its survivors."""
    if codes.any():
        out.decisions(_decisions(job, split, table, codes))
    if write:
        remaining = table.filter(pa.array(codes == 0)) if codes.any() else table
        out.rows(output_columns(job, split, remaining))


# Keeps S30.
def _read_again(
    job: StageJob, report: SplitReport, code: np.ndarray, decide: Callable[..., None]
) -> None:
    """Read a split again, and pass its rows on with their codes.

    Raises RetryableError if its bytes are not those of the first time.
    """
    split, start = job.splits[report.split], 0

    def take(table: pa.Table) -> None:
        nonlocal start
        end = start + table.num_rows
        if end <= len(code):
            decide(table, code[start:end])
        start = end

    with fatal.noted(job, f"w{split.task}", [split]):
        again = read_again(job, split, write=take).report
    if (again.digest, start) != (report.digest, len(code)):
        raise RetryableError(
            f"attempt {job.attempt_id}: part {split.number} of the source, {split.claim.name!r}, "
            "changed while stage read it twice. Nothing was committed. Run stage again"
        )


def _count_duplicates(report: SplitReport, code: np.ndarray) -> SplitReport:
    """Add a split's duplicates to the counts of its report."""
    dropped = int(np.count_nonzero(code))
    catalog = int(np.count_nonzero(code == Repeat.OF_CATALOG))
    counts = replace(
        report.counts,
        survivors=len(code) - dropped,
        duplicates_batch=dropped - catalog,
        duplicates_catalog=catalog,
    )
    return replace(report, counts=counts)


def survivors(job: StageJob, reports: list[SplitReport]) -> Iterator[pa.RecordBatch]:
    """Yield the survivors of a task's splits, for the transforms."""
    job.check_folder()
    spill, mask = Spilled(job.spill_dir / reports[0].spill), None
    if reports[0].kept:
        mask = np.frombuffer((job.spill_dir / reports[0].kept).read_bytes(), bool)
    for report in reports:
        counts = report.counts
        count = counts.survivors + counts.duplicates
        code = np.zeros(count, np.uint8)
        if mask is not None:
            code[~mask[report.first_row : report.first_row + count]] = 1
        for table, codes in _parts(spill, report, code):
            remaining = table.filter(pa.array(codes == 0)) if codes.any() else table
            yield from output_columns(job, job.splits[report.split], remaining).to_batches()


def write_rows(
    job: StageJob, part: int, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> tuple[StagedFile, ...]:
    """Write the transforms' output of one Spark partition, as `schema`. Returns the files."""
    out = TaskFiles(job, f"t{part:05d}")
    for batch in batches:
        # Spark returns times in its session's zone: the same moments with another type.
        table = pa.Table.from_batches([batch]).cast(schema)
        for rows in cut(table, PIECE_BYTES_MAX):
            _check_times(job, rows)
            _check_sink_takes(job, rows)
        out.rows(table)
    return out.close()


# Keeps AG1.
def _check_times(job: StageJob, table: pa.Table) -> None:
    """Raises TerminalError if transforms produced rows without a window."""
    name = job.spec.record_time
    bad, why = timeless(table.column(name)) if job.spec.aggregate else ((), [])
    if len(bad):
        raise TerminalError(
            f"batch {job.batch_id}: the transforms produced {len(bad)} rows in one block whose "
            f"times belong to no window ({name}: {why[0].says}). Nothing was committed. Filter or "
            "correct them in the last transform"
        )


# Keeps S27.
def _check_sink_takes(job: StageJob, table: pa.Table) -> None:
    """Raises TerminalError if transforms produced rows that the sink rejects. No single record is
    the cause.
    """
    refused = job.refused(table)
    if refused:
        first = refused[0]
        raise TerminalError(
            f"batch {job.batch_id}: the transforms produced {len(first.rows)} rows in one block "
            f"that the sink rejects ({first.reason}: {first.detail}). Nothing was committed. "
            "Filter or correct them in the last transform, or change the table"
        )


def _parts(
    spill: Spilled, report: SplitReport, code: np.ndarray
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """A split's rows in pieces, each with its codes."""
    start = 0
    for table in spill.rows(report.first_row, len(code)):
        yield table, code[start : start + table.num_rows]
        start += table.num_rows


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
