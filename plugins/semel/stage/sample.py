"""sample: whether a batch is surely too bad, told from a part of it, before any task is started.

Called in the driver, once for each attempt, before the job. It reads the first bytes of a few
splits. Only where these break limits.quarantine_ratio_max does it go on, to a proof: no batch has
more records than it has line ends, and one for each claim that ends without; and what was judged
bad once is bad when all is read. So when the bad records that were found are more than the limit
allows of that many, no count of the whole can come to another answer. Where the proof is not had
within its bounds, the job reads the batch, and the full count decides.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial, reduce

from semel.errors import LimitError
from semel.model.split import Split, Splits
from semel.stage.account import samples_of, too_many
from semel.stage.job import StageJob
from semel.stage.read import Tally, judge_split

SAMPLED_BATCH_BYTES_MIN = 4 << 20
"""Bytes of a batch from which on a part of it is judged before the whole: less is read at once."""

SAMPLE_SPLITS = 4
"""Splits of a batch whose first bytes are judged before its job starts: some milliseconds."""

SAMPLE_BYTES = 64 << 10
"""Bytes of each of them."""

LINES_COUNTED_AT_ONCE = 4
"""Splits whose line ends are counted at once, where a batch seems to be bad all through."""


def check_sample(job: StageJob) -> None:
    """LimitError when more of the batch's records than declared are surely bad.

    SourceError: a file is no longer what was planned.
    """
    ratio_max = job.spec.limits.quarantine_ratio_max
    total = sum(split.end - split.start for split in job.splits)
    if ratio_max >= 1 or total < SAMPLED_BATCH_BYTES_MIN:
        return
    # 1. A few parts of the batch, which say nothing more than whether it is worth to go on.
    seen = reduce(Tally.__add__, map(partial(_first, job), _spread(job.splits)))
    if seen.quarantined <= ratio_max * seen.records:
        return
    # 2. How many records there are at most.
    records_max = _records_max(job)
    if records_max is None:
        return
    # 3. Bad records, until there are too many. Where all are bad, that is the allowed share.
    found, left = Tally(), 2 * ratio_max * total + SAMPLED_BATCH_BYTES_MIN
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
    """Some of the splits, from the first to the last."""
    count = min(SAMPLE_SPLITS, len(splits))
    return [splits[at * (len(splits) - 1) // max(1, count - 1)] for at in range(count)]


def _first(job: StageJob, split: Split) -> Tally:
    """A split's first records."""
    head = replace(split, end=min(split.end, split.start + SAMPLE_BYTES))
    with closing(judge_split(job, head)) as tallies:
        return next(tallies, Tally())


def _records_max(job: StageJob) -> int | None:
    """A number that their records cannot be more than; None where that takes too long."""
    with ThreadPoolExecutor(LINES_COUNTED_AT_ONCE) as pool:
        counts = list(pool.map(lambda s: job.source.records_max(s, job.batch_id), job.splits))
    return None if None in counts else sum(counts)


def _refusal(job: StageJob, found: Tally, records_max: int) -> LimitError:
    least = f"of at most {records_max:,} records at least {found.quarantined:,}"
    samples = [*samples_of(job, found.reasons, found.samples), "The others were not read."]
    return too_many(job, f"{least} would be quarantined", samples)
