"""What may be read of each file, as far as its records are complete, and where a range may end."""

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
from semel.sources.files.facts import FileFacts, Recognised
from semel.sources.files.listing import ListedFile, refusal
from semel.sources.files.recognise import REFUSED, FileDecision
from semel.sources.files.refusals import refused


@dataclass(frozen=True, kw_only=True)
class FileOffer(Offer):
    """A file that is read on, or as a new partition. `content`: None while it cannot be had."""

    file: ListedFile
    content: Content | None


def offer_of(seen: OpenedFile, known: FilePartition | None, *, start: int = 0) -> FileOffer:
    """A file as it was seen, of which nothing may be read yet."""
    file, content = seen.file, seen.content
    if content is not None:
        there = ahead = content.size
    else:
        there = known.seen if known else 0
        ahead = max(file.size, (known.reached if known else 0) + 1)
    rest = {"rest": [known.reached, known.rest_ns]} if known and known.rest_ns else {}
    return FileOffer(
        name=file.path,
        identity=file.identity,
        fingerprint=file.fingerprint,
        partition=known,
        start=start,
        seen=there,
        ahead=ahead,
        evidence={"birth_ns": seen.birth_ns} | rest,
        settled=content is not None,
        file=file,
        content=content,
    )


# Keeps P31.
def want(
    context: Context, recognised: Recognised, window: Window, doubtful: Collection[str]
) -> tuple[list[FileOffer], list[Refusal]]:
    """What may be read of each file in the window, oldest first, and what is refused. `doubtful`:
    the names that the last plan refused.
    """
    offers, refusals = [], []
    for found in recognised.facts.values():
        try:
            item = _want(context, found, window, doubtful)
        except FileNotFoundError:
            continue  # It was moved while we looked: the next plan sees where it is.
        if isinstance(item, Refusal):
            refusals.append(item)
        elif item is not None:
            offers.append(item)
    for file, why in recognised.closed.items():
        refusals.append(refusal(file.path, "unreadable", why, file.when))
    for name, several in recognised.linked.items():
        names = ", ".join(repr(other) for other in several[:FILES_NAMED_MAX])
        detail = f"one file under {len(several)} names ({names}); leave one in the source folder"
        refusals.append(refusal(name, "hard link", detail))
    offers.sort(key=lambda item: (item.file.mtime_ns, item.file.path))
    return offers, sorted(refusals, key=lambda item: item.name)


def _want(
    context: Context, found: FileFacts, window: Window, doubtful: Collection[str]
) -> FileOffer | Refusal | None:
    seen = found.seen
    file = seen.file
    if found.answer is FileDecision.WAIT:
        return None
    if found.answer in REFUSED or found.answer is FileDecision.UNSURE:
        return refused(context, found)
    known = found.goes_on
    item = offer_of(seen, known)
    if in_window(file.when, window):
        return _end(context, found, item)
    judged = _end(context, found, item) if file.path in doubtful else None
    return judged if isinstance(judged, Refusal) else item if known else None


def _end(context: Context, found: FileFacts, item: FileOffer) -> FileOffer | Refusal:
    """Where the records of a file end that may be read now."""
    file, known, content = item.file, item.partition, item.content
    after = context.declared.closed_after
    age = datetime.now(UTC).timestamp() - file.mtime_ns / 1e9
    closed = after is not None and age >= after.total_seconds()
    reached = known.reached if known else 0
    if content is None:
        if found.seen.unfinished and not closed:
            return replace(item, end=reached)
        return refusal(file.path, "damaged", f"{found.seen.trouble}; replace the file", file.when)
    if content.size > reached and (why := _foreign(context, content)):
        return refusal(file.path, "format", f"{file.path!r}: {why}", file.when)
    start = 0 if reached or has_header(context) else content.nuls()
    if is_whole(context):
        if known and reached not in (0, content.size):
            detail = (
                f"a multiline CSV file is read once, whole, and this one was {reached} bytes long "
                f"then (partition {known.source_partition_id}), now {content.size}; put it back, "
                f"or {accept_command(context, file.path)} reads all of it again as a new generation"
            )
            return refusal(file.path, "changed", detail, file.when)
        if after is None:
            detail = (
                "a multiline CSV file is read once, whole, and nothing says when it is complete; "
                "declare source.closed_after"
            )
            return refusal(file.path, "open", detail, file.when)
        end = content.size if closed else 0
    else:
        end = content.size if closed else content.record_end(max(start, reached), content.size)
    item = replace(item, end=end, start=start, all_or_nothing=is_whole(context))
    return _check_header(context, item) if end > reached else item


# Keeps P14.
def _foreign(context: Context, content: Content) -> str | None:
    """Why a file is no text of lines, whatever was declared."""
    head = content.head
    if b"\n" not in head:
        head = content.read(0, limits.CSV_HEADER_BYTES_MAX)
    return foreign(head) or (None if has_header(context) else json_array(head))


# Keeps P14.
def _check_header(context: Context, item: FileOffer) -> FileOffer | Refusal:
    """A CSV file's header must name the schema's columns, in each file of which something is read.

    The schema may be another one since the file was read first.
    """
    try:
        header_of(context, item.file.path)
    except (SourceError, OSError) as error:
        return refusal(item.file.path, "header", str(error), item.file.when)
    return item


# Keeps P6.
def stop(context: Context, item: FileOffer, start: int, end: int, room: int, *, first: bool) -> int:
    """As `Source.stop`."""
    if end - start <= room:
        return end
    if item.all_or_nothing:
        if first:
            raise LimitError(
                f"pipeline {context.name}: {os.path.basename(item.file.path)!r} has {end} bytes "
                "and is read whole; limits.bytes_per_batch_max is "
                f"{context.limits.bytes_per_batch_max}: raise it"
            )
        return start
    found = item.content.record_end(start, start + room) if room > 0 else start
    if found == start and first:  # One record is longer than the limit: it is taken alone.
        found = item.content.next_record_end(start, end)
    return found
