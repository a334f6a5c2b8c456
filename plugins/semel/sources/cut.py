"""Which ranges of the files a batch takes, by what is recognised and unclaimed."""

import os
from dataclasses import replace
from datetime import UTC, datetime

import xxhash

from semel import limits
from semel.errors import LimitError, SourceError
from semel.formats.declared import has_header, header_of, is_whole
from semel.sources.content import Content
from semel.sources.evidence import Partition, last_record
from semel.sources.facts import Facts, Recognised, Window, in_window
from semel.sources.files import ListedFile, Refusal, file_time, quoted, refusal
from semel.sources.recognise import REFUSED, Answer, Match
from semel.sources.wanted import Evidence, Range, Spans, Wanted, unclaimed
from semel.spec.pipeline import Spec


def want(
    spec: Spec, recognised: Recognised, window: Window
) -> tuple[list[Wanted], list[Refusal]]:
    """What may be read of each file in the window, oldest first, and what is refused."""
    wanted, refused = [], []
    for found in recognised.facts.values():
        try:
            item = _want(spec, found, window)
        except FileNotFoundError:
            continue  # It was moved while we looked: the next plan sees where it is.
        if isinstance(item, Refusal):
            refused.append(item)
        elif item is not None:
            wanted.append(item)
    for file, why in recognised.closed.items():
        refused.append(refusal(file.path, "unreadable", why, file.when))
    for name, several in recognised.linked.items():
        names = ", ".join(repr(other) for other in several[: limits.FILES_NAMED_MAX])
        detail = f"one file under {len(several)} names ({names}); leave one in the source folder"
        refused.append(refusal(name, "hard link", detail))
    wanted.sort(key=lambda item: (item.file.mtime_ns, item.file.path))
    return wanted, sorted(refused, key=lambda item: item.path)


def _want(spec: Spec, found: Facts, window: Window) -> Wanted | Refusal | None:
    seen = found.seen
    file = seen.file
    if found.answer is Answer.WAIT:
        return None
    if found.answer in REFUSED or found.answer is Answer.UNSURE:
        return _refused(spec, found)
    known = found.goes_on
    item = Wanted(
        file=file, birth_ns=seen.birth_ns, content=seen.of(known), known=known, end=0
    )
    if not in_window(file.when, window):
        return item if known else None
    return _end(spec, found, item)


