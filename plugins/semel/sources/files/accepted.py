"""What accepting a refused file comes to."""

from dataclasses import replace

from semel.declare.context import Context
from semel.errors import SourceError
from semel.formats.declared import is_whole
from semel.sources import LedgerView, Acceptance, quoted
from semel.sources.files.evidence import FilePartition
from semel.sources.files.facts import FileFacts, Knowledge, Recognised
from semel.sources.files.gather import gather
from semel.sources.files.listing import FileListing
from semel.sources.files.offers import offer_of
from semel.sources.files.recognise import REFUSED, FileDecision, InodeMatch
from semel.sources.files.refusals import unsure


def look(context: Context, listing: FileListing, known: LedgerView) -> Recognised:
    """All files, whatever interval they belong to. FileNotFoundError: look again."""
    return gather(context, listing, Knowledge.of(listing, known), None)


def is_settled(recognised: Recognised, path: str) -> bool:
    """Whether a file is what its partition says: nobody waits for a word."""
    found = recognised.facts.get(path)
    return found is None or found.own is InodeMatch.SAME


def word(
    context: Context, recognised: Recognised, path: str, *, same: bool, start: int
) -> Acceptance:
    """As `Source.accept`. SourceError when the word cannot be taken."""
    found = recognised.facts.get(path)
    if found is None and path in recognised.linked:
        raise SourceError(
            f"{path!r} is one of several names of a file; leave one of them in the source folder, "
            "then run the pipeline"
        )
    if found is not None and found.answer is FileDecision.UNSURE:
        raise SourceError(f"{path!r} has to wait: {unsure(found)}")
    known = _same(context, path, found) if same else None
    if found is None or not (same or found.answer in REFUSED):
        raise SourceError(
            f"{path!r} is not refused as a file that changed or may be a copy, so there is nothing "
            f"to accept",
            next=f"semel gaps {context.name}",
        )
    seen = found.seen
    content = seen.content
    if content is None:
        raise SourceError(f"{seen.trouble}; fix or replace the file, then run the pipeline")
    if start and (start > content.size or content.read(start - 1, 1) != b"\n"):
        raise SourceError(
            f"no record of {path!r} begins at byte {start}: the byte before it is not the "
            f"end of a record; the file has {content.size} bytes"
        )
    ended = {
        k.source_partition_id: k
        for k in (found.known, found.before)
        if k is not None and k is not known
    }
    return Acceptance(
        offer=replace(offer_of(seen, known, start=start), reason="repeated"),
        replaced_partitions=list(ended.values()),
        superseded_partitions=list(found.superseded),
    )


# Keeps A4.
def _same(context: Context, path: str, found: FileFacts | None) -> FilePartition:
    """The partition whose bytes the file begins with, and which no other file holds."""
    able = [] if found is None else found.alike
    if is_whole(context):
        able = [k for k in able if found.seen.content.size == k.reached]
    if not able:
        raise SourceError(
            f"{path!r} cannot go on where a file that was cut or is gone stood: it does not begin "
            "with what was read of one, or is read whole and grew; accept it as a new generation "
            "instead",
            next=f"semel accept {context.name} {quoted(path)}",
        )
    return min(able, key=lambda k: (k.path != path, -k.reached))
