"""Present adopt's answer to a person: a few plain lines, with the next action last."""

from typing import TYPE_CHECKING

from semel.declare.wording import count, named

if TYPE_CHECKING:
    from semel.repair.adopt import Adopted


def told(answer: "Adopted") -> str:
    """Tell what was taken over, what was lost, and what is no longer needed."""
    name, batches = answer.pipeline, count(answer.batches, "batch", "batches")
    if answer.found:
        return f"nothing to do: this ledger has {name} with the {batches} that have a marker"
    parts = count(answer.source_partitions, "source partition")
    if answer.replays:
        batches += f" ({count(answer.replays, 'replay')} of them)"
    lines = [
        f"adopted {name}: {batches}, {parts} ({answer.files_found:,} found), "
        f"{count(answer.ids, 'id')} in {count(answer.id_runs, 'id run')}"
    ]
    if answer.batches_expired:
        expired = count(answer.batches_expired, "batch", "batches")
        lines.append(f"the ids of {expired} are past their horizon, and were left out")
    if answer.batches_forgotten:
        shown = ", ".join(map(str, answer.batches_forgotten))
        lines.append(
            f"FORGOTTEN: the ids of batch {shown}: what comes again of them is new, or in scope "
            "bucket late"
        )
    for first, last in answer.commits_lost:
        lines.append(f"commits {first} to {last} never had a marker: their records are read again")
    if answer.strays:
        lines.append(
            f"left over: {count(len(answer.strays), 'file')} of batches that never had a marker "
            f"({named(answer.strays)}): move them away, their records are written again"
        )
    if answer.staging:
        lines.append(
            f"left over: {count(len(answer.staging), 'staging folder')} "
            f"({named(answer.staging)}): once no old process runs, remove them"
        )
    return "\n".join([*lines, f"next: semel run {name}"])
