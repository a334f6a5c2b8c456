"""Convert the decisions about files to offers, refusals, and partitions to close, retire or rename.

Writes nothing: plan applies the result.
"""

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
    refused_names = {refusal.name for refusal in knowledge.refused}
    offers, refusals = judge_files(context, recognised, window, refused_names)
    continued_ids = {offer.partition.source_partition_id for offer in offers if offer.partition}
    lost_ranges, retired_ids = _find_lost_and_retired(recognised, continued_ids)
    facts = recognised.facts
    return MatchResult(
        offers=list(offers),
        refusals=[*refusals, *_repeated_refusals(context, knowledge, listing, recognised)],
        lost_ranges=lost_ranges,
        retired_ids=retired_ids,
        renamed_partitions=list(_renamed_partitions(recognised, continued_ids)),
        new_partition_offers=[
            offer_of(f.opened_file, None) for f in facts.values() if _starts_partition(f)
        ],
        resumed_names=tuple(
            (path, f.content_partition.path)
            for path, f in facts.items()
            if f.decision is FileDecision.TAKE_UP and f.content_partition.reached
        ),
    )


def _find_lost_and_retired(
    recognised: RecognisedFiles, continued_ids: Collection[int]
) -> tuple[list[LostRange], list[int]]:
    """The partitions to close, and the ids of partitions to retire.

    A partition is retired if a new one contains it entirely, so that no record is lost.
    """
    facts = recognised.facts.values()
    cut_partitions = [f.inode_partition for f in facts if f.was_cut]
    lost_ranges = [LostRange(partition=cut, seen=cut.seen) for cut in cut_partitions]
    for unlisted in recognised.unlisted:
        if unlisted.place in (PartitionPlace.MISSING, PartitionPlace.ELSEWHERE):
            partition = unlisted.partition
            # Positions in a gzip file count its unpacked bytes, and this plan did not unpack it.
            is_length_unknown = unlisted.size is None or is_gzip(unlisted.path)
            end = max(partition.reached, partition.seen if is_length_unknown else unlisted.size)
            lost_ranges.append(
                LostRange(partition=partition, seen=end, content_holder=unlisted.path)
            )
    new = [f for f in facts if f.decision is FileDecision.NEW and f.content_match is Match.WEAK]
    contained_ids = dict.fromkeys(k.source_partition_id for f in new for k in f.superseded)
    retired_ids = [number for number in contained_ids if number not in continued_ids]
    accounted_ids = {*continued_ids, *retired_ids}
    lost = [k for k in lost_ranges if k.partition.source_partition_id not in accounted_ids]
    return lost, retired_ids


def _renamed_partitions(
    recognised: RecognisedFiles, continued_ids: Collection[int]
) -> Iterator[Partition]:
    """Partitions without an offer whose files have new names: each file is refused, or waits."""
    for facts in recognised.facts.values():
        partition, path = facts.inode_partition, facts.path
        if partition is None or partition.source_partition_id in continued_ids or facts.was_cut:
            continue
        # UNSURE: another partition may still have the path.
        if facts.decision is not FileDecision.UNSURE and path != partition.path:
            yield replace(partition, name=path)


def _starts_partition(facts: FileFacts) -> bool:
    """True if a file was truncated, and semel reads it from its start as a new partition."""
    new = facts.inode_match is InodeMatch.CUT and facts.decision is FileDecision.NEW
    return new and facts.opened_file.content is not None


def _repeated_refusals(
    context: Context, knowledge: Knowledge, listing: FileListing, recognised: RecognisedFiles
) -> list[Refusal]:
    """The last plan's refusals of files that this plan did not open, such as those outside of its
    window.
    """
    listing_names = {refusal.name for refusal in listing.refusals}
    decided_names = {*recognised.facts, *recognised.hard_links, *listing_names}
    last_refusals = {r.name: r for r in knowledge.refused}
    copies = knowledge.copies
    refusals = []
    for file in knowledge.unsettled:
        if file.path in decided_names:
            continue
        if file.path in last_refusals:
            refusals.append(replace(last_refusals[file.path], when=file.when))
        elif (file.inode, file.size) in copies:  # It was renamed.
            refusals.append(still_a_copy(context, file, copies[file.inode, file.size]))
    return refusals
