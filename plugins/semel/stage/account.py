"""Summarizes a job's reports: why records were set aside, and the digest of the input."""

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
    """Why records were set aside: the count of each reason, and lines that show one record each."""

    reasons: dict[str, int]
    samples: tuple[str, ...] = ()


# Keeps S20, AG2.
def sum_up(job: StageJob, outcome: Outcome) -> tuple[list[StagedFile], Counts]:
    """The files of a job, and its counts. Raises CorruptionError if rows do not match survivors."""
    staged = [f for report in outcome.reports for f in report.files] + list(outcome.files)
    counts = reduce(Counts.__add__, (r.counts for r in outcome.reports), Counts())
    data = [f for f in staged if f.kind is Kind.DATA]
    written = sum(f.records for f in data)
    stand_for = sum(f.records if f.stands_for is None else f.stands_for for f in data)
    if not job.spec.transforms and stand_for != counts.survivors:
        raise CorruptionError(
            f"batch {job.batch_id}, attempt {job.fence}: semel has a bug: it wrote rows for "
            f"{stand_for} of {counts.survivors} new records. Nothing was committed. Please report "
            "it with this task's log"
        )
    return staged, replace(counts, rows_written=written)


def duplicates_spread(job: StageJob, reports: list[SplitReport]) -> float:
    """The share of a job's tasks that dropped duplicates."""
    tasks = {job.splits.task_of(r.split) for r in reports if r.counts.duplicates}
    return len(tasks) / max(job.tasks, 1)


def set_aside(job: StageJob, reports: list[SplitReport], counts: Counts) -> SetAside:
    """Why records were set aside. Raises LimitError if too many are quarantined, or late."""
    reasons: Counter[str] = Counter()
    samples: dict[str, Sample] = {}
    for report in reports:
        reasons.update(report.reasons)
        samples = report.samples | samples
    summary = SetAside(reasons=dict(reasons), samples=tuple(samples_of(job, reasons, samples)))
    # Keeps S16.
    if counts.quarantined > job.spec.limits.quarantine_ratio_max * counts.records_read:
        share = f"{counts.quarantined:,} of {counts.records_read:,} records"
        raise too_many(job, f"{share} would be quarantined", summary.samples)
    read = sum(report.parsed_bytes for report in reports)
    bad = sum(report.quarantined_bytes for report in reports)
    if job.spec.source.csv.multiline and bad > job.spec.limits.quarantine_ratio_max * read:
        share = f"{wording.size(bad)} of {wording.size(read)}"
        raise too_many(job, f"{share} would be quarantined", summary.samples)
    # Keeps S28.
    if counts.late > job.spec.limits.late_ratio_max * counts.records_read:
        raise _too_late(job, counts, summary.samples)
    return summary


def too_many(job: StageJob, fact: str, samples: Iterable[str]) -> LimitError:
    """The error to raise: the fact, one record for each reason, and what to do."""
    limit = f"limits.quarantine_ratio_max {job.spec.limits.quarantine_ratio_max}"
    lines = [f"batch {job.batch_id}: {fact}, more than {limit} allows"]
    lines += samples
    lines += [
        "Nothing was committed. Correct the file, or the pipeline's YAML (its schema, or",
        "limits.quarantine_ratio_max). Then clear the whole run, or repeat",
        f"`semel run {job.spec.name}`: it plans the batch again",
    ]
    return LimitError("\n".join(lines), next=ANEW)


def _too_late(job: StageJob, counts: Counts, samples: Iterable[str]) -> LimitError:
    share = f"{counts.late:,} of {counts.records_read:,} records are late"
    limit = f"limits.late_ratio_max {job.spec.limits.late_ratio_max}"
    lines = [f"batch {job.batch_id}: {share}, more than {limit} allows"]
    lines += samples
    lines += [
        f"semel has forgotten the ids of their times ({job.spec.record_time}) after dedup.horizon,",
        "so it cannot find repeats among these records. Nothing was committed. Declare in the",
        "pipeline's YAML `dedup.late: accept` to take them all as new, or",
        "`limits.late_ratio_max: 1.0` to make them dead letters. Then clear the whole run,",
        f"or repeat `semel run {job.spec.name}`: it plans the batch again",
    ]
    return LimitError("\n".join(lines), next=ANEW)


def samples_of(
    job: StageJob, reasons: Mapping[str, int], samples: Mapping[str, Sample]
) -> Iterator[str]:
    """Lines with one record for each reason: the count, its position, its defect, and its text."""
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
    """The undeclared keys. Numbers replace their names if limits.log_samples is false."""
    ignored = reduce(Ignored.__add__, (report.ignored for report in reports), Ignored())
    if spec.limits.log_samples:
        return ignored
    return replace(ignored, keys={f"key {n}": c for n, c in enumerate(ignored.keys.values(), 1)})


def input_digest(job: StageJob, reports: list[SplitReport]) -> str:
    """A digest of the input: ranges, bytes, and the numbers of good and bad records."""
    state = xxhash.xxh3_128()
    for split, report in zip(job.splits, reports, strict=True):
        claim = split.claim
        # Reasons such as late or refused by the sink depend on the time of the attempt.
        bad = {k: v for k, v in report.reasons.items() if not Reason(k).varies}
        part = (claim.source_partition_id, split.start, split.end, report.digest, bad)
        state.update(json.dumps(part, sort_keys=True).encode())
    return state.hexdigest()
