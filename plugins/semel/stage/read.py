"""read: turn a split's bytes into valid records, ids by shard, and dead letters.

Each task reads its splits, and reads them again in each retry and speculative try. The result is a
pure function of the planned bytes and the job; only file names differ between tries.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import xxhash

from semel.catalog.ids import HashedIds, hash_ids, seconds_of
from semel.declare import wording
from semel.declare.parts import Late, RepeatScope
from semel.errors import ANEW, LimitError, TerminalError
from semel.formats import words
from semel.formats.lines import Fault
from semel.formats.records import OFFSET, REJECTED, Block, printable
from semel.formats.selection import EVERYTHING
from semel.formats.words import RECORD_SHOWN_BYTES
from semel.model.batch import Counts, Ignored
from semel.model.buckets import Buckets
from semel.model.manifest import Sample, SplitReport
from semel.model.reasons import Reason
from semel.model.split import Split
from semel.stage import fatal
from semel.stage.combine import timeless
from semel.stage.event_time import times_of, together
from semel.stage.job import StageJob, output_columns
from semel.stage.part_files import TaskFiles
from semel.stage.spill import Spill
from semel.stage.task_ids import IdsPlace, write_task_ids
from semel.stage.together import read_together, small_groups

RECORD_TIME_AHEAD_SECONDS = 86_400
"""In scope bucket, record_time may be this far ahead of the ledger's clock: clocks differ."""

DEAD_LETTERS = pa.schema([("source_partition_id", pa.int64()), *REJECTED])
LATE, TIME_AHEAD, TIME_MISSING, ID_MISSING = 1, 2, 3, 4
REASONS = {
    LATE: Reason.late,
    TIME_AHEAD: Reason.record_time_ahead,
    TIME_MISSING: Reason.record_time_missing,
    ID_MISSING: Reason.id_missing,
}

