"""What a job's reports come to: why records were set aside, and the digest of what was read."""

import json
from dataclasses import replace
from functools import reduce

import xxhash

from semel.batch import Batch, Counts, Ignored
from semel.errors import LimitError
from semel.manifest import SplitReport
from semel.spec.pipeline import Spec
from semel.steps.job import StageJob
from semel.steps.read import OUTSIDE_REASONS


def reasons_of(
    spec: Spec, batch: Batch, reports: list[SplitReport], counts: Counts
) -> tuple[dict[str, int], str | None]:
    """Why records were set aside. LimitError when it is a larger share than declared."""
    reasons: dict[str, int] = {}
    for report in reports:
        for reason, count in report.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    example = next((r.example for r in reports if r.example), None)
    ratio_max = spec.limits.quarantine_ratio_max
    # Keeps S16.
    if counts.quarantined > ratio_max * counts.records_read:
        raise LimitError(
            f"batch {batch.batch_id}: {counts.quarantined} of {counts.records_read} records would "
            f"be quarantined ({reasons}), more than limits.quarantine_ratio_max {ratio_max}; the "
            f"first: {example}. Mend the source or the schema, or raise the limit, then run stage "
            "again"
        )
    return reasons, example


def ignored_of(spec: Spec, reports: list[SplitReport]) -> Ignored:
    """The keys that nobody declared; without their names where no text of records is told."""
    found = reduce(Ignored.__add__, (report.ignored for report in reports), Ignored())
    if spec.limits.log_samples:
        return found
    return replace(found, keys={f"key {n}": c for n, c in enumerate(found.keys.values(), 1)})


def input_digest(job: StageJob, reports: list[SplitReport]) -> str:
    """A digest of what was read: ranges, bytes, and how many records were good and bad."""
    found = xxhash.xxh3_128()
    for split, report in zip(job.splits, reports, strict=True):
        claim = split.claim
        # What is late, or refused by a sink, depends on when it is read.
        bad = {k: v for k, v in report.reasons.items() if k not in OUTSIDE_REASONS}
        part = (claim.source_partition_id, split.start, split.end, report.digest, bad)
        found.update(json.dumps(part, sort_keys=True).encode())
    return found.hexdigest()
