"""What follows from the answers: what is closed, retired, renamed, begun anew. Changes nothing."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from semel.declare.context import Context
from semel.sources import LostRange, MatchResult, Partition, Refusal, Window
from semel.sources.files.content import is_gzip
from semel.sources.files.facts import FileFacts, Knowledge, Recognised, Where
from semel.sources.files.gather import gather
from semel.sources.files.listing import FileListing
from semel.sources.files.offers import offer_of, want
from semel.sources.files.recognise import FileDecision, Match, InodeMatch
from semel.sources.files.refusals import still_a_copy


def match(context: Context, listing: FileListing, known: Knowledge, window: Window) -> MatchResult:
    """As `Source.match`."""
    recognised = gather(context, listing, known, window)
    doubtful = {refusal.name for refusal in known.refused}
    offers, refused = want(context, recognised, window, doubtful)
    going_on = {offer.partition.source_partition_id for offer in offers if offer.partition}
    gone, retired = _closing(recognised, going_on)
    facts = recognised.facts
    return MatchResult(
        offers=list(offers),
        refusals=[*refused, *_kept(context, known, listing, recognised)],
        lost_ranges=gone,
        retired_ids=retired,
        renamed_partitions=list(_renamed(recognised, going_on)),
        new_partition_offers=[offer_of(f.seen, None) for f in facts.values() if _is_empty_anew(f)],
        resumed_names=tuple(
            (path, found.matched.path)
            for path, found in facts.items()
            if found.answer is FileDecision.TAKE_UP and found.matched.reached
        ),
    )


def _closing(
    recognised: Recognised, going_on: Collection[int]
) -> tuple[list[LostRange], list[int]]:
    """The partitions that are closed now; and those that are retired, for a new one holds all of
    them.
    """
    facts = recognised.facts.values()
    closed = [LostRange(partition=f.known, seen=f.known.seen) for f in facts if f.was_cut]
    for item in recognised.lost:
        if item.where in (Where.GONE, Where.ELSEWHERE):
            known = item.partition
            # How long the content of a gzip file is, only a plan that reads it would know.
            unread = item.size is None or is_gzip(item.path)
            seen = max(known.reached, known.seen if unread else item.size)
            closed.append(LostRange(partition=known, seen=seen, content_holder=item.path))
    new = [f for f in facts if f.answer is FileDecision.NEW and f.match is Match.WEAK]
    retired = dict.fromkeys(k.source_partition_id for f in new for k in f.superseded)
    retired = [partition for partition in retired if partition not in going_on]
    over = {*going_on, *retired}
    return [gone for gone in closed if gone.partition.source_partition_id not in over], retired


def _renamed(recognised: Recognised, going_on: Collection[int]) -> Iterator[Partition]:
    """Files that were renamed, and refused for something else."""
    for facts in recognised.facts.values():
        known, path = facts.known, facts.seen.file.path
        if known is None or known.source_partition_id in going_on or facts.was_cut:
            continue
        # While it is unsure, the path is not free yet.
        if facts.answer is not FileDecision.UNSURE and path != known.path:
            yield replace(known, name=path)


def _is_empty_anew(facts: FileFacts) -> bool:
    """Whether a file was cut, so that its inode has a new life."""
    new = facts.own is InodeMatch.CUT and facts.answer is FileDecision.NEW
    return new and facts.seen.content is not None


def _kept(
    context: Context, known: Knowledge, listing: FileListing, recognised: Recognised
) -> list[Refusal]:
    """Refusals of files that are of another interval, and that nobody looked at now."""
    asked = {*recognised.facts, *recognised.linked, *(r.name for r in listing.refusals)}
    stored = {r.name: r for r in known.refused}
    copies = known.copies
    kept = []
    for file in known.unsettled:
        if file.path in asked:
            continue
        if file.path in stored:
            kept.append(replace(stored[file.path], when=file.when))
        elif (file.inode, file.size) in copies:  # It was renamed.
            kept.append(still_a_copy(context, file, copies[file.inode, file.size]))
    return kept