Write = Callable[[pa.Table], None]


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """The result for a split: its report, and the ids of its valid records, in parts in their order
    (none by position).
    """

    report: SplitReport
    ids: tuple[HashedIds, ...]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result for a task: a report per split, and where its ids of each shard lie, if any."""

    reports: list[SplitReport]
    ids: list[IdsPlace]


def read_task(job: StageJob, task: int, *, write: bool) -> TaskResult:
    """Read the splits of a task. The report of the last split lists the files of the task.

    Valid records go to a spill. With `write` they go to output files: the job MUST NOT have
    transforms. Raises SourceError if the source has changed since the plan.
    """
    out = TaskFiles(job, f"r{task:05d}")
    with nullcontext() if write else Spill(job, task) as spill:
        results: list[SplitResult] = []
        for group in small_groups(job, job.splits_of_task(task)):
            with fatal.noted(job, f"r{task}", group):
                joined = _read_small(job, group, out, spill) if len(group) > 1 else None
                results += joined or [_read(job, split, out, spill) for split in group]
    reports, row = [], 0
    for report in (result.report for result in results):
        reports.append(replace(report, spill=spill and spill.path.name, first_row=row))
        row += report.counts.survivors
    reports[-1] = replace(reports[-1], files=out.close())
    parts = (part for result in results for part in result.ids)
    ids = write_task_ids(job, task, parts) if job.judges else []
    return TaskResult(reports=reports, ids=ids)


def read_again(
    job: StageJob, split: Split, *, skip: np.ndarray | None = None, write: Write = lambda _: None
) -> SplitResult:
    """Read a split for its report and the ids of its valid records. `write` takes these records.

    `skip`: offsets of records to leave out, in any order. Raises SourceError as `read_task` does.
    """
    return _SplitReader(job, split, skip=skip).run(write, lambda _: None)


def _read_small(
    job: StageJob, splits: list[Split], out: TaskFiles, spill: Spill | None
) -> list[SplitResult] | None:
    """Read small files together. Returns None if each must be read separately."""
    joined = read_together(job, splits)
    if joined is None:
        return None
    table, ids, reports = joined
    results, row = [], 0
    for split, report in zip(splits, reports, strict=True):
        rows = slice(row, row + report.counts.survivors)
        if spill is None:
            out.rows(output_columns(job, split, table[rows]))
            out.end_split()
        row = rows.stop
        parts = () if ids is None else (ids.only(rows),)
        results.append(SplitResult(report=report, ids=parts))
    if spill is not None:
        spill.write(table)
    return results


def judge_split(job: StageJob, split: Split) -> Iterator["RecordTally"]:
    """Count the valid and rejected records of a split, block by block, but write nothing.

    Raises SourceError as `read_task` does.
    """
    reader = _SplitReader(job, split)
    with fatal.noted(job, "sample", [split]):
        for block in reader.blocks():
            yield reader.tally_of(block)


def _read(job: StageJob, split: Split, out: TaskFiles, spill: Spill | None) -> SplitResult:
    write = spill.write if spill else lambda table: out.rows(output_columns(job, split, table))
    result = _SplitReader(job, split).run(write, out.letters)
    out.end_split()
    return result


@dataclass(frozen=True, kw_only=True)
class RecordTally:
    """The numbers of valid and rejected records, with a sample for each reason.

    `kept`: the valid ones. `ignored`: undeclared keys.
    """

    kept: int = 0
    bytes: int = 0
    quarantined_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    samples: dict[str, Sample] = field(default_factory=dict)
    ignored: Ignored = Ignored()

    def __add__(self, other: "RecordTally") -> "RecordTally":
        return RecordTally(
            kept=self.kept + other.kept,
            bytes=self.bytes + other.bytes,
            quarantined_bytes=self.quarantined_bytes + other.quarantined_bytes,
            reasons=self.reasons + other.reasons,
            samples=other.samples | self.samples,
            ignored=self.ignored + other.ignored,
        )

    @property
    def records(self) -> int:
        """The number of all records."""
        return self.kept + self.reasons.total()

    @property
    def late(self) -> int:
        """The number of records rejected as late, which is not the source's fault."""
        return self.reasons[Reason.late]

    @property
    def quarantined(self) -> int:
        """The count that limits.quarantine_ratio_max applies to."""
        return self.reasons.total() - self.late


def _invalid_survivor_error(job: StageJob, split: Split, block: Block) -> TerminalError:
    """The error for a survivor that is no longer a valid record, with its position and defect."""
    at = min(block.faults)
    reason, detail = block.faults[at]
    position = _position_text(job, split, int(block.lines.offsets[at]))
    quoted = f" ({printable(detail)})" if job.spec.limits.log_samples else ""
    why = (
        "Either the schema changed and no longer fits, or the file was edited in place. Restore "
        "the schema or the file"
    )
    if reason == Reason.sink_refuses:
        why = "The sink rejects it. Change the table, or sink"
    if reason == Reason.unknown_schema:
        why = "Register that schema again under its id (mode IMPORT), or restore the registry"
    return TerminalError(
        f"batch {job.batch_id} replays a record that is no longer valid: {position}: "
        f"{reason}{quoted}. The old output stays. {why}"
    )


def _position_text(job: StageJob, split: Split, offset: int) -> str:
    (line,) = job.source.line_numbers(split.claim, [offset], job.batch_id)
    return f"{split.claim.name!r} {wording.place(line, offset, job.spec.source.unit)}"


