"""The effects of the decisions: partitions to close, retire, rename and begin. Changes nothing."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from semel.declare.context import Context
from semel.sources import LostRange, MatchResult, Partition, Refusal, Window
from semel.sources.files.content import is_gzip
from semel.sources.files.facts import FileFacts, Knowledge, PartitionPlace, RecognisedFiles
from semel.sources.files.gather import gather
from semel.sources.files.listing import FileListing
from semel.sources.files.offers import judge_files, offer_of
from semel.sources.files.recognise import FileDecision, InodeMatch, Match
from semel.sources.files.refusals import still_a_copy


def match(
    context: Context, listing: FileListing, knowledge: Knowledge, window: Window
) -> MatchResult:
    """As `Source.match`."""
    recognised = gather(context, listing, knowledge, window)
    doubtful = {refusal.name for refusal in knowledge.refused}
    offers, refused = judge_files(context, recognised, window, doubtful)
    going_on = {offer.partition.source_partition_id for offer in offers if offer.partition}
    lost, retired = _closed_and_retired(recognised, going_on)
    facts = recognised.facts
    return MatchResult(
        offers=list(offers),
        refusals=[*refused, *_repeated_refusals(context, knowledge, listing, recognised)],
        lost_ranges=lost,
        retired_ids=retired,
        renamed_partitions=list(_renamed(recognised, going_on)),
        new_partition_offers=[
            offer_of(f.opened_file, None) for f in facts.values() if _starts_again(f)
        ],
        resumed_names=tuple(
            (path, f.content_partition.path)
            for path, f in facts.items()
            if f.decision is FileDecision.TAKE_UP and f.content_partition.reached
        ),
    )


def _closed_and_retired(
    recognised: RecognisedFiles, going_on: Collection[int]
) -> tuple[list[LostRange], list[int]]:
    """The partitions to close; and those to retire, because a new one contains them entirely."""
    facts = recognised.facts.values()
    cut = [f.inode_partition for f in facts if f.was_cut]
    closed = [LostRange(partition=partition, seen=partition.seen) for partition in cut]
    for item in recognised.unlisted:
        if item.place in (PartitionPlace.MISSING, PartitionPlace.ELSEWHERE):
            partition = item.partition
            # Only a plan that unpacks a gzip file knows its length.
            unread = item.size is None or is_gzip(item.path)
            end = max(partition.reached, partition.seen if unread else item.size)
            closed.append(LostRange(partition=partition, seen=end, content_holder=item.path))
    new = [f for f in facts if f.decision is FileDecision.NEW and f.content_match is Match.WEAK]
    retired = dict.fromkeys(k.source_partition_id for f in new for k in f.superseded)
    retired = [partition for partition in retired if partition not in going_on]
    continued = {*going_on, *retired}
    lost = [item for item in closed if item.partition.source_partition_id not in continued]
    return lost, retired


def _renamed(recognised: RecognisedFiles, going_on: Collection[int]) -> Iterator[Partition]:
    """Partitions under new names, whose files are refused for another reason."""
    for facts in recognised.facts.values():
        partition, path = facts.inode_partition, facts.path
        if partition is None or partition.source_partition_id in going_on or facts.was_cut:
            continue
        # While the decision is UNSURE, the path is not free yet.
        if facts.decision is not FileDecision.UNSURE and path != partition.path:
            yield replace(partition, name=path)


def _starts_again(facts: FileFacts) -> bool:
    """Whether a file was truncated, so that its inode begins a new partition."""
    new = facts.inode_match is InodeMatch.CUT and facts.decision is FileDecision.NEW
    return new and facts.opened_file.content is not None


def _repeated_refusals(
    context: Context, knowledge: Knowledge, listing: FileListing, recognised: RecognisedFiles
) -> list[Refusal]:
    """Earlier refusals of files in other intervals that this plan did not open."""
    handled = {*recognised.facts, *recognised.hard_links, *(r.name for r in listing.refusals)}
    stored = {r.name: r for r in knowledge.refused}
    copies = knowledge.copies
    refusals = []
    for file in knowledge.unsettled:
        if file.path in handled:
            continue
        if file.path in stored:
            refusals.append(replace(stored[file.path], when=file.when))
        elif (file.inode, file.size) in copies:  # It was renamed.
            refusals.append(still_a_copy(context, file, copies[file.inode, file.size]))
    return refusals
