"""Group batches by the code that produced them, to find everything a bad transform touched."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from semel.archive import layout
from semel.archive.provenance import CodeDigests, code_of_marker
from semel.ledger import Ledger
from semel.model.batch import runs
from semel.pipeline.spec import Spec

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class CodeVersionOutput:
    """The output of one code version. `code` is None for batches whose marker does not say.

    `digest`: equal if the same semel ran the same files. `texts`: the path of each file's text, by
    name. `git_commits`: the checkout's commits, newest last. `batches`: numbers in commit order.
    `runs`: exactly these batches as ranges [first, last], by number, with no other code's batch
    between; `semel replay` takes them with `--batches`. `intervals`: [start, end) of the batches
    that have one, joined where one begins at another's end.
    """

    code: CodeDigests | None
    digest: str | None
    texts: dict[str, Path]
    git_commits: tuple[str, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    intervals: tuple[Span, ...]


def made_by(ledger: Ledger, spec: Spec) -> list[CodeVersionOutput]:
    """A pipeline's finalized batches by the code that made their newest output, newest first.

    Reads each marker.
    """
    root = layout.archive_folder(spec)
    groups: dict[str | None, list[tuple[int, Any, CodeDigests | None]]] = defaultdict(list)
    found = ledger.rows("look", "finalized", name=spec.name)
    numbers = sorted(r["batch_id"] for r in found)
    for place, r in enumerate(found):
        code = code_of_marker(layout.marker(root, r["batch_id"]))
        groups[code.digest if code else None].append((place, r, code))
    made = [(digest, sorted(members, key=_made_at)) for digest, members in groups.items()]
    newest_first = sorted(made, key=lambda group: _made_at(group[1][-1]), reverse=True)
    return [_made(digest, members, numbers, layout.code(root)) for digest, members in newest_first]


def _made_at(member: tuple[int, Any, CodeDigests | None]) -> tuple[datetime, int]:
    place, r, _ = member
    return r["made_at"], place


def _made(
    digest: str | None,
    members: list[tuple[int, Any, CodeDigests | None]],
    all_of_them: list[int],
    folder: Path,
) -> CodeVersionOutput:
    """`members`: each with its place in the commit order; the one made last is last. `all_of_them`:
    the pipeline's finalized batches, in order."""
    code = members[-1][2]
    commits = [c.git_commit for _, _, c in members if c and c.git_commit]
    rows = [r for _, r, _ in sorted(members, key=itemgetter(0))]
    return CodeVersionOutput(
        code=code,
        digest=digest,
        texts=code.text_paths(folder) if code else {},
        git_commits=tuple(dict.fromkeys(commits)),
        batches=tuple(r["batch_id"] for r in rows),
        runs=runs([r["batch_id"] for r in rows], all_of_them),
        intervals=joined(
            (r["interval_start"], r["interval_end"]) for r in rows if r["interval_start"]
        ),
    )



def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans [start, end), and merge those that touch or overlap."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)
