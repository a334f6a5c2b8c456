"""sql/queries/: each statement is used, and each name that the code uses is there."""

import ast
import re
from dataclasses import fields
from functools import cache

import tree
from semel.model.batch import Counts

_NAMERS = ("row", "rows", "change", "transition", "query")
_OF_ONE_FILE = {"payload_query": "catalog", "_runs": "catalog", "fill_query": "postgres"}
"""What takes the name alone, and the file that it is of."""
_THERE = tree.statements()
_OF_DUCKDB = {"audit": "audit", "compare": "differences"}  # These hand names on as values.


@cache
def used() -> dict[tuple[str, str], str]:
    """Every (file, name) that the package asks for, and where."""
    found = {}
    for path in tree.python_files("plugins/semel", "plugins/semel_local"):
        verb = _OF_DUCKDB.get(path.relative_to(tree.PACKAGE.parent).parts[1])
        for node in ast.walk(tree.parsed(path)):
            if verb and isinstance(node, ast.Constant) and (verb, node.value) in _THERE:
                found[verb, node.value] = f"{tree.shown(path)}:{node.lineno}"
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            where = f"{tree.shown(path)}:{node.lineno}"
            if called in _NAMERS and len(texts) >= 2:
                found[texts[0], texts[1]] = where
            elif called in _OF_ONE_FILE and texts:
                found[_OF_ONE_FILE[called], texts[0]] = where
            elif called == "DuckEngine" and texts:  # Of clients.duck: it begins with its tables.
                found[texts[0], "tables"] = where
    return found


def test_each_name_that_is_used_exists() -> None:
    """A name that is nowhere would fail only when it is run."""
    for (verb, name), where in used().items():
        there = (verb, name) in tree.statements()
        assert there, f"{where}: sql/queries/{verb}.sql has no `-- name: {name}`; write it"


def test_each_statement_is_used() -> None:
    """A statement that nobody runs is wrong before long."""
    unused = sorted(tree.statements().keys() - used().keys())
    assert not unused, f"nothing in plugins/semel uses {unused}: remove them from sql/queries/"


def test_no_statement_lists_the_counts_by_hand() -> None:
    """A new count of an account is in each statement at once."""
    counts = [re.compile(rf"\b{field.name}\b") for field in fields(Counts)]
    listed = [name for name, text in _THERE.items() if all(c.search(text) for c in counts)]
    assert not listed, f"{listed} list all counts: write {{<count>}}, or {{a.<count>}}"


def test_each_name_is_there_once() -> None:
    """Of two statements of one name in a file the first is never run."""
    for path in tree.QUERIES.glob("*.sql"):
        names = re.findall(r"^-- name: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"{tree.shown(path)} has two of {twice}: remove the first, it never runs"


# P15.
def test_a_pipeline_is_locked_in_one_place() -> None:
    """The function that takes the lock compares the sink: no other statement takes it."""
    locking = re.compile(r"FROM semel\.pipeline\b.*\bFOR (NO KEY )?UPDATE", re.DOTALL)
    found = {name for name, text in tree.statements().items() if locking.search(text)}
    assert found == {("pipelines", "lock")}, "take a pipeline's lock by semel.ledger.pipelines.lock"


def test_the_verbs_have_one_file_each() -> None:
    """One verb, one module, one SQL file."""
    modules = {tree.module_of(path).rpartition(".")[2] for path in tree.python_files("plugins")}
    for verb in ("plan", "stage", "commit", "finalize", "collect", "abandon", "adopt"):
        assert verb in modules, f"no module is named {verb}"
        path = tree.QUERIES / f"{verb}.sql"
        assert path.is_file(), f"{tree.shown(path)} is missing: a verb has both"
