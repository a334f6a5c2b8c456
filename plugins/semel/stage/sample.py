"""sample: prove from a sample that a batch is too bad, before any task starts.

The driver calls it once per attempt, before the job. It reads the first bytes of a few splits. If
these exceed limits.quarantine_ratio_max, it tries to prove it for the batch. A batch has at most as
many records as line ends, plus one for each claim that does not end with one. A record that is bad
in the sample is bad in the batch. So once there are too many bad records for this largest possible
number of records, the full count cannot differ. Without a proof within its bounds, the job reads
the batch, and the full count decides.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial, reduce

from semel.errors import LimitError
from semel.model.split import Split, Splits
from semel.stage.account import samples_of, too_many
from semel.stage.job import StageJob
from semel.stage.read import RecordTally, judge_split

SAMPLED_BATCH_BYTES_MIN = 4 << 20
"""Smaller batches are read without a sample."""

SAMPLE_SPLITS = 4
"""Splits whose first bytes are judged before a batch's job starts: some milliseconds."""

SAMPLE_BYTES = 64 << 10
"""Bytes to judge in each such split."""

LINES_COUNTED_AT_ONCE = 4
"""Splits whose line ends are counted in parallel, if the sample is bad."""


def check_sample(job: StageJob) -> None:
    """Raises LimitError if the batch has certainly more bad records than declared.

    Raises SourceError if a file has changed since the plan.
    """
    ratio_max = job.spec.limits.quarantine_ratio_max
    total = sum(split.end - split.start for split in job.splits)
    if ratio_max >= 1 or total < SAMPLED_BATCH_BYTES_MIN:
        return
    # 1. Judge a few parts of the batch, to find out whether a proof is likely.
    sample = reduce(RecordTally.__add__, map(partial(_first, job), _spread(job.splits)))
    if sample.quarantined <= ratio_max * sample.records:
        return
    # 2. Bound the number of records.
    records_max = _records_max(job)
    if records_max is None:
        return
    # 3. Count bad records until there are too many. If all are bad, that takes the allowed share.
    counted, bytes_left = RecordTally(), 2 * ratio_max * total + SAMPLED_BATCH_BYTES_MIN
    for split in job.splits:
        for tally in judge_split(job, split):
            counted += tally
            # Keeps S21.
            if counted.quarantined > ratio_max * records_max:
                raise _refusal(job, counted, records_max)
        bytes_left -= split.end - split.start
        if bytes_left < 0:
            return


def _spread(splits: Splits) -> list[Split]:
    """A few splits, spread from the first to the last."""
    count = min(SAMPLE_SPLITS, len(splits))
    return [splits[at * (len(splits) - 1) // max(1, count - 1)] for at in range(count)]


def _first(job: StageJob, split: Split) -> RecordTally:
    """Judge a split's first records."""
    head = replace(split, end=min(split.end, split.start + SAMPLE_BYTES))
    with closing(judge_split(job, head)) as tallies:
        return next(tallies, RecordTally())


def _records_max(job: StageJob) -> int | None:
    """An upper bound for the number of records. Returns None if counting takes too long."""
    with ThreadPoolExecutor(LINES_COUNTED_AT_ONCE) as pool:
        counts = list(pool.map(lambda s: job.source.records_max(s, job.batch_id), job.splits))
    return None if None in counts else sum(counts)


def _refusal(job: StageJob, tally: RecordTally, records_max: int) -> LimitError:
    least = f"of at most {records_max:,} records at least {tally.quarantined:,}"
    samples = [*samples_of(job, tally.reasons, tally.samples), "The others were not read."]
    return too_many(job, f"{least} would be quarantined", samples)