def _end(spec: Spec, found: Facts, item: Wanted) -> Wanted | Refusal:
    """Where the records of a file end that may be read now."""
    file, known, content = item.file, item.known, item.content
    after = spec.source.closed_after
    age = datetime.now(UTC).timestamp() - file.mtime_ns / 1e9
    closed = after is not None and age >= after.total_seconds()
    reached = known.reached if known else 0
    if content is None:
        if found.seen.unfinished and not closed:
            return replace(item, end=reached)
        return refusal(file.path, "damaged", f"{found.seen.trouble}; replace the file", file.when)
    if known and known.packed:
        return replace(item, end=reached)
    start = 0 if reached or has_header(spec) else content.nuls()
    if is_whole(spec):
        if known and reached not in (0, content.size):
            detail = (
                f"a multiline CSV file is read once, whole, and this one was {reached} bytes long "
                f"then (partition {known.source_partition_id}), now {content.size}; put it back, "
                f"or {_accept(spec, file.path)} reads all of it again as a new generation"
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
    item = replace(item, end=end, start=start, whole=is_whole(spec))
    return _check_header(spec, item) if end > reached else item


# Keeps P14.
def _check_header(spec: Spec, item: Wanted) -> Wanted | Refusal:
    """A CSV file's header must name the schema's columns, in each file of which something is read.

    The schema may be another one since the file was read first.
    """
    try:
        header_of(spec, item.file.path)
    except (SourceError, OSError) as error:
        return refusal(item.file.path, "header", str(error), item.file.when)
    return item


def _accept(spec: Spec, path: str, option: str = "") -> str:
    """The command that settles a file, as it is typed."""
    return f"`semel accept {spec.name} {quoted(path)}{option and ' '}{option}`"


def _refused(spec: Spec, found: Facts) -> Refusal:
    """What is wrong with a file, and what to do."""
    file = found.seen.file
    if found.answer is Answer.UNSURE:
        return refusal(file.path, found.answer, unsure(found), file.when)
    if found.answer is not Answer.COPY:
        return refusal(file.path, found.answer, _changed(spec, found), file.when)
    if found.matched is None:
        return still_a_copy(spec, file, found.told)
    known, content = found.matched, found.seen.of(found.matched)
    size = content.size if content is not None else known.reached
    behind = known.reached if size > known.reached else None
    detail = _part(spec, found) if size < known.reached else _copy(spec, found, behind)
    new = refusal(file.path, found.answer, detail, file.when)
    return replace(new, inode=file.inode, size=file.size, copy_of=known.path, behind=behind)


def unsure(found: Facts) -> str:
    """Why a file has to wait for another one."""
    return (
        f"nobody can tell now where the file is that had its path, {show(found.before)}: a file or "
        "a folder of the source is refused; settle that, then the next run looks again"
    )


# Keeps P17.
def still_a_copy(spec: Spec, file: ListedFile, told: Refusal) -> Refusal:
    """A copy that was refused, and has not changed since; the file that it is a copy of did."""
    detail = (
        f"a plan before this one saw that it may be a copy of {told.copy_of!r}, and it has not "
        f"changed since ({_now(file)}). {_choice(spec, file, told.behind)}"
    )
    return replace(told, path=file.path, detail=detail, when=file.when)


def _choice(spec: Spec, file: ListedFile, behind: int | None, same: str = "") -> str:
    """What a person can do about a copy; `behind` as in Refusal."""
    more = ""
    if behind is not None and not same:
        more = f"{_accept(spec, file.path, f'--from {behind}')} reads what stands behind that, "
    return (
        f"Remove it if it is one; {same}{more}{_accept(spec, file.path)} reads all of it as new "
        "records"
    )


def _now(file: ListedFile) -> str:
    return f"now inode {file.inode}, {file.size} bytes"


_HOW = {
    Match.WEAK: "is gone, or was cut",
    Match.LIVING: "is there as well",
    Match.UNSURE: "cannot be looked for now, as a file or a folder is refused: settle that first",
}


def _part(spec: Spec, found: Facts) -> str:
    file = found.seen.file
    return (
        f"it is the beginning of {show(found.matched)}, which {_HOW[found.match]}: a copy that is "
        f"still being made, it seems, and the next run looks again; {_now(file)}. Remove it if it "
        f"is left over; {_accept(spec, file.path)} reads all of it as new records"
    )


def _copy(spec: Spec, found: Facts, behind: int | None) -> str:
    file, known = found.seen.file, found.matched
    same = _accept(spec, file.path, "--same")
    same = f"{same} goes on in it where that one ended, " if found.alike else ""
    return (
        f"it begins with all {known.reached} bytes that were read of {show(known)}, which "
        f"{_HOW[found.match]}: it may be a copy; {_now(file)}. "
        f"{_choice(spec, file, behind, same)}"
    )


def _changed(spec: Spec, found: Facts) -> str:
    accept = _accept(spec, found.seen.file.path)
    same = _accept(spec, found.seen.file.path, "--same")
    now = _now(found.seen.file)
    if found.answer is Answer.CHANGED:
        known = found.known
        what = f"{_difference(found)} since it was planned as {show(known)}; {now}. Put back what "
        what += f"was there, or {accept} reads it from its start as a new generation"
    else:
        known = found.before
        what = f"another file took the place of {show(known)}; {now}. {accept} reads this one from "
        what += "its start as a new generation"
        if found.alike:
            what += f", {same} goes on where the old one ended"
    if not spec.by_position:
        return what
    what += "; without a record_id, what it repeats is written again"
    end = None if found.seen.of(known) is None else last_record(found.seen, known)
    if end:
        behind = _accept(spec, found.seen.file.path, f"--from {end}")
        what += f". {behind} reads what stands behind the last record that was read"
    return what


def _difference(found: Facts) -> str:
    known, content = found.known, found.seen.of(found.known)
    if content is None:
        return found.seen.trouble
    if content.size < known.reached:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, known.head_length) != known.head_hash:
        return f"its first {known.head_length} bytes changed"
    return f"its bytes before {known.reached} changed"


