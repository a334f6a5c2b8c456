"""cut, the second step of plan: decide from the survey what to claim. Changes nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semel.declare.parts import OnRefused
from semel.errors import LimitError
from semel.plan.survey import Request, Survey
from semel.sources import (
    Offer,
    Partition,
    Refusal,
    RefusedError,
    TakenRange,
    in_window,
    partition_after,
    start_evidence,
    unclaimed_ranges,
)


@dataclass(frozen=True, kw_only=True)
class BatchDraft:
    """The ranges of a batch, and the changes to source partitions.

    `refused`: refusals beside those of the survey. `failing`: the refusals that make the plan fail;
    then `ranges` is empty. `remaining`: how much a later plan may take, in the source's unit.
    `updates`: known partitions in their new state. `new_partitions`: offers that get a new
    partition, with the last range taken from each.
    """

    refused: list[Refusal]
    failing: list[Refusal]
    ranges: list[TakenRange]
    remaining: int
    updates: list[Partition]
    new_partitions: list[tuple[Offer, TakenRange | None]]


def cut(request: Request, survey: Survey) -> BatchDraft:
    """Cut a batch from the free ranges. Raises FileNotFoundError if a part moved: survey again; and
    LimitError if an interval exceeds the limit.
    """
    failing = _failing(request, survey.refusals)
    ranges, remaining, refused = ([], 0, []) if failing else _ranges(request, survey)
    failing += _failing(request, refused)
    if failing:
        ranges, remaining = [], 0
    return BatchDraft(
        refused=refused,
        failing=failing,
        ranges=ranges,
        remaining=remaining,
        updates=list(_updates(survey, ranges)),
        new_partitions=list(_new_partitions(survey, ranges)),
    )


def _failing(request: Request, refused: Iterable[Refusal]) -> list[Refusal]:
    """The refusals that make the plan fail: those in its interval, or of unknown time."""
    # Keeps P10.
    if request.spec.source.on_refused_or_default is OnRefused.WARN:
        return []
    return [r for r in refused if r.when is None or in_window(r.when, request.window)]


def _ranges(request: Request, survey: Survey) -> tuple[list[TakenRange], int, list[Refusal]]:
    """The ranges to claim, oldest offer first; how much remains for a later plan; and the refusals.

    `select: arrival` takes up to limits.bytes_per_batch_max. `select: interval` takes everything,
    or raises LimitError.
    """
    spec, source = request.spec, survey.source
    offers = survey.matched.offers
    room = source.capacity(offers)
    spans = [(offer, *span) for offer in offers for span in unclaimed_ranges(offer, survey.free)]
    total = sum(end - start for _, start, end in spans)
    # Keeps P10.
    if spec.source.select == "interval" and total > room:
        raise LimitError(
            f"pipeline {spec.name}: the interval has {total} {spec.source.unit} in {len(spans)} "
            f"ranges, and {spec.source.limits} allows {room}. Nothing was planned. Raise the "
            "limit, or run shorter intervals"
        )
    ranges, used, refused = [], 0, {}
    for offer, start, end in spans:
        if offer.name in refused:
            continue
        stop = source.last_record_end(offer, start, end, room - used, first=not ranges)
        if stop > start:
            try:
                evidence = source.evidence(offer, stop)
            except RefusedError as error:
                refused[offer.name] = error.refusal
                continue
            ranges.append(
                TakenRange(
                    offer=offer, start=start, end=stop, evidence=evidence | start_evidence(offer)
                )
            )
            used += stop - start
        if stop < end:
            break
    return ranges, total - used, [*refused.values()]


def _updates(survey: Survey, ranges: list[TakenRange]) -> Iterator[Partition]:
    """The known partitions whose rows in the ledger must change."""
    last = {item.offer.name: item for item in ranges}  # The last range of each.
    for offer in survey.matched.offers:
        if offer.partition is None:
            continue
        # A later plan must open it again to fill a hole, even if its fingerprint is the same.
        settled = offer.partition.source_partition_id not in survey.holes
        new = partition_after(offer, last.get(offer.name), settled=settled)
        if new != offer.partition:
            yield new
    yield from survey.matched.renamed_partitions


def _new_partitions(
    survey: Survey, ranges: list[TakenRange]
) -> Iterator[tuple[Offer, TakenRange | None]]:
    """The offers that get a new partition: those with a range, and those that begin a new life."""
    new = {r.offer.name: r for r in ranges if r.offer.partition is None}
    for last in new.values():
        yield last.offer, last
    for begun in survey.matched.new_partition_offers:
        if begun.name not in new:
            yield begun, None
