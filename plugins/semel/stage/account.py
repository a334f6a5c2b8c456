"""Summarize a job's reports: why records were set aside, and the digest of what was read."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import xxhash

from semel.declare import wording
from semel.errors import ANEW, CorruptionError, LimitError
from semel.model.batch import Counts, Ignored
from semel.model.manifest import Kind, Sample, SplitReport, StagedFile
from semel.model.reasons import Reason
from semel.pipeline.spec import Spec
from semel.stage.job import Outcome, StageJob


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """Why records were set aside: the count per reason, and lines that show a record for each."""

    reasons: dict[str, int]
    samples: tuple[str, ...] = ()


# Keeps S20, AG2.
def added_up(job: StageJob, outcome: Outcome) -> tuple[list[StagedFile], Counts]:
    """The files of a job, and its account. CorruptionError: not as many rows as survivors."""
    staged = [f for report in outcome.reports for f in report.files] + list(outcome.files)
    counts = reduce(Counts.__add__, (r.counts for r in outcome.reports), Counts())
    data = [f for f in staged if f.kind is Kind.DATA]
    written = sum(f.records for f in data)
    stand_for = sum(f.records if f.stands_for is None else f.stands_for for f in data)
    if not job.spec.transforms and stand_for != counts.survivors:
        raise CorruptionError(
            f"batch {job.batch_id}, attempt {job.fence}: {counts.survivors} records are new and "
            f"the rows that were written are of {stand_for}; this is a defect of semel, nothing was "
            "committed"
        )
    return staged, replace(counts, rows_written=written)


def set_aside(job: StageJob, reports: list[SplitReport], counts: Counts) -> SetAside:
    """Why records were set aside. LimitError: too large a share is quarantined, or late."""
    reasons: Counter[str] = Counter()
    samples: dict[str, Sample] = {}
    for report in reports:
        reasons.update(report.reasons)
        samples = report.samples | samples
    found = SetAside(reasons=dict(reasons), samples=tuple(samples_of(job, reasons, samples)))
    # Keeps S16.
    if counts.quarantined > job.spec.limits.quarantine_ratio_max * counts.records_read:
        share = f"{counts.quarantined:,} of {counts.records_read:,} records"
        raise too_many(job, f"{share} would be quarantined", found.samples)
    read = sum(report.parsed_bytes for report in reports)
    bad = sum(report.quarantined_bytes for report in reports)
    if job.spec.source.csv.multiline and bad > job.spec.limits.quarantine_ratio_max * read:
        share = f"{wording.size(bad)} of {wording.size(read)}"
        raise too_many(job, f"{share} would be quarantined", found.samples)
    # Keeps S28.
    if counts.late > job.spec.limits.late_ratio_max * counts.records_read:
        raise _too_late(job, counts, found.samples)
    return found


def too_many(job: StageJob, fact: str, samples: Iterable[str]) -> LimitError:
    """The error to raise: the fact, one record for each reason, and what to do."""
    limit = f"limits.quarantine_ratio_max {job.spec.limits.quarantine_ratio_max}"
    lines = [f"batch {job.batch_id}: {fact}, more than {limit} allows"]
    lines += samples
    lines += [
        "No reader sees any of it. Correct the file, or the pipeline's YAML (its schema, or",
        "limits.quarantine_ratio_max): the batch is planned anew when the whole run is cleared, or",
        f"`semel run {job.spec.name}` is repeated",
    ]
    return LimitError("\n".join(lines), next=ANEW)


def _too_late(job: StageJob, counts: Counts, samples: Iterable[str]) -> LimitError:
    share = f"{counts.late:,} of {counts.records_read:,} records are late"
    limit = f"limits.late_ratio_max {job.spec.limits.late_ratio_max}"
    lines = [f"batch {job.batch_id}: {share}, more than {limit} allows"]
    lines += samples
    lines += [
        f"The ids of their buckets of {job.spec.record_time} were forgotten, a dedup.horizon after",
        "their commit: nobody can tell which of these are repeats. In the pipeline's YAML",
        "`dedup.late: accept` takes them all as new, and `limits.late_ratio_max: 1.0` sets them aside",
        "as dead letters: the batch is planned anew when the whole run is cleared, or",
        f"`semel run {job.spec.name}` is repeated",
    ]
    return LimitError("\n".join(lines), next=ANEW)


def samples_of(
    job: StageJob, reasons: Mapping[str, int], samples: Mapping[str, Sample]
) -> Iterator[str]:
    """One record for each reason, as lines: how many, where, what is wrong, and its text."""
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        sample = samples[reason]
        claim = job.splits[sample.split].claim
        (line,) = job.source.line_numbers(claim, [sample.offset], job.batch_id)
        first = "" if count == 1 else ", one of them"
        where = wording.place(line, sample.offset, job.spec.source.unit)
        yield f"{reason} {count:,}{first}: {claim.name!r} {where}"
        if sample.text:
            yield f"    {sample.detail}"
            yield f"    {sample.text}"


def ignored_of(spec: Spec, reports: list[SplitReport]) -> Ignored:
    """The keys that nobody declared. They lose their names where texts of records are withheld."""
    found = reduce(Ignored.__add__, (report.ignored for report in reports), Ignored())
    if spec.limits.log_samples:
        return found
    return replace(found, keys={f"key {n}": c for n, c in enumerate(found.keys.values(), 1)})


def input_digest(job: StageJob, reports: list[SplitReport]) -> str:
    """A digest of what was read: ranges, bytes, and the numbers of good and bad records."""
    found = xxhash.xxh3_128()
    for split, report in zip(job.splits, reports, strict=True):
        claim = split.claim
        # Whether a record is late or refused by a sink depends on when it is read.
        bad = {k: v for k, v in report.reasons.items() if not Reason(k).varies}
        part = (claim.source_partition_id, split.start, split.end, report.digest, bad)
        found.update(json.dumps(part, sort_keys=True).encode())
    return found.hexdigest()
