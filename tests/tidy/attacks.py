"""Which tests attack each rule, and which command runs them: the table in docs/proof.md.

`python tests/tidy/attacks.py` prints the table; tests/tidy/test_protocol.py holds it against the
page.
"""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tree
from tree import RULE, rules

FOLDERS = ("tests/unit", "tests/integration", "tests/chaos", "tests/acceptance")
LONG = ("proof", "soak")
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A test function that names a rule above itself or in its docstring."""

    test: str
    marks: frozenset[str]
    """Of the whole function."""
    long: bool
    """Whether it or one of its cases is for `make proof`."""

    @property
    def quick(self) -> bool:
        """Whether `make test` may run it: of those on a rule it takes one, and others by the seed."""
        return not self.marks & {"rest", *LONG}


@cache
def attacks() -> dict[str, list[Attack]]:
    """By rule, those of `make test` first."""
    found: dict[str, list[Attack]] = defaultdict(list)
    for path in tree.python_files(*FOLDERS):
        lines = path.read_text(encoding="utf-8").splitlines()
        module = tree.parsed(path)
        of_all = _marks([n.value for n in module.body if _is_pytestmark(n)])
        for node in module.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            marks = of_all | _marks(node.decorator_list)
            name = f"{tree.shown(path)}::{node.name}"
            decorated = "\n".join(lines[_first(node) : node.lineno])
            long = "proof" in marks or "mark.proof" in decorated
            text = _above(lines, node) + (ast.get_docstring(node) or "")
            for rule in dict.fromkeys(RULE.findall(text)):
                found[rule].append(Attack(test=name, marks=marks, long=long))
    return {rule: sorted(them, key=lambda a: not a.quick) for rule, them in found.items()}


def _is_pytestmark(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _marks(nodes: list[ast.expr]) -> frozenset[str]:
    """The markers of a whole function; one of a single case does not count."""
    text = " ".join(ast.unparse(n) for n in nodes if "parametrize" not in ast.unparse(n))
    return frozenset(re.findall(r"pytest\.mark\.(\w+)", text))


def _first(node: ast.FunctionDef) -> int:
    """The index of the line where a function begins, with its decorators."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1


def _above(lines: list[str], node: ast.FunctionDef) -> str:
    """The comment right above a function and its decorators."""
    first, text = _first(node), ""
    while first and lines[first - 1].startswith("#"):
        first -= 1
        text = f"{lines[first]}\n{text}"
    return text


def table() -> str:
    """Rows of Markdown: a rule, what `make test` runs against it, and where there is more."""
    known = attacks()
    rows = ["| rule | `make test` draws from | others in CI | all cases |", "|---|---|---|---|"]
    for rule in rules():
        found = known.get(rule, [])
        quick = [_name(a) for a in found if a.quick]
        others = sum(not a.marks & {*LONG} for a in found) - len(quick[:SHOWN])
        whole = "`make proof`" if any(a.long for a in found) else "CI"
        rows.append(f"| {rule} | {', '.join(quick[:SHOWN])} | {others or ''} | {whole} |")
    return "\n".join(rows)


def _name(attack: Attack) -> str:
    file, _, test = attack.test.partition("::")
    return f"`{Path(file).stem}::{test}`"


if __name__ == "__main__":
    print(table())
