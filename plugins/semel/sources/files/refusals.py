"""Texts of refused files: what is wrong, with the ids, and what to do."""

from dataclasses import replace
from datetime import datetime

from semel.declare.context import Context
from semel.sources import Refusal, accept_command
from semel.sources.files.evidence import FilePartition, last_record
from semel.sources.files.facts import FileFacts
from semel.sources.files.listing import ListedFile, file_time, make_refusal
from semel.sources.files.recognise import FileDecision, Match


def refuse_file(context: Context, facts: FileFacts) -> Refusal:
    """The refusal of a file by the table's decision about it."""
    opened = facts.opened_file
    file, decision = opened.file, facts.decision
    if decision is FileDecision.UNSURE:
        return make_refusal(file.path, decision, waiting_reason(facts), file.when)
    if decision is not FileDecision.COPY:
        return make_refusal(file.path, decision, _changed_text(context, facts), file.when)
    original = facts.content_partition
    if original is None:
        return still_a_copy(context, file, facts.earlier_refusal)
    size = opened.content.size if opened.content is not None else original.reached
    behind = original.reached if size > original.reached else None
    if size < original.reached:
        detail = _unfinished_copy_text(context, facts)
    else:
        detail = _copy_text(context, facts, behind)
    refusal = make_refusal(file.path, decision, detail, file.when)
    return replace(refusal, inode=file.inode, size=file.size, copy_of=original.path, behind=behind)


def waiting_reason(facts: FileFacts) -> str:
    """Why a file has to wait for another one."""
    return (
        f"semel cannot look for the earlier file of this path, "
        f"{describe_partition(facts.path_partition)}, while it refuses a file or a folder of the "
        "source. Settle that refusal; then the next run decides"
    )


# Keeps P17.
def still_a_copy(context: Context, file: ListedFile, earlier: Refusal) -> Refusal:
    """The refusal of a copy that has not changed since its earlier refusal; its original has."""
    detail = (
        f"an earlier plan saw that it may be a copy of {earlier.copy_of!r}, and it has not "
        f"changed since ({_current_state(file)}). {_copy_options(context, file, earlier.behind)}"
    )
    return replace(earlier, name=file.path, detail=detail, when=file.when)


def _copy_options(context: Context, file: ListedFile, behind: int | None, same: str = "") -> str:
    """The operator's options for a copy; `behind` as in Refusal."""
    further = ""
    if behind is not None and not same:
        command = accept_command(context, file.path, f"--from {behind}")
        further = f"{command} reads only what follows the copied bytes, "
    everything = accept_command(context, file.path)
    return f"Remove it if it is a copy; {same}{further}{everything} reads all of it as new records"


def _current_state(file: ListedFile) -> str:
    return f"now inode {file.inode}, {file.size} bytes"


_ORIGINAL = {
    Match.WEAK: "has been deleted or truncated",
    Match.LIVING: "still exists",
    Match.UNSURE: "semel cannot look for while it refuses a file or a folder: settle that first",
}
"""The fate of the file that a copy was made of, by how the copy matches it."""


def _unfinished_copy_text(context: Context, facts: FileFacts) -> str:
    file, original = facts.opened_file.file, facts.content_partition
    return (
        f"it holds only the beginning of {describe_partition(original)}, which "
        f"{_ORIGINAL[facts.content_match]}. It is probably a copy in progress, and the next run "
        f"checks it again; {_current_state(file)}. Remove it if nothing writes it; "
        f"{accept_command(context, file.path)} reads all of it as new records"
    )


def _copy_text(context: Context, facts: FileFacts, behind: int | None) -> str:
    file, original = facts.opened_file.file, facts.content_partition
    same = accept_command(context, file.path, "--same")
    same = f"{same} continues where that one ended, " if facts.continuable else ""
    return (
        f"it begins with all {original.reached} bytes that were read of "
        f"{describe_partition(original)}, which {_ORIGINAL[facts.content_match]}: it may be a "
        f"copy; {_current_state(file)}. {_copy_options(context, file, behind, same)}"
    )


def _changed_text(context: Context, facts: FileFacts) -> str:
    opened = facts.opened_file
    path, state = opened.file.path, _current_state(opened.file)
    accept = accept_command(context, path)
    if facts.decision is FileDecision.CHANGED:
        partition = facts.inode_partition
        text = f"{_difference(facts)} since it was planned as {describe_partition(partition)}; "
        text += f"{state}. Put back what was there, or {accept} reads it from its start as a new "
        text += "generation"
    else:
        partition = facts.path_partition
        text = f"another file took the place of {describe_partition(partition)}; {state}. "
        text += f"{accept} reads this one from its start as a new generation"
        if facts.continuable:
            same = accept_command(context, path, "--same")
            text += f", {same} continues where the old one ended"
    if not context.by_position:
        return text
    text += "; without a record_id, or at_least_once, semel writes repeated records again"
    end = None if opened.content is None else last_record(opened, partition)
    if end:
        from_end = accept_command(context, path, f"--from {end}")
        text += f". {from_end} reads what follows the last record that was read"
    return text


def _difference(facts: FileFacts) -> str:
    partition, content = facts.inode_partition, facts.opened_file.content
    if content is None:
        return facts.opened_file.trouble
    if content.size < partition.reached:
        return f"it shrank to {content.size} bytes"
    if content.hash(0, partition.head_length) != partition.head_hash:
        return f"its first {partition.head_length} bytes changed"
    return f"its bytes before {partition.reached} changed"


def describe_partition(partition: FilePartition) -> str:
    """The path and the ids of a partition, for messages."""
    return (
        f"{partition.path!r} (partition {partition.source_partition_id}, generation "
        f"{partition.generation}, inode {partition.inode}, read up to byte {partition.reached})"
    )


def refuse_lost(
    context: Context, partition: FilePartition, spans: list[tuple[int, int]], path: str | None
) -> Refusal:
    """The refusal for records that a plan saw, but no batch read before their file left the source.

    `path`: where the file is now, if it is in the source's folder.
    """
    ranges = ", ".join(f"{start} to {end}" for start, end in spans)
    place = f"is now {path!r}, which the pattern does not find" if path else "no longer exists"
    accept_loss = accept_command(context, partition.path, "--lost")
    detail = (
        f"bytes {ranges} of it (partition {partition.source_partition_id}) were seen and never "
        f"read, and the file {place}; bring it back, or {accept_loss} records them as lost"
    )
    return make_refusal(partition.path, "gone", detail, _interval_time(context, partition))


def _interval_time(context: Context, partition: FilePartition) -> datetime | None:
    when = file_time(context, partition.path, partition.mtime_ns)
    return None if isinstance(when, Refusal) else when