def show(known: Partition) -> str:
    """A partition as a person knows it."""
    return (
        f"{known.path!r} (partition {known.source_partition_id}, generation {known.generation}, "
        f"inode {known.inode}, read up to byte {known.reached})"
    )


def gone(spec: Spec, known: Partition, spans: list[tuple[int, int]], path: str | None) -> Refusal:
    """Records that were seen and not read, and whose file is not in the source any more.

    `path`: where it is now, if that is in the source's folder.
    """
    shown = ", ".join(f"{start} to {end}" for start, end in spans)
    where = f"is now {path!r}, which the pattern does not find" if path else "is gone"
    lost = _accept(spec, known.path, "--lost")
    detail = (
        f"bytes {shown} of it (partition {known.source_partition_id}) were seen and never read, "
        f"and the file {where}; bring it back, or {lost} records them as lost"
    )
    return refusal(known.path, "gone", detail, _when(spec, known))


def _when(spec: Spec, known: Partition) -> datetime | None:
    when = file_time(spec, known.path, known.mtime_ns)
    return None if isinstance(when, Refusal) else when


def cut_ranges(spec: Spec, wanted: list[Wanted], free: Spans) -> tuple[list[Range], int]:
    """The ranges to claim, oldest file first, and how many bytes are left for a later plan.

    `free` holds the unclaimed ranges of each known partition up to its wanted end.
    `select: arrival` takes up to limits.bytes_per_batch_max; `select: interval` takes all or raises
    LimitError.
    """
    room = spec.limits.bytes_per_batch_max
    spans = [(item, *span) for item in wanted for span in unclaimed(item, free)]
    total = sum(end - start for _, start, end in spans)
    # Keeps P10.
    if spec.source.select == "interval" and total > room:
        raise LimitError(
            f"pipeline {spec.name}: the interval holds {total} bytes in {len(spans)} ranges, and "
            f"limits.bytes_per_batch_max is {room}; raise the limit, or run shorter intervals"
        )
    taken, used = [], 0
    for item, start, end in spans:
        stop = _stop(spec, item, start, end, room - used, first=not taken)
        if stop > start:
            seen = evidence(spec, item.content, stop)
            taken.append(Range(wanted=item, start=start, end=stop, evidence=seen))
            used += stop - start
        if stop < end:
            break
    return taken, total - used


def evidence(spec: Spec, content: Content, reached: int) -> Evidence:
    """What recognises a file of which `reached` bytes are read."""
    length = min(reached, limits.HEAD_BYTES)
    header_end = content.head.find(b"\n") + 1 if has_header(spec) else 0
    last_length, last_hash = content.last_record(reached)
    return Evidence(
        reached=reached,
        head_length=length,
        head_hash=xxhash.xxh3_128_hexdigest(content.head[:length]),
        first_hash=content.first_record(header_end, reached),
        last_length=last_length,
        last_hash=last_hash,
        tail_hash=content.tail_hash(reached),
    )


# Keeps P6.
def _stop(spec: Spec, item: Wanted, start: int, end: int, room: int, *, first: bool) -> int:
    if end - start <= room:
        return end
    if item.whole:
        if first:
            raise LimitError(
                f"pipeline {spec.name}: {os.path.basename(item.file.path)!r} has {end} bytes and "
                "is read whole; limits.bytes_per_batch_max is "
                f"{spec.limits.bytes_per_batch_max}: raise it"
            )
        return start
    stop = item.content.record_end(start, start + room) if room > 0 else start
    if stop == start and first:  # One record is longer than the limit: it is taken alone.
        stop = item.content.next_record_end(start, end)
    return stop