class _SplitReader:
    """One pass over a split. `skip`: offsets of records to leave out, besides the job's own."""

    def __init__(
        self, job: StageJob, split: Split, *, skip: np.ndarray | None = None
    ) -> None:
        self._job, self._split = job, split
        self._digest = xxhash.xxh3_128()
        self._lines_max = job.spec.limits.lines_per_record_max
        self._selection = job.selected.of(split, job.splits) if job.selected else None
        if skip is not None:
            self._selection = (self._selection or EVERYTHING).without(skip)
        self._ids: list[HashedIds] = []
        self._seen = Buckets() if job.spec.dedup.scope is RepeatScope.BUCKET else None

    def run(self, write: Write, letters: Write) -> SplitResult:
        """Stream valid records to `write`, and rejected ones to `letters`."""
        tally, left_out, times = RecordTally(), 0, None
        for block in self.blocks():
            left_out += len(block.left_out)
            times = together([times, times_of(self._job, block.table)])
            write(block.table)
            if block.faults:
                source = np.full(len(block.faults), self._split.claim.source_partition_id)
                letters(block.rejected().add_column(0, DEAD_LETTERS.field(0), pa.array(source)))
            tally += self.tally_of(block)
        counts = Counts(
            records_read=tally.records,
            survivors=tally.kept,
            quarantined=tally.quarantined,
            late=tally.late,
            bytes_read=self._job.bytes_of(self._split, tally.bytes),
        )
        records = tally.records + left_out
        self._digest.update(repr((self._split.start, self._split.end, records)).encode())
        report = SplitReport(
            split=self._split.number,
            digest=self._digest.hexdigest(),
            counts=counts,
            buckets=self._seen,
            times=times,
            parsed_bytes=tally.bytes,
            quarantined_bytes=tally.quarantined_bytes,
            reasons=dict(tally.reasons),
            samples=tally.samples,
            ignored=tally.ignored,
        )
        return SplitResult(report=report, ids=tuple(self._ids))

    def blocks(self) -> Iterator[Block]:
        """The blocks of the split, each with its valid records and the faults of rejected ones.

        Raises TerminalError if the job replays survivors, and a survivor is no longer valid.
        """
        job = self._job
        blocks = job.source.read(self._split, job.batch_id, self._digest, self._selection)
        if job.spec.aggregate is not None and not job.spec.transforms:
            blocks = map(self._reject_without_window, blocks)
        if job.selected is not None and not job.selected.judged:
            return map(self._check_survivors, blocks)
        if self._lines_max is not None and job.spec.source.csv.multiline:
            blocks = map(self._check_line_limit, blocks)
        return map(self._identify, map(self._reject_refused_by_sink, blocks))

    # Keeps S16.
    def _check_line_limit(self, block: Block) -> Block:
        """Raises LimitError if a record of the block spans too many lines."""
        lines, most = block.lines, self._lines_max
        ends = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == ord("\n"))
        spans = 1 + np.searchsorted(ends, lines.ends) - np.searchsorted(ends, lines.starts)
        for at in np.flatnonzero(spans > most)[:1].tolist():
            position = _position_text(self._job, self._split, int(lines.offsets[at]))
            raise LimitError(
                f"batch {self._job.batch_id}: {position}: the record spans "
                f"{spans[at]:,} lines, more than limits.lines_per_record_max {most} allows. "
                "Nothing was committed. Close the record's quote, or raise the limit",
                next=ANEW,
            )
        return block

    # Keeps RP3.
    def _check_survivors(self, block: Block) -> Block:
        """Raises TerminalError if an earlier survivor in the block is no longer valid."""
        block = self._reject_refused_by_sink(block)
        if block.faults:
            raise _invalid_survivor_error(self._job, self._split, block)
        return block

    def tally_of(self, block: Block) -> RecordTally:
        """Count the outcomes of a block's records."""
        reasons = Counter(str(reason) for reason, _ in block.faults.values())
        firsts = {str(block.faults[at][0]): at for at in sorted(block.faults, reverse=True)}
        # An unclosed quote joins many records into one bad record, so count its bytes, too.
        bad = [at for at, (reason, _) in block.faults.items() if reason != Reason.late]
        return RecordTally(
            kept=block.table.num_rows,
            bytes=block.bytes_read,
            quarantined_bytes=int(block.lines.lengths[bad].sum()),
            reasons=reasons,
            samples={reason: self._sample(block, at) for reason, at in firsts.items()},
            ignored=block.ignored,
        )

    def _sample(self, block: Block, at: int) -> Sample:
        lines = block.lines
        sample = Sample(split=self._split.number, offset=int(lines.offsets[at]))
        if not self._job.spec.limits.log_samples:
            return sample
        text = words.record_excerpt(lines.beginning(at, RECORD_SHOWN_BYTES))
        return replace(sample, detail=printable(block.faults[at][1]), text=text)

    # Keeps AG1.
    def _reject_without_window(self, block: Block) -> Block:
        """Reject records without a window. With transforms, `write_rows` raises instead."""
        name = self._job.spec.record_time
        bad, why = timeless(block.table.column(name))
        if not len(bad):
            return block
        offsets = block.table.column(OFFSET).to_numpy()[bad]
        return block.without(offsets, [(reason, f"{name}: {reason.says}") for reason in why])

    # Keeps S27.
    def _reject_refused_by_sink(self, block: Block) -> Block:
        """Reject records that the sink will refuse. With transforms, `write_rows` raises."""
        if not self._job.may_refuse or self._job.spec.transforms or not block.table.num_rows:
            return block
        faults: dict[int, Fault] = {}
        offsets = block.table.column(OFFSET).to_numpy()
        for refused in self._job.refused(output_columns(self._job, self._split, block.table)):
            why = Reason.sink_refuses, f"{refused.reason}: {refused.detail}"
            for offset in offsets[refused.rows].tolist():
                faults.setdefault(offset, why)
        if not faults:
            return block
        bad = sorted(faults)
        return block.without(np.array(bad), [faults[offset] for offset in bad])

    def _identify(self, block: Block) -> Block:
        """Hash the ids of a block, and reject its rows that lack an id or that `_buckets` marks."""
        spec, table = self._job.spec, block.table
        if spec.by_position or not table.num_rows:
            return block
        reason = np.zeros(table.num_rows, np.uint8)
        buckets = None
        if spec.dedup.scope is RepeatScope.BUCKET:
            buckets = self._buckets(table, reason)
        hashed = hash_ids(table, spec.record_id, shards=self._job.shards, bucket=buckets)
        # Keeps S7.
        reason[~hashed.valid] = ID_MISSING
        good = reason == 0
        if not good.all():
            offsets = table.column(OFFSET).to_numpy()[~good]
            faults = self._faults(table.filter(pa.array(~good)), reason[~good])
            block = block.without(offsets, faults)
            hashed = hashed.only(good)
            buckets = buckets[good] if buckets is not None else None
        if buckets is not None:
            self._seen = self._seen | Buckets.of(buckets)
        self._ids.append(hashed)
        return block

    def _faults(self, table: pa.Table, reason: np.ndarray) -> list[Fault]:
        """The reason for each rejected row, and a text that names the column at fault."""
        spec = self._job.spec
        columns = np.full(len(reason), spec.record_time or "", object)
        for name in reversed(spec.record_id or ()):
            columns[(reason == ID_MISSING) & table.column(name).is_null().to_numpy()] = name
        reasons = (REASONS[code] for code in reason.tolist())
        return [(why, f"{name}: {why.says}") for name, why in zip(columns, reasons, strict=True)]

    def _buckets(self, table: pa.Table, reason: np.ndarray) -> np.ndarray:
        """The bucket of each row, by record time.

        Writes a code into `reason` for each row that is late, too far ahead, or without a time.
        """
        job = self._job
        time = table.column(job.spec.record_time)
        seconds = seconds_of(time)
        buckets = np.floor_divide(seconds, job.bucket_seconds)
        quarantines = job.spec.dedup.late is Late.QUARANTINE
        if quarantines and job.forgotten.overlaps(Buckets.of(buckets)):
            reason[job.forgotten.has(buckets)] = LATE
        reason[seconds > job.now_seconds + RECORD_TIME_AHEAD_SECONDS] = TIME_AHEAD
        reason[time.is_null().to_numpy()] = TIME_MISSING
        return buckets
