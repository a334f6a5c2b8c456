"""The names of declared columns in files: columns that a file may lack, and other names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from semel.declare.wording import named


@dataclass(frozen=True, kw_only=True)
class Naming:
    """`source.columns` as a reader of files needs it.

    `optional`: columns that a file may lack. `others`: by column, its other names. `needed`:
    columns that identify or date a record.
    """

    optional: frozenset[str] = frozenset()
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    needed: frozenset[str] = frozenset()

    def names(self, column: str) -> tuple[str, ...]:
        """All names of a column, its own first."""
        return (column, *self.others.get(column, ()))

    # Keeps P30.
    def match(self, columns: Iterable[str], in_file: Sequence[str]) -> "Header":
        """Find the declared columns among the names in a file, in the file's order."""
        column_of = {name: column for column in columns for name in self.names(column)}
        matches: dict[str, list[str]] = {column: [] for column in column_of.values()}
        for name in in_file:
            if name in column_of:
                matches[column_of[name]].append(name)
        return Header(
            held={column: names[0] for column, names in matches.items() if names},
            lacking=[c for c, names in matches.items() if not names and c not in self.optional],
            strange=[name for name in in_file if name not in column_of],
            doubled=[_doubled(c, names) for c, names in matches.items() if len(names) > 1],
        )

    def remedy(self, header: "Header", *, all_named: bool) -> str:
        """A sentence with the declaration that makes a file readable. Empty if none does.
        `all_named`: each column of a file must be declared.
        """
        if header.doubled:
            return ""
        rules: dict[str, dict[str, object]] = {}
        strange, renamed = list(header.strange), []
        for column in header.lacking:
            other = nearest(column, strange)
            alone = len(header.lacking) == len(strange) == 1
            if other is None and all_named and alone and header.held:
                other = strange[0]
            if other is not None:
                strange.remove(other)
                rules[column] = {"names": [*self.others.get(column, ()), other]}
                renamed.append(f"{other!r} is another name of {column!r}")
            elif column in self.needed or not header.held:
                return ""
            else:
                rules[column] = {"optional": True}
        new = strange if all_named else []
        rules |= dict.fromkeys(new, {"optional": True})
        if not rules:
            return ""
        text = f"eclare `columns: {_flow(rules)}` in source"
        text = f"Add {named(tuple(new))} to source.schema, and d{text}" if new else f"D{text}"
        if renamed:
            return f"{text}, if {' and '.join(renamed)}"
        return f"{text}: where a file lacks the column, it is null"


class Header(NamedTuple):
    """The columns of a file. `held`: by declared column, its name in the file. `lacking`: declared
    columns that are missing. `strange`: names of no declared column. `doubled`: a sentence about
    each declared column that is there more than once.
    """

    held: dict[str, str]
    lacking: list[str]
    strange: list[str]
    doubled: list[str]


def _doubled(column: str, names: Sequence[str]) -> str:
    """A sentence about a column that a file has under several names."""
    several = dict.fromkeys(names)
    under = f", as {' and '.join(map(repr, several))}" if len(several) > 1 else ""
    return f"column {column!r} is there twice{under}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of some names. Returns None if no name is similar."""
    folded = {other.casefold(): other for other in names}
    close = get_close_matches(name.casefold(), folded, n=1)
    return folded[close[0]] if close else None


AS_DECLARED = Naming()
"""Each file has all columns, under their declared names."""


def _flow(rules: Mapping[str, object]) -> str:
    """YAML in one line."""
    import yaml

    text = yaml.safe_dump(
        dict(rules), default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20
    )
    return text.strip()
