"""Reads many small files together, with one parse and one round of hashing.

Per file, these would take longer than its few records. The result equals that of `semel.stage.read`
for each split, including the digest. If any record is bad, each split is read separately.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import xxhash

from semel import limits
from semel.catalog.ids import HashedIds, hash_ids
from semel.declare.parts import RepeatScope
from semel.formats import declared as formats
from semel.formats.records import OFFSET, read_split
from semel.formats.selection import Selection
from semel.model.batch import Counts, Ignored
from semel.model.manifest import SplitReport
from semel.model.split import Split
from semel.stage.combine import timeless
from semel.stage.event_time import times_of
from semel.stage.job import StageJob, output_columns

SMALL_SPLIT_BYTES = 64 << 10
"""Smaller files are read together: opening a parser takes as long as parsing 100 kB (1 ms)."""

Together = tuple[pa.Table, HashedIds | None, list[SplitReport]]
"""The valid records of all splits, in the order of splits, with their ids (None by position); then
each split's report. The first report counts undeclared keys for all."""


def small_groups(job: StageJob, splits: Sequence[Split]) -> Iterator[list[Split]]:
    """Group a task's splits, in order, so that each group may be read together."""
    group: list[Split] = []
    group_bytes = 0
    for split in splits:
        size = split.end - split.start
        small = _may_join(job, split) and group_bytes + size <= limits.BLOCK_BYTES
        if group and not small:
            yield group
            group, group_bytes = [], 0
        group.append(split)
        group_bytes += size if _may_join(job, split) else limits.BLOCK_BYTES
    if group:
        yield group


def _may_join(job: StageJob, split: Split) -> bool:
    """Whether a split is a whole, small claim whose lines are independent."""
    claim = split.claim
    return (
        job.source.can_join(claim)
        and job.spec.dedup.scope is RepeatScope.HORIZON
        and (split.start, split.end) == (claim.start, claim.end)
        and split.end - split.start <= SMALL_SPLIT_BYTES
    )


def read_together(job: StageJob, splits: list[Split]) -> Together | None:
    """Read the splits of one group. Returns None if each must be read separately.

    Raises SourceError if a file has changed since the plan.
    """
    texts = []
    for split in splits:
        texts.append(job.source.read_text(split, job.batch_id))
        if len(texts[-1]) < split.end - split.start:
            return None
    # An empty line separates each file from the previous one.
    sizes = [1 + len(text) for text in texts]
    begins = np.cumsum([1, *sizes[:-1]])
    selection = None
    if job.selected is not None:
        chosen = [
            job.selected.of(split, job.splits).offsets - split.start + begin
            for split, begin in zip(splits, begins, strict=True)
        ]
        selection = Selection(offsets=np.concatenate(chosen), only=job.selected.only)
    parsed = _parsed(job, b"\n" + b"\n".join(texts), selection)
    if parsed is None:
        return None
    table, left_out, ignored = parsed
    at = table.column(OFFSET).to_numpy()
    owner = np.searchsorted(begins, at, side="right") - 1
    starts = np.array([split.start for split in splits], np.int64)
    offsets = pa.array(at - begins[owner] + starts[owner], pa.int64())
    index = table.schema.get_field_index(OFFSET)
    table = table.set_column(index, table.schema.field(index), offsets)
    ends = np.searchsorted(owner, np.arange(len(splits) + 1))
    records = np.diff(ends) + np.diff(np.searchsorted(left_out, [*begins, 1 + sum(sizes)]))
    if not job.spec.transforms:
        if job.spec.aggregate and len(timeless(table.column(job.spec.record_time))[0]):
            return None
        if job.refused(output_columns(job, splits[0], table)):
            return None
    ids = None
    if job.judges:
        ids = hash_ids(table, job.spec.record_id, shards=job.shards)
        if not ids.valid.all():
            return None
    reports: list[SplitReport] = []
    for split, text, read, start, end in zip(
        splits, texts, records.tolist(), ends[:-1], ends[1:], strict=True
    ):
        report = _report(job, split, text, read, int(end - start))
        times = times_of(job, table.slice(start, end - start))
        reports.append(replace(report, ignored=Ignored() if reports else ignored, times=times))
    return table, ids, reports


def _parsed(
    job: StageJob, data: bytes, selection: Selection | None
) -> tuple[pa.Table, np.ndarray, Ignored] | None:
    """The records of some lines, the offsets left out, and ignored keys. Returns None if a record
    is bad.
    """
    schema = job.spec.arrow_schema()
    blocks = read_split(
        io.BytesIO(data), start=0, end=None, range_start=0, range_end=None, schema=schema,
        format=formats.format_of(job.spec.of_source()), digest=xxhash.xxh3_128(),
        exact=job.spec.record_id, selection=selection,
    )  # fmt: skip
    tables, left_out, ignored = [], [], Ignored()
    for block in blocks:
        if block.faults:
            return None
        tables.append(block.table)
        left_out.append(block.left_out)
        ignored += block.ignored
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(left_out), ignored


def _report(
    job: StageJob, split: Split, text: bytes, records: int, survivors: int
) -> SplitReport:
    """The report of a split with so many `records` and `survivors`."""
    digest = xxhash.xxh3_128(text)
    digest.update(repr((split.start, split.end, records)).encode())
    return SplitReport(
        split=split.number,
        digest=digest.hexdigest(),
        counts=Counts(
            records_read=survivors, survivors=survivors, bytes_read=job.bytes_of(split)
        ),
        parsed_bytes=len(text),
    )
