"""Which code made which batches: what a mistake in a transform, once found, has reached."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from semel.archive import layout
from semel.archive.provenance import Named, of_marker
from semel.ledger import Ledger
from semel.model.batch import runs
from semel.pipeline import Spec

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one code made. `code` is None for batches whose marker does not tell.

    `digest`: equal where the same semel ran the same files. `texts`: where each file's text is
    kept, by its name. `git_commits`: those of the checkout, the newest last. `batches`: numbers in
    the order of commits; `runs`: just these as [first, last], in the order of their numbers, where
    no other code made one between: what `semel replay --batches` takes.
    `intervals` [start, end) of the batches that have one, joined where one begins at another's end.
    """

    code: Named | None
    digest: str | None
    texts: dict[str, Path]
    git_commits: tuple[str, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    intervals: tuple[Span, ...]


def made_by(ledger: Ledger, spec: Spec) -> list[Made]:
    """A pipeline's finalized batches by the code that made their newest output, the newest first.

    Reads each marker.
    """
    root = layout.of(spec)
    groups: dict[str | None, list[tuple[int, Any, Named | None]]] = defaultdict(list)
    found = ledger.rows("look", "finalized", name=spec.name)
    numbers = sorted(r["batch_id"] for r in found)
    for place, r in enumerate(found):
        code = of_marker(layout.marker(root, r["batch_id"]))
        groups[code.digest if code else None].append((place, r, code))
    made = [(digest, sorted(members, key=_made_at)) for digest, members in groups.items()]
    newest_first = sorted(made, key=lambda group: _made_at(group[1][-1]), reverse=True)
    return [_made(digest, members, numbers, layout.code(root)) for digest, members in newest_first]


def _made_at(member: tuple[int, Any, Named | None]) -> tuple[datetime, int]:
    place, r, _ = member
    return r["made_at"], place


def _made(
    digest: str | None,
    members: list[tuple[int, Any, Named | None]],
    all_of_them: list[int],
    folder: Path,
) -> Made:
    """`members`: each with its place in the order of commits; the one that was made last, last.
    `all_of_them`: the pipeline's finalized batches, in order."""
    code = members[-1][2]
    commits = [c.git_commit for _, _, c in members if c and c.git_commit]
    rows = [r for _, r, _ in sorted(members, key=itemgetter(0))]
    return Made(
        code=code,
        digest=digest,
        texts=code.kept(folder) if code else {},
        git_commits=tuple(dict.fromkeys(commits)),
        batches=tuple(r["batch_id"] for r in rows),
        runs=runs([r["batch_id"] for r in rows], all_of_them),
        intervals=joined(
            (r["interval_start"], r["interval_end"]) for r in rows if r["interval_start"]
        ),
    )



def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans [start, end) in order, those that touch or overlap as one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)
