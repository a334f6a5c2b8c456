"""The effect of accepting a refused file."""

from dataclasses import replace

from semel.declare.context import Context
from semel.errors import SourceError
from semel.formats.declared import is_whole
from semel.sources import Acceptance, LedgerView, quoted
from semel.sources.files.evidence import FilePartition
from semel.sources.files.facts import FileFacts, Knowledge, RecognisedFiles
from semel.sources.files.gather import gather
from semel.sources.files.listing import FileListing
from semel.sources.files.offers import offer_of
from semel.sources.files.recognise import REFUSED, FileDecision, InodeMatch
from semel.sources.files.refusals import waiting_reason


def gather_all(context: Context, listing: FileListing, ledger: LedgerView) -> RecognisedFiles:
    """Recognise all files, in any interval. Raises FileNotFoundError if a file moved meanwhile."""
    return gather(context, listing, Knowledge.from_ledger(listing, ledger), None)


def is_settled(recognised: RecognisedFiles, path: str) -> bool:
    """Whether a file still matches its partition, so that there is nothing to accept."""
    facts = recognised.facts.get(path)
    return facts is None or facts.inode_match is InodeMatch.SAME


def decide_acceptance(
    context: Context, recognised: RecognisedFiles, path: str, *, same: bool, start: int
) -> Acceptance:
    """As `Source.accept`. Raises SourceError if the file cannot be accepted as requested."""
    facts = recognised.facts.get(path)
    if facts is None and path in recognised.hard_links:
        raise SourceError(
            f"{path!r} is one of several names of a file. Nothing was accepted. Leave one of them "
            "in the source folder, then run the pipeline"
        )
    if facts is not None and facts.decision is FileDecision.UNSURE:
        raise SourceError(f"{path!r} has to wait: {waiting_reason(facts)}")
    partition = _same_partition(context, path, facts) if same else None
    if facts is None or not (same or facts.decision in REFUSED):
        raise SourceError(
            f"{path!r}: nothing to accept. semel does not refuse it as a changed file or a copy",
            next=f"semel gaps {context.name}",
        )
    content = facts.opened_file.content
    if content is None:
        raise SourceError(
            f"{facts.opened_file.trouble}; fix or replace the file, then run the pipeline"
        )
    if start and (start > content.size or content.read(start - 1, 1) != b"\n"):
        raise SourceError(
            f"{path!r}: no record begins at byte {start}, because the byte before it does not end "
            f"a line; the file has {content.size} bytes. Nothing was accepted"
        )
    ended = {
        other.source_partition_id: other
        for other in (facts.inode_partition, facts.path_partition)
        if other is not None and other is not partition
    }
    offer = offer_of(facts.opened_file, partition, start=start)
    return Acceptance(
        offer=replace(offer, reason="repeated"),
        replaced_partitions=list(ended.values()),
        superseded_partitions=list(facts.superseded),
    )


# Keeps A4.
def _same_partition(context: Context, path: str, facts: FileFacts | None) -> FilePartition:
    """The partition that no file holds, and whose bytes this file begins with."""
    candidates = [] if facts is None else facts.continuable
    if is_whole(context):
        candidates = [k for k in candidates if facts.opened_file.content.size == k.reached]
    if not candidates:
        raise SourceError(
            f"{path!r}: --same does not apply. The file does not begin with the records that were "
            "read of a deleted or truncated file, or it grew and semel reads it as a whole. "
            "Nothing was accepted. Accept it as a new generation instead",
            next=f"semel accept {context.name} {quoted(path)}",
        )
    return min(candidates, key=lambda k: (k.path != path, -k.reached))
