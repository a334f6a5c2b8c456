"""sample: prove from a part of a batch that it is surely too bad, before any task starts.

Called in the driver, once per attempt, before the job. It reads the first bytes of a few splits. If
these break limits.quarantine_ratio_max, it goes on to a proof. A batch has at most as many records
as line ends, plus one for each claim that ends without; and a record judged bad stays bad when all
is read. So once the bad records found exceed the limit for that many records, no full count can
come to another answer. If the proof is not found within its bounds, the job reads the batch, and
the full count decides.
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
"""Batches of fewer bytes are read at once, without judging a part first."""

SAMPLE_SPLITS = 4
"""Splits whose first bytes are judged before a batch's job starts: some milliseconds."""

SAMPLE_BYTES = 64 << 10
"""Bytes judged in each of them."""

LINES_COUNTED_AT_ONCE = 4
"""Splits whose line ends are counted at once, if a batch seems bad throughout."""


def check_sample(job: StageJob) -> None:
    """LimitError: more of the batch's records than declared are surely bad.

    SourceError: a file is no longer what was planned.
    """
    ratio_max = job.spec.limits.quarantine_ratio_max
    total = sum(split.end - split.start for split in job.splits)
    if ratio_max >= 1 or total < SAMPLED_BATCH_BYTES_MIN:
        return
    # 1. Judge a few parts of the batch, only to see whether going on is worth it.
    seen = reduce(RecordTally.__add__, map(partial(_first, job), _spread(job.splits)))
    if seen.quarantined <= ratio_max * seen.records:
        return
    # 2. Bound the number of records.
    records_max = _records_max(job)
    if records_max is None:
        return
    # 3. Count bad records until there are too many. If all are bad, that is the allowed share.
    found, left = RecordTally(), 2 * ratio_max * total + SAMPLED_BATCH_BYTES_MIN
    for split in job.splits:
        for tally in judge_split(job, split):
            found += tally
            # Keeps S21.
            if found.quarantined > ratio_max * records_max:
                raise _refusal(job, found, records_max)
        left -= split.end - split.start
        if left < 0:
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
    """An upper bound for the number of records. None: finding one takes too long."""
    with ThreadPoolExecutor(LINES_COUNTED_AT_ONCE) as pool:
        counts = list(pool.map(lambda s: job.source.records_max(s, job.batch_id), job.splits))
    return None if None in counts else sum(counts)


def _refusal(job: StageJob, found: RecordTally, records_max: int) -> LimitError:
    least = f"of at most {records_max:,} records at least {found.quarantined:,}"
    samples = [*samples_of(job, found.reasons, found.samples), "The others were not read."]
    return too_many(job, f"{least} would be quarantined", samples)
