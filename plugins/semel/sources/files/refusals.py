"""What a person is told of a refused file: what is wrong, with the ids, and what to do."""

from dataclasses import replace
from datetime import datetime

from semel.declare.context import Context
from semel.sources import Refusal, accept_command
from semel.sources.files.evidence import FilePartition, last_record
from semel.sources.files.facts import FileFacts
from semel.sources.files.listing import ListedFile, file_time, refusal
from semel.sources.files.recognise import FileDecision, Match


def refused(context: Context, found: FileFacts) -> Refusal:
    """What is wrong with a file, and what to do."""
    file = found.seen.file
    if found.answer is FileDecision.UNSURE:
        return refusal(file.path, found.answer, unsure(found), file.when)
    if found.answer is not FileDecision.COPY:
        return refusal(file.path, found.answer, _changed(context, found), file.when)
    if found.matched is None:
        return still_a_copy(context, file, found.told)
    known, content = found.matched, found.seen.content
    size = content.size if content is not None else known.reached
    behind = known.reached if size > known.reached else None
    detail = _part(context, found) if size < known.reached else _copy(context, found, behind)
    new = refusal(file.path, found.answer, detail, file.when)
    return replace(new, inode=file.inode, size=file.size, copy_of=known.path, behind=behind)


def unsure(found: FileFacts) -> str:
    """Why a file has to wait for another one."""
    return (
        f"the file that had its path, {show(found.before)}, cannot be looked for while a file or a "
        "folder of the source is refused; settle that, then the next run decides"
    )


# Keeps P17.
def still_a_copy(context: Context, file: ListedFile, told: Refusal) -> Refusal:
    """A copy that was refused, and has not changed since; the file that it is a copy of did."""
    detail = (
        f"a plan before this one saw that it may be a copy of {told.copy_of!r}, and it has not "
        f"changed since ({_now(file)}). {_choice(context, file, told.behind)}"
    )
    return replace(told, name=file.path, detail=detail, when=file.when)


def _choice(context: Context, file: ListedFile, behind: int | None, same: str = "") -> str:
    """What a person can do about a copy; `behind` as in Refusal."""
    more = ""
    if behind is not None and not same:
        word = accept_command(context, file.path, f"--from {behind}")
        more = f"{word} reads what comes after that, "
    again = accept_command(context, file.path)
    return f"Remove it if it is one; {same}{more}{again} reads all of it as new records"


def _now(file: ListedFile) -> str:
    return f"now inode {file.inode}, {file.size} bytes"


_HOW = {
    Match.WEAK: "is gone, or was cut",
    Match.LIVING: "is there as well",
    Match.UNSURE: "cannot be looked for now, as a file or a folder is refused: settle that first",
}


def _part(context: Context, found: FileFacts) -> str:
    file = found.seen.file
    return (
        f"it is the beginning of {show(found.matched)}, which {_HOW[found.match]}: a copy that is "
        f"still being made, it seems, and the next run looks again; {_now(file)}. Remove it if it "
        f"is left over; {accept_command(context, file.path)} reads all of it as new records"
    )


def _copy(context: Context, found: FileFacts, behind: int | None) -> str:
    file, known = found.seen.file, found.matched
    same = accept_command(context, file.path, "--same")
    same = f"{same} continues where that one ended, " if found.alike else ""
    return (
        f"it begins with all {known.reached} bytes that were read of {show(known)}, which "
        f"{_HOW[found.match]}: it may be a copy; {_now(file)}. "
        f"{_choice(context, file, behind, same)}"
    )


def _changed(context: Context, found: FileFacts) -> str:
    accept = accept_command(context, found.seen.file.path)
    same = accept_command(context, found.seen.file.path, "--same")
    now = _now(found.seen.file)
    if found.answer is FileDecision.CHANGED:
        known = found.known
        what = f"{_difference(found)} since it was planned as {show(known)}; {now}. Put back what "
        what += f"was there, or {accept} reads it from its start as a new generation"
    else:
        known = found.before
        what = f"another file took the place of {show(known)}; {now}. {accept} reads this one from "
        what += "its start as a new generation"
        if found.alike:
            what += f", {same} continues where the old one ended"
    if not context.by_position:
        return what
    what += "; without a record_id, or at_least_once, what it repeats is written again"
    end = None if found.seen.content is None else last_record(found.seen, known)
    if end:
        behind = accept_command(context, found.seen.file.path, f"--from {end}")
        what += f". {behind} reads what comes after the last record that was read"
    return what


def _difference(found: FileFacts) -> str:
    known, content = found.known, found.seen.content
    if content is None:
        return found.seen.trouble
    if content.size < known.reached:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, known.head_length) != known.head_hash:
        return f"its first {known.head_length} bytes changed"
    return f"its bytes before {known.reached} changed"


def show(known: FilePartition) -> str:
    """A partition as a person knows it."""
    return (
        f"{known.path!r} (partition {known.source_partition_id}, generation {known.generation}, "
        f"inode {known.inode}, read up to byte {known.reached})"
    )


def gone(
    context: Context, known: FilePartition, spans: list[tuple[int, int]], path: str | None
) -> Refusal:
    """Records that were seen and not read, and whose file is not in the source any more.

    `path`: where it is now, if that is in the source's folder.
    """
    shown = ", ".join(f"{start} to {end}" for start, end in spans)
    where = f"is now {path!r}, which the pattern does not find" if path else "is gone"
    lost = accept_command(context, known.path, "--lost")
    detail = (
        f"bytes {shown} of it (partition {known.source_partition_id}) were seen and never read, "
        f"and the file {where}; bring it back, or {lost} records them as lost"
    )
    return refusal(known.path, "gone", detail, _when(context, known))


def _when(context: Context, known: FilePartition) -> datetime | None:
    when = file_time(context, known.path, known.mtime_ns)
    return None if isinstance(when, Refusal) else when
