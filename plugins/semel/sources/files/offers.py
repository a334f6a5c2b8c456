"""Offers of files: which bytes hold complete records, and where a range may end."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from semel import limits
from semel.declare.context import Context
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import LimitError, SourceError
from semel.formats.declared import has_header, header_of, is_whole
from semel.formats.foreign import foreign, json_array
from semel.sources import Offer, Refusal, Window, accept_command, in_window
from semel.sources.files.content import Content
from semel.sources.files.evidence import FilePartition, OpenedFile
from semel.sources.files.facts import FileFacts, RecognisedFiles
from semel.sources.files.listing import ListedFile, make_refusal
from semel.sources.files.recognise import REFUSED, FileDecision
from semel.sources.files.refusals import refuse_file


@dataclass(frozen=True, kw_only=True)
class FileOffer(Offer):
    """A file to read on, or as a new partition. `content` is None while it cannot be read."""

    file: ListedFile
    content: Content | None


def offer_of(opened: OpenedFile, partition: FilePartition | None, *, start: int = 0) -> FileOffer:
    """An offer of an opened file, without a range to read yet."""
    file, content = opened.file, opened.content
    if content is not None:
        size = ahead = content.size
    else:
        size = partition.seen if partition else 0
        ahead = max(file.size, (partition.reached if partition else 0) + 1)
    evidence = {"birth_ns": opened.birth_ns}
    if partition and partition.unread_since_ns:
        evidence["rest"] = [partition.reached, partition.unread_since_ns]
    return FileOffer(
        name=file.path,
        identity=file.identity,
        fingerprint=file.fingerprint,
        partition=partition,
        start=start,
        seen=size,
        ahead=ahead,
        evidence=evidence,
        settled=content is not None,
        file=file,
        content=content,
    )


# Keeps P31.
def judge_files(
    context: Context, recognised: RecognisedFiles, window: Window, doubtful: Collection[str]
) -> tuple[list[FileOffer], list[Refusal]]:
    """Offers of the files in the window, oldest first, and refusals by name. `doubtful`: the names
    that the last plan refused.
    """
    offers, refusals = [], []
    for facts in recognised.facts.values():
        try:
            verdict = _judge_file(context, facts, window, doubtful)
        except FileNotFoundError:
            continue  # It was moved meanwhile: the next plan finds it.
        if isinstance(verdict, Refusal):
            refusals.append(verdict)
        elif verdict is not None:
            offers.append(verdict)
    for file, why in recognised.unreadable.items():
        refusals.append(make_refusal(file.path, "unreadable", why, file.when))
    for name, links in recognised.hard_links.items():
        names = ", ".join(repr(link) for link in links[:FILES_NAMED_MAX])
        detail = f"one file under {len(links)} names ({names}); leave one in the source folder"
        refusals.append(make_refusal(name, "hard link", detail))
    offers.sort(key=lambda offer: (offer.file.mtime_ns, offer.file.path))
    return offers, sorted(refusals, key=lambda refusal: refusal.name)


def _judge_file(
    context: Context, facts: FileFacts, window: Window, doubtful: Collection[str]
) -> FileOffer | Refusal | None:
    file = facts.opened_file.file
    if facts.decision is FileDecision.WAIT:
        return None
    if facts.decision in REFUSED or facts.decision is FileDecision.UNSURE:
        return refuse_file(context, facts)
    partition = facts.resumed_partition
    offer = offer_of(facts.opened_file, partition)
    if in_window(file.when, window):
        return _with_end(context, facts, offer)
    verdict = _with_end(context, facts, offer) if file.path in doubtful else None
    return verdict if isinstance(verdict, Refusal) else offer if partition else None


def _with_end(context: Context, facts: FileFacts, offer: FileOffer) -> FileOffer | Refusal:
    """The offer up to the last complete record of its file."""
    file, partition, content = offer.file, offer.partition, offer.content
    closed_after = context.declared.closed_after
    age = datetime.now(UTC).timestamp() - file.mtime_ns / 1e9
    closed = closed_after is not None and age >= closed_after.total_seconds()
    reached = partition.reached if partition else 0
    if content is None:
        if facts.opened_file.unfinished and not closed:
            return replace(offer, end=reached)
        detail = f"{facts.opened_file.trouble}; replace the file"
        return make_refusal(file.path, "damaged", detail, file.when)
    if content.size > reached and (why := _foreign_format(context, content)):
        return make_refusal(file.path, "format", f"{file.path!r}: {why}", file.when)
    start = 0 if reached or has_header(context) else content.count_leading_nuls()
    if is_whole(context):
        if partition and reached not in (0, content.size):
            detail = (
                f"semel reads a multiline CSV file once, as a whole. It had {reached} bytes then "
                f"(partition {partition.source_partition_id}), and has {content.size} now. Put the "
                f"old file back, or {accept_command(context, file.path)} reads all of it again as "
                "a new generation"
            )
            return make_refusal(file.path, "changed", detail, file.when)
        if closed_after is None:
            detail = (
                "semel reads a multiline CSV file once, as a whole, and nothing says when it is "
                "complete; declare source.closed_after"
            )
            return make_refusal(file.path, "open", detail, file.when)
        end = content.size if closed else 0
    else:
        end = content.size if closed else content.record_end(max(start, reached), content.size)
    offer = replace(offer, end=end, start=start, all_or_nothing=is_whole(context))
    return _check_header(context, offer) if end > reached else offer


# Keeps P14.
def _foreign_format(context: Context, content: Content) -> str | None:
    """Why a file does not hold lines of text, whatever the declared format. None if it does."""
    head = content.head
    if b"\n" not in head:
        head = content.read(0, limits.CSV_HEADER_BYTES_MAX)
    return foreign(head) or (None if has_header(context) else json_array(head))


# Keeps P14.
def _check_header(context: Context, offer: FileOffer) -> FileOffer | Refusal:
    """Refuse a CSV file whose header lacks columns of the schema.

    This runs for each file with something to read: the schema may have changed since the last read.
    """
    try:
        header_of(context, offer.file.path)
    except (SourceError, OSError) as error:
        return make_refusal(offer.file.path, "header", str(error), offer.file.when)
    return offer


# Keeps P6.
def last_record_end(
    context: Context, offer: FileOffer, start: int, end: int, capacity: int, *, first: bool
) -> int:
    """As `Source.last_record_end`."""
    if end - start <= capacity:
        return end
    if offer.all_or_nothing:
        if first:
            raise LimitError(
                f"pipeline {context.name}: {os.path.basename(offer.file.path)!r} has {end} bytes, "
                "and semel reads it as a whole; limits.bytes_per_batch_max is "
                f"{context.limits.bytes_per_batch_max}: raise it"
            )
        return start
    record_end = offer.content.record_end(start, start + capacity) if capacity > 0 else start
    if record_end == start and first:  # One record exceeds the limit: it makes a batch alone.
        record_end = offer.content.next_record_end(start, end)
    return record_end
