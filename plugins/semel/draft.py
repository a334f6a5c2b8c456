"""cut, the second step of plan: what follows from what was found. Changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from semel.sources.cut import cut_ranges
from semel.sources.evidence import Partition
from semel.sources.facts import Facts, in_window
from semel.sources.files import Refusal
from semel.sources.recognise import Answer, Own
from semel.sources.wanted import NOTHING_READ, Evidence, Range, Wanted, as_read
from semel.spec.parts import OnRefused
from semel.survey import Found, Request


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The ranges of a batch, and what changes of source partitions.

    `failing`: the refused files for which nothing is taken. `updates` are known partitions as they
    are from now on; `made` are files that get a new one, with what is taken of each.
    """

    failing: list[Refusal]
    ranges: list[Range]
    bytes_left: int
    updates: list[Partition]
    made: list[tuple[Wanted, Evidence]]


def cut(request: Request, found: Found) -> Draft:
    """Cut a batch out of what is free. FileNotFoundError: look again; LimitError: too much."""
    spec = request.spec
    failing = _failing(request, found)
    ranges, left = ([], 0) if failing else cut_ranges(spec, found.wanted, found.free)
    return Draft(
        failing=failing,
        ranges=ranges,
        bytes_left=left,
        updates=list(_updates(found, ranges)),
        made=list(_made(found, ranges)),
    )


def _failing(request: Request, found: Found) -> list[Refusal]:
    """The refusals for which the plan fails: those of its interval, or of an unknown time."""
    # Keeps P10.
    if request.spec.source.on_refused_or_default is OnRefused.WARN:
        return []
    return [r for r in found.refusals if r.when is None or in_window(r.when, request.window)]


def _updates(found: Found, ranges: list[Range]) -> Iterator[Partition]:
    """The known partitions of which the ledger has to know something else."""
    last = {item.wanted.file.path: item for item in ranges}  # The last range of each file.
    going_on = {item.known.source_partition_id for item in found.wanted if item.known}
    for item in found.wanted:
        if item.known is None:
            continue
        # A hole is for a later plan, which has to look again, whatever the file's stat says.
        settled = item.known.source_partition_id not in found.holes
        new = as_read(item, last.get(item.file.path), settled=settled)
        if new != item.known:
            yield new
    for facts in found.recognised.facts.values():
        known, path = facts.known, facts.seen.file.path
        if known is None or known.source_partition_id in going_on or facts.was_cut:
            continue
        # While it is unsure, the path is not free yet.
        if facts.answer is not Answer.UNSURE and path != known.path:
            yield replace(known, path=path)  # It was renamed, and refused for something else.


def _made(found: Found, ranges: list[Range]) -> Iterator[tuple[Wanted, Evidence]]:
    """The files that get a new partition: of which something is taken, or that were cut."""
    new = {r.wanted.file.path: (r.wanted, r.evidence) for r in ranges if r.wanted.known is None}
    yield from new.values()
    for facts in found.recognised.facts.values():
        if _is_empty_anew(facts) and facts.seen.file.path not in new:
            seen = facts.seen
            begun = Wanted(
                file=seen.file, birth_ns=seen.birth_ns, content=seen.content, known=None, end=0
            )
            yield begun, NOTHING_READ


def _is_empty_anew(facts: Facts) -> bool:
    """Whether a file was cut, so that its inode has a new life."""
    new = facts.own is Own.CUT and facts.answer is Answer.NEW
    return new and facts.seen.content is not None
