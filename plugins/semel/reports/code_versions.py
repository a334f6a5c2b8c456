"""Group batches by the code that produced them, to find everything a bad transform touched."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from semel.archive import layout
from semel.archive.provenance import CodeDigests, code_of_marker
from semel.ledger import Ledger
from semel.model.batch import runs
from semel.pipeline.spec import Spec
from semel.storage import ArchivePath

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class CodeVersionOutput:
    """The output of one code version. `code` is None if the marker does not record it.

    `digest`: equal if the same semel ran the same files. `texts`: the path of each file's text, by
    name. `git_commits`: the checkout's commits, newest last. `batches`: numbers in commit order.
    `runs`: exactly these batches as ranges [first, last] of numbers, for `semel replay --batches`.
    No other code's batch lies within a range. `intervals`: the batches' intervals [start, end),
    merged if they touch.
    """

    code: CodeDigests | None
    digest: str | None
    texts: dict[str, ArchivePath]
    git_commits: tuple[str, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    intervals: tuple[Span, ...]


def outputs_by_code(ledger: Ledger, spec: Spec) -> list[CodeVersionOutput]:
    """Group a pipeline's finalized batches by the code that wrote their newest output.

    The newest code comes first. Reads each marker.
    """
    root = layout.archive_folder(spec)
    groups: dict[str | None, list[tuple[int, Any, CodeDigests | None]]] = defaultdict(list)
    batches = ledger.rows("look", "finalized", name=spec.name)
    numbers = sorted(r["batch_id"] for r in batches)
    for place, r in enumerate(batches):
        code = code_of_marker(layout.marker(root, r["batch_id"]))
        groups[code.digest if code else None].append((place, r, code))
    by_time = [(digest, sorted(members, key=_output_time)) for digest, members in groups.items()]
    newest_first = sorted(by_time, key=lambda group: _output_time(group[1][-1]), reverse=True)
    folder = layout.code(root)
    return [_code_output(digest, members, numbers, folder) for digest, members in newest_first]


def _output_time(member: tuple[int, Any, CodeDigests | None]) -> tuple[datetime, int]:
    place, r, _ = member
    return r["made_at"], place


def _code_output(
    digest: str | None,
    members: list[tuple[int, Any, CodeDigests | None]],
    finalized: list[int],
    folder: ArchivePath,
) -> CodeVersionOutput:
    """Describe one group. `members`: batches by the time of their output, each with its place in
    the commit order. `finalized`: the pipeline's finalized batches, in order."""
    code = members[-1][2]
    commits = [c.git_commit for _, _, c in members if c and c.git_commit]
    rows = [r for _, r, _ in sorted(members, key=itemgetter(0))]
    return CodeVersionOutput(
        code=code,
        digest=digest,
        texts=code.text_paths(folder) if code else {},
        git_commits=tuple(dict.fromkeys(commits)),
        batches=tuple(r["batch_id"] for r in rows),
        runs=runs([r["batch_id"] for r in rows], finalized),
        intervals=merge_spans(
            (r["interval_start"], r["interval_end"]) for r in rows if r["interval_start"]
        ),
    )


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans [start, end), and merge those that touch or overlap."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)
